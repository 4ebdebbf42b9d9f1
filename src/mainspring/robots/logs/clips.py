"""Clips: stretches of the ring that triggers asked for, each one MCAP file that says where it is from.

`NAME.mcap` is a clip, whole; `NAME.json` what is known of it; `NAME.told` and `NAME.sent` what became of it. What is
written in part has another ending, and is removed at the next start: it is cut out of the ring again.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, final

from blake3 import blake3
from mcap.writer import Writer

from mainspring.domain.answers import ClipEntry
from mainspring.domain.codec import decode, encode
from mainspring.domain.errors import InvalidMessage
from mainspring.domain.job import Tier
from mainspring.robots.logs.reading import Copy
from mainspring.robots.logs.ring import CHUNK_BYTES, Ring
from mainspring.robots.logs.rules import LogRules

ROBOT_TOPIC = "/mainspring/robot"  # What runs, what is asked, who holds it: said whenever it changes.
INTERVENTIONS_MAX = 60  # In one clip's metadata, of which a reader keeps 64 entries; the rest joins the last one.
_READ_BYTES = 1 << 20
_TOLD, _SENT = "told", "sent"  # Empty files beside a clip.
_DAY_NS = 86_400 * 1_000_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Pending:
    """A clip that is wanted and not cut yet: kept on disk from the moment that its trigger fired.

    Args:
        others: That are kept in its file, and wait for room on the disk.
    """

    triggers: tuple[str, ...]
    priority: Tier
    send: bool
    fired_ns: int
    begin_ns: int
    end_ns: int
    others: tuple[Pending, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class RobotSays:
    """What holds of a robot until it says otherwise."""

    release: str = ""
    ring: str = ""
    task: str = ""
    held_by: str = ""
    success: bool | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptClip:
    """A clip on the robot's disk."""

    entry: ClipEntry
    told: bool = False
    sent: bool = False


@dataclass(slots=True)
class _Story:
    """What is learned of a clip while its messages pass."""

    begin_ns: int
    last: RobotSays = field(default_factory=RobotSays)
    since_ns: int = 0
    holds: list[tuple[int, int, str]] = field(default_factory=list)
    end_ns: int = 0

    def hear(self, says: RobotSays, time_ns: int) -> None:
        if says.held_by != self.last.held_by:
            self.ended(time_ns)
            self.since_ns = time_ns
        success = says.success if says.success is not None else self.last.success
        self.last = RobotSays(
            release=says.release, ring=says.ring, task=says.task, held_by=says.held_by, success=success
        )

    def ended(self, time_ns: int) -> None:
        if self.last.held_by:
            self.holds.append((self.since_ns, time_ns, self.last.held_by))


