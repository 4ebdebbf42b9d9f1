"""A sharded JAX program over two agents: the coordination service outlives a killed rank, and state comes back."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from mainspring.domain.life import AttemptState
from mainspring.domain.wire import EventKind

from .rig import Rig

pytest.importorskip("jax", reason="the train extra is not installed")
pytestmark = pytest.mark.slow

PROGRAM = """
import sys
import jax, jax.numpy as jnp, numpy as np
from jax.sharding import NamedSharding, PartitionSpec
from mainspring.session import join
from mainspring.session.jax_distributed import initialize
from mainspring.session.jax_state import blocks_of, tree_from

session = join()
initialize(session)
mesh = jax.make_mesh((jax.device_count(),), ("data",))
split, copied = NamedSharding(mesh, PartitionSpec("data")), NamedSharding(mesh, PartitionSpec())

@jax.jit
def step_once(tree):
    total = jnp.sum(tree["split"])
    copied = tree["copied"] * 0.99 + total / 1e4
    return {"split": jnp.sin(tree["split"] + tree["copied"]), "copied": copied.astype(jnp.bfloat16)}

@jax.jit
def fresh():
    return {"split": jnp.arange(4096, dtype=jnp.float32), "copied": jnp.ones((), jnp.bfloat16)}

def begin():
    return jax.jit(fresh, out_shardings={"split": split, "copied": copied})()

tree = begin()
restored, start = session.restore(), 0
if restored is not None:
    tree, start = tree_from(restored, tree), restored.step
for step in range(start + 1, 61):
    tree = jax.block_until_ready(step_once(tree))
    session.report(step)
    if step % 5 == 0:
        assert session.snapshot(step, blocks_of(tree, session))
    while step == 12 and session.generation == 1:
        session.report(step)  # Held here until the test has killed a rank.
again = begin()
for step in range(60):
    again = step_once(again)
for name in tree:
    for one, other in zip(tree[name].addressable_shards, again[name].addressable_shards, strict=True):
        assert np.asarray(one.data).tobytes() == np.asarray(other.data).tobytes(), name
session.result({f"equal-{session.rank}": True})
"""


def test_jax_attempt_with_rank_zero_killed_ends_bitwise_as_without(
    make_rig: Callable[..., Rig], tmp_path: Path
) -> None:
    program = tmp_path / "jax_program.py"
    program.write_text(PROGRAM)
    rig = make_rig(command=(sys.executable, str(program)))
    rig.wait_step(11)
    os.kill(rig.heartbeats[-1].ranks[0].pid, signal.SIGKILL)
    assert rig.wait_outcome().outcome is AttemptState.SUCCEEDED, rig.heartbeats[-1].reason
    assert [exited["rank"] for exited in rig.of_kind(EventKind.RANK_EXITED)] == [0]
    resumed = rig.of_kind(EventKind.GENERATION_RESUMED)
    assert [(detail["step"], detail["source"]) for detail in resumed] == [(-1, ""), (10, "arena")]
    assert sorted(name for detail in rig.of_kind(EventKind.RESULT) for name in detail) == ["equal-0", "equal-1"]
