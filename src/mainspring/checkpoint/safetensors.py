"""safetensors files, one or several with an index, as sources and as exports; without the library of that name.

The format is a page long, and its NumPy reader knows neither bfloat16 nor float8; its writer wants all arrays at once.

Source: https://github.com/huggingface/safetensors, README.md, "Format" (8 bytes of length, little-endian; a JSON
header; the data without gaps); the index of several files as transformers and huggingface_hub write it (5 GB a file).
"""

from __future__ import annotations

import json
import os
import re
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from mainspring.checkpoint.files import HEADER_BYTES_MAX, json_file, json_object, whole_folder
from mainspring.checkpoint.format import AXES_MAX, dtype_named
from mainspring.checkpoint.interop import (
    FACTS_KEY,
    ArraySource,
    ArraySpec,
    Block,
    Facts,
    Progress,
    batches,
    checked_arrays,
    checked_path,
    facts_from,
    noted,
    part_of,
)
from mainspring.domain.errors import DamagedData, InvalidInput, NotFound
from mainspring.domain.wire import Part
from mainspring.objects import reported

FILE_BYTES_MAX = 5_000_000_000  # As the hub splits: what every client and mirror takes.
_SUFFIX = ".safetensors"
_INDEX_SUFFIX = ".safetensors.index.json"
_METADATA = "__metadata__"
_LENGTH = struct.Struct("<Q")
_ALIGNMENT_BYTES = 8  # The header is padded so that data of any type can be mapped where it lies.
_PLAIN_NAME = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,250}")  # A file beside the index, and nowhere else.
_ONE_OF_SEVERAL = re.compile(r"-\d+-of-0*([1-9]\d*)$")
_DTYPES = {
    "BOOL": "bool",
    "U8": "uint8",
    "I8": "int8",
    "F8_E5M2": "float8_e5m2",
    "F8_E4M3": "float8_e4m3fn",
    "F8_E8M0": "float8_e8m0fnu",
    "F8_E5M2FNUZ": "float8_e5m2fnuz",
    "F8_E4M3FNUZ": "float8_e4m3fnuz",
    "U16": "uint16",
    "I16": "int16",
    "F16": "float16",
    "BF16": "bfloat16",
    "U32": "uint32",
    "I32": "int32",
    "F32": "float32",
    "C64": "complex64",
    "U64": "uint64",
    "I64": "int64",
    "F64": "float64",
}
_NAMES = {dtype: name for name, dtype in _DTYPES.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Place:
    path: Path
    offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class _File:
    arrays: list[tuple[ArraySpec, _Place]]
    metadata: dict[str, Any]


class SafetensorsSource:
    """A safetensors file, or a folder of several with their index, as an `ArraySource`.

    Args:
        path: The file; or a folder that holds one, or an index.

    Raises:
        NotFound: There is no such file or folder.
        InvalidInput: It is not such a file or folder, or of a type of numbers that is not known.
        DamagedData: It is one, and does not hold together.
    """

    def __init__(self, path: Path) -> None:
        self.name = str(path)
        places: dict[ArraySpec, _Place] = {}
        found: list[ArraySpec] = []
        metadata: dict[str, Any] = {}
        for file in _files_of(path):
            read = _read_file(file)
            metadata = metadata or read.metadata
            for array, place in read.arrays:
                found.append(array)
                places[array] = place
        self.facts = _facts_of(metadata, self.name)
        # A file that nobody told otherwise is a published model: weights.
        parts = self.facts.parts or {"": Part.WEIGHTS}
        by_path = {array.path: place for array, place in places.items()}
        self.arrays = tuple(
            ArraySpec(path=array.path, dtype=array.dtype, shape=array.shape, part=part_of(array.path, parts))
            for array in checked_arrays(found, self.name)
        )
        self._places = {array.path: by_path[array.path] for array in self.arrays}

    def read(self, blocks: Sequence[Block]) -> None:
        """See `ArraySource.read`."""
        for path, some in groupby(blocks, key=lambda each: self._places[each.array.path].path):
            with reported("read safetensors", str(path)), path.open("rb", buffering=0) as file:
                for each in some:
                    shape, start = each.array.shape, each.region.start
                    skipped = int(np.ravel_multi_index(start, shape)) if shape else 0
                    offset = self._places[each.array.path].offset + skipped * each.elements.itemsize
                    _read_into(file, offset, each.elements.reshape(-1).view(np.uint8), path)


def is_safetensors(path: Path) -> bool:
    """Returns whether a path looks like safetensors: a file or index by its name, a folder by what is in it.

    Args:
        path: The path.

    Raises:
        NotFound: There is nothing.
        NotAllowed: It cannot be looked at.
    """
    if path.name.endswith((_SUFFIX, _INDEX_SUFFIX)) or not path.is_dir():
        return True
    with reported("read a checkpoint", str(path)):
        return any(entry.name.endswith((_SUFFIX, _INDEX_SUFFIX)) for entry in path.iterdir())


def write_safetensors(
    source: ArraySource, folder: Path, *, progress: Progress = lambda done: None, file_bytes_max: int = FILE_BYTES_MAX
) -> None:
    """Writes a source as a folder of safetensors, one file or several with their index; whole or not at all.

    Args:
        source: What is written; arrays are named by their paths.
        folder: Where; it must not exist.
        progress: Told of bytes as they are written.
        file_bytes_max: A file holds no more data, unless one array does.

    Raises:
        Conflict: Something is there already.
        InvalidInput: An array's type is not one that safetensors knows.
        StorageFull: There is no room.
        DamagedData: The source does not hold together.
    """
    for array in source.arrays:
        if array.dtype not in _NAMES:
            raise InvalidInput(
                "write safetensors", on=array.path, got=array.dtype, wanted=f"one of {', '.join(sorted(_NAMES))}"
            )
        if array.path == _METADATA:
            raise InvalidInput("write safetensors", on=array.path, got="a reserved name", wanted="another path")
    files = _shared_out(source.arrays, file_bytes_max)
    names = [f"model-{number:05d}-of-{len(files):05d}{_SUFFIX}" for number in range(1, len(files) + 1)]
    if len(files) == 1:
        names = [f"model{_SUFFIX}"]
    # Readers such as transformers refuse a file that does not say which framework wrote it; "pt" is what they all take.
    metadata = {"format": "pt", FACTS_KEY: json.dumps(noted(source))}
    with whole_folder(folder) as made:
        for name, arrays in zip(names, files, strict=True):
            with (made / name).open("wb", buffering=0) as file:
                _write_file(file, arrays, metadata, source, progress)
        if len(files) > 1:
            weight_map = {array.path: name for name, arrays in zip(names, files, strict=True) for array in arrays}
            total_size = sum(array.size_bytes for array in source.arrays)
            index = {"metadata": {"total_size": total_size}, "weight_map": dict(sorted(weight_map.items()))}
            (made / f"model{_INDEX_SUFFIX}").write_text(json.dumps(index, indent=2, ensure_ascii=False) + "\n")


def _shared_out(arrays: Sequence[ArraySpec], file_bytes_max: int) -> list[list[ArraySpec]]:
    files: list[list[ArraySpec]] = [[]]
    room = file_bytes_max
    for array in arrays:
        if array.size_bytes > room and files[-1]:
            files.append([])
            room = file_bytes_max
        files[-1].append(array)
        room -= array.size_bytes
    # The widest types first: each array then begins at a multiple of its type's width.
    return [sorted(file, key=lambda array: (-dtype_named(array.dtype).itemsize, array.path)) for file in files]


def _write_file(
    file: BinaryIO, arrays: list[ArraySpec], metadata: dict[str, str], source: ArraySource, progress: Progress
) -> None:
    header: dict[str, Any] = {_METADATA: metadata}
    offset = 0
    for array in arrays:
        end = offset + array.size_bytes
        header[array.path] = {"dtype": _NAMES[array.dtype], "shape": array.shape, "data_offsets": [offset, end]}
        offset = end
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-(len(text) + _LENGTH.size) % _ALIGNMENT_BYTES)
    if len(text) > HEADER_BYTES_MAX:
        raise InvalidInput(
            "write safetensors",
            got=f"a header of {len(text)} bytes",
            wanted=f"at most {HEADER_BYTES_MAX}: fewer arrays a file",
        )
    _write_all(file, memoryview(_LENGTH.pack(len(text)) + text))
    for blocks in batches(source, arrays):
        for each in blocks:
            _write_all(file, each.elements.reshape(-1).view(np.uint8).data)
            progress(each.elements.nbytes)


