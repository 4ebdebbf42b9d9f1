"""What is over leaves the store for the archive, little by little, and nothing that counts is lost by it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import sqlalchemy as sa

from mainspring.control import LAB_ITSELF, Settings
from mainspring.control.service.retention.sweeping import Keeping
from mainspring.control.state.history import usage
from mainspring.control.store.schema import allocations, array_ends, attempts, events, jobs, plans, tokens, whys
from mainspring.domain.answers import JobHistory, NewHold, NewSize, Submit, Sweep
from mainspring.domain.errors import MainspringError, NotFound, Unavailable
from mainspring.domain.fleet import EndedBefore
from mainspring.domain.ids import ClusterName, JobId, RoleName, TeamName
from mainspring.domain.job import LAB, Code
from mainspring.domain.life import JobState, Retention
from mainspring.domain.ports import Engine
from mainspring.domain.team import Team, TeamRole
from mainspring.engines.common.forwarding import CallResult, EngineCall, ForwardingEngine, perform
from mainspring.objects import open_store
from mainspring.samples import PartName, part_key, samples_folder

if TYPE_CHECKING:
    from tests.control.conftest import World

DAY_S = 86_400.0
WEST = ClusterName("west")
WEEK = Settings(keep=Retention(days=7))


@pytest.fixture
def lab(world: World) -> World:
    world.restart(settings=WEEK)
    world.control.people.set_team(Team(name=LAB))
    return world


def _finish(world: World, *wanted: JobId) -> None:
    for job in wanted:
        world.run(job)
        world.succeed(job)


def _rows(world: World) -> Mapping[str, int]:
    tables = (jobs, attempts, allocations, array_ends, whys)
    with world.control.store.read() as connection:
        count = {
            one.name: connection.execute(sa.select(sa.func.count()).select_from(one)).scalar_one() for one in tables
        }
        of_jobs = sa.select(sa.func.count()).select_from(events).where(events.c.job_id.is_not(None))
        of_attempts = sa.select(sa.func.count()).select_from(tokens).where(tokens.c.attempt_id.is_not(None))
        more = {"events": connection.execute(of_jobs), "tokens": connection.execute(of_attempts)}
    return count | {name: found.scalar_one() for name, found in more.items()}


def _accounts(world: World) -> tuple[Mapping[Any, float], ...]:
    report = world.control.accounts.report()
    with world.control.store.read() as connection:
        used = usage(connection, world.clock.now_s())
    return world.control.job_counts().states, {"attempts": report.attempts}, report.whole.seconds, used


def _sweep(world: World) -> Sweep:
    world.tick(2)
    return replace(world.control.retention.sweep(at_once=True), plans=0, events=0, tokens=0, snapshots=0)


def test_job_that_left_the_store_has_the_same_history_and_counts_as_before(lab: World) -> None:
    job, array = lab.submit(lab.spec("old")), lab.submit(lab.spec("many"), count=3)
    members = [JobId(f"{array[:-1]}{index}") for index in range(3)]
    _finish(lab, job, *members)
    lives = {one: lab.control.retention.history(one) for one in (job, *members)}
    assert [event.kind for event in lives[job].events][-2:] == ["attempt_ended", "job_moved"]
    lab.clock.advance(8 * DAY_S)
    told = _accounts(lab)
    assert _sweep(lab) == Sweep(archived=3, jobs=3), "all but the first of the array, which has its spec"
    assert _sweep(lab) == Sweep(archived=1, jobs=1)
    assert _sweep(lab) == Sweep()
    assert set(_rows(lab).values()) == {0}
    for before, after in zip(told, _accounts(lab), strict=True):
        assert after == pytest.approx(before, rel=1e-4)
    for one, life in lives.items():
        assert _times(lab.control.retention.history(one)) == _times(replace(life, archived=True))
    assert lab.control.retention.history("old").job.id == job
    with pytest.raises(NotFound, match="old"):
        lab.control.job("old")
    lab.submit()
    assert lab.control.jobs()[0].spec.name == "job"


def _times(life: JobHistory) -> tuple[Any, ...]:
    return life.archived, life.events, life.job.state, life.job.spec, life.job.attempts, life.job.goodput


def test_job_goes_on_after_one_that_left_the_store_and_strangers_do_not_see_it(lab: World) -> None:
    for name in ("arms", "legs"):
        lab.control.people.set_team(Team(name=TeamName(name), parent=LAB))
    first = lab.submit(lab.spec("first", team=TeamName("arms")))
    then = lab.submit(lab.spec("then", after=(first,)))
    lab.control.steering.pause(then, NewHold())
    _finish(lab, first)
    lab.clock.advance(8 * DAY_S)
    assert _sweep(lab).jobs == 1
    lab.loop.resign()
    lab.restart(settings=WEEK)
    lab.control.steering.resume(then)
    _finish(lab, then, lab.submit(lab.spec("later", after=(first,))))
    assert lab.job(then).state is JobState.SUCCEEDED
    people = {team: lab.control.people.caller(lab.token(TeamRole.MEMBER, team=team)) for team in ("arms", "legs")}
    assert lab.control.retention.history("first", people["arms"]).job.id == first
    with pytest.raises(NotFound, match="first"):
        lab.control.retention.history("first", people["legs"])
    with pytest.raises(NotFound, match="begins_from"):
        lab.control.submit(Submit(spec=lab.spec("thief", team=TeamName("legs"), begins_from=first)), people["legs"])


def test_what_goes_on_or_is_young_stays(lab: World) -> None:
    array = lab.submit(lab.spec("many"), count=2)
    lab.tick(2)
    lab.control.steering.pause(JobId(f"{array[:-1]}1"), NewHold())
    lab.tick(3)
    _finish(lab, array)
    lab.clock.advance(8 * DAY_S)
    young = lab.submit(lab.spec("young"))
    _finish(lab, young)
    before = _rows(lab)
    assert _sweep(lab) == Sweep()
    assert _rows(lab) == before


def test_samples_of_a_job_go_with_it_and_those_of_others_stay(lab: World) -> None:
    old = lab.submit(lab.spec("old"))
    _finish(lab, old)
    store = open_store(f"file://{lab.objects}")
    for job in (old, JobId("job-of-another")):
        store.put(part_key(job, PartName(number=1, epoch=1, part=0)), b"x")
    lab.clock.advance(8 * DAY_S)
    assert _sweep(lab).samples == 1
    assert store.list(samples_folder(old)) == ()
    assert len(store.list(samples_folder(JobId("job-of-another")))) == 1


def test_more_jobs_than_are_kept_leave_in_the_order_they_ended(lab: World) -> None:
    first, second = lab.submit(lab.spec("first")), lab.submit(lab.spec("second"))
    _finish(lab, second, first)
    lab.clock.advance(8 * DAY_S)
    lab.restart(settings=Settings(keep=Retention(days=100, jobs=1)))
    assert lab.control.retention.collect(dry_run=True) == Sweep(dry_run=True, archived=1, jobs=1)
    assert _sweep(lab) == Sweep(archived=1, jobs=1)
    assert _sweep(lab) == Sweep()
    assert lab.control.retention.history("second").archived
    assert not lab.control.retention.history("first").archived


def test_archive_that_cannot_be_written_keeps_jobs_and_one_with_other_files_goes_on_behind_them(lab: World) -> None:
    job = lab.submit()
    _finish(lab, job)
    lab.clock.advance(8 * DAY_S)
    lab.objects.write_text("no folder")
    before = _rows(lab)
    with pytest.raises(MainspringError):
        _sweep(lab)
    assert _rows(lab) == before
    lab.objects.unlink()
    other = lab.objects / "history" / "000000000001.jsonl.zst"
    other.parent.mkdir(parents=True)
    other.write_bytes(b"of a store that went back")
    assert _sweep(lab).archived == 1
    assert lab.control.retention.history(job).archived
    assert other.read_bytes() == b"of a store that went back"


def test_plans_and_events_of_no_job_and_tokens_go_when_they_are_old(lab: World) -> None:
    lab.token(TeamRole.MEMBER, days=1.0)
    lab.control.pauses.pause_team(LAB, NewHold())
    lab.control.pauses.resume_team(LAB)
    _finish(lab, lab.submit(), lab.submit())
    lab.clock.advance(10 * DAY_S)
    told = lab.control.retention.collect(LAB_ITSELF, dry_run=True)
    done = lab.control.retention.collect(LAB_ITSELF)
    assert replace(told, dry_run=False) == done
    assert (done.jobs, done.events, done.tokens) == (2, 2, 1)
    with lab.control.store.read() as connection:
        (number,) = connection.execute(sa.select(plans.c.number)).scalars()
    lab.loop.resign()
    lab.restart(settings=WEEK)
    _finish(lab, lab.submit())
    with lab.control.store.read() as connection:
        assert connection.execute(sa.select(sa.func.max(plans.c.number))).scalar_one() > number
    assert lab.control.people.audit(newest=True)[-1].action == "submit a job"


def test_code_that_no_job_names_goes_when_it_was_not_submitted_for_long(lab: World) -> None:
    """Of a job that waits, one in the store, one that left it, none at all; two were stored, or submitted, of late."""
    known, gone, stray, fresh, again = (Code(tree=f"blake3:{letter * 64}") for letter in "abcde")
    waits, left = lab.submit(lab.spec("waits", code=known)), lab.submit(lab.spec("left", code=gone), count=2)
    lab.control.steering.pause(waits, NewHold())
    lab.tick()
    _finish(lab, left, JobId(f"{left[:-1]}1"))
    for code in (known, gone, stray, fresh, again):
        _stored(lab, code.key)
    for days, young in ((20.0, fresh.key), (1.0, again.again_key)):
        lab.clock.advance(days * DAY_S)
        _stored(lab, young)
    kept = {code.key for code in (known, fresh, again)}
    assert not lab.control.retention.collect(dry_run=True).snapshots, "young, all of them"
    lab.clock.advance(12 * DAY_S)
    assert lab.control.retention.collect(dry_run=True).snapshot_keys == (stray.key,), (
        "a job in the store names the other"
    )
    assert _sweep(lab).jobs == 1
    assert lab.control.retention.collect().snapshots == 1, "with the last job of its array"
    assert {f"code/{path.name}" for path in (lab.objects / "code").iterdir()} == kept | {again.again_key}
    lab.clock.advance(25 * DAY_S)
    assert lab.control.retention.collect().snapshots == 2
    assert [path.name for path in (lab.objects / "code").iterdir()] == [Path(known.key).name]


def test_code_that_was_submitted_longest_ago_goes_where_all_of_it_takes_too_much(lab: World) -> None:
    keep = Retention(code_days=3_000, code_gib=3.5 * len(b"code") / (1 << 30))
    keeping = Keeping(lab.control.store, lab.clock, f"file://{lab.objects}", Settings(keep=keep), {})
    named, *others = (Code(tree=f"blake3:{letter * 64}") for letter in "abcde")
    lab.submit(lab.spec("waits", code=named))
    for code in (named, *others):
        _stored(lab, code.key)
        lab.clock.advance(2 * DAY_S)
    assert keeping.collect(dry_run=True).snapshot_keys == (others[0].key,), "of two the one that no job names"
    assert (keeping.collect().snapshots, keeping.collect().snapshots) == (1, 0)
    _stored(lab, others[0].key)
    assert {*keeping.collect(dry_run=True).snapshot_keys} == {others[1].key}, "what is new goes for no bound"


def _stored(world: World, key: str) -> None:
    """Stores something at the lab's own time."""
    path = world.objects / key
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"code")
    os.utime(path, (world.clock.now_s(), world.clock.now_s()))


