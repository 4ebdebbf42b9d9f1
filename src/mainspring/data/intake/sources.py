"""Which reader a path is for."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

from mainspring.data.episode import Recording, Unreadable
from mainspring.data.readers.lerobot import lerobot_recordings
from mainspring.data.readers.mcap_episode import McapRecording
from mainspring.domain.errors import InvalidInput, NotFound

RECORDINGS_MAX = 1_000_000
_READ = "MCAP files with JSON state and action, or a LeRobot v2.1 or v3.0 dataset"
_NOT_YET: Mapping[str, str] = MappingProxyType(
    {
        ".bag": "ROS 1 bags",
        ".db3": "ROS 2 SQLite bags",
        ".ulg": "PX4 ULog files",
        ".h5": "HDF5 files",
        ".hdf5": "HDF5 files",
        ".tfrecord": "RLDS records",
    }
)


def recordings_in(source: Path) -> tuple[Recording, ...]:
    """Returns the recordings of a source, in name order, unread.

    Args:
        source: A folder of MCAP files (at any depth), one MCAP file, or a LeRobot dataset's folder.

    Raises:
        NotFound: Nothing is there.
        InvalidInput: Nothing there is a recording of a known kind, or there are too many.
        DamagedData: The description of a LeRobot dataset does not hold together.
    """
    if not source.exists():
        raise NotFound("read a source", on=str(source), got="nothing there", wanted=_READ)
    if (source / "meta" / "info.json").exists():
        return lerobot_recordings(source)
    paths = [source] if source.is_file() else sorted(path for path in source.rglob("*") if path.is_file())
    found = [_recording(path, source) for path in paths if path.suffix == ".mcap" or path.suffix in _NOT_YET]
    if source.is_file() and source.suffix in _NOT_YET:
        raise InvalidInput(
            "read a source", on=str(source), got=f"{_NOT_YET[source.suffix]}, not yet read", wanted=_READ
        )
    if not found or len(found) > RECORDINGS_MAX:
        got = f"{len(found)} recordings among {len(paths)} files"
        raise InvalidInput("read a source", on=str(source), got=got, wanted=_READ)
    return tuple(found)


def _recording(path: Path, source: Path) -> Recording:
    name = path.name if path == source else path.relative_to(source).as_posix()
    if path.suffix == ".mcap":
        return McapRecording(name=name, path=path, parse_bytes=path.stat().st_size)
    return Unreadable(name=name, reason=f"{_NOT_YET[path.suffix]} are not yet read; {_READ} are")
