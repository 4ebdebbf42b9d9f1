"""A tick's step for services: what their replicas told, what is decided for each, and writing that."""

from __future__ import annotations

from dataclasses import replace
from typing import final

import sqlalchemy as sa

from mainspring.control.loop.services.deciding import Decision, ReplicaSeen, decide
from mainspring.control.loop.services.load import Load
from mainspring.control.store.ledger import StateWriter, StopCause
from mainspring.control.store.records import attempts_of, text_of
from mainspring.control.store.services.records import (
    ENDED_KEPT,
    ReplicaRecord,
    Service,
    add_replica,
    every_service,
    forget_replicas,
    replicas_of,
    write_service,
)
from mainspring.domain.answers import Submit
from mainspring.domain.ids import JobId, draw_id
from mainspring.domain.life import JobState, ended
from mainspring.domain.ports import Dice
from mainspring.domain.wire.events.jobs import ServiceChangedEvent

HEARD_S = 10.0  # A replica of which nothing was heard for so long is given no requests: ten of its reports.


@final
class ServiceStep:
    """Keeps services as they are wanted, tick by tick.

    Args:
        dice: Draws the ids of jobs.
    """

    def __init__(self, dice: Dice) -> None:
        self._dice = dice
        self._loads: dict[str, Load] = {}
        self._ready_s: dict[JobId, float] = {}
        self._since_s: float | None = None  # Before that nobody here listened, and silence says nothing.

    def write(self, connection: sa.Connection, now_s: float) -> None:
        """Writes what follows now.

        Args:
            connection: From `Store.write`, of the leader.
        """
        self._since_s = now_s if self._since_s is None else self._since_s
        known = every_service(connection)
        self._loads = {one.name: self._loads.get(one.name) or Load() for one in known}
        ready_s: dict[JobId, float] = {}
        for service in known:
            records = replicas_of(connection, service.name)
            seen = [self._seen(one, now_s) for one in records]
            ready_s |= {one.job: one.ready_s for one in seen if one.ready_s is not None}
            load = self._loads[service.name]
            load.add(sum(one.serving.in_flight for one in records if one.serving is not None), now_s)
            wanted = load.wanted(service.scale, service.wanted, now_s)
            decided = decide(replace(service, wanted=wanted), seen, now_s)
            _carry_out(connection, service, decided, records, self._dice, now_s)
        self._ready_s = ready_s

    def _seen(self, record: ReplicaRecord, now_s: float) -> ReplicaSeen:
        job, serving, silent_s = record.job, record.serving, record.silent_s(now_s)
        if silent_s is not None and self._since_s is not None:
            silent_s = min(silent_s, record.told_silent_s + now_s - self._since_s)
        ready = is_ready(record, now_s)
        return ReplicaSeen(
            job=job.id,
            version=record.version,
            state=job.state,
            made_s=job.submitted_s,
            ended_s=job.ended_s,
            granted_s=record.granted_s,
            ready_s=self._ready_s.get(job.id, now_s) if ready else None,
            silent_s=silent_s,
            answered=0 if serving is None else serving.answered,
            missed=0 if serving is None else serving.missed,
            reason=job.reason,
            asked=record.asked,
        )


def is_ready(record: ReplicaRecord, now_s: float) -> bool:
    """Returns whether a replica answers, as far as one knows."""
    silent_s, serving = record.silent_s(now_s), record.serving
    runs = record.job.state is JobState.RUNNING
    return runs and serving is not None and serving.ready and silent_s is not None and silent_s < HEARD_S


def start_replica(ledger: StateWriter, service: Service, dice: Dice) -> JobId:
    """Makes a job of a service's version, and returns its id."""
    job, spec = JobId(draw_id("job", dice)), service.version.spec
    ledger.submit([(Submit(spec=spec), text_of(spec), (job,))], owner=service.owner)
    add_replica(ledger.connection, service.name, service.version.number, job)
    return job


def stop_replicas(ledger: StateWriter, records: dict[JobId, ReplicaRecord], why: dict[JobId, str]) -> None:
    """Stops some replicas.

    Args:
        why: By job, in words.
    """
    own = attempts_of(ledger.connection, list(why))
    for job, words in why.items():
        record = records[job].job
        if record.state is JobState.QUEUED:
            ledger.cancel_queued([record], words)
        elif record.state in (JobState.STARTING, JobState.RUNNING):
            ledger.move_job(record, JobState.STOPPING, words)
            ledger.stop_attempt(own[job][-1], StopCause.CANCEL, words)


def _carry_out(
    connection: sa.Connection,
    before: Service,
    decided: Decision,
    records: tuple[ReplicaRecord, ...],
    dice: Dice,
    now_s: float,
) -> None:
    ledger = StateWriter(connection, now_s)
    service = decided.service
    if service != before:
        write_service(connection, service)
        for words in _changes(before, service):
            ledger.event(ServiceChangedEvent(service=service.name, change=words), job=None)
    stop_replicas(ledger, {one.job.id: one for one in records}, dict(decided.stop))
    if decided.start:
        start_replica(ledger, service, dice)
    over = [one.job.id for one in records if ended(one.job.state)]
    if len(over) > ENDED_KEPT:
        forget_replicas(connection, over[:-ENDED_KEPT])


def _changes(before: Service, after: Service) -> list[str]:
    words = [after.reason] if after.reason != before.reason else []
    if after.wanted != before.wanted:
        words.append(f"from {before.wanted} to {after.wanted} replicas, for the requests under way")
    return words
