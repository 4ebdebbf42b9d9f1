"""Reads RLDS datasets as TFDS stores them: a record of a TFRecord file is an episode, `features.json` says its shapes.

Source: github.com/google-research/rlds; github.com/tensorflow/datasets `core/features`, `core/example_serializer.py`.
"""

from __future__ import annotations

import json
import re
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

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
    kind_of,
)
from mainspring.data.readers.episodes.steps.making import Layout, episode_of
from mainspring.data.readers.episodes.tfrecord import Record, Values, features_of, record_at, scanned
from mainspring.data.video.pictures import picture_codec
from mainspring.domain.codec import loads
from mainspring.domain.errors import DamagedData, InvalidInput, InvalidMessage, MainspringError

DESCRIPTIONS = ("features.json", "dataset_info.json")
_JSON_BYTES_MAX = 16 << 20
_DEPTH_MAX = 16
_SHARD = re.compile(r"(?P<name>.+)-(?P<split>[^-]+)\.tfrecord-(?P<number>\d{5})-of-(?P<count>\d{5})")
_LAYOUT = Layout(name="RLDS", joins_actions=True)
_MARKS = ("is_first", "is_last", "is_terminal")
_STEPS, _METADATA = "steps/", "episode_metadata/"


@dataclass(frozen=True, slots=True, kw_only=True)
class Spec:
    """How one feature is stored.

    Args:
        path: Its name in the record.
        kind: "tensor", "image", "text", or what is not read.
        shape: Of one value; -1 where it varies.
        dtype: NumPy's name.
        encoding: "none", "bytes" or "zlib".
        each_step: Whether there is one for each step, else one for the episode.
    """

    path: str
    kind: str
    shape: tuple[int, ...]
    dtype: str
    encoding: str
    each_step: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class RldsRecording:
    """One record of a shard, not yet read.

    Args:
        name: The shard's path inside the source, and the record's number.
        path: The shard.
        record: Where the record lies in it.
        split: The part of the dataset the shard is of.
        specs: How its features are stored.
        files: The shard and the dataset's descriptions.
        options: What is said of the source.
    """

    name: str
    path: Path
    record: Record
    split: str
    specs: tuple[Spec, ...]
    files: tuple[SourceFile, ...]
    options: IngestOptions = DEFAULT

    @property
    def parse_bytes(self) -> int:
        """See `Recording.parse_bytes`."""
        return self.record.size_bytes

    @property
    def part(self) -> str:
        """See `Recording.part`."""
        return f"{self.split} {self.record.offset} {self.record.size_bytes}"

    def read(self, folder: Path) -> Episode:
        """See `Recording.read`."""
        return episode_of(
            _Steps(
                features_of(record_at(self.path, self.record, on=self.name), on=self.name),
                self.specs,
                self.split,
                self.name,
            ),
            name=self.name,
            layout=_LAYOUT,
            options=self.options,
            folder=folder,
            files=self.files,
        )


def is_rlds(folder: Path) -> bool:
    """Returns whether a folder is one version of a TFDS dataset.

    Args:
        folder: The folder.
    """
    return all((folder / name).is_file() for name in DESCRIPTIONS)


