"""What becomes of a rollout: a pure function of what happened to it, what its robots counted, and the time.

    ring opened -> its robots commit -> success is measured -> passed: the next ring ... -> done
                        |                     `-- a loss that is proved, robots that are not healthy -> all go back
                        `-- errors above the threshold -> paused, until a person says so

Nothing is read or written here: `rollouts.py` does what this says.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from functools import reduce
from statistics import NormalDist
from typing import final

from mainspring.control.service.robots.planning import part_of
from mainspring.domain.answers import RobotTally
from mainspring.domain.answers.policies.rollouts import (
    RingPlan,
    RingView,
    RobotStanding,
    RolloutEvent,
    RolloutEventKind,
    RolloutPlan,
    RolloutState,
)

CONFIDENCE = 0.95  # Of the interval of a difference, as of every gate of an evaluation.
ERRORS_MIN = 2  # One robot's broken disk says nothing of a release.
EPISODES_MAX = 100_000  # Beyond this many missing episodes a person is to decide.
_Z = NormalDist().inv_cdf(0.5 + CONFIDENCE / 2)


_OF_ROBOTS = {
    RolloutEventKind.COMMITTED: RobotStanding.COMMITTED,
    RolloutEventKind.FAILED: RobotStanding.FAILED,
    RolloutEventKind.UNHEALTHY: RobotStanding.UNHEALTHY,
    RolloutEventKind.RETURNED: RobotStanding.RETURNED,
}
_STATES = {
    RolloutEventKind.PAUSED: RolloutState.PAUSED,
    RolloutEventKind.RESUMED: RolloutState.RUNNING,
    RolloutEventKind.ABORTED: RolloutState.ABORTED,
    RolloutEventKind.ROLLED_BACK: RolloutState.GOING_BACK,
    RolloutEventKind.WENT_BACK: RolloutState.WENT_BACK,
    RolloutEventKind.FINISHED: RolloutState.DONE,
}


@final
class RolloutFold:
    """What a rollout's events come to. Made by `folded`; changed by nobody else."""

    def __init__(self, plan: RolloutPlan) -> None:
        self.state = RolloutState.RUNNING
        self.opened_s: list[float] = []
        self.standing = {robot: RobotStanding.AHEAD for ring in plan.rings for robot in ring.robots}
        self.approved: set[int] = set()
        self.forgiven = 0
        self.committed_s = 0.0  # By the last robot that did.
        self.failures: dict[str, RolloutEvent] = {}  # The last of each robot that had one.
        self.why = ""
        self._plan = plan

    def copy(self) -> RolloutFold:
        """Returns one that may go on by itself."""
        made = RolloutFold(self._plan)
        made.state, made.forgiven, made.committed_s, made.why = self.state, self.forgiven, self.committed_s, self.why
        made.opened_s, made.approved = [*self.opened_s], {*self.approved}
        made.standing, made.failures = dict(self.standing), dict(self.failures)
        return made

    def apply(self, event: RolloutEvent) -> None:
        """Takes one more event."""
        if event.kind is RolloutEventKind.OPENED:
            self.opened_s.append(event.at_s)
            for robot in self._plan.rings[event.ring].robots:
                self.standing[robot] = RobotStanding.OFFERED
        elif event.kind is RolloutEventKind.APPROVED:
            self.approved.add(event.ring)
        elif (standing := _OF_ROBOTS.get(event.kind)) is not None:
            if standing is RobotStanding.COMMITTED:
                self.committed_s = max(self.committed_s, event.at_s)
            elif standing is not RobotStanding.RETURNED:
                self.failures[event.robot] = event
            self._stand(event.robot, standing)
        else:
            if event.kind is RolloutEventKind.RESUMED:  # What failed before a person looked does not pause it again.
                self.forgiven = self.count(RobotStanding.FAILED)
            self.state, self.why = _STATES[event.kind], event.words

    def _stand(self, robot: str, standing: RobotStanding) -> None:
        now = self.standing.get(robot)
        if now is None or now is RobotStanding.AHEAD:
            return
        if standing is RobotStanding.FAILED and now is not RobotStanding.OFFERED:
            return  # What it runs is known; another action of it failed.
        self.standing[robot] = standing

    def count(self, *standings: RobotStanding, ring: RingPlan | None = None) -> int:
        """Returns how many robots stand so, of a ring, or of all."""
        robots: Iterable[str] = self.standing if ring is None else ring.robots
        return sum(self.standing[robot] in standings for robot in robots)


