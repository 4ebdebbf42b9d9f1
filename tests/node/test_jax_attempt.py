"""A sharded JAX program over two agents: a rank dies, the survivor goes on in its process, the state comes back."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from mainspring.domain.life import AttemptState
from mainspring.domain.wire.events.leads import GenerationResumedEvent, RankExitedEvent, ResultEvent

from .rig import Rig

pytest.importorskip("jax", reason="the train extra is not installed")
pytestmark = pytest.mark.slow

STEPS = 200
PROGRAM = """
import os, sys
from pathlib import Path
import jax, jax.numpy as jnp, numpy as np
from jax.sharding import NamedSharding, PartitionSpec
from mainspring.session.jax_distributed import run
from mainspring.session.jax_state import blocks_of, tree_from

steps, pids = 400, set()

def main(session):
    pids.add((session.generation, os.getpid()))
    mesh = jax.make_mesh((jax.device_count(),), ("data",))
    split, copied = NamedSharding(mesh, PartitionSpec("data")), NamedSharding(mesh, PartitionSpec())

    @jax.jit
    def step_once(tree):
        total = jnp.sum(tree["split"])
        copied = tree["copied"] * 0.99 + total / 1e4
        return {"split": jnp.sin(tree["split"] + tree["copied"]), "copied": copied.astype(jnp.bfloat16)}

    def fresh():
        return {"split": jnp.arange(4096, dtype=jnp.float32), "copied": jnp.ones((), jnp.bfloat16)}

    def begin():
        return jax.jit(fresh, out_shardings={"split": split, "copied": copied})()

    tree = begin()
    restored, start = session.restore(), 0
    if restored is not None:
        tree, start = tree_from(restored, tree), restored.step
    for step in session.steps(start, steps):
        tree = jax.block_until_ready(step_once(tree))
        if session.snapshot_due(step):
            session.snapshot(step, blocks_of(tree, session))
        while step == 100 and session.generation == 1:
            jax.block_until_ready(step_once(tree))  # Held here, in collectives, until the test has killed a rank.
    again = begin()
    for step in range(steps):
        again = step_once(again)
    for name in tree:
        for one, other in zip(tree[name].addressable_shards, again[name].addressable_shards, strict=True):
            assert np.asarray(one.data).tobytes() == np.asarray(other.data).tobytes(), name
    session.result({f"equal-{session.rank}": True, f"generations-{session.rank}": len(pids)})

run(main, cache=Path(sys.argv[1]))
"""


@pytest.mark.parametrize("killed", [0, pytest.param(1, marks=pytest.mark.soak)])
def test_jax_attempt_with_a_rank_killed_ends_bitwise_as_without_and_the_other_process_lives_on(
    killed: int, make_rig: Callable[..., Rig], tmp_path: Path
) -> None:
    program = tmp_path / "jax_program.py"
    program.write_text(PROGRAM)
    rig = make_rig(command=("env", "JAX_PLATFORMS=cpu", sys.executable, str(program), str(tmp_path / "compiled")))
    rig.wait_step(98)
    rig.signal_rank(killed, signal.SIGKILL)
    assert rig.wait_outcome().outcome is AttemptState.SUCCEEDED, rig.heartbeats[-1].reason
    assert [exited["rank"] for exited in rig.of_kind(RankExitedEvent.kind)] == [killed], rig.story()
    resumed = rig.of_kind(GenerationResumedEvent.kind)
    assert [detail["source"] for detail in resumed] == ["", "arena"]
    results = {name: value for detail in rig.of_kind(ResultEvent.kind) for name, value in detail.items()}
    assert results == {"equal-0": True, "equal-1": True, f"generations-{killed}": 1, f"generations-{1 - killed}": 2}, (
        rig.story()
    )
