"""Whole attempts with real agents, ranks, sockets and object store; only the controller is a few lines of HTTP."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import socket
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from mainspring.checkpoint.format import manifest_key
from mainspring.control import Settings
from mainspring.domain import wire
from mainspring.domain.ids import AttemptId
from mainspring.domain.life import AttemptState
from mainspring.domain.wire.events.leads import (
    AgentLeavingEvent,
    AgentLostEvent,
    AgentQuietEvent,
    CaughtUpEvent,
    CheckpointCorruptEvent,
    CheckpointDurableEvent,
    GenerationResumedEvent,
    GenerationSteppingEvent,
    HangEvent,
    RankExitedEvent,
    ReplicasDifferEvent,
)
from mainspring.node.lead.watch.replicas import AGREED_MIN
from mainspring.node.net.connection import host_port

from .program import LIE
from .rig import ATTEMPT, JOB, LIMIT_S, TOKEN, Rig, gone
from .strangers import sealed

pytestmark = pytest.mark.slow


def ended_in_time(handle: int) -> bool:
    """Waits on a process that is not our child, and closes the handle."""
    ready, _, _ = select.select([handle], [], [], LIMIT_S)
    os.close(handle)
    return bool(ready)


def test_attempt_with_a_rank_killed_resumes_from_its_arena_and_ends_bitwise_equal(make_rig: Callable[..., Rig]) -> None:
    rig = make_rig(steps=80)
    rig.wait_step(25)
    rig.signal_rank(1, signal.SIGKILL)
    last = rig.wait_outcome()
    assert last.outcome is AttemptState.SUCCEEDED, last.reason
    exits = rig.of_kind(RankExitedEvent.kind)
    assert [(exited["rank"], exited["exit_code"]) for exited in exits] == [(1, -9)]
    resumed = rig.of_kind(GenerationResumedEvent.kind)
    assert [(r["source"]) for r in resumed] == ["", "arena"]
    assert int(resumed[1]["step"]) >= 20
    assert len(rig.of_kind(CaughtUpEvent.kind)) == 1
    rig.check_results(80, ranks=2)
    assert rig.of_kind(CheckpointDurableEvent.kind)[-1]["step"] == 80
    assert [rig.exit_of(agent).exit_code for agent in range(2)] == [0, 0]


def test_attempt_with_two_ranks_killed_at_once_goes_on_as_one_generation(make_rig: Callable[..., Rig]) -> None:
    rig = make_rig(steps=80, ranks_each=2, how=("reconnects",))
    rig.wait_step(25)
    survivors = rig.pids()[2:]
    for rank in (0, 1):
        rig.signal_rank(rank, signal.SIGKILL)
    rig.wait_stepping(2)
    assert rig.pids()[2:] == survivors
    last = rig.wait_outcome()
    assert last.outcome is AttemptState.SUCCEEDED, last.reason
    rig.check_results(80, ranks=4)
    assert len(rig.of_kind(GenerationResumedEvent.kind)) == 2


def test_attempt_whose_ranks_reconnect_keeps_the_survivors_processes(make_rig: Callable[..., Rig]) -> None:
    rig = make_rig(steps=100, how=("reconnects", "standby"), apart=True)
    rig.wait_step(30)
    before = rig.pids()
    rig.signal_rank(0, signal.SIGKILL)
    rig.wait_stepping(2)
    after = rig.pids()
    assert after[1] == before[1]
    assert after[0] != before[0]
    assert rig.wait_outcome().outcome is AttemptState.SUCCEEDED
    rig.check_results(100, ranks=2)
    assert (rig.reports(0) / "rank-0.log").exists()
    assert list(rig.reports(0).glob("standby-*.log"))
    assert not list(rig.work(0).glob("rank-*.log*")) + list(rig.work(0).glob("standby-*.log"))


def test_attempt_with_an_agent_killed_and_nothing_spare_is_lost_and_leaves_no_process(
    make_rig: Callable[..., Rig],
) -> None:
    rig = make_rig(steps=100_000)
    rig.wait_step(2)
    pids = rig.pids()
    rig.signal_agent(1, signal.SIGKILL)
    last = rig.wait_outcome()
    assert last.outcome is AttemptState.LOST
    assert rig.of_kind(AgentQuietEvent.kind) == [{"agent": 1, "node": "n1"}], "long before it is given up"
    assert rig.of_kind(AgentLostEvent.kind) == [{"agent": 1, "node": "n1"}]
    assert rig.exit_of(0).exit_code == 1
    assert all(gone(pid) for pid in pids)


def test_attempt_with_an_agent_killed_goes_on_on_a_spare_node_and_loses_no_snapshot(
    make_rig: Callable[..., Rig],
) -> None:
    rig = make_rig(steps=120, agents=3, spares=1, how=("reconnects",))
    rig.wait_step(30)
    (worker,) = {status.rank for status in rig.heartbeats[-1].ranks if status.alive} - {0}
    rig.signal_agent(worker, signal.SIGKILL)
    last = rig.wait_outcome()
    assert last.outcome is AttemptState.SUCCEEDED, last.reason
    resumed = rig.of_kind(GenerationResumedEvent.kind)[-1]
    assert (resumed["source"], resumed["ranks"]) == ("arena", 2)
    assert int(resumed["step"]) >= 20
    rig.check_results(120, ranks=2)


def test_attempt_with_an_agent_killed_goes_on_in_a_process_that_stood_by_on_a_spare_node(
    make_rig: Callable[..., Rig],
) -> None:
    rig = make_rig(steps=400, agents=3, spares=1, how=("reconnects", "standby"))
    rig.wait_step(30)
    (spare,) = {status.rank for status in rig.heartbeats[-1].ranks if not status.alive}
    agent = rig.processes[spare].pid
    children = Path(f"/proc/{agent}/task/{agent}/children")
    rig.wait(lambda: list(rig.work(spare).glob("standby-*.log")) != [], "process that stands by")
    rig.wait(lambda: len(children.read_text().split()) == 2, "guard and process that stands by")
    before = [int(child) for child in children.read_text().split()]
    rig.signal_agent(3 - spare, signal.SIGKILL)
    rig.wait_stepping(2)
    assert rig.heartbeats[-1].ranks[spare].pid in before
    last = rig.wait_outcome()
    assert last.outcome is AttemptState.SUCCEEDED, last.reason
    assert (rig.work(spare) / f"rank-{spare}.log").exists()
    rig.check_results(400, ranks=2)


def test_attempt_with_an_agent_killed_shrinks_and_grows_again_when_a_node_joins(make_rig: Callable[..., Rig]) -> None:
    rig = make_rig(steps=600, agents=3, ranks_min=1, how=("reconnects",))
    rig.wait_step(30)
    rig.signal_agent(2, signal.SIGKILL)
    shrunk = rig.wait_resumed(ranks=2)
    assert shrunk["source"] == "arena"
    assert int(shrunk["step"]) >= 20
    rig.add_agent()
    rig.wait_resumed(ranks=3, after=shrunk)
    last = rig.wait_outcome()
    assert last.outcome is AttemptState.SUCCEEDED, last.reason
    rig.check_results(600, ranks=3)


@pytest.mark.soak
def test_attempt_whose_engine_sees_an_agent_end_goes_on_without_it_long_before_its_lease(
    make_rig: Callable[..., Rig],
) -> None:
    rig = make_rig(steps=600, agents=3, ranks_min=1, how=("reconnects",), lease_s=Settings().lease_s, sees=True)
    rig.wait_step(30)
    rig.signal_agent(2, signal.SIGKILL)
    killed_s = time.time()
    rig.wait_resumed(ranks=2)
    resumed = [event for event in rig.events if event.kind == GenerationResumedEvent.kind][-1]
    assert resumed.time_s - killed_s < rig.lease_s / 2
    assert rig.of_kind(AgentLostEvent.kind) == [{"agent": 2, "node": "n2"}]
    last = rig.wait_outcome()
    assert last.outcome is AttemptState.SUCCEEDED, last.reason
    rig.check_results(600, ranks=2)


def test_growth_repeats_no_step(make_rig: Callable[..., Rig]) -> None:
    rig = make_rig(steps=400, ranks_min=1, how=("reconnects",))
    rig.wait_step(20)
    rig.add_agent()
    grown = rig.wait_resumed(ranks=3)
    assert rig.wait_event(GenerationSteppingEvent.kind, 2)["step"] == int(grown["step"]) + 1
    assert rig.wait_event(CaughtUpEvent.kind)["step"] == int(grown["step"]) + 1
    assert rig.wait_outcome().outcome is AttemptState.SUCCEEDED
    rig.check_results(400, ranks=3)


def test_attempt_with_a_rank_stopped_sees_the_hang_and_names_it(make_rig: Callable[..., Rig]) -> None:
    rig = make_rig(steps=150, hang_s=1.5, how=("reconnects",))
    rig.wait_step(20)
    pid = rig.signal_rank(1, signal.SIGSTOP)
    hang = rig.wait_event(HangEvent.kind)
    assert hang["odd"] == "1"
    assert "state T" in str(hang["evidence"])
    last = rig.wait_outcome()
    assert last.outcome is AttemptState.SUCCEEDED, last.reason
    assert gone(pid)
    rig.check_results(150, ranks=2)


def test_attempt_whose_rank_waits_apart_is_told_by_its_stack(make_rig: Callable[..., Rig]) -> None:
    rig = make_rig(steps=100, agents=3, hang_s=1.5, how=("reconnects", "hang"))
    hang = rig.wait_event(HangEvent.kind)
    assert hang["odd"] == "1"
    assert "program.py" in str(hang["evidence"]) or "threading.py" in str(hang["evidence"])
    assert rig.wait_outcome().outcome is AttemptState.SUCCEEDED
    rig.check_results(100, ranks=3)


def test_attempt_whose_rank_exits_well_too_early_does_not_hang_for_ever(make_rig: Callable[..., Rig]) -> None:
    rig = make_rig(steps=60, hang_s=1.5, how=("reconnects", "quit"))
    last = rig.wait_outcome()
    assert last.outcome is AttemptState.SUCCEEDED, last.reason
    rig.check_results(60, ranks=2)


def test_attempt_whose_rank_runs_out_of_its_memory_goes_on_and_says_why(make_rig: Callable[..., Rig]) -> None:
    rig = make_rig(steps=60, memory_mib=192, how=("reconnects", "hog"))
    exited = rig.wait_event(RankExitedEvent.kind)
    if "MemoryError" in str(exited["last_words"]):
        pytest.skip("no control group may be made here")
    assert "out of memory, limit 192 MiB" in str(exited["last_words"])
    assert rig.wait_outcome().outcome is AttemptState.SUCCEEDED
    rig.check_results(60, ranks=2)


def test_attempt_whose_lead_is_killed_gets_another_and_goes_on(make_rig: Callable[..., Rig]) -> None:
    rig = make_rig(steps=200, agents=3, ranks_min=1, how=("reconnects",))
    rig.wait_step(30)
    rig.signal_agent(0, signal.SIGKILL)
    rig.wait(lambda: rig.epoch == 2 and rig.heartbeats[-1].epoch == 2, "second lead")
    last = rig.wait_outcome()
    assert last.outcome is AttemptState.SUCCEEDED, last.reason
    resumed = [event.detail for event in rig.events if event.kind == GenerationResumedEvent.kind]
    assert resumed[-1]["source"] == "arena"
    assert int(resumed[-1]["step"]) >= 20
    rig.check_results(200, ranks=2)


@pytest.mark.soak
def test_attempt_whose_first_lead_is_killed_before_it_spoke_gets_another(
    make_rig: Callable[..., Rig], tmp_path: Path
) -> None:
    gate = tmp_path / "gate"
    late = ("sh", "-c", f'while [ ! -e {gate} ]; do sleep 0.05; done; exec "$@"', "sh")
    rig = make_rig(agents=3, ranks_min=1, how=("reconnects",), within={1: late, 2: late})
    rig.wait(lambda: 0 in rig.addresses, "first lead's address")
    rig.signal_agent(0, signal.SIGKILL)
    rig.processes[0].wait()
    gate.touch()
    last = rig.wait_outcome()
    assert (last.outcome, last.epoch) == (AttemptState.SUCCEEDED, 2), last.reason
    rig.check_results(60, ranks=2)


def test_agents_told_to_go_back_to_a_lead_that_is_dead_soon_ask_for_another(make_rig: Callable[..., Rig]) -> None:
    rig = make_rig(steps=2_000, agents=3, ranks_min=1, lease_s=3.0)
    rig.wait_step(5)
    rig.signal_agent(0, signal.SIGKILL)
    rig.processes[0].wait()
    with rig.changed:
        killed_s = time.monotonic()
        rig.heard_s = killed_s + 0.5  # Later than its agents, who lose it while the controller still waits.
    rig.wait(lambda: rig.epoch == 2, "second lead")
    assert time.monotonic() - killed_s < 2.5 * rig.lease_s


def test_attempt_cut_off_from_its_controller_does_not_go_on_without_an_agent_it_lost(
    make_rig: Callable[..., Rig],
) -> None:
    rig = make_rig(steps=2_000, agents=3, ranks_min=1, how=("reconnects",))
    rig.wait_step(30)
    with rig.changed:
        rig.deaf = True
    rig.signal_agent(2, signal.SIGKILL)
    lease_over_s = time.monotonic() + 3 * rig.lease_s
    rig.wait(lambda: time.monotonic() > lease_over_s, "time")
    with rig.changed:
        rig.deaf = False
    told_s = time.time()
    rig.wait_resumed(ranks=2)
    resumed = [event for event in rig.events if event.kind == GenerationResumedEvent.kind][-1]
    assert resumed.time_s > told_s - 0.5, "it went on before the controller had acknowledged"


def test_preemption_of_one_node_with_five_seconds_repeats_no_step(make_rig: Callable[..., Rig]) -> None:
    rig = make_rig(steps=300, agents=3, ranks_min=1, how=("reconnects",))
    rig.wait_step(30)
    rig.preempt(2, 5.0)
    assert rig.wait_event(AgentLeavingEvent.kind)["agent"] == 2
    shrunk = rig.wait_resumed(ranks=2)
    assert rig.wait_event(CaughtUpEvent.kind)["step"] == int(shrunk["step"]) + 1
    assert rig.exit_of(2).exit_code == 0
    last = rig.wait_outcome()
    assert last.outcome is AttemptState.SUCCEEDED, last.reason
    rig.check_results(300, ranks=2)


@pytest.mark.parametrize("how", [(), ("reconnects",)])
def test_preemption_of_every_node_with_five_seconds_saves_the_last_step(
    make_rig: Callable[..., Rig], how: tuple[str, ...]
) -> None:
    rig = make_rig(steps=100_000, how=how, apart=True)
    rig.wait_step(20)
    for agent in range(2):
        rig.preempt(agent, 5.0)
    last = rig.wait_outcome()
    assert last.outcome in (AttemptState.CANCELLED, AttemptState.LOST), last.reason
    assert {exited["exit_code"] for exited in rig.of_kind(RankExitedEvent.kind)} <= {wire.EXIT_PREEMPTED}
    durable = rig.of_kind(CheckpointDurableEvent.kind)[-1]
    assert int(durable["step"]) >= last.step - 1
    for agent, process in enumerate(rig.processes):
        process.wait(timeout=LIMIT_S)
        left = {path.name for path in rig.reports(agent).iterdir()}
        assert left >= {"exit.json", "grace", f"rank-{agent}.log"}
        assert not left & {path.name for path in rig.work(agent).iterdir()}


def test_attempt_whose_ranks_flood_their_output_goes_on(make_rig: Callable[..., Rig]) -> None:
    rig = make_rig(steps=60, how=("flood",))
    last = rig.wait_outcome()
    assert last.outcome is AttemptState.SUCCEEDED, last.reason
    rig.check_results(60, ranks=2)


def test_attempt_with_its_newest_durable_step_damaged_resumes_from_the_one_before(make_rig: Callable[..., Rig]) -> None:
    first = make_rig(steps=20)
    assert first.wait_outcome().outcome is AttemptState.SUCCEEDED
    steps = [int(detail["step"]) for detail in first.of_kind(CheckpointDurableEvent.kind)]
    assert steps[-1] == 20
    assert len(steps) >= 2
    shares = (first.folder / "objects" / manifest_key(JOB, 20)).parents[1] / "shares" / f"{20:012d}"
    share = next(path for path in sorted(shares.iterdir()) if path.suffix != ".tail")
    data = bytearray(share.read_bytes())
    data[1000] ^= 1
    share.write_bytes(data)
    second = make_rig(steps=30, attempt=AttemptId("attempt-2"), number=2)
    assert second.wait_outcome().outcome is AttemptState.SUCCEEDED
    assert [detail["step"] for detail in second.of_kind(CheckpointCorruptEvent.kind)][:1] == [20]
    resumed = second.of_kind(GenerationResumedEvent.kind)
    assert (resumed[-1]["step"], resumed[-1]["source"]) == (steps[-2], "store")
    second.check_results(30, ranks=2)


def test_attempt_survives_its_controller_away_and_tells_everything_after(make_rig: Callable[..., Rig]) -> None:
    rig = make_rig(steps=80)
    rig.wait_step(2)
    with rig.changed:
        rig.away = True
    manifest = rig.folder / "objects" / manifest_key(JOB, 80)
    rig.wait(manifest.exists, "durable last step")
    with rig.changed:
        rig.away = False
    last = rig.wait_outcome()
    assert last.outcome is AttemptState.SUCCEEDED
    assert [event.sequence for event in rig.events] == list(range(1, len(rig.events) + 1))


def test_attempt_fenced_by_its_controller_ends_at_once(make_rig: Callable[..., Rig]) -> None:
    rig = make_rig(steps=100_000)
    rig.wait_step(2)
    pids = rig.pids()
    with rig.changed:
        rig.fenced = True
    assert "another lead" in rig.exit_of(0).reason
    assert "the attempt is over" in rig.exit_of(1).reason
    assert all(gone(pid) for pid in pids)


def test_attempts_token_opens_nothing_at_its_agents_and_costs_them_nothing(make_rig: Callable[..., Rig]) -> None:
    rig = make_rig(steps=200)
    rig.wait_step(1)
    known = json.dumps({"type": "AgentJoin", "version": 1, "body": {"attempt": ATTEMPT, "token": TOKEN, "agent": 1}})
    for address in rig.addresses.values():
        with socket.create_connection(host_port(address), timeout=LIMIT_S) as line:
            line.sendall(sealed(known.encode()))
            heard = b""
            with contextlib.suppress(OSError):  # It hangs up with what was said unread.
                while more := line.recv(1 << 16):
                    heard += more
            assert TOKEN.encode() not in heard
            assert heard.count(b'"type"') <= heard.count(b"AgentChallenge")
    last = rig.wait_outcome()
    assert last.outcome is AttemptState.SUCCEEDED, last.reason
    assert len(rig.of_kind(GenerationResumedEvent.kind)) == 1
    rig.check_results(200, ranks=2)


def test_agent_whose_orders_have_no_secret_to_know_others_by_ends_and_says_so(make_rig: Callable[..., Rig]) -> None:
    rig = make_rig(agents=1, peers_secret="")
    assert "a controller at least as new as its agents" in rig.exit_of(0).reason


@pytest.mark.soak
def test_attempt_whose_lead_is_fenced_by_another_goes_on_under_that_with_the_agents_it_had(
    make_rig: Callable[..., Rig],
) -> None:
    rig = make_rig(steps=400, agents=3, ranks_min=1, how=("reconnects",), lease_s=Settings().lease_s, sees=True)
    rig.wait_step(30)
    named_s = time.time()
    rig.name_lead(1)
    rig.wait(lambda: rig.heartbeats[-1].epoch == 2 and len(rig.of_kind(GenerationResumedEvent.kind)) > 1, "new lead")
    resumed = [event for event in rig.events if event.kind == GenerationResumedEvent.kind][-1]
    assert (resumed.detail["source"], resumed.detail["ranks"]) == ("arena", 2)
    assert resumed.time_s - named_s < rig.lease_s / 2
    assert "another lead" in rig.exit_of(0).reason
    last = rig.wait_outcome()
    assert last.outcome is AttemptState.SUCCEEDED, last.reason
    rig.check_results(400, ranks=2)
    assert [rig.exit_of(agent).exit_code for agent in (1, 2)] == [0, 0]


def test_attempt_of_a_plain_program_that_fails_alike_fails_with_its_last_words(make_rig: Callable[..., Rig]) -> None:
    rig = make_rig(command=(sys.executable, "-S", "-c", "raise SystemExit('the gripper file is missing')"), agents=1)
    last = rig.wait_outcome()
    assert last.outcome is AttemptState.FAILED
    assert "the gripper file is missing" in last.reason
    assert len(rig.of_kind(RankExitedEvent.kind)) == 3


def test_attempt_whose_agent_is_killed_leaves_no_grandchild(make_rig: Callable[..., Rig], tmp_path: Path) -> None:
    note = tmp_path / "grandchild"
    rig = make_rig(command=("sh", "-c", f"setsid sleep 1000 & sleep 1000 & echo $! > {note}; wait"), agents=1)
    rig.wait(lambda: note.exists() and note.read_text().endswith("\n"), "grandchild")
    grandchild = int(note.read_text())
    handle = os.pidfd_open(grandchild)
    rig.signal_agent(0, signal.SIGKILL)
    assert ended_in_time(handle)
    mark = f"MAINSPRING_SOCKET=/proc/{rig.processes[0].pid}/".encode()
    rig.wait(lambda: not marked(mark), "end of all that carry the agent's mark")


def marked(mark: bytes) -> list[int]:
    found = []
    for path in Path("/proc").glob("[0-9]*/environ"):
        try:
            if mark in path.read_bytes():
                found.append(int(path.parent.name))
        except OSError:
            continue
    return found


def test_attempt_with_a_rank_that_computes_wrongly_goes_on_on_a_spare_node_from_the_last_step_that_was_right(
    make_rig: Callable[..., Rig], tmp_path: Path
) -> None:
    rig = make_rig(steps=100_000, agents=4, spares=1)
    rig.wait_event(CheckpointDurableEvent.kind, AGREED_MIN)
    right = int(rig.of_kind(CheckpointDurableEvent.kind)[-1]["step"])
    (tmp_path / f"meeting-{ATTEMPT}" / LIE).touch()
    told = rig.wait_event(ReplicasDifferEvent.kind)
    assert (told["ranks"], told["odd"], told["nodes"]) == (3, "1", "n1")
    resumed = rig.wait_resumed(ranks=3, after=told)
    assert resumed["source"] == "store"
    assert right <= int(resumed["step"]) < int(told["step"])
    durable = [int(detail["step"]) for detail in rig.of_kind(CheckpointDurableEvent.kind)]
    assert int(told["step"]) not in durable, "nothing wrong was kept"
    rig.wait_stepping(2)
    others = {"n0", "n2", "n3"}
    rig.wait(lambda: {one.node for one in rig.heartbeats[-1].ranks if one.alive} == others, "ranks on other nodes")
