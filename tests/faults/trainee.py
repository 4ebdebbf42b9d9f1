"""A small JAX training run for fault tests: every bit of its weights depends on every step before.

    python trainee.py STEPS PAUSE_S

Weights are replicated and Adam's moments are split over all ranks, so that no rank holds the whole state. The global
batch of 24 samples is drawn from (seed, step) alone, whatever the number of ranks. Each rank gives a digest of the
weights as its result, and their first numbers, for comparison where bits may differ.
"""

from __future__ import annotations

import hashlib
import sys
import threading
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from mainspring.domain.wire import Part
from mainspring.session import Session
from mainspring.session.jax_distributed import run
from mainspring.session.jax_state import blocks_of, tree_from

SAMPLES, WIDTH, OUT = 24, 48, 16
PARTS = {"weights": Part.WEIGHTS, "optimizer": Part.OPTIMIZER}


def batch(step: int, rank: int, world_size: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns this rank's rows of the step's global batch: (rows, WIDTH) inputs and (rows, OUT) targets."""
    dice = np.random.default_rng((7, step))
    inputs = dice.standard_normal((SAMPLES, WIDTH)).astype(np.float32)
    targets = np.tanh(inputs[:, :OUT] * 1.5).astype(np.float32)
    rows = slice(rank * SAMPLES // world_size, (rank + 1) * SAMPLES // world_size)
    return inputs[rows], targets[rows]


def update(state: Any, inputs: jax.Array, targets: jax.Array, step: jax.Array) -> Any:
    def loss(weights: jax.Array) -> jax.Array:
        return jnp.mean((jnp.tanh(inputs @ weights) - targets) ** 2)

    value, gradient = jax.value_and_grad(loss)(state["weights"])
    mean = 0.9 * state["optimizer"]["mean"] + 0.1 * gradient
    spread = 0.99 * state["optimizer"]["spread"] + 0.01 * gradient**2
    rate = 0.02 * (1.0 + 0.1 * jnp.sin(step.astype(jnp.float32)))
    weights = state["weights"] - rate * mean / (jnp.sqrt(spread) + 1e-6)
    return {"weights": weights, "optimizer": {"mean": mean, "spread": spread}}, value


def main(session: Session) -> None:
    spec: Any = PartitionSpec  # JAX's own signatures are untyped.
    struct: Any = jax.ShapeDtypeStruct
    place: Any = jax.make_array_from_process_local_data
    steps, pause_s = int(sys.argv[1]), float(sys.argv[2])
    mesh = Mesh(np.asarray(jax.devices()), ("data",))
    whole, split = NamedSharding(mesh, spec()), NamedSharding(mesh, spec("data"))
    places = {"weights": whole, "optimizer": {"mean": split, "spread": split}}
    like = jax.tree.map(lambda where: struct((WIDTH, OUT), jnp.float32, sharding=where), places)
    restored = session.restore()
    if restored is None:
        zeros = np.zeros((WIDTH, OUT), np.float32)
        first = {"weights": zeros, "optimizer": {"mean": zeros, "spread": zeros}}
        state, start = jax.tree.map(jax.device_put, first, places), 0
    else:
        state, start = tree_from(restored, like), restored.step
    step_fn = jax.jit(update, donate_argnums=0, out_shardings=(places, whole))
    moment = threading.Event()
    step = start
    for step in session.steps(start, steps):
        inputs, targets = batch(step, session.rank, session.world_size)
        split_in = [place(split, rows) for rows in (inputs, targets)]
        state, loss = step_fn(state, *split_in, np.int32(step))
        session.report(step, {"loss": float(loss)})
        moment.wait(pause_s)
        if session.snapshot_due(step):
            session.snapshot(step, blocks_of(state, session, parts=PARTS), {"steps": steps})
    if step == steps:
        weights = np.asarray(state["weights"])
        digest = hashlib.sha256(weights.tobytes()).hexdigest()
        session.result({f"digest_{session.rank}": digest, **{f"weight_{i}": float(weights[0, i]) for i in range(4)}})


if __name__ == "__main__":
    run(main)
