"""The lab at a glance: sums over the last plan's columns, and a few rows of the store, however large the lab is."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import final

import numpy as np
import sqlalchemy as sa

from mainspring.control.state.fleet import ClusterSeen, FleetView, read_closed
from mainspring.control.state.latest_plan import LatestPlan
from mainspring.control.state.ledgers import account
from mainspring.control.store.holdings import allocations_of_each
from mainspring.control.store.records import attempts_by_id, jobs_by_id
from mainspring.control.store.schema import jobs
from mainspring.domain.answers import ClusterGlance, FailedGlance, Glance, JobGlance, QueueGlance
from mainspring.domain.answers.clusters import FAILED_MAX, FAILED_S
from mainspring.domain.fleet import Inventory, NodeCondition
from mainspring.domain.ids import ClusterName, JobId, NodeName, TeamName
from mainspring.domain.job import MILLI, Tier
from mainspring.domain.life import JobState

REASON_LENGTH_MAX = 300
LOOKED_AT_MAX = 10_000  # Jobs that ended lately: three a second for an hour.
_TIERS = list(Tier)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Chips:
    """What one inventory comes to; `ready` is what each node has that its engine says may be used."""

    inventory: Inventory
    chips: float
    foreign: float
    ready: Mapping[NodeName, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Failed:
    """Jobs that failed lately: how many, and the last of them."""

    count: int
    shown: tuple[FailedGlance, ...]


@final
class Glances:
    """Looks at one controller's lab. Used by many threads.

    Args:
        lease_s: How long a lead may be silent.
    """

    def __init__(self, fleet: FleetView, *, lease_s: float) -> None:
        self._fleet = fleet
        self._lease_s = lease_s
        self._known: dict[ClusterName, _Chips] = {}  # Inventories seldom change; one has thousands of nodes.

    def look(
        self,
        connection: sa.Connection,
        picture: LatestPlan,
        *,
        now_s: float,
        limit: int,
        seen: frozenset[TeamName] | None,
    ) -> Glance:
        """Returns the lab as it is now.

        Args:
            picture: The last plan.
            limit: Most jobs of each kind.
            seen: Jobs of these teams, None for all.
        """
        rows = _running(picture, seen)
        largest = rows[np.argsort(-picture.snapshot.live.chip_milli[rows], kind="stable")[:limit]]
        failed = self._failed(connection, now_s, seen, limit)
        return Glance(
            at_s=now_s,
            planned_s=picture.now_s,
            clusters=tuple(self._clusters(connection, picture, now_s)),
            queue=tuple(_queue(picture, now_s)),
            jobs=tuple(self._jobs(connection, picture, largest, now_s)),
            running=len(rows),
            failed=failed.shown,
            failed_count=failed.count,
        )

    def _clusters(self, connection: sa.Connection, picture: LatestPlan, now_s: float) -> Iterable[ClusterGlance]:
        closed, live = read_closed(connection), picture.snapshot.live
        names = {name: row for row, name in enumerate(picture.snapshot.clusters.names)}
        for name, one in self._fleet.seen().items():
            known = self._chips(name, one)
            shut = {at.node for at in closed.nodes if at.cluster == name and at.node in known.ready}
            ready = 0 if name in closed.clusters else len(known.ready) - len(shut)
            own = live.cluster == names.get(name, -2)
            yield ClusterGlance(
                cluster=name,
                simulated=one.inventory.simulated,
                answering=one.answering,
                silent_s=max(0.0, now_s - one.seen_s),
                nodes=len(one.inventory.nodes),
                nodes_closed=len(one.inventory.nodes) - ready,
                chips=known.chips,
                chips_healthy=sum(known.ready.values()) - sum(known.ready[node] for node in shut) if ready else 0,
                chips_held={
                    tier.value: int(held) / MILLI
                    for tier in _TIERS
                    if (held := live.chip_milli[own & (live.tier == tier.rank)].sum())
                },
                chips_foreign=known.foreign,
            )

    def _chips(self, name: ClusterName, one: ClusterSeen) -> _Chips:
        known = self._known.get(name)
        if known is None or known.inventory is not one.inventory:
            nodes = one.inventory.nodes
            known = self._known[name] = _Chips(
                inventory=one.inventory,
                chips=sum(node.chips for node in nodes),
                foreign=sum(node.foreign_chip_milli for node in nodes) / MILLI,
                ready={node.name: node.chips for node in nodes if node.condition is NodeCondition.READY},
            )
        return known

    def _jobs(
        self, connection: sa.Connection, picture: LatestPlan, rows: np.ndarray, now_s: float
    ) -> Iterable[JobGlance]:
        live = picture.snapshot.live
        wanted = [live.attempts[row] for row in rows.tolist()]
        records = {one.id: one for one in attempts_by_id(connection, wanted)}
        held = allocations_of_each(connection, wanted)
        named = jobs_by_id(connection, {one.job for one in records.values()})
        for row in rows.tolist():
            attempt = records.get(live.attempts[row])
            if attempt is None or attempt.job not in named:  # Removed since the plan was made.
                continue
            job = named[attempt.job]
            spent = account(attempt, held.get(attempt.id, ()), waited_s=0.0, now_s=now_s, lease_s=self._lease_s)
            yield JobGlance(
                job=job.id,
                name=job.name,
                team=job.team,
                owner=job.owner,
                tier=_TIERS[live.tier[row]],
                cluster=attempt.cluster,
                attempt=attempt.id,
                attempt_number=attempt.number,
                chips=int(live.chip_milli[row]) / MILLI,
                held_s=max(0.0, now_s - attempt.granted_s),
                step=job.step,
                goodput=spent.ratio,
                stopping=bool(live.stopping[row]),
            )

    def _failed(self, connection: sa.Connection, now_s: float, seen: frozenset[TeamName] | None, limit: int) -> _Failed:
        columns = (jobs.c.id, jobs.c.name, jobs.c.team, jobs.c.state, jobs.c.ended_s)
        # Apart, lest databases begin with a team's jobs, or with all that ever failed.
        newest = sa.select(*columns).where(jobs.c.ended_s >= now_s - FAILED_S).order_by(jobs.c.ended_s.desc())
        lately = newest.limit(LOOKED_AT_MAX).subquery()
        failed = sa.select(lately).where(lately.c.state == JobState.FAILED.value).order_by(lately.c.ended_s.desc())
        rows = connection.execute(failed).all()
        own = [row for row in rows if seen is None or row.team in seen][:FAILED_MAX]
        records = jobs_by_id(connection, [JobId(row.id) for row in own[:limit]])
        shown = [records[JobId(row.id)] for row in own[:limit]]
        return _Failed(
            count=len(own),
            shown=tuple(
                FailedGlance(
                    job=job.id,
                    name=job.name,
                    team=job.team,
                    ended_s=job.ended_s or 0.0,
                    reason=job.reason[-REASON_LENGTH_MAX:],  # Of a traceback the last line says what was raised.
                )
                for job in shown
            ),
        )


def _running(picture: LatestPlan, seen: frozenset[TeamName] | None) -> np.ndarray:
    """Returns the rows of what holds chips, or room that needs none, of some teams."""
    live, teams = picture.snapshot.live, picture.snapshot.teams.names
    if seen is None:
        return np.arange(len(live.attempts))
    return np.flatnonzero(np.array([name in seen for name in teams], dtype=bool)[live.team])


def _queue(picture: LatestPlan, now_s: float) -> Iterable[QueueGlance]:
    pending = picture.snapshot.pending
    kept = pending.blocked | pending.paused | pending.behind
    for tier in _TIERS:
        own = pending.tier == tier.rank
        since_s = pending.submitted_s[own & ~kept]
        yield QueueGlance(
            tier=tier,
            jobs=int(own.sum()),
            kept=int((own & kept).sum()),
            oldest_s=max(0.0, now_s - float(since_s.min())) if since_s.size else None,
        )
