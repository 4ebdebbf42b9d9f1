"""Steering: what people say of jobs that are there. Specs stay as they are; what is said is kept beside them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import final

import sqlalchemy as sa

from mainspring.control.service.steering.pausing import new_hold, same_hold
from mainspring.control.service.submits import array_of
from mainspring.control.service.views import find_job
from mainspring.control.state.active_state import in_line_since_s
from mainspring.control.store.audit import note
from mainspring.control.store.ledger import StateWriter, StopCause
from mainspring.control.store.records import JOB_ROWS, JobRecord, attempts_of, jobs_of_array, specs, text_of
from mainspring.control.store.schema import attempts, jobs
from mainspring.control.store.store import Store
from mainspring.control.store.tokens import LAB_ITSELF, Caller
from mainspring.domain.answers import JobView, NewHold, NewPriority, NewSize, QueuePlace, Reason
from mainspring.domain.errors import Conflict, InvalidInput, MainspringError, NotFound, nearest
from mainspring.domain.ids import JobId
from mainspring.domain.job import JobSpec, Overrides, Size
from mainspring.domain.life import AttemptState, JobState, ended
from mainspring.domain.ports import Clock
from mainspring.domain.team import Right
from mainspring.domain.wire.events import AnyEvent
from mainspring.domain.wire.events.jobs import (
    JobPausedEvent,
    JobRankedEvent,
    JobResizedEvent,
    JobResumedEvent,
    StacksAskedEvent,
)

STEP_S = 1e-3  # Between two places in a line; a hundred times what a float tells apart in our days.
_NOTHING = Overrides()
# Made once: whoever ranks a job holds up all others who write.
_OTHERS = (
    jobs.c.team == sa.bindparam("team"),
    jobs.c.state == JobState.QUEUED.value,
    jobs.c.id != sa.bindparam("own"),
    sa.func.coalesce(jobs.c.array_id, "") != sa.bindparam("array"),
)
_PLAIN = sa.select(sa.func.min(jobs.c.submitted_s), sa.func.max(jobs.c.submitted_s)).where(
    *_OTHERS, jobs.c.overrides.is_(None)
)
_SAID = JOB_ROWS.select.where(*_OTHERS, jobs.c.overrides.is_not(None))
_SAY = sa.update(jobs).where(jobs.c.id == sa.bindparam("of")).values(overrides=sa.bindparam("said"))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Change:
    """What is said of one job, and how that is told."""

    job: JobRecord
    after: Overrides
    told: AnyEvent


@final
class Steering:
    """What may be said of jobs. Used by many threads.

    Args:
        view: Shows a job.
        wake: Told that there is something to plan.
        impossible: Tells why no cluster could ever run a spec, None where one could.
    """

    def __init__(
        self,
        store: Store,
        clock: Clock,
        view: Callable[[JobId, Caller], JobView],
        wake: Callable[[], None],
        *,
        impossible: Callable[[JobSpec], MainspringError | None],
    ) -> None:
        self._store = store
        self._clock = clock
        self._view = view
        self._wake = wake
        self._impossible = impossible

    def stop(self, reference: str, caller: Caller = LAB_ITSELF, *, array: bool = False, reason: str = "") -> JobView:
        """Asks a job to end, and returns it as it is then; one that ends or has ended stays as it is.

        Args:
            reference: Its id or name.
            caller: Its owner, or somebody who sees to its team.
            array: Whether all jobs of its array shall end.
            reason: Why, for people.

        Raises:
            NotFound: No such job, or it belongs to no array.
            NotAllowed: The caller may not.
        """
        now_s, by = self._clock.now_s(), f"{caller}: {reason}" if reason else str(caller)
        words = f"cancelled by {by}"
        with self._store.write() as connection:
            job = find_job(connection, reference, caller)
            caller.require(connection, Right.STOP_JOBS, job.team, owner=job.owner)
            attempted = "stop an array" if array else "stop a job"
            target = f"{job.id}: {reason}" if reason else job.id
            note(connection, caller, attempted, target, team=job.team, now_s=now_s)
            ledger = StateWriter(connection, now_s)
            wanted = jobs_of_array(connection, array_of(job)) if array else (job,)
            ledger.cancel_queued([one for one in wanted if one.state is JobState.QUEUED], by)
            running = [one for one in wanted if one.state in (JobState.STARTING, JobState.RUNNING)]
            own = attempts_of(connection, [one.id for one in running])
            for one in running:
                ledger.move_job(one, JobState.STOPPING, words)
                ledger.stop_attempt(own[one.id][-1], StopCause.CANCEL, words)
        self._wake()
        return self._view(job.id, caller)

    def pause(self, reference: str, asked: NewHold, caller: Caller = LAB_ITSELF, *, array: bool = False) -> JobView:
        """Keeps a job from running: an attempt of it ends, saved, and none starts until it is resumed.

        Args:
            reference: Its id or name.
            caller: Its owner, or somebody who sees to its team.
            array: Whether all jobs of its array are meant.

        Raises:
            NotFound: No such job, or it belongs to no array.
            NotAllowed: The caller may not.
            Conflict: It ends, or has ended.
        """
        hold = new_hold(NewHold(reason=asked.reason, drain=True), caller, self._clock.now_s())
        told = JobPausedEvent(by=hold.by, reason=hold.reason)
        with self._store.write() as connection:
            of = _wanted(connection, "pause a job", reference, caller, Right.STEER_JOBS, array=array)
            changes = [
                _Change(job=one, after=replace(one.overrides or _NOTHING, paused=hold), told=told)
                for one in of.every
                if one.overrides is None or one.overrides.paused is None or not same_hold(one.overrides.paused, hold)
            ]
            self._say(connection, changes, caller, "pause a job", hold.reason)
        self._wake()
        return self._view(of.named.id, caller)

    def resume(self, reference: str, caller: Caller = LAB_ITSELF, *, array: bool = False) -> JobView:
        """Lets a paused job run again: it is queued where its time in line puts it.

        Args:
            reference: Its id or name.
            caller: Its owner, or somebody who sees to its team.
            array: Whether all jobs of its array are meant.

        Raises:
            NotFound: No such job, or it belongs to no array.
            NotAllowed: The caller may not.
            Conflict: It ends, or has ended.
        """
        with self._store.write() as connection:
            of = _wanted(connection, "resume a job", reference, caller, Right.STEER_JOBS, array=array)
            changes = [
                _Change(job=one, after=replace(one.overrides, paused=None), told=JobResumedEvent(by=str(caller)))
                for one in of.every
                if one.overrides is not None and one.overrides.paused is not None
            ]
            self._say(connection, changes, caller, "resume a job")
        self._wake()
        return self._view(of.named.id, caller)

    def requeue(self, reference: str, caller: Caller = LAB_ITSELF, *, array: bool = False, reason: str = "") -> JobView:
        """Ends the attempt of a job, saved, and queues the job again; one that waits goes on waiting.

        Args:
            reference: Its id or name.
            caller: Its owner, or somebody who sees to its team.
            array: Whether all jobs of its array are meant.
            reason: Why, for people.

        Raises:
            NotFound: No such job, or it belongs to no array.
            NotAllowed: The caller may not.
            Conflict: It ends, or has ended: it does not come back.
        """
        now_s, words = self._clock.now_s(), f"requeued by {caller}" + (f": {reason}" if reason else "")
        with self._store.write() as connection:
            of = _wanted(connection, "requeue a job", reference, caller, Right.STEER_JOBS, array=array)
            ledger = StateWriter(connection, now_s)
            own = attempts_of(connection, [one.id for one in of.every if one.state is not JobState.QUEUED])
            for job in own:
                if own[job][-1].state is not AttemptState.STOPPING:
                    ledger.stop_attempt(own[job][-1], StopCause.REQUEUE, words)
            note(connection, caller, "requeue a job", f"{of.named.id}: {words}", team=of.named.team, now_s=now_s)
        self._wake()
        return self._view(of.named.id, caller)

    def ask_stacks(self, reference: str, asked: Reason, caller: Caller = LAB_ITSELF) -> JobView:
        """Asks where the ranks of a job stand; its lead tells so by events, some seconds later.

        Args:
            reference: Its id or name.
            caller: Its owner, or somebody who sees to its team.

        Raises:
            NotFound: No such job.
            NotAllowed: The caller may not.
            Conflict: None of its ranks run.
        """
        now_s, tried = self._clock.now_s(), "ask where ranks stand"
        with self._store.write() as connection:
            job = _wanted(connection, tried, reference, caller, Right.STEER_JOBS, array=False).named
            own = attempts_of(connection, [job.id]).get(job.id, [])
            if not own or own[-1].state is not AttemptState.RUNNING:
                raise Conflict(tried, on=job.id, got=f"one that is {job.state.value}", wanted="one whose ranks run")
            asks = attempts.c.stacks_asked + 1
            connection.execute(sa.update(attempts).where(attempts.c.id == own[-1].id).values(stacks_asked=asks))
            told = StacksAskedEvent(by=str(caller), reason=asked.reason)
            StateWriter(connection, now_s).event(told, job=job.id, attempt=own[-1].id)
            note(connection, caller, tried, f"{job.id}: {asked.reason}", team=job.team, now_s=now_s)
        return self._view(job.id, caller)

    def rank(self, reference: str, asked: NewPriority, caller: Caller = LAB_ITSELF, *, array: bool = False) -> JobView:
        """Gives a job another tier, another place among those of its team and tier that wait, or both.

        Args:
            reference: Its id or name.
            caller: Somebody who sees to its team.
            array: Whether all jobs of its array are meant.

        Raises:
            NotFound: No such job, or it belongs to no array.
            NotAllowed: The caller may not.
            Conflict: It ends, or has ended.
        """
        by = str(caller)
        with self._store.write() as connection:
            of = _wanted(connection, "change a job's priority", reference, caller, Right.RANK_JOBS, array=array)
            others = _in_line(connection, of.named, array=array)
            changes = []
            for one in of.every:
                known = one.overrides or _NOTHING
                since_s = known.since_s if asked.place is None else _since_s(one, asked.place, others)
                after = replace(known, tier=asked.tier or known.tier, since_s=since_s)
                told = JobRankedEvent(by=by, tier=after.tier, since_s=after.since_s, reason=asked.reason)
                changes += [_Change(job=one, after=after, told=told)] if after != known else []
            self._say(connection, changes, caller, "change a job's priority", asked.reason)
        self._wake()
        return self._view(of.named.id, caller)

    def resize(self, reference: str, asked: NewSize, caller: Caller = LAB_ITSELF, *, array: bool = False) -> JobView:
        """Gives a role of a job another number of replicas, from its next start on; an elastic one that runs, at once.

        Args:
            reference: Its id or name.
            caller: Its owner, or somebody who sees to its team.
            array: Whether all jobs of its array are meant.

        Raises:
            NotFound: No such job or role, or it belongs to no array.
            NotAllowed: The caller may not.
            Conflict: It ends, or has ended.
            InvalidInput: The role cannot have so many.
            ImpossibleJob: No cluster could ever run it.
        """
        told = JobResizedEvent(by=str(caller), role=asked.role, least=asked.least, most=asked.most, reason=asked.reason)
        with self._store.write() as connection:
            of = _wanted(connection, "resize a job", reference, caller, Right.STEER_JOBS, array=array)
            spec = specs(connection, [of.named.id])[of.named.id]
            changes = []
            for one in of.every:
                after = _resized(spec, one, asked)
                changes += [_Change(job=one, after=after, told=told)] if after != one.overrides else []
            for size in {each.after.sizes: None for each in changes}:
                if (error := self._impossible(spec.sized(size))) is not None:
                    raise error
            self._say(connection, changes, caller, "resize a job", asked.reason)
        self._wake()
        return self._view(of.named.id, caller)

    def _say(
        self, connection: sa.Connection, changes: Sequence[_Change], caller: Caller, action: str, words: str = ""
    ) -> None:
        """Writes what is said of some jobs, and tells of it."""
        if not changes:
            return
        now_s, first = self._clock.now_s(), changes[0].job
        rows = [
            {"of": each.job.id, "said": None if each.after == _NOTHING else text_of(each.after)} for each in changes
        ]
        connection.execute(_SAY, rows)
        StateWriter(connection, now_s).tell_each([each.job.id for each in changes], [each.told for each in changes])
        many = f" and {len(changes) - 1} more of its array" if len(changes) > 1 else ""
        target = first.id + many + (f": {words}" if words else "")
        note(connection, caller, action, target, team=first.team, now_s=now_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Wanted:
    """Who is spoken of: the job that was named, and those of its array that have not ended, if all of it is meant."""

    named: JobRecord
    every: Sequence[JobRecord]


def _wanted(
    connection: sa.Connection, attempted: str, reference: str, caller: Caller, right: Right, *, array: bool
) -> _Wanted:
    job = find_job(connection, reference, caller)
    caller.require(connection, right, job.team, owner=job.owner)
    every = jobs_of_array(connection, array_of(job)) if array else (job,)
    left = [one for one in every if one.state is not JobState.STOPPING and not ended(one.state)]
    if not left and not array:
        raise Conflict(
            attempted,
            on=job.id,
            got=f"one that is {job.state.value}",
            wanted="one that waits or runs",
            next_step=f"ms run --again {job.id} submits its spec once more" if ended(job.state) else "wait for its end",
        )
    return _Wanted(named=job, every=left)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Line:
    """From when on the first and the last job of a team have waited; None where none waits."""

    first_s: float | None
    last_s: float | None


def _in_line(connection: sa.Connection, job: JobRecord, *, array: bool) -> _Line:
    """Returns how long the other jobs of a team have waited.

    Args:
        job: Who is left out, with its array if all of it is meant.
    """
    others = {"team": job.team, "own": job.id, "array": job.array if array else "-"}  # No array is called so.
    times = [at_s for at_s in connection.execute(_PLAIN, others).one() if at_s is not None]
    times += [in_line_since_s(one) for one in JOB_ROWS.read(connection, _SAID, **others)]
    return _Line(first_s=min(times, default=None), last_s=max(times, default=None))


def _since_s(job: JobRecord, place: QueuePlace, others: _Line) -> float | None:
    """Returns from when on a job is to count as waiting, None for since it was submitted."""
    now_s = in_line_since_s(job)
    match place:
        case QueuePlace.SUBMITTED:
            return None
        case QueuePlace.FIRST:
            return now_s if others.first_s is None else min(now_s, others.first_s - STEP_S)
        case QueuePlace.LAST:
            return now_s if others.last_s is None else max(now_s, others.last_s + STEP_S)


def _resized(spec: JobSpec, job: JobRecord, asked: NewSize) -> Overrides:
    """Returns what is said of a job with another size of a role.

    Raises:
        NotFound: It has no such role.
        InvalidInput: The role cannot have so many replicas, or its options have different numbers.
    """
    role = next((role for role in spec.roles if role.name == asked.role), None)
    if role is None:
        roles = [role.name for role in spec.roles]
        raise NotFound("resize a job", on=f"role {asked.role!r} of {job.id}", wanted=nearest(asked.role, roles))
    sizes = {(option.replicas_min, option.replicas): None for option in role.options}
    if len(sizes) > 1:
        got = " or ".join(f"{least} to {most} replicas" for least, most in sizes)
        next_step = f"ms run --again {job.id} with options of its own"
        raise InvalidInput("resize a job", on=f"role {role.name}", got=got, wanted="one size", next_step=next_step)
    ((spec_least, spec_most),) = sizes
    known = job.overrides or _NOTHING
    before = next((size for size in known.sizes if size.role == role.name), None)
    size = Size(
        role=role.name,
        least=asked.least,
        most=asked.most,
        fewest=min(asked.least, spec_least if before is None else before.fewest),
        spec_least=spec_least,
        spec_most=spec_most,
    )
    sizes_after = tuple(
        sorted((*(one for one in known.sizes if one.role != role.name), size), key=lambda one: one.role)
    )
    after = replace(known, sizes=sizes_after)
    spec.with_overrides(after)  # Raises where the role cannot have so many.
    spec.sized(after.fewest())
    return after
