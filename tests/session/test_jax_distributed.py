"""Real JAX processes with real coordination services: ranks die, stand by, join and leave, and the rest go on."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from tests.session.agent import Agent, welcome

from mainspring.domain import wire
from mainspring.domain.wire import EXIT_PREEMPTED, Then
from mainspring.node.net.connection import free_port

pytest.importorskip("jax", reason="the train extra is not installed")
pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
ENVIRONMENT = {**os.environ, "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}", "JAX_PLATFORMS": "cpu"}
LIMIT_S = 60.0
SIZE = 12
EVERY = 50

PROGRAM = """
import gc, sys, threading
from pathlib import Path
import jax, jax.numpy as jnp, numpy as np
from jax.sharding import NamedSharding, PartitionSpec
from mainspring.session import Part
from mainspring.session.jax_ahead import compile_ahead
from mainspring.session.jax_distributed import run
from mainspring.session.jax_state import blocks_of, tree_from

kept, asked = [], []
jax.monitoring.register_event_listener(lambda event, **_: asked.append(event))

def collect_always():
    gc.callbacks.append(lambda phase, _: threading.current_thread() is collector and threading.Event().wait(0.2))
    while True:
        gc.collect()
        threading.Event().wait(0.05)

if "collects" in sys.argv:
    collector = threading.Thread(target=collect_always, daemon=True)
    collector.start()

def placed(devices):
    mesh = jax.make_mesh((len(devices),), ("data",), devices=devices)
    return NamedSharding(mesh, PartitionSpec("data")), NamedSharding(mesh, PartitionSpec())

def main(session):
    split, copied = placed(jax.devices())

    @jax.jit
    def step_once(tree):
        copied = tree["copied"] * 3 + jnp.sum(tree["split"], dtype=jnp.uint32)
        return {"split": tree["split"] * 5 + copied, "copied": copied}

    def fresh():
        return {"split": jnp.arange(12, dtype=jnp.uint32), "copied": jnp.uint32(1)}

    tree = jax.jit(fresh, out_shardings={"split": split, "copied": copied})()
    restored, start = session.restore(), 0
    if restored is not None:
        tree, start = tree_from(restored, tree), restored.step
    if "leak" in sys.argv:
        kept.append(split.mesh)

    def lower(devices):
        split, copied = placed(devices)
        numbers = jax.ShapeDtypeStruct((12,), jnp.uint32, sharding=split)
        return step_once.lower({"split": numbers, "copied": jax.ShapeDtypeStruct((), jnp.uint32, sharding=copied)})

    for step in session.steps(start, int(sys.argv[1])):
        asked.clear()
        tree = jax.block_until_ready(step_once(tree))
        if "ahead" in sys.argv and step == start + 1:
            found = [event for event in asked if event.endswith(("cache_hits", "cache_misses"))]
            print("generation", session.generation, "found", *found)
            ahead = compile_ahead(session, lower)
            assert ahead is None or ahead.wait(60)
        if session.snapshot_due(step):
            session.snapshot(step, blocks_of(tree, session, {"copied": Part.WEIGHTS}))
        while f"held-{session.generation}" in sys.argv and step == start + 100 and not session.stop_requested:
            jax.block_until_ready(step_once(tree))  # Until the test has killed a rank, or asked this one to leave.
        if "fail" in sys.argv:
            raise ValueError("not for you")
    if "whole" in sys.argv and not session.stop_requested:
        whole = jax.jit(lambda tree: tree, out_shardings=copied)(tree)
        session.result({name: np.asarray(array).tobytes().hex() for name, array in whole.items()})
    return "done"

