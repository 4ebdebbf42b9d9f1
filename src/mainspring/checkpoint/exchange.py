"""Between foreign checkpoints and ours: one of ours as a source, and a source made one of ours."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from functools import partial

import numpy as np

from mainspring.checkpoint.format import (
    Claim,
    Lineage,
    Manifest,
    ShareEntry,
    claim_key,
    job_folder,
    share_file,
)
from mainspring.checkpoint.interop import (
    REGION_BYTES,
    ArraySource,
    ArraySpec,
    Block,
    Facts,
    Progress,
    Region,
    batches,
    block,
)
from mainspring.checkpoint.reader import Checkpoint
from mainspring.checkpoint.share import seal, write_share
from mainspring.checkpoint.store import commit, durable_steps, newest_claim
from mainspring.domain.errors import Conflict, InvalidInput, MainspringError
from mainspring.domain.ids import AttemptId, JobId, checked_name
from mainspring.domain.wire import Shard
from mainspring.objects import ObjectStore, aligned_buffer

IMPORTED = AttemptId("import")  # Stands where an attempt's id does.
SHARE_BYTES_MIN = 256 << 20  # One segment of an upload; what an import holds in memory.
_SHARES_MAX = 8_192  # A manifest of so many is 2 MB; the shares of larger checkpoints grow instead.
_SHARDS_A_SHARE_MAX = 10_000  # An index of so many is 3 MB before it is packed.
_JOB_PREFIX = "job-"  # What jobs' own ids begin with.
_ALIGNMENT_BYTES = 64  # A cache line, as in the arena: arrays of any type can be used where they lie.


class StoredSource:
    """A checkpoint of ours as an `ArraySource`.

    Args:
        checkpoint: What `open_checkpoint` gave.
    """

    def __init__(self, checkpoint: Checkpoint) -> None:
        self._checkpoint = checkpoint
        arrays = {
            shard.path: ArraySpec(path=shard.path, dtype=shard.dtype, shape=shard.global_shape, part=shard.part)
            for shard in checkpoint.shards
        }
        self.arrays = tuple(arrays[path] for path in sorted(arrays))

    @property
    def name(self) -> str:
        """See `ArraySource.name`."""
        return f"{self._checkpoint.manifest.job}@{self._checkpoint.manifest.step}"

    @property
    def facts(self) -> Facts:
        """See `ArraySource.facts`."""
        manifest = self._checkpoint.manifest
        return Facts(step=manifest.step, state=manifest.state, origin=self.name)

    def read(self, blocks: Sequence[Block]) -> None:
        """See `ArraySource.read`."""
        whole = self._checkpoint.arrays(each.array.path for each in blocks if each.region.shape == each.array.shape)
        for each in blocks:
            if each.region.shape == each.array.shape:
                each.elements[...] = whole[each.array.path]
            else:
                each.elements[...] = self._checkpoint.array(each.array.path, each.region.start, each.region.shape)


def import_source(
    store: ObjectStore,
    source: ArraySource,
    *,
    job: str,
    step: int,
    now_s: float,
    progress: Progress = lambda done: None,
) -> Manifest:
    """Makes a source a durable step under a name of its own, and returns its manifest.

    Args:
        store: The object store it goes to.
        source: What is taken in.
        job: The name it gets, which stands where a job's id does.
        step: The step it counts as.
        now_s: Now, in seconds since the Unix epoch.
        progress: Told of bytes as they are stored.

    Raises:
        InvalidInput: The name could be that of a job that runs, or is no name.
        Conflict: The name has this step already, or somebody else is importing under it.
        StorageFull: There is no room; what was written is deleted again.
        DamagedData: The source does not hold together.
    """
    name = JobId(checked_name(job, "what is imported"))
    if name.startswith(_JOB_PREFIX):
        raise InvalidInput(
            "import a checkpoint",
            got=repr(job),
            wanted=f"a name that does not begin with {_JOB_PREFIX!r}: those belong to jobs",
        )
    if step in durable_steps(store, name):
        raise Conflict("import a checkpoint", on=f"{name}@{step}", got="one there already", wanted="another name")
    before = newest_claim(store, name)
    claim = Claim(number=before.number + 1 if before else 1, epoch=1)
    if not store.put_if_absent(claim_key(name, claim), b""):  # A claim is one importer's: so are its shares' names.
        raise Conflict("import a checkpoint", on=name, got="somebody else's import that began just now")
    try:
        shares = _Shares(store, name, step, claim, progress).written(source)
        manifest = Manifest(
            job=name,
            attempt=IMPORTED,
            step=step,
            created_s=now_s,
            shares=shares,
            state=source.facts.state,
            lineage=Lineage(number=claim.number, ranks=len(shares), parent=source.facts.origin),
        )
        if newest_claim(store, name) != claim or not commit(store, manifest, replace=False):
            raise Conflict("import a checkpoint", on=f"{name}@{step}", got="somebody else's import of the same name")
    except BaseException:
        with suppress(MainspringError):  # The failure to tell of is the first one; `collect` finds what stays behind.
            _delete_shares(store, name, step, claim)
        raise
    return manifest


class _Shares:
    """Packs blocks into shares of about equal size, one after the other, in one buffer."""

    def __init__(self, store: ObjectStore, job: JobId, step: int, claim: Claim, progress: Progress) -> None:
        self._store, self._job, self._step, self._claim = store, job, step, claim
        self._progress = progress
        self._entries: list[ShareEntry] = []
        self._shards: list[Shard] = []
        self._used = 0

    def written(self, source: ArraySource) -> tuple[ShareEntry, ...]:
        """Returns the shares of a whole source, once all are stored."""
        total = sum(array.size_bytes + _ALIGNMENT_BYTES for array in source.arrays)
        room_bytes = min(total, max(SHARE_BYTES_MIN, -(-total // _SHARES_MAX)) + REGION_BYTES)
        self._buffer = np.frombuffer(aligned_buffer(room_bytes), dtype=np.uint8)
        for array in source.arrays:
            if not array.elements:  # It has no region, and shall not be forgotten.
                self._add(block(array, Region(start=(0,) * len(array.shape), shape=array.shape), self._buffer))
        for blocks in batches(source, source.arrays):
            for each in blocks:
                self._add(each)
        self._flush()
        return tuple(self._entries)

    def _add(self, each: Block) -> None:
        size_bytes = each.elements.nbytes
        if self._used + size_bytes > len(self._buffer) or len(self._shards) == _SHARDS_A_SHARE_MAX:
            self._flush()
        self._buffer[self._used : self._used + size_bytes] = each.elements.reshape(-1).view(np.uint8)
        shard = Shard(
            path=each.array.path,
            dtype=each.array.dtype,
            global_shape=each.array.shape,
            start=each.region.start,
            shape=each.region.shape,
            offset=self._used,
            size_bytes=size_bytes,
            part=each.array.part,
        )
        self._shards.append(shard)
        self._used += -(-size_bytes // _ALIGNMENT_BYTES) * _ALIGNMENT_BYTES

    def _flush(self) -> None:
        rank = len(self._entries)
        entry = write_share(
            self._store,
            job=self._job,
            step=self._step,
            file=share_file(self._claim, generation=1, rank=rank),
            rank=rank,
            data=self._buffer,
            shards=self._shards,
            sealed=partial(seal, self._buffer, self._shards),
            state={},
        )
        self._entries.append(entry)
        self._progress(sum(shard.size_bytes for shard in self._shards))
        self._shards, self._used = [], 0


def _delete_shares(store: ObjectStore, job: JobId, step: int, claim: Claim) -> None:
    folder = f"{job_folder(job)}/shares/{step:012d}"
    ours = share_file(claim, generation=1, rank=0).rpartition("-")[0]
    for seen in store.list(folder):
        if seen.key.removeprefix(f"{folder}/").startswith(ours):
            store.delete(seen.key)
