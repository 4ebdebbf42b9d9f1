"""What snapshots cost a node beside blocking its ranks: CPU time over its cores, and bytes on their way."""

from __future__ import annotations

import pytest

from mainspring.domain import wire
from mainspring.domain.codec import frame
from mainspring.node.snapshots.work import SnapshotWork
from mainspring.testing import FakeClock


class Cpu:
    """A thread's CPU time, of which every look at it takes half a second."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def __call__(self) -> float:
        self.seconds += 0.5
        return self.seconds


def _work(clock: FakeClock) -> SnapshotWork:
    return SnapshotWork(cores=4, cpu_s=Cpu(), clock=clock)


def test_work_that_is_computed_is_shared_by_all_cores_and_told_once() -> None:
    work = _work(FakeClock())
    assert work.computed(lambda: 7) == 7
    assert work.computed(lambda: 8) == 8
    assert work.take() == pytest.approx(2 * 0.5 / 4)
    assert work.take() == 0.0


def test_work_that_fails_has_cost_what_it_cost() -> None:
    work = _work(FakeClock())
    with pytest.raises(ZeroDivisionError):
        work.computed(lambda: 1 // 0)
    assert work.take() == pytest.approx(0.5 / 4)


def test_bytes_on_their_way_have_the_whole_node_for_as_long_as_they_take() -> None:
    clock = FakeClock()
    work = _work(clock)
    with work.travelling():
        clock.advance(3.0)
    assert work.take() == pytest.approx(3.0)


def test_of_what_is_read_messages_that_list_shards_alone_are_work() -> None:
    work = _work(FakeClock())
    report, commit = wire.StepReport(step=1), wire.SnapshotCommit(step=1, offset=0, shards=())
    assert work.read(frame(report)[4:], wire.RankRequest) == report
    assert work.take() == 0.0
    assert work.read(frame(commit)[4:], wire.RankRequest) == commit
    assert work.take() == pytest.approx(0.5 / 4)
