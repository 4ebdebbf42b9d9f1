"""Opens logs of robots: MCAP files, ROS 1 and ROS 2 bags, ULog files."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType

from mainspring.data.readers.bag2_log import MAGIC as SQLITE_MAGIC
from mainspring.data.readers.bag2_log import METADATA, JoinedLog, SqliteContainer, bag_files
from mainspring.data.readers.bag_log import MAGIC as BAG_MAGIC
from mainspring.data.readers.bag_log import BagContainer
from mainspring.data.readers.compression import ZSTD_MAGIC, PackedMessages, decompressed_file
from mainspring.data.readers.definitions import Given
from mainspring.data.readers.gone import told_beside
from mainspring.data.readers.mcap_log import MAGIC as MCAP_MAGIC
from mainspring.data.readers.mcap_log import McapContainer
from mainspring.data.readers.messages import Log, MessageField, Messages, Topic, Values
from mainspring.data.readers.split import split_files
from mainspring.data.readers.topics import Container, TopicLog
from mainspring.data.readers.ulog_log import MAGIC as ULOG_MAGIC
from mainspring.data.readers.ulog_log import UlogContainer
from mainspring.domain.errors import DamagedData, InvalidInput, NotFound

_NONE: Mapping[str, str] = MappingProxyType({})
LOG_SUFFIXES = (".mcap", ".bag", ".db3", ".ulg")
_COMPRESSED = (".zstd", ".zst")

__all__ = ["LOG_SUFFIXES", "Log", "MessageField", "Messages", "Topic", "Values", "log_suffix", "open_log"]


def log_suffix(path: Path) -> str:
    """Returns what the name of a log ends with, without that of its compression; "" when it is not a log's.

    Args:
        path: A file.
    """
    name = path.name.lower()  # Cameras' cards and Windows write capitals.
    plain = next((name.removesuffix(end) for end in _COMPRESSED if name.endswith(end)), name)
    return next((suffix for suffix in LOG_SUFFIXES if plain.endswith(suffix)), "")


def open_log(path: Path, definitions: Mapping[str, str] = _NONE, scratch: Path | None = None) -> Log:
    """Returns the log at a path, known by its content.

    Args:
        path: An MCAP file, a ROS 1 bag, a ROS 2 bag (its folder or one `.db3` file), or a ULog file; one that
            Zstandard compressed too.
        definitions: For messages that it does not define, as `definitions_in` returns them.
        scratch: Where files that are compressed as a whole are unpacked; the caller's to remove.

    Raises:
        NotFound: Nothing is there.
        InvalidInput: It is something else.
        DamagedData: It is empty.
        StorageFull: There is no room for what it unpacks to.
    """
    how = _How(given=tuple(sorted(definitions.items())), scratch=scratch)
    if path.is_dir() and (path / METADATA).is_file():
        bag = bag_files(path)
        return JoinedLog(
            path.name,
            *_opened(bag.files, bag.missing, replace(how, packed=bag.packed)),
            told=told_beside(path / METADATA),
        )
    if path.is_dir() and (files := split_files(path)):
        return JoinedLog(path.name, *_opened(files, (), how))
    return _log(path, how)


@dataclass(frozen=True, slots=True, kw_only=True)
class _How:
    """What is said of a log beside it; see `open_log`."""

    given: Given
    scratch: Path | None
    packed: bool = False


def _log(path: Path, how: _How) -> Log:
    if not path.is_file():
        raise NotFound("open a log", on=str(path), got="no file, and no folder with a metadata.yaml")
    with open(path, "rb") as file:
        start = file.read(16)
    if not start:
        raise DamagedData("open a log", on=str(path), got="an empty file")
    if start.startswith(ZSTD_MAGIC):
        if how.scratch is None:
            raise InvalidInput(
                "open a log",
                on=str(path),
                got="a compressed file",
                next_step="zstd -d, then the file without its compression",
            )
        return _log(decompressed_file(path, how.scratch), replace(how, scratch=None))
    container = _container(path, start, how.given)
    return TopicLog(path, PackedMessages(container) if how.packed else container)


def _opened(files: tuple[Path, ...], missing: tuple[str, ...], how: _How) -> tuple[tuple[Log, ...], tuple[str, ...]]:
    """Opens what can be opened of a folder's files; all the rest is noted, unless it is all there is."""
    logs: list[Log] = []
    for file in files:
        try:
            logs.append(_log(file, how))
        except InvalidInput as error:
            if len(files) == 1:
                raise
            missing = (*missing, str(error)[:300])
    return tuple(logs), missing


def _container(path: Path, start: bytes, given: Given) -> Container:
    if start.startswith(MCAP_MAGIC):
        return McapContainer(path, given)
    if start.startswith(BAG_MAGIC[:9]):
        return BagContainer(path)
    if start == SQLITE_MAGIC:
        return SqliteContainer(path, given)
    if start.startswith(ULOG_MAGIC):
        return UlogContainer(path)
    raise InvalidInput(
        "open a log", on=str(path), got=f"a file that begins {start!r}", wanted=" or ".join(LOG_SUFFIXES)
    )
