from __future__ import annotations

import resource
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from numpy.typing import NDArray
from tests.session.agent import Agent, welcome

from mainspring.domain import wire
from mainspring.domain.errors import InvalidInput
from mainspring.session import Block, Part, Restored, Session
from mainspring.session.blocks import OnDevice
from mainspring.session.copying import copy_brought


def again(session: Session, agent: Agent, step: int) -> Restored:
    agent.resume_from(agent.wait(wire.SnapshotCommit, lambda commit: commit.step == step))
    restored = session.restore()
    assert restored is not None
    return restored


def test_snapshot_comes_back_in_another_life_of_the_rank(agent: Agent) -> None:
    first = agent.session()
    weights = np.random.default_rng(0).normal(size=(100, 100))
    small = weights.astype(ml_dtypes.bfloat16)
    blocks = [
        Block.whole("w", weights, part=Part.WEIGHTS),
        Block.whole("n", np.array(4)),
        Block.whole("small", small, part=Part.OPTIMIZER),
        Block(path="cut", data=weights.T[10:20], global_shape=(100, 100), start=(10, 0), once=False, elsewhere=True),
        Block.whole("none", np.zeros((0, 3))),
    ]
    assert first.snapshot(4, blocks, {"cursor": 7})
    first.close()
    restored = again(agent.session(), agent, 4)
    assert agent.wait(wire.SnapshotCommit).state == {"cursor": 7}
    assert (restored.step, restored.source) == (4, "arena")
    assert restored.paths == ("cut", "n", "none", "small", "w")
    assert restored.part(Part.WEIGHTS) == ("w",)
    assert restored.spec("small").dtype == small.dtype
    assert restored.spec("w").global_shape == (100, 100)
    np.testing.assert_array_equal(restored.array("w"), weights)
    np.testing.assert_array_equal(restored.array("small"), small)
    np.testing.assert_array_equal(restored.array("cut", (10, 0), (10, 100)), weights.T[10:20])
    assert restored.array("n") == 4
    assert restored.array("none").shape == (0, 3)


def test_snapshot_is_of_the_moment_it_was_taken(agent: Agent) -> None:
    session = agent.session()
    data = np.ones(1000)
    session.snapshot(1, [Block.whole("x", data)])
    data[:] = 2
    assert set(again(session, agent, 1).array("x")) == {1.0}
    session.close()


class Device:
    """Numbers that come to host memory when they are let."""

    def __init__(self, data: NDArray[Any]) -> None:
        self.data = data
        self.asked = threading.Event()
        self.let = threading.Event()

    def held(self) -> OnDevice:
        return OnDevice(shape=self.data.shape, dtype=self.data.dtype, bring=self.bring)

    def bring(self) -> Callable[[], NDArray[Any]]:
        self.asked.set()

        def wait() -> NDArray[Any]:
            assert self.let.wait(120)
            return self.data

        return wait


def block(path: str, data: NDArray[Any] | OnDevice) -> Block:
    return Block(path=path, data=data, global_shape=data.shape, start=(0,) * data.ndim)


def test_snapshot_of_a_device_goes_on_behind_the_program_and_is_of_the_moment_it_was_taken(agent: Agent) -> None:
    session = agent.session()
    device, beside = Device(np.arange(1000.0)), np.ones(10)
    assert session.snapshot(1, [block("far", device.held()), block("near", beside)])
    beside[:] = 2  # The program goes on.
    assert device.asked.wait(120)
    assert not agent.all(wire.SnapshotCommit)
    device.let.set()
    restored = again(session, agent, 1)
    np.testing.assert_array_equal(restored.array("far"), np.arange(1000.0))
    assert set(restored.array("near")) == {1.0}
    session.close()


@pytest.mark.parametrize("leave", [Session.left, Session.close, lambda session: session.snapshot(2, [])])
def test_snapshot_of_a_device_is_waited_for(agent: Agent, leave: Callable[[Session], object]) -> None:
    session = agent.session()
    device = Device(np.arange(10.0))
    session.snapshot(1, [block("x", device.held())])
    left = threading.Thread(target=leave, args=(session,))
    left.start()
    assert device.asked.wait(120)
    assert not agent.all(wire.SnapshotCommit)
    device.let.set()
    left.join(120)
    session.close()
    assert agent.all(wire.SnapshotCommit)[0].step == 1


def test_snapshot_of_a_device_that_fails_is_told_by_the_next(agent: Agent) -> None:
    session = agent.session()

    def lost() -> Callable[[], NDArray[Any]]:
        raise RuntimeError("the device is lost")

    session.snapshot(1, [block("x", OnDevice(shape=(3,), dtype=np.dtype(np.float32), bring=lost))])
    with pytest.raises(RuntimeError, match="is lost"):
        session.snapshot(2, [block("x", np.zeros(3))])
    assert session.snapshot(3, [block("x", np.zeros(3))])
    session.close()