print("main gave", run(main, cache=Path(sys.argv[2])))
"""


def expected(steps: int) -> dict[str, str]:
    split, copied = np.arange(SIZE, dtype=np.uint32), np.ones(1, np.uint32)  # Arrays wrap round without a warning.
    for _ in range(steps):
        copied = copied * np.uint32(3) + split.sum(dtype=np.uint32)
        split = split * np.uint32(5) + copied
    return {"split": split.tobytes().hex(), "copied": copied.tobytes().hex()}


@dataclass
class Ring:
    """Ranks of one role, each with an agent of its own, and the services they meet at."""

    folder: Path
    agents: list[Agent] = field(default_factory=list)
    processes: list[subprocess.Popen[str]] = field(default_factory=list)
    services: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def service(self, ranks: int) -> str:
        port = free_port("127.0.0.1")
        child = subprocess.Popen(
            [sys.executable, "-m", "mainspring.node.coordinator"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=ENVIRONMENT,
        )
        self.services.append(child)
        assert child.stdin is not None
        assert child.stdout is not None
        child.stdin.write(f"127.0.0.1 {port} {ranks}\n".encode())
        child.stdin.flush()
        assert child.stdout.readline() == b"ready\n"
        return f"127.0.0.1:{port}"

    def agent(self) -> Agent:
        folder = self.folder / f"agent-{len(self.agents)}"
        folder.mkdir()
        self.agents.append(Agent(folder))
        self.agents[-1].reply = wire.StepReply(snapshot_every=EVERY)
        return self.agents[-1]

    def start(self, agent: Agent, *words: str) -> subprocess.Popen[str]:
        """Starts a process under an agent, and waits until it has said who it is."""
        program = self.folder / "program.py"
        program.write_text(PROGRAM)
        said = len(agent.all(wire.Hello))
        process = subprocess.Popen(
            [sys.executable, str(program), *words],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env={**ENVIRONMENT, "MAINSPRING_SOCKET": agent.path},
        )
        self.processes.append(process)
        with agent.heard:
            assert agent.heard.wait_for(
                lambda: len(agent.all(wire.Hello)) > said or process.poll() is not None, LIMIT_S
            )
        assert process.poll() is None, process.communicate()
        return process

    def generation(self, number: int, agents: list[Agent], *, shrunk_size: int = 0) -> None:
        """Gives each agent's rank its place in a new generation."""
        size = len(agents)
        coordinator = self.service(size) if size > 1 else ""
        for rank, agent in enumerate(agents):
            who = welcome(rank=rank, world_size=size, generation=number, every=EVERY)
            agent.welcomes.put(replace(who, coordinator=coordinator, local_ranks=(rank,), shrunk_size=shrunk_size))

    def resume(self, agents: list[Agent]) -> int:
        """Makes the newest step that all of them saved the one to resume from; returns it."""
        step = min(max(commit.step for commit in agent.all(wire.SnapshotCommit)) for agent in agents)
        for agent in agents:
            agent.resume_from([commit for commit in agent.all(wire.SnapshotCommit) if commit.step == step][-1])
        return step

    def end_services(self) -> None:
        """Ends all services but the newest: a rank with any part of an old client left would die of it."""
        for service in self.services[:-1]:
            service.kill()
            service.wait()

    def close(self) -> None:
        for process in self.processes:
            process.kill()
            sys.stdout.write(process.communicate()[0])  # Shown should the test have failed.
        for service in self.services:
            service.kill()
            service.wait()
        for agent in self.agents:
            agent.hang_up()


@pytest.fixture
def ring(tmp_path: Path) -> Iterator[Ring]:
    ring = Ring(tmp_path)
    yield ring
    ring.close()


@pytest.fixture(scope="module")
def words(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., tuple[str, ...]]:
    cache = str(tmp_path_factory.mktemp("compiled"))
    return lambda steps, *more: (str(steps), cache, *more)


def saved(agent: Agent, step: int) -> bool:
    return any(commit.step >= step for commit in agent.all(wire.SnapshotCommit))


def wait_saved(agents: list[Agent], step: int) -> None:
    for agent in agents:
        with agent.heard:
            assert agent.heard.wait_for(partial(saved, agent, step), LIMIT_S), agent.said[-3:]


