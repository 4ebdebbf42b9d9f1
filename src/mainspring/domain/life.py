"""Life cycles of jobs, attempts and allocations: states, every legal transition, and how long what is over is kept.

Nothing else in the house changes a state; `moved` is the only way, and it refuses what the table does not name.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from types import MappingProxyType
from typing import TypeVar

from mainspring.domain.errors import IllegalTransition, InvalidSpec

DAYS_MIN = 7  # What jobs ended of is evidence about nodes for so long.
DAYS_MAX = 36_500
JOBS_MAX = 100_000_000
GIB_MAX = 1e9


class JobState(str, Enum):
    """A job's state. QUEUED covers the first wait and every wait after an attempt was lost."""

    QUEUED = "queued"
    STARTING = "starting"
    RUNNING = "running"
    STOPPING = "stopping"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"


class AttemptState(str, Enum):
    """An attempt's state. It is live until all its allocations are gone."""

    GRANTED = "granted"
    RUNNING = "running"
    STOPPING = "stopping"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    LOST = "lost"
    CANCELLED = "cancelled"


class AllocationState(str, Enum):
    """An allocation's state in the store; the engine's own view is `AllocationPhase`."""

    GRANTED = "granted"
    LAUNCHED = "launched"
    STOPPING = "stopping"
    GONE = "gone"


JOB_MOVES: Mapping[JobState, tuple[JobState, ...]] = MappingProxyType(
    {
        JobState.QUEUED: (JobState.STARTING, JobState.CANCELLED, JobState.FAILED),
        JobState.STARTING: (JobState.RUNNING, JobState.STOPPING, JobState.QUEUED, JobState.FAILED, JobState.SUCCEEDED),
        JobState.RUNNING: (JobState.STOPPING, JobState.QUEUED, JobState.SUCCEEDED, JobState.FAILED),
        JobState.STOPPING: (JobState.CANCELLED, JobState.SUCCEEDED, JobState.FAILED),
        JobState.SUCCEEDED: (),
        JobState.FAILED: (),
        JobState.CANCELLED: (),
    }
)

ATTEMPT_MOVES: Mapping[AttemptState, tuple[AttemptState, ...]] = MappingProxyType(
    {
        AttemptState.GRANTED: (AttemptState.RUNNING, AttemptState.STOPPING),
        AttemptState.RUNNING: (AttemptState.STOPPING,),
        AttemptState.STOPPING: (
            AttemptState.SUCCEEDED,
            AttemptState.FAILED,
            AttemptState.LOST,
            AttemptState.CANCELLED,
        ),
        AttemptState.SUCCEEDED: (),
        AttemptState.FAILED: (),
        AttemptState.LOST: (),
        AttemptState.CANCELLED: (),
    }
)

ALLOCATION_MOVES: Mapping[AllocationState, tuple[AllocationState, ...]] = MappingProxyType(
    {
        AllocationState.GRANTED: (AllocationState.LAUNCHED, AllocationState.STOPPING),
        AllocationState.LAUNCHED: (AllocationState.STOPPING, AllocationState.GONE),
        AllocationState.STOPPING: (AllocationState.GONE,),
        AllocationState.GONE: (),
    }
)

State = TypeVar("State", JobState, AttemptState, AllocationState)


def moved(table: Mapping[State, tuple[State, ...]], before: State, after: State, of: str) -> State:
    """Returns `after`, if the table allows it from `before`.

    Args:
        table: One of the `*_MOVES` tables.
        before: The state now.
        after: The state wanted.
        of: Id of what moves, for the message.

    Raises:
        IllegalTransition: The table does not name this step.
    """
    if after not in table[before]:
        allowed = ", ".join(state.value for state in table[before]) or "nothing: it has ended"
        raise IllegalTransition(
            f"move {of}", got=f"{before.value} -> {after.value}", wanted=f"from {before.value}: {allowed}"
        )
    return after


def ended(state: State) -> bool:
    """Returns whether nothing can follow `state`.

    Args:
        state: A job's, attempt's or allocation's state.
    """
    if isinstance(state, JobState):
        return not JOB_MOVES[state]
    if isinstance(state, AttemptState):
        return not ATTEMPT_MOVES[state]
    return not ALLOCATION_MOVES[state]


@dataclass(frozen=True, slots=True, kw_only=True)
class Retention:
    """What is kept at hand of what is over; what is older goes to the archive, or goes.

    Args:
        days: Since they ended, jobs with their attempts and events are in the store; since they were made, plans and
            events of no job; since they ended, tokens.
        jobs: The most jobs that have ended which are in the store, the newest.
        log_days: Since they ended, what engines have of allocations: what ranks wrote, and how they ended.
        code_days: Since they were last submitted, snapshots of code that no job in the store runs or has run.
        log_gib: The most that what engines have of ended allocations takes, of each cluster; None for no bound.
        code_gib: The most that snapshots of code take; None for no bound.
    """

    days: int = 90
    jobs: int = 1_000_000
    log_days: int = 90
    code_days: int = 30
    log_gib: float | None = None
    code_gib: float | None = None

    def __post_init__(self) -> None:
        """Checks the ranges.

        Raises:
            InvalidSpec: A number is out of its range.
        """
        for name, value, least, most in (
            ("days", self.days, DAYS_MIN, DAYS_MAX),
            ("jobs", self.jobs, 0, JOBS_MAX),
            ("log_days", self.log_days, DAYS_MIN, DAYS_MAX),
            ("code_days", self.code_days, DAYS_MIN, DAYS_MAX),
            ("log_gib", self.log_gib or 0.0, 0, GIB_MAX),
            ("code_gib", self.code_gib or 0.0, 0, GIB_MAX),
        ):
            if not least <= value <= most:
                raise InvalidSpec(
                    "say what is kept", on=f"field 'keep.{name}'", got=str(value), wanted=f"{least} to {most}"
                )
