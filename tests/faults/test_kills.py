"""Random `kill -9` of controllers, agents, ranks and the database under many short jobs: each ends once, as ever."""

from __future__ import annotations

import logging
import os
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import count, pairwise
from pathlib import Path
from threading import Event as Moment
from typing import Any

import pytest

from mainspring.app.base.home import Config
from mainspring.app.sdk.lab import Lab, job
from mainspring.control.store.holdings import allocations_of_each, live_allocations
from mainspring.control.store.records import attempts_of, live_attempts, live_jobs
from mainspring.control.store.store import open_store
from mainspring.domain.answers import Event, JobView, Submit
from mainspring.domain.errors import MainspringError, Unavailable
from mainspring.domain.goodput import Goodput
from mainspring.domain.ids import ChipName, ClusterName, JobId
from mainspring.domain.job import JobSpec
from mainspring.domain.life import JobState, ended
from mainspring.domain.routes import LIST_MAX, Calls
from mainspring.domain.wire.events.attempts import AttemptEndedEvent, AttemptGrantedEvent
from mainspring.domain.wire.events.jobs import JobMovedEvent, JobSubmittedEvent, StopRequestedEvent
from mainspring.domain.wire.events.leads import (
    GenerationResumedEvent,
    GenerationSteppingEvent,
    LeadEndedEvent,
)
from mainspring.engines.local.config import LocalCluster
from mainspring.testing.postgres import PostgresServer, postgres_missing
from tests.faults.counted import expected
from tests.faults.killing import RUN_VARIABLE, Keeper, Killer, Kind, living, named

ROOT = Path(__file__).parents[2]
SEED = int(os.environ.get("KILLS_SEED", "1"))
SOAK_S = float(os.environ.get("KILLS_S", "600"))
STEPS = 40
PAUSE_S = 0.05
SUBMIT_S_MAX = 180.0  # A machine that others fill takes half a minute to start a controller.
CLEAR_S_MAX = 30.0  # Guards outlive their agents by an instant, agents their attempts by a few.
LOOK_S = 0.2
_log = logging.getLogger(__name__)
BOOKS_S = 1e-3
CLAIM_S = 0.1  # How much of what leads count may lie before the grant or after the end that controllers wrote down.


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """How much is run.

    Args:
        waves: How many times eight jobs, spread over the time of kills.
        kills_s: How long there are kills.
        pause_s: The longest pause between two.
        calm_s: How long what is left of the load may take after the last.
    """

    waves: int
    kills_s: float
    pause_s: float
    calm_s: float


QUICK = Load(waves=1, kills_s=12.0, pause_s=2.0, calm_s=240.0)
SOAK = Load(waves=max(1, round(SOAK_S / 24)), kills_s=SOAK_S, pause_s=3.0, calm_s=900.0)


@pytest.fixture
def run(tmp_path: Path) -> str:
    return str(tmp_path)


@pytest.fixture
def database() -> Iterator[PostgresServer]:
    if missing := postgres_missing():
        pytest.skip(missing)
    with PostgresServer() as server:
        yield server


@pytest.fixture
def lab(run: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Lab]:
    with made_lab(run, monkeypatch) as made:
        yield made


@contextmanager
def made_lab(run: str, monkeypatch: pytest.MonkeyPatch, url: str = "") -> Iterator[Lab]:
    """A lab whose every process carries the mark of this run, and runs the source that is tested."""
    monkeypatch.setenv(RUN_VARIABLE, run)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT / "src"), str(ROOT)]))
    lab = Lab(Path(run) / "home")
    kinds = [("alpha", "h100", 1, 5), ("beta", "v5e", 2, 2)]
    lab.home.write_config(
        Config(
            database=url,
            environment_passed=(RUN_VARIABLE,),
            clusters=tuple(
                LocalCluster(
                    name=ClusterName(name),
                    chip=ChipName(chip),
                    chips_per_node=chips,
                    nodes=nodes,
                    dollars_per_chip_hour=2.0,
                )
                for name, chip, chips, nodes in kinds
            ),
        )
    )
    lab.up(port=0)
    try:
        yield lab
    finally:
        lab.down()
        for pid in living(run):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def wave(first: int, folder: Path) -> Iterator[tuple[JobSpec, int]]:
    """Yields eight jobs, the first of them number `first`, and how many of each: what is one is no array."""
    numbers = count(first)

    def one(name: str, *how: str, on: Sequence[str], jobs: int = 1, **fields: Any) -> tuple[JobSpec, int]:
        number = next(numbers)
        words = [sys.executable, "-m", "tests.faults.counted", str(number), str(STEPS), str(PAUSE_S), str(folder), *how]
        for _ in range(jobs - 1):
            next(numbers)
        return job(f"{name}-{number}", words, on=on, attempts_max=1_000, restarts_max=1_000, **fields), jobs

    yield one("pair", on=["h100"], replicas=2)
    yield one("alone", "apart", on=["h100", "v5e"], jobs=4)
    yield one("mates", "reconnects", on=["v5e"], replicas=2, each={"within": "node"})
    yield one("elastic", "reconnects", on=["h100"], replicas=3, each={"replicas_min": 1})
    yield one("spare", "reconnects", "standby", on=["h100"], replicas=2, spares=1)


