"""Jobs that are over: which may leave the store, their whole lives, and how they are removed, little by little."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa

from mainspring.control.service.retention.archive import ArchiveFile, Frame, Place
from mainspring.control.service.views import view_job
from mainspring.control.store.holdings import ALLOCATION_LIVE
from mainspring.control.store.records import ATTEMPT_LIVE, JobRecord, chunks, events_since
from mainspring.control.store.schema import (
    LIVE,
    UNCOUNTED,
    agents,
    allocations,
    archived,
    archives,
    array_ends,
    attempts,
    events,
    held,
    jobs,
    tallies,
    tokens,
    whys,
)
from mainspring.control.store.settings import Settings
from mainspring.control.store.tallies import ENDS
from mainspring.domain.answers import JobHistory
from mainspring.domain.ids import AllocationId, JobId, TeamName

EVENTS_SHOWN_MAX = 10_000  # Of one job, the newest: a month of one that saves every five minutes.
_EVENTS_AT_ONCE = 1_000  # Removed in one transaction: some milliseconds.
_NAMED_MAX = 1_000  # The newest jobs of one name, of whichever team, among which somebody's own is looked for.


def over_jobs(connection: sa.Connection, *, before_s: float, limit: int) -> Sequence[JobId]:
    """Returns jobs that have ended and may leave the store, the one that ended first first.

    None does whose attempts are not all counted yet, or still hold something, nor one whose array goes on; the first
    job of an array, whose row has the spec of all, is the last to go.

    Args:
        before_s: Only those that ended before.
        limit: The most to return.
    """
    over = jobs.alias()
    mine, of_array = attempts.c.job_id == over.c.id, jobs.c.array_id == over.c.array_id
    held = (allocations.c.attempt_id == attempts.c.id, allocations.c.state.in_(ALLOCATION_LIVE))
    stays = (
        sa.exists().where(mine, UNCOUNTED),
        sa.exists().where(mine, *held),
        sa.select(jobs.c.id).where(of_array, LIVE).exists(),
        sa.exists().where(jobs.c.array_id == over.c.id, jobs.c.id != over.c.id),
    )
    query = sa.select(over.c.id).where(over.c.ended_s < before_s, *map(sa.not_, stays))
    return [JobId(job) for job in connection.execute(query.order_by(over.c.ended_s).limit(limit)).scalars()]


def beyond(connection: sa.Connection, kept_max: int) -> int:
    """Returns how many more jobs that have ended are in the store than are to be."""
    ever = sum((sa.func.coalesce(sa.func.sum(tallies.c[end.value]), 0) for end in ENDS), sa.literal(0))
    gone = sa.func.coalesce(sa.func.sum(archives.c.jobs), 0)
    count = connection.execute(sa.select(ever)).scalar_one() - connection.execute(sa.select(gone)).scalar_one()
    return max(0, int(count) - kept_max)


def life_of(connection: sa.Connection, job: JobRecord, *, now_s: float, lease_s: float) -> JobHistory:
    """Returns a job's whole life, as the store has it.

    Args:
        now_s: The time, for what has not ended.
        lease_s: How long a lead may be silent.
    """
    told = events_since(connection, since=0, limit=EVENTS_SHOWN_MAX, job=job.id, newest=True)
    return JobHistory(job=view_job(connection, job, now_s=now_s, settings=Settings(lease_s=lease_s)), events=told)


def place_of(connection: sa.Connection, reference: str, seen: frozenset[TeamName] | None) -> Place | None:
    """Returns where a job is that was archived, by id or by the newest of a name; None where there is none.

    Args:
        seen: Only of these teams, unless None.
    """
    for own in (archived.c.job_id == reference, archived.c.name == reference):
        newest = sa.select(archived).where(own).order_by(archived.c.submitted_s.desc()).limit(_NAMED_MAX)
        for row in connection.execute(newest):
            if seen is None or row.team in seen:
                return place_in(row)
    return None


def place_in(row: sa.Row[Any]) -> Place:
    """Returns where a job is, as a row of `archived` tells."""
    return Place(number=row.archive, frame=Frame(offset=row.offset, size_bytes=row.bytes))


def not_archived(connection: sa.Connection, of: Sequence[JobId]) -> Sequence[JobId]:
    """Returns those of some jobs that are in no archive, in their order."""
    known: set[str] = set()
    for some in chunks(of):
        known |= set(connection.execute(sa.select(archived.c.job_id).where(archived.c.job_id.in_(some))).scalars())
    return [job for job in of if job not in known]


def note_archived(connection: sa.Connection, lives: Sequence[JobHistory], file: ArchiveFile, now_s: float) -> None:
    """Writes where jobs are that were archived.

    Args:
        connection: From `Store.write`.
        lives: In the order of the file's frames.
    """
    ends = [one.job.submitted_s if one.job.ended_s is None else one.job.ended_s for one in lives]
    told = {"number": file.number, "jobs": len(lives), "bytes": file.size_bytes, "made_s": now_s}
    first_s = min(one.job.submitted_s for one in lives)
    connection.execute(sa.insert(archives).values(**told, first_s=first_s, last_s=max(ends)))
    rows = [
        {
            "job_id": one.job.id,
            "name": one.job.spec.name,
            "team": one.job.spec.team,
            "state": one.job.state.value,
            "submitted_s": one.job.submitted_s,
            "ended_s": end_s,
            "archive": file.number,
            "offset": frame.offset,
            "bytes": frame.size_bytes,
        }
        for one, frame, end_s in zip(lives, file.frames, ends, strict=True)
    ]
    connection.execute(sa.insert(archived), rows)


def old_but_wanted(connection: sa.Connection, *, before_s: float) -> tuple[AllocationId, ...]:
    """Returns allocations that ended before a time and whose attempts live still, and those that are held."""
    of_live = sa.select(allocations.c.id).join(attempts).where(attempts.c.state.in_(ATTEMPT_LIVE))
    kept = connection.execute(of_live.where(allocations.c.ended_s < before_s)).scalars().all()
    return tuple(sorted(map(AllocationId, {*kept, *connection.execute(sa.select(held.c.allocation)).scalars()})))


def remove_jobs(connection: sa.Connection, gone: Sequence[JobId]) -> bool:
    """Removes jobs with all that is theirs; returns whether they are gone, or only some of their events.

    Args:
        connection: From `Store.write`.
        gone: Jobs that are archived, few enough for one IN list.
    """
    some = sa.select(events.c.sequence).where(events.c.job_id.in_(gone)).limit(_EVENTS_AT_ONCE)
    if connection.execute(sa.delete(events).where(events.c.sequence.in_(some))).rowcount == _EVENTS_AT_ONCE:
        return False
    own = sa.select(attempts.c.id).where(attempts.c.job_id.in_(gone))
    for table in (agents, allocations, tokens):
        connection.execute(sa.delete(table).where(table.c.attempt_id.in_(own)))
    connection.execute(sa.delete(attempts).where(attempts.c.job_id.in_(gone)))
    connection.execute(sa.delete(whys).where(whys.c.job_id.in_(gone)))
    connection.execute(sa.delete(array_ends).where(array_ends.c.array_id.in_(gone)))
    connection.execute(sa.delete(jobs).where(jobs.c.id.in_(gone)))
    return True
