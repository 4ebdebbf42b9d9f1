"""Job dependencies: what the jobs that a job comes after mean for it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import final

from mainspring.domain.ids import JobId
from mainspring.domain.job import JobSpec
from mainspring.domain.life import JobState, ended


@dataclass(frozen=True, slots=True, kw_only=True)
class DependencyState:
    """Whether a job must wait for others, and why it can never start, "" while it may."""

    blocked: bool = False
    doomed: str = ""


def verdict(after: Iterable[JobId], states: Mapping[JobId, JobState]) -> DependencyState:
    """Returns what follows for a job from those it comes after: all must succeed.

    Args:
        after: The jobs it comes after.
        states: Their states; one that is missing is known to nobody any more.
    """
    blocked = False
    for job in after:
        state = states.get(job)
        if state is None:
            return DependencyState(blocked=True, doomed=f"{job}, which it comes after, is not known any more")
        if ended(state) and state is not JobState.SUCCEEDED:
            word = "was cancelled" if state is JobState.CANCELLED else "failed"
            return DependencyState(blocked=True, doomed=f"{job}, which it comes after, {word}")
        blocked |= state is not JobState.SUCCEEDED
    return DependencyState(blocked=blocked)


@final
class Dependencies:
    """Which jobs come after which, the states of those that others come after, and who waits for what never comes."""

    def __init__(self) -> None:
        self.doomed: dict[JobId, str] = {}
        self._dependents: dict[JobId, dict[JobId, None]] = {}
        self._states: dict[JobId, JobState] = {}

    def add(self, job: JobId, after: Iterable[JobId]) -> None:
        """Notes which jobs a job comes after."""
        for above in after:
            self._dependents.setdefault(above, {})[job] = None

    def needs(self, job: JobId) -> bool:
        """Returns whether others come after a job: its state is to be told."""
        return job in self._dependents

    def told(self, job: JobId, state: JobState) -> None:
        """Learns the state of a job that others come after."""
        self._states[job] = state

    def verdict(self, job: JobId, spec: JobSpec) -> DependencyState:
        """Returns what follows for a job from those it comes after, and notes it if it is doomed."""
        says = verdict(spec.after, self._states) if spec.after else DependencyState()
        if says.doomed:
            self.doomed[job] = says.doomed
        return says

    def ended(self, job: JobId, after: Iterable[JobId]) -> Mapping[JobId, None]:
        """Forgets what a job that has ended came after; returns the jobs that come after it."""
        for above in after:
            others = self._dependents.get(above, {})
            others.pop(job, None)
            if not others:
                self._dependents.pop(above, None)
                self._states.pop(above, None)
        return self._dependents.get(job, {})
