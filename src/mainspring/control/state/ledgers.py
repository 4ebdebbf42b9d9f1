"""Ledgers of attempts in node-seconds: what their leads report, and what nobody could tell them; accounts are sums.

The law holds by construction: a lead's ledger says what its time with its nodes went into, and what is left of the time
allocated is given to what surrounds it, in this order: start-up until all agents have come (the first ones, or those
that were added), what came after the last word, nodes on their way out, and recovery for every other hour in which
nodes were held and no lead counted them. A ledger that claims more than was allocated, as by clocks that disagree, is
scaled down to it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import fsum, inf
from typing import Any

import sqlalchemy as sa

from mainspring.control.state.history import ENDED_BY_HOUR
from mainspring.control.store.holdings import AllocationRecord, allocations_of_each
from mainspring.control.store.ledger import DISPLACED, StopCause
from mainspring.control.store.records import ATTEMPT_ROWS, AttemptRecord
from mainspring.control.store.schema import UNCOUNTED, accounts, attempts, charges, jobs
from mainspring.domain.goodput import Goodput, TimeUse, total

DAY_S = 86_400.0
_USES = tuple((use, use.value) for use in TimeUse)  # Read for every attempt of every report.
_UNTOLD = (StopCause.LOST.value, StopCause.FENCED.value)


_earlier = attempts.alias()
_before_s = (
    sa.select(_earlier.c.ended_s)
    .where(_earlier.c.job_id == attempts.c.job_id, _earlier.c.number < attempts.c.number)
    .order_by(_earlier.c.number.desc())
    .limit(1)
    .scalar_subquery()
)
# Not joined: databases would begin with a team's jobs, and look at all of them.
TEAM, _submitted_s = (
    sa.select(column).where(jobs.c.id == attempts.c.job_id).scalar_subquery()
    for column in (jobs.c.team, jobs.c.submitted_s)
)
ATTEMPTS = sa.select(attempts, TEAM.label("team"), _submitted_s.label("submitted_s"), _before_s.label("before_s"))


def account(
    attempt: AttemptRecord, held: Sequence[AllocationRecord], *, waited_s: float, now_s: float, lease_s: float
) -> Goodput:
    """Returns the ledger of one attempt.

    Args:
        held: All its allocations, those that are gone too.
        waited_s: How long its job was in the queue before it.
        now_s: Until when an attempt that goes on is counted: until its lead's last word, while that is fresh.
        lease_s: How old a fresh word may be.
    """
    word_s = attempt.heard_s if attempt.led_s is not None else None
    until_s = now_s
    if attempt.ended_s is not None:  # By a clock that may have been set back since the last of it was gone.
        until_s = max((attempt.ended_s, *(one.ended_s for one in held if one.ended_s is not None)))
    if attempt.ended_s is None and not attempt.stop_cause and word_s is not None and 0.0 <= now_s - word_s <= lease_s:
        until_s = word_s
    spans = [_Span(one, until_s) for one in held]
    allocated_s = fsum(span.within(-inf, inf) for span in spans)
    seconds = _told(attempt, allocated_s)
    left_s = max(0.0, allocated_s - fsum(seconds.values()))
    led_s = inf if attempt.led_s is None else attempt.led_s
    failed = attempt.stop_cause in _UNTOLD or not attempt.stop_cause
    for use, claimed_s in (
        (TimeUse.STARTUP, fsum(span.starting(led_s) for span in spans)),
        (
            TimeUse.RECOVERY if failed else TimeUse.WINDDOWN,
            0.0 if word_s is None else fsum(span.within(word_s, inf) for span in spans),
        ),
        (TimeUse.RESIZE, fsum(span.leaving(until_s) for span in spans)),
        (TimeUse.RECOVERY, inf),
    ):
        given_s = min(claimed_s, left_s)
        seconds[use] += given_s
        left_s -= given_s
    return Goodput(
        allocated_s=allocated_s,
        seconds=seconds,
        waited_s=waited_s,
        preemptions=int(attempt.stop_cause in DISPLACED),
    )


def count_ended(connection: sa.Connection, *, limit: int) -> int:
    """Adds attempts that have ended to the accounts, so that nobody need look at them again; returns how many.

    Args:
        connection: From `Store.write`.
        limit: The most to add, few enough for one IN list.
    """
    oldest = ATTEMPTS.where(UNCOUNTED, attempts.c.ended_s.is_not(None)).order_by(attempts.c.ended_s).limit(limit)
    rows = connection.execute(oldest).all()
    if not rows:
        return 0
    days: dict[tuple[str, str, int], list[Goodput]] = {}
    for row, part in zip(rows, accounted(connection, rows, now_s=0.0, lease_s=0.0), strict=True):
        days.setdefault((row.cluster, row.team, int(row.granted_s // DAY_S)), []).append(part)
    for (on, of, day), parts in days.items():
        _add(connection, accounts, {"cluster": on, "team": of, "day": day}, _sums(len(parts), total(tuple(parts))))
    own = [row.id for row in rows]
    for hour in connection.execute(ENDED_BY_HOUR.where(attempts.c.id.in_(own))).mappings():
        more = {name: hour[name] for name in ("seconds", "dollars")}
        _add(connection, charges, {name: hour[name] for name in hour if name not in more}, more)
    connection.execute(sa.update(attempts).where(attempts.c.id.in_(own)).values(counted=True))
    return len(rows)


def accounted(
    connection: sa.Connection, rows: Sequence[sa.Row[Any]], *, now_s: float, lease_s: float
) -> Iterator[Goodput]:
    """Yields the ledger of each of some attempts, read as `ATTEMPTS`."""
    held = allocations_of_each(connection, [row.id for row in rows])
    for row in rows:
        granted_s = now_s if waits_in_queue(held.get(row.id, ())) else row.granted_s
        waited_s = max(0.0, granted_s - (row.submitted_s if row.before_s is None else row.before_s))
        yield account(ATTEMPT_ROWS.value(row), held.get(row.id, ()), waited_s=waited_s, now_s=now_s, lease_s=lease_s)


def _sums(count: int, whole: Goodput) -> dict[str, float]:
    """Returns attempts' ledger as columns of `accounts`."""
    beside = {"allocated_s": whole.allocated_s, "waited_s": whole.waited_s, "preemptions": whole.preemptions}
    return {"attempts": count, **beside, **{f"{use.value}_s": whole.seconds[use] for use in TimeUse}}