def test_snapshots_of_many_large_arrays_of_a_device_come_back_and_few_are_on_their_way_at_once(agent: Agent) -> None:
    data = [np.full(300_000, number, np.float32) for number in range(3)]
    counts: list[int] = []
    under_way = 0

    def bring(array: NDArray[Any]) -> Callable[[], NDArray[Any]]:
        nonlocal under_way
        under_way += 1
        counts.append(under_way)

        def wait() -> NDArray[Any]:
            nonlocal under_way
            under_way -= 1
            return array

        return wait

    large = [OnDevice(shape=each.shape, dtype=each.dtype, bring=partial(bring, each)) for each in data]
    targets = [np.empty_like(each) for each in data]
    copy_brought(list(zip(targets, large, strict=True)), group_bytes=1)
    for target, each in zip(targets, data, strict=True):
        np.testing.assert_array_equal(target, each)
    assert max(counts) == 2, "one comes while the one before is copied"


def test_snapshots_that_grow_and_shrink_all_come_back(agent: Agent) -> None:
    session = agent.session()
    for step, size in enumerate((10, 1_000_000, 10, 100_000, 1_000_001, 200_000, 500_000, 1), start=1):
        data = np.random.default_rng(step).normal(size=size)
        assert session.snapshot(step, [Block.whole("x", data)])
        np.testing.assert_array_equal(again(session, agent, step).array("x"), data)
    session.close()


def test_snapshot_is_committed_before_the_next_one_begins(agent: Agent) -> None:
    session = agent.session()
    for step in range(20):
        session.snapshot(step, [Block.whole("x", np.zeros(3))])
    session.close()
    said = [message for message in agent.said if isinstance(message, (wire.SnapshotBegin, wire.SnapshotCommit))]
    assert [message.step for message in said] == [step for step in range(20) for _ in ("begin", "commit")]
    assert all(isinstance(message, wire.SnapshotCommit) for message in said[1::2])


def test_snapshot_in_the_next_generation_goes_to_the_arena_of_its_place(agent: Agent) -> None:
    session = agent.session(reconnects=True)
    session.snapshot(1, [Block.whole("x", np.ones(10))])
    other = agent.folder / "other-arena"
    other.write_bytes(bytes(1 << 23))
    agent.welcomes.put(replace(welcome(generation=3), arena_path=str(other)))
    session.next_generation()
    session.snapshot(2, [Block.whole("x", np.full(10, 7, np.uint8))])
    session.left()
    assert other.read_bytes().count(7) == 10
    session.close()


def test_snapshot_without_room_is_left_out(agent: Agent) -> None:
    session = agent.session()
    agent.refuse_slots = "no room"
    assert not session.snapshot(3, [Block.whole("x", np.zeros(3))])
    session.close()
    assert not agent.all(wire.SnapshotCommit)


def test_snapshot_is_committed_before_the_program_leaves(agent: Agent) -> None:
    session = agent.session()
    session.snapshot(3, [Block.whole("x", np.zeros(3))])
    session.left()
    assert [commit.step for commit in agent.all(wire.SnapshotCommit)] == [3]
    session.close()


def test_snapshot_time_counts_even_after_the_last_report(agent: Agent) -> None:
    session = agent.session(stopwatch=iter(range(10_000)).__next__)
    session.report(1)
    session.snapshot(1, [Block.whole("x", np.zeros(3))])
    session.left()
    assert sum(report.seconds.get("snapshot", 0.0) for report in agent.all(wire.StepReport)) > 0
    session.close()


def test_snapshot_that_makes_no_sense_is_refused(agent: Agent) -> None:
    session = agent.session()
    with pytest.raises(InvalidInput, match="one place"):
        session.snapshot(1, [Block.whole("x", np.zeros(3)), Block.whole("x", np.zeros(3))])
    with pytest.raises(InvalidInput, match="finite"):
        session.snapshot(1, [], {"loss": float("inf")})
    with pytest.raises(InvalidInput, match="10000"):
        session.snapshot(1, [Block.whole(str(number), np.zeros(1)) for number in range(10_001)])
    session.close()
    assert not agent.all(wire.SnapshotBegin)


@pytest.mark.slow
def test_large_snapshots_run_at_the_speed_of_memory_and_fault_no_pages_once_every_slot_was_used(agent: Agent) -> None:
    session = agent.session()
    size_bytes = 1 << 28
    blocks = [Block.whole(str(number), np.ones(size_bytes // 4, np.uint8)) for number in range(4)]
    for step in (1, 2, 3):
        session.snapshot(step, blocks)
    faults, seconds = [], []
    for step in (4, 5, 6):
        before, started_s = resource.getrusage(resource.RUSAGE_SELF).ru_minflt, time.perf_counter()
        session.snapshot(step, blocks)
        seconds.append(time.perf_counter() - started_s)
        faults.append(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
    session.close()
    assert min(faults) < 500, faults  # A slot mapped anew would fault its 65,536 pages.
    assert min(seconds) < 0.5, seconds  # Memory copies 2 GB/s even on a machine that is shared.
