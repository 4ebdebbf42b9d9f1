"""Profiles that ranks make of themselves: files without a name, which a rank fills and its agent brings to the store.

The agent makes the files and hands them over, so that no rank can have it read what it could not read itself.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import IO, final

from mainspring.checkpoint import job_folder
from mainspring.domain import wire
from mainspring.domain.errors import MainspringError
from mainspring.domain.ids import JobId
from mainspring.node.snapshots.arena import path_of
from mainspring.node.snapshots.stores import Stores
from mainspring.node.tasks import Tasks
from mainspring.objects.port import checked_key

BYTES_MAX = 1 << 30  # Of one rank: XLA keeps no more than two million events, some hundred MB.
FILES_MAX = 16


@dataclass(slots=True)
class _Filling:
    """A rank's profile on its way."""

    begin: wire.ProfileBegin
    files: list[IO[bytes]] = field(default_factory=list)

    def close(self) -> None:
        for file in self.files:
            file.close()


@final
class Profiles:
    """The profiles of one agent's ranks; of each rank one at a time."""

    def __init__(self, job: JobId, stores: Stores, tell_lead: Callable[[wire.AgentToLead], None]) -> None:
        self._job = job
        self._stores = stores
        self._tell_lead = tell_lead
        self._filling: dict[int, _Filling] = {}
        self._tasks = Tasks()

    def begin(self, rank: int, asked: wire.ProfileBegin) -> wire.ProfileSlot:
        """Returns files for a rank to fill, in place of those of an earlier profile that it never finished."""
        self._drop(rank)
        try:
            for name in asked.names:
                checked_key(self._key(rank, asked, name))
            if len(asked.names) > FILES_MAX:
                return wire.ProfileSlot(reason=f"{len(asked.names)} files; at most {FILES_MAX}")
            filling = _Filling(asked, [tempfile.TemporaryFile() for _ in asked.names])  # noqa: SIM115 - closed by `_drop`.
        except (MainspringError, OSError) as error:
            return wire.ProfileSlot(reason=str(error))
        self._filling[rank] = filling
        return wire.ProfileSlot(paths=tuple(path_of(file.fileno()) for file in filling.files))

    def commit(self, rank: int, told: wire.ProfileCommit) -> None:
        """Brings what a rank has filled to the store, and tells the lead."""
        filling = self._filling.pop(rank, None)
        if told.failure or filling is None or filling.begin.id != told.id:
            if filling is not None:
                filling.close()
            failure = told.failure or "the rank filled no files"
            self._tell_lead(wire.ProfileKept(rank=rank, id=told.id, failure=failure))
            return
        self._tasks.spawn(self._bring(rank, filling))

    async def _bring(self, rank: int, filling: _Filling) -> None:
        asked, failure = filling.begin, ""
        size_bytes = sum(os.fstat(file.fileno()).st_size for file in filling.files)
        try:
            if size_bytes > BYTES_MAX:
                failure = f"{size_bytes} bytes; at most {BYTES_MAX}"
            else:
                keys = [self._key(rank, asked, name) for name in asked.names]
                await self._stores.put_open(dict(zip(keys, filling.files, strict=True)))
        except MainspringError as error:
            failure = str(error)
        finally:
            filling.close()
        names = () if failure else asked.names
        self._tell_lead(wire.ProfileKept(rank=rank, id=asked.id, names=names, size_bytes=size_bytes, failure=failure))

    def close(self) -> None:
        """Gives up what is under way."""
        self._tasks.cancel()
        for rank in tuple(self._filling):
            self._drop(rank)

    def _drop(self, rank: int) -> None:
        filling = self._filling.pop(rank, None)
        if filling is not None:
            filling.close()

    def _key(self, rank: int, asked: wire.ProfileBegin, name: str) -> str:
        return f"{job_folder(self._job)}/profiles/{asked.id}/rank-{rank:05}/{name}"
