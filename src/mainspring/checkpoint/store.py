"""The checkpoints of a job: make a step real, list, verify, load, claim, delete. Nothing damaged is ever handed out."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

from numpy.typing import NDArray

from mainspring.checkpoint.format import (
    KEEP_STEPS,
    Claim,
    Manifest,
    claim_key,
    claim_of,
    job_folder,
    manifest_bytes,
    manifest_key,
)
from mainspring.checkpoint.reader import Checkpoint, open_checkpoint, read_manifest
from mainspring.domain.errors import DamagedData, NotFound
from mainspring.domain.ids import JobId
from mainspring.domain.wire import Detail, Part
from mainspring.objects import ObjectStore

_REASONS_LENGTH_MAX = 1_000  # Of an error that quotes what is wrong with each step.


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
        manifest: The manifest it came from.
        passed_over: Newer steps that could not be loaded, newest first.
    """

    step: int
    state: Detail
    arrays: Mapping[str, NDArray[Any]]
    manifest: Manifest
    passed_over: tuple[PassedOver, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Collected:
    """What cleaning deletes.

    Args:
        steps: The durable steps, newest first.
        keys: Every object, in the order in which they go: manifests first, so that no step is ever half real.
        size_bytes: The room they take.
    """

    steps: tuple[int, ...]
    keys: tuple[str, ...]
    size_bytes: int


def commit(store: ObjectStore, manifest: Manifest, *, replace: bool) -> bool:
    """Makes a step real, once all its shares are stored; returns whether this call did.

    Args:
        store: The object store.
        manifest: What to write.
        replace: Whether a manifest that is there already is known to be damaged, and gives way.

    Raises:
        Unavailable: The store does not answer.
    """
    key = manifest_key(manifest.job, manifest.step)
    data = manifest_bytes(manifest)
    if replace:
        store.delete(key)
    return store.put_if_absent(key, data)


def durable_steps(store: ObjectStore, job: JobId) -> tuple[int, ...]:
    """Returns the steps that have a manifest, newest first.

    Args:
        store: The object store.
        job: The job.
    """
    names = [seen.key.rpartition("/")[2] for seen in store.list(f"{job_folder(job)}/manifests")]
    return tuple(sorted((int(name) for name in names if _is_number(name)), reverse=True))


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
    checkpoint = open_checkpoint(store, job, step)
    checkpoint.verify()
    return checkpoint.manifest


def load(
    store: ObjectStore,
    job: JobId,
    step: int | None = None,
    parts: Collection[Part] | None = None,
    *,
    rest: Callable[[], object] | None = None,
) -> Loaded:
    """Returns a job's checkpoint as whole arrays: the newest that holds together, and which were passed over.

    Args:
        store: The object store.
        job: The job.
        step: One step wanted, and no other; None for the newest.
        parts: What is wanted of it, such as the weights alone; None for everything.
        rest: See `Checkpoint`.

    Raises:
        NotFound: The job has no checkpoint, or not this step.
        DamagedData: The step wanted, or every step there is, does not hold together.
    """
    if step is not None:
        return _loaded(open_checkpoint(store, job, step, rest=rest), parts, ())
    passed_over: list[PassedOver] = []
    for candidate in durable_steps(store, job):
        try:
            return _loaded(open_checkpoint(store, job, candidate, rest=rest), parts, tuple(passed_over))
        except (DamagedData, NotFound) as error:
            passed_over.append(PassedOver(step=candidate, reason=str(error)))
    if passed_over:
        raise DamagedData(
            "load a checkpoint", on=job, got="; ".join(passed.reason for passed in passed_over)[:_REASONS_LENGTH_MAX]
        )
    raise NotFound("load a checkpoint", on=job, got="no durable step")


def put_claim(store: ObjectStore, job: JobId, claim: Claim) -> None:
    """Tells every lead of the job, now and later, that older claims may write no more.

    Args:
        store: The object store.
        job: The job.
        claim: The claim.

    Raises:
        Unavailable: The store does not answer.
    """
    store.put_if_absent(claim_key(job, claim), b"")


def newest_claim(store: ObjectStore, job: JobId) -> Claim | None:
    """Returns the newest claim to a job's checkpoints, None before the first.

    Args:
        store: The object store.
        job: The job.

    Raises:
        Unavailable: The store does not answer.
    """
    claims = [claim_of(seen.key.rpartition("/")[2]) for seen in store.list(f"{job_folder(job)}/claims")]
    return max((claim for claim in claims if claim is not None), default=None)


def withdraw(store: ObjectStore, job: JobId, after: int) -> tuple[int, ...]:
    """Makes steps durable no more, so that nobody resumes from them; returns which, newest first.

    Args:
        store: The object store.
        job: The job.
        after: The last step that stays. Where it is gone by now, and all older ones too, the oldest there is stays in
            its place; -1 for no step.

    Raises:
        Unavailable: The store does not answer.
    """
    durable = durable_steps(store, job)
    stays = max(after, min(durable, default=after)) if after >= 0 else after
    gone = tuple(step for step in durable if step > stays)
    for step in gone:  # Their shares go with those that no manifest names.
        store.delete(manifest_key(job, step))
    return gone


def prune(store: ObjectStore, job: JobId, *, keep: int = KEEP_STEPS, trusted: Collection[int] = ()) -> tuple[int, ...]:
    """Deletes all but the newest steps and what can never become one, and returns the steps deleted, newest first.

    Args:
        store: The object store.
        job: The job.
        keep: How many steps stay, at least 1.
        trusted: Older ones that stay too.

    Raises:
        Unavailable: The store does not answer.
    """
    return collect(store, job, keep=keep, trusted=trusted, dry_run=False).steps


def collect(store: ObjectStore, job: JobId, *, keep: int, trusted: Collection[int] = (), dry_run: bool) -> Collected:
    """Deletes all but the newest steps and what can never become one, and returns what that is.

    A share that no manifest names goes when it is of a step before the oldest kept one, or was written under a claim
    older than the newest; without any durable step, only by its claim. Shares of a step whose manifest cannot be read
    stay with it.

    Args:
        store: The object store.
        job: The job.
        keep: How many steps stay, at least 1.
        trusted: Older ones that stay too.
        dry_run: Whether to tell only, and delete nothing.

    Raises:
        Unavailable: The store does not answer.
    """
    assert keep >= 1
    durable = durable_steps(store, job)
    kept, gone = durable[:keep], [step for step in durable[keep:] if step not in trusted]
    claim = newest_claim(store, job)
    named = {step: _files_of(store, job, step) for step in durable if step not in gone}
    keys = [manifest_key(job, step) for step in gone]
    size_bytes = sum(store.size(key) or 0 for key in keys)
    for seen in store.list(f"{job_folder(job)}/shares"):
        folder, name = seen.key.split("/")[-2:]
        step, file = int(folder) if _is_number(folder) else -1, name.rpartition(".")[0]
        files = named.get(step, frozenset())
        if files is None or file in files:
            continue
        writer = claim_of(file)
        outlived = claim is not None and writer is not None and writer < claim
        if outlived or (kept and step < kept[-1]):
            keys.append(seen.key)
            size_bytes += seen.size_bytes
    if not dry_run:
        for key in keys:
            store.delete(key)
    return Collected(steps=tuple(gone), keys=tuple(keys), size_bytes=size_bytes)


def _files_of(store: ObjectStore, job: JobId, step: int) -> frozenset[str] | None:
    """Returns the shares a step's manifest names, None when it cannot be read."""
    try:
        return frozenset(share.file for share in read_manifest(store, job, step).shares)
    except (DamagedData, NotFound):  # Not found: somebody else cleans too.
        return None


def _is_number(name: str) -> bool:
    return name.isascii() and name.isdigit()


def _loaded(checkpoint: Checkpoint, parts: Collection[Part] | None, passed_over: tuple[PassedOver, ...]) -> Loaded:
    return Loaded(
        step=checkpoint.manifest.step,
        state=checkpoint.manifest.state,
        arrays=checkpoint.arrays(
            [path for path, ((_, shard), *_) in checkpoint.paths.items() if parts is None or shard.part in parts]
        ),
        manifest=checkpoint.manifest,
        passed_over=passed_over,
    )