def rlds_recordings(
    folder: Path,
    prefix: str,
    options: IngestOptions = DEFAULT,
    held: Callable[[tuple[Path, ...]], AbstractContextManager[None]] = lambda _: nullcontext(),
) -> Iterator[Recording]:
    """Yields every episode of a TFDS dataset, by shard and number, and what is missing.

    Args:
        folder: The folder of one version.
        prefix: Its path inside the source, with a "/" behind it; "" for the source itself.
        options: What is said of the source.
        held: Brings files here that lie elsewhere, and keeps them while its context lasts.
    """
    try:
        info = _json(folder / "dataset_info.json")
        specs = specs_of(_json(folder / "features.json"))
        wanted = _shard_lengths(info)
    except MainspringError as error:
        yield Unreadable(name=prefix.rstrip("/") or folder.name, reason=str(error))
        return
    beside = tuple(SourceFile(name=prefix + name, path=folder / name) for name in DESCRIPTIONS)
    seen: dict[str, set[int]] = {}
    counts: dict[str, int] = {}
    for path in sorted(path for path in folder.iterdir() if ".tfrecord" in path.name and path.is_file()):
        if (match := _SHARD.fullmatch(path.name)) is None:
            yield Unreadable(name=prefix + path.name, reason="a TFRecord file that is named as no shard of the dataset")
            continue
        split, number = match["split"], int(match["number"])
        seen.setdefault(split, set()).add(number)
        counts[split] = int(match["count"])
        lengths = wanted.get(split, ())
        expected = lengths[number] if number < len(lengths) else None
        files = (SourceFile(name=prefix + path.name, path=path), *beside)
        with held((path,)):
            recordings = tuple(_shard(path, prefix + path.name, split, specs, files, expected, options))
        yield from recordings
    for split in sorted({*wanted, *seen}):
        lengths = wanted.get(split, ())
        for number in range(max(len(lengths), min(counts.get(split, 0), FIELDS_MAX))):
            if number not in seen.get(split, ()):
                gone = f", and with it {lengths[number]} episodes" if number < len(lengths) else ""
                yield Unreadable(name=f"{prefix}{split} shard {number}", reason=f"no such file{gone}")


def specs_of(plain: Any) -> tuple[Spec, ...]:
    """Returns how the features of an episode are stored.

    Args:
        plain: What `features.json` says.

    Raises:
        InvalidInput: It is no RLDS dataset, or of a TFDS that is too old.
    """
    found: list[Spec] = []
    _walk(plain, "", found, each_step=False, depth=_DEPTH_MAX)
    if not any(spec.each_step for spec in found):
        raise InvalidInput(
            "read a TFDS dataset",
            on="features.json",
            got=", ".join(spec.path for spec in found[:12]) or "no features",
            wanted="an RLDS dataset, whose episodes have steps",
        )
    return tuple(sorted(found, key=lambda spec: spec.path))


def _shard(
    path: Path,
    name: str,
    split: str,
    specs: tuple[Spec, ...],
    files: tuple[SourceFile, ...],
    expected: int | None,
    options: IngestOptions,
) -> Iterator[Recording]:
    try:
        scan = scanned(path)
    except DamagedData as error:
        yield Unreadable(name=name, reason=str(error))
        return
    for number, record in enumerate(scan.records):
        yield RldsRecording(
            name=f"{name}/{number:06d}",
            path=path,
            record=record,
            split=split,
            specs=specs,
            files=files,
            options=options,
        )
    have = len(scan.records)
    short = expected is not None and expected != have
    if scan.problem or short:
        told = f"{have} of {expected} episodes that dataset_info.json counts" if expected is not None else ""
        yield Unreadable(name=name, reason="; ".join(filter(None, (scan.problem, told))))


