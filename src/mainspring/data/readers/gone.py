"""Gaps in a log: what containers find missing while they read, and what that means for each topic."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import yaml

from mainspring.data.loss import Loss

TIME_NS_MAX = 2**63 - 1
STRETCHES_MAX = 4_096  # Of one file; each may be as small as one message.
_NOTES_MAX = 20
_METADATA_BYTES_MAX = 16 << 20
_SECOND_NS = 1_000_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Stretch:
    """Part of a file that could not be read, or may be wrong.

    Args:
        what: What is wrong with it, in words.
        counts: Channels and how many of their messages lie in it; None when nothing tells whose they are.
        lost: Where nothing tells that: how much of `total` it is.
        total: 0 when nobody can know.
        unit: Of both.
        begin_ns: Log time before which nothing of it lies.
        end_ns: Log time after which nothing of it lies.
        doubt: Its messages are there and counted, but may be others than were written.
    """

    what: str
    counts: tuple[tuple[int, int], ...] | None = None
    lost: int = 0
    total: int = 0
    unit: str = "bytes"
    begin_ns: int = 0
    end_ns: int = TIME_NS_MAX
    doubt: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Gone:
    """Part of a log that is gone.

    Args:
        topic: Whose messages; "" when they may be anyone's.
        loss: How much.
        begin_ns: Log time before which nothing of it lies.
        end_ns: Log time after which nothing of it lies.
        doubt: See `Stretch`.
    """

    topic: str
    loss: Loss
    begin_ns: int = 0
    end_ns: int = TIME_NS_MAX
    doubt: bool = False

    @property
    def timed(self) -> bool:
        """Returns whether it is known when it was."""
        return self.begin_ns > 0 or self.end_ns < TIME_NS_MAX


@dataclass(slots=True)
class Notes:
    """What was found while a file was read, each thing once, in the order it was met.

    Args:
        texts: What was wrong, in words.
        told: Messages of each channel by the file's own index; None when it has none that can be trusted.
        stretches: What of the file is gone.
    """

    texts: dict[str, None] = field(default_factory=dict)
    told: dict[int, int] | None = None
    stretches: dict[Stretch, None] = field(default_factory=dict)

    def add(self, text: str) -> None:
        """Notes something that takes nothing away."""
        if len(self.texts) < _NOTES_MAX:
            self.texts.setdefault(text)

    def lose(self, stretch: Stretch) -> None:
        """Notes that something is gone."""
        self.add(stretch.what)
        if len(self.stretches) >= STRETCHES_MAX:
            stretch = Stretch(what=f"more than {STRETCHES_MAX:,} places are damaged")
        self.stretches.setdefault(stretch)


@dataclass(slots=True, kw_only=True)
class Unfit:
    """Messages that were read but could not be decoded."""

    count: int = 0
    reason: str = ""
    begin_ns: int = TIME_NS_MAX
    end_ns: int = 0


def gone_of(topic: str, channels: frozenset[int], seen: int, unfit: Unfit, notes: Notes) -> Iterator[Gone]:
    """Yields what a topic has lost that is counted in its messages.

    Args:
        topic: Its name.
        channels: Its channels.
        seen: How many of their messages were read.
        unfit: Which of them could not be decoded.
        notes: Of the file, after it was read.
    """
    counted = [
        (stretch, sum(count for channel, count in stretch.counts if channel in channels))
        for stretch in notes.stretches
        if stretch.counts is not None
    ]
    explained = sum(count for _, count in counted)
    told = None if notes.told is None else sum(notes.told.get(channel, 0) for channel in channels)
    total = max(seen + explained if told is None else told, explained, unfit.count, 1)

    def gone(lost: int, what: str, begin_ns: int = 0, end_ns: int = TIME_NS_MAX) -> Gone:
        seconds = (end_ns - begin_ns) / _SECOND_NS if begin_ns > 0 and end_ns < TIME_NS_MAX else 0.0
        loss = Loss(
            subject=f"topic {topic}", lost=lost, total=total, unit="messages", seconds=max(seconds, 0.0), what=what
        )
        return Gone(topic=topic, loss=loss, begin_ns=begin_ns, end_ns=end_ns)

    for stretch, count in counted:
        if count:
            yield gone(count, stretch.what, stretch.begin_ns, stretch.end_ns)
        elif stretch.doubt and any(channel in channels for channel, _ in stretch.counts or ()):
            yield _unknown(topic, stretch)
    if told is not None and (told - seen > explained or (told < seen and not explained)):
        yield gone(min(abs(told - seen) - explained, total), f"the file's index tells {told:,}, {seen:,} are there")
    if unfit.count:
        what = f"could not be decoded: {unfit.reason}"
        yield gone(unfit.count, what, min(unfit.begin_ns, unfit.end_ns), unfit.end_ns)


def gone_of_all(notes: Notes) -> Iterator[Gone]:
    """Yields what is gone of a file and may be anyone's.

    Args:
        notes: Of the file, after it was read.
    """
    for stretch in notes.stretches:
        if stretch.counts is None and (stretch.doubt or notes.told is None):
            if not stretch.total:
                yield _unknown("", stretch)
                continue
            timed = stretch.begin_ns > 0 and stretch.end_ns < TIME_NS_MAX
            loss = Loss(
                subject="the log",
                lost=stretch.lost,
                total=stretch.total,
                unit=stretch.unit,
                seconds=max(stretch.end_ns - stretch.begin_ns, 0) / _SECOND_NS if timed else 0.0,
                what=stretch.what,
            )
            yield Gone(topic="", loss=loss, begin_ns=stretch.begin_ns, end_ns=stretch.end_ns)


def _unknown(topic: str, stretch: Stretch) -> Gone:
    loss = Loss(subject=f"topic {topic}" if topic else "the log", lost=0, total=0, unit="messages", what=stretch.what)
    return Gone(topic=topic, loss=loss, begin_ns=stretch.begin_ns, end_ns=stretch.end_ns, doubt=stretch.doubt)


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """What stands beside the files of a ROS 2 bag.

    Args:
        counts: Messages of each topic.
        spans: When the messages of each file were: first and last time, by the file's name.
    """

    counts: Mapping[str, int]
    spans: Mapping[str, tuple[int, int]]


NOTHING_TOLD = Told(counts={}, spans={})


def told_beside(metadata: Path) -> Told:
    """Returns what a ROS 2 bag's metadata tells of its messages; nothing where that is not understood.

    Args:
        metadata: The file.
    """
    try:
        with open(metadata, "rb") as file:
            facts: Any = yaml.safe_load(file.read(_METADATA_BYTES_MAX))["rosbag2_bagfile_information"]
        counts: dict[str, int] = {}
        for each in facts.get("topics_with_message_count") or ():
            name = str(each["topic_metadata"]["name"])
            counts[name] = counts.get(name, 0) + max(int(each["message_count"]), 0)
        spans: dict[str, tuple[int, int]] = {}
        for each in facts.get("files") or ():
            begin_ns = int(each["starting_time"]["nanoseconds_since_epoch"])
            spans[Path(str(each["path"])).name] = (begin_ns, begin_ns + int(each["duration"]["nanoseconds"]))
    except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError, yaml.YAMLError):
        return NOTHING_TOLD
    return Told(counts=counts, spans=spans)


def gone_of_joined(
    wanted: Iterable[str], parts: Sequence[Gone], read: Mapping[str, int], told: Told, missing: Sequence[str]
) -> Iterator[Gone]:
    """Yields what is gone of several files that are one log.

    Args:
        wanted: Topics.
        parts: What each file lacks by itself.
        read: Messages of each topic that were read and decoded.
        told: What stands beside the files.
        missing: What is known to be missing, in words that name the files.
    """
    names = sorted(wanted)
    # A recorder that was killed leaves numbers of an earlier moment: those are of no use.
    known = [name for name in names if told.counts.get(name, -1) >= read.get(name, 0)]
    spans = [span for file, span in told.spans.items() if any(file in words for words in missing)]
    begin_ns, end_ns = 0, TIME_NS_MAX
    if spans:
        begin_ns, end_ns = min(begin for begin, _ in spans), max(end for _, end in spans)
    behind = f"; {'; '.join(missing)}" if missing else ""
    for name in known:
        total = max(told.counts[name], 1)
        own = [part for part in parts if part.topic == name and (part.loss.total or part.doubt)]
        rest = told.counts[name] - read.get(name, 0) - sum(part.loss.lost for part in own)
        for part in own:
            yield replace(part, loss=replace(part.loss, total=total)) if part.loss.total else part
        if rest > 0:
            loss = Loss(
                subject=f"topic {name}",
                lost=min(rest, total),
                total=total,
                unit="messages",
                what=f"metadata.yaml tells {told.counts[name]:,}{behind}"[:300],
            )
            yield Gone(topic=name, loss=loss, begin_ns=begin_ns, end_ns=end_ns)
    for part in parts:
        if part.topic not in known and (part.topic or part.doubt or len(known) < len(names)):
            yield part
    if missing and len(known) < len(names):
        yield _unknown("", Stretch(what="; ".join(missing)[:300], begin_ns=begin_ns, end_ns=end_ns))
