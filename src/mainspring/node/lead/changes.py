"""Planned changes: ranks leave together at a step chosen late enough that word of it reaches all of them in time."""

from __future__ import annotations

import math
from dataclasses import dataclass

from mainspring.domain.life import AttemptState
from mainspring.domain.wire import LeaveAt, Then

PROGRESS_EVERY_S = 0.5  # How old the newest step the lead knows may be: agents tell it so often,
RANKS_AT_FULL_PACE = 1_000  # and the less often, the more ranks there are beyond these.
REPORT_EVERY_S = 0.1  # How often a rank reports, which is when it hears.
TRAVEL_S = 0.5  # What messages and busy machines take: many times a network's round trip.
CHANGE_LIMIT_S = 60.0  # Beyond the steps themselves: a last snapshot, and good-byes.
CHANGE_PARTS = 4.0  # Steps may turn out so much slower than they were.
RESERVE_PARTS = 0.2  # Of a notice: kept for fetching what the node holds before it goes,
RESERVE_S_MAX = 10.0  # which at 1 GB/s is a snapshot of 10 GB.
STEPS_AHEAD_UNKNOWN = 2  # Where no step was timed yet: the one under way, and one more while word travels.


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedChange:
    """A planned change under way.

    Args:
        then: What ranks do once they have saved and left.
        stop_at: The step they leave after, -1 for the one under way.
        deadline_s: When those still here are ended, on the monotonic clock.
        cause: Why, for people.
        outcome: How the attempt ends with it, None when another generation follows.
    """

    then: Then
    stop_at: int
    deadline_s: float
    cause: str
    outcome: AttemptState | None = None

    def message(self, generation: int, now_s: float) -> LeaveAt:
        """Returns what agents are told of it.

        Args:
            generation: The generation that leaves.
            now_s: The time, on the monotonic clock.
        """
        grace_s = max(0.0, self.deadline_s - now_s)
        return LeaveAt(generation=generation, step=self.stop_at, grace_s=grace_s, then=self.then)


def step_to_leave_at(here: int, step_s: float | None, ranks: int) -> int:
    """Returns the first step no rank can have passed before word of it arrives.

    Args:
        here: The furthest step known, -1 before the first.
        step_s: How long a step takes, None while unknown.
        ranks: How many ranks run.
    """
    if here < 0:
        return -1
    if not step_s:
        return here + STEPS_AHEAD_UNKNOWN
    told_every_s = PROGRESS_EVERY_S * max(1.0, ranks / RANKS_AT_FULL_PACE)
    return here + 1 + math.ceil((told_every_s + 2 * REPORT_EVERY_S + TRAVEL_S) / step_s)


def time_to_leave_s(here: int, stop_at: int, step_s: float | None) -> float:
    """Returns how long ranks are allowed for leaving where nobody presses.

    Args:
        here: The furthest step known.
        stop_at: The step they leave after.
        step_s: How long a step takes, None while unknown.
    """
    return CHANGE_LIMIT_S + CHANGE_PARTS * max(0, stop_at - here) * (step_s or 0.0)


def reserve_s(grace_s: float) -> float:
    """Returns how much of a notice is kept for what must follow before the node is gone.

    Args:
        grace_s: The notice.
    """
    return min(RESERVE_PARTS * grace_s, RESERVE_S_MAX)