class _Steps:
    """One episode's features, in memory; see `Opened`."""

    def __init__(self, values: Mapping[str, Values], specs: tuple[Spec, ...], split: str, on: str) -> None:
        self.facts: dict[str, str] = {} if split == "train" else {"split": split}
        self._on, self._values, self.passed_over = on, values, list[str]()
        self._specs = {spec.path.removeprefix(_STEPS): spec for spec in specs if spec.each_step}
        self._fields: dict[str, StepField] = {}
        for name, spec in self._specs.items():
            if name in _MARKS:
                self._mark(name, spec)
            else:
                self._take(name, spec)
        for spec in specs:
            if not spec.each_step and len(self.facts) < FACTS_MAX:
                self._say(spec)
        self.fields = tuple(field for _, field in sorted(self._fields.items()))

    def numbers(self, field: StepField) -> Array:
        """See `Opened.numbers`."""
        return self._numbers(self._specs[field.name])

    def pictures(self, field: StepField) -> Iterator[Array | bytes]:
        """See `Opened.pictures`."""
        if field.kind is Kind.PIXELS:
            yield from self._numbers(self._specs[field.name])
        else:
            yield from self._bytes(self._specs[field.name])

    def texts(self, field: StepField) -> Iterator[str]:
        """See `Opened.texts`."""
        for text in self._bytes(self._specs[field.name]):
            yield text.decode("utf-8", "replace")

    def _take(self, name: str, spec: Spec) -> None:
        values = self._values.get(spec.path, [])
        kind, shape = self._kind(spec), spec.shape
        if kind is None or not len(values):
            self.passed_over.append(f"{name} {spec.kind} {spec.dtype}{list(shape)}")
            return
        size = 1 if isinstance(values, list) else int(np.prod(shape, dtype=np.int64))
        if len(values) % size:
            raise DamagedData(
                "read an RLDS episode",
                on=f"{self._on} {name}",
                got=f"{len(values)} numbers, which are no steps of {size}",
            )
        whole = kind in (Kind.NUMBERS, Kind.PIXELS)
        self._fields[name] = StepField(
            name=name, kind=kind, steps=len(values) // size, shape=shape if whole else (), dtype=spec.dtype
        )

    def _kind(self, spec: Spec) -> Kind | None:
        if spec.kind == "image":
            first = next(iter(self._bytes(spec)), b"")
            return Kind.CODED if picture_codec(first) or not first else None
        if spec.kind == "text" or (spec.kind == "tensor" and spec.dtype in ("string", "object") and not spec.shape):
            return Kind.TEXT
        if spec.kind != "tensor" or -1 in spec.shape:
            return None
        try:
            return kind_of(np.dtype(spec.dtype), spec.shape)
        except TypeError:
            return None

    def _bytes(self, spec: Spec) -> list[bytes]:
        values = self._values.get(spec.path, [])
        if not isinstance(values, list):
            raise DamagedData("read an RLDS episode", on=f"{self._on} {spec.path}", got="numbers", wanted="bytes")
        return values

    def _numbers(self, spec: Spec) -> Array:
        values = self._values.get(spec.path, [])
        dtype = np.dtype(spec.dtype)
        if not isinstance(values, list):
            return values.reshape(-1, *spec.shape).astype(dtype, copy=False)
        size = int(np.prod(spec.shape, dtype=np.float64)) * dtype.itemsize
        if size * len(values) > PIECE_BYTES_MAX:
            raise DamagedData("read an RLDS episode", on=f"{self._on} {spec.path}", got=f"{size * len(values):,} bytes")
        parts = [_inflated(value, size) if spec.encoding == "zlib" else value for value in values]
        if wrong := [len(part) for part in parts if len(part) != size]:
            raise DamagedData(
                "read an RLDS episode",
                on=f"{self._on} {spec.path}",
                got=f"a value of {wrong[0]} bytes",
                wanted=f"{size}",
            )
        return np.frombuffer(b"".join(parts), dtype.newbyteorder("<")).reshape(-1, *spec.shape).astype(dtype)

    def _mark(self, name: str, spec: Spec) -> None:
        """Takes note of what marks the first and last steps: it says nothing that the steps' order does not."""
        marks = np.asarray(self._values.get(spec.path, []))
        if marks.dtype.kind not in "biuf" or not len(marks):
            return
        wanted = np.zeros(len(marks))
        wanted[0 if name == "is_first" else -1] = 1
        if name == "is_terminal":
            if not marks[-1]:
                self.facts[name] = "false"  # It was broken off, not ended.
        elif not np.array_equal(marks != 0, wanted != 0):
            self.passed_over.append(f"{name}, which marks other steps")

    def _say(self, spec: Spec) -> None:
        values = self._values.get(spec.path, [])
        name = spec.path.removeprefix(_METADATA)
        if isinstance(values, list) and values and spec.kind in ("text", "tensor") and spec.encoding == "none":
            self.facts[name] = ", ".join(value.decode("utf-8", "replace") for value in values[:64])
        elif not isinstance(values, list) and 0 < len(values) <= 64:
            known = spec.dtype == "bool"
            self.facts[name] = ", ".join(str(bool(v)).lower() if known else f"{v:.9g}" for v in values.tolist())


