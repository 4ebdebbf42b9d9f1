"""Object-store traffic of one node: state moved in worker threads, with bounded retries."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, TypeVar, final

from mainspring.checkpoint import (
    Checkpoint,
    Claim,
    Manifest,
    Sealed,
    commit,
    durable_steps,
    newest_claim,
    open_checkpoint,
    prune,
    put_claim,
    share_file,
    withdraw,
    write_share,
)
from mainspring.domain.codec import alike
from mainspring.domain.errors import MainspringError, NotFound, StorageFull, Unavailable
from mainspring.domain.ids import JobId
from mainspring.domain.job import checkpoint_named
from mainspring.domain.ports import Backoff
from mainspring.domain.wire import Detail, Piece, ShareStored, StoreFailed
from mainspring.node.snapshots.arena import Held
from mainspring.node.snapshots.replicas import replica_sums
from mainspring.objects import ObjectStore

TRIES_MAX = 4
AGAIN = Backoff(first_s=0.5)  # Half a second, one, two; then the lead is told, and tries with a newer step.
READS_AT_ONCE = 4  # Each reads with several threads of its own; ranks beyond that wait their turn.

Value = TypeVar("Value")


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """One rank's part of a step.

    Args:
        prefix: What its paths and facts are prefixed with, so that roles do not collide; "" in a job of one role.
    """

    claim: Claim
    prefix: str
    held: Held

    def sealed(self) -> Sealed:
        """Returns the snapshot's checksums, its paths as they are called in the store: slow, for a worker thread."""
        sealed = self.held.sealed()
        if not self.prefix:
            return sealed
        named = tuple(replace(shard, path=self.prefix + shard.path) for shard in sealed.shards)
        return Sealed(shards=named, pages=sealed.pages)

    def stored(self, state: Detail) -> ShareStored:
        """Returns what the lead is told of it, but for its file: slow, for a worker thread."""
        of, sums = replica_sums(self.sealed().shards)
        holding = self.held.holding
        return ShareStored(rank=holding.rank, step=holding.step, state=state, replicas_of=of, replicas=sums)


