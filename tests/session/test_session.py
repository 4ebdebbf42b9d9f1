from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from itertools import count
from pathlib import Path

import numpy as np
import pytest

from mainspring.domain import wire
from mainspring.domain.errors import InvalidInput, Unavailable
from mainspring.domain.ids import AttemptId, JobId, RoleName
from mainspring.node.arena import Arena
from mainspring.node.rank_server import Duty, RankDesk, RankServer
from mainspring.session import Block, Session


class Watch:
    """A stopwatch that moves when told."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


class Desk:
    """A rank's real server, on a loop of its own."""

    def __init__(self, folder: Path) -> None:
        place = wire.RankPlace(rank=3, role=RoleName("main"), role_rank=1, role_size=2, agent=0)
        self.desk = RankDesk(place=place, local_rank=0, arena=Arena(folder))
        self.reports: list[wire.StepReport] = []
        self.told: list[object] = []
        self.stop = wire.StepReply()
        self.path = str(folder / "s")
        self.loop = asyncio.new_event_loop()
        self.thread = threading.Thread(target=self.loop.run_forever)
        self.thread.start()
        duty = Duty(
            welcome=self.welcome,
            stop=lambda: self.stop,
            stepped=lambda _, report: self.reports.append(report),
            tell_lead=self.told.append,
        )
        self.server = RankServer(self.desk, duty)
        asyncio.run_coroutine_threadsafe(self.server.listen(self.path), self.loop).result(5)

    def welcome(self, desk: RankDesk) -> wire.Welcome:
        return wire.Welcome(
            job=JobId("job-1"),
            attempt=AttemptId("attempt-1"),
            role=desk.place.role,
            rank=desk.place.role_rank,
            world_size=desk.place.role_size,
            local_rank=desk.local_rank,
            generation=2,
            coordinator="",
            arena_path=desk.arena.path,
        )

    def call(self, work: Callable[[], object]) -> object:
        answer: Future[object] = Future()
        self.loop.call_soon_threadsafe(lambda: answer.set_result(work()))
        return answer.result(5)

    def resume_from(self, step: int) -> None:
        arena = self.desk.arena
        self.desk.restore = wire.RestorePlan(step=step, shards=arena.shards_in_file(step), source="arena")

    def close(self) -> None:
        async def end() -> None:
            self.server.close()
            for task in asyncio.all_tasks() - {asyncio.current_task()}:
                task.cancel()

        asyncio.run_coroutine_threadsafe(end(), self.loop).result(5)
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join()
        self.loop.close()


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Desk]:
    desk = Desk(tmp_path)
    yield desk
    desk.close()


def session_at(desk: Desk, watch: Watch) -> Session:
    return Session(desk.path, pid=os.getpid(), stopwatch=watch)


def test_session_alone_is_rank_zero_of_one_and_restores_nothing() -> None:
    session = Session("", pid=1, stopwatch=Watch())
    assert (session.rank, session.world_size, session.coordinator) == (0, 1, "")
    assert session.report(1, {"loss": 1.0}) is False
    assert session.snapshot(1, [Block.whole("x", np.zeros(3))])
    assert session.restore() is None
    session.result({"x": 1})
    session.close()


def test_session_with_no_agent_behind_its_socket_says_so(tmp_path: Path) -> None:
    with pytest.raises(Unavailable, match="reach the agent"):
        Session(str(tmp_path / "nobody"), pid=1, stopwatch=Watch())


def test_session_learns_who_it_is(desk: Desk) -> None:
    session = session_at(desk, Watch())
    assert (session.rank, session.world_size, session.generation, session.job) == (1, 2, 2, "job-1")
    session.close()


def test_session_reports_are_thinned_and_the_last_one_is_sent_on_close(desk: Desk) -> None:
    watch = Watch()
    session = session_at(desk, watch)
    for step in range(1, 101):
        watch.now_s += 0.01
        session.report(step, {"loss": 1.0 / step, "nothing": float("nan")})
    session.close()
    steps = [report.step for report in desk.reports]
    assert 9 <= len(steps) <= 12
    assert steps[-1] == 100
    assert "nothing" not in desk.reports[0].metrics


def test_session_told_to_stop_says_so_at_its_next_report(desk: Desk) -> None:
    session = session_at(desk, Watch())
    desk.stop = wire.StepReply(stop=True, grace_s=7.0)
    assert session.report(1)
    assert session.stop_requested
    assert session.grace_s == 7.0
    session.close()


def test_session_restores_the_snapshot_another_life_of_the_rank_left(desk: Desk) -> None:
    first = session_at(desk, Watch())
    weights = np.random.default_rng(0).normal(size=(100, 100))
    assert first.snapshot(4, [Block.whole("w", weights), Block.whole("n", np.int64(4) * np.ones((), np.int64))])
    first.close()
    desk.call(lambda: desk.resume_from(4))
    restored = session_at(desk, Watch()).restore()
    assert restored is not None
    assert (restored.step, restored.paths, restored.source) == (4, ("n", "w"), "arena")
    np.testing.assert_array_equal(restored.array("w"), weights)
    assert next(message for message in desk.told if isinstance(message, wire.SnapshotTaken)).rank == 3


def test_session_snapshots_again_and_again_keep_the_two_newest(desk: Desk) -> None:
    session = session_at(desk, Watch())
    for step in range(1, 10):
        assert session.snapshot(step, [Block.whole("x", np.full(1000, step))])
        if step > 2:
            assert {step, step - 1} <= set(desk.desk.arena.steps)
    desk.call(lambda: desk.resume_from(8))
    restored = session.restore()
    assert restored is not None
    assert set(restored.array("x")) == {8}
    session.close()


def test_session_snapshot_that_grows_finds_room(desk: Desk) -> None:
    session = session_at(desk, Watch())
    for step, size in enumerate((10, 1_000_000, 10), start=1):
        assert session.snapshot(step, [Block.whole("x", np.full(size, step))])
    desk.call(lambda: desk.resume_from(2))
    restored = session.restore()
    assert restored is not None
    assert restored.array("x").shape == (1_000_000,)
    session.close()


def test_session_snapshot_without_room_is_left_out_and_the_lead_is_told(desk: Desk) -> None:
    session = session_at(desk, Watch())
    endless = np.broadcast_to(np.zeros(1), (1 << 57,))
    assert not session.snapshot(3, [Block.whole("x", endless)])
    failed = next(message for message in desk.told if isinstance(message, wire.StoreFailed))
    assert (failed.rank, failed.step) == (3, 3)
    assert "no room" in failed.reason
    session.close()


def test_session_snapshot_blocks_count_in_the_next_report(desk: Desk) -> None:
    session = Session(desk.path, pid=1, stopwatch=count().__next__)
    session.snapshot(1, [Block.whole("x", np.zeros(3))])
    session.report(2)
    session.close()
    assert sum(report.snapshot_blocked_s for report in desk.reports) > 0


def test_session_snapshot_with_two_blocks_at_one_place_is_refused(desk: Desk) -> None:
    session = session_at(desk, Watch())
    with pytest.raises(InvalidInput, match="one place"):
        session.snapshot(1, [Block.whole("x", np.zeros(3)), Block.whole("x", np.zeros(3))])
    with pytest.raises(InvalidInput, match="finite"):
        session.snapshot(1, [], {"loss": float("inf")})
    session.close()
