"""Writes facts inside one transaction: states move along the tables of `domain.life`, and every move is an event.

Decides how one move drags others along (a stopped attempt stops its allocations) and how an attempt's end settles its
job; when to move what is decided by `loop`, `agents` and `control`, and what a grant writes by `granting`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum

import sqlalchemy as sa

from mainspring.control.store import tallies
from mainspring.control.store.evidence import LostAttempt, counted, first_error, losses_of
from mainspring.control.store.holdings import KEPT, AllocationRecord, live_allocations_of
from mainspring.control.store.records import JOB_ROWS, AttemptRecord, JobRecord, add_rows, chunks, member_name, text_of
from mainspring.control.store.schema import REASON_LENGTH_MAX, agents, allocations, attempts, events, jobs
from mainspring.domain.answers import Submit
from mainspring.domain.codec import alike
from mainspring.domain.fleet import NodeRef
from mainspring.domain.ids import AllocationId, AttemptId, JobId, NodeName, TeamName
from mainspring.domain.life import (
    ALLOCATION_MOVES,
    ATTEMPT_MOVES,
    JOB_MOVES,
    AllocationState,
    AttemptState,
    JobState,
    ended,
    moved,
)
from mainspring.domain.plan import Limit
from mainspring.domain.wire import LeadEvent
from mainspring.domain.wire.events import AnyEvent
from mainspring.domain.wire.events.attempts import (
    AllocationPlacedEvent,
    AllocationQueuedEvent,
    AllocationTakenEvent,
    AttemptEndedEvent,
    AttemptStoppingEvent,
    NodeBlamedEvent,
)
from mainspring.domain.wire.events.jobs import JobMovedEvent, JobSubmittedEvent, StopRequestedEvent


class StopCause(str, Enum):
    """Why an attempt was asked to stop."""

    OUTCOME = "outcome"
    CANCEL = "cancel"
    EVICT = "evict"
    RESIZE = "resize"  # To run again with more or fewer replicas.
    HOLD = "hold"  # Somebody paused it, or drains where it is.
    REQUEUE = "requeue"  # Somebody wants it to start anew.
    LOST = "lost"
    TAKEN = "taken"  # Its cluster took it back.
    REFUSED = "refused"  # What it is to be given is gone: a secret.
    FENCED = "fenced"  # Its cluster was given up; what may still run there no longer counts.


# By a plan, by people, or by the cluster: the job is queued again, and nothing is held against it.
DISPLACED = (StopCause.EVICT, StopCause.RESIZE, StopCause.HOLD, StopCause.REQUEUE, StopCause.TAKEN)
_OWN_END = (AttemptState.LOST, AttemptState.CANCELLED)  # Outcomes by which a lead may tell of a cluster's doing.
_ASKED = (StopCause.CANCEL, *DISPLACED)


@dataclass(frozen=True, slots=True, kw_only=True)
class Conclusion:
    """How an attempt ended, and what becomes of its job."""

    attempt: AttemptState
    job: JobState


def conclude(
    *,
    job: JobState,
    outcome: AttemptState | None,
    cause: StopCause,
    lost_before: int,
    attempts_max: int,
    spared: bool = False,
) -> Conclusion:
    """Returns what the end of an attempt means.

    What the lead said counts first; then what people asked for; then what the plan asked for. What is left was lost.
    Losses count against `attempts_max`, but for those of whole clusters: no job can help them.

    Args:
        job: The job's state.
        outcome: What the lead reported, None when it said nothing.
        cause: Why the attempt was stopped.
        lost_before: Earlier attempts of the job that were lost, and count.
        attempts_max: Losses after which the job fails.
        spared: Whether a program's own word is held against the node it came from: then the job is tried again.
    """
    if outcome is AttemptState.SUCCEEDED:
        return Conclusion(attempt=AttemptState.SUCCEEDED, job=JobState.SUCCEEDED)
    failed = outcome is AttemptState.FAILED and cause is StopCause.OUTCOME
    if failed and not spared:
        return Conclusion(attempt=AttemptState.FAILED, job=JobState.FAILED)
    if job is JobState.STOPPING:
        return Conclusion(attempt=AttemptState.CANCELLED, job=JobState.CANCELLED)
    if cause is StopCause.REFUSED:
        return Conclusion(attempt=AttemptState.FAILED, job=JobState.FAILED)
    if cause in DISPLACED:
        return Conclusion(attempt=AttemptState.CANCELLED, job=JobState.QUEUED)
    if failed:
        return Conclusion(attempt=AttemptState.FAILED, job=JobState.QUEUED)
    again = cause is StopCause.FENCED or lost_before + 1 < attempts_max
    return Conclusion(attempt=AttemptState.LOST, job=JobState.QUEUED if again else JobState.FAILED)


def clipped(text: str) -> str:
    """Returns text short enough for a column, without the NULs that some databases refuse.

    Args:
        text: From an engine, a lead or a program.
    """
    return text.replace("\0", "")[:REASON_LENGTH_MAX]


class StateWriter:
    """The moves of one transaction.

    Args:
        connection: From `Store.write`.
        now_s: The time of everything written.
    """

    def __init__(self, connection: sa.Connection, now_s: float) -> None:
        self.connection = connection
        self.now_s = now_s

    def event(
        self,
        told: AnyEvent | LeadEvent,
        *,
        job: JobId | None,
        attempt: AttemptId | None = None,
        time_s: float | None = None,
    ) -> None:
        """Appends an event.

        Args:
            told: What happened; what a lead tells is kept as it told it.
            job: To which job, None for none.
            attempt: To which attempt, if to one.
            time_s: When it happened, if not now.
        """
        plain = {key: clipped(fact) if isinstance(fact, str) else fact for key, fact in told.detail.items()}
        self.connection.execute(
            sa.insert(events).values(
                time_s=self.now_s if time_s is None else time_s,
                kind=told.kind,
                job_id=job,
                attempt_id=attempt,
                detail=text_of(plain),
            )
        )

    def submit(self, made: Sequence[tuple[Submit, str, Sequence[JobId]]], *, owner: str = "") -> None:
        """Writes new jobs, queued. The text of an array's spec is written once, with its first job.

        Args:
            made: Each submit, its spec as text, and the ids of its jobs in order.
            owner: Who submits them.
        """
        known = JOB_ROWS.row({"state": JobState.QUEUED, "submitted_s": self.now_s, "owner": owner})
        rows: list[dict[str, object]] = []
        for submit, spec, ids in made:
            many = len(ids) > 1
            place = (ids[0], 0, len(ids)) if many else (None, None, None)
            own: dict[str, object] = dict(zip(("array_id", "array_index", "array_count"), place, strict=True))
            own |= {"id": ids[0], "spec": spec, "submit_key": submit.key or None, "code": submit.spec.code.tree or None}
            one = JOB_ROWS.row(alike(JobRecord, submit.spec, submit)) | known | own
            rows.append(one | {"name": member_name(submit.spec.name, 0)} if many else one)
            for index, job in enumerate(ids[1:], 1):
                other = {"id": job, "array_index": index, "name": member_name(submit.spec.name, index)}
                rows.append(one | other | {"spec": "", "submit_key": None, "code": None})
        add_rows(self.connection, jobs, rows)
        tallies.begin(self.connection, owner, rows)
        above = [submit.traceparent or None for submit, _, ids in made for _ in ids]
        told = [
            JobSubmittedEvent(name=str(row["name"]), team=TeamName(str(row["team"])), traceparent=parent)
            for row, parent in zip(rows, above, strict=True)
        ]
        self.tell_each([job for _, _, ids in made for job in ids], told)

    def cancel_queued(self, queued: Sequence[JobRecord], by: str) -> None:
        """Cancels jobs that wait, as many as there are, in a few statements.

        Args:
            queued: As they stand in this transaction.
        """
        after, reason = JobState.CANCELLED, f"cancelled by {by}"
        for some in chunks(queued):
            for job in some:
                moved(JOB_MOVES, job.state, after, job.id)
            wanted = [job.id for job in some]
            columns = {"state": after.value, "reason": clipped(reason), "ended_s": self.now_s}
            self.connection.execute(sa.update(jobs).where(jobs.c.id.in_(wanted)).values(columns))
            tallies.settle(self.connection, wanted, after)
            self.tell_each(wanted, [StopRequestedEvent(by=by)] * len(wanted))
            self.tell_each(wanted, [JobMovedEvent(before=JobState.QUEUED, after=after, reason=reason)] * len(wanted))

    def tell_each(
        self, of: Sequence[JobId], told: Sequence[AnyEvent], *, attempts_of: Sequence[AttemptId] = ()
    ) -> None:
        """Appends one event a job.

        Args:
            told: What happened to each.
            attempts_of: The attempt of each, if to attempts.
        """
        rows = [
            {
                "time_s": self.now_s,
                "kind": each.kind,
                "job_id": job,
                "attempt_id": attempts_of[place] if attempts_of else None,
                "detail": text_of(each.detail),
            }
            for place, (job, each) in enumerate(zip(of, told, strict=True))
        ]
        add_rows(self.connection, events, rows)

    def move_job(self, job: JobRecord, after: JobState, reason: str) -> None:
        """Moves a job.

        Args:
            job: As it stands in this transaction.
        """
        moved(JOB_MOVES, job.state, after, job.id)
        columns: dict[str, object] = {"state": after.value, "reason": clipped(reason)}
        if ended(after):
            columns["ended_s"] = self.now_s
            tallies.settle(self.connection, [job.id], after)
        self.connection.execute(sa.update(jobs).where(jobs.c.id == job.id).values(columns))
        self.event(JobMovedEvent(before=job.state, after=after, reason=reason), job=job.id)

    def run_attempt(self, attempt: AttemptRecord, job: JobRecord) -> None:
        """Notes that an attempt's lead lives.

        Args:
            job: Its job; one that is being cancelled stays so.
        """
        moved(ATTEMPT_MOVES, attempt.state, AttemptState.RUNNING, attempt.id)
        self._update_attempt(attempt.id, state=AttemptState.RUNNING.value)
        if job.state is JobState.STARTING:
            self.move_job(job, JobState.RUNNING, f"attempt {attempt.number} runs on {attempt.cluster}")

    def stop_attempt(
        self,
        attempt: AttemptRecord,
        cause: StopCause,
        reason: str,
        *,
        for_job: JobId | None = None,
        limit: Limit | None = None,
        node: NodeName | None = None,
    ) -> None:
        """Asks a live attempt to stop, and its allocations with it; one that stops already keeps its first cause.

        A stop that somebody asked for, a person or a plan, is an event: ranks that end after it did not fail.

        Args:
            attempt: As it stands in this transaction.
            for_job: Who gets what it gives up, if somebody does.
            limit: Which limit of that job's made the plan end it.
            node: Where the one agent of it was that ended, if one did.
        """
        if attempt.state is not AttemptState.STOPPING:
            moved(ATTEMPT_MOVES, attempt.state, AttemptState.STOPPING, attempt.id)
            self._update_attempt(
                attempt.id, state=AttemptState.STOPPING.value, stop_cause=cause.value, reason=clipped(reason)
            )
            stopping = AttemptStoppingEvent(cause=cause.value, reason=reason, node=node)
            self.event(stopping, job=attempt.job, attempt=attempt.id)
        if cause in _ASKED:
            asked = StopRequestedEvent(by=reason, for_job=for_job, limit=limit.value if limit is not None else None)
            self.event(asked, job=attempt.job, attempt=attempt.id)
        for allocation in live_allocations_of(self.connection, [attempt.id]):
            if allocation.state in KEPT:
                self.move_allocation(allocation, AllocationState.STOPPING)

    def move_allocation(self, allocation: AllocationRecord, after: AllocationState) -> None:
        """Moves an allocation; one that was granted and is gone already was launched in between.

        Args:
            allocation: As it stands in this transaction.
        """
        columns: dict[str, object] = {"state": after.value}
        before = allocation.state
        if before is AllocationState.GRANTED and after is AllocationState.GONE:
            before = moved(ALLOCATION_MOVES, before, AllocationState.LAUNCHED, allocation.id)
        moved(ALLOCATION_MOVES, before, after, allocation.id)
        if after is AllocationState.LAUNCHED:
            columns["launched_s"] = self.now_s
        if after is AllocationState.GONE and allocation.queued:
            self.leave_queue(allocation)
        if after is AllocationState.GONE and allocation.ended_s is None:
            began_s = self.now_s if allocation.queued else allocation.granted_s  # Out of a queue it was nowhere.
            columns["ended_s"] = max(self.now_s, began_s)
        self.connection.execute(sa.update(allocations).where(allocations.c.id == allocation.id).values(columns))
        if after is AllocationState.GONE:
            self.note_gone(allocation, range(allocation.nodes))

    def note_gone(self, allocation: AllocationRecord, places: Iterable[int]) -> None:
        """Notes that agents of an allocation are gone: their lead, told so, need not wait until they must be.

        Args:
            allocation: Whose, while it may still be stopping or go on with others.
            places: Theirs, among its nodes.
        """
        for some in chunks(places):
            numbers = [allocation.agent_first + place for place in some]
            own = (agents.c.attempt_id == allocation.attempt, agents.c.agent.in_(numbers))
            self.connection.execute(sa.update(agents).where(*own, sa.not_(agents.c.gone)).values(gone=True))

    def wait_in_queue(self, allocation: AllocationRecord, reason: str) -> None:
        """Notes what an allocation waits for in its cluster's own queue; nothing of it is held yet.

        Args:
            reason: The cluster's words, not "".
        """
        own = allocations.c.id == allocation.id
        self.connection.execute(sa.update(allocations).where(own).values(queued=reason))
        if not allocation.queued:
            queued = AllocationQueuedEvent(allocation=allocation.id, cluster=allocation.cluster, reason=reason)
            self._tell_of(allocation, queued)

    def leave_queue(self, allocation: AllocationRecord) -> None:
        """Notes that an allocation waits in its cluster's queue no longer: from now on it is counted as granted.

        Args:
            allocation: Which; nothing happens when it does not wait.
        """
        own = allocations.c.id == allocation.id
        left = sa.update(allocations).values(queued="", granted_s=self.now_s)
        if not self.connection.execute(left.where(own, allocations.c.queued != "")).rowcount:
            return
        held = (allocations.c.attempt_id == allocation.attempt, sa.func.coalesce(allocations.c.queued, "") == "")
        first_s = self.connection.execute(sa.select(sa.func.min(allocations.c.granted_s)).where(*held)).scalar_one()
        unled = (attempts.c.id == allocation.attempt, attempts.c.epoch == 0)
        self.connection.execute(sa.update(attempts).where(*unled).values(granted_s=first_s))
        self._tell_of(allocation, AllocationPlacedEvent(allocation=allocation.id))

    def note_hosts(self, allocation: AllocationRecord, hosts: Sequence[str]) -> None:
        """Notes the machines behind an allocation's nodes.

        Args:
            hosts: The machines, in the order of the nodes.
        """
        own = allocations.c.id == allocation.id
        self.connection.execute(sa.update(allocations).where(own).values(hosts=text_of(tuple(hosts))))

    def _tell_of(self, allocation: AllocationRecord, told: AnyEvent) -> None:
        of = attempts.c.id == allocation.attempt
        job = self.connection.execute(sa.select(attempts.c.job_id).where(of)).scalar_one()
        self.event(told, job=JobId(job), attempt=allocation.attempt)

    def take_back(self, allocation: AllocationRecord, reason: str) -> None:
        """Notes that its cluster took an allocation back; an attempt that ended of that has not failed.

        Args:
            reason: The cluster's words.
        """
        taken = AllocationTakenEvent(allocation=allocation.id, cluster=allocation.cluster, reason=reason)
        self._tell_of(allocation, taken)
        lost = attempts.c.stop_cause.in_([StopCause.LOST.value, StopCause.TAKEN.value])
        told = attempts.c.outcome.in_([outcome.value for outcome in _OWN_END])
        ended_of_it = (
            attempts.c.id == allocation.attempt,
            attempts.c.state == AttemptState.STOPPING.value,
            lost | (attempts.c.stop_cause == StopCause.OUTCOME.value) & told,
        )
        columns = {"stop_cause": StopCause.TAKEN.value, "reason": clipped(reason)}
        self.connection.execute(sa.update(attempts).where(*ended_of_it).values(columns))

    def lose_allocation(self, allocation: AllocationRecord) -> None:
        """Notes that an agent of an allocation ended otherwise than well."""
        self.connection.execute(sa.update(allocations).where(allocations.c.id == allocation.id).values(lost=True))

    def release_gone(self, attempt: AttemptId) -> None:
        """Notes that an attempt goes on without those of its allocations that are gone.

        Args:
            attempt: A live attempt; one of which all are gone keeps what it held last.
        """
        if live_allocations_of(self.connection, [attempt]):
            gone = (allocations.c.attempt_id == attempt, allocations.c.state == AllocationState.GONE.value)
            self.connection.execute(sa.update(allocations).where(*gone).values(released=True))

    def stop_taken(self, allocation: AllocationId) -> None:
        """Notes that an engine has taken a stop: what is absent from now on is gone."""
        self.connection.execute(
            sa.update(allocations).where(allocations.c.id == allocation).values(stopped_s=self.now_s)
        )

    def end_attempt(
        self,
        attempt: AttemptRecord,
        job: JobRecord,
        *,
        attempts_max: int,
        blamed: NodeName | None = None,
        spared: bool = False,
    ) -> Conclusion:
        """Ends an attempt whose allocations are all gone, or that is fenced, and settles its job.

        Args:
            attempt: A stopping attempt, as it stands in this transaction.
            attempts_max: Losses after which the job fails.
            blamed: The node that its end is held against, if it is one that was lost or failed.
            spared: Whether to try the job again although its program failed by its own word.
        """
        cause = StopCause(attempt.stop_cause)
        at = NodeRef(cluster=attempt.cluster, node=blamed) if blamed and cause is not StopCause.FENCED else None
        before = losses_of(self.connection, job.id, leaving_out=StopCause.FENCED.value)
        reason = attempt.reason
        if attempt.outcome is not AttemptState.SUCCEEDED and cause in (StopCause.LOST, StopCause.OUTCOME):
            reason = first_error(self.connection, attempt) or reason
        losses = (*before, LostAttempt(reason=reason, at=at))
        count = counted(losses, attempts_max=attempts_max)
        end = conclude(
            job=job.state,
            outcome=attempt.outcome,
            cause=cause,
            lost_before=count - 1,
            attempts_max=attempts_max,
            spared=spared and at is not None,
        )
        if end.attempt is not AttemptState.LOST:
            reason = attempt.reason
        moved(ATTEMPT_MOVES, attempt.state, end.attempt, attempt.id)
        ended_s = max(self.now_s, attempt.granted_s)
        self._update_attempt(attempt.id, state=end.attempt.value, ended_s=ended_s, reason=clipped(reason))
        for allocation in live_allocations_of(self.connection, [attempt.id]):
            if allocation.queued:
                self.leave_queue(allocation)  # Of a cluster that was given up.
        # A clock set back since it was granted lets none end before it began.
        at_s = sa.case((allocations.c.granted_s > ended_s, allocations.c.granted_s), else_=ended_s)
        held = (allocations.c.attempt_id == attempt.id, allocations.c.ended_s.is_(None))
        self.connection.execute(sa.update(allocations).where(*held).values(ended_s=at_s))
        self.connection.execute(sa.delete(agents).where(agents.c.attempt_id == attempt.id))
        if at is not None and end.attempt in (AttemptState.LOST, AttemptState.FAILED):
            again = end.job is JobState.QUEUED
            told = NodeBlamedEvent(cluster=at.cluster, node=at.node, outcome=end.attempt, reason=reason, again=again)
            self.event(told, job=job.id, attempt=attempt.id)
        self.event(AttemptEndedEvent(outcome=end.attempt, reason=reason), job=job.id, attempt=attempt.id)
        self.move_job(job, end.job, _verdict(end, losses, reason, attempt, count=count, attempts_max=attempts_max))
        return end

    def _update_attempt(self, attempt: AttemptId, **columns: object) -> None:
        self.connection.execute(sa.update(attempts).where(attempts.c.id == attempt).values(**columns))


def _verdict(
    end: Conclusion,
    losses: Sequence[LostAttempt],
    reason: str,
    attempt: AttemptRecord,
    *,
    count: int,
    attempts_max: int,
) -> str:
    """Returns the words on a job whose attempt has ended.

    Args:
        losses: The job's, this attempt among them if it was lost.
        count: How many of them count.
    """
    spared = len(losses) - count
    match end.job:
        case JobState.QUEUED if end.attempt is AttemptState.LOST:
            held = f", and {spared} held against {losses[-1].at.node}" if spared and losses[-1].at else ""
            told = "" if attempt.stop_cause == StopCause.FENCED else f" (loss {count} of {attempts_max}{held})"
            return f"attempt {attempt.number} was lost ({reason}); waiting to start again{told}"
        case JobState.QUEUED if end.attempt is AttemptState.FAILED:
            where = losses[-1].at.node if losses[-1].at is not None else "its node"
            return f"attempt {attempt.number} failed on {where}, where others were lost ({reason}); tried once more"
        case JobState.QUEUED:
            return f"attempt {attempt.number} gave up its place ({reason}); waiting to start again"
        case JobState.FAILED if end.attempt is AttemptState.LOST:
            nodes = {loss.at.node: None for loss in losses if loss.at is not None}
            several = f" on {len(nodes)} nodes" if len(nodes) > 1 else ""
            held = f", besides {spared} held against {', '.join(nodes)}" if spared else ""
            words = f"{count} attempts were lost{several}, and that is the most allowed{held}"
            return f"{words}; the first error: {losses[0].reason}"
        case _:
            return reason