@final
class Stores:
    """This node's traffic with the object store. Shares leave one at a time; reads do not wait for them.

    Args:
        job: The job whose state it is.
    """

    def __init__(self, store: ObjectStore, job: JobId) -> None:
        self._store = store
        self._job = job
        self._ended = threading.Event()
        self._writer = ThreadPoolExecutor(max_workers=1, thread_name_prefix="mainspring-store")
        self._readers = ThreadPoolExecutor(max_workers=READS_AT_ONCE, thread_name_prefix="mainspring-fetch")

    async def keep(self, share: Share) -> ShareStored | StoreFailed:
        """Makes one rank's share durable; returns what to tell the lead. A repeat sends only what has not arrived."""
        holding = share.held.holding
        file = share_file(share.claim, generation=holding.generation, rank=holding.rank)

        def work() -> ShareStored:
            state = {share.prefix + name: value for name, value in share.held.state.items()}
            if not any(shard.once for shard in share.held.shards):
                return share.stored(state)
            entry = self._tried(
                lambda: write_share(
                    self._store,
                    job=self._job,
                    step=holding.step,
                    file=file,
                    rank=holding.rank,
                    data=share.held.data,
                    shards=share.held.shards,
                    sealed=share.sealed,
                    state=state,
                )
            )
            return replace(share.stored(state), **alike(ShareStored, entry))

        try:
            return await self._run(self._writer, work)
        except MainspringError as error:
            return StoreFailed(rank=holding.rank, step=holding.step, reason=str(error))

    async def open(self, step: int) -> Checkpoint:
        """Returns a durable step, opened for reading; none of its data is read.

        Raises:
            DamagedData: It does not hold together.
            NotFound: It is gone.
            Unavailable: The store does not answer.
        """
        return await self._read(lambda: open_checkpoint(self._store, self._job, step))

    async def pinned(self, begins_from: str) -> str:
        """Returns "NAME@STEP" with the newest durable step for "NAME", which stays as it is while it has none.

        Args:
            begins_from: Either of them, or "".

        Raises:
            Unavailable: The store does not answer.
        """
        name, step = checkpoint_named(begins_from)
        if not name or step is not None:
            return begins_from
        steps = await self._read(lambda: durable_steps(self._store, JobId(name)))
        return f"{name}@{steps[0]}" if steps else name

    async def open_other(self, begins_from: str) -> Checkpoint:
        """Returns a checkpoint of another job, or one that was imported, opened for reading.

        Args:
            begins_from: Which, as `pinned` returned it.

        Raises:
            DamagedData: It does not hold together.
            NotFound: It is gone, or there never was one.
            Unavailable: The store does not answer.
        """
        name, step = checkpoint_named(begins_from)
        if step is None:
            raise NotFound("begin from a checkpoint", on=name, got="no durable step")
        return await self._read(lambda: open_checkpoint(self._store, JobId(name), step))

    async def read(self, checkpoint: Checkpoint, pieces: Sequence[Piece], into: Sequence[memoryview]) -> None:
        """Fills memory with verified bytes of a durable step.

        Args:
            pieces: Which bytes; `shard` is the number in the step's list.

        Raises:
            DamagedData: Bytes are not what they were.
            Unavailable: The store does not answer.
        """
        await self._read(lambda: checkpoint.read(pieces, into))

    async def steps(self) -> tuple[int, ...]:
        """Returns the job's durable steps.

        Raises:
            Unavailable: The store does not answer.
        """
        return await self._read(lambda: durable_steps(self._store, self._job))

    async def withdraw(self, after: int) -> None:
        """Makes steps durable no more; see `checkpoint.withdraw`.

        Args:
            after: The last that stays.

        Raises:
            Unavailable: The store does not answer.
        """
        await self._read(lambda: withdraw(self._store, self._job, after))

    async def commit(self, manifest: Manifest, *, replace_damaged: bool, trusted: int = -1) -> None:
        """Makes a step real and lets the oldest go; when those cannot be deleted now, the next commit will.

        Args:
            replace_damaged: Whether a damaged manifest of the same step gives way.
            trusted: A step that stays however old it is.

        Raises:
            Unavailable: The store does not answer.
        """

        def work() -> None:
            self._tried(lambda: commit(self._store, manifest, replace=replace_damaged))
            with contextlib.suppress(MainspringError):
                prune(self._store, self._job, trusted=(trusted,))

        await self._run(self._readers, work)  # Not behind a share that is still being written.

    async def put_samples(self, key: str, packed: Callable[[], bytes]) -> None:
        """Stores a part of the attempt's samples, in place of a shorter one of the same key.

        Args:
            packed: Makes its bytes; called in a worker thread.

        Raises:
            Unavailable: The store does not answer.
        """
        await self._run(self._readers, lambda: self._store.put(key, packed()))  # Tried again with more in it.

    async def put_open(self, files: Mapping[str, IO[bytes]]) -> None:
        """Stores open files, whole, by key.

        Raises:
            Unavailable: The store does not answer.
        """

        def work() -> None:
            for key, file in files.items():
                path = Path(f"/proc/self/fd/{file.fileno()}")  # A file without a name.
                self._tried(lambda key=key, path=path: self._store.put_file(key, path))  # type: ignore[misc]

        await self._run(self._readers, work)  # Not behind a share that is still being written.

    async def put_claim(self, claim: Claim) -> None:
        """Tells leads with older claims that they may write no more.

        Raises:
            Unavailable: The store does not answer.
        """
        await self._read(lambda: put_claim(self._store, self._job, claim))

    async def newest_claim(self) -> Claim | None:
        """Returns the newest claim to the job's checkpoints, None before the first.

        Raises:
            Unavailable: The store does not answer.
        """
        return await self._read(lambda: newest_claim(self._store, self._job))

    def close(self) -> None:
        """Ends waiting between tries; what is under way ends by itself."""
        self._ended.set()
        for pool in (self._writer, self._readers):
            pool.shutdown(wait=False, cancel_futures=True)

    async def _read(self, work: Callable[[], Value]) -> Value:
        return await self._run(self._readers, lambda: self._tried(work))

    async def _run(self, pool: ThreadPoolExecutor, work: Callable[[], Value]) -> Value:
        return await asyncio.get_running_loop().run_in_executor(pool, work)

    def _tried(self, work: Callable[[], Value]) -> Value:
        for tries in range(1, TRIES_MAX + 1):
            try:
                return work()
            except StorageFull:
                raise  # Room does not come back by asking again within seconds.
            except Unavailable:
                if tries == TRIES_MAX or self._ended.wait(AGAIN.wait_s(tries)):
                    raise
        raise AssertionError("every try returns or raises")
