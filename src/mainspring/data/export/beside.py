"""Auxiliary messages of raw logs that viewers need: calibration, transforms, the robot's shape."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from mcap.exceptions import McapError
from mcap.reader import SeekingReader
from rosbags.rosbag1 import Reader as BagReader
from rosbags.rosbag1 import ReaderError
from rosbags.typesys import Stores, get_typestore

from mainspring.data.episode import EpisodeRow
from mainspring.data.readers.bag2_log import SqliteContainer
from mainspring.data.readers.gone import Notes
from mainspring.data.readers.log import open_log
from mainspring.domain.errors import DamagedData, InvalidInput
from mainspring.objects import ObjectStore, fetch_blob

BESIDE_BYTES_MAX = 512 << 20  # Held of one episode: transforms at 1 kHz for an hour.
LOGS_COPIED = (".mcap", ".bag", ".db3")
_KINDS = ("CameraInfo", "TFMessage")
_RECORD_BYTES_MAX = 1 << 30


@dataclass(frozen=True, slots=True, kw_only=True)
class BesideMessage:
    """A message as a raw log holds it.

    Args:
        topic: Its topic.
        type: Name of its type.
        language: Of the definition: "ros2msg", "ros1msg", ...
        definition: What its type means.
        encoding: Of its bytes: "cdr", "ros1", ...
        time_ns: When it was recorded.
        data: Its bytes.
    """

    topic: str
    type: str
    language: str
    definition: bytes
    encoding: str
    time_ns: int
    data: bytes


def is_beside(topic: str, type: str) -> bool:
    """Returns whether a topic is one that viewers need.

    Args:
        topic: Its name.
        type: Of its messages.
    """
    return type.endswith(_KINDS) or (type.endswith("String") and topic.endswith("robot_description"))


def topics_beside(store: ObjectStore, row: EpisodeRow, folder: Path) -> tuple[str, ...]:
    """Returns the topics of an episode's raw logs that viewers need; none where a log cannot tell.

    Args:
        store: Where the raw logs lie.
        row: The episode.
        folder: Local folder for what is fetched.
    """
    found: set[str] = set()
    for raw in row.raw:
        if Path(raw.name).suffix.lower() in LOGS_COPIED:
            try:
                topics = open_log(fetch_blob(store, raw.blob, folder)).topics()
            except InvalidInput:
                continue
            found |= {topic.name for topic in topics if is_beside(topic.name, topic.type)}
    return tuple(sorted(found))


def messages_beside(
    store: ObjectStore, row: EpisodeRow, first_ns: int, last_ns: int, folder: Path
) -> list[BesideMessage]:
    """Returns what an episode's raw logs say beside, in the order of time.

    That is what was said while it lasted; before it, all transforms that hold for good and all descriptions, and the
    last of everything else but moving transforms.

    Args:
        store: Where the raw logs lie.
        row: The episode.
        first_ns: Time of its first step.
        last_ns: Of its last.
        folder: Local folder for what is fetched.

    Raises:
        DamagedData: A log cannot be read.
    """
    found: list[BesideMessage] = []
    before: dict[str, BesideMessage] = {}
    held = 0
    readers = {".mcap": _from_mcap, ".bag": _from_bag, ".db3": _from_sqlite}
    for raw in row.raw:
        suffix = Path(raw.name).suffix.lower()
        if suffix not in LOGS_COPIED:
            continue
        path = fetch_blob(store, raw.blob, folder)
        try:
            for message in readers[suffix](path, last_ns):
                if message.time_ns >= first_ns or message.topic.endswith(("tf_static", "robot_description")):
                    found.append(message)
                    held += len(message.data)
                elif message.topic != "/tf":
                    before[message.topic] = message
                if held > BESIDE_BYTES_MAX:
                    raise DamagedData(
                        "export an episode",
                        on=row.id,
                        got=f"over {BESIDE_BYTES_MAX >> 20} MiB of transforms and the like",
                        wanted="less",
                    )
        except (McapError, ReaderError, OSError, ValueError, LookupError, EOFError, RuntimeError) as error:
            raise DamagedData("read a raw log", on=raw.name, got=str(error)[:200]) from error
    return sorted([*before.values(), *found], key=lambda message: message.time_ns)


def _from_mcap(path: Path, last_ns: int) -> Iterator[BesideMessage]:
    with open(path, "rb") as file:
        reader = SeekingReader(file, record_size_limit=_RECORD_BYTES_MAX)
        summary = reader.get_summary()
        if summary is None:
            return
        types = {one.id: one.name for one in summary.schemas.values()}
        channels = summary.channels.values()
        topics = [one.topic for one in channels if is_beside(one.topic, types.get(one.schema_id, ""))]
        if not topics:
            return
        for schema, channel, message in reader.iter_messages(topics, ending_at=last_ns):
            if schema is not None:
                yield BesideMessage(
                    topic=channel.topic,
                    type=schema.name,
                    language=schema.encoding,
                    definition=schema.data,
                    encoding=channel.message_encoding,
                    time_ns=message.log_time,
                    data=message.data,
                )


def _from_bag(path: Path, last_ns: int) -> Iterator[BesideMessage]:
    with BagReader(path) as reader:
        wanted = [one for one in reader.connections if is_beside(one.topic, one.msgtype)]
        if not wanted:
            return
        for connection, time_ns, data in reader.messages(wanted, stop=last_ns + 1):
            yield BesideMessage(
                topic=connection.topic,
                type=connection.msgtype.replace("/msg/", "/"),
                language="ros1msg",
                definition=connection.msgdef.data.encode(),
                encoding="ros1",
                time_ns=time_ns,
                data=bytes(data),
            )


def _from_sqlite(path: Path, last_ns: int) -> Iterator[BesideMessage]:
    notes, container = Notes(), SqliteContainer(path)
    wanted = {one.id: one for one in container.channels(notes) if is_beside(one.topic, one.type)}
    known = get_typestore(Stores.ROS2_HUMBLE)
    for number, time_ns, data in container.messages(frozenset(wanted), notes):
        channel = wanted[number]
        if time_ns > last_ns or (not channel.definition and channel.type not in known.types):
            continue
        standard, _ = known.generate_msgdef(channel.type) if not channel.definition else ("", "")
        yield BesideMessage(
            topic=channel.topic,
            type=channel.type,
            language="ros2msg",
            definition=channel.definition or standard.encode(),
            encoding=channel.encoding,
            time_ns=time_ns,
            data=data,
        )
