"""Planned changes: growth, nodes that are taken away on notice, and the stop of the whole attempt.

Ranks leave together at a step chosen late enough that word of it reaches all of them in time.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import final

from mainspring.domain.goodput import TimeUse
from mainspring.domain.life import AttemptState
from mainspring.domain.wire import LeaveAt, Then
from mainspring.node.lead.holdings import Holdings
from mainspring.node.lead.members import Members
from mainspring.node.lead.outbox import Beginning
from mainspring.node.lead.roster import Roster, names

PROGRESS_EVERY_S = 0.5  # How old the newest step the lead knows may be: agents tell it so often,
RANKS_AT_FULL_PACE = 1_000  # and the less often, the more ranks there are beyond these.
REPORT_EVERY_S = 0.1  # How often a rank reports, which is when it hears.
TRAVEL_S = 0.5  # What messages and busy machines take: many times a network's round trip.
CHANGE_LIMIT_S = 60.0  # Beyond the steps themselves: a last snapshot, and good-byes.
CHANGE_PARTS = 4.0  # Steps may turn out so much slower than they were.
RESERVE_PARTS = 0.2  # Of a notice: kept for fetching what the node holds before it goes,
RESERVE_S_MAX = 10.0  # which at 1 GB/s is a snapshot of 10 GB.
GROW_SETTLE_S = 2.0  # Agents launched together join within seconds: one change takes them all.
STEPS_AHEAD_UNKNOWN = 2  # Where no step was timed yet: the one under way, and one more while word travels.


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedChange:
    """A planned change under way.

    Args:
        then: What ranks do once they have saved and left.
        stop_at: The step they leave after, -1 for the one under way.
        deadline_s: When those still here are ended, on the monotonic clock.
        outcome: How the attempt ends with it, None when another generation follows.
    """

    then: Then
    stop_at: int
    deadline_s: float
    cause: str
    outcome: AttemptState | None = None

    def message(self, generation: int, now_s: float) -> LeaveAt:
        """Returns what agents are told of it, given the generation that leaves."""
        grace_s = max(0.0, self.deadline_s - now_s)
        return LeaveAt(generation=generation, step=self.stop_at, grace_s=grace_s, then=self.then)


@dataclass(frozen=True, slots=True, kw_only=True)
class Course:
    """How far the running generation is, and how fast.

    Args:
        here: The furthest step known, -1 before the first.
        step_s: How long a step takes, None while unknown.
        stop_at: The first step by which word sent now has reached all ranks.
        all_step: Whether every rank has reported a step in this generation.
    """

    here: int
    step_s: float | None
    stop_at: int
    all_step: bool


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


def time_to_leave_s(course: Course) -> float:
    """Returns how long ranks are allowed for leaving where nobody presses."""
    return CHANGE_LIMIT_S + CHANGE_PARTS * max(0, course.stop_at - course.here) * (course.step_s or 0.0)


def reserve_s(grace_s: float) -> float:
    """Returns how much of a notice is kept for what must follow before the node is gone."""
    return min(RESERVE_PARTS * grace_s, RESERVE_S_MAX)


@final
class PlannedChanges:
    """Decides when ranks are asked to leave, and where. Whoever owns the running generation asks them.

    Args:
        roster: The agents, to be read.
        members: Who runs, to be read.
    """

    def __init__(self, roster: Roster, members: Members) -> None:
        self._roster = roster
        self._members = members
        self._consider_s: float | None = None
        self._dismissed: set[int] = set()

    def arrived(self, agent: int, now_s: float) -> None:
        """Takes note of an agent that is new, or was given up: ranks may grow."""
        self._dismissed.discard(agent)
        self._consider_s = now_s + GROW_SETTLE_S

    def leaving(self, now_s: float) -> None:
        """Takes note that an agent's node is taken away."""
        self._consider_s = now_s

    def stop(self, course: Course, deadline_s: float) -> PlannedChange:
        """Returns the change by which all ranks save and exit, because the attempt shall stop."""
        self._consider_s = None
        return PlannedChange(
            then=Then.EXIT,
            stop_at=course.stop_at,
            deadline_s=deadline_s,
            cause="stopped",
            outcome=AttemptState.CANCELLED,
        )

    def consider(self, course: Course, now_s: float, *, last: Collection[int]) -> PlannedChange | Beginning | None:
        """Returns the change that makes the membership better, or what cannot wait for ranks to leave by themselves.

        Args:
            course: How far ranks are, none of which has been asked to leave.
            last: Agents whose places run only where others do not suffice.
        """
        if self._consider_s is None or now_s < self._consider_s:
            return None
        leaving = [agent for agent in self._members.active_agents if self._roster[agent].leaving_s is not None]
        wanted = self._members.propose(self._roster.lasting, last=last)
        if leaving:
            return self._without(course, now_s, leaving, wanted.lacking)
        sizes = {str(place.role): place.role_size for place in self._members.active.values()}
        larger = any(size > sizes[role] for role, size in wanted.sizes.items())
        if larger and not (course.all_step and course.step_s and not self._roster.doubtful):
            return None  # Not yet.
        self._consider_s = None
        if not larger:
            return None
        cause = f"grows to {sum(wanted.sizes.values())} ranks"
        deadline_s = now_s + time_to_leave_s(course)
        return PlannedChange(then=Then.REJOIN, stop_at=course.stop_at, deadline_s=deadline_s, cause=cause)

    def _without(self, course: Course, now_s: float, leaving: Sequence[int], lacking: str) -> PlannedChange | Beginning:
        """Returns how ranks go on without nodes that are taken away."""
        leaves_s = min(self._roster[agent].leaving_s or now_s for agent in leaving)
        deadline_s = leaves_s - reserve_s(max(0.0, leaves_s - now_s))
        cause = f"agents {names(leaving)} leave"
        steps_s = (course.stop_at - course.here) * (course.step_s or 0.0)
        if not lacking and (course.stop_at < 0 or steps_s > deadline_s - now_s):
            return Beginning(cause=cause, use=TimeUse.RESIZE)  # No step to wait for, or no time to.
        self._consider_s = None
        return PlannedChange(
            then=Then.EXIT if lacking else Then.REJOIN,
            stop_at=course.stop_at,
            deadline_s=deadline_s,
            cause=f"preempted: {cause}; {lacking}" if lacking else cause,
            outcome=AttemptState.CANCELLED if lacking else None,  # Nothing failed: who owns the nodes wants them back.
        )

    def dismissed(self, holdings: Holdings) -> tuple[int, ...]:
        """Returns agents to be let go that are taken away anyway, once nobody needs them or what they hold; each once.

        Args:
            holdings: What is in memory, now that all ranks step.
        """
        found = []
        newest = holdings.newest()
        for agent in self._roster.connected:
            idle = self._roster[agent].leaving_s is not None and not self._members.active_of(agent)
            if idle and agent not in self._dismissed and (newest is None or agent not in holdings.holders(newest)):
                found.append(agent)
        self._dismissed.update(found)
        return tuple(found)