def _walk(plain: Any, path: str, found: list[Spec], *, each_step: bool, depth: int) -> None:
    """Notes every feature below one of `features.json`."""
    if not isinstance(plain, dict) or not depth or len(found) >= FIELDS_MAX:
        return
    if isinstance(inner := plain.get("featuresDict"), dict):
        for name, feature in inner.get("features", {}).items():
            _walk(feature, f"{path}/{name}".lstrip("/"), found, each_step=each_step, depth=depth - 1)
    elif isinstance(inner := plain.get("sequence"), dict):
        if path == "steps":
            _walk(inner.get("feature"), path, found, each_step=True, depth=depth - 1)
        else:
            found.append(_spec(path, "sequence", {}, each_step=each_step))
    else:
        kind = next((kind for kind in ("tensor", "image", "text", "classLabel") if kind in plain), "")
        said = plain.get(kind)
        if not kind and str(plain.get("pythonClassName", "")).endswith(("Text", "text_feature.Text")):
            kind = "text"
        if kind == "classLabel":
            kind, said = "tensor", {"dtype": "int64"}
        found.append(_spec(path, kind or "other", said if isinstance(said, dict) else {}, each_step=each_step))


def _spec(path: str, kind: str, said: Mapping[str, Any], *, each_step: bool) -> Spec:
    shape = said.get("shape")
    listed = shape.get("dimensions", ()) if isinstance(shape, dict) else ()
    try:
        dims = tuple(int(dim) for dim in listed)
    except (TypeError, ValueError) as error:
        raise DamagedData("read a TFDS dataset", on=f"features.json, {path}", got=f"shape {listed}"[:200]) from error
    return Spec(
        path=path,
        kind=kind,
        shape=tuple(max(dim, -1) for dim in dims),
        dtype=str(said.get("dtype", "")),
        encoding=str(said.get("encoding") or "none").lower(),
        each_step=each_step,
    )


def _inflated(data: bytes, size: int) -> bytes:
    try:
        return zlib.decompressobj().decompress(data, size + 1)
    except zlib.error as error:
        raise DamagedData("read an RLDS episode", got=f"a compressed value: {error}") from error


def _shard_lengths(info: Any) -> dict[str, tuple[int, ...]]:
    """Returns how many records each shard of each split has."""
    found: dict[str, tuple[int, ...]] = {}
    form = info.get("fileFormat") or "tfrecord"
    if form != "tfrecord":
        raise InvalidInput("read a TFDS dataset", on="dataset_info.json", got=f"files of {form}", wanted="tfrecord")
    for split in info.get("splits") or ():
        try:
            found[str(split["name"])] = tuple(int(length) for length in split.get("shardLengths", ()))
        except (TypeError, ValueError, KeyError, AttributeError) as error:
            raise DamagedData(
                "read a TFDS dataset", on="dataset_info.json", got=json.dumps(split)[:200], wanted="a split"
            ) from error
    return found


def _json(path: Path) -> Any:
    try:
        if path.stat().st_size > _JSON_BYTES_MAX:
            raise DamagedData("read a TFDS dataset", on=path.name, got="a larger file", wanted="at most 16 MiB")
        plain = loads(path.read_bytes())
    except (OSError, InvalidMessage) as error:
        raise DamagedData("read a TFDS dataset", on=path.name, got=str(error)[:200], wanted="JSON") from error
    if not isinstance(plain, dict):
        raise DamagedData("read a TFDS dataset", on=path.name, got=type(plain).__name__, wanted="an object")
    return plain
