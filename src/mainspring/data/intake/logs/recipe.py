"""Mapping recipe: how topics of a log become columns and cameras; typed, written by people as YAML."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from fractions import Fraction
from pathlib import Path
from typing import TypeAlias

import yaml
from blake3 import blake3

from mainspring.data.readers.episodes.table.recipe import TABLE_KIND, TableRecipe
from mainspring.data.recording import RATE_HZ_MAX
from mainspring.domain.codec import from_plain, to_plain
from mainspring.domain.errors import InvalidInput, InvalidSpec, NotFound

RECIPE_BYTES_MAX = 1 << 20  # A recipe that names 4,096 joints one by one has 100 KB.
PARTS_MAX = 256
TOLERANCE_MS_MAX = 86_400_000.0  # A day: who holds a value for longer has no stream.
RATE_DENOMINATOR_MAX = 1_001  # Television's 30000/1001 is the oddest rate in use.
RATE_HZ_MIN = 0.01
_MEANING = 1  # Of recipes as a whole: raised when the same recipe makes other episodes of the same log.
_HASH_LETTERS = 16
_NANOSECONDS_PER_MS = 1_000_000


class Align(str, Enum):
    """How a stream's values are found at an episode's steps."""

    NEAREST = "nearest"  # The message nearest in time, the earlier of two.
    HOLD = "hold"  # The last message before the step, or at it.
    INTERPOLATE = "interpolate"  # On the line between the messages around it.


class CutBy(str, Enum):
    """What ends one episode of a log and begins the next."""

    FILE = "file"  # Nothing: a log is an episode.
    GAP = "gap"  # A pause of any stream that is not held.
    FLAG = "flag"  # A field that is true while an episode lasts.
    MARKS = "marks"  # A message on one topic begins it, one on another ends it.


@dataclass(frozen=True, slots=True, kw_only=True)
class RecipePart:
    """A stream of numbers that becomes some dimensions of a column.

    Args:
        topic: Where its messages are.
        field: Path of the field inside a message, such as "position" or "pose.position.x".
        tolerance_ms: How far from a step in time a message may lie that stands for it.
        align: How the value at a step is found.
        names: One for each dimension; made from topic and field when empty.
        keys: Path of the field that names the dimensions in each message, such as "name" of a joint state; those in
            `names` are then picked by it, whatever their order, and a message without them is passed over.
        stamp: Path of the field that says when a message was true, such as "header.stamp"; when empty, the time at
            which the recorder wrote it.
    """

    topic: str
    field: str
    tolerance_ms: float
    align: Align = Align.NEAREST
    names: tuple[str, ...] = ()
    keys: str = ""
    stamp: str = ""

    def __post_init__(self) -> None:
        """Checks the tolerance and the names."""
        _checked_tolerance(self.topic, self.tolerance_ms)
        if self.keys and not self.names:
            raise _refused(f"topic {self.topic}", "keys without names", "the names to pick by them")

    @property
    def tolerance_ns(self) -> int:
        """Returns the tolerance in whole nanoseconds."""
        return round(self.tolerance_ms * _NANOSECONDS_PER_MS)


@dataclass(frozen=True, slots=True, kw_only=True)
class CameraPart:
    """A stream of images that becomes a camera.

    Args:
        topic: Where its messages are.
        tolerance_ms: How far from a step in time an image may lie that stands for it.
        align: How the image at a step is found: the nearest, or the last.
        stamp: See `RecipePart`.
    """

    topic: str
    tolerance_ms: float
    align: Align = Align.NEAREST
    stamp: str = ""

    def __post_init__(self) -> None:
        """Checks the tolerance, and that nobody wants to see what is between two images."""
        _checked_tolerance(self.topic, self.tolerance_ms)
        if self.align is Align.INTERPOLATE:
            raise _refused(f"camera {self.topic}", "align: interpolate", "nearest or hold: images have no in-between")

    @property
    def tolerance_ns(self) -> int:
        """Returns the tolerance in whole nanoseconds."""
        return round(self.tolerance_ms * _NANOSECONDS_PER_MS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cut:
    """How a log is cut into episodes.

    Args:
        by: What cuts it.
        gap_s: With `gap`: the shortest pause that does.
        topic: With `flag`: the topic of the flag.
        field: With `flag`: its field.
        start: With `marks`: the topic whose messages begin an episode.
        stop: With `marks`: the topic whose messages end it; without a stop it lasts until the next start.
    """

    by: CutBy = CutBy.FILE
    gap_s: float = 0.0
    topic: str = ""
    field: str = "data"
    start: str = ""
    stop: str = ""

    def __post_init__(self) -> None:
        """Checks that what the kind needs is there."""
        missing = {
            CutBy.FILE: "",
            CutBy.GAP: "" if self.gap_s > 0 else "gap_s over 0",
            CutBy.FLAG: "" if self.topic and self.field else "topic and field",
            CutBy.MARKS: "" if self.start else "start",
        }[self.by]
        if missing:
            raise _refused("cut", f"by: {self.by.value}", f"with it {missing}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Fact:
    """Something that holds for a whole episode, and where it is said; at most one of the three.

    Args:
        text: The fact itself, the same for every episode.
        topic: A topic whose messages say it.
        field: Their field.
        metadata: The key of the file's own metadata that says it.
    """

    text: str = ""
    topic: str = ""
    field: str = "data"
    metadata: str = ""

    def __post_init__(self) -> None:
        """Checks that it is said in one place."""
        if sum(map(bool, (self.text, self.topic, self.metadata))) > 1:
            raise _refused("a fact", "several of text, topic and metadata", "one of them")


@dataclass(frozen=True, slots=True, kw_only=True)
class MappingRecipe:
    """Makes episodes of a log.

    Args:
        rate_hz: Steps per second of the episodes.
        columns: By name, the parts that are joined into one vector, in order. A policy is trained on "state" and
            "action".
        cameras: By name.
        cut: How a log is cut into episodes.
        task: What the robot was asked to do: the last said before an episode begins, else the first in it.
        success: Whether it was done: the last said from an episode's begin to the next one's.
        robot: Kind of robot.
        metadata: What else holds for every episode, in words.
        steps: A topic whose messages are the steps, at their log times; when empty, steps are at the rate.
    """

    rate_hz: float
    columns: Mapping[str, tuple[RecipePart, ...]]
    cameras: Mapping[str, CameraPart] = field(default_factory=dict)
    cut: Cut = field(default_factory=Cut)
    task: Fact = field(default_factory=Fact)
    success: Fact = field(default_factory=Fact)
    robot: Fact = field(default_factory=Fact)
    metadata: Mapping[str, str] = field(default_factory=dict)
    steps: str = ""

    def __post_init__(self) -> None:
        """Checks the rate and the columns."""
        if not RATE_HZ_MIN <= self.rate_hz <= RATE_HZ_MAX:
            raise _refused("rate_hz", f"{self.rate_hz:g}", f"{RATE_HZ_MIN:g} to {RATE_HZ_MAX:g}")
        parts = sum(map(len, self.columns.values())) + len(self.cameras)
        if not self.columns or not all(self.columns.values()) or parts > PARTS_MAX:
            raise _refused("columns", f"{len(self.columns)} columns, {parts} parts", f"1 to {PARTS_MAX} parts")
        if taken := sorted({"time_ns", "frame"} & self.columns.keys()):
            raise _refused("columns", repr(taken[0]), "another name: every episode has that column already")
        if bad := [name for name in (*self.columns, *self.cameras) if not name or ":" in name]:
            raise _refused("columns and cameras", repr(bad[0]), "names without a colon")

    @property
    def rate(self) -> Fraction:
        """Returns the rate, exact."""
        return Fraction(self.rate_hz).limit_denominator(RATE_DENOMINATOR_MAX)

    @property
    def id(self) -> str:
        """Returns the hash of what it means."""
        plain = json.dumps([_MEANING, to_plain(self)], sort_keys=True, separators=(",", ":"))
        return blake3(plain.encode()).hexdigest()[:_HASH_LETTERS]


def recipe_from_yaml(path: Path) -> Recipe:
    """Returns the recipe in a file.

    Args:
        path: A YAML file, as `ms data inspect` writes one.

    Raises:
        NotFound: There is no such file.
        InvalidSpec: It is not YAML, or a field is unknown, missing, or of the wrong type; the nearest one is named.
        InvalidInput: Its values contradict each other.
    """
    try:
        with path.open("rb") as file:
            data = file.read(RECIPE_BYTES_MAX + 1)
    except OSError as error:
        raise NotFound("read a recipe", on=str(path), got=error.strerror or str(error)) from error
    if len(data) > RECIPE_BYTES_MAX:
        raise InvalidSpec(
            "read a recipe", on=str(path), got="a larger file", wanted=f"at most {RECIPE_BYTES_MAX} bytes"
        )
    try:
        return recipe_from_plain(yaml.safe_load(data))
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise InvalidSpec(
            "read a recipe", on=str(path), got=" ".join(str(error).split())[:300], wanted="YAML"
        ) from error
    except InvalidInput as error:
        raise InvalidSpec(
            "read a recipe", on=f"{path}, {error.on}" if error.on else str(path), got=error.got, wanted=error.wanted
        ) from error


Recipe: TypeAlias = MappingRecipe | TableRecipe


def recipe_from_plain(plain: object) -> Recipe:
    """Returns the recipe that a parsed document holds.

    Args:
        plain: What a YAML or JSON reader gave.

    Raises:
        InvalidSpec: A field is unknown, missing, or of the wrong type; the nearest one is named.
        InvalidInput: Its values contradict each other.
    """
    if isinstance(plain, dict) and (kind := plain.get("kind")) is not None:
        rest = {key: value for key, value in plain.items() if key != "kind"}
        if kind == TABLE_KIND:
            return from_plain(TableRecipe, rest, strict=True)
        raise _refused("kind", repr(kind)[:80], f"{TABLE_KIND}; none for a recipe of topics")
    return from_plain(MappingRecipe, plain, strict=True)


def _checked_tolerance(topic: str, tolerance_ms: float) -> None:
    if not 0 <= tolerance_ms <= TOLERANCE_MS_MAX:
        raise _refused(f"topic {topic}", f"tolerance_ms {tolerance_ms:g}", f"0 to {TOLERANCE_MS_MAX:g}")


def _refused(on: str, got: str, wanted: str) -> InvalidInput:
    return InvalidInput("accept a recipe", on=on, got=got, wanted=wanted)
