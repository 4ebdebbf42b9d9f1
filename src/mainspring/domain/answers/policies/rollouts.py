"""Rollouts: which robots get a release, ring after ring, and what became of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

from mainspring.domain.codec import message
from mainspring.domain.errors import InvalidInput, NotFound, nearest

RINGS_MAX = 16
WORDS_MAX = 1_000


class RolloutState(str, Enum):
    """Where a rollout stands."""

    RUNNING = "running"
    PAUSED = "paused"
    GOING_BACK = "going back"
    WENT_BACK = "went back"
    ABORTED = "aborted"
    DONE = "done"


LIVE_ROLLOUTS = (RolloutState.RUNNING, RolloutState.PAUSED, RolloutState.GOING_BACK)
# What people may have a rollout do, and the states in which it does.
ROLLOUT_ACTS: Mapping[str, tuple[RolloutState, ...]] = {
    "pause": (RolloutState.RUNNING,),
    "resume": (RolloutState.PAUSED,),
    "approve": (RolloutState.RUNNING,),
    "abort": LIVE_ROLLOUTS,
    "rollback": (RolloutState.RUNNING, RolloutState.PAUSED, RolloutState.DONE, RolloutState.ABORTED),
}


class RobotStanding(str, Enum):
    """Where a robot stands in a rollout."""

    AHEAD = "ahead"  # Its ring is not open.
    OFFERED = "offered"
    COMMITTED = "committed"
    FAILED = "failed"
    UNHEALTHY = "unhealthy"
    RETURNED = "returned"


class RolloutEventKind(str, Enum):
    """What may become of a rollout."""

    OPENED = "opened"  # A ring: its robots are offered the release.
    COMMITTED = "committed"  # By a robot: it runs the release, healthy after a restart.
    FAILED = "failed"  # On a robot, for another reason than its health.
    UNHEALTHY = "unhealthy"  # On a robot: it did not prove healthy, or is healthy no more.
    RETURNED = "returned"  # Of a robot: it runs again what it ran before.
    APPROVED = "approved"  # Of a ring, by a person.
    PAUSED = "paused"
    RESUMED = "resumed"
    ABORTED = "aborted"
    ROLLED_BACK = "rolled back"
    WENT_BACK = "went back"  # All robots that can be reached.
    FINISHED = "finished"


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutRules:
    """When a ring is passed, and when a rollout stops.

    Args:
        loss: By how much success may be worse than before, 0 to 1: 0.05 is five points. A ring passes when the
            interval of the difference excludes more.
        hours: After which a person's yes passes a ring instead.
        timeout_s: From when a robot asks for the release to its healthy commit.
        offline_s: A robot that has not called for so long is not waited for; it gets the release when it is back.
        errors: The share of a ring in which the installation may fail; above it the rollout pauses.
        unhealthy: So many robots that are not healthy with it take it back from all.
        unhealthy_share: In place of that count, the share of a ring whose robots do so, over 0, to 1: rounded up, so
            one robot at least.
        watch_s: How long the last robot that committed is watched before a rollout is done.
        confirm: Whether somebody at each robot is to confirm it first.
    """

    loss: float = 0.05
    hours: float = 24.0
    timeout_s: float = 7_200.0
    offline_s: float = 3_600.0
    errors: float = 0.1
    unhealthy: int = 3
    unhealthy_share: float | None = None
    watch_s: float = 3_600.0
    confirm: bool = False

    def __post_init__(self) -> None:
        """Checks every number.

        Raises:
            InvalidInput: One is out of its range.
        """
        for name, value, least, most in (
            ("loss", self.loss, 0.0, 1.0),
            ("hours", self.hours, 0.0, 8_760.0),
            ("timeout_s", self.timeout_s, 60.0, 30 * 86_400.0),
            ("offline_s", self.offline_s, 60.0, 30 * 86_400.0),
            ("watch_s", self.watch_s, 0.0, 30 * 86_400.0),
            ("errors", self.errors, 0.0, 1.0),
            ("unhealthy", self.unhealthy, 1, 100_000),
        ):
            if not least <= value <= most:
                raise InvalidInput("roll a release out", on=name, got=f"{value:g}", wanted=f"{least:g} to {most:g}")
        if self.unhealthy_share is not None and not 0 < self.unhealthy_share <= 1:
            got = f"{self.unhealthy_share:g}"
            raise InvalidInput("roll a release out", on="unhealthy_share", got=got, wanted="over 0, to 1")


@message("NewRollout")
class NewRollout:
    """A release that is to go to robots.

    Args:
        release: "NAME@VERSION", or the newest of a name.
        rings: In order: "GROUP" is a group's robots; "NAME:5%" a ring of so much of all, first of the group of that
            name; "10%" as many as make a tenth of all; "all" is what is left.
        where: Only robots that have this label, "NAME=VALUE" or "NAME"; "" for all.
        note: Why, in somebody's words.
    """

    release: str
    rings: tuple[str, ...]
    where: str = ""
    rules: RolloutRules = field(default_factory=RolloutRules)
    note: str = ""

    def __post_init__(self) -> None:
        """Checks the counts.

        Raises:
            InvalidInput: They are out of their range.
        """
        if not 1 <= len(self.rings) <= RINGS_MAX:
            raise InvalidInput("roll a release out", got=f"{len(self.rings)} rings", wanted=f"1 to {RINGS_MAX}")
        if len(self.note) > WORDS_MAX:
            raise InvalidInput("roll a release out", got="a longer note", wanted=f"at most {WORDS_MAX} letters")


@message("RolloutWord")
class RolloutWord:
    """Why somebody pauses a rollout, lets it go on, or takes it back.

    Args:
        reason: In words.
    """

    reason: str = ""

    def __post_init__(self) -> None:
        """Checks its length.

        Raises:
            InvalidInput: It is too long.
        """
        if len(self.reason) > WORDS_MAX:
            raise InvalidInput("say why", got="a longer reason", wanted=f"at most {WORDS_MAX} letters")


@dataclass(frozen=True, slots=True, kw_only=True)
class RingPlan:
    """A ring: its robots in order of name."""

    name: str
    robots: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutPlan:
    """What was decided when a rollout began, for good.

    Args:
        before: What each robot ran, as "NAME@VERSION", "" for nothing.
    """

    release: str
    rings: tuple[RingPlan, ...]
    before: Mapping[str, str]
    rules: RolloutRules
    note: str = ""

    def rings_from(self, ring: str | None, after: str | None) -> tuple[RingPlan, ...]:
        """Returns rings with the robots that follow one of them.

        Args:
            ring: Only this one, unless None.
            after: The robot after which they begin, None for all.

        Raises:
            NotFound: There is no such ring, or the robot is in none of these.
        """
        found = [each for each in self.rings if ring in (None, each.name)]
        if not found:
            wanted = nearest((ring or "")[:80], [each.name for each in self.rings])
            raise NotFound("list robots of a rollout", on=f"ring {(ring or '')[:80]!r}", wanted=wanted)
        if after is None:
            return tuple(found)
        for place, each in enumerate(found):
            if after in each.robots:
                rest = each.robots[each.robots.index(after) + 1 :]
                return (RingPlan(name=each.name, robots=rest), *found[place + 1 :])
        raise NotFound("list robots of a rollout", on=f"after {after[:80]!r}", got="a robot that is not in it")


@message("RolloutEvent")
class RolloutEvent:
    """Something that became of a rollout.

    Args:
        ring: Its place, from 0, where it is about one.
        robot: Where it is about one, else "".
        by: Who said so, "" for the server itself.
    """

    kind: RolloutEventKind
    at_s: float
    ring: int = 0
    robot: str = ""
    words: str = ""
    by: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class RingView:
    """A ring and how far it is.

    Args:
        opened_s: None while it waits for those before it.
        episodes: Of its robots with this release.
        waits: What it waits for, in words; "" for nothing.
        missing: Episodes that are still missing, None where nobody can say.
    """

    name: str
    robots: int
    opened_s: float | None = None
    committed: int = 0
    failed: int = 0
    unhealthy: int = 0
    offline: int = 0
    returned: int = 0
    episodes: int = 0
    successes: int = 0
    waits: str = ""
    missing: int | None = None


@message("RolloutView")
class RolloutView:
    """A rollout.

    Args:
        why: What stopped it, or finished it.
        base_episodes: What robots counted of what they ran before.
        events: The newest, oldest first; none in lists.
    """

    number: int
    team: str
    release: str
    state: RolloutState
    maker: str
    made_s: float
    rings: tuple[RingView, ...]
    why: str = ""
    note: str = ""
    base_episodes: int = 0
    base_successes: int = 0
    events: tuple[RolloutEvent, ...] = ()


@message("RolloutRobot")
class RolloutRobot:
    """A robot in a rollout.

    Args:
        ring: The ring that it is in.
        away: Whether it is not waited for: it has not called for long, or was revoked.
        runs: What it runs, as "NAME@VERSION", "" for nothing that is known.
        before: What it ran before.
        says: What it last said of what it installs, "" for nothing.
        failure: Why it last failed here, "" where it did not.
        failed_s: When that was.
    """

    robot: str
    ring: str
    standing: RobotStanding
    away: bool
    runs: str = ""
    before: str = ""
    says: str = ""
    failure: str = ""
    failed_s: float | None = None
