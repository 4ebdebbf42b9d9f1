"""Reads HDF5 files: ALOHA (a file an episode), robomimic and LIBERO (a group an episode), others by `--map`.

Source: github.com/tonyzhaozh/act `record_sim_episodes.py`, robomimic's documentation "Dataset Contents",
github.com/Lifelong-Robot-Learning/LIBERO `scripts/create_dataset.py`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from mainspring.data.episode import Episode, Recording, SourceFile, Unreadable
from mainspring.data.options import DEFAULT, IngestOptions
from mainspring.data.readers.episodes.steps.fields import (
    FACTS_MAX,
    FIELDS_MAX,
    PIECE_BYTES_MAX,
    Array,
    Kind,
    StepField,
    flattened,
    kind_of,
)
from mainspring.data.readers.episodes.steps.making import Layout, episode_of
from mainspring.data.video.pictures import picture_codec
from mainspring.domain.errors import DamagedData, MainspringError

HDF5_SUFFIXES = (".h5", ".hdf5", ".he5")
EPISODES_MAX = 1_000_000
_DEPTH_MAX = 16
_BLOCK_BYTES = 64 << 20  # Of pictures read at once, where the file does not ask for more.
_BLOCK_ROWS = 64  # Of pictures whose lengths are not known before they are read.
_MAGIC_BYTES = 8
_GROUPS = ("data", "episodes", "demos", "trajectories", "")  # Where files of many episodes keep them.
_EPISODE = re.compile(r"(demo|episode|ep|traj|trajectory|rollout|run|trial)?[_-]?(\d{1,12})")
_ALOHA = Layout(name="ALOHA", rate_hz=50.0)  # Its recorder's DT is 0.02 s, and its files hold no times.
_ROBOMIMIC, _LIBERO, _PLAIN = Layout(name="robomimic"), Layout(name="LIBERO"), Layout(name="HDF5")
_BROKEN = (  # Everything h5py raises on bytes that are not what they claim.
    OSError,
    RuntimeError,
    ValueError,
    LookupError,
    TypeError,
    AttributeError,
    OverflowError,
    MemoryError,
    SystemError,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Hdf5Recording:
    """One episode of an HDF5 file, not yet read.

    Args:
        name: Path of the file inside the source, and the group where it holds several.
        file_name: Path of the file inside the source.
        path: The file.
        group: The group that is the episode; "" for the whole file.
        parse_bytes: Its share of the file: h5py reads one file at a time in a process.
        filter_keys: robomimic's names of the subsets it is in.
        options: What is said of the source.
    """

    name: str
    file_name: str
    path: Path
    group: str
    parse_bytes: int
    filter_keys: tuple[str, ...] = ()
    options: IngestOptions = DEFAULT

    @property
    def part(self) -> str:
        """See `Recording.part`."""
        return f"{self.group} {' '.join(self.filter_keys)}" if self.group else ""

    def read(self, folder: Path) -> Episode:
        """See `Recording.read`."""
        with _opened(self.path, self.name) as file:
            with _whole(self.name):
                group = file[self.group] if self.group else file
                opened = _Group(file, group, self.name)
                if self.filter_keys:
                    opened.facts["filter_keys"] = ", ".join(self.filter_keys)
                if (success := _sparse_success(group, opened.facts)) is not None:
                    opened.facts["success"] = success
            return episode_of(
                opened,
                name=self.name,
                layout=_layout(self.group, opened),
                options=self.options,
                folder=folder,
                files=(SourceFile(name=self.file_name, path=self.path),),
            )


def hdf5_recordings(path: Path, name: str, options: IngestOptions = DEFAULT) -> tuple[Recording, ...]:
    """Returns every episode of an HDF5 file, by number; one that is unreadable where the file is none.

    Args:
        path: The file.
        name: Its path inside the source.
        options: What is said of the source.
    """
    try:
        size_bytes = path.stat().st_size
        if not size_bytes:
            return (Unreadable(name=name, reason="an empty file"),)
        with _opened(path, name) as file, _whole(name):
            groups = _episode_groups(file)
            masks = _masks(file) if groups else {}
    except (MainspringError, OSError) as error:
        return (Unreadable(name=name, reason=str(error)),)
    if not groups:
        return (Hdf5Recording(name=name, file_name=name, path=path, group="", parse_bytes=size_bytes, options=options),)
    return tuple(
        Hdf5Recording(
            name=f"{name}/{group}",
            file_name=name,
            path=path,
            group=group,
            parse_bytes=size_bytes // len(groups),
            filter_keys=tuple(masks.get(group.rpartition("/")[2], ())),
            options=options,
        )
        for group in groups
    )


class _Group:
    """One episode's group, open; see `Opened`."""

    def __init__(self, file: Any, group: Any, on: str) -> None:
        self.facts: dict[str, str] = {}
        self._on, self._datasets = on, dict[str, Any]()
        self.passed_over: list[str] = []
        self._fields: dict[str, StepField] = {}
        self._seen: set[object] = set()
        parent = group.name.strip("/").rpartition("/")[0]
        for owner in (file, *([file[parent]] if parent else []), *([group] if group != file else [])):
            self._take_attributes(owner, "")
        self._walk(group, "", _DEPTH_MAX)
        self.fields = tuple(field for _, field in sorted(self._fields.items()))

    def numbers(self, field: StepField) -> Array:
        """See `Opened.numbers`."""
        with _whole(f"{self._on} {field.name}"):
            values: Array = np.asarray(_checked(self._datasets[field.name])[...])
            return values.astype(values.dtype.newbyteorder("="), copy=False)

    def pictures(self, field: StepField) -> Iterator[Array | bytes]:
        """See `Opened.pictures`."""
        with _whole(f"{self._on} {field.name}"):
            for block in _blocks(_checked(self._datasets[field.name])):
                for row in block:
                    if field.kind is Kind.PIXELS:
                        yield row.astype(row.dtype.newbyteorder("="), copy=False)
                    else:
                        yield _coded(row)

    def texts(self, field: StepField) -> Iterator[str]:
        """See `Opened.texts`."""
        with _whole(f"{self._on} {field.name}"):
            for block in _blocks(_checked(self._datasets[field.name])):
                for row in block:
                    yield _text(row)

    def _walk(self, group: Any, prefix: str, depth: int) -> None:
        if (where := h5py.h5o.get_info(group.id).addr) in self._seen:
            return  # A link back, which would never end.
        self._seen.add(where)
        for key in group:
            path = f"{prefix}{key}"
            if len(self._fields) >= FIELDS_MAX:
                raise DamagedData("read an HDF5 file", on=self._on, got=f"over {FIELDS_MAX} datasets")
            link = group.get(key, getlink=True)
            if isinstance(link, h5py.ExternalLink):
                self.passed_over.append(f"{path}, a link into another file")
                continue
            if isinstance(link, h5py.SoftLink) and group.get(key) is None:
                self.passed_over.append(f"{path}, a link to nothing")
                continue
            there = group[key]
            if isinstance(there, h5py.Group):
                if depth:
                    self._take_attributes(there, f"{path}/")
                    self._walk(there, f"{path}/", depth - 1)
            elif isinstance(there, h5py.Dataset):
                self._take(path, there)

    def _take(self, path: str, dataset: Any) -> None:
        if dataset.shape is None:
            return
        if dataset.ndim == 0 or (dataset.shape == (1,) and _is_text(dataset.dtype)):
            if dataset.dtype.kind != "V":
                self._say(path, dataset[()])
            return
        kind = _kind(dataset)
        if kind is None:
            self.passed_over.append(f"{path} {dataset.dtype}{list(dataset.shape)}")
            return
        shape = dataset.shape[1:] if kind in (Kind.NUMBERS, Kind.PIXELS) else ()
        self._datasets[path] = dataset
        self._fields[path] = StepField(
            name=path,
            kind=kind,
            steps=dataset.shape[0],
            shape=tuple(shape),
            dtype=str(dataset.dtype),
            names=_names(dataset),
        )

    def _take_attributes(self, owner: Any, prefix: str) -> None:
        for key in owner.attrs:
            value = owner.attrs[key]
            if not isinstance(value, h5py.Empty):
                self._say(f"{prefix}{key}", value)

    def _say(self, path: str, value: Any) -> None:
        """Notes a fact, if it is a text or a few numbers."""
        if isinstance(value, np.ndarray) and value.size != 1:
            if value.size > 64 or value.dtype.kind not in "biufSUO":
                return
            text = ", ".join(_text(one) for one in value.reshape(-1))
        else:
            text = _text(value.reshape(-1)[0] if isinstance(value, np.ndarray) else value)
        if len(self.facts) < FACTS_MAX:
            self.facts[path] = text


