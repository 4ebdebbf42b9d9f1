"""A JAX training run of any number of ranks that tells every loss to the last bit, until it is told to end.

    python trainee.py STEPS PAUSE_S END

It ends after STEPS steps, or after the step in which some rank finds the file END: all of them agree on it.
"""

from __future__ import annotations

import sys
import threading
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from mainspring.session import Session
from mainspring.session.jax_distributed import run

ROWS, WIDTH = 8, 16


def update(weights: jax.Array, inputs: jax.Array, told: jax.Array) -> Any:
    def loss(weights: jax.Array) -> jax.Array:
        return jnp.mean((jnp.tanh(inputs @ weights) - inputs[:, ::-1]) ** 2)

    value, gradient = jax.value_and_grad(loss)(weights)
    return weights - 0.1 * gradient, value, jnp.sum(told)


def main(session: Session) -> None:
    spec: Any = PartitionSpec  # JAX's own signatures are untyped.
    steps, pause_s, end = int(sys.argv[1]), float(sys.argv[2]), Path(sys.argv[3])
    mesh = Mesh(np.asarray(jax.devices()), ("data",))
    whole, split = NamedSharding(mesh, spec()), NamedSharding(mesh, spec("data"))
    place: Any = jax.make_array_from_process_local_data
    step_fn = jax.jit(update, out_shardings=(whole, whole, whole))
    weights = jax.device_put(np.eye(WIDTH, dtype=np.float32), whole)
    moment = threading.Event()
    for step in session.steps(0, steps):
        rows = np.random.default_rng((step, session.rank)).standard_normal((ROWS, WIDTH)).astype(np.float32)
        told = np.full(1, end.exists(), np.float32)
        weights, loss, ends = step_fn(weights, place(split, rows), place(split, told))
        sys.stdout.write(f"step {step} loss {float(loss).hex()}\n")
        sys.stdout.flush()
        if float(ends) > 0:
            break
        moment.wait(pause_s)


if __name__ == "__main__":
    run(main, standby=False)