def _write_all(file: BinaryIO, data: memoryview) -> None:
    while data:
        data = data[file.write(data) :]


def _read_into(file: BinaryIO, offset: int, into: NDArray[np.uint8], path: Path) -> None:
    rest = into.data
    while rest:
        count = os.preadv(file.fileno(), [rest], offset)
        if not count:
            raise DamagedData("read safetensors", on=str(path), got="an end of the file inside its data")
        rest, offset = rest[count:], offset + count


def _files_of(path: Path) -> list[Path]:
    """Returns the files that hold the arrays, once it is sure that none is missing."""
    if path.name.endswith(_INDEX_SUFFIX):
        return _indexed(path)
    if not path.is_dir():
        files = [path]
    else:
        with reported("read safetensors", str(path)):
            names = sorted(entry.name for entry in path.iterdir())
        indices = [name for name in names if name.endswith(_INDEX_SUFFIX)]
        if len(indices) == 1:
            return _indexed(path / indices[0])
        files = [path / name for name in names if name.endswith(_SUFFIX)]
        if len(indices) > 1 or len(files) != 1:
            raise InvalidInput(
                "read safetensors",
                on=str(path),
                got=f"{len(indices)} indices and {len(files)} files of safetensors",
                wanted=f"one file *{_SUFFIX}, or one index *{_INDEX_SUFFIX}",
            )
    several = _ONE_OF_SEVERAL.search(files[0].name.removesuffix(_SUFFIX))
    if several and int(several[1]) > 1:
        raise DamagedData("read safetensors", on=str(files[0]), got="one file of several", wanted="their index, whole")
    return files