@contextmanager
def _whole(on: str) -> Iterator[None]:
    """Turns what h5py raises inside the block into a reason."""
    try:
        yield
    except MainspringError:
        raise
    except _BROKEN as error:
        raise DamagedData(
            "read an HDF5 file",
            on=on,
            got=" ".join(str(error).split())[:200] or type(error).__name__,
            wanted="a whole file",
        ) from error


@contextmanager
def _opened(path: Path, on: str) -> Iterator[Any]:
    with _whole(on):
        if not h5py.is_hdf5(path):
            with open(path, "rb") as plain:
                begins = plain.read(_MAGIC_BYTES)
            raise DamagedData("read an HDF5 file", on=on, got=f"bytes that begin {begins.hex()}", wanted="HDF5")
        file = h5py.File(path, "r", locking=False)
    with file:
        yield file


def _episode_groups(file: Any) -> list[str]:
    """Returns the groups that are episodes, by number; none where the whole file is one."""
    for parent in _GROUPS:
        owner = file.get(parent) if parent else file
        if not isinstance(owner, h5py.Group):
            continue
        found = {key: match for key in owner if (match := _EPISODE.fullmatch(key.lower()))}
        groups = [key for key in found if isinstance(owner.get(key), h5py.Group)]
        plain = any(isinstance(owner.get(key), h5py.Dataset) for key in owner if key not in found)
        if groups and not plain:
            if len(groups) > EPISODES_MAX:
                raise DamagedData("read an HDF5 file", got=f"over {EPISODES_MAX} episodes")
            groups.sort(key=lambda key: (int(found[key].group(2)), key))
            return [f"{parent}/{key}".lstrip("/") for key in groups]
    return []


