"""Reads Zarr, version 2 and 3, as a folder or a zip file: replay buffers of many episodes, or arrays that are one.

A replay buffer has arrays of all episodes' steps under `data`, and in `meta/episode_ends` where each episode ends.
Source: github.com/real-stanford/diffusion_policy `common/replay_buffer.py`, universal_manipulation_interface
`scripts_slam_pipeline/07_generate_replay_buffer.py`; the Zarr specifications 2 and 3.
"""

from __future__ import annotations

import itertools
import re
import zipfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from enum import Enum
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from mainspring.data.episode import FRAMES_MAX, Episode, Recording, SourceFile, Unreadable
from mainspring.data.loss import Loss
from mainspring.data.options import DEFAULT, IngestOptions
from mainspring.data.readers.episodes.steps.fields import (
    FACTS_MAX,
    FIELDS_MAX,
    PIECE_BYTES_MAX,
    Array,
    Kind,
    StepField,
    kind_of,
)
from mainspring.data.readers.episodes.steps.making import Layout, episode_of
from mainspring.domain.codec import loads
from mainspring.domain.errors import DamagedData, InvalidInput, MainspringError

ZARR_ZIP = ".zarr.zip"
EPISODES_MAX = 1_000_000
FILES_MAX = 100_000  # Of one episode in a folder; more are better kept as one zip file.
_DESCRIPTIONS = (".zgroup", ".zarray", ".zattrs", ".zmetadata", "zarr.json")
_ENDS = "meta/episode_ends"
_DEPTH_MAX = 16
_DESCRIPTION_BYTES_MAX = 16 << 20
_BLOCK_BYTES = 64 << 20
_LAYOUT = Layout(name="Zarr")
_CODECS = re.compile(  # All but pickles, which would run what a file says.
    r"(numcodecs\.)?(blosc|zlib|gzip|zstd|lz4|bz2|lzma|zfpy|pcodec|delta|shuffle|crc32c?|adler32|fletcher32"
    r"|jenkins_lookup3|bitround|packbits|fixedscaleoffset|quantize|astype|vlen-(utf8|bytes|array)|categorize"
    r"|bytes|endian|transpose|sharding_indexed|imagecodecs_\w+)"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ZarrRecording:
    """One episode of a Zarr store, not yet read.

    Args:
        name: Path of the store inside the source, and the episode's number where it holds several.
        path: The folder or zip file.
        prefix: The group whose arrays are the fields, with a "/" behind it; "" for all.
        begin: The episode's first row.
        end: The row after its last; None for all there are.
        number: Which episode it is; None where the store is one.
        files: The files that hold it.
        parse_bytes: None: codecs are not Python.
        options: What is said of the source.
    """

    name: str
    path: Path
    prefix: str
    begin: int
    end: int | None
    number: int | None
    files: tuple[SourceFile, ...]
    parse_bytes: int = 0
    options: IngestOptions = DEFAULT

    @property
    def part(self) -> str:
        """See `Recording.part`."""
        return f"{self.number} {self.begin} {self.end}"

    def read(self, folder: Path) -> Episode:
        """See `Recording.read`."""
        with _whole(self.name):
            opened = _Rows(_store_at(self.path), self)
        episode = episode_of(
            opened, name=self.name, layout=_LAYOUT, options=self.options, folder=folder, files=self.files
        )
        return replace(episode, losses=tuple(opened.losses))


def is_zarr(path: Path) -> bool:
    """Returns whether a folder is a Zarr store, or a zip file is one.

    Args:
        path: The folder or file.
    """
    if path.is_dir():
        return any((path / name).is_file() for name in (".zgroup", "zarr.json"))
    if path.suffix.lower() != ".zip":
        return False
    try:
        with zipfile.ZipFile(path) as file:
            return any(name in file.NameToInfo for name in (".zgroup", "zarr.json"))
    except (OSError, ValueError, zipfile.BadZipFile, RuntimeError):
        return path.name.lower().endswith(ZARR_ZIP)  # What is wrong with it, its reader says.


def zarr_recordings(path: Path, name: str, options: IngestOptions = DEFAULT) -> Iterator[Recording]:
    """Yields every episode of a Zarr store, by number; one that is unreadable where the store is none.

    Args:
        path: The folder or zip file.
        name: Its path inside the source.
        options: What is said of the source.
    """
    try:
        with _whole(name):
            store = _store_at(path)
            arrays = _arrays(store, name)
            ends = _ends(arrays, name)
    except MainspringError as error:
        yield Unreadable(name=name, reason=str(error))
        return
    if ends is None:
        files = _files(store, arrays, name, 0, None)
        yield ZarrRecording(
            name=name, path=path, prefix="", begin=0, end=None, number=None, files=files, options=options
        )
        return
    rows = {key: array for key, array in arrays.items() if key.startswith("data/")}
    for number, (begin, end) in enumerate(zip([0, *ends[:-1]], ends, strict=True)):
        own = f"{name}/episode_{number:06d}"
        try:
            files = _files(store, {**rows, _ENDS: arrays[_ENDS]}, name, begin, end)
        except InvalidInput as error:
            yield Unreadable(name=own, reason=str(error))
            continue
        yield ZarrRecording(
            name=own, path=path, prefix="data/", begin=begin, end=end, number=number, files=files, options=options
        )
    most = max((array.shape[0] for array in rows.values()), default=0)
    if most > ends[-1]:
        yield Unreadable(name=f"{name}/data", reason=f"{most - ends[-1]} of {most} rows belong to no episode")


class _Node(Enum):
    ARRAY = "array"
    GROUP = "group"
    NEITHER = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Store:
    """An open store: how Zarr reads it, and the names of what is in it where it is a zip file."""

    path: Path
    store: Any
    names: frozenset[str] | None
    folders: Mapping[str, tuple[str, ...]]

    def has(self, key: str) -> bool:
        return (self.path / key).is_file() if self.names is None else key in self.names

    def kind_of(self, folder: str) -> _Node:
        """Returns what a folder is described as."""
        base = f"{folder}/" if folder else ""
        if self.has(f"{base}zarr.json"):
            plain = loads(self._read(f"{base}zarr.json"))
            said = plain.get("node_type") if isinstance(plain, dict) else ""
            return {"array": _Node.ARRAY, "group": _Node.GROUP}.get(str(said), _Node.NEITHER)
        if self.has(f"{base}.zarray"):
            return _Node.ARRAY
        return _Node.GROUP if self.has(f"{base}.zgroup") else _Node.NEITHER

    def folders_in(self, folder: str) -> tuple[str, ...]:
        """Returns the names of the folders in one, but for hidden ones."""
        if self.names is not None:
            return self.folders.get(folder, ())
        return tuple(path.name for path in (self.path / folder).iterdir() if path.is_dir() and path.name[0] != ".")

    def _read(self, key: str) -> bytes:
        if self.names is None:
            with open(self.path / key, "rb") as file:
                return file.read(_DESCRIPTION_BYTES_MAX)
        with zipfile.ZipFile(self.path) as zipped, zipped.open(key) as inner:
            return inner.read(_DESCRIPTION_BYTES_MAX)


class _Rows:
    """One episode's rows, open; see `Opened`."""

    def __init__(self, store: _Store, recording: ZarrRecording) -> None:
        self.losses: list[Loss] = []
        self._on, self._store = recording.name, store
        self._begin, self.passed_over = recording.begin, list[str]()
        arrays = _arrays(store, recording.name)
        self._arrays = {key.removeprefix(recording.prefix): array for key, array in arrays.items()}
        self._fields: dict[str, StepField] = {}
        for key, array in arrays.items():
            if key.startswith(recording.prefix) and array.ndim:
                self._take(key.removeprefix(recording.prefix), array, recording.end)
        self.facts = _facts(store, arrays, recording)
        self.fields = tuple(field for _, field in sorted(self._fields.items()))

    def numbers(self, field: StepField) -> Array:
        """See `Opened.numbers`."""
        with _whole(f"{self._on} {field.name}"):
            values: Array = np.asarray(self._checked(field)[self._begin : self._begin + field.steps])
            return values.astype(values.dtype.newbyteorder("="), copy=False)

    def pictures(self, field: StepField) -> Iterator[Array | bytes]:
        """See `Opened.pictures`."""
        for block in self._blocks(field):
            yield from (row.astype(row.dtype.newbyteorder("="), copy=False) for row in block)

    def texts(self, field: StepField) -> Iterator[str]:
        """See `Opened.texts`."""
        for block in self._blocks(field):
            yield from map(_text, block)

    def _blocks(self, field: StepField) -> Iterator[Array]:
        with _whole(f"{self._on} {field.name}"):
            array = self._checked(field)
            row_bytes = max(1, array.dtype.itemsize * int(np.prod(array.shape[1:])))
            chunk = max(1, array.chunks[0])
            rows = chunk * max(1, _BLOCK_BYTES // (row_bytes * chunk))
            place, end = self._begin, self._begin + field.steps
            while place < end:
                upto = min(end, (place // rows + 1) * rows)
                yield np.asarray(array[place:upto])
                place = upto

    def _take(self, key: str, array: Any, end: int | None) -> None:
        upto = array.shape[0] if end is None else min(end, array.shape[0])
        kind = Kind.TEXT if array.dtype.kind in "USOT" else kind_of(array.dtype, tuple(array.shape[1:]))
        if kind is None or (kind is Kind.TEXT and array.ndim > 1):
            self.passed_over.append(f"{key} {array.dtype}{list(array.shape)}")
        elif upto > self._begin:
            self._fields[key] = StepField(
                name=key,
                kind=kind,
                steps=upto - self._begin,
                shape=() if kind is Kind.TEXT else tuple(array.shape[1:]),
                dtype=str(array.dtype),
            )

    def _checked(self, field: StepField) -> Any:
        """Returns an array, after noting which of its chunks are not there: Zarr would read them as filled."""
        array = self._arrays[field.name]
        missing = 0
        for rows, keys in _chunks(array, self._begin, self._begin + field.steps):
            if not all(self._store.has(key) for key in keys):
                missing += len(rows)
        if missing and array.metadata.zarr_format == 3 and field.kind is not Kind.PIXELS:
            said = f"{missing} of {field.steps} steps of {field.name} are in no file: Zarr leaves out chunks of only"
            self.passed_over.append(f"{said} {array.fill_value}, and so they were read")
        elif missing:
            frames = field.kind is Kind.PIXELS
            self.losses.append(
                Loss(
                    subject=f"camera {field.name}" if frames else field.name,
                    lost=missing,
                    total=field.steps,
                    unit="frames" if frames else "rows",
                    what="chunks that are not there",
                )
            )
        return array


@contextmanager
def _whole(on: str) -> Iterator[None]:
    """Turns what Zarr and its codecs raise inside the block into a reason."""
    try:
        yield
    except MainspringError:
        raise
    except Exception as error:  # A dozen codecs raise whatever they like.
        raise DamagedData(
            "read a Zarr store",
            on=on,
            got=" ".join(str(error).split())[:200] or type(error).__name__,
            wanted="a whole one",
        ) from error


def _store_at(path: Path) -> _Store:
    if path.is_dir():
        return _Store(path=path, store=_library().storage.LocalStore(path, read_only=True), names=None, folders={})
    seen = path.stat()
    return _zip_store(path, seen.st_size, seen.st_mtime_ns)


@lru_cache(maxsize=2)  # The list of a zip file of a million pictures takes a second.
def _zip_store(path: Path, size_bytes: int, mtime_ns: int) -> _Store:
    with zipfile.ZipFile(path) as file:
        for entry in file.infolist():
            if entry.file_size > PIECE_BYTES_MAX:
                raise DamagedData("read a Zarr store", on=path.name, got=f"{entry.filename} of {entry.file_size} bytes")
        names = frozenset(file.NameToInfo)
    return _Store(path=path, store=_library().storage.ZipStore(path, mode="r"), names=names, folders=_folders(names))


def _folders(names: Iterable[str]) -> dict[str, tuple[str, ...]]:
    """Returns the folders that lie in each folder of a zip file, but for hidden ones and a Mac's own."""
    found: dict[str, set[str]] = {}
    waiting = {name.rpartition("/")[0] for name in names}
    while waiting := {folder for folder in waiting if folder}:
        for folder in sorted(waiting):
            parent, _, name = folder.rpartition("/")
            if name[0] != "." and name != "__MACOSX":
                found.setdefault(parent, set()).add(name)
        waiting = {folder.rpartition("/")[0] for folder in waiting}
    return {folder: tuple(sorted(inner)) for folder, inner in found.items()}


@cache
def _library() -> Any:
    """Returns Zarr, which takes long to import; it then knows codecs of pictures too, such as UMI's JPEG XL."""
    import imagecodecs.numcodecs
    import zarr.storage

    imagecodecs.numcodecs.register_codecs(verbose=False)
    return zarr


def _arrays(store: _Store, on: str) -> dict[str, Any]:
    """Returns every array of a store, by its path; what its codecs and sizes ask for is checked, not read."""
    found: dict[str, Any] = {}
    waiting = [""]
    while waiting:
        folder = waiting.pop()
        kind = store.kind_of(folder)
        if kind is _Node.ARRAY:
            found[folder] = _checked_array(_library().open_array(store.store, path=folder, mode="r"), f"{on} {folder}")
        elif kind is _Node.GROUP and folder.count("/") < _DEPTH_MAX:
            waiting += [f"{folder}/{name}".lstrip("/") for name in store.folders_in(folder)]
        else:
            raise DamagedData(
                "read a Zarr store",
                on=on,
                got=f"{folder or on}, which no description makes an array or a group",
                wanted="a sound .zarray, .zgroup or zarr.json",
            )
        if len(found) + len(waiting) > FIELDS_MAX:
            raise DamagedData("read a Zarr store", on=on, got=f"over {FIELDS_MAX} arrays")
    if not found or "" in found:
        raise DamagedData(
            "read a Zarr store", on=on, got="one array" if found else "no array", wanted="a group of them"
        )
    return dict(sorted(found.items()))


def _checked_array(array: Any, on: str) -> Any:
    if unknown := sorted(name for name in _codecs(array.metadata.to_dict()) if not _CODECS.fullmatch(name)):
        raise InvalidInput("read a Zarr array", on=on, got=f"codec {unknown[0]!r}", wanted="one that is known here")
    size = array.dtype.itemsize * int(np.prod(array.shards or array.chunks, dtype=np.float64))
    if size > PIECE_BYTES_MAX:
        raise DamagedData("read a Zarr array", on=on, got=f"chunks of {size:,} bytes", wanted="at most 1 GiB")
    return array


def _codecs(plain: Any) -> Iterator[str]:
    """Yields the names of every codec that a description names, also inside others."""
    for codec in [plain.get("compressor"), *(plain.get("filters") or ()), *(plain.get("codecs") or ())]:
        if codec is not None:
            told = codec.to_dict if hasattr(codec, "to_dict") else getattr(codec, "get_config", None)
            said = told() if told else codec
            yield str(said.get("id") or said.get("name"))
            inner = said.get("configuration") or {}
            yield from _codecs({"codecs": [*inner.get("codecs", ()), *inner.get("index_codecs", ())]})


def _ends(arrays: Mapping[str, Any], on: str) -> list[int] | None:
    """Returns where each episode ends; None where nothing says that there are several."""
    if _ENDS not in arrays:
        return None
    array = arrays[_ENDS]
    if array.ndim != 1 or array.dtype.kind not in "iu" or not 0 < array.shape[0] <= EPISODES_MAX:
        raise DamagedData("read a Zarr store", on=f"{on} {_ENDS}", got=f"{array.dtype}{list(array.shape)}")
    ends = [int(end) for end in array[...]]
    if any(not begin < end <= begin + FRAMES_MAX for begin, end in zip([0, *ends[:-1]], ends, strict=True)):
        raise DamagedData("read a Zarr store", on=f"{on} {_ENDS}", got="ends that do not advance", wanted="rising ones")
    return ends


def _chunks(array: Any, begin: int, end: int) -> Iterator[tuple[range, list[str]]]:
    """Yields, for each stretch of rows, the files that hold it."""
    piece = array.shards or array.chunks
    beside = [range(-(-length // size)) for length, size in zip(array.shape[1:], piece[1:], strict=True)]
    base = f"{array.path}/" if array.path else ""
    for place in range(begin // piece[0], -(-end // piece[0])):
        rows = range(max(begin, place * piece[0]), min(end, (place + 1) * piece[0]))
        names = [array.metadata.encode_chunk_key((place, *others)) for others in itertools.product(*beside)]
        yield rows, [f"{base}{name}" for name in names]


def _files(store: _Store, arrays: Mapping[str, Any], name: str, begin: int, end: int | None) -> tuple[SourceFile, ...]:
    """Returns the files that hold some rows, and those that describe them; of a zip file, itself."""
    if store.names is not None:
        return (SourceFile(name=name, path=store.path),)
    keys = [*_DESCRIPTIONS]
    for key, array in arrays.items():
        parents = list(itertools.accumulate(key.split("/"), lambda folder, part: f"{folder}/{part}"))
        keys += [f"{folder}/{description}" for folder in parents for description in _DESCRIPTIONS]
        if array.ndim == 0:
            continue
        whole = end is None or key == _ENDS
        upto = array.shape[0] if whole or end is None else min(end, array.shape[0])
        for _, names in _chunks(array, 0 if whole else begin, upto):
            keys += names
            if len(keys) > FILES_MAX:
                raise InvalidInput(
                    "read a Zarr store",
                    on=name,
                    got=f"over {FILES_MAX} files",
                    wanted=f"at most {FILES_MAX}; a zip file of it is one file",
                )
    return tuple(
        SourceFile(name=f"{name}/{key}", path=store.path / key) for key in dict.fromkeys(keys) if store.has(key)
    )


def _facts(store: _Store, arrays: Mapping[str, Any], recording: ZarrRecording) -> dict[str, str]:
    """Returns what a store says of the whole of itself, and its meta arrays of one episode of it."""
    root = _library().open_group(store.store, mode="r", use_consolidated=False)
    facts = {str(key): _text(value) for key, value in root.attrs.asdict().items()}
    for name in ("data", "meta"):
        if recording.number is not None and store.kind_of(name) is _Node.GROUP:
            inner = _library().open_group(store.store, path=name, mode="r", use_consolidated=False)
            facts |= {str(key): _text(value) for key, value in inner.attrs.asdict().items()}
    count = arrays[_ENDS].shape[0] if _ENDS in arrays else -1
    for key, array in arrays.items():
        if array.ndim == 0:
            facts[key] = _text(array[()])
        elif key.startswith("meta/") and key != _ENDS and array.shape == (count,) and recording.number is not None:
            facts[key] = _text(array[recording.number])
    return dict(list(facts.items())[:FACTS_MAX])


def _text(value: Any) -> str:
    value = value.reshape(-1)[0] if isinstance(value, np.ndarray) and value.size == 1 else value
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    return str(bool(value)).lower() if isinstance(value, (bool, np.bool_)) else str(value)
