"""Leads not heard of: whose node may be dead, long before another one may be named, as health events.

Leads watch their agents, and nobody but the controller watches leads.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, final

import sqlalchemy as sa

from mainspring.control.store.evidence import node_of_agent
from mainspring.control.store.schema import attempts
from mainspring.domain.hardware.health import QUIET, HealthEvent, HealthSource, Repair, Scope, ScopeKind, Strategy
from mainspring.domain.ids import AttemptId, ClusterName, JobId
from mainspring.domain.life import AttemptState

QUIET_S = 6.0  # Leads report once a second; as long as a lead waits for an agent's word.
LOOK_S = 1.0  # Between two looks at all leads: some milliseconds' work.
LATE_S = 3.0  # After such a pause it was this controller that did not listen.
QUIET_MAX = 16  # At one time: where more are quiet it is the network between, or this controller.
_SOURCE = "controller"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Lead:
    """One lead of an attempt."""

    attempt: AttemptId
    epoch: int


@final
class QuietLeads:
    """Which leads are quiet, as one controller hears them."""

    def __init__(self) -> None:
        self._quiet: dict[_Lead, HealthEvent] = {}
        self._since_s = self._looked_s = 0.0

    def of(self, connection: sa.Connection, now_s: float) -> Iterator[HealthEvent]:
        """Yields what is to be told: that leads have become quiet, or are heard of again.

        Args:
            connection: Of the leader.
        """
        if not 0 <= now_s - self._looked_s <= LATE_S:
            self._since_s = now_s  # What came meanwhile was not taken yet.
        if 0 <= now_s - self._looked_s < LOOK_S:
            return
        self._looked_s = now_s
        silent = _silent(connection, now_s - QUIET_S) if now_s - self._since_s > QUIET_S else {}
        over = [lead for lead in self._quiet if lead not in silent]
        heard = _heard(connection, over)
        for lead in over:
            told = self._quiet.pop(lead)
            if lead in heard:  # Others have ended, or are led from elsewhere: nothing was heard of that node.
                yield _event(told.job, told.scope, lead, now_s, healthy=True)
        for lead, row in silent.items():
            if lead not in self._quiet and len(self._quiet) < QUIET_MAX:
                node = node_of_agent(connection, lead.attempt, row.lead)
                if node is not None:
                    scope = Scope(kind=ScopeKind.NODE, cluster=ClusterName(row.cluster), node=node)
                    self._quiet[lead] = _event(JobId(row.job_id), scope, lead, now_s)
                    yield self._quiet[lead]


def _silent(connection: sa.Connection, before_s: float) -> Mapping[_Lead, Any]:
    """Returns the leads that were not heard of since, the longest silent first."""
    columns = (attempts.c.id, attempts.c.job_id, attempts.c.cluster, attempts.c.lead, attempts.c.epoch)
    own = (attempts.c.state == AttemptState.RUNNING.value, attempts.c.epoch > 0, attempts.c.heard_s < before_s)
    query = sa.select(*columns).where(*own).order_by(attempts.c.heard_s).limit(2 * QUIET_MAX)
    return {_Lead(attempt=AttemptId(row.id), epoch=row.epoch): row for row in connection.execute(query)}


def _heard(connection: sa.Connection, leads: Sequence[_Lead]) -> frozenset[_Lead]:
    """Returns those of some leads that lead still: where they are quiet no more, they were heard of."""
    columns, ids = (attempts.c.id, attempts.c.epoch), [lead.attempt for lead in leads]
    own = (attempts.c.state == AttemptState.RUNNING.value, attempts.c.id.in_(ids))
    rows = connection.execute(sa.select(*columns).where(*own)) if ids else ()
    return frozenset(_Lead(attempt=AttemptId(row.id), epoch=row.epoch) for row in rows).intersection(leads)


def _event(job: JobId, scope: Scope, lead: _Lead, now_s: float, *, healthy: bool = False) -> HealthEvent:
    return HealthEvent(
        source=HealthSource(name=_SOURCE, session=lead.attempt, sequence=round(now_s * 1_000)),
        at_s=now_s,
        scope=scope,
        check=QUIET,
        healthy=healthy,
        message="" if healthy else "the agent that leads there is not heard of; it may be there still",
        repair=Repair.NONE if healthy else Repair.RESTART_RANKS,
        strategy=Strategy.ACT,
        job=job,
    )