def folded(plan: RolloutPlan, events: Iterable[RolloutEvent]) -> RolloutFold:
    """Returns what a rollout's events come to, oldest first."""
    fold = RolloutFold(plan)
    for event in events:
        fold.apply(event)
    return fold


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutSeen:
    """What is seen of a rollout's robots now.

    Args:
        tallies: What each counted of the release.
        base: What all together counted of what they ran before.
        offline: Those that have not called for long.
        asked_s: When each robot that has something to do first asked for it.
        busy: Those that have something of this rollout to do.
    """

    tallies: Mapping[str, RobotTally] = field(default_factory=dict)
    base: RobotTally = field(default_factory=lambda: RobotTally(target=""))
    offline: frozenset[str] = frozenset()
    asked_s: Mapping[str, float] = field(default_factory=dict)
    busy: frozenset[str] = frozenset()


class RingWord(str, Enum):
    """What is said of a ring's success."""

    PASSED = "passed"
    WAITS = "waits"
    LOSES = "loses"
    UNSAFE = "unsafe"


@dataclass(frozen=True, slots=True, kw_only=True)
class RingVerdict:
    """What is said of a ring's success, and why.

    Args:
        missing: Episodes that would decide it as it looks now, None where nobody can say.
    """

    word: RingWord
    why: str
    missing: int | None = None


def decide(plan: RolloutPlan, fold: RolloutFold, seen: RolloutSeen, now_s: float) -> tuple[RolloutEvent, ...]:
    """Returns what follows now, nothing where all waits."""

    def told(kind: RolloutEventKind, words: str = "", **about: object) -> tuple[RolloutEvent, ...]:
        return (RolloutEvent(kind=kind, at_s=now_s, words=words, **about),)  # type: ignore[arg-type]

    if fold.state is RolloutState.GOING_BACK:
        return () if seen.busy - seen.offline else told(RolloutEventKind.WENT_BACK, fold.why)
    if fold.state not in (RolloutState.RUNNING, RolloutState.PAUSED):
        return ()
    if (why := _too_many_sick(plan, fold)) is not None:
        return told(RolloutEventKind.ROLLED_BACK, why)
    if fold.state is RolloutState.PAUSED:
        return ()
    if not fold.opened_s:
        return told(RolloutEventKind.OPENED, plan.rings[0].name, ring=0)
    late = [robot for robot, asked_s in sorted(seen.asked_s.items()) if now_s - asked_s > plan.rules.timeout_s]
    if late := [robot for robot in late if fold.standing.get(robot) is RobotStanding.OFFERED]:
        words = f"no healthy commit within {plan.rules.timeout_s:g} s"
        return tuple(event for robot in late for event in told(RolloutEventKind.FAILED, words, robot=robot))
    place = len(fold.opened_s) - 1
    ring = plan.rings[place]
    if (why := _too_many_errors(plan, fold, ring)) is not None:
        return told(RolloutEventKind.PAUSED, why, ring=place)
    verdict = judged(plan, fold, seen, place, now_s)
    if verdict.word is RingWord.LOSES:
        return told(RolloutEventKind.ROLLED_BACK, verdict.why, ring=place)
    if verdict.word is RingWord.UNSAFE and place not in fold.approved:
        return told(RolloutEventKind.PAUSED, verdict.why, ring=place)
    if still_waits(fold, seen, ring):
        return ()
    if place == len(plan.rings) - 1:
        if now_s - fold.committed_s < plan.rules.watch_s:
            return ()
        return told(RolloutEventKind.FINISHED, "every robot that can be reached runs it")
    if verdict.word is RingWord.WAITS:
        return ()
    return told(RolloutEventKind.OPENED, plan.rings[place + 1].name, ring=place + 1)


