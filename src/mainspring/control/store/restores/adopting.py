"""Writes attempts again that run and that the store has forgotten, by what was attested of them at their launch.

Ids, numbers, nodes and times are what they were; agents go on without being asked anything. A job that the store has
forgotten too is made again as it was submitted. Whatever the store knows otherwise wins: then nothing is written.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import sqlalchemy as sa

from mainspring.control.store.holdings import live_allocations, parts, ranks_per_replica
from mainspring.control.store.ledger import StateWriter
from mainspring.control.store.records import (
    AttemptRecord,
    JobRecord,
    attempt_by_id,
    attempts_of,
    chunks,
    jobs_by_id,
    removed_jobs,
    specs,
    tenants,
    text_of,
)
from mainspring.control.store.restores.attestations import (
    ALLOCATIONS_ATTESTED,
    ATTEMPTS_ATTESTED,
    Attestation,
    JobAttested,
)
from mainspring.control.store.restores.held import release_held
from mainspring.control.store.rows import read_text
from mainspring.control.store.schema import agents, allocations, attempts, jobs
from mainspring.domain.answers import Submit
from mainspring.domain.codec import alike
from mainspring.domain.errors import Conflict, NotFound
from mainspring.domain.ids import NodeName
from mainspring.domain.job import LAB, JobSpec
from mainspring.domain.life import AllocationState, AttemptState, JobState, ended
from mainspring.domain.wire.events.attempts import AttemptGrantedEvent, AttemptResizedEvent

_ATTEMPTED = "adopt what is held"


def adopt(
    connection: sa.Connection,
    held: Sequence[Attestation],
    *,
    room: Mapping[NodeName, int] | None,
    by: str,
    now_s: float,
) -> None:
    """Writes held allocations of one attempt, and with them the attempt and its job as far as the store has not.

    Args:
        connection: From `Store.write`.
        held: What is attested of each.
        room: Thousandths of chips that each node of the cluster has; None where the cluster places work by itself.
        by: Who wants it.

    Raises:
        NotFound: Its team is not known.
        Conflict: The store knows better: the attempt or the job is over, the job has another attempt that lives or is
            paused, or a node has no room for it. Nothing is written then.
    """
    held = sorted(held, key=lambda one: one.allocation.place)
    newest = held[-1]
    if room is not None:
        _require_room(connection, held, room)
    attempt = attempt_by_id(connection, newest.attempt.id)
    if attempt is None:
        attempt = _begin_attempt(connection, held, by=by, now_s=now_s)
    else:
        if attempt.state not in (AttemptState.GRANTED, AttemptState.RUNNING):
            raise Conflict(
                _ATTEMPTED, on=attempt.id, got=f"an attempt that is {attempt.state.value} as the store has it"
            )
        _write_allocations(connection, held, came_s=now_s if attempt.epoch else None)
        _tell_larger(StateWriter(connection, now_s), attempt, held, by)
    release_held(connection, [one.allocation.id for one in held], job=attempt.job, by=by)


def _begin_attempt(connection: sa.Connection, held: Sequence[Attestation], *, by: str, now_s: float) -> AttemptRecord:
    newest = held[-1]
    job = _known_job(connection, newest) or _made_again(connection, newest.job)
    missing = {role.name for role in specs(connection, [job.id])[job.id].roles} - {
        one.allocation.part.role for one in held
    }
    if missing:
        raise Conflict(
            _ATTEMPTED, on=newest.attempt.id, got=f"nothing of role {min(missing)!r}", wanted="some of every role"
        )
    # Heard of now: from here on its agents have as long to come, or its lead to speak, as at any start.
    columns = alike(type(newest.attempt), newest.attempt)
    row = ATTEMPTS_ATTESTED.row(columns) | {"state": AttemptState.GRANTED.value, "heard_s": now_s}
    connection.execute(sa.insert(attempts).values(row))
    _write_allocations(connection, held, came_s=None)
    granted = AttemptGrantedEvent(
        cluster=newest.attempt.cluster,
        nodes=sum(one.allocation.nodes for one in held),
        plan=newest.attempt.plan,
        number=newest.attempt.number,
        step=job.step,
    )
    ledger = StateWriter(connection, now_s)
    ledger.event(granted, job=job.id, attempt=newest.attempt.id, time_s=newest.attempt.granted_s)
    where = f"attempt {newest.attempt.number}, which runs on {newest.attempt.cluster}"
    ledger.move_job(job, JobState.STARTING, f"{by} adopted {where}")
    attempt = attempt_by_id(connection, newest.attempt.id)
    assert attempt is not None
    return attempt


def _known_job(connection: sa.Connection, newest: Attestation) -> JobRecord | None:
    """Returns the job of an attempt as the store has it, ready for it; None where the store has forgotten that too."""
    known = jobs_by_id(connection, [newest.job.id]).get(newest.job.id)
    if known is None and newest.job.id in removed_jobs(connection, [newest.job.id]):
        raise Conflict(_ATTEMPTED, on=newest.job.id, got="a job that is over, and was removed")
    if known is None:
        return None
    others = attempts_of(connection, [known.id]).get(known.id, [])
    live = next((one for one in others if not ended(one.state)), None)
    if live is not None:
        got = f"a job whose attempt {live.number} lives, as the store has it"
        raise Conflict(_ATTEMPTED, on=known.id, got=got, next_step="again, once that is over; or ms restore --end")
    if known.state is not JobState.QUEUED:
        raise Conflict(_ATTEMPTED, on=known.id, got=f"a job that is {known.state.value}", next_step="ms restore --end")
    if any(one.number >= newest.attempt.number for one in others):
        got = f"attempt {newest.attempt.number}, and the store has one of that number"
        raise Conflict(_ATTEMPTED, on=known.id, got=got, next_step="ms restore --end")
    if known.overrides is not None and known.overrides.paused is not None:
        raise Conflict(_ATTEMPTED, on=known.id, got="a job that is paused", next_step=f"ms resume {known.id}")
    return known


def _made_again(connection: sa.Connection, forgotten: JobAttested) -> JobRecord:
    """Returns a job that the store had forgotten, queued: one of an array becomes a job of its own, told its place."""
    if forgotten.team not in {LAB, *(team.name for team in tenants(connection))}:
        raise NotFound(_ATTEMPTED, on=f"team {forgotten.team!r}", next_step=f"ms team set {forgotten.team}")
    spec = replace(read_text(JobSpec, forgotten.spec), name=forgotten.name, after=())  # What it came after is over.
    if forgotten.array_count is not None:
        place = {
            "MAINSPRING_ARRAY_INDEX": str(forgotten.array_index),
            "MAINSPRING_ARRAY_COUNT": str(forgotten.array_count),
        }
        roles = tuple(replace(role, environment={**role.environment, **place}) for role in spec.roles)
        spec = replace(spec, roles=roles)
    key = "" if forgotten.array_count is not None else forgotten.submit_key or ""
    taken = (jobs.c.team == forgotten.team, jobs.c.submit_key == key)
    if connection.execute(sa.select(jobs.c.id).where(*taken)).first() is not None:
        key = ""  # Submitted once more since the store went back.
    ledger = StateWriter(connection, forgotten.submitted_s)
    ledger.submit([(Submit(spec=spec, key=key), text_of(spec), [forgotten.id])], owner=forgotten.owner)
    if forgotten.overrides is not None:
        said = sa.update(jobs).values(overrides=text_of(forgotten.overrides))
        connection.execute(said.where(jobs.c.id == forgotten.id))
    return jobs_by_id(connection, [forgotten.id])[forgotten.id]


def _write_allocations(connection: sa.Connection, held: Sequence[Attestation], *, came_s: float | None) -> None:
    """Writes allocations as launched.

    Args:
        came_s: Since when their agents count as come: where a lead runs with them, nobody waits for them.
    """
    rows = [
        ALLOCATIONS_ATTESTED.row(alike(type(one.allocation), one.allocation))
        | {"state": AllocationState.LAUNCHED.value, "launched_s": one.allocation.granted_s, "came_s": came_s}
        for one in held
    ]
    connection.execute(sa.insert(allocations), rows)


def _tell_larger(ledger: StateWriter, attempt: AttemptRecord, added: Sequence[Attestation], by: str) -> None:
    """Tells that an attempt which the store knows holds more than it knew."""
    own = [one for one in live_allocations(ledger.connection) if one.attempt == attempt.id]
    grants = parts(ledger.connection, [one.id for one in own]).values()
    for role in specs(ledger.connection, [attempt.job])[attempt.job].roles:
        if any(one.allocation.part.role == role.name for one in added):
            ranks = sum(sum(part.ranks) for part in grants if part.role == role.name)
            part = next(part for part in grants if part.role == role.name)
            replicas = ranks // ranks_per_replica(part, role.options[part.option])
            told = AttemptResizedEvent(role=role.name, replicas=replicas, reason=f"{by} adopted what it has since")
            ledger.event(told, job=attempt.job, attempt=attempt.id)


def _require_room(connection: sa.Connection, held: Sequence[Attestation], room: Mapping[NodeName, int]) -> None:
    """Refuses what runs on nodes that the store has given to others meanwhile."""
    cluster = held[0].attempt.cluster
    left = dict(room)
    known = [one.id for one in live_allocations(connection) if one.cluster == cluster]
    for part in (*parts(connection, known).values(), *(one.allocation.part for one in held)):
        for node, milli in zip(part.nodes, part.chip_milli, strict=True):
            left[node] = left.get(node, 0) - milli
    for one in held:
        for node in one.allocation.part.nodes:
            if left[node] < 0:
                got = f"node {node} of {cluster}, which the store has given to others"
                raise Conflict(_ATTEMPTED, on=one.allocation.id, got=got, next_step="ms restore --end")


def recall_agents(
    ledger: StateWriter, attempt: AttemptRecord, everyone: Sequence[int], told: Mapping[int, str]
) -> None:
    """Writes what a lead's word tells of its attempt's agents: where it is itself; that all came before one led.

    Args:
        told: Addresses that are known, by agent; those of others are once they register again.
    """
    connection, own = ledger.connection, agents.c.attempt_id == attempt.id
    if attempt.epoch == 0:
        told = dict.fromkeys(everyone, "") | dict(told)
        late = (allocations.c.attempt_id == attempt.id, allocations.c.came_s.is_(None))
        connection.execute(sa.update(allocations).where(*late).values(came_s=ledger.now_s))
    for some in chunks(told):
        connection.execute(sa.delete(agents).where(own, agents.c.agent.in_(some)))
        rows = [{"attempt_id": attempt.id, "agent": agent, "address": told[agent]} for agent in some]
        connection.execute(sa.insert(agents), rows)
