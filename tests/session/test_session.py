from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from tests.session.agent import WAIT_LIMIT_S, Agent, welcome

from mainspring.domain import wire
from mainspring.domain.errors import InvalidInput, InvalidMessage, Unavailable
from mainspring.session import Block, Session, Then, TimeUse


def alone() -> Session:
    return Session("", pid=1, stopwatch=lambda: 0.0)


def until(what: Callable[[], object]) -> None:
    """Waits for what the session's own thread learns."""
    over_s = time.monotonic() + WAIT_LIMIT_S
    while not what():
        assert time.monotonic() < over_s, "it never came"
        threading.Event().wait(0.002)


def test_session_alone_is_rank_zero_of_one_and_keeps_nothing() -> None:
    session = alone()
    assert (session.rank, session.world_size, session.coordinator, session.local_ranks) == (0, 1, "", (0,))
    assert list(session.steps(3, 6)) == [4, 5, 6]
    assert session.report(1, {"loss": 1.0}) is False
    assert not session.snapshot_due(6)
    assert session.snapshot(1, [Block.whole("x", np.zeros(3))])
    assert session.restore() is None
    assert list(session.timed(iter("ab"))) == ["a", "b"]
    assert session.left() is Then.EXIT
    assert session.next_generation() is False
    session.result({"x": 1})
    session.close()


def test_session_with_no_agent_behind_its_socket_says_so(tmp_path: Path) -> None:
    with pytest.raises(Unavailable, match="reach the agent"):
        Session(str(tmp_path / "nobody"), pid=1, stopwatch=lambda: 0.0)


def test_session_learns_who_it_is(agent: Agent) -> None:
    session = agent.session(standby=True, reconnects=True)
    assert (session.rank, session.world_size, session.generation, session.job) == (1, 2, 2, "job-1")
    hello = agent.wait(wire.Hello)
    assert (hello.standby, hello.reconnects) == (True, True)
    session.close()


def test_standby_waits_in_join_until_a_place_is_free(agent: Agent) -> None:
    joined: list[Session] = []
    waiting = threading.Thread(
        target=lambda: joined.append(Session(agent.path, pid=1, stopwatch=lambda: 0.0, standby=True))
    )
    waiting.start()
    agent.wait(wire.Hello)
    waiting.join(0.05)
    assert waiting.is_alive()
    agent.welcomes.put(welcome(rank=7, world_size=9))
    waiting.join(WAIT_LIMIT_S)
    assert (joined[0].rank, joined[0].world_size) == (7, 9)
    joined[0].close()


def test_standby_whose_agent_goes_away_is_not_left_waiting(agent: Agent) -> None:
    failed: list[BaseException] = []

    def wait() -> None:
        try:
            Session(agent.path, pid=1, stopwatch=lambda: 0.0, standby=True)
        except Unavailable as error:
            failed.append(error)

    waiting = threading.Thread(target=wait)
    waiting.start()
    agent.wait(wire.Hello)
    agent.hang_up()
    waiting.join(WAIT_LIMIT_S)
    assert "hung up" in str(failed[0])


def test_steps_are_reported_and_the_last_one_is_sent_on_close(agent: Agent) -> None:
    session = agent.session()
    for step in session.steps(0, 1000):
        if step == 1000:
            session.report(step, {"loss": 1.0, "nothing": float("nan")})
    session.close()
    reports = agent.all(wire.StepReport)
    assert reports[-1].step == 1000
    assert len(reports) <= 5, "reports are thinned"
    assert [report.step for report in reports] == sorted(report.step for report in reports)
    assert {name for report in reports for name in report.metrics} == {"loss"}


def test_metrics_of_the_step_before_do_not_take_a_step_back(agent: Agent) -> None:
    session = agent.session()
    session.report(5)
    session.report(4, {"loss": 2.0})
    session.close()
    assert agent.all(wire.StepReport)[-1].step == 5
    assert agent.wait(wire.StepReport, lambda report: report.metrics).metrics == {"loss": 2.0}


