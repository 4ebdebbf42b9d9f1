"""What a robot keeps of what it sees, and what it sends: typed, written by people as YAML."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from types import MappingProxyType

import yaml

from mainspring.domain.codec import from_plain
from mainspring.domain.errors import InvalidInput, InvalidSpec, NotFound
from mainspring.domain.ids import checked_name
from mainspring.domain.job import Tier
from mainspring.robots.logs.expression import Condition

RULES_BYTES_MAX = 1 << 20
TRIGGERS_MAX, CAMERAS_MAX, TOPICS_MAX = 64, 32, 1_024
RING_MIB_MIN = 16  # Below this a segment holds less than a second of two cameras.
CLIP_S_MAX = 600.0  # Of one clip: longer is no moment that somebody looks at.
BUILT_IN = ("failure", "button", "held")  # Values that the recorder tells itself.
_DAY_MIB = MappingProxyType({Tier.CRITICAL: 4_096, Tier.STANDARD: 1_024, Tier.OPPORTUNISTIC: 256})
# A robot on a shared line of 1 Mbit/s sends 10 GiB a day; half of it is left to releases.


class CameraUse(str, Enum):
    """What becomes of a camera's pictures before anything is written."""

    KEEP = "keep"
    BLUR = "blur"  # To an eighth of its size and back: shapes stay, faces and screens do not.
    DROP = "drop"


@dataclass(frozen=True, slots=True, kw_only=True)
class CameraRule:
    """What is kept of a camera.

    Args:
        use: What becomes of its pictures.
        rate_hz: At most so many a second; None for all.
    """

    use: CameraUse = CameraUse.KEEP
    rate_hz: float | None = None

    def __post_init__(self) -> None:
        """Checks the rate."""
        _check_rate(self.rate_hz)


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicRule:
    """What is kept of a topic.

    Args:
        drop: Whether nothing is.
        rate_hz: At most so many messages a second; None for all.
    """

    drop: bool = False
    rate_hz: float | None = None

    def __post_init__(self) -> None:
        """Checks the rate."""
        _check_rate(self.rate_hz)


@dataclass(frozen=True, slots=True, kw_only=True)
class TriggerRule:
    """When a clip is cut out of the ring, and how urgent it is.

    Args:
        when: A condition; it fires when it begins to hold.
        for_s: For how long it must hold first.
        before_s: How much of what was before belongs to the clip; never more than the task under way.
        after_s: How much of what comes after; never more than the task under way.
        priority: How urgent its sending is.
        send: Whether it is sent by itself; else only what the lab asks for, though it knows of all.
        cooldown_s: Within so long after it fired it does not fire again.
        hour_max: So often an hour at most.
    """

    when: str
    for_s: float = 0.0
    before_s: float = 30.0
    after_s: float = 5.0
    priority: Tier = Tier.STANDARD
    send: bool = True
    cooldown_s: float = 10.0
    hour_max: int = 20

    def __post_init__(self) -> None:
        """Checks the ranges."""
        spans = (self.for_s, self.before_s, self.after_s, self.cooldown_s)
        if not all(0.0 <= span <= CLIP_S_MAX for span in spans) or self.before_s + self.after_s > CLIP_S_MAX:
            raise InvalidInput("accept a trigger", on=self.when[:80], wanted=f"0 to {CLIP_S_MAX:g} s, before and after")
        if self.hour_max < 1:
            raise InvalidInput("accept a trigger", on=self.when[:80], got=f"{self.hour_max}", wanted="hour_max over 0")


