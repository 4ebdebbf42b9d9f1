"""What agents and leads are told: orders for those that register, acknowledgements for those that report."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import sqlalchemy as sa

from mainspring.control.ledger import Ledger, StopCause
from mainspring.control.records import (
    AllocationRecord,
    AttemptRecord,
    JobRecord,
    allocation_of,
    allocations_of,
    attempt_by_id,
    furthest_step,
    grants,
    jobs_by_id,
    specs,
    text_of,
)
from mainspring.control.schema import agents, allocations, attempts, jobs
from mainspring.control.settings import Settings
from mainspring.domain.errors import Conflict, InvalidMessage, NotFound, nearest
from mainspring.domain.ids import AllocationId
from mainspring.domain.life import AllocationState, AttemptState, ended
from mainspring.domain.plan import Grant
from mainspring.domain.wire import (
    EventKind,
    Heartbeat,
    HeartbeatReply,
    LeadEvent,
    Orders,
    RankPlace,
    Register,
    RoleOrders,
)

ADDRESS_LENGTH_MAX = 255
LEAD = 0  # The agent that leads: the first node of the first grant.


@dataclass(frozen=True, slots=True, kw_only=True)
class Posting:
    """An allocation and the attempt it serves, as an agent names them."""

    allocation: AllocationRecord
    attempt: AttemptRecord


def layout(granted: Sequence[Grant], *, only: int | None = None) -> tuple[RankPlace, ...]:
    """Returns where every rank of an attempt lives.

    Agents are numbered over all grants' nodes in order, ranks over all agents; so ranks of one role are neighbours,
    and rank 0 lives with agent 0.

    Args:
        granted: The attempt's grants.
        only: Just this agent's ranks, unless None.
    """
    places: list[RankPlace] = []
    agent = first = 0
    for grant in granted:
        size, role_first = sum(grant.ranks), first
        for count in grant.ranks:
            if only in (None, agent):
                places += [
                    RankPlace(rank=rank, role=grant.role, role_rank=rank - role_first, role_size=size, agent=agent)
                    for rank in range(first, first + count)
                ]
            first += count
            agent += 1
    return tuple(places)


def posting(connection: sa.Connection, allocation: AllocationId) -> Posting:
    """Returns what an allocation id stands for.

    Args:
        connection: Where to read.
        allocation: Its id.

    Raises:
        NotFound: No such allocation.
    """
    row = connection.execute(sa.select(allocations).where(allocations.c.id == allocation)).one_or_none()
    if row is None:
        raise NotFound("register an agent", on=f"allocation {allocation[:80]!r}", wanted="one that was launched")
    record = allocation_of(row)
    attempt = attempt_by_id(connection, record.attempt)
    assert attempt is not None
    return Posting(allocation=record, attempt=attempt)


def allocation_of_rank(connection: sa.Connection, attempt: AttemptRecord, rank: int) -> AllocationRecord:
    """Returns the allocation in which a rank lives.

    Args:
        connection: Where to read.
        attempt: The rank's attempt.
        rank: Its number in the attempt.

    Raises:
        NotFound: The attempt has no such rank.
    """
    granted = grants(connection, [attempt.id])[attempt.id]
    first = 0
    for place, grant in enumerate(granted):
        if first <= rank < first + sum(grant.ranks):
            return allocations_of(connection, attempt.id)[place]
        first += sum(grant.ranks)
    raise NotFound("find a rank", on=attempt.id, got=f"rank {rank}", wanted=f"0 to {first - 1}")


def register(
    connection: sa.Connection, call: Register, *, settings: Settings, objects_url: str, known: bool = False
) -> Orders | None:
    """Returns an agent's orders, ready once every agent of the attempt has come.

    Args:
        connection: From `Store.write`; from `Store.read` will do when the agent is `known`.
        call: What the agent says.
        settings: How often leads report and how long agents live without one.
        objects_url: Where code snapshots and checkpoints are.
        known: Only look: None when the agent has not come before, or comes from another address now.

    Raises:
        NotFound: No such allocation, or the node is not in it.
        Conflict: The allocation is stopping or gone.
        InvalidMessage: The address is too long.
    """
    if not 0 < len(call.address) <= ADDRESS_LENGTH_MAX:
        raise InvalidMessage("register an agent", got=f"{len(call.address)} letters", wanted="its address")
    where = posting(connection, call.allocation)
    attempt = where.attempt
    if where.allocation.state in (AllocationState.STOPPING, AllocationState.GONE):
        raise Conflict("register an agent", on=call.allocation, got=f"one that is {where.allocation.state.value}")
    granted = grants(connection, [attempt.id])[attempt.id]
    agent = _agent(granted, where.allocation.place, call)
    came = {
        row.agent: row.address
        for row in connection.execute(
            sa.select(agents.c.agent, agents.c.address).where(agents.c.attempt_id == attempt.id)
        )
    }
    if came.get(agent) != call.address:
        if known:
            return None
        connection.execute(sa.delete(agents).where(agents.c.attempt_id == attempt.id, agents.c.agent == agent))
        connection.execute(sa.insert(agents).values(attempt_id=attempt.id, agent=agent, address=call.address))
        came[agent] = call.address
    count = sum(len(grant.nodes) for grant in granted)
    ready = len(came) == count
    spec = specs(connection, [attempt.job])[attempt.job]
    place = _array_place(jobs_by_id(connection, [attempt.job])[attempt.job])
    return Orders(
        ready=ready,
        attempt=attempt.id,
        job=attempt.job,
        epoch=attempt.epoch,
        agent=agent,
        agents=count,
        lead=agent == LEAD,
        lead_address=came[LEAD] if ready else "",
        ranks=layout(granted, only=None if agent == LEAD else agent) if ready else (),
        roles=tuple(
            RoleOrders(role=role.name, command=role.command, environment={**role.environment, **place})
            for role in spec.roles
        )
        if ready
        else (),
        code=spec.code,
        objects_url=objects_url,
        restarts_max=spec.restarts_max,
        lease_s=settings.lease_s,
        heartbeat_s=settings.heartbeat_s,
        furthest_step=furthest_step(connection, attempt.job, before=attempt.number),
    )


def heartbeat(connection: sa.Connection, beat: Heartbeat, now_s: float) -> HeartbeatReply:
    """Writes what a lead reports and returns what it need not repeat.

    Args:
        connection: From `Store.write`.
        beat: The report.
        now_s: The time.

    Raises:
        InvalidMessage: Its outcome is not one an attempt can end with.
    """
    if beat.outcome is not None and not ended(beat.outcome):
        raise InvalidMessage("accept a heartbeat", on="field 'outcome'", got=beat.outcome.value, wanted="an end")
    attempt = attempt_by_id(connection, beat.attempt)
    if attempt is None or ended(attempt.state) or beat.epoch != attempt.epoch:
        return HeartbeatReply(acknowledged=0, fenced=True)
    ledger = Ledger(connection, now_s)
    if attempt.state is AttemptState.GRANTED:
        ledger.run_attempt(attempt, jobs_by_id(connection, [attempt.job])[attempt.job])
    seen = _write_events(ledger, attempt, beat.events)
    columns: dict[str, object] = {"events_seen": seen, "heard_s": now_s}
    if (beat.generation, beat.step) >= (attempt.generation, attempt.step):
        columns |= {"generation": beat.generation, "step": beat.step, "ranks": text_of(beat.ranks)}
        connection.execute(
            sa.update(jobs).where(jobs.c.id == attempt.job).values(step=beat.step, metrics=text_of(beat.metrics))
        )
    if beat.outcome is not None and attempt.outcome is None:
        columns["outcome"] = beat.outcome.value
    connection.execute(sa.update(attempts).where(attempts.c.id == attempt.id).values(columns))
    if beat.outcome is not None:
        current = attempt_by_id(connection, attempt.id)
        assert current is not None
        ledger.stop_attempt(current, StopCause.OUTCOME, beat.reason or f"its lead reported {beat.outcome.value}")
    return HeartbeatReply(acknowledged=seen)


def _write_events(ledger: Ledger, attempt: AttemptRecord, told: Sequence[LeadEvent]) -> int:
    """Writes the events not seen yet and returns the last sequence seen."""
    seen = attempt.events_seen
    for event in sorted(told, key=lambda one: one.sequence):
        if event.sequence <= seen:
            continue
        seen = event.sequence
        ledger.event(event.kind, job=attempt.job, attempt=attempt.id, detail=event.detail, time_s=event.time_s)
        if event.kind is EventKind.RESULT:
            result = dict(jobs_by_id(ledger.connection, [attempt.job])[attempt.job].result) | dict(event.detail)
            ledger.connection.execute(sa.update(jobs).where(jobs.c.id == attempt.job).values(result=text_of(result)))
    return seen


def _array_place(job: JobRecord) -> Mapping[str, str]:
    """Returns what a program of an array is told of its place in it."""
    if job.array is None:
        return {}
    return {"MAINSPRING_ARRAY_INDEX": str(job.array_index), "MAINSPRING_ARRAY_COUNT": str(job.array_count)}


def _agent(granted: Sequence[Grant], place: int, call: Register) -> int:
    nodes = granted[place].nodes
    if call.node not in nodes:
        raise NotFound(
            "register an agent", on=call.allocation, got=f"node {call.node[:80]!r}", wanted=nearest(call.node, nodes)
        )
    return sum(len(grant.nodes) for grant in granted[:place]) + nodes.index(call.node)
