"""What clusters show beyond what the store knows, as after it went back in time: held until an operator settles it.

Held is what runs under our label and has no row here: it is shown, left alone, and its nodes are left to it. Held is
also what is over and was for a job that has not ended here: whether that job is done nobody knows. A job of which
anything is held does not start. What the store knows to be over, a launch that came late, is no such thing: the loop
stops it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace

import sqlalchemy as sa

from mainspring.control.store.holdings import allocations_by_id
from mainspring.control.store.records import chunks
from mainspring.control.store.rows import RowMapping
from mainspring.control.store.schema import held
from mainspring.domain.answers import HeldView
from mainspring.domain.codec import alike
from mainspring.domain.fleet import AllocationPhase, AllocationSeen
from mainspring.domain.ids import AllocationId, ClusterName, JobId

Held = Mapping[AllocationId, HeldView]
_ROWS = RowMapping(HeldView, held)


def all_held(connection: sa.Connection) -> tuple[HeldView, ...]:
    """Returns what is held, in order of cluster and id."""
    return _ROWS.read(connection, _ROWS.select.order_by(held.c.cluster, held.c.allocation))


def follow_held(
    connection: sa.Connection,
    seen: Mapping[ClusterName, Mapping[AllocationId, AllocationSeen]],
    *,
    known: Collection[AllocationId],
    jobs: Collection[JobId],
    now_s: float,
) -> Held:
    """Holds what engines show and the store has no row of, and forgets what is settled and gone; returns what is held.

    Args:
        connection: From `Store.write`.
        seen: What the engines that answer see.
        known: The allocations that are live, as the store has it.
        jobs: The jobs that have not ended, as the store has it.
    """
    before = {one.allocation: one for one in all_held(connection)}
    shown = {
        one.allocation: _record(one, cluster, now_s)
        for cluster, found in seen.items()
        for one in found.values()
        if one.allocation not in known
    }
    wanted = {name: one for name, one in shown.items() if not one.over or one.job in jobs}
    rows = {one.id for one in allocations_by_id(connection, [name for name in wanted if name not in before])}
    after = {
        name: one
        for name, one in before.items()
        if (one.cluster not in seen and not one.over)
        or (name in shown and not shown[name].over)
        or (one.job in jobs and (name in shown or not one.settled_by))
    }
    after = {name: replace(one, over=one.over or (name in shown and shown[name].over)) for name, one in after.items()}
    after |= {name: one for name, one in wanted.items() if name not in before and name not in rows}
    _write(connection, before, after)
    return after


def hold(connection: sa.Connection, record: HeldView) -> None:
    """Holds something more.

    Args:
        connection: From `Store.write`.
    """
    _write(connection, {}, {record.allocation: record})


def settle_held(connection: sa.Connection, allocations: Collection[AllocationId], by: str) -> None:
    """Has the loop end what is held, and lets its jobs start once it is over.

    Args:
        connection: From `Store.write`.
        by: Who wants it.
    """
    for some in chunks(allocations):
        connection.execute(sa.update(held).where(held.c.allocation.in_(some)).values(settled_by=by))


def release_held(connection: sa.Connection, allocations: Collection[AllocationId], *, job: JobId, by: str) -> None:
    """Forgets what the store knows again; what is over of the same job is settled with it.

    Args:
        connection: From `Store.write`.
        job: The job of all of them.
        by: Who wants it.
    """
    for some in chunks(allocations):
        connection.execute(sa.delete(held).where(held.c.allocation.in_(some)))
    over = (held.c.job_id == job, held.c.over, held.c.settled_by == "")
    connection.execute(sa.update(held).where(*over).values(settled_by=by))


def _record(seen: AllocationSeen, cluster: ClusterName, now_s: float) -> HeldView:
    over = seen.phase is AllocationPhase.ENDED
    return HeldView(**alike(HeldView, seen), cluster=cluster, job=seen.job_id, over=over, since_s=now_s)


def _write(connection: sa.Connection, before: Held, after: Held) -> None:
    changed = [name for name, one in before.items() if after.get(name) != one]
    for some in chunks(changed):
        connection.execute(sa.delete(held).where(held.c.allocation.in_(some)))
    new = [_ROWS.row(alike(HeldView, one)) for name, one in after.items() if before.get(name) != one]
    if new:
        connection.execute(sa.insert(held), new)
