"""Reads from a log, in one pass, what a recipe needs of it except the images themselves."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mainspring.data.episode import FRAMES_MAX, Integers
from mainspring.data.intake.logs.align import advancing
from mainspring.data.intake.logs.cameras import ImageKind, image_kind, keys_of
from mainspring.data.intake.logs.recipe import CutBy, MappingRecipe
from mainspring.data.readers.messages import Log, Messages, Topic
from mainspring.domain.errors import DamagedData, InvalidInput, nearest

LOG_VALUES_BYTES_MAX = 2 << 30  # Numbers and text kept of one log: 8 hours of 1,000 numbers at 100 Hz in float64.
_GARBLED = "\ufffd"  # What readers put for bytes that are no UTF-8.
_INDEX = re.compile(r"\[[^\]]*\]")


@dataclass(frozen=True, slots=True, kw_only=True)
class Need:
    """A stream that a recipe reads: one topic under one clock.

    Args:
        topic: Its topic.
        stamp: Path of the time; "" for the log's own.
        field: What is wanted of each message; "" for nothing but its time.
        keys: See `Part.keys`.
        names: See `Part.names`; only with keys.
        image: Whether it is a camera.
    """

    topic: str
    stamp: str = ""
    field: str = ""
    keys: str = ""
    names: tuple[str, ...] = ()
    image: bool = False


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Stream:
    """What a log holds of it.

    Args:
        time_ns: [N] advancing.
        values: [N, D] numbers, N texts, or nothing.
        number: [N] which of the topic's messages each is.
        key: Numbers of the packets that decoding can begin at; of cameras whose packets depend on each other.
        count: How many messages the topic has.
        dropped: Messages left out because one before carries the same time.
        garbled: Messages whose text is none: its bytes are no UTF-8.
    """

    time_ns: Integers
    values: NDArray[Any] | tuple[str, ...]
    number: Integers
    key: Integers
    count: int
    dropped: int
    garbled: int = 0


def needs_of(recipe: MappingRecipe) -> dict[str, tuple[Need, ...]]:
    """Returns the streams a recipe reads: by column, by camera as "camera:name", and by purpose.

    Args:
        recipe: The recipe.
    """
    needs = {
        name: tuple(
            Need(
                topic=part.topic,
                stamp=part.stamp,
                field=part.field,
                keys=part.keys,
                names=part.names if part.keys else (),
            )
            for part in parts
        )
        for name, parts in recipe.columns.items()
    }
    needs |= {
        f"camera:{name}": (Need(topic=camera.topic, stamp=camera.stamp, image=True),)
        for name, camera in recipe.cameras.items()
    }
    cut = recipe.cut
    if recipe.steps:
        needs["cut:steps"] = (Need(topic=recipe.steps),)
    if cut.by is CutBy.FLAG:
        needs["cut:flag"] = (Need(topic=cut.topic, field=cut.field),)
    if cut.by is CutBy.MARKS:
        needs["cut:start"] = (Need(topic=cut.start),)
        needs["cut:stop"] = (Need(topic=cut.stop),) if cut.stop else ()
    for purpose, fact in (("task", recipe.task), ("success", recipe.success), ("robot", recipe.robot)):
        if fact.topic:
            needs[f"fact:{purpose}"] = (Need(topic=fact.topic, field=fact.field),)
    return needs


def checked_topics(needs: Mapping[str, tuple[Need, ...]], topics: Sequence[Topic], on: str) -> dict[str, Topic]:
    """Returns the topics that are needed, by name.

    Args:
        needs: What is needed.
        topics: What a log has.
        on: The log's name.

    Raises:
        InvalidInput: A topic or field is not there, and which is nearest; or one of no use for its purpose.
        DamagedData: A topic cannot be decoded.
    """
    known = {topic.name: topic for topic in topics}
    for need in (need for group in needs.values() for need in group):
        topic = known.get(need.topic)
        if topic is None:
            raise InvalidInput(
                "map a log", on=on, got=f"no topic {need.topic[:200]!r}", wanted=nearest(need.topic[:200], known)
            )
        if topic.problem:
            raise DamagedData("map a log", on=f"{on} {topic.name}", got=topic.problem)
        fields = {_INDEX.sub("", field.path): field for field in topic.fields}
        for path in filter(None, (need.stamp, need.field, need.keys)):
            if _INDEX.sub("", path) not in fields:
                got = f"no field {path[:200]!r} in {topic.type}"
                raise InvalidInput("map a log", on=f"{on} {topic.name}", got=got, wanted=nearest(path[:200], fields))
        if need.stamp and fields[_INDEX.sub("", need.stamp)].kind != "time":
            times = [field.path for field in topic.fields if field.kind == "time"]
            got, wanted = f"stamp {need.stamp!r}, no time", f"one of {', '.join(times) or 'none, that is log time'}"
            raise InvalidInput("map a log", on=f"{on} {topic.name}", got=got, wanted=wanted)
        if need.image and image_kind(topic) is None:
            got = f"messages of {topic.type}"
            raise InvalidInput("map a log", on=f"{on} {topic.name}", got=got, wanted="images, or packets of video")
    return {need.topic: known[need.topic] for group in needs.values() for need in group}


def read_streams(log: Log, needs: Mapping[str, tuple[Need, ...]], topics: Mapping[str, Topic]) -> dict[Need, Stream]:
    """Returns every needed stream.

    Args:
        log: Where from.
        needs: What is needed.
        topics: As `checked_topics` returned them.

    Raises:
        DamagedData: A clock jumps back, messages differ in width, or there are too many.
        InvalidInput: A field cannot be used for its purpose.
    """
    gathering = {need: _Gathering(need) for group in needs.values() for need in group}
    kinds = {need: image_kind(topics[need.topic]) for need in gathering if need.image}
    size_bytes = 0
    for messages in log.batches(wanted_of(needs, topics)):
        for need, parts in gathering.items():
            if need.topic == messages.topic:
                size_bytes += parts.take(messages, kinds.get(need))
        if size_bytes > LOG_VALUES_BYTES_MAX:
            raise InvalidInput(
                "map a log",
                on=log.name,
                got=f"over {LOG_VALUES_BYTES_MAX >> 20} MiB of numbers",
                wanted="a shorter recording, or fewer fields",
            )
    return {need: parts.stream() for need, parts in gathering.items()}


def wanted_of(needs: Mapping[str, tuple[Need, ...]], topics: Mapping[str, Topic]) -> dict[str, tuple[str, ...]]:
    """Returns the fields to ask a log for, by topic.

    Images are asked for whenever their times are: a message that lacks a wanted field is left out, and both readings
    must leave out the same, since the images are found again by their number.

    Args:
        needs: What is needed.
        topics: As `checked_topics` returned them.
    """
    wanted: dict[str, set[str]] = {}
    for need in (need for group in needs.values() for need in group):
        paths = wanted.setdefault(need.topic, set())
        paths |= {path for path in (need.stamp, need.field, need.keys) if path}
        if need.image and (kind := image_kind(topics[need.topic])):
            paths |= {*kind.fields}
    return {topic: tuple(sorted(paths)) for topic, paths in wanted.items()}


class _Gathering:
    """Collects one stream."""

    def __init__(self, need: Need) -> None:
        self._need = need
        self._times: list[Integers] = []
        self._values: list[NDArray[Any]] = []
        self._texts: list[str] = []
        self._numbers: list[Integers] = []
        self._keys: list[Integers] = []
        self._width = -1
        self._seen = self._garbled = 0

    def take(self, messages: Messages, kind: ImageKind | None) -> int:
        """Adds a batch and returns about how many bytes that keeps."""
        need, first = self._need, self._seen
        self._seen += len(messages)
        if self._seen > FRAMES_MAX:
            raise DamagedData("map a log", on=need.topic, got=f"over {FRAMES_MAX} messages", wanted="fewer")
        stamp: Any = messages.fields[need.stamp] if need.stamp else messages.time_ns
        rows = np.arange(len(messages))
        if kind and kind.chained:
            self._keys.append(first + np.flatnonzero(keys_of(messages)))
        size_bytes = 16 * len(messages)
        if need.field:
            values: Any = messages.fields[need.field]
            if need.keys:
                rows, values = self._picked(values, messages.fields[need.keys])
            size_bytes += self._add(values)
        self._times.append(np.asarray(stamp, np.int64)[rows])
        self._numbers.append(first + rows)
        return size_bytes

    def stream(self) -> Stream:
        """Returns what came together."""
        time_ns = np.concatenate([*self._times, np.empty(0, np.int64)])
        kept = advancing(time_ns, self._need.topic)
        values: NDArray[Any] | tuple[str, ...] = tuple(self._texts)
        if self._values:
            values = np.concatenate(self._values)[kept]
        elif self._texts:
            values = tuple(text for text, keep in zip(self._texts, kept.tolist(), strict=True) if keep)
        elif self._need.field:
            values = np.empty((0, 1))
        return Stream(
            time_ns=time_ns[kept],
            values=values,
            number=np.concatenate([*self._numbers, np.empty(0, np.int64)])[kept],
            key=np.concatenate([*self._keys, np.empty(0, np.int64)]),
            count=self._seen,
            dropped=len(kept) - int(np.count_nonzero(kept)),
            garbled=self._garbled,
        )

    def _add(self, values: Any) -> int:
        topic, path = self._need.topic, self._need.field
        if not isinstance(values, np.ndarray):
            if not all(isinstance(value, str) for value in values):
                raise InvalidInput(
                    "map a log", on=f"{topic} {path}", got="bytes or lists of text", wanted="numbers or text"
                )
            self._texts.extend(values)
            self._garbled += sum(_GARBLED in value for value in values)
            return sum(map(len, values))
        flat = values.reshape(len(values), math.prod(values.shape[1:]))
        if self._width not in (-1, flat.shape[1]):
            raise DamagedData(
                "map a log",
                on=f"{topic} {path}",
                got=f"vectors of {self._width} and of {flat.shape[1]}",
                wanted="one length; keys may pick by name",
            )
        self._width = flat.shape[1]
        self._values.append(flat)
        return int(flat.nbytes)

    def _picked(self, values: Any, keys: Any) -> tuple[Integers, NDArray[Any]]:
        """Returns the rows that have every name, and their values in the order of the names."""
        names = self._need.names
        if not isinstance(values, np.ndarray) or isinstance(keys, np.ndarray) or values.ndim != 2:
            raise InvalidInput(
                "map a log",
                on=f"{self._need.topic} {self._need.field} by {self._need.keys}",
                got="no vectors with names",
                wanted="numbers, and a list of text",
            )
        rows: list[int] = []
        places: list[Sequence[int]] = []
        known: dict[tuple[str, ...], tuple[int, ...] | None] = {}
        wrong: set[tuple[str, ...]] = set()
        for row, said in enumerate(keys):
            if said not in known:
                at = {name: place for place, name in enumerate(said) if place < values.shape[1]}
                known[said] = tuple(at[name] for name in names) if at.keys() >= {*names} else None
                wrong |= {said} if any(_GARBLED in name for name in said) else set()
            self._garbled += said in wrong
            if (found := known[said]) is not None:
                rows.append(row)
                places.append(found)
        index = np.array(rows, np.int64)
        return index, values[index[:, None], np.array(places, np.int64).reshape(len(rows), len(names))]


def said_at(stream: Stream, first_ns: int, last_ns: int) -> Iterator[object]:
    """Yields what a stream says in a stretch of time, in order.

    Args:
        stream: Of text or numbers.
        first_ns: The stretch begins.
        last_ns: It ends, included.
    """
    begin = int(np.searchsorted(stream.time_ns, first_ns, side="left"))
    end = int(np.searchsorted(stream.time_ns, last_ns, side="right"))
    for value in stream.values[begin:end]:
        yield value if isinstance(value, str) else value[0].item()
