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
from mainspring.domain.wire import Detail, EventKind
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

    def _event(
        self, now_s: float, kind: EventKind, job: JobId, attempt: AttemptId | None = None, detail: Detail | None = None
    ) -> None:
        if self._tell is not None:
            self._sequence += 1
            self._tell(
                Event(sequence=self._sequence, time_s=now_s, kind=kind, job=job, attempt=attempt, detail=detail or {})
            )

    def submitted(self, now_s: float, job: JobRun) -> None:
        """Tells that a job was submitted, and what it asks for.

        Args:
            now_s: The time.
            job: The job.
        """
        if self.listened_to:
            self._event(now_s, EventKind.JOB_SUBMITTED, job.trace.job, None, self._asked(job.trace.spec))

    def _asked(self, spec: JobSpec) -> Detail:
        known = self._roles.get(id(spec.roles))
        if known is None:
            text = json.dumps(to_plain(spec.roles), separators=(",", ":"))
            known = self._roles[id(spec.roles)] = (spec.roles, text)
        detail: dict[str, str | int | float | bool] = {
            "name": spec.name, "team": spec.team, "tier": spec.tier.value, "duration_s": spec.duration_s,
            "attempts_max": spec.attempts_max, "roles": known[1],
        }  # fmt: skip
        if spec.after:
            detail["after"] = " ".join(spec.after)
        if spec.inputs:
            detail["inputs"] = " ".join(spec.inputs)
        return detail

    def move(self, now_s: float, job: JobRun, after: JobState, reason: str) -> None:
        """Moves a job along its life cycle, and tells so.

        Args:
            now_s: The time.
            job: The job.
            after: Its next state.
            reason: Why, for people.
        """
        before = job.state
        job.state = moved(JOB_MOVES, before, after, job.trace.job)
        if self.listened_to:
            detail = {"before": before.value, "after": after.value, "reason": reason}
            self._event(now_s, EventKind.JOB_MOVED, job.trace.job, None, detail)

    def granted(self, now_s: float, run: AttemptRun, plan: int) -> None:
        """Tells that an attempt was granted, and that its ranks start.

        Args:
            now_s: The time.
            run: The attempt.
            plan: Number of the plan that granted it.
        """
        if not self.listened_to:
            return
        job = run.job
        detail: Detail = {
            "cluster": run.grants[0].cluster,
            "nodes": sum(len(grant.nodes) for grant in run.grants),
            "plan": plan,
            "number": run.number,
            "step": step_of(job.furthest_s),
        }
        self._event(now_s, EventKind.ATTEMPT_GRANTED, job.trace.job, run.attempt, detail)
        self._resumed(now_s, run)

    def resized(self, now_s: float, run: AttemptRun, reason: str) -> None:
        """Tells that an elastic attempt changes its size.

        Args:
            now_s: The time.
            run: The attempt, as it is from now on.
            reason: Why, for people.
        """
        if self.listened_to:
            detail: Detail = {"generation": run.generation, "cause": reason}
            self._event(now_s, EventKind.GENERATION_PREPARING, run.job.trace.job, run.attempt, detail)
            self._resumed(now_s, run)

    def _resumed(self, now_s: float, run: AttemptRun) -> None:
        step = step_of(run.course.work_s)
        detail: Detail = {"generation": run.generation, "step": step, "source": "" if step < 0 else "store"}
        self._event(now_s, EventKind.GENERATION_RESUMED, run.job.trace.job, run.attempt, detail)

    def stepping(self, now_s: float, run: AttemptRun) -> None:
        """Tells that a generation made its first step.

        Args:
            now_s: The time.
            run: The attempt.
        """
        detail: Detail = {"generation": run.generation, "step": step_of(run.course.work_s) + 1}
        self._event(now_s, EventKind.GENERATION_STEPPING, run.job.trace.job, run.attempt, detail)

    def caught_up(self, now_s: float, run: AttemptRun) -> None:
        """Tells that an attempt passed what earlier ones did.

        Args:
            now_s: The time.
            run: The attempt.
        """
        detail: Detail = {"generation": run.generation, "step": step_of(run.course.furthest_s) + 1}
        self._event(now_s, EventKind.CAUGHT_UP, run.job.trace.job, run.attempt, detail)

    def stop_requested(self, now_s: float, run: AttemptRun, reason: str) -> None:
        """Tells that an attempt was asked to end, and that its ranks did.

        Args:
            now_s: The time.
            run: The attempt.
            reason: Why, for people.
        """
        self._event(now_s, EventKind.STOP_REQUESTED, run.job.trace.job, run.attempt, {"by": reason})
        self.lead_ended(now_s, run, AttemptState.CANCELLED, reason)

    def failed(self, now_s: float, run: AttemptRun, reason: str) -> None:
        """Tells that an attempt lost a node under it.

        Args:
            now_s: The time.
            run: The attempt.
            reason: Why, for people.
        """
        detail: Detail = {
            "generation": run.generation, "rank": 0, "exit_code": -9,
            "step": step_of(run.course.work_at(now_s)), "last_words": reason,
        }  # fmt: skip
        self._event(now_s, EventKind.RANK_EXITED, run.job.trace.job, run.attempt, detail)

    def lead_ended(self, now_s: float, run: AttemptRun, outcome: AttemptState, reason: str) -> None:
        """Tells that an attempt's ranks are gone.

        Args:
            now_s: The time.
            run: The attempt.
            outcome: How.
            reason: Why, for people.
        """
        if self.listened_to:
            work_s = run.course.work_at(now_s)  # At full size on the first option: what a trace tells of a job.
            detail: Detail = {
                "outcome": outcome.value, "reason": reason, "step": step_of(work_s), "snapshot_blocked_s": 0.0,
                "work_s": work_s,
            }  # fmt: skip
            self._event(now_s, EventKind.LEAD_ENDED, run.job.trace.job, run.attempt, detail)

    def ended(self, now_s: float, run: AttemptRun, outcome: AttemptState, reason: str) -> None:
        """Tells that an attempt gave back all it held.

        Args:
            now_s: The time.
            run: The attempt.
            outcome: How it ended.
            reason: Why, for people.
        """
        detail: Detail = {"outcome": outcome.value, "reason": reason}
        self._event(now_s, EventKind.ATTEMPT_ENDED, run.job.trace.job, run.attempt, detail)