def _add(connection: sa.Connection, table: sa.Table, key: Mapping[str, Any], more: Mapping[str, float]) -> None:
    """Adds to the sums of one row, which is made where it is not there."""
    own = [table.c[name] == value for name, value in key.items()]
    sums = {name: table.c[name] + value for name, value in more.items()}
    if not connection.execute(sa.update(table).where(*own).values(sums)).rowcount:
        connection.execute(sa.insert(table).values(**key, **more))


def waits_in_queue(held: Sequence[AllocationRecord]) -> bool:
    """Returns whether an attempt waits in its cluster's own queue, and nothing of it was ever elsewhere."""
    return bool(held) and all(one.queued for one in held)


class _Span:
    """An allocation's time, in node-seconds.

    Args:
        until_s: Until when it is counted at the most.
    """

    def __init__(self, one: AllocationRecord, until_s: float) -> None:
        self._one = one
        end_s = until_s if one.ended_s is None else min(one.ended_s, until_s)
        # What waits in its cluster's own queue holds nothing yet.
        self._end_s = one.granted_s if one.queued else max(one.granted_s, end_s)

    def within(self, from_s: float, to_s: float) -> float:
        """Returns what lies between two times."""
        return self._one.nodes * max(0.0, min(self._end_s, to_s) - max(self._one.granted_s, from_s))

    def starting(self, led_s: float) -> float:
        """Returns what came before its agents had all come: the attempt's, or its own when it was added later."""
        added = self._one.granted_s > led_s
        came_s = inf if self._one.came_s is None else self._one.came_s
        return self.within(-inf, came_s if added else led_s)

    def leaving(self, until_s: float) -> float:
        """Returns what came after its engine took a stop for it, while its attempt went on."""
        stopped_s = self._one.stopped_s
        return self.within(stopped_s, inf) if stopped_s is not None and self._end_s < until_s else 0.0


def _told(attempt: AttemptRecord, allocated_s: float) -> dict[TimeUse, float]:
    """Returns what leads reported, at most what was allocated."""
    before, last = attempt.seconds_before, attempt.seconds
    if not before and not last:
        return dict.fromkeys(TimeUse, 0.0)
    seconds = {use: max(0.0, before.get(name, 0.0)) + max(0.0, last.get(name, 0.0)) for use, name in _USES}
    whole_s = fsum(seconds.values())
    if whole_s <= allocated_s:
        return seconds
    return {use: told_s * (allocated_s / whole_s) for use, told_s in seconds.items()}
