"""Event emitter: what happened in a replay, as the events that the real controller would have written.

A step is a second of work, so that `control.accounting` folds these events as it folds those of a live lab.
"""

from __future__ import annotations

import json
from collections.abc import Callable

from mainspring.domain.answers import Event
from mainspring.domain.codec import to_plain
from mainspring.domain.ids import AttemptId, JobId
from mainspring.domain.job import JobSpec
from mainspring.domain.life import JOB_MOVES, AttemptState, JobState, moved
from mainspring.domain.wire.events import AnyEvent
from mainspring.domain.wire.events.attempts import AttemptEndedEvent, AttemptGrantedEvent
from mainspring.domain.wire.events.jobs import JobMovedEvent, JobSubmittedEvent, StopRequestedEvent
from mainspring.domain.wire.events.leads import (
    CaughtUpEvent,
    GenerationPreparingEvent,
    GenerationResumedEvent,
    GenerationSteppingEvent,
    LeadEndedEvent,
    RankExitedEvent,
)
from mainspring.simulator.virtual.attempts import AttemptRun, JobRun

Tell = Callable[[Event], None]


def step_of(work_s: float) -> int:
    """Returns the last step finished when an amount of work is done; -1 for none.

    Args:
        work_s: Work, in seconds at full size.
    """
    return int(work_s) - 1


class EventEmitter:
    """Tells events, numbered in the order they happen; tells nothing when nobody listens.

    Args:
        tell: Takes each event, or None.
    """

    def __init__(self, tell: Tell | None) -> None:
        self.listened_to = tell is not None
        self._tell = tell
        self._sequence = 0
        self._roles: dict[int, tuple[object, str]] = {}

    def _of_job(self, now_s: float, job: JobRun, told: AnyEvent) -> None:
        self._event(now_s, told, job.trace.job, None)

    def _of(self, now_s: float, run: AttemptRun, told: AnyEvent) -> None:
        self._event(now_s, told, run.job.trace.job, run.attempt)

    def _event(self, now_s: float, told: AnyEvent, job: JobId, attempt: AttemptId | None) -> None:
        if self._tell is not None:
            self._sequence += 1
            self._tell(
                Event(
                    sequence=self._sequence,
                    time_s=now_s,
                    kind=told.kind,
                    job=job,
                    attempt=attempt,
                    detail=told.detail,
                )
            )

    def submitted(self, now_s: float, job: JobRun) -> None:
        """Tells that a job was submitted, and what it asks for."""
        if self.listened_to:
            self._of_job(now_s, job, self._asked(job.trace.spec))

    def _asked(self, spec: JobSpec) -> JobSubmittedEvent:
        known = self._roles.get(id(spec.roles))
        if known is None:
            known = self._roles[id(spec.roles)] = (spec.roles, json.dumps(to_plain(spec.roles), separators=(",", ":")))
        return JobSubmittedEvent(
            name=spec.name,
            team=spec.team,
            tier=spec.tier,
            duration_s=spec.duration_s,
            attempts_max=spec.attempts_max,
            roles=known[1],
            after=" ".join(spec.after) or None,
            inputs=" ".join(spec.inputs) or None,
        )

    def move(self, now_s: float, job: JobRun, after: JobState, reason: str) -> None:
        """Moves a job along its life cycle, and tells so."""
        before = job.state
        job.state = moved(JOB_MOVES, before, after, job.trace.job)
        if self.listened_to:
            self._of_job(now_s, job, JobMovedEvent(before=before, after=after, reason=reason))

    def granted(self, now_s: float, run: AttemptRun, plan: int) -> None:
        """Tells that an attempt was granted, and that its ranks start.

        Args:
            plan: Number of the plan that granted it.
        """
        if not self.listened_to:
            return
        told = AttemptGrantedEvent(
            cluster=run.grants[0].cluster,
            nodes=sum(len(grant.nodes) for grant in run.grants),
            plan=plan,
            number=run.number,
            step=step_of(run.job.furthest_s),
        )
        self._of(now_s, run, told)
        self._resumed(now_s, run)

    def resized(self, now_s: float, run: AttemptRun, reason: str) -> None:
        """Tells that an elastic attempt changes its size.

        Args:
            run: The attempt, as it is from now on.
        """
        if self.listened_to:
            self._of(now_s, run, GenerationPreparingEvent(generation=run.generation, cause=reason))
            self._resumed(now_s, run)

    def _resumed(self, now_s: float, run: AttemptRun) -> None:
        step = step_of(run.course.work_s)
        self._of(
            now_s, run, GenerationResumedEvent(generation=run.generation, step=step, source="" if step < 0 else "store")
        )

    def stepping(self, now_s: float, run: AttemptRun) -> None:
        """Tells that a generation made its first step."""
        self._of(now_s, run, GenerationSteppingEvent(generation=run.generation, step=step_of(run.course.work_s) + 1))

    def caught_up(self, now_s: float, run: AttemptRun) -> None:
        """Tells that an attempt passed what earlier ones did."""
        self._of(now_s, run, CaughtUpEvent(generation=run.generation, step=step_of(run.course.furthest_s) + 1))

    def stop_requested(self, now_s: float, run: AttemptRun, reason: str) -> None:
        """Tells that an attempt was asked to end, and that its ranks did."""
        self._of(now_s, run, StopRequestedEvent(by=reason))
        self.lead_ended(now_s, run, AttemptState.CANCELLED, reason)

    def failed(self, now_s: float, run: AttemptRun, reason: str) -> None:
        """Tells that an attempt lost a node under it."""
        told = RankExitedEvent(
            generation=run.generation, rank=0, exit_code=-9, step=step_of(run.course.work_at(now_s)), last_words=reason
        )
        self._of(now_s, run, told)

    def lead_ended(self, now_s: float, run: AttemptRun, outcome: AttemptState, reason: str) -> None:
        """Tells that an attempt's ranks are gone."""
        if self.listened_to:
            work_s = run.course.work_at(now_s)  # At full size on the first option: what a trace tells of a job.
            self._of(now_s, run, LeadEndedEvent(outcome=outcome, reason=reason, step=step_of(work_s), work_s=work_s))

    def ended(self, now_s: float, run: AttemptRun, outcome: AttemptState, reason: str) -> None:
        """Tells that an attempt gave back all it held."""
        self._of(now_s, run, AttemptEndedEvent(outcome=outcome, reason=reason))