def submitted(lab: Lab, spec: JobSpec, jobs: int) -> JobView:
    """Submits, again and again with the same key while nobody answers."""
    deadline = time.monotonic() + SUBMIT_S_MAX
    while True:
        try:
            return lab.call(Calls.submit, Submit(spec=spec, key=spec.name, count=jobs))
        except Unavailable:
            assert time.monotonic() < deadline, f"{spec.name} could not be submitted in {SUBMIT_S_MAX} s"
            Moment().wait(LOOK_S)


def kill_under(lab: Lab, run: str, load: Load, killer: Killer) -> int:
    """Submits waves of jobs while controllers, agents and ranks are killed; returns how many jobs there are."""
    keeper = Keeper(lab)
    keeper.start()
    killer.start()
    jobs = 0
    began_s = time.monotonic()
    try:
        for number in range(load.waves):
            while time.monotonic() < began_s + number * load.kills_s / load.waves:
                Moment().wait(LOOK_S)
            for spec, some in wave(jobs, Path(run) / "meet"):
                submitted(lab, spec, some)
                jobs += some
        over_s = began_s + load.kills_s
        while time.monotonic() < over_s or (not killer.done and time.monotonic() < over_s + load.calm_s):
            Moment().wait(LOOK_S)
    finally:
        killer.stop()
        keeper.stop()
    lab.up()
    return jobs


def every_job(lab: Lab) -> list[JobView]:
    """Returns all jobs, in order of their numbers."""
    listed = [
        view
        for first in lab.ps(limit=LIST_MAX)
        for view in (lab.ps(array=first.id, limit=LIST_MAX) if first.array else (first,))
    ]
    return sorted(
        (lab.status(view.id) for view in listed), key=number_of
    )  # A list tells of commands the program alone.


def number_of(view: JobView) -> int:
    """Returns the number that a job's program was given."""
    (role,) = view.spec.roles
    return int(role.command[3]) + (view.array.index if view.array else 0)


def settled(lab: Lab, jobs: int, load: Load) -> list[JobView]:
    """Returns every job once all have ended."""
    deadline = time.monotonic() + load.calm_s
    ids = [view.id for view in every_job(lab)]
    assert len(ids) == jobs, "a job was submitted twice, or never"
    views = []
    for each in ids:
        try:
            views.append(lab.wait(each, timeout_s=max(0.0, deadline - time.monotonic())))
        except Unavailable as error:
            waiting = [story(lab, view) for view in every_job(lab) if not ended(view.state)]
            raise AssertionError(f"{len(waiting)} jobs have not ended: {error}\n" + "\n".join(waiting)) from error
    return views


def story(lab: Lab, view: JobView) -> str:
    """Returns where a job is, for people."""
    why = ""
    with suppress(MainspringError):
        why = lab.why(view.id).summary
    last = [f"{event.kind} {dict(event.detail)}" for event in lab.events(view.id)[-12:]]
    return "\n  ".join([f"{view.id} {view.spec.name} {view.state.value}: {view.reason or why}", *last])


# ---------------------------------------------------------------- what must hold in the end


def check_ended_once(events: Sequence[Event], view: JobView) -> None:
    """A job's moves follow each other to one end; its attempts come one after the other, and end once each."""
    assert view.state is JobState.SUCCEEDED, view.reason
    assert [event.sequence for event in events] == sorted({event.sequence for event in events})
    assert [event.kind for event in events].count(JobSubmittedEvent.kind) == 1
    assert events[0].kind == JobSubmittedEvent.kind
    moves = [event.told for event in events if event.kind == JobMovedEvent.kind]
    states = [(move.before, move.after) for move in moves if isinstance(move, JobMovedEvent)]
    assert states[0][0] is JobState.QUEUED
    assert all(after is before for (_, after), (before, _) in pairwise(states)), states
    assert [after for _, after in states if ended(after)] == [JobState.SUCCEEDED], states
    asked = [event.told for event in events if event.kind == StopRequestedEvent.kind]
    assert not [str(told) for told in asked if "took it back" in str(told)], "a cluster of our own takes nothing back"
    turns = [event for event in events if event.kind in (AttemptGrantedEvent.kind, AttemptEndedEvent.kind)]
    assert [event.kind for event in turns] == [AttemptGrantedEvent.kind, AttemptEndedEvent.kind] * len(view.attempts)
    assert [event.attempt for event in turns] == [each.id for each in view.attempts for _ in range(2)]
    for attempt in view.attempts:
        own = [event for event in events if event.attempt == attempt.id]
        over = [event.kind for event in own].index(AttemptEndedEvent.kind)
        assert not [event for event in own[over:] if event.kind in (LeadEndedEvent.kind, GenerationSteppingEvent.kind)]
        assert [event.kind for event in own].count(LeadEndedEvent.kind) <= 1
        for kind in (GenerationResumedEvent.kind, GenerationSteppingEvent.kind):
            generations = [int(event.detail["generation"]) for event in own if event.kind == kind]
            assert all(before < after for before, after in pairwise(generations)), (kind, generations)


