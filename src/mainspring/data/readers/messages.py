"""The words of logs: topics, their fields, and messages decoded to columns."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from mainspring.data.readers.gone import Gone
from mainspring.domain.errors import InvalidInput

RECORD_BYTES_MAX = 128 << 20  # Chunks of robots are 1 to 16 MiB; a length that lies must not take the memory.
FIELDS_MAX = 4_096  # Of one topic; a type may nest itself into more leaves than anybody can list.
DEPTH_MAX = 16  # Of nested types; ROS's own deepest is 7.
INDEX_MAX = 1 << 20
_STEP = re.compile(r"\.?([^.\[\]]+)|\[(\d{1,7})\]|\[(\d{1,7}):(\d{1,7})\]")

Kind = Literal["number", "text", "bytes", "time"]
Values: TypeAlias = NDArray[Any] | tuple[bytes, ...] | tuple[str, ...] | tuple[tuple[str, ...], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageField:
    """What can be read from each message of a topic.

    Args:
        path: How it is asked for: `pose.position.x`, `position`, `position[3]`, `position[0:7]`, `header.stamp`.
        kind: What its values are; of a time, integer nanoseconds.
        dims: Its shape in each message, () for one value; of vectors without a declared length, the shape in the first
            message; None when even that is not known.
    """

    path: str
    kind: Kind
    dims: tuple[int, ...] | None = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Topic:
    """One stream of messages of a log.

    Args:
        name: Its name.
        type: Name of its messages' type, as the file says it.
        encoding: "cdr", "ros1", "json", "protobuf" or "ulog".
        count: How many messages; None when nobody counted.
        fields: What can be read from them.
        problem: Why its messages cannot be decoded; "" when they can.
    """

    name: str
    type: str
    encoding: str
    count: int | None
    fields: tuple[MessageField, ...] = ()
    problem: str = ""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Messages:
    """Consecutive messages of one topic as columns; within it each field has one shape.

    Args:
        topic: The topic's name.
        time_ns: [N] int64, when each was logged; as the file says it, even where it jumps back.
        fields: By path. Numbers and times: [N, ...], in the type of the message, times int64 nanoseconds; bytes, text
            and vectors of text: a tuple of N.
    """

    topic: str
    time_ns: NDArray[np.int64]
    fields: Mapping[str, Values]

    def __len__(self) -> int:
        """Returns how many messages."""
        return len(self.time_ns)


class Log(Protocol):
    """A file, or a folder of files, of messages by topic."""

    @property
    def name(self) -> str:
        """Returns the name of the file or folder."""

    @property
    def damage(self) -> str:
        """Returns "", or what was wrong with what was read so far, in words; `losses` tells what that took away."""

    def topics(self) -> tuple[Topic, ...]:
        """Returns its topics in name order; repeatable; reads the whole file when it has no index.

        Raises:
            DamagedData: Nothing in it can be read.
        """

    def batches(self, wanted: Mapping[str, tuple[str, ...]]) -> Iterator[Messages]:
        """Yields the messages of some topics as columns, about 16 MiB of messages at a time; repeatable.

        Those of one topic come in the order of the file. One that cannot be decoded, or has not every wanted field, is
        left out, and `damage` and `losses` say so afterwards.

        Args:
            wanted: Topic to the paths of its fields.

        Raises:
            InvalidInput: There is no such topic or field, or its messages cannot be decoded.
            DamagedData: Nothing in it can be read.
        """

    def losses(self, wanted: Iterable[str]) -> tuple[Gone, ...]:
        """Returns what is gone of some topics, and what is gone that may be anyone's.

        Measured by the file's own index, header or metadata; where it has none, that nobody can know is a loss too.

        Args:
            wanted: Topics whose batches were read to the end.
        """


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class MessagePart:
    """Some messages of a batch, decoded: their places in it, and their fields."""

    rows: NDArray[np.int64]
    fields: Mapping[str, Values]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Decoded:
    """A batch decoded: parts in the batch's order, and why the rest was left out."""

    parts: tuple[MessagePart, ...]
    left_out: int = 0
    reason: str = ""


class Decoder(Protocol):
    """Turns the bytes of one topic's messages into columns."""

    def fields(self, example: bytes | None) -> tuple[MessageField, ...]:
        """Returns what can be read, with the shapes of an example; at most `FIELDS_MAX`."""

    def columns(self, paths: tuple[str, ...]) -> Callable[[Sequence[bytes]], Decoded]:
        """Returns what decodes batches to these fields.

        Raises:
            InvalidInput: There is no such field.
        """


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One step of a path: a name, an item, or a range of items."""

    name: str = ""
    start: int = -1
    stop: int = -1  # -1: one item, not a range.


def steps_of(path: str) -> tuple[Step, ...]:
    """Returns a path's steps.

    Args:
        path: Such as `transforms[0].transform.translation.x` or `position[0:7]`.

    Raises:
        InvalidInput: It is not a path.
    """
    steps: list[Step] = []
    place = 0
    while place < len(path) and len(steps) <= 2 * DEPTH_MAX and (found := _STEP.match(path, place)):
        name, item, start, stop = found.groups()
        if name:
            steps.append(Step(name=name))
        elif item:
            steps.append(Step(start=int(item)))
        else:
            steps.append(Step(start=int(start), stop=int(stop)))
        place = found.end()
    bad_range = any(0 <= step.stop <= step.start or step.stop > INDEX_MAX for step in steps)
    inner_range = any(step.stop >= 0 for step in steps[:-1])
    if place != len(path) or not steps or not steps[0].name or path.startswith(".") or bad_range or inner_range:
        raise InvalidInput(
            "read a field", got=repr(path[:200]), wanted="a path such as pose.position.x, position[3] or position[0:7]"
        )
    return tuple(steps)
