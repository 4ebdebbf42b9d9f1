"""Grants of a plan: new attempts with their allocations, and allocations added to or taken from live ones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import sqlalchemy as sa

from mainspring.control.store.holdings import AllocationRecord, allocations_of, parts
from mainspring.control.store.ledger import StateWriter
from mainspring.control.store.records import AttemptRecord, JobRecord, befores, text_of
from mainspring.control.store.restores.lives import current_life, first_attempt
from mainspring.control.store.schema import allocations, attempts, jobs
from mainspring.domain.ids import AllocationId, AttemptId, ChipName
from mainspring.domain.life import JOB_MOVES, AllocationState, AttemptState, JobState, moved
from mainspring.domain.plan import Grant
from mainspring.domain.wire.events.attempts import AttemptGrantedEvent, AttemptResizedEvent
from mainspring.domain.wire.events.jobs import JobMovedEvent


@dataclass(frozen=True, slots=True, kw_only=True)
class NewAllocation:
    """An allocation to be written.

    Args:
        chips: Thousandths of that, by chip type.
        dollars_per_hour: Price of all its chips.
    """

    id: AllocationId
    part: Grant
    chips: Mapping[ChipName, int]
    dollars_per_hour: float


@dataclass(frozen=True, slots=True, kw_only=True)
class NewAttempt:
    """What a start writes.

    Args:
        id: The attempt's id.
        job: Its job, as it stands in this transaction.
        grants: The nodes of each role, all on one cluster.
        allocations: The parts of the grants, role by role.
        simulated: Whether that cluster's chips are pretended.
        plan: Number of the plan that granted them.
    """

    id: AttemptId
    job: JobRecord
    grants: tuple[Grant, ...]
    allocations: tuple[NewAllocation, ...]
    simulated: bool
    plan: int

    @property
    def dollars_per_hour(self) -> float:
        """Returns the price of all its chips."""
        return sum(allocation.dollars_per_hour for allocation in self.allocations)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Numbers:
    """What the next allocation of an attempt is numbered from."""

    place: int = 0
    agent: int = 0
    rank: int = 0


def grant(ledger: StateWriter, granted: Sequence[NewAttempt]) -> None:
    """Gives queued jobs their next attempts, with their allocations, in a few statements.

    Args:
        granted: At most one a job, with the job as it stands in this transaction.
    """
    if not granted:
        return
    connection = ledger.connection
    before = befores(connection, [new.job.id for new in granted])
    life = current_life(connection)
    numbers = [
        max(before[new.job.id].number + 1 if new.job.id in before else 1, first_attempt(life, new.job.submitted_s))
        for new in granted
    ]
    rows = [
        {
            "id": new.id,
            "job_id": new.job.id,
            "number": number,
            "state": AttemptState.GRANTED.value,
            "cluster": new.grants[0].cluster,
            "simulated": new.simulated,
            "plan": new.plan,
            "granted_s": ledger.now_s,
        }
        for new, number in zip(granted, numbers, strict=True)
    ]
    connection.execute(sa.insert(attempts), rows)
    places = [row for new in granted for row in _rows(new.id, new.allocations, _Numbers(), ledger.now_s)]
    connection.execute(sa.insert(allocations), places)
    told = [
        AttemptGrantedEvent(
            cluster=new.grants[0].cluster,
            nodes=sum(len(part.nodes) for part in new.grants),
            plan=new.plan,
            number=number,
            step=before[new.job.id].step if new.job.id in before else -1,
        )
        for new, number in zip(granted, numbers, strict=True)
    ]
    ledger.tell_each([new.job.id for new in granted], told, attempts_of=[new.id for new in granted])
    _start_jobs(ledger, granted, numbers)


def resize(
    ledger: StateWriter,
    attempt: AttemptRecord,
    *,
    dropped: Sequence[AllocationRecord],
    added: Sequence[NewAllocation],
    told: AttemptResizedEvent,
) -> None:
    """Takes allocations from a live attempt and gives it others, while it goes on; those taken are asked to end.

    Args:
        attempt: As it stands in this transaction.
        dropped: Allocations of it that go on until now.
    """
    for allocation in dropped:
        ledger.move_allocation(allocation, AllocationState.STOPPING)
    if added:
        last = allocations_of(ledger.connection, attempt.id)[-1]
        ranks = sum(parts(ledger.connection, [last.id])[last.id].ranks)
        after = _Numbers(place=last.place + 1, agent=last.agent_first + last.nodes, rank=last.rank_first + ranks)
        ledger.connection.execute(sa.insert(allocations), _rows(attempt.id, added, after, ledger.now_s))
    ledger.event(told, job=attempt.job, attempt=attempt.id)


def _rows(attempt: AttemptId, made: Sequence[NewAllocation], first: _Numbers, now_s: float) -> list[dict[str, object]]:
    """Returns the rows of an attempt's next allocations: agents are numbered over their nodes, ranks over agents."""
    rows: list[dict[str, object]] = []
    agent, rank = first.agent, first.rank
    for place, new in enumerate(made, start=first.place):
        rows.append(
            {
                "id": new.id,
                "attempt_id": attempt,
                "place": place,
                "cluster": new.part.cluster,
                "state": AllocationState.GRANTED.value,
                "part": text_of(new.part),
                "agent_first": agent,
                "rank_first": rank,
                "nodes": len(new.part.nodes),
                "chips": text_of(new.chips),
                "dollars_per_hour": new.dollars_per_hour,
                "granted_s": now_s,
            }
        )
        agent, rank = agent + len(new.part.nodes), rank + sum(new.part.ranks)
    return rows


def _start_jobs(ledger: StateWriter, granted: Sequence[NewAttempt], numbers: Sequence[int]) -> None:
    after = JobState.STARTING
    reasons = [
        f"attempt {number} granted on {new.grants[0].cluster}" for new, number in zip(granted, numbers, strict=True)
    ]
    for new in granted:
        moved(JOB_MOVES, new.job.state, after, new.job.id)
    wanted = [new.job.id for new in granted]
    changes = [{"of": job, "why": reason} for job, reason in zip(wanted, reasons, strict=True)]
    ledger.connection.execute(
        sa.update(jobs).where(jobs.c.id == sa.bindparam("of")).values(state=after.value, reason=sa.bindparam("why")),
        changes,
    )
    told = [
        JobMovedEvent(before=new.job.state, after=after, reason=reason)
        for new, reason in zip(granted, reasons, strict=True)
    ]
    ledger.tell_each(wanted, told)