def _too_many_sick(plan: RolloutPlan, fold: RolloutFold) -> str | None:
    if plan.rules.unhealthy_share is None:
        sick = fold.count(RobotStanding.UNHEALTHY)
        return f"{sick} robots were not healthy with it" if sick >= plan.rules.unhealthy else None
    for ring in plan.rings[: len(fold.opened_s)]:
        sick = fold.count(RobotStanding.UNHEALTHY, ring=ring)
        if sick and sick >= part_of(plan.rules.unhealthy_share, len(ring.robots)):
            return f"{sick} of {len(ring.robots)} robots of ring {ring.name} were not healthy with it"
    return None


def _too_many_errors(plan: RolloutPlan, fold: RolloutFold, ring: RingPlan) -> str | None:
    failed = fold.count(RobotStanding.FAILED) - fold.forgiven
    in_ring = min(failed, fold.count(RobotStanding.FAILED, ring=ring))
    if in_ring < ERRORS_MIN or in_ring <= plan.rules.errors * len(ring.robots):
        return None
    return f"{in_ring} of {len(ring.robots)} robots of ring {ring.name} could not install it"


def still_waits(fold: RolloutFold, seen: RolloutSeen, ring: RingPlan) -> int:
    """Returns how many robots of a ring are waited for: one at least has to run the release."""
    open_ones = [robot for robot in ring.robots if fold.standing[robot] is RobotStanding.OFFERED]
    waited = sum(robot not in seen.offline for robot in open_ones)
    return waited or int(bool(ring.robots) and not fold.count(RobotStanding.COMMITTED, ring=ring))


def tally_of(seen: RolloutSeen, rings: Sequence[RingPlan]) -> RobotTally:
    """Returns what robots of some rings counted of the release, together."""
    found = (seen.tallies[robot] for ring in rings for robot in ring.robots if robot in seen.tallies)
    return reduce(RobotTally.plus, found, RobotTally(target=""))


def judged(plan: RolloutPlan, fold: RolloutFold, seen: RolloutSeen, place: int, now_s: float) -> RingVerdict:
    """Returns what the success of a ring says; what rings before it counted counts as well."""
    new, base, rules = tally_of(seen, plan.rings[: place + 1]), seen.base, plan.rules
    if base.episodes and new.episodes:
        for what in ("missed_deadlines", "safety_stops"):
            low, _ = difference(_capped(new, what), new.episodes, _capped(base, what), base.episodes)
            if low > 0:
                words = what.replace("_", " ")
                got = (
                    f"{getattr(new, what)} in {new.episodes} episodes, {getattr(base, what)} in {base.episodes} before"
                )
                return RingVerdict(word=RingWord.UNSAFE, why=f"more {words}: {got}")
        low, high = difference(new.successes, new.episodes, base.successes, base.episodes)
        if high < -rules.loss:
            got = f"{new.successes} of {new.episodes}, {base.successes} of {base.episodes} before"
            return RingVerdict(word=RingWord.LOSES, why=f"success is worse by over {100 * rules.loss:g} points: {got}")
        if low > -rules.loss:
            return RingVerdict(word=RingWord.PASSED, why=f"success is at most {-100 * min(low, 0.0):.1f} points worse")
    if not plan.rings[place].robots or (place in fold.approved and now_s - fold.opened_s[place] >= 3_600 * rules.hours):
        return RingVerdict(word=RingWord.PASSED, why="a person said yes" if plan.rings[place].robots else "no robots")
    return _waiting(plan, fold, new, base, place, now_s)


def _waiting(
    plan: RolloutPlan, fold: RolloutFold, new: RobotTally, base: RobotTally, place: int, now_s: float
) -> RingVerdict:
    left_s = max(0.0, 3_600 * plan.rules.hours - (now_s - fold.opened_s[place]))
    yes = "a person's yes" if place not in fold.approved else ""
    later = f"{yes}{' after ' if yes else ''}{left_s / 3_600:.1f} h" if left_s else yes
    if not base.episodes:
        return RingVerdict(word=RingWord.WAITS, why=f"{later}: nothing was counted of what ran before")
    missing = missing_episodes(new, base, plan.rules.loss)
    words = "more than can be waited for" if missing is None else f"{missing} more episodes"
    return RingVerdict(word=RingWord.WAITS, why=f"{words}, or {later}", missing=missing)