def _masks(file: Any) -> dict[str, list[str]]:
    """Returns robomimic's filter keys: a demonstration's name to the names of the subsets it is in."""
    masks: dict[str, list[str]] = {}
    group = file.get("mask")
    for key in sorted(group) if isinstance(group, h5py.Group) else ():
        listed = group.get(key)
        if isinstance(listed, h5py.Dataset) and listed.ndim == 1 and listed.shape[0] <= EPISODES_MAX:
            for demo in listed[...]:
                masks.setdefault(_text(demo), []).append(key)
    return masks


def _layout(group: str, opened: _Group) -> Layout:
    names = {field.name for field in opened.fields}
    if group.startswith("data/") and "actions" in names:
        return _LIBERO if any("problem_info" in name for name in opened.facts) else _ROBOMIMIC
    return _ALOHA if not group and {"action", "observations/qpos"} <= names else _PLAIN


def _sparse_success(group: Any, facts: Mapping[str, str]) -> str | None:
    """Returns whether a demonstration of robosuite met its task: where rewards are not shaped, only that gives 1."""
    shaped = next((text for name, text in flattened(facts).items() if name.endswith("/reward_shaping")), "")
    rewards = group.get("rewards")
    if shaped != "false" or not isinstance(rewards, h5py.Dataset) or rewards.ndim != 1 or not rewards.shape[0]:
        return None
    return str(bool((rewards[...] > 0).any())).lower()