def check_cleared(run: str, *, but: set[Kind]) -> None:
    """Nothing of the run lives but what may."""
    deadline = time.monotonic() + CLEAR_S_MAX
    while left := {pid: kind for pid, kind in living(run).items() if kind not in but}:
        assert time.monotonic() < deadline, {pid: (kind.value, named(pid)) for pid, kind in left.items()}
        Moment().wait(LOOK_S)


def check_books(lab: Lab, views: Sequence[JobView], told: dict[JobId, Goodput]) -> None:
    """What was allocated is what allocations lasted, leads claim no more, parts add up, and nothing is held."""
    store = open_store(lab.home.database_url(lab.home.config()))
    try:
        with store.read() as connection:
            assert not live_jobs(connection)
            assert not live_attempts(connection)
            assert not live_allocations(connection)
            own = attempts_of(connection, [view.id for view in views])
            held = allocations_of_each(connection, [attempt.id for each in own.values() for attempt in each])
    finally:
        store.close()
    for view in views:
        goodput = told[view.id]
        assert sum(goodput.seconds.values()) == pytest.approx(goodput.allocated_s, abs=BOOKS_S)
        assert min(goodput.seconds.values()) >= 0
        allocated_s, cost = 0.0, 0.0
        for attempt in own[view.id]:
            spans = [(one, one.ended_s - one.granted_s) for one in held[attempt.id] if one.ended_s is not None]
            assert len(spans) == len(held[attempt.id])
            held_s = sum(one.nodes * lasted_s for one, lasted_s in spans)
            claimed_s = sum(attempt.seconds.values()) + sum(attempt.seconds_before.values())
            assert claimed_s <= held_s + CLAIM_S, f"leads of {attempt.id} claim {claimed_s} s of {held_s}"
            allocated_s += held_s
            cost += sum(one.dollars_per_hour * lasted_s for one, lasted_s in spans)
        assert goodput.allocated_s == pytest.approx(allocated_s, abs=BOOKS_S), view.id
        assert sum(attempt.dollars for attempt in view.attempts) == pytest.approx(cost / 3_600, abs=BOOKS_S), view.id


def check(lab: Lab, run: str, load: Load, database: PostgresServer | None = None) -> None:
    killer = Killer(run, seed=SEED, pause_s=load.pause_s, database=database)
    try:
        check_under(lab, run, load, killer)
    except Exception as error:
        error.add_note(f"KILLS_SEED={SEED}; killed {killer.told}")
        raise
    _log.info("seed %d; killed %s", SEED, killer.told)


def check_under(lab: Lab, run: str, load: Load, killer: Killer) -> None:
    jobs = kill_under(lab, run, load, killer)
    views = settled(lab, jobs, load)
    assert [number_of(view) for view in views] == list(range(jobs)), "a job was submitted twice, or never"
    for view in views:
        check_ended_once(lab.events(view.id), view)
        assert view.result == expected(number_of(view), STEPS), story(lab, view)
    check_cleared(run, but={Kind.CONTROLLER, Kind.READY})
    assert not [view for view in lab.fleet() if any(view.used_chip_milli.values())]
    told = {view.id: lab.goodput(view.id) for view in views}
    report = lab.goodput_report()
    assert report.attempts == sum(len(view.attempts) for view in views)
    assert report.whole.allocated_s == pytest.approx(sum(each.allocated_s for each in told.values()), abs=BOOKS_S)
    lab.down()
    check_cleared(run, but=set())
    check_books(lab, views, told)
    assert killer.done


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_jobs_under_kills_end_once_with_their_results_and_books_that_balance(lab: Lab, run: str) -> None:
    check(lab, run, QUICK)


@pytest.mark.soak
@pytest.mark.timeout(SOAK.kills_s + SOAK.calm_s + 300)
def test_two_hundred_jobs_under_ten_minutes_of_kills_end_once_and_their_books_balance(lab: Lab, run: str) -> None:
    check(lab, run, SOAK)


@pytest.mark.soak
@pytest.mark.timeout(SOAK.kills_s + SOAK.calm_s + 300)
def test_jobs_under_ten_minutes_of_kills_of_their_database_too_end_once_and_their_books_balance(
    database: PostgresServer, run: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with made_lab(run, monkeypatch, database.new_database()) as lab:
        check(lab, run, SOAK, database)
