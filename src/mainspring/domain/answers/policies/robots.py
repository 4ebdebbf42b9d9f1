"""Robots: how they are enrolled, what they are, what they tell, and what is installed on them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

from mainspring.domain.answers.policies.releases import Embodiment
from mainspring.domain.codec import message
from mainspring.domain.errors import InvalidInput
from mainspring.domain.ids import TeamName, checked_name
from mainspring.domain.job import LAB

LABELS_MAX = 32
LABEL_LENGTH_MAX = 63
ENROL_HOURS_MAX = 720.0  # A month: a robot that is shipped is enrolled where it arrives.
TALLIES_MAX = 8  # Releases that a robot tells of: the one that runs, and those before.
POLL_S = 60.0  # A rollback reaches every robot within some minutes; 100,000 robots are 1,700 calls a second at most.
POLL_S_MIN, POLL_S_MAX = 1.0, 43_200.0  # Whatever a server says; DDI says it as a time of day.
POLL_S_WANTED = f"{POLL_S_MIN:g} to {POLL_S_MAX:g} s"
PUBLIC_KEY = re.compile("[0-9a-f]{64}")  # Ed25519, RFC 8032: 32 bytes.
SIGNATURE = re.compile("[0-9a-f]{128}")
BOOT = re.compile("[0-9a-f]{16,64}")  # Drawn by an agent each time that it starts.
DEVICE_HEADER = "Mainspring-Device"  # "BOOT SIGNATURE", of `device_words`.
REPORT = "mainspring.report"  # The attribute of DDI that holds a `RobotReport`.
TARGET = "mainspring.target"  # What a chunk of DDI tells of the target of TUF that it is.
UNHEALTHY = 1  # The status code of DDI by which our agent says that a release did not prove healthy.


class RobotState(str, Enum):
    """Whether a robot may call."""

    ACTIVE = "active"
    REVOKED = "revoked"


class ActionState(str, Enum):
    """Where an installation on one robot stands."""

    UNCONFIRMED = "unconfirmed"  # Somebody at the robot is to confirm it.
    OPEN = "open"
    CANCELLING = "cancelling"  # The robot is to say that it has given it up.
    DONE = "done"  # It runs, committed.
    FAILED = "failed"
    CANCELLED = "cancelled"


LIVE_ACTIONS = (ActionState.UNCONFIRMED, ActionState.OPEN, ActionState.CANCELLING)


def checked_labels(labels: Mapping[str, str]) -> None:
    """Returns if these can be labels of a robot.

    Args:
        labels: Values by name.

    Raises:
        InvalidInput: They cannot.
    """
    if len(labels) > LABELS_MAX:
        raise InvalidInput("label a robot", got=f"{len(labels)} labels", wanted=f"at most {LABELS_MAX}")
    for name, value in labels.items():
        checked_name(name, "a label")
        if len(value) > LABEL_LENGTH_MAX or not value.isprintable():
            wanted = f"at most {LABEL_LENGTH_MAX} letters"
            raise InvalidInput("label a robot", on=name, got=repr(value[:80]), wanted=wanted)


@message("NewRobot")
class NewRobot:
    """A robot that is to be enrolled.

    Args:
        group: One of the lab's own words, by which rollouts name rings; "" for none.
        plain: Whether it is a plain client of hawkBit's DDI, as `swupdate` is: it has no key, and gets a token at once.
        hours: How long its one-time token is good.
    """

    name: str
    group: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)
    team: TeamName = LAB
    plain: bool = False
    hours: float = 24.0

    def __post_init__(self) -> None:
        """Checks every field.

        Raises:
            InvalidInput: One is out of its range.
        """
        checked_name(self.name, "a robot")
        if self.group:
            checked_name(self.group, "a group of robots")
        checked_labels(self.labels)
        if not 0 < self.hours <= ENROL_HOURS_MAX:
            raise InvalidInput("enrol a robot", got=f"{self.hours:g} hours", wanted=f"over 0, to {ENROL_HOURS_MAX:g}")


@message("RobotToken")
class RobotToken:
    """What a robot enters by: a one-time token, or, of a plain client, its TargetToken; "" robot for a gateway.

    Args:
        secret: Told this once.
        expires_s: When it ends, None for never.
    """

    robot: str
    secret: str
    expires_s: float | None = None


@message("RobotClaim")
class RobotClaim:
    """What a robot says to be enrolled.

    Args:
        token: The one-time token.
        key: Its own public key, hexadecimal, made on it.
        signature: By that key, of `claim_words`.
    """

    token: str
    key: str
    signature: str

    def __post_init__(self) -> None:
        """Checks the forms.

        Raises:
            InvalidInput: One is wrong.
        """
        if len(self.token) > 255 or not PUBLIC_KEY.fullmatch(self.key) or not SIGNATURE.fullmatch(self.signature):
            wanted = "a token, 64 digits of an Ed25519 key, 128 of a signature"
            raise InvalidInput("enrol a robot", got="other words", wanted=wanted)


def claim_words(token: str) -> bytes:
    """Returns what a robot signs when it is enrolled.

    Args:
        token: Its one-time token.
    """
    return f"mainspring enrol\n{token}".encode()


def device_words(robot: str, boot: str, method: str, path: str) -> bytes:
    """Returns what a robot signs of a call.

    Args:
        robot: Its name.
        boot: What its agent drew when it started.
        method: HTTP's.
        path: Of the call, without its query.
    """
    return f"mainspring call\n{robot}\n{boot}\n{method}\n{path}".encode()


@message("Enrolled")
class Enrolled:
    """What a robot is told when it is enrolled.

    Args:
        robot: What it is called.
        token: Its TargetToken, which is of no use without its key.
        root: The root of trust, as TUF has it.
        poll_s: How often it is to ask.
    """

    robot: str
    token: str
    root: str
    poll_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class RobotTally:
    """What a robot has counted of one release since it ran it first; it only grows.

    Args:
        target: The release, as TUF has it.
        latency_ms: The 99th percentile of its policy's answers, 0 where nobody measured.
    """

    target: str
    episodes: int = 0
    successes: int = 0
    missed_deadlines: int = 0
    safety_stops: int = 0
    latency_ms: float = 0.0

    def __post_init__(self) -> None:
        """Checks that it can be so.

        Raises:
            InvalidInput: It cannot.
        """
        least = min(self.successes, self.missed_deadlines, self.safety_stops, self.latency_ms)
        if least < 0 or self.successes > self.episodes or len(self.target) > 255:
            raise InvalidInput("read a robot's tally", on=self.target[:80], got="counts that cannot be")

    def plus(self, other: RobotTally) -> RobotTally:
        """Returns both together; of latencies the worse.

        Args:
            other: Of another robot, or release.
        """
        return RobotTally(
            target=self.target,
            episodes=self.episodes + other.episodes,
            successes=self.successes + other.successes,
            missed_deadlines=self.missed_deadlines + other.missed_deadlines,
            safety_stops=self.safety_stops + other.safety_stops,
            latency_ms=max(self.latency_ms, other.latency_ms),
        )


@message("RobotReport")
class RobotReport:
    """What a robot is and how it does, as our agent tells it in an attribute of DDI.

    Args:
        runtime: The release of Mainspring on it.
        runs: The target that is committed, "" for none.
        before: The target in its other slot, "" for none.
        healthy: Whether what is committed is healthy.
        why: What is wrong, in words.
    """

    fits: Embodiment
    runtime: str
    runs: str = ""
    before: str = ""
    healthy: bool = True
    why: str = ""
    tallies: tuple[RobotTally, ...] = ()


@message("RobotActionView")
class RobotActionView:
    """One installation on one robot.

    Args:
        number: What DDI calls it.
        release: "NAME@VERSION".
        rollout: Its number, None where somebody asked for it alone.
        words: What the robot last said.
        seen: Whether the robot has asked what it is to do.
    """

    number: int
    robot: str
    release: str
    state: ActionState
    made_s: float
    changed_s: float
    rollout: int | None = None
    words: str = ""
    seen: bool = False


@message("RobotView")
class RobotView:
    """A robot.

    Args:
        key: Its public key, "" for a plain client of DDI.
        maker: Who enrolled it.
        contact_s: When it last called, None for never.
        clash_s: When two devices were last seen to call by its key, None for never.
        runs: The release that is committed on it as "NAME@VERSION", "" for none that is known.
        report: What it last told; None for never.
        attributes: What else it told by DDI.
        action: What is being installed.
        rollout: The newest that has it, None for none lately.
        ring: The ring that it is in there, "" for none.
    """

    name: str
    team: TeamName
    group: str
    labels: Mapping[str, str]
    state: RobotState
    key: str
    maker: str
    made_s: float
    contact_s: float | None
    address: str
    clash_s: float | None
    runs: str = ""
    report: RobotReport | None = None
    attributes: Mapping[str, str] = field(default_factory=dict)
    action: RobotActionView | None = None
    rollout: int | None = None
    ring: str = ""


@message("RobotLabels")
class RobotLabels:
    """A robot's group and labels, in place of those it had.

    Args:
        group: None to leave it as it is.
        labels: None to leave them as they are.
    """

    group: str | None = None
    labels: Mapping[str, str] | None = None

    def __post_init__(self) -> None:
        """Checks both.

        Raises:
            InvalidInput: One is out of its range.
        """
        if self.group:
            checked_name(self.group, "a group of robots")
        checked_labels(self.labels or {})


@message("NewInstallation")
class NewInstallation:
    """A release that one robot is to install, outside any rollout.

    Args:
        release: "NAME@VERSION", or the newest of a name.
        confirm: Whether somebody at the robot is to confirm it first.
    """

    release: str
    confirm: bool = False
