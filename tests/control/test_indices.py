"""What many ask of many jobs is found by indices alone, on both databases."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest
import sqlalchemy as sa

from mainspring.control import open_store
from mainspring.control.loop.commit import clipped_wait
from mainspring.control.service.lists import JobFilter, count_jobs, listed
from mainspring.control.service.views import list_jobs, list_verdicts
from mainspring.control.store.schema import WAIT_BYTES_MAX
from mainspring.domain.ids import TeamName
from mainspring.domain.life import JobState

if TYPE_CHECKING:
    from tests.control.conftest import World

ARMS = TeamName("arms")
QUEUED = JobFilter(state=JobState.QUEUED, team=ARMS)
SEEN = JobFilter(state=JobState.QUEUED, seen=frozenset({ARMS, TeamName("legs")}))
ALL = JobFilter(state=JobState.QUEUED)
JOBS = 4_000
_FILL = (
    """INSERT INTO jobs (id, name, team, state, spec, submitted_s, reason, step, metrics, result, owner)
    WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < :count)
    SELECT 'job-' || i, 'job', CASE i % 8 WHEN 0 THEN 'arms' WHEN 1 THEN 'legs' ELSE 'hands' END,
           'queued', :long, i, '', -1, '{}', '{}', 'ada' FROM n""",
    """INSERT INTO whys (job_id, plan, summary, limit_name, candidates, whose, short_by, exact)
    SELECT id, 1, 'full', 'capacity', :long, 'west', 0, FALSE FROM jobs""",
)
LOOKS: dict[str, tuple[Callable[[sa.Connection], object], str]] = {
    "verdicts of a team": (lambda at: list_verdicts(at, QUEUED, limit=9), "jobs_team whys_waiting"),
    "verdicts of some teams": (lambda at: list_verdicts(at, SEEN, limit=9), "jobs_team whys_waiting"),
    "verdicts of all": (lambda at: list_verdicts(at, ALL, limit=9), "jobs_state whys_waiting"),
    "a team's line": (lambda at: listed(at, QUEUED, 9), "jobs_team"),
    "jobs of a team": (lambda at: listed(at, JobFilter(team=ARMS), 9), "jobs_team"),
    "counts of a team": (lambda at: count_jobs(at, JobFilter(team=ARMS)), "jobs_team"),
    "counts of all": (lambda at: count_jobs(at, JobFilter()), "jobs_"),
}


def steps_of(connection: sa.Connection, look: Callable[[sa.Connection], object]) -> str:
    """How a database would do what somebody asks of it, in its own words."""
    asked: list[tuple[str, Any]] = []

    def note(_: object, __: object, statement: str, given: Any, *___: object) -> None:
        asked.append((statement, given))

    sa.event.listen(connection, "before_cursor_execute", note)
    look(connection)
    sa.event.remove(connection, "before_cursor_execute", note)
    explain = "EXPLAIN" if connection.dialect.name == "postgresql" else "EXPLAIN QUERY PLAN"
    return "\n".join(
        str(row) for statement, given in asked for row in connection.exec_driver_sql(f"{explain} {statement}", given)
    )


@pytest.mark.slow
def test_look_at_many_jobs_reads_indices_alone(world: World) -> None:
    store = world.control.store
    with store.write() as connection:
        for statement in _FILL:
            given = {"count": JOBS, "long": "x" * 1_000}
            connection.execute(
                sa.text(statement), {name: fact for name, fact in given.items() if f":{name}" in statement}
            )
    if store.shared:  # It reads no index alone before it knows what every transaction sees.
        with store.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
            connection.exec_driver_sql("VACUUM (ANALYZE) jobs, whys")
    how = "Index Only Scan" if store.shared else "COVERING INDEX"
    with open_store(world.url).read() as connection:
        for what, (look, wanted) in LOOKS.items():
            steps = steps_of(connection, look)
            for name in wanted.split():
                assert any(how in step and f" {name}" in step for step in steps.splitlines()), f"{what}: {steps}"


@pytest.mark.slow
def test_why_a_job_waits_fits_into_the_index_whatever_is_in_it(world: World) -> None:
    said = clipped_wait("\0" + "\N{ROBOT FACE}" * 10_000)
    assert len(said.encode()) == WAIT_BYTES_MAX
    words = "".join(chr(0x10000 + number * 7_919 % 0xE000) for number in range(5_000))  # No database packs it.
    job = world.submit(world.spec("wide", replicas=4, roles=3))
    world.tick(2)
    with world.control.store.write() as connection:
        told = {"said": clipped_wait(words), "job": job}
        changed = connection.execute(sa.text("UPDATE whys SET summary = :said WHERE job_id = :job"), told)
        assert changed.rowcount == 1
    with world.control.store.read() as connection:
        (shown,) = list_jobs(connection, JobFilter(), limit=5, now_s=1.0)
        (verdict,) = list_verdicts(connection, JobFilter(), limit=5)
    assert shown.reason == verdict.reason == clipped_wait(words)