def missing_episodes(new: RobotTally, base: RobotTally, loss: float) -> int | None:
    """Returns how many more episodes would pass a ring if they went as those so far; None where none would.

    Of a ring that has counted nothing they are taken to go as before.
    """
    rate = new.successes / new.episodes if new.episodes else base.successes / base.episodes

    def passes(more: int) -> bool:
        episodes = new.episodes + more
        solved = min(episodes, round(rate * episodes))
        return difference(solved, episodes, base.successes, base.episodes)[0] > -loss

    if not passes(EPISODES_MAX):
        return None
    low, high = 0, EPISODES_MAX
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if passes(middle) else (middle, high)
    return high


def difference(first: int, of_first: int, second: int, of_second: int) -> tuple[float, float]:
    """Returns the interval of the first rate less the second, of independent episodes.

    Source: Newcombe, "Interval estimation for the difference between independent proportions", Statistics in Medicine
    17, 1998, method 10: from two Wilson intervals.
    """
    one, other = first / of_first, second / of_second
    low_1, high_1 = _wilson(one, of_first)
    low_2, high_2 = _wilson(other, of_second)
    between = one - other
    return (
        between - math.hypot(one - low_1, high_2 - other),
        between + math.hypot(high_1 - one, other - low_2),
    )


def _wilson(rate: float, count: int) -> tuple[float, float]:
    """Returns the interval of a rate. Source: Wilson, "Probable inference", JASA 22, 1927.

    Not that of `robots.evaluation`, which is a floor above and brings SciPy.
    """
    middle = (rate + _Z * _Z / (2 * count)) / (1 + _Z * _Z / count)
    half = _Z / (1 + _Z * _Z / count) * math.sqrt(rate * (1 - rate) / count + _Z * _Z / (4 * count * count))
    return max(0.0, middle - half), min(1.0, middle + half)


def _capped(tally: RobotTally, what: str) -> int:
    """Returns in how many episodes at most something happened: each is counted once."""
    return min(tally.episodes, int(getattr(tally, what)))


def view_rings(plan: RolloutPlan, fold: RolloutFold, seen: RolloutSeen, now_s: float) -> tuple[RingView, ...]:
    """Returns every ring as people see it."""
    return tuple(_view_ring(plan, fold, seen, place, now_s) for place in range(len(plan.rings)))


def _view_ring(plan: RolloutPlan, fold: RolloutFold, seen: RolloutSeen, place: int, now_s: float) -> RingView:
    ring, is_open = plan.rings[place], place < len(fold.opened_s)
    counts = Counter(fold.standing[robot] for robot in ring.robots)
    tally = tally_of(seen, (ring,))
    verdict = None
    if is_open and place == len(fold.opened_s) - 1 and fold.state in (RolloutState.RUNNING, RolloutState.PAUSED):
        verdict = judged(plan, fold, seen, place, now_s)
    waits = ""
    if verdict is not None and (left := still_waits(fold, seen, ring)):
        waits = f"{left} robots"
    elif verdict is not None and verdict.word is RingWord.WAITS:
        waits = verdict.why
    return RingView(
        name=ring.name,
        robots=len(ring.robots),
        opened_s=fold.opened_s[place] if is_open else None,
        committed=counts[RobotStanding.COMMITTED],
        failed=counts[RobotStanding.FAILED],
        unhealthy=counts[RobotStanding.UNHEALTHY],
        returned=counts[RobotStanding.RETURNED],
        offline=sum(robot in seen.offline for robot in ring.robots),
        episodes=tally.episodes,
        successes=tally.successes,
        waits=waits,
        missing=None if verdict is None else verdict.missing,
    )
