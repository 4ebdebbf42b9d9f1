"""Jobs that have ended, with 6 events each, written straight into the tables of a new store.

Run as `python -m benchmarks.fleet_past URL JOBS TEAMS`; `control_fleet` does so by itself.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from random import Random

import sqlalchemy as sa
from benchmarks.fleet_load import spec_of

from mainspring.control import open_store
from mainspring.control.store.databases.opening import parsed_url
from mainspring.control.store.records import text_of
from mainspring.domain.ids import TeamName

PIECE = 100_000
# Of 12 letters, as every id, and in the order of their rows: every index then grows at its end, or at one for each team
# or name, which a large cache holds; made afterwards, each would read again all that was written.
_JOB = "'job-' || substr('000000000000' || i, length('' || i) + 1)"
_TEAM = "'team-' || (i % :teams)"
_JOBS = f"""
INSERT INTO jobs (id, name, team, state, spec, submitted_s, ended_s, reason, step, metrics, result, owner)
WITH RECURSIVE n(i) AS (SELECT CAST(:first AS BIGINT) UNION ALL SELECT i + 1 FROM n WHERE i < :last)
SELECT {_JOB}, 'past-' || (i % 5000), {_TEAM}, 'succeeded', :spec, :since_s + i, :since_s + i + 3000,
       'all ranks ended well', 1000, :metrics, '{{}}', 'ada' FROM n"""
_EVENTS = f"""
INSERT INTO events (time_s, kind, job_id, detail)
WITH RECURSIVE n(i) AS (SELECT CAST(:first AS BIGINT) UNION ALL SELECT i + 1 FROM n WHERE i < :last),
k(place, kind, detail) AS (VALUES
  (0, 'job_submitted', ''),
  (1, 'job_moved', '{{"before":"queued","after":"starting","reason":"granted"}}'),
  (2, 'job_moved', '{{"before":"starting","after":"running","reason":"its ranks run"}}'),
  (3, 'start_promised', ''),
  (4, 'job_moved', '{{"before":"running","after":"stopping","reason":"its ranks have ended"}}'),
  (5, 'job_moved', '{{"before":"stopping","after":"succeeded","reason":"all ranks ended well"}}'))
SELECT :since_s + i + 500 * place, kind, {_JOB}, CASE place
    WHEN 0 THEN '{{"name":"past-' || (i % 5000) || '","team":"' || {_TEAM} || '"}}'
    WHEN 3 THEN '{{"start_s":' || (:since_s + i + 2000) || '}}'
    ELSE detail END FROM n CROSS JOIN k"""
_COUNTS = f"""
INSERT INTO tallies (owner, team, jobs, letters, succeeded)
WITH RECURSIVE n(i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM n WHERE i < :last)
SELECT 'ada', {_TEAM}, 0, 0, (:count - i + :teams - 1) / :teams FROM n"""
# Whoever loses power begins anew: nothing is there that a log could bring back.
_IN_BULK: Mapping[str, Sequence[str]] = {
    "sqlite": (
        "PRAGMA journal_mode=OFF",
        "PRAGMA synchronous=OFF",
        "PRAGMA locking_mode=EXCLUSIVE",
        "PRAGMA cache_size=-400000",
    ),
    "postgresql": ("SET synchronous_commit = off",),
}


def seed(url: str, count: int, teams: int) -> None:
    """Writes jobs that have ended, and their events, over a year until now.

    Args:
        url: Of a store that is new, or empty.
    """
    open_store(url).close()
    since_s, begun_s = float(round(time.time() - count - 4_000)), time.monotonic()

    def tell(done: str) -> None:
        print(f"{done} after {time.monotonic() - begun_s:.0f} s", file=sys.stderr, flush=True)

    spec = text_of(spec_of("past", Random(1), TeamName("team-0")))
    with _in_bulk(url) as connection:
        for first in range(0, count, PIECE):
            last = min(first + PIECE, count) - 1
            given = {"first": first, "last": last, "since_s": since_s, "teams": teams}
            connection.execute(sa.text(_JOBS), given | {"spec": spec, "metrics": '{"loss":0.5}'})
            connection.execute(sa.text(_EVENTS), given)
            tell(f"{last + 1:,} of {count:,} ended jobs")
        connection.execute(sa.text(_COUNTS), {"last": min(count, teams) - 1, "count": count, "teams": teams})
        if connection.dialect.name == "postgresql":  # As it does by itself; nobody does to SQLite.
            connection.exec_driver_sql("ANALYZE")
            tell("statistics")


@contextmanager
def _in_bulk(url: str) -> Iterator[sa.Connection]:
    """Yields a connection that nobody else has the like of, and that waits for no disk."""
    engine = sa.create_engine(parsed_url(url), isolation_level="AUTOCOMMIT")
    try:
        with engine.connect() as connection:
            for setting in _IN_BULK[connection.dialect.name]:
                connection.exec_driver_sql(setting)
            yield connection
    finally:
        engine.dispose()


if __name__ == "__main__":
    seed(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
