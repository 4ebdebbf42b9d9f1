"""Checkpoints in the object store: commit, list, verify, fetch, load, prune. Nothing damaged is ever handed out."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mainspring.checkpoint.format import (
    KEEP_STEPS,
    MANIFEST_NAME,
    Manifest,
    by_path,
    checked_shard,
    dtype_named,
    manifest_bytes,
    manifest_from,
)
from mainspring.domain.errors import DamagedData, NotFound
from mainspring.domain.ids import JobId
from mainspring.domain.wire import Detail, Shard
from mainspring.objects import IN_MEMORY_BYTES_MAX, ObjectStore


@dataclass(frozen=True, slots=True, kw_only=True)
class PassedOver:
    """A step that was not loaded.

    Args:
        step: The step.
        reason: What is wrong with it.
    """

    step: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Loaded:
    """A checkpoint in memory.

    Args:
        step: The step it was taken at.
        state: The program's own small facts.
        arrays: Whole arrays by tree path.
        lineage: The manifest it came from.
        passed_over: Newer steps that could not be loaded, newest first.
    """

    step: int
    state: Detail
    arrays: Mapping[str, NDArray[Any]]
    lineage: Manifest
    passed_over: tuple[PassedOver, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Fetched:
    """A checkpoint as verified local files.

    Args:
        manifest: Its manifest.
        files: Local path of each of its data files.
    """

    manifest: Manifest
    files: Mapping[str, Path]


def share_key(job: JobId, step: int, file: str) -> str:
    """Returns the object key of one rank's data file.

    Args:
        job: The job.
        step: The step.
        file: The file's name, as shards give it.
    """
    return f"{_folder(job)}/{step:012d}/{file}"


def commit(store: ObjectStore, manifest: Manifest, *, replace: bool) -> bool:
    """Makes a step real, once all its data files are stored; returns whether this call did.

    Args:
        store: The object store.
        manifest: What to write.
        replace: Whether a manifest that is there already is known to be damaged, and gives way.

    Raises:
        Unavailable: The store does not answer.
    """
    key = share_key(manifest.job, manifest.step, MANIFEST_NAME)
    if replace:
        store.delete(key)
    return store.put_if_absent(key, manifest_bytes(manifest))


def durable_steps(store: ObjectStore, job: JobId) -> tuple[int, ...]:
    """Returns the steps that have a manifest, newest first.

    Args:
        store: The object store.
        job: The job.
    """
    return tuple(sorted((step for step, name in _seen(store, job) if name == MANIFEST_NAME), reverse=True))


def read_manifest(store: ObjectStore, job: JobId, step: int) -> Manifest:
    """Returns a step's manifest.

    Args:
        store: The object store.
        job: The job.
        step: The step.

    Raises:
        NotFound: The step has none.
        DamagedData: It is not whole.
    """
    key = share_key(job, step, MANIFEST_NAME)
    manifest = manifest_from(store.get(key), key)
    if manifest.job != job or manifest.step != step:
        raise DamagedData(
            "read a manifest", on=key, got=f"{manifest.job} step {manifest.step}", wanted=f"{job} step {step}"
        )
    return manifest


def verify(store: ObjectStore, job: JobId, step: int) -> Manifest:
    """Returns a step's manifest after reading every byte it names.

    Args:
        store: The object store.
        job: The job.
        step: The step.

    Raises:
        NotFound: The step has no manifest.
        DamagedData: Anything it names is missing or differs.
    """
    manifest = read_manifest(store, job, step)
    for shard in manifest.shards:
        _read(store, manifest, shard)
    return manifest


def fetch(store: ObjectStore, job: JobId, step: int, folder: Path) -> Fetched:
    """Copies a step's data files into a folder and verifies them there.

    Args:
        store: The object store.
        job: The job.
        step: The step.
        folder: Where the files go, under their own names.

    Raises:
        NotFound: The step has no manifest.
        DamagedData: Anything it names is missing or differs.
        StorageFull: The folder has no room.
    """
    manifest = read_manifest(store, job, step)
    files: dict[str, Path] = {}
    for shard in manifest.shards:
        if shard.file not in files:
            key = share_key(job, step, shard.file)
            files[shard.file] = folder / Path(shard.file).name
            try:
                store.fetch_file(key, files[shard.file])
            except NotFound as error:
                raise DamagedData("fetch a checkpoint", on=key, got="no such object") from error
        path = files[shard.file]
        if not 0 <= shard.offset <= path.stat().st_size - shard.size_bytes:
            raise DamagedData("fetch a checkpoint", on=str(path), got="a file that ends before its shards do")
        if shard.size_bytes:
            data: NDArray[np.uint8] = np.memmap(
                path, dtype=np.uint8, mode="r", offset=shard.offset, shape=(shard.size_bytes,)
            )
            checked_shard(data, shard, str(path))
    return Fetched(manifest=manifest, files=files)


def load(store: ObjectStore, job: JobId, step: int | None = None) -> Loaded:
    """Returns a job's checkpoint as whole arrays: the newest that holds together, and which were passed over.

    Args:
        store: The object store.
        job: The job.
        step: One step wanted, and no other; None for the newest.

    Raises:
        NotFound: The job has no checkpoint, or not this step.
        DamagedData: The step wanted, or every step there is, does not hold together.
    """
    if step is not None:
        return _loaded(store, read_manifest(store, job, step), ())
    passed_over: list[PassedOver] = []
    for candidate in durable_steps(store, job):
        try:
            return _loaded(store, read_manifest(store, job, candidate), tuple(passed_over))
        except (DamagedData, NotFound) as error:
            passed_over.append(PassedOver(step=candidate, reason=str(error)))
    if passed_over:
        raise DamagedData("load a checkpoint", on=job, got="; ".join(passed.reason for passed in passed_over)[:1_000])
    raise NotFound("load a checkpoint", on=job, got="no durable step")


def prune(store: ObjectStore, job: JobId, *, keep: int = KEEP_STEPS) -> tuple[int, ...]:
    """Deletes all but the newest steps, and returns what was deleted. Manifests go first, so none is left half real.

    What lies below the oldest kept step without a manifest, shares that never became a step, goes too.

    Args:
        store: The object store.
        job: The job.
        keep: How many steps stay, at least 1.
    """
    assert keep >= 1
    kept = durable_steps(store, job)[:keep]
    if len(kept) < keep:
        return ()
    old = sorted((seen for seen in _seen(store, job) if seen[0] < kept[-1]), key=lambda seen: seen[1] != MANIFEST_NAME)
    for step, name in old:
        store.delete(share_key(job, step, name))
    return tuple(sorted({step for step, _ in old}))


def _folder(job: JobId) -> str:
    return f"checkpoints/{job}"


def _seen(store: ObjectStore, job: JobId) -> Iterator[tuple[int, str]]:
    for seen in store.list(_folder(job)):
        step, _, name = seen.key.removeprefix(_folder(job) + "/").partition("/")
        if step.isascii() and step.isdigit():
            yield int(step), name


def _read(store: ObjectStore, manifest: Manifest, shard: Shard) -> NDArray[np.uint8]:
    key = share_key(manifest.job, manifest.step, shard.file)
    data = np.empty(shard.size_bytes, dtype=np.uint8)
    try:
        for start in range(0, shard.size_bytes, IN_MEMORY_BYTES_MAX):
            size_bytes = min(IN_MEMORY_BYTES_MAX, shard.size_bytes - start)
            piece = store.get_range(key, offset=shard.offset + start, size_bytes=size_bytes)
            data[start : start + size_bytes] = np.frombuffer(piece, dtype=np.uint8)
    except NotFound as error:
        raise DamagedData("read a checkpoint", on=key, got="no such object") from error
    checked_shard(data, shard, key)
    return data


def _loaded(store: ObjectStore, manifest: Manifest, passed_over: tuple[PassedOver, ...]) -> Loaded:
    arrays: dict[str, NDArray[Any]] = {}
    for path, shards in by_path(manifest.shards).items():
        shape = shards[0].global_shape
        array = np.empty(shape, dtype=dtype_named(shards[0].dtype))
        covered = 0
        for shard in shards:
            place = tuple(slice(low, low + size) for low, size in zip(shard.start, shard.shape, strict=True))
            array[place] = _read(store, manifest, shard).view(array.dtype).reshape(shard.shape)
            covered += math.prod(shard.shape)
        if covered != math.prod(shape):
            raise DamagedData("load an array", on=path, got=f"{covered} elements", wanted=f"{math.prod(shape)}")
        arrays[path] = array
    return Loaded(step=manifest.step, state=manifest.state, arrays=arrays, lineage=manifest, passed_over=passed_over)
