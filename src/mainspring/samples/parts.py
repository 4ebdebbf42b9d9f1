"""Parts: files of the object store, each with a stretch of one lead's samples, as NumPy's own archive without pickles.

A file says nothing that a reader must believe: its arrays' names, kinds and sizes are checked before it is unpacked.
"""

from __future__ import annotations

import io
import json
import re
import zipfile
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from mainspring.checkpoint import job_folder
from mainspring.domain.errors import DamagedData
from mainspring.domain.ids import JobId

Array: TypeAlias = NDArray[Any]

CELLS_MAX = 1 << 17  # Of a part's rows, and of its windows: 1 MiB of float64, some hundred KiB in the store.
NAMES_MAX = 512  # Twice what a rank may report at once: those of several roles come together.
_UNPACKED_BYTES_MAX = 16 << 20  # A part of many names and one row each is far from it; a bomb is not.
_HEADER_BYTES = 1 << 10  # Beside the bytes of an array, in its file.
_KEY = re.compile(r"(\d{6})-(\d{6})-(\d{6})\.npz")
_KINDS = {
    "names": ("u1", 1),
    "generation": ("i4", 1),
    "step": ("i8", 1),
    "time_s": ("f8", 1),
    "values": ("f8", 2),
    "ranks": ("i4", 1),
    "from_s": ("f8", 1),
    "until_s": ("f8", 1),
    "step_s": ("f4", 2),
    "data_share": ("f4", 2),
}  # What a file holds, and how many axes each has.


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SamplePart:
    """A stretch of samples: rows of one step report each, and windows in which each rank's steps are averaged.

    Args:
        names: Of metrics; columns of `values`.
        generation: Of each row.
        step: Of each row.
        time_s: When its step was finished, in seconds since the Unix epoch.
        values: Rows by names; NaN for what was not reported, infinite for what was no finite number.
        ranks: Columns of `step_s` and `data_share`.
        from_s: When each window began.
        until_s: When it ended.
        step_s: Windows by ranks: seconds a step, NaN where a rank finished none.
        data_share: Windows by ranks: the share of the window in which a rank waited for data.
    """

    names: tuple[str, ...]
    generation: Array
    step: Array
    time_s: Array
    values: Array
    ranks: Array
    from_s: Array
    until_s: Array
    step_s: Array
    data_share: Array

    @property
    def size_bytes(self) -> int:
        """Returns the memory that it takes."""
        return sum(getattr(self, name).nbytes for name in _KINDS if name != "names")


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class PartName:
    """Which part of its job a file is: `number` is the attempt's, `epoch` its lead's, parts of a lead count from 0."""

    number: int
    epoch: int
    part: int


def samples_folder(job: JobId) -> str:
    """Returns the folder of all samples of a job: below what is durable of it, which its agents may write."""
    return f"{job_folder(job)}/samples"


def part_key(job: JobId, name: PartName) -> str:
    """Returns the key of a part."""
    return f"{samples_folder(job)}/{name.number:06}-{name.epoch:06}-{name.part:06}.npz"


def part_name(key: str) -> PartName | None:
    """Returns which part a key is of, None for anything else."""
    found = _KEY.fullmatch(key.rpartition("/")[2])
    return None if found is None else PartName(number=int(found[1]), epoch=int(found[2]), part=int(found[3]))


def pack(part: SamplePart) -> bytes:
    """Returns a part as the bytes of its file."""
    named = np.frombuffer(json.dumps(part.names).encode(), np.uint8)
    arrays = {name: named if name == "names" else getattr(part, name).astype(_KINDS[name][0]) for name in _KINDS}
    made = io.BytesIO()
    np.savez_compressed(made, allow_pickle=False, **arrays)
    return made.getvalue()


def unpack(data: bytes, *, on: str) -> SamplePart:
    """Returns the part that a file holds.

    Args:
        on: The file's key, for errors.

    Raises:
        DamagedData: It is no such file, or larger than any that a lead writes.
    """
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as packed:
            listed = {one.filename: one.file_size for one in packed.infolist()}
            if sorted(listed) != sorted(f"{name}.npy" for name in _KINDS) or sum(listed.values()) > _UNPACKED_BYTES_MAX:
                raise ValueError("not the arrays of a part")
            found = {name: _array(packed.read(f"{name}.npy"), *_KINDS[name]) for name in _KINDS}
        names = json.loads(found.pop("names").tobytes())
        rows, columns = found["values"].shape
        windows, ranks = found["step_s"].shape
        whole = (
            isinstance(names, list)
            and len(names) == columns
            and all(isinstance(name, str) for name in names)
            and all(len(found[name]) == rows for name in ("generation", "step", "time_s"))
            and all(len(found[name]) == windows for name in ("from_s", "until_s"))
            and len(found["ranks"]) == ranks
            and found["data_share"].shape == found["step_s"].shape
            and all(np.isfinite(found[name]).all() for name in ("time_s", "from_s", "until_s"))
        )
        if not whole:
            raise ValueError("arrays that do not fit together")
    except (ValueError, zipfile.BadZipFile, EOFError, OSError, RuntimeError) as error:
        raise DamagedData("read samples", on=on, got=str(error)[:200] or "no archive") from error
    return SamplePart(names=tuple(names), **found)


def _array(data: bytes, kind: str, axes: int) -> Array:
    made: Array = np.lib.format.read_array(io.BytesIO(data), allow_pickle=False, max_header_size=_HEADER_BYTES)
    if made.dtype.str[1:] != kind or made.ndim != axes or made.nbytes > len(data):
        raise ValueError(f"an array of {made.dtype} with {made.ndim} axes")
    return made
