"""Reads ROS 2 bags: SQLite files, and folders of files that `metadata.yaml` lists.

Source: github.com/ros2/rosbag2, storage formats of its versions Dashing to Lyrical.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import quote

import yaml

from mainspring.data.readers.definitions import Given, ros_type
from mainspring.data.readers.gone import NOTHING_TOLD, Gone, Notes, Stretch, Told, gone_of_joined
from mainspring.data.readers.layout import LayoutDecoder
from mainspring.data.readers.messages import RECORD_BYTES_MAX, Decoder, Log, Messages, Topic
from mainspring.data.readers.sqlite_checks import RowsRead, told_bytes
from mainspring.data.readers.topics import Channel, readable
from mainspring.domain.errors import DamagedData, InvalidInput

METADATA = "metadata.yaml"
MAGIC = b"SQLite format 3\0"
_METADATA_BYTES_MAX = 16 << 20
_FILES_MAX = 10_000
_ROW_BYTES_MIN = 6  # Of a table with three columns, in its page.
_UNSIGNED = 2**64 - 1  # As all containers give times, also those before 1970.
_STEPS_BLOCK = 1_000_000  # SQLite's own steps between two looks at their budget.
_STEPS_PER_BYTE = 64  # No scan of a sound file needs as many; one through pages that damage has knotted would not end.


class SqliteContainer:
    """One SQLite file of a ROS 2 bag; see `Container`.

    Args:
        path: The file.
        given: Definitions for what it does not define.
    """

    def __init__(self, path: Path, given: Given = ()) -> None:
        self._path = path
        self._given = given
        self._numbers: frozenset[int] = frozenset()

    def channels(self, notes: Notes) -> tuple[Channel, ...]:
        """See `Container.channels`."""
        try:
            with closing(self._open()) as database:
                topics = database.execute("SELECT id, name, type, serialization_format FROM topics").fetchmany(100_000)
                definitions = self._definitions(database)
        except (sqlite3.Error, ValueError, OverflowError) as error:
            raise self._damaged(error) from error
        counts = self._counts(notes)
        channels = []
        for row in topics:
            if not (isinstance(row[0], int) and all(isinstance(word, str) for word in row[1:])):
                raise self._damaged(ValueError("a topic that is not four words"))
            number, name, kind, encoding = row
            language, text = definitions.get(kind, ("ros2msg", ""))
            channels.append(
                Channel(
                    id=number,
                    topic=name,
                    type=kind,
                    encoding=encoding,
                    definition=text.encode("utf-8", "replace"),
                    decoder=partial(_decoder, name, kind, encoding, language, text, self._given),
                    count=None if counts is None else counts.get(number, 0),
                )
            )
        self._numbers = frozenset(channel.id for channel in channels)
        return tuple(channels)

    def messages(self, wanted: frozenset[int], notes: Notes) -> Iterator[tuple[int, int, bytes]]:
        """See `Container.messages`."""
        rows, rows_max = RowsRead(), self._path.stat().st_size // _ROW_BYTES_MIN
        try:
            with closing(self._open()) as database:
                database.text_factory = bytes  # One message that is no text must not end the reading.
                for row, number, time_ns, data in database.execute(
                    "SELECT id, topic_id, timestamp, data FROM messages ORDER BY id"
                ):
                    if rows.count > rows_max:
                        raise ValueError("more messages than its bytes can hold")
                    sound = isinstance(time_ns, int) and isinstance(data, bytes) and number in self._numbers
                    rows.add(row, time_ns if sound else None)
                    if sound and number in wanted:
                        yield number, time_ns & _UNSIGNED, data
                rows.compare(database, notes)
        except (sqlite3.Error, ValueError, OverflowError) as error:
            notes.lose(
                Stretch(
                    what=f"the database is damaged ({str(error)[:80]}): recovered up to message {rows.count:,}",
                    **self._rest(rows),
                )
            )

    def _rest(self, rows: RowsRead) -> dict[str, Any]:
        """Returns how much lies behind the last row that could be read: by the last number, or by the file's length."""
        try:
            with closing(self._open()) as database:
                first, last = database.execute("SELECT min(id), max(id) FROM messages").fetchone()
                if isinstance(first, int) and isinstance(last, int) and last - first + 1 > rows.count:
                    total = last - first + 1
                    return {"lost": total - rows.count, "total": total, "unit": "messages"}
        except (sqlite3.Error, ValueError, OverflowError, TypeError):
            pass  # The way to the last row is damaged too.
        with open(self._path, "rb") as file:
            told = told_bytes(file.read(32))
        size = self._path.stat().st_size
        return {"lost": told - size, "total": told} if told > size else {}

    def _open(self) -> sqlite3.Connection:
        # Without a write-ahead log beside it the file is read as it lies, and no lock or file is made next to it.
        mode = "mode=ro" if self._path.with_name(self._path.name + "-wal").exists() else "mode=ro&immutable=1"
        database = sqlite3.connect(f"file:{quote(str(self._path.resolve()))}?{mode}", uri=True)
        database.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, RECORD_BYTES_MAX)
        database.execute("PRAGMA trusted_schema = OFF")
        database.execute("PRAGMA cell_size_check = ON")
        database.execute("PRAGMA writable_schema = ON")  # Else a file that was cut off is not opened at all.
        blocks = iter(range(10 + self._path.stat().st_size * _STEPS_PER_BYTE // _STEPS_BLOCK))
        database.set_progress_handler(lambda: next(blocks, None) is None, _STEPS_BLOCK)
        kinds = dict(database.execute("SELECT name, type FROM sqlite_master WHERE name IN ('messages', 'topics')"))
        if kinds != {"messages": "table", "topics": "table"}:
            database.close()
            raise ValueError("no tables `topics` and `messages`")
        return database

    def _definitions(self, database: sqlite3.Connection) -> Mapping[str, tuple[str, str]]:
        query = "SELECT topic_type, encoding, encoded_message_definition FROM message_definitions"
        try:
            rows = database.execute(query).fetchmany(100_000)
        except sqlite3.OperationalError:
            return {}  # Bags older than Iron have no such table; ROS's own types are known without.
        return {str(kind): (str(language), str(text)) for kind, language, text in rows}

    def _counts(self, notes: Notes) -> dict[int, int] | None:
        try:
            with closing(self._open()) as database:
                return dict(database.execute("SELECT topic_id, count(*) FROM messages GROUP BY topic_id").fetchall())
        except (sqlite3.Error, ValueError, OverflowError) as error:
            notes.add(f"the database is damaged: {str(error)[:80]}")
            return None

    def _damaged(self, error: Exception) -> DamagedData:
        return DamagedData("read a ROS 2 bag", on=self._path.name, got=str(error)[:200], wanted="a whole SQLite file")


def _decoder(topic: str, kind: str, encoding: str, language: str, text: str, given: Given) -> Decoder:
    if encoding != "cdr" or (text and language not in ("ros2msg", "ros2idl")):
        raise InvalidInput(
            "decode messages",
            on=topic,
            got=f"{encoding or 'no encoding'} described by {language or 'nothing'}"[:200],
            wanted="cdr by ros2msg or ros2idl",
        )
    return LayoutDecoder(root=ros_type(kind, text, language, "cdr", given), format="cdr")


class JoinedLog:
    """Logs that follow one another, as one; see `Log`.

    Args:
        name: Of the whole.
        logs: In their order.
        missing: What is known to be missing.
        told: What stands beside the files.
    """

    def __init__(
        self, name: str, logs: tuple[Log, ...], missing: tuple[str, ...] = (), told: Told = NOTHING_TOLD
    ) -> None:
        self.name = name
        self._logs = logs
        self._notes = list(missing)
        self._told = told
        self._read: dict[str, int] = {}
        self._topics: tuple[Topic, ...] | None = None

    @property
    def damage(self) -> str:
        """See `Log.damage`."""
        return "; ".join([*self._notes, *(f"{log.name}: {log.damage}" for log in self._logs if log.damage)])

    def topics(self) -> tuple[Topic, ...]:
        """See `Log.topics`."""
        if self._topics is None:
            found: dict[str, list[Topic]] = {}
            sound = []
            for log in self._logs:
                try:
                    topics = log.topics()
                except DamagedData as error:
                    if len(self._logs) == 1:
                        raise
                    self._notes.append(str(error)[:300])
                    continue
                sound.append(log)
                for topic in topics:
                    found.setdefault(topic.name, []).append(topic)
            self._logs = tuple(sound)
            self._topics = tuple(_merged(topics) for _, topics in sorted(found.items()))
        return self._topics

    def batches(self, wanted: Mapping[str, tuple[str, ...]]) -> Iterator[Messages]:
        """See `Log.batches`."""
        known = {topic.name: topic for topic in self.topics()}
        for name in wanted:
            readable(self.name, name, known)
        parts: list[Iterator[Messages]] = []
        for log in self._logs:
            here = {topic.name for topic in log.topics()}
            parts.append(log.batches({name: paths for name, paths in wanted.items() if name in here}))
        return self._counted(parts, wanted)

    def _counted(self, parts: list[Iterator[Messages]], wanted: Iterable[str]) -> Iterator[Messages]:
        read = dict.fromkeys(wanted, 0)
        for part in parts:
            for messages in part:
                read[messages.topic] += len(messages)
                yield messages
        self._read |= read

    def losses(self, wanted: Iterable[str]) -> tuple[Gone, ...]:
        """See `Log.losses`."""
        names = [*wanted]
        parts: list[Gone] = []
        for log in self._logs:
            here = {topic.name for topic in log.topics()}
            parts += log.losses([name for name in names if name in here])
        return tuple(gone_of_joined(names, parts, self._read, self._told, self._notes))


def _merged(topics: list[Topic]) -> Topic:
    first = next((topic for topic in topics if topic.count), topics[0])
    counts = [topic.count for topic in topics if topic.count is not None]
    problem = next((topic.problem for topic in topics if topic.problem), "")
    kinds = sorted({f"{topic.type} in {topic.encoding}" for topic in topics})
    shapes = {tuple(field.path for field in topic.fields) for topic in topics if topic.encoding == "cdr"}
    if len(kinds) > 1 or (not problem and len(shapes) > 1):
        problem = f"its files define it differently: {', '.join(kinds)}"[:400]
    return Topic(
        name=first.name,
        type=first.type,
        encoding=first.encoding,
        count=sum(counts) if len(counts) == len(topics) else None,
        fields=() if problem else first.fields,
        problem=problem,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class BagFiles:
    """The files of a ROS 2 bag.

    Args:
        files: In their order; each may be compressed as a whole.
        missing: Which are not there, in words.
        packed: Whether each message is a Zstandard frame.
    """

    files: tuple[Path, ...]
    missing: tuple[str, ...]
    packed: bool


def bag_files(folder: Path) -> BagFiles:
    """Returns the files of a ROS 2 bag.

    Args:
        folder: With a `metadata.yaml`.

    Raises:
        DamagedData: The metadata cannot be read, or none of its files is there.
        InvalidInput: The bag is compressed in a way that is not read, or a path leaves the folder.
    """
    path = folder / METADATA
    try:
        with open(path, "rb") as file:
            plain: Any = yaml.safe_load(file.read(_METADATA_BYTES_MAX))
        facts = plain["rosbag2_bagfile_information"]
        names = [str(name) for name in facts["relative_file_paths"]]
        mode = str(facts.get("compression_mode") or "").upper()
        kind = str(facts.get("compression_format") or "").lower()
    except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError, yaml.YAMLError) as error:
        raise DamagedData(
            "read a ROS 2 bag", on=str(path), got=str(error)[:200], wanted="rosbag2's metadata"
        ) from error
    if mode not in ("", "NONE") and (mode not in ("FILE", "MESSAGE") or kind not in ("zstd", "")):
        next_step = "decompress it with `ros2 bag convert`"
        got = f"a bag with {kind[:40]} compression by {mode[:40]}"
        raise InvalidInput(
            "read a ROS 2 bag", on=str(folder), got=got, wanted="zstd, by file or by message", next_step=next_step
        )
    if any(".." in PurePosixPath(name).parts or PurePosixPath(name).is_absolute() for name in names):
        raise InvalidInput("read a ROS 2 bag", on=str(path), got="a path that leaves the folder", wanted="one inside")
    # Early versions wrote the bag's own folder in front of each name.
    found = [_at(folder, name) for name in names]
    here = tuple(path for path in found[:_FILES_MAX] if path.is_file() and path.stat().st_size)
    missing = ", ".join(path.name for path in found if path not in here)
    if not here:
        got = f"no file {missing}" if missing else "no files"
        raise DamagedData("read a ROS 2 bag", on=str(folder), got=got[:300], wanted="the files its metadata lists")
    return BagFiles(
        files=here, missing=(f"missing or empty: {missing}"[:300],) if missing else (), packed=mode == "MESSAGE"
    )


def _at(folder: Path, name: str) -> Path:
    """Returns where a file that the metadata lists is, also when somebody has compressed or decompressed it since."""
    last = PurePosixPath(name).name
    spelt = (folder / each for each in (name, last, last.removesuffix(".zstd"), f"{last}.zstd"))
    return next((path for path in spelt if path.exists()), folder / last)