def _kind(dataset: Any) -> Kind | None:
    """Returns what a dataset holds at each step; pictures' bytes are known by how the first begins."""
    if not dataset.shape[0]:
        return None
    if dataset.dtype.kind == "O" or dataset.dtype.kind in "SV":
        held = h5py.check_vlen_dtype(dataset.dtype)
        if dataset.ndim != 1 or dataset.dtype.names or (held is not None and held != np.uint8):
            return None
        text = Kind.TEXT if _is_text(dataset.dtype) else None
        return Kind.CODED if picture_codec(_coded(dataset[0])) else text
    if dataset.dtype == np.uint8 and dataset.ndim == 2 and picture_codec(bytes(dataset[0, :_MAGIC_BYTES])):
        return Kind.CODED
    return kind_of(dataset.dtype, tuple(dataset.shape[1:]))


def _is_text(dtype: np.dtype[Any]) -> bool:
    return h5py.check_string_dtype(dtype) is not None


def _names(dataset: Any) -> tuple[str, ...]:
    """Returns what a dataset says of its numbers' names, in an attribute of as many texts."""
    said = dataset.attrs.get("names")
    if isinstance(said, np.ndarray) and dataset.ndim == 2 and said.shape == (dataset.shape[1],):
        return tuple(_text(name)[:200] for name in said)
    return ()


def _coded(row: Any) -> bytes:
    """Returns a picture's bytes, without the zeros that fill a row up: no JPEG or PNG ends with one."""
    return (row.encode("utf-8", "surrogateescape") if isinstance(row, str) else bytes(row)).rstrip(b"\0")


def _text(value: Any) -> str:
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    return str(bool(value)).lower() if isinstance(value, np.bool_) else str(value)


def _checked(dataset: Any) -> Any:
    """Returns a dataset whose values all lie in the file; what was never written would be read as zeros."""
    if dataset.external or (dataset.is_virtual and any(part.file_name != "." for part in dataset.virtual_sources())):
        raise DamagedData("read an HDF5 file", on=dataset.name, got="values that lie in another file")
    row_bytes = dataset.dtype.itemsize * int(np.prod(dataset.shape[1:], dtype=np.float64))
    if dataset.chunks:
        pairs = zip(dataset.shape, dataset.chunks, strict=True)
        wanted = int(np.prod([-(-length // chunk) for length, chunk in pairs], dtype=np.float64))
        size = dataset.dtype.itemsize * int(np.prod(dataset.chunks, dtype=np.float64))
        if size > PIECE_BYTES_MAX:
            raise DamagedData("read an HDF5 file", on=dataset.name, got=f"chunks of {size:,} bytes", wanted="1 GiB")
        have = dataset.id.get_num_chunks()
        if have < wanted:
            raise DamagedData("read an HDF5 file", on=dataset.name, got=f"{have} of {wanted} chunks", wanted="all")
    elif not dataset.is_virtual and dataset.id.get_storage_size() < row_bytes * dataset.shape[0]:
        raise DamagedData(
            "read an HDF5 file",
            on=dataset.name,
            got=f"{dataset.id.get_storage_size():,} of {row_bytes * dataset.shape[0]:,} bytes",
            wanted="all of them",
        )
    if row_bytes > PIECE_BYTES_MAX:
        raise DamagedData("read an HDF5 file", on=dataset.name, got=f"{row_bytes:,} bytes a step", wanted="1 GiB")
    return dataset


def _blocks(dataset: Any) -> Iterator[Any]:
    """Yields rows, some at a time: whole chunks, which would else be decompressed for every row."""
    if dataset.dtype.kind == "O":
        rows = _BLOCK_ROWS
    else:
        row_bytes = max(1, dataset.dtype.itemsize * int(np.prod(dataset.shape[1:])))
        rows = max(1, _BLOCK_BYTES // row_bytes)
        if dataset.chunks:
            rows = dataset.chunks[0] * max(1, rows // dataset.chunks[0])
            rows = min(rows, max(1, PIECE_BYTES_MAX // row_bytes))
    for begin in range(0, dataset.shape[0], rows):
        yield dataset[begin : begin + rows]
