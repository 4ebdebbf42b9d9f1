"""What has ended slows nothing: no statement that a server runs looks at more than a few rows of a long history."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from itertools import product
from typing import TYPE_CHECKING, Any

import pytest
import sqlalchemy as sa

from mainspring.control import LAB_ITSELF, Store
from mainspring.control.service.retention.past_jobs import over_jobs
from mainspring.control.store.records import text_of
from mainspring.control.store.tokens import Caller
from mainspring.domain.answers import NewHold, NewPriority, QueuePlace
from mainspring.domain.errors import NotFound
from mainspring.domain.ids import ClusterName, TeamName
from mainspring.domain.job import LAB
from mainspring.domain.life import JobState
from mainspring.domain.team import Team, TeamRole

if TYPE_CHECKING:
    from tests.control.conftest import World

ENDED = 10_000
ROWS_MAX = 4_000  # A page of the longest lists with all that is shown of it; half of what has ended is more.
PAGE = 50
_STEPS = 500
_STEPS_A_ROW = 3  # Of SQLite's virtual machine, to look at one row of a scan; finding and showing one takes more.

_JOBS = """
INSERT INTO jobs (id, name, team, state, spec, submitted_s, ended_s, reason, step, metrics, result, owner)
WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < :count)
SELECT 'past-' || i, CASE i % 2 WHEN 0 THEN 'nightly' ELSE 'other' END, CASE i % 2 WHEN 0 THEN 'arms' ELSE 'legs' END,
       'failed', :spec, :since_s + i, :since_s + i + 300, 'it failed', 10, '{}', '{}', 'ada' FROM n"""
_OTHERS = (
    "UPDATE jobs SET state = 'succeeded', owner = 'bo' WHERE id LIKE 'past-_'",
    "UPDATE jobs SET array_id = 'past-2000', array_index = ordinal - 2000, array_count = 7000, team = 'arms'"
    " WHERE ordinal BETWEEN 2000 AND 8999",
    "UPDATE jobs SET team = 'hands' WHERE id IN ('past-1', 'past-3')",
)
_ATTEMPTS = """
INSERT INTO attempts (id, job_id, number, state, cluster, simulated, plan, granted_s, ended_s, stop_cause, reason,
                      generation, step, ranks, events_seen, epoch, lead, seconds, seconds_before)
SELECT 'attempt-' || id, id, 1, 'failed', 'west', TRUE, 1, submitted_s, ended_s, 'outcome', '',
       1, 10, '[]', 1, 1, 0, '{}', '{}' FROM jobs"""
_ALLOCATIONS = """
INSERT INTO allocations (id, attempt_id, place, cluster, state, part, agent_first, rank_first, nodes, chips,
                         dollars_per_hour, granted_s, ended_s, lost, released, hosts)
SELECT 'allocation-' || id, id, 0, 'west', 'gone', :part, 0, 0, 1, '{"gpu": 1000}',
       1.0, granted_s, ended_s, FALSE, FALSE, '[]' FROM attempts"""
_EVENTS = """
INSERT INTO events (time_s, kind, job_id, attempt_id, detail)
WITH k(place, kind, detail) AS (VALUES (0, 'job_submitted', '{"name":"past","team":"lab"}'),
  (1, 'job_moved', '{"before":"queued","after":"failed","reason":"granted"}'))