@final
class Clips:
    """The clips on a robot's disk. One process cuts them; another may send them meanwhile, and notes what it did.

    Args:
        folder: Their own; made when missing.
        rules: How many are kept, and whose they are.
    """

    def __init__(self, folder: Path, rules: LogRules) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._rules = rules
        self._entries: dict[str, ClipEntry] = {}  # What was read once is not read again.

    def tidy(self) -> None:
        """Removes what a loss of power left in part: for who cuts clips, before the first."""
        for path in self._folder.iterdir():
            half = path.suffix in (".partial", ".new") or (
                path.suffix == ".mcap" and not self._beside(path.name).exists()
            )
            if half or (path.suffix == ".json" and not path.with_suffix(".mcap").exists()):
                path.unlink()

    def all(self) -> tuple[KeptClip, ...]:
        """Returns every clip, oldest first."""
        names = {entry.name for entry in os.scandir(self._folder)}
        found = []
        for name in names:
            stem = name.removesuffix(".mcap")
            if name == stem or f"{stem}.json" not in names:
                continue
            if name not in self._entries:
                with suppress(FileNotFoundError, InvalidMessage):  # Removed meanwhile, or damaged on the disk.
                    self._entries[name] = decode(ClipEntry, self._beside(name).read_bytes())
            if name in self._entries:
                told, sent = (f"{stem}.{mark}" in names for mark in (_TOLD, _SENT))
                found.append(KeptClip(entry=self._entries[name], told=told, sent=sent))
        self._entries = {name: entry for name, entry in self._entries.items() if name in names}
        return tuple(sorted(found, key=lambda clip: (clip.entry.begun_ns, clip.entry.name)))

    def told(self, clip: KeptClip) -> None:
        """Notes that the lab knows of a clip."""
        self._beside(clip.entry.name, _TOLD).touch()

    def sent(self, clip: KeptClip) -> None:
        """Notes that the lab has a clip's bytes."""
        self._beside(clip.entry.name, _SENT).touch()

    def path(self, clip: KeptClip) -> Path:
        """Returns where a clip lies."""
        return self._folder / clip.entry.name

    def cut(self, ring: Ring, pending: Pending) -> KeptClip | None:
        """Cuts a clip out of the ring; None where the ring has nothing of that time.

        Raises:
            OSError: The disk has no room for it; nothing of it is left.
        """
        name = f"{self._rules.robot}-{pending.fired_ns}.mcap"
        partial = self._folder / f"{name}.partial"
        try:
            story = self._copied(ring, pending, partial)
            if story is None:
                return None
            self._make_room(partial.stat().st_size)
            entry = self._entry(name, partial, story, pending)
            replace_file(self._beside(name), encode(entry))
            partial.replace(self._folder / name)
        finally:
            partial.unlink(missing_ok=True)
        sync_folder(self._folder)
        return KeptClip(entry=entry)

    def _copied(self, ring: Ring, pending: Pending, path: Path) -> _Story | None:
        """Writes a clip's messages, and returns what they tell; None where there are none."""
        story = _Story(begin_ns=pending.begin_ns)
        with path.open("wb") as file:
            copy = Copy(Writer(file, chunk_size=CHUNK_BYTES))
            for seen in ring.between(pending.begin_ns, pending.end_ns):
                if seen.topic == ROBOT_TOPIC:
                    with suppress(InvalidMessage):  # The program may write to this topic, too.
                        story.hear(decode(RobotSays, seen.data), seen.time_ns)
                story.end_ns = max(story.end_ns, seen.time_ns)
                copy.add(seen)
            story.ended(story.end_ns)
            if copy.count:
                self._describe(copy.writer, story, pending)
            copy.finish()
            _synced(file)
        return story if copy.count else None

    def sweep(self, now_ns: int) -> None:
        """Removes clips that are older than they may be."""
        for clip in self.all():
            if now_ns - clip.entry.ended_ns > self._rules.clips_days * _DAY_NS:
                self._remove(clip)

    def _make_room(self, size_bytes: int) -> None:
        """Removes what counts least until the next clip fits: what was sent, then the least urgent, then the oldest."""
        left = self._rules.clips_mib << 20
        worth = sorted(self.all(), key=lambda clip: (not clip.sent, -clip.entry.priority.rank, clip.entry.begun_ns))
        taken = sum(clip.entry.size_bytes for clip in worth)
        for clip in worth:
            if taken + size_bytes <= left:
                break
            self._remove(clip)
            taken -= clip.entry.size_bytes

    def _describe(self, writer: Writer, story: _Story, pending: Pending) -> None:
        said, rules = story.last, self._rules
        success = "" if said.success is None else str(said.success).lower()
        facts = {"task": said.task, "robot": rules.robot, "rate_hz": repr(float(rules.rate_hz)), "success": success}
        clip = {"robot": rules.robot, "release": said.release, "ring": said.ring, "priority": pending.priority.value}
        clip |= {"trigger": ",".join(pending.triggers), "fired_ns": str(pending.fired_ns)}
        writer.add_metadata("episode", facts)
        writer.add_metadata("clip", clip)
        if story.holds:
            first, rest = story.holds[: INTERVENTIONS_MAX - 1], story.holds[INTERVENTIONS_MAX - 1 :]
            joined = [*first, *([(rest[0][0], rest[-1][1], rest[-1][2])] if rest else [])]
            told = {f"{at:02d}": f"{begin} {end} {who}" for at, (begin, end, who) in enumerate(joined)}
            writer.add_metadata("intervention", told)

    def _entry(self, name: str, path: Path, story: _Story, pending: Pending) -> ClipEntry:
        hasher = blake3()
        with path.open("rb") as file:
            while part := file.read(_READ_BYTES):
                hasher.update(part)
        said = story.last
        return ClipEntry(
            id=hasher.hexdigest(),
            name=name,
            size_bytes=path.stat().st_size,
            robot=self._rules.robot,
            begun_ns=pending.begin_ns,
            ended_ns=story.end_ns,
            triggers=pending.triggers,
            priority=pending.priority,
            send=pending.send,
            release=said.release,
            ring=said.ring,
            task=said.task,
            success=said.success,
            interventions=len(story.holds),
        )

    def _remove(self, clip: KeptClip) -> None:
        for kind in ("mcap", "json", _TOLD, _SENT):
            self._beside(clip.entry.name, kind).unlink(missing_ok=True)

    def _beside(self, name: str, kind: str = "json") -> Path:
        return (self._folder / name).with_suffix(f".{kind}")


def replace_file(path: Path, data: bytes) -> None:
    """Writes a file, so that it is there whole, as it was or as it is, whatever happens."""
    new = path.with_name(f"{path.name}.new")
    try:
        with new.open("wb") as file:
            file.write(data)
            _synced(file)
        new.replace(path)
    finally:
        new.unlink(missing_ok=True)
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Returns once the names in a folder outlive a loss of power."""
    opened = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)


def says_message(says: RobotSays) -> bytes:
    """Returns what a robot says of itself as the JSON of a message."""
    return encode(says)


def vector_message(values: Sequence[float]) -> bytes:
    """Returns numbers as the JSON of a message, as `EpisodeWriter` writes them."""
    return json.dumps({"values": list(values)}, separators=(",", ":")).encode()


def names_of(names: Mapping[str, Sequence[str]], topic: str) -> str:
    """Returns the names of a topic's numbers as the text of its channel, "" for none."""
    return json.dumps(tuple(names.get(topic, ()))) if names.get(topic) else ""


def _synced(file: IO[bytes]) -> None:
    file.flush()
    os.fsync(file.fileno())