def ended(process: subprocess.Popen[str]) -> str:
    out, _ = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 0, out[-2000:]
    return out


def test_ranks_that_lose_one_go_on_in_the_same_processes_with_a_standby_in_its_place(
    ring: Ring, words: Callable[..., tuple[str, ...]]
) -> None:
    steps = 500
    agents = [ring.agent() for _ in range(3)]
    ring.generation(1, agents)
    processes = [ring.start(agent, *words(steps, "whole", "held-1")) for agent in agents]
    standby = ring.start(agents[1], *words(steps, "whole", "held-1"))
    wait_saved(agents, 2 * EVERY)
    processes[1].kill()
    for survivor in (agents[0], agents[2]):
        survivor.wait(wire.NextGeneration)
    resumed = ring.resume(agents)
    ring.generation(2, agents)
    wait_saved(agents, resumed + EVERY)
    ring.end_services()
    for process in (processes[0], standby, processes[2]):
        assert "main gave done" in ended(process)
    assert [hello.standby and hello.reconnects for hello in agents[1].all(wire.Hello)] == [True, True]
    for agent in agents:
        assert [report.values for report in agent.all(wire.ResultReport)] == [expected(steps)]
        assert sum(report.seconds.get("compile", 0.0) for report in agent.all(wire.StepReport)) > 0.0


def test_blocks_of_sharded_and_replicated_arrays_are_each_stored_once_and_known_to_lie_elsewhere(
    ring: Ring, words: Callable[..., tuple[str, ...]]
) -> None:
    agents = [ring.agent() for _ in range(3)]
    ring.generation(1, agents)
    for agent in agents:
        ring.start(agent, *words(EVERY))
    wait_saved(agents, EVERY)
    shards = [agent.all(wire.SnapshotCommit)[-1].shards for agent in agents]
    once = sorted((shard.path, shard.start) for rank in shards for shard in rank if shard.once)
    assert once == [("copied", ()), ("split", (0,)), ("split", (4,)), ("split", (8,))]
    for rank in shards:
        assert {shard.path: (shard.elsewhere, shard.part) for shard in rank} == {
            "copied": (True, wire.Part.WEIGHTS),
            "split": (False, wire.Part.OTHER),
        }


@pytest.mark.parametrize("lost", [0, 1, 2])
def test_ranks_that_lose_one_find_their_program_compiled_ahead_whatever_their_number_was(ring: Ring, lost: int) -> None:
    steps = 500
    agents = [ring.agent() for _ in range(3)]
    ring.generation(1, agents, shrunk_size=2)
    processes = []
    for number, agent in enumerate(agents):  # Each as on a node of its own, which finds only what it compiled itself.
        own = str(ring.folder / f"compiled-{number}")
        processes.append(ring.start(agent, str(steps), own, "whole", "ahead", "held-1"))
    wait_saved(agents, 2 * EVERY)
    processes[lost].kill()
    left = [agent for number, agent in enumerate(agents) if number != lost]
    for survivor in left:
        survivor.wait(wire.NextGeneration)
    ring.resume(agents)
    shards = tuple(shard for agent in agents for shard in agent.here)
    for survivor in left:
        survivor.here = shards
    ring.generation(2, left)
    for number, agent in enumerate(agents):
        if number != lost:
            said = [line for line in ended(processes[number]).splitlines() if line.startswith("generation")]
            assert said == [
                "generation 1 found /jax/compilation_cache/cache_misses",
                "generation 2 found /jax/compilation_cache/cache_hits",
            ]
            assert [report.values for report in agent.all(wire.ResultReport)] == [expected(steps)]


