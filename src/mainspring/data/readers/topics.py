"""A log over any container of messages: topics, their fields, and batches of columns in bounded memory."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from mainspring.data.readers.gone import Gone, Notes, Unfit, gone_of, gone_of_all
from mainspring.data.readers.messages import Decoded, Decoder, Messages, Topic
from mainspring.domain.errors import InvalidInput, MainspringError, nearest

BATCH_BYTES = 16 << 20  # Waiting to be decoded, over all topics: large enough to amortise NumPy's calls.
BATCH_MESSAGES = 65_536  # Small messages cost more as Python objects than their bytes do.
EXAMPLES_BYTES = 64 << 20  # Read in search of an example of each topic.
TOPICS_MAX = 65_536


@dataclass(frozen=True, slots=True, kw_only=True)
class Channel:
    """One writer's stream inside a container; several may share a topic.

    Args:
        id: Its number in the container.
        topic: The topic's name.
        type: Name of its messages' type.
        encoding: See `Topic`.
        definition: What its type means, to tell whether two are alike.
        decoder: Makes what decodes its messages; raises `InvalidInput` when they cannot be.
        count: How many messages; None when nobody counted.
    """

    id: int
    topic: str
    type: str
    encoding: str
    definition: bytes
    decoder: Callable[[], Decoder]
    count: int | None = None


class Container(Protocol):
    """A file of messages. It reads forward, holds one chunk at a time, and notes damage instead of raising."""

    def channels(self, notes: Notes) -> tuple[Channel, ...]:
        """Returns its channels, from its index or by reading all of it; notes what its index tells.

        Raises:
            DamagedData: Nothing in it can be read.
        """

    def messages(self, wanted: frozenset[int], notes: Notes) -> Iterator[tuple[int, int, bytes]]:
        """Yields channel, log time in nanoseconds and bytes, in file order.

        Raises:
            DamagedData: Nothing in it can be read.
        """


class TopicLog:
    """A log that is one container; see `Log`.

    Args:
        path: The file.
        container: What reads it.
    """

    def __init__(self, path: Path, container: Container) -> None:
        self._path = path
        self._container = container
        self._topics: tuple[Topic, ...] | None = None
        self._channels: tuple[Channel, ...] = ()
        self._notes = Notes()
        self._read: dict[str, int] = {}
        self._unfit: dict[str, Unfit] = {}

    @property
    def name(self) -> str:
        """See `Log.name`."""
        return self._path.name

    @property
    def damage(self) -> str:
        """See `Log.damage`."""
        return "; ".join(self._notes.texts)

    def topics(self) -> tuple[Topic, ...]:
        """See `Log.topics`."""
        if self._topics is None:
            self._channels = self._container.channels(self._notes)
            if len(self._channels) > TOPICS_MAX:
                raise InvalidInput(
                    "read a log", on=self.name, got=f"{len(self._channels)} channels", wanted=f"at most {TOPICS_MAX}"
                )
            examples = self._examples()
            self._topics = tuple(
                _topic(name, channels, examples.get(name)) for name, channels in sorted(self._by_topic().items())
            )
        return self._topics

    def batches(self, wanted: Mapping[str, tuple[str, ...]]) -> Iterator[Messages]:
        """See `Log.batches`."""
        readers = self._readers(wanted)
        by_topic = self._by_topic()
        return self._batches(readers, {channel.id: topic for topic in wanted for channel in by_topic[topic]})

    def losses(self, wanted: Iterable[str]) -> tuple[Gone, ...]:
        """See `Log.losses`."""
        by_topic = self._by_topic()
        found = list(gone_of_all(self._notes))
        for name in sorted(wanted):
            channels = frozenset(channel.id for channel in by_topic[name])
            if name in self._read:
                found += gone_of(name, channels, self._read[name], self._unfit[name], self._notes)
        return tuple(found)

    def _batches(self, readers: Mapping[str, _TopicReader], topic_of: Mapping[int, str]) -> Iterator[Messages]:
        waiting_bytes = waiting = 0
        for channel, time_ns, data in self._container.messages(frozenset(topic_of), self._notes):
            reader = readers[topic_of[channel]]
            reader.times.append(time_ns)
            reader.messages.append(data)
            waiting_bytes += len(data)
            waiting += 1
            if waiting_bytes >= BATCH_BYTES or waiting >= BATCH_MESSAGES:
                waiting_bytes = waiting = 0
                for each in readers.values():
                    yield from each.flush()
        for each in readers.values():
            yield from each.flush()
        for each in readers.values():
            self._read[each.topic], self._unfit[each.topic] = each.seen, each.unfit
            if each.unfit.count:
                self._notes.add(f"{each.unfit.count} messages of {each.topic} were left out: {each.unfit.reason}")

    def _readers(self, wanted: Mapping[str, tuple[str, ...]]) -> dict[str, _TopicReader]:
        known = {topic.name: topic for topic in self.topics()}
        by_topic = self._by_topic()
        readers = {}
        for name, paths in wanted.items():
            readable(self.name, name, known)
            readers[name] = _TopicReader(topic=name, decode=by_topic[name][0].decoder().columns(paths))
        return readers

    def _by_topic(self) -> dict[str, list[Channel]]:
        found: dict[str, list[Channel]] = {}
        for channel in self._channels:
            found.setdefault(channel.topic, []).append(channel)
        return found

    def _examples(self) -> dict[str, bytes]:
        """Returns the first message of each topic, of those that come early enough."""
        missing = {channel.id: channel.topic for channel in self._channels if channel.count != 0}
        examples: dict[str, bytes] = {}
        seen = 0
        if missing:
            for channel, _, data in self._container.messages(frozenset(missing), Notes()):
                examples.setdefault(missing[channel], data)
                seen += len(data)
                if len(examples) == len(set(missing.values())) or seen > EXAMPLES_BYTES:
                    break
        return examples


def readable(log: str, name: str, known: Mapping[str, Topic]) -> None:
    """Checks that a topic can be read.

    Args:
        log: The log's name.
        name: The topic's.
        known: The log's topics.

    Raises:
        InvalidInput: There is no such topic, or its messages cannot be decoded.
    """
    if name not in known:
        raise InvalidInput("read a topic", on=log, got=repr(name[:200]), wanted=nearest(name, known)[:400])
    if known[name].problem:
        raise InvalidInput("read a topic", on=f"{log} {name}", got=known[name].problem)


@dataclass(slots=True, kw_only=True)
class _TopicReader:
    """Messages of a topic that wait to be decoded."""

    topic: str
    decode: Callable[[list[bytes]], Decoded]
    times: list[int] = field(default_factory=list)
    messages: list[bytes] = field(default_factory=list)
    seen: int = 0
    unfit: Unfit = field(default_factory=Unfit)

    def flush(self) -> Iterator[Messages]:
        if not self.messages:
            return
        # Unsigned in most files; what does not fit in 63 bits is as wrong as a negative time.
        times = np.array(self.times, dtype=np.uint64).view(np.int64)
        decoded = self.decode(self.messages)
        self.seen += len(self.messages)
        self.times, self.messages = [], []
        if decoded.left_out:
            self._leave_out(decoded, times)
        for part in decoded.parts:
            yield Messages(topic=self.topic, time_ns=times[part.rows], fields=part.fields)

    def _leave_out(self, decoded: Decoded, times: NDArray[np.int64]) -> None:
        out = np.ones(len(times), np.bool_)
        for part in decoded.parts:
            out[part.rows] = False
        unfit = self.unfit
        unfit.count += decoded.left_out
        unfit.reason = unfit.reason or decoded.reason
        unfit.begin_ns = min(unfit.begin_ns, int(times[out].min(initial=unfit.begin_ns)))
        unfit.end_ns = max(unfit.end_ns, int(times[out].max(initial=unfit.end_ns)))


def _topic(name: str, channels: list[Channel], example: bytes | None) -> Topic:
    first = channels[0]
    counts = [channel.count for channel in channels if channel.count is not None]
    topic = Topic(
        name=name,
        type=first.type,
        encoding=first.encoding,
        count=sum(counts) if len(counts) == len(channels) else None,
    )
    kinds = {(channel.type, channel.encoding, channel.definition): channel for channel in channels}
    if len(kinds) > 1:
        words = sorted({f"{channel.type or 'no type'} in {channel.encoding}" for channel in kinds.values()})
        same = "" if len(words) > 1 else ", defined in several ways"
        return replace(topic, problem=f"{len(kinds)} streams of this name differ: {', '.join(words)}{same}"[:400])
    try:
        return replace(topic, fields=first.decoder().fields(example))
    except MainspringError as error:
        return replace(topic, problem=str(error)[:400])