SELECT submitted_s + place, kind, id, NULL, detail FROM jobs, k"""
_WHYS = """
INSERT INTO whys (job_id, plan, summary, limit_name, candidates, whose, short_by, exact)
SELECT id, 1, 'placed', NULL, '[]', 'west', 0, FALSE FROM jobs"""
_AUDIT = """
INSERT INTO audit (time_s, holder, token, address, action, target, team, outcome, reason)
SELECT submitted_s, owner, 't', '', 'submit a job', id, team, 'done', '' FROM jobs"""
_TOKENS = """
INSERT INTO tokens (sha256, role, team, attempt_id, made_s, id, holder, maker)
SELECT 'hash of ' || id, 'agent', 'lab', id, granted_s, 'token-' || job_id, '', '' FROM attempts"""


_COUNTS = (
    "INSERT INTO tallies (owner, team, jobs, letters, succeeded, failed, cancelled)"
    " SELECT owner, team, 0, 0, sum(CASE state WHEN 'succeeded' THEN 1 ELSE 0 END),"
    " sum(CASE state WHEN 'failed' THEN 1 ELSE 0 END), 0 FROM jobs GROUP BY owner, team",
    "INSERT INTO array_ends (array_id, succeeded, failed, cancelled) VALUES ('past-2000', 0, 7000, 0)",
    "UPDATE attempts SET counted = TRUE",
)


def _fill(world: World) -> None:
    """Writes jobs that have ended, as they are after a while, straight into tables."""
    spec = text_of(world.spec("past"))
    part = '{"role":"role-0","option":0,"cluster":"west","nodes":["west-0"],"chip_milli":[1000],"ranks":[1]}'
    given = {"count": ENDED, "since_s": world.clock.now_s() - 40 * ENDED, "spec": spec, "part": part}
    with world.control.store.write() as connection:
        for statement in (_JOBS, *_OTHERS, _ATTEMPTS, _ALLOCATIONS, _EVENTS, _WHYS, _AUDIT, _TOKENS, *_COUNTS):
            named = {name: value for name, value in given.items() if f":{name}" in statement}
            connection.execute(sa.text(statement), named)
    if world.control.store.shared:
        with world.control.store.write() as connection:
            connection.exec_driver_sql("ANALYZE")


@contextmanager
def counted(store: Store) -> Iterator[dict[str, int]]:
    """Yields how many rows each statement of a store looked at at the most, also those that it passed over."""
    rows: dict[str, int] = {}
    doing, steps = "", 0

    def explain(_: object, cursor: Any, statement: str, parameters: Any, __: object, many: bool) -> None:
        if statement.lstrip().startswith(("SELECT", "UPDATE", "DELETE")):
            own = cursor.connection.cursor()
            given = parameters[0] if many else parameters
            own.execute("SAVEPOINT explained")
            own.execute(f"EXPLAIN (ANALYZE, FORMAT JSON) {statement}", given)
            plan = own.fetchone()[0][0]["Plan"]
            own.execute("ROLLBACK TO SAVEPOINT explained")
            rows[statement] = max(rows.get(statement, 0), _looked_at(plan))

    def follow(connection: Any, _: object, __: object) -> None:
        def step() -> int:
            nonlocal steps
            steps += _STEPS
            rows[doing] = max(rows.get(doing, 0), steps // _STEPS_A_ROW)
            return 0

        connection.set_progress_handler(step, _STEPS)

    def begin(_: object, __: object, statement: str, *___: object) -> None:
        nonlocal doing, steps
        doing, steps = statement, 0

    heard: dict[str, Callable[..., None]] = {"checkout": follow, "before_cursor_execute": begin}
    if store.shared:
        heard = {"before_cursor_execute": explain}
    for name, listener in heard.items():
        sa.event.listen(store.engine, name, listener)
    yield rows
    for name, listener in heard.items():
        sa.event.remove(store.engine, name, listener)


def _looked_at(plan: dict[str, Any]) -> int:
    passed = sum(count for name, count in plan.items() if name.startswith("Rows Removed"))
    own = (plan["Actual Rows"] + passed) * plan["Actual Loops"] if "Relation Name" in plan else 0
    return round(own) + sum(_looked_at(one) for one in plan.get("Plans", ()))


@pytest.mark.slow
def test_no_statement_looks_at_what_has_ended(world: World) -> None:
    people = world.control.people
    people.set_team(Team(name=LAB))
    for name in ("arms", "legs", "hands", "feet"):
        people.set_team(Team(name=TeamName(name), parent=LAB, dollars_max=1e9))
    arms, feet = (people.caller(world.token(TeamRole.ADMIN, team=team)) for team in ("arms", "feet"))
    _fill(world)
    world.restart()
    with counted(world.control.store) as rows:
        _live(world)
        for caller in (LAB_ITSELF, arms, feet):
            _look(world, caller)
        for job in ("past-1", "past-3000", "nightly"):
            _look_at(world, job)
    assert {statement: count for statement, count in rows.items() if count > ROWS_MAX} == {}


def _live(world: World) -> None:
    """Lets a server begin, and jobs wait, run and end."""
    control = world.control
    first = world.submit(world.spec("nightly"), key="first")
    assert world.submit(world.spec("nightly"), key="first") == first
    after = world.submit(world.spec("later", after=(first,)))
    wide = world.submit(world.spec("wide", replicas=4), count=3)
    world.tick()
    control.steering.pause(after, NewHold())
    control.steering.resume(after)
    control.steering.rank(wide, NewPriority(place=QueuePlace.FIRST), array=True)
    control.steering.rank(after, NewPriority(place=QueuePlace.LAST))
    world.run(first)
    control.steering.requeue(first)
    world.tick(3)
    world.run(first)
    world.succeed(first)
    control.steering.stop(after)
    control.steering.stop(wide, array=True)
    world.tick(3)
    assert control.retention.sweep(at_once=True).jobs == 0


def _look(world: World, caller: Caller) -> None:
    """Asks all that people ask."""
    control, people, questions = world.control, world.control.people, world.control.questions
    for team, owner in product((None, TeamName("arms"), TeamName("feet")), (None, "bo", "cy")):
        control.job_counts(caller, team=team, owner=owner)
        for state in (None, JobState.FAILED, JobState.CANCELLED):
            found = control.jobs(caller, state=state, team=team, owner=owner, limit=PAGE)
            if found:
                control.jobs(caller, state=state, team=team, owner=owner, after=found[-1].id, limit=PAGE)
    if caller is LAB_ITSELF:  # For others a fixed number of all events is looked at.
        control.events(limit=PAGE)
        control.events(limit=PAGE, newest=True)
    recently_s = world.clock.now_s() - 100.0
    control.accounts.report(caller, since_s=recently_s)
    control.accounts.report(caller, since_s=recently_s, team=TeamName("feet"))
    control.accounts.report(caller, since_s=recently_s, cluster=ClusterName("west"))
    control.clusters(caller)
    control.retention.fleet_at(caller, at_s=recently_s, limit=PAGE)
    questions.plans(caller, limit=PAGE)
    questions.verdicts(caller, limit=PAGE)
    people.teams(caller)
    people.tokens(caller)
    people.whoami(caller)
    people.audit(caller, limit=PAGE)
    people.audit(caller, limit=PAGE, newest=True)
    people.is_known(caller)
    control.may_follow(None, caller)
    for reference in ("nightly", "no such job"):
        with suppress(NotFound):
            control.job(reference, caller)


def _look_at(world: World, job: str) -> None:
    """Asks all that people ask of one job."""
    control = world.control
    control.job(job)
    control.events(job, limit=PAGE)
    control.events(job, limit=PAGE, newest=True)
    control.accounts.of_job(job)
    control.retention.history(job)
    control.progress(job)
    control.questions.why(job)
    with suppress(NotFound):
        found = control.jobs(array=job, limit=PAGE)
        control.jobs(array=job, after=found[-1].id, limit=PAGE)


@pytest.mark.slow
def test_sweep_finds_what_is_to_go_among_jobs_of_no_array(world: World) -> None:
    _fill(world)
    with world.control.store.write() as connection:
        connection.exec_driver_sql("UPDATE jobs SET array_id = NULL, array_index = NULL, array_count = NULL")
        connection.exec_driver_sql("ANALYZE")
    world.restart()
    with counted(world.control.store) as rows, world.control.store.read() as connection:
        assert len(over_jobs(connection, before_s=world.clock.now_s(), limit=PAGE)) == PAGE
    assert {statement: count for statement, count in rows.items() if count > ROWS_MAX} == {}
