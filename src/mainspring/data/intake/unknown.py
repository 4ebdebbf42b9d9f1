"""Names what is not read for what it is, and says what would work."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

_LFS = b"version https://git-lfs.github.com/spec/"
_LFS_BYTES_MAX = 1_024  # A pointer has 130.
_LOOKED_AT_MAX = 10_000
_DEPTH_MAX = 6
_NAMED_MAX = 6
_ELSE = "HDF5, Zarr, MCAP or LeRobot keep the same arrays"
_ARCHIVE = "an archive inside the source: name it as a source of its own"
_REASONS: Mapping[str, str] = MappingProxyType(
    {
        ".pkl": f"a pickle, which runs what is in it when it is opened, so it is not; {_ELSE}",
        ".npz": f"NumPy arrays, which say nothing of steps and times; {_ELSE}",
        ".pt": f"a PyTorch file; {_ELSE}",
        ".safetensors": f"tensors, as of a model; {_ELSE}",
        ".arrow": "an Arrow file of a Hugging Face data set: the repository's own Parquet files are read",
        ".mat": f"a MATLAB file; {_ELSE}",
        ".active": "a bag that was never closed: `rosbag reindex` makes a .bag of it",
        ".tfrecord": "a TFRecord file without the features.json and dataset_info.json of its data set beside it",
        ".array_record": "an ArrayRecord file: TFDS writes TFRecord files with file_format='tfrecord'",
        ".riegeli": "a Riegeli file: TFDS writes TFRecord files with file_format='tfrecord'",
        ".zip": _ARCHIVE,
        ".tar": _ARCHIVE,
        ".tgz": _ARCHIVE,
        ".7z": f"{_ARCHIVE}, as zip or tar",
        ".rar": f"{_ARCHIVE}, as zip or tar",
    }
)
_SAME: Mapping[str, str] = MappingProxyType(
    {".pickle": ".pkl", ".npy": ".npz", ".pth": ".pt", ".ckpt": ".pt", ".xz": ".tar", ".bz2": ".tar", ".gz": ".tar"}
)
_MARKS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "a LeRobot dataset": ("meta/info.json",),
        "a Zarr store": (".zgroup", "zarr.json"),
        "an RLDS dataset": ("features.json",),
        "a ROS 2 bag": ("metadata.yaml",),
    }
)
_ABOVE_MAX = 3  # A LeRobot dataset's files lie three deep: data/chunk-000, videos/chunk-000/front.
_TABLES = (".csv", ".parquet", ".pq")
_VIDEOS = (".mp4", ".mkv", ".mov", ".avi", ".webm")


@dataclass(frozen=True, slots=True, kw_only=True)
class Named:
    """What a source without a recording is.

    Args:
        got: What was found, a clause.
        next_step: What may be tried; "" when nothing is known.
    """

    got: str
    next_step: str = ""


def is_pointer(path: Path) -> bool:
    """Returns whether a file is what Git LFS leaves where a large file was not fetched.

    Args:
        path: The file.
    """
    try:
        if path.stat().st_size > _LFS_BYTES_MAX:
            return False
        with open(path, "rb") as file:
            return file.read(len(_LFS)) == _LFS
    except OSError:
        return False


def reason_of(path: Path) -> str:
    """Returns why a file of recordings, or one that looks like it, is not read; "" for any other file.

    Args:
        path: The file.
    """
    if is_pointer(path):
        return "a Git LFS pointer, not the file itself: `git lfs pull` fetches it"
    if ".tfrecord" in path.name.lower():
        return _REASONS[".tfrecord"]
    suffix = path.suffix.lower()
    if suffix in (".gz", ".xz", ".bz2") and not path.stem.lower().endswith(".tar"):
        return ""
    return _REASONS.get(_SAME.get(suffix, suffix), "")


def folder_reason(folder: Path) -> str:
    """Returns why a folder that is named as a data set is none; "" for any other folder.

    Args:
        folder: The folder.
    """
    if folder.suffix.lower() == ".zarr":
        return "a Zarr folder without its .zgroup or zarr.json, so nothing says what its arrays are"
    if (folder / "dataset_info.json").is_file() and any(folder.glob("*.tfrecord*")):
        return "an RLDS folder without its features.json, so nothing says what its records are"
    return ""


def named(source: Path) -> Named:
    """Returns what a source is in which no recording was found.

    Args:
        source: The file or folder.
    """
    if source.is_file():
        reason = reason_of(source) or f"a file {source.suffix or 'without a suffix'}"
        return Named(got=reason)
    above = _above(source)
    if above is not None:
        return above
    if reason := folder_reason(source):
        return Named(got=reason)
    counts, hidden = _counted(source)
    if any(suffix in counts for suffix in _TABLES):
        tables = ", ".join(f"{counts[suffix]} {suffix}" for suffix in _TABLES if suffix in counts)
        return Named(
            got=f"tables without a recipe ({tables})",
            next_step=f"ms data inspect {source} --write recipe.yaml proposes a recipe of kind table",
        )
    if any(suffix in counts for suffix in _VIDEOS):
        return Named(got="videos alone: no table says what the robot did")
    if not counts:
        return Named(got="only hidden files" if hidden else "an empty folder")
    most = ", ".join(f"{count} {suffix or 'without a suffix'}" for suffix, count in counts.most_common(_NAMED_MAX))
    return Named(got=f"no recording among its files ({most})")


def _above(source: Path) -> Named | None:
    """Returns of which data set a folder is a part: one folder too deep, or two."""
    found: Named | None = None
    for folder in list(source.absolute().parents)[:_ABOVE_MAX]:
        for name, marks in _MARKS.items():
            if any((folder / mark).is_file() for mark in marks):
                found = Named(got=f"a folder inside {name}", next_step=f"one folder too deep: try {folder}")
    return found


def _counted(folder: Path) -> tuple[Counter[str], bool]:
    """Returns how many files there are by suffix, and whether hidden ones were passed over."""
    counts: Counter[str] = Counter()
    hidden, looked = False, 0
    base = len(folder.parts)
    for place, folders, files in os.walk(folder):
        hidden |= any(name.startswith(".") for name in (*folders, *files))
        folders[:] = sorted(name for name in folders if name[0] != "." and len(Path(place).parts) - base < _DEPTH_MAX)
        counts.update(Path(name).suffix.lower() for name in files if name[0] != ".")
        looked += len(files)
        if looked > _LOOKED_AT_MAX:
            break
    return counts, hidden
