"""The same loop under Mainspring: `ms run --replicas 2 -- python jax_after.py`; alone it runs as before."""

import itertools
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import NamedSharding, PartitionSpec

from mainspring.session.jax_distributed import run
from mainspring.session.jax_state import blocks_of, tree_from

STEPS = 300
optimizer = optax.adam(1e-2)


def draw(first, rank, ranks):
    """Yields this rank's part of each step's batch."""
    for step in itertools.count(first):
        x = np.random.default_rng([7, step]).normal(size=(96, 8)).astype(np.float32)
        yield x[rank::ranks], np.sin(x.sum(axis=1))[rank::ranks]


def fresh():
    """Returns the state before the first step."""
    first, second = jax.random.split(jax.random.key(0))
    weights = {"in": jax.random.normal(first, (8, 64)) / 3, "out": jax.random.normal(second, (64,)) / 8}
    return {"weights": weights, "optimizer": optimizer.init(weights)}


@partial(jax.jit, donate_argnums=0)
def update(state, x, y):
    """Returns the state after one more step, and the loss."""

    def loss_of(weights):
        return jnp.mean((jnp.tanh(x @ weights["in"]) @ weights["out"] - y) ** 2)

    loss, gradient = jax.value_and_grad(loss_of)(state["weights"])
    changes, moved = optimizer.update(gradient, state["optimizer"])
    return {"weights": optax.apply_updates(state["weights"], changes), "optimizer": moved}, loss


def main(session):
    """Trains."""
    mesh = jax.make_mesh((jax.device_count(),), ("data",))
    whole, split = NamedSharding(mesh, PartitionSpec()), NamedSharding(mesh, PartitionSpec("data"))
    state = jax.jit(fresh, out_shardings=whole)()
    restored = session.restore()
    start = restored.step if restored else 0
    state = tree_from(restored, state) if restored else state
    batches = session.timed(draw(start, jax.process_index(), jax.process_count()))
    for step in session.steps(start, STEPS):
        x, y = (jax.make_array_from_process_local_data(split, part) for part in next(batches))
        state, loss = update(state, x, y)
        if step % 20 == 0 and jax.process_index() == 0:
            print(f"step {step}: loss {loss:.9f}")
        if session.snapshot_due(step):
            session.snapshot(step, blocks_of(state, session))


if __name__ == "__main__":
    run(main)