def _indexed(index: Path) -> list[Path]:
    weight_map = json_file(index).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise DamagedData("read an index of safetensors", on=str(index), wanted="a weight_map of names to files")
    files: dict[str, set[str]] = {}
    for name, file in weight_map.items():
        if not isinstance(file, str) or not _PLAIN_NAME.fullmatch(file):
            raise InvalidInput(
                "read an index of safetensors",
                on=str(index),
                got=ascii(file)[:200],
                wanted="the name of a file beside the index",
            )
        files.setdefault(file, set()).add(name)
    for file, names in sorted(files.items()):
        path = index.parent / file
        if not path.is_file():
            raise DamagedData("read safetensors", on=str(index), got=f"no file {file}", wanted="every file it names")
        missing = names - {array.path for array, _ in _read_file(path).arrays}
        if missing:
            raise DamagedData("read safetensors", on=str(path), got=f"no array {min(missing)[:200]!r}", wanted="it")
    return [index.parent / file for file in sorted(files)]


def _read_file(path: Path) -> _File:
    """Returns what a file's header says, once the file is known to be as long as it says."""
    on = str(path)
    try:
        with reported("read safetensors", on), path.open("rb") as file:
            size_bytes = os.fstat(file.fileno()).st_size
            first = file.read(_LENGTH.size)
            length = _LENGTH.unpack(first)[0] if len(first) == _LENGTH.size else -1
            if not 2 <= length <= min(HEADER_BYTES_MAX, size_bytes - _LENGTH.size):
                raise DamagedData("read safetensors", on=on, got=f"a header of {length} bytes in {size_bytes}")
            header = json_object(file.read(length), on)
    except NotFound as error:
        raise NotFound("read safetensors", on=on, got="no such file", wanted="a file or folder") from error
    metadata = header.pop(_METADATA, {})
    if not isinstance(metadata, dict):
        raise DamagedData("read safetensors", on=on, got=f"{_METADATA} that is no object")
    data_start = _LENGTH.size + length
    placed = sorted((_entry(name, entry, on) for name, entry in header.items()), key=lambda entry: entry[1:])
    end = 0
    for array, low, high in placed:
        if low != end:
            raise DamagedData("read safetensors", on=f"{array.path} of {on}", got=f"byte {low}", wanted=f"byte {end}")
        end = high
    if data_start + end != size_bytes:
        raise DamagedData("read safetensors", on=on, got=f"{size_bytes} bytes", wanted=f"{data_start + end} bytes")
    return _File(
        arrays=[(array, _Place(path=path, offset=data_start + low)) for array, low, _ in placed], metadata=metadata
    )


def _entry(name: str, entry: object, on: str) -> tuple[ArraySpec, int, int]:
    on = f"{checked_path(name, on)} of {on}"
    plain = entry if isinstance(entry, dict) else {}
    shape, offsets, dtype = _wholes(plain.get("shape")), _wholes(plain.get("data_offsets")), plain.get("dtype")
    if shape is None or len(shape) > AXES_MAX or offsets is None or len(offsets) != 2:
        raise DamagedData("read safetensors", on=on, got=ascii(entry)[:200], wanted="dtype, shape and data_offsets")
    if not isinstance(dtype, str) or dtype not in _DTYPES:
        raise InvalidInput(
            "read safetensors", on=on, got=f"dtype {ascii(dtype)[:80]}", wanted=f"one of {', '.join(_DTYPES)}"
        )
    array = ArraySpec(path=name, dtype=_DTYPES[dtype], shape=shape)
    low, high = offsets
    if high - low != array.size_bytes:
        raise DamagedData(
            "read safetensors",
            on=on,
            got=f"{high - low} bytes",
            wanted=f"{array.size_bytes} for {array.dtype} {array.shape}",
        )
    return array, low, high


def _wholes(value: object) -> tuple[int, ...] | None:
    """Returns a list of whole numbers, None for anything else; no file is longer than the largest allowed here."""
    if not isinstance(value, list) or not all(type(item) is int and 0 <= item < 1 << 62 for item in value):
        return None
    return tuple(value)


def _facts_of(metadata: dict[str, Any], on: str) -> Facts:
    text = metadata.get(FACTS_KEY)
    return facts_from(json_object(text.encode(), on), on) if isinstance(text, str) else Facts()
