"""Job dependencies: what the jobs that a job comes after mean for it; pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from mainspring.domain.ids import JobId
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