def test_rank_alone_is_joined_by_another_and_left_alone_again_in_one_process(
    ring: Ring, words: Callable[..., tuple[str, ...]]
) -> None:
    steps = 500
    first, second = ring.agent(), ring.agent()
    first.reply = wire.StepReply(stop=True, stop_at=100, then=Then.REJOIN, snapshot_every=EVERY)
    ring.generation(1, [first])
    process = ring.start(first, *words(steps, "whole", "held-1", "held-2"))
    first.wait(wire.NextGeneration)
    first.reply = wire.StepReply(snapshot_every=EVERY)
    assert ring.resume([first]) == 100
    second.here, second.plan_step = first.here, first.plan_step  # What one rank had is the whole state.
    ring.generation(2, [first, second])
    guest = ring.start(second, *words(steps, "whole", "held-2"))
    wait_saved([first, second], first.plan_step + EVERY)
    guest.kill()
    first.wait(wire.NextGeneration, lambda message: message.after == 2)
    ring.resume([first, second])  # The one that is killed may be a step behind.
    first.here += tuple(  # Its half of the split array is not all there is.
        replace(shard, file=str(second.arena), offset=commit.offset + shard.offset)
        for commit in second.all(wire.SnapshotCommit)
        if commit.step == first.plan_step
        for shard in commit.shards
    )
    ring.generation(3, [first])
    assert "main gave done" in ended(process)
    assert [report.values for report in first.all(wire.ResultReport)] == [expected(steps)]


def test_program_asked_to_stop_saves_the_step_and_exits_as_preempted(
    ring: Ring, words: Callable[..., tuple[str, ...]]
) -> None:
    agent = ring.agent()
    agent.reply = wire.StepReply(stop=True, stop_at=1_000, snapshot_every=EVERY)
    ring.generation(1, [agent])
    process = ring.start(agent, *words(10**9))
    assert process.wait(timeout=LIMIT_S) == EXIT_PREEMPTED
    assert agent.all(wire.SnapshotCommit)[-1].step == agent.all(wire.StepReport)[-1].step >= 1_000


def test_program_that_fails_by_itself_is_not_called_again(ring: Ring, words: Callable[..., tuple[str, ...]]) -> None:
    agents = [ring.agent(), ring.agent()]
    ring.generation(1, agents)
    process = ring.start(agents[0], *words(10**9, "fail"))
    ring.start(agents[1], *words(10**9))
    out, _ = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 1
    assert "ValueError: not for you" in out
    assert not agents[0].all(wire.NextGeneration)
    agents[1].wait(wire.NextGeneration)


def test_program_that_keeps_its_mesh_starts_anew_instead_of_holding_the_others_up(
    ring: Ring, words: Callable[..., tuple[str, ...]]
) -> None:
    agents = [ring.agent(), ring.agent()]
    ring.generation(1, agents)
    keeper = ring.start(agents[0], *words(10**9, "leak"))
    other = ring.start(agents[1], *words(10**9))
    wait_saved(agents, EVERY)
    other.kill()
    out, _ = keeper.communicate(timeout=LIMIT_S)
    assert keeper.returncode == EXIT_PREEMPTED
    assert "holds JAX arrays, devices or meshes" in out


def test_rank_goes_on_in_its_process_while_another_thread_collects_garbage(
    ring: Ring, words: Callable[..., tuple[str, ...]]
) -> None:
    agents = [ring.agent(), ring.agent()]
    ring.generation(1, agents)
    process = ring.start(agents[0], *words(500, "held-1", "collects"))  # No other collection does anything meanwhile.
    other = ring.start(agents[1], *words(500, "held-1"))
    wait_saved(agents, 2 * EVERY)
    other.kill()
    agents[0].wait(wire.NextGeneration)
    ring.resume(agents[:1])
    agents[0].here += tuple(
        replace(shard, file=str(agents[1].arena), offset=commit.offset + shard.offset)
        for commit in agents[1].all(wire.SnapshotCommit)
        if commit.step == agents[0].plan_step
        for shard in commit.shards
    )
    ring.generation(2, agents[:1])
    assert "main gave done" in ended(process)