class _Remembering(ForwardingEngine):
    """An engine with three old allocations; notes what it was asked to forget, and may not answer."""

    def __init__(self, engine: Engine) -> None:
        self.engine, self.left, self.answers = engine, 3, True
        self.noted: list[EndedBefore] = []

    def _forward(self, call: EngineCall) -> CallResult:
        if call.call != "forget_ended":
            return perform(self.engine, call)
        if not self.answers:
            raise Unavailable("forget allocations")
        assert call.due is not None
        self.noted.append(call.due)
        before, self.left = self.left, max(0, self.left - call.due.limit)
        return before


def test_engines_forget_what_ended_long_ago_but_for_what_lives_or_is_held(lab: World) -> None:
    keep = Retention(days=7, log_days=30, log_gib=2.0)
    job = lab.submit(lab.spec("elastic", replicas=3, replicas_min=1))
    lab.run(job)
    lab.control.steering.resize(job, NewSize(role=RoleName("role-0"), least=1, most=1))
    lab.tick(4)
    west = _Remembering(lab.west)
    keeping = Keeping(lab.control.store, lab.clock, f"file://{lab.objects}", Settings(keep=keep), {WEST: west})
    lab.clock.advance(31 * DAY_S)
    told = keeping.collect(dry_run=True)
    assert (told.allocations, told.silent, west.left) == (3, (), 3)
    assert (keeping.collect().allocations, keeping.collect().allocations) == (3, 0)
    with lab.control.store.read() as connection:
        gone = connection.execute(sa.select(allocations.c.id).where(allocations.c.state == "gone")).scalars().all()
    assert gone
    assert {call.kept for call in west.noted} == {tuple(sorted(gone))}
    assert {call.time_s for call in west.noted} == {lab.clock.now_s() - 30 * DAY_S}
    assert {(call.bytes_max, call.spared_s) for call in west.noted} == {(2 << 30, lab.clock.now_s() - DAY_S)}
    west.answers = False
    assert keeping.collect().silent == (WEST,)