def test_reports_from_many_threads_arrive_as_one_that_grows(agent: Agent) -> None:
    session = agent.session()

    def report(first: int) -> None:
        for step in range(first, 4000, 4):
            session.report(step, {f"thread-{first}": step})
            session.measured(TimeUse.COMPILE, 0.25)

    threads = [threading.Thread(target=report, args=(first,)) for first in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    session.report(4000)
    session.close()
    reports = agent.all(wire.StepReport)
    assert reports[-1].step == 4000
    newest = {name: value for report in reports for name, value in report.metrics.items()}
    assert newest == {f"thread-{first}": 3996 + first for first in range(4)}
    assert sum(report.seconds.get("compile", 0.0) for report in reports) == 1000.0


def test_too_many_metrics_are_refused(agent: Agent) -> None:
    session = agent.session()
    with pytest.raises(InvalidInput, match="256"):
        session.report(1, {str(number): 1.0 for number in range(300)})
    session.close()


@pytest.mark.slow
def test_a_long_step_learns_of_a_stop_while_it_is_under_way(agent: Agent) -> None:
    session = agent.session(welcome(world_size=1))
    for step in session.steps(0, 100):
        if step == 3:
            agent.wait(wire.StepReport, lambda report: report.step == 2)
            agent.reply = wire.StepReply(stop=True, grace_s=7.0)
            until(lambda: session.stop_requested)
            assert session.snapshot_due(step)
    assert (step, session.grace_s, session.left()) == (3, 7.0, Then.EXIT)
    session.close()


def test_a_replica_tells_where_it_serves_and_learns_of_a_stop_though_it_takes_no_steps(agent: Agent) -> None:
    session = agent.session(welcome(world_size=1))
    assert not session.serving("ws://0.0.0.0:8000", ready=False)
    session.serving("ws://0.0.0.0:8000", ready=True, in_flight=3, answered=70, missed=1)
    report = agent.wait(wire.ServingReport, lambda report: report.serving.ready)
    assert report.serving == wire.Serving(address="ws://0.0.0.0:8000", ready=True, in_flight=3, answered=70, missed=1)
    agent.reply = wire.StepReply(stop=True, grace_s=7.0)
    until(lambda: session.serving("ws://0.0.0.0:8000", ready=True))
    assert session.left() is Then.EXIT
    session.close()


@pytest.mark.parametrize("address", ["node:80", "ws://", "ws://node", "ws://a b:1", "http://node:80/", "ws://node:1/p"])
def test_a_replica_at_no_address_is_refused(address: str) -> None:
    session = Session("", pid=1, stopwatch=lambda: 0.0)
    with pytest.raises(InvalidInput, match="ws://host:port"):
        session.serving(address, ready=True)
    with pytest.raises(InvalidInput, match="in_flight"):
        session.serving("ws://node:80", ready=True, in_flight=-1)


def test_every_rank_told_the_same_step_stops_there_and_saves_it(agent: Agent) -> None:
    agent.reply = wire.StepReply(stop=True, stop_at=40, then=Then.REJOIN, snapshot_every=1000)
    sessions = [agent.session(welcome(rank=rank, world_size=2, every=1000)) for rank in (0, 1)]
    for session in sessions:
        session.report(1)
    for session in sessions:
        until(lambda: session.snapshot_due(40))  # noqa: B023
        assert not session.stop_requested
        done, saved = [], []
        for step in session.steps(10, 100):
            done.append(step)
            if session.snapshot_due(step):
                saved.append(step)
        assert done == list(range(11, 41))
        assert saved == [40]
        assert session.left() is Then.REJOIN
        session.close()


def test_a_rank_told_too_late_stops_at_once(agent: Agent) -> None:
    session = agent.session(welcome(world_size=2, every=1000))
    for step in session.steps(0, 100):
        assert not session.snapshot_due(step)
        if step == 50:
            agent.reply = wire.StepReply(stop=True, stop_at=20, snapshot_every=1000)
            session.report(50)
            until(lambda: session.stop_requested)
    assert step == 50
    session.close()


def test_a_rank_alone_that_could_not_save_does_one_more_step_and_saves_that(agent: Agent) -> None:
    session = agent.session(welcome(world_size=1, every=1000))
    saved = []
    for step in session.steps(0, 100):
        if session.snapshot_due(step):
            saved.append(step)
        elif step == 50:
            agent.reply = wire.StepReply(stop=True, stop_at=50, snapshot_every=1000)
            session.report(50)
            until(lambda: session.stop_requested)
    assert (step, saved) == (51, [51])
    session.close()


@pytest.mark.parametrize("then", list(Then))
def test_a_rank_asked_to_stop_at_its_last_step_has_done_all_and_need_not_leave(agent: Agent, then: Then) -> None:
    session = agent.session(welcome(world_size=2, every=1000))
    agent.reply = wire.StepReply(stop=True, stop_at=3, then=then, snapshot_every=1000)
    session.report(1)
    until(lambda: session.snapshot_due(5))
    agent.reply = wire.StepReply(stop=True, stop_at=6, then=then, snapshot_every=1000)
    session.report(2)
    until(lambda: not session.snapshot_due(5))
    assert [step for step in session.steps(0, 6) if session.snapshot_due(step)] == [6]
    assert not session.stop_requested
    assert session.left() is Then.EXIT
    session.close()


def test_snapshots_are_due_at_the_pace_of_the_lead_and_at_the_end(agent: Agent) -> None:
    session = agent.session(welcome(every=4))
    assert [step for step in session.steps(2, 15) if session.snapshot_due(step)] == [4, 8, 12, 15]
    agent.reply = wire.StepReply(snapshot_every=8)
    session.report(16)
    until(lambda: session.snapshot_every == 8)
    assert not session.snapshot_due(20)
    session.close()


def test_next_generation_makes_the_rank_another_one(agent: Agent) -> None:
    agent.reply = wire.StepReply(stop=True, stop_at=3, then=Then.REJOIN)
    session = agent.session(welcome(rank=1, world_size=2, generation=2), reconnects=True)
    session.report(3)
    assert session.left() is Then.REJOIN
    agent.reply = wire.StepReply()
    agent.welcomes.put(welcome(rank=0, world_size=5, generation=3, every=16))
    assert session.next_generation()
    assert agent.wait(wire.NextGeneration).after == 2
    assert (session.rank, session.world_size, session.generation, session.snapshot_every) == (0, 5, 3, 16)
    assert not session.stop_requested
    heard = len(agent.said)
    assert list(session.steps(3, 6)) == [4, 5, 6]
    session.close()
    assert [report.step for report in agent.all(wire.StepReport)][-1] == 6
    assert all(report.step > 3 for report in agent.said[heard:] if isinstance(report, wire.StepReport))


def test_next_generation_of_an_agent_that_goes_away_raises(agent: Agent) -> None:
    session = agent.session(reconnects=True)
    threading.Timer(0.02, agent.hang_up).start()
    with pytest.raises(Unavailable, match="NextGeneration"):
        session.next_generation()
    session.close()


def test_a_loop_whose_agent_is_gone_ends_with_unavailable(agent: Agent) -> None:
    session = agent.session()
    session.report(0)
    agent.wait(wire.StepReport)
    agent.hang_up()
    with pytest.raises(Unavailable):
        for _ in session.steps(0, 1_000_000_000):
            pass
    with pytest.raises(Unavailable):
        session.snapshot(1, [Block.whole("x", np.zeros(3))])
    with pytest.raises(Unavailable):
        session.result({"x": 1})
    with pytest.raises(Unavailable):
        session.restore()
    session.close()
    session.close()


def test_an_answer_of_another_kind_is_an_error(agent: Agent) -> None:
    session = agent.session()
    agent.refuse_slots = "no"
    assert not session.snapshot(1, [])
    agent.fetched = lambda _: wire.Done()
    agent.plan_step, agent.here = 1, (shard(),)
    restored = session.restore()
    assert restored is not None
    with pytest.raises(InvalidMessage, match="PiecesFetched"):
        restored.array("x")
    session.close()


def shard() -> wire.Shard:
    return wire.Shard(path="x", dtype="int8", global_shape=(4,), start=(0,), shape=(4,), offset=0, size_bytes=4)


def test_results_reach_the_agent_and_must_be_finite(agent: Agent) -> None:
    session = agent.session()
    session.result({"success": 0.5, "note": "fine"})
    assert agent.wait(wire.ResultReport).values == {"success": 0.5, "note": "fine"}
    with pytest.raises(InvalidInput, match="finite"):
        session.result({"success": float("inf")})
    session.close()


def test_newest_snapshot_of_a_generation_is_read_back_from_the_arena(agent: Agent) -> None:
    session = agent.session()
    assert session.newest_snapshot() is None
    for step in (1, 2):
        session.snapshot(step, [Block.whole("w", np.full(3, step, np.float32))], {"at": step})
    newest = session.newest_snapshot()
    assert newest is not None
    assert (newest.step, newest.state, newest.array("w").tolist()) == (2, {"at": 2}, [2.0, 2.0, 2.0])
    agent.refuse_slots = "full"
    assert not session.snapshot(3, [Block.whole("w", np.zeros(3, np.float32))])
    newest = session.newest_snapshot()
    assert newest is not None
    assert newest.step == 2


def test_step_that_went_wrong_is_told_to_the_agent(agent: Agent) -> None:
    session = agent.session()
    session.upset(7, kind="spike", answer="skip", words="loss 9")
    assert agent.wait(wire.UpsetReport) == wire.UpsetReport(step=7, upset="spike", answer="skip", words="loss 9")
    alone().upset(7, kind="spike", answer="skip", words="loss 9")
