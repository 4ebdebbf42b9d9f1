"""Moves state between this node and the object store, in one worker thread, with bounded retries."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar, final

from mainspring.checkpoint import Fetched, Manifest, commit, durable_steps, fetch, prune, share_key
from mainspring.domain.errors import MainspringError, StorageFull, Unavailable
from mainspring.domain.ids import JobId
from mainspring.domain.wire import ShardsStored, StoreFailed
from mainspring.node.arena import Held
from mainspring.objects import ObjectStore

TRIES_MAX = 4
FIRST_WAIT_S = 0.5  # Doubles: half a second, one, two; then the lead is told, and tries with a newer step.

Value = TypeVar("Value")


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """One rank's part of a step.

    Args:
        rank: The rank.
        step: The step.
        file: Name of its data file.
        prefix: What its paths and facts are prefixed with, so that roles do not collide; "" in a job of one role.
        held: The snapshot.
    """

    rank: int
    step: int
    file: str
    prefix: str
    held: Held


@final
class Stores:
    """This node's traffic with the object store.

    Args:
        store: The object store.
        job: The job whose state it is.
    """

    def __init__(self, store: ObjectStore, job: JobId) -> None:
        self._store = store
        self._job = job
        self._ended = threading.Event()
        self._worker = ThreadPoolExecutor(max_workers=1, thread_name_prefix="mainspring-store")

    async def keep(self, share: Share) -> ShardsStored | StoreFailed:
        """Makes one rank's share durable; returns what to tell the lead.

        Args:
            share: What to store; released by the caller.
        """

        def work() -> ShardsStored:
            shards = tuple(
                replace(shard, file=share.file, path=share.prefix + shard.path)
                for shard in share.held.sealed()
                if shard.once
            )
            if shards:
                key = share_key(self._job, share.step, share.file)
                self._tried(lambda: self._store.put(key, share.held.once_bytes().data))
            state = {share.prefix + name: value for name, value in share.held.state.items()}
            return ShardsStored(rank=share.rank, step=share.step, shards=shards, state=state)

        try:
            return await self._run(work)
        except MainspringError as error:
            return StoreFailed(rank=share.rank, step=share.step, reason=str(error))

    async def fetch(self, step: int, folder: Path) -> Fetched:
        """Returns a durable step as verified local files.

        Args:
            step: The step.
            folder: Where they go; what was there is removed.

        Raises:
            DamagedData: The step does not hold together.
            NotFound: The step is gone.
            Unavailable: The store does not answer, or there is no room here.
        """

        def work() -> Fetched:
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir(parents=True)
            return self._tried(lambda: fetch(self._store, self._job, step, folder))

        return await self._run(work)

    async def steps(self) -> tuple[int, ...]:
        """Returns the job's durable steps.

        Raises:
            Unavailable: The store does not answer.
        """
        return await self._run(lambda: durable_steps(self._store, self._job))

    async def commit(self, manifest: Manifest, *, replace_damaged: bool) -> None:
        """Makes a step real and lets the oldest go; when those cannot be deleted now, the next commit will.

        Args:
            manifest: The step.
            replace_damaged: Whether a damaged manifest of the same step gives way.

        Raises:
            Unavailable: The store does not answer.
        """

        def work() -> None:
            self._tried(lambda: commit(self._store, manifest, replace=replace_damaged))
            with contextlib.suppress(MainspringError):
                prune(self._store, self._job)

        await self._run(work)

    def close(self) -> None:
        """Ends waiting between tries; what is under way ends by itself."""
        self._ended.set()
        self._worker.shutdown(wait=False, cancel_futures=True)

    async def _run(self, work: Callable[[], Value]) -> Value:
        return await asyncio.get_running_loop().run_in_executor(self._worker, work)

    def _tried(self, work: Callable[[], Value]) -> Value:
        for attempt in range(TRIES_MAX):
            try:
                return work()
            except StorageFull:
                raise  # Room does not come back by asking again within seconds.
            except Unavailable:
                if attempt == TRIES_MAX - 1 or self._ended.wait(FIRST_WAIT_S * 2**attempt):
                    raise
        raise AssertionError("every try returns or raises")
