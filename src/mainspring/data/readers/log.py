"""Opens logs of robots: MCAP files, ROS 1 and ROS 2 bags, ULog files."""

from __future__ import annotations

from pathlib import Path

from mainspring.data.readers.bag2_log import MAGIC as SQLITE_MAGIC
from mainspring.data.readers.bag2_log import METADATA, JoinedLog, SqliteContainer, bag_files
from mainspring.data.readers.bag_log import MAGIC as BAG_MAGIC
from mainspring.data.readers.bag_log import BagContainer
from mainspring.data.readers.gone import told_beside
from mainspring.data.readers.mcap_log import MAGIC as MCAP_MAGIC
from mainspring.data.readers.mcap_log import McapContainer
from mainspring.data.readers.messages import Field, Log, Messages, Topic, Values
from mainspring.data.readers.topics import Container, TopicLog
from mainspring.data.readers.ulog_log import MAGIC as ULOG_MAGIC
from mainspring.data.readers.ulog_log import UlogContainer
from mainspring.domain.errors import DamagedData, InvalidInput, NotFound

LOG_SUFFIXES = (".mcap", ".bag", ".db3", ".ulg")

__all__ = ["LOG_SUFFIXES", "Field", "Log", "Messages", "Topic", "Values", "open_log"]


def open_log(path: Path) -> Log:
    """Returns the log at a path, known by its content.

    Args:
        path: An MCAP file, a ROS 1 bag, a ROS 2 bag (its folder or one `.db3` file), or a ULog file.

    Raises:
        NotFound: Nothing is there.
        InvalidInput: It is something else.
        DamagedData: It is empty.
    """
    if path.is_dir() and (path / METADATA).is_file():
        files, missing = bag_files(path)
        return JoinedLog(path.name, *_opened(files, missing), told=told_beside(path / METADATA))
    if not path.is_file():
        raise NotFound("open a log", on=str(path), got="no file, and no folder with a metadata.yaml")
    with open(path, "rb") as file:
        start = file.read(16)
    if not start:
        raise DamagedData("open a log", on=str(path), got="an empty file")
    return TopicLog(path, _container(path, start))


def _opened(files: tuple[Path, ...], missing: tuple[str, ...]) -> tuple[tuple[Log, ...], tuple[str, ...]]:
    """Opens what can be opened of a folder's files; all the rest is noted, unless it is all there is."""
    logs: list[Log] = []
    for file in files:
        try:
            logs.append(open_log(file))
        except InvalidInput as error:
            if len(files) == 1:
                raise
            missing = (*missing, str(error)[:300])
    return tuple(logs), missing


def _container(path: Path, start: bytes) -> Container:
    if start.startswith(MCAP_MAGIC):
        return McapContainer(path)
    if start.startswith(BAG_MAGIC[:9]):
        return BagContainer(path)
    if start == SQLITE_MAGIC:
        return SqliteContainer(path)
    if start.startswith(ULOG_MAGIC):
        return UlogContainer(path)
    raise InvalidInput(
        "open a log", on=str(path), got=f"a file that begins {start!r}", wanted=" or ".join(LOG_SUFFIXES)
    )