@dataclass(frozen=True, slots=True, kw_only=True)
class LogRules:
    """What a robot keeps and sends.

    Args:
        robot: The robot's name.
        dataset: What its clips join.
        rate_hz: Control steps a second.
        ring_mib: What the ring takes of the disk, never more.
        clips_mib: What clips take, never more: those that were sent go first, then the least urgent, the oldest first.
        clips_days: How long a clip is kept.
        values: Names of the values that conditions ask for, which the program tells.
        topics: What is kept of topics; all of those that are not named.
        cameras: What is kept of cameras; all of those that are not named.
        triggers: By name.
        day_mib: How much a day may be sent of each priority; what the lab asked for counts too.
    """

    robot: str
    dataset: str
    rate_hz: float = 50.0
    ring_mib: int = 2_048
    clips_mib: int = 4_096
    clips_days: float = 14.0
    values: tuple[str, ...] = ()
    topics: Mapping[str, TopicRule] = field(default_factory=dict)
    cameras: Mapping[str, CameraRule] = field(default_factory=dict)
    triggers: Mapping[str, TriggerRule] = field(default_factory=dict)
    day_mib: Mapping[Tier, int] = field(default_factory=lambda: dict(_DAY_MIB))

    def __post_init__(self) -> None:
        """Checks names, ranges and conditions."""
        for name, what in ((self.robot, "robot"), (self.dataset, "dataset")):
            checked_name(name, what)
        for name in self.triggers:
            checked_name(name, "trigger")
        for camera in self.cameras:
            checked_camera(camera)
        for name in self.values:
            if not name.isidentifier() or name in (*BUILT_IN, "and", "or", "not", "abs", "min", "max"):
                raise InvalidInput("accept a value", got=repr(name[:80]), wanted="a word, none that conditions have")
        checks = {
            f"ring_mib {RING_MIB_MIN} or more": self.ring_mib >= RING_MIB_MIN,
            "clips_mib 1 or more, clips_days over 0": self.clips_mib >= 1 and self.clips_days > 0,
            "rate_hz over 0": 0 < self.rate_hz < float("inf"),
            f"at most {TRIGGERS_MAX} triggers": len(self.triggers) <= TRIGGERS_MAX,
            f"at most {CAMERAS_MAX} cameras": len(self.cameras) <= CAMERAS_MAX,
            "day_mib 0 or more": all(mib >= 0 for mib in self.day_mib.values()),
        }
        if broken := [wanted for wanted, holds in checks.items() if not holds]:
            raise InvalidInput("accept rules of a log", on=self.robot, wanted="; ".join(broken))
        self.conditions()

    def conditions(self) -> dict[str, Condition]:
        """Returns the condition of each trigger."""
        known = (*BUILT_IN, *self.values)
        return {name: Condition(trigger.when, known) for name, trigger in self.triggers.items()}


def checked_camera(name: str) -> str:
    """Returns the name of a camera, or raises `InvalidInput`."""
    if not name or len(name) > 120 or not name.replace("_", "").replace(".", "").replace("-", "").isalnum():
        raise InvalidInput("accept a camera", got=repr(name[:80]), wanted="letters, digits, '_', '.' and '-'")
    return name


def rules_from_yaml(path: Path) -> LogRules:
    """Returns the rules in a file.

    Raises:
        NotFound: There is no such file.
        InvalidSpec: It is no YAML, or holds a field that is unknown, missing, or of another type.
        InvalidInput: Its values contradict each other.
    """
    try:
        with path.open("rb") as file:
            data = file.read(RULES_BYTES_MAX + 1)
    except OSError as error:
        raise NotFound("read rules of a log", on=str(path), got=error.strerror or str(error)) from error
    if len(data) > RULES_BYTES_MAX:
        raise InvalidSpec("read rules of a log", on=str(path), wanted=f"at most {RULES_BYTES_MAX} bytes")
    try:
        return from_plain(LogRules, yaml.safe_load(data), strict=True)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        got = " ".join(str(error).split())[:300]
        raise InvalidSpec("read rules of a log", on=str(path), got=got, wanted="YAML") from error
    except InvalidInput as error:
        on = f"{path}, {error.on}" if error.on else str(path)
        raise type(error)("read rules of a log", on=on, got=error.got, wanted=error.wanted) from error


def _check_rate(rate_hz: float | None) -> None:
    if rate_hz is not None and not 0 < rate_hz < float("inf"):
        raise InvalidInput("accept a rate", got=f"{rate_hz:g} Hz", wanted="over 0")
