"""Resumable uploads: recordings arrive piece by piece under the name of their content, whole or not at all.

Who sends says the content's hash first. The same recording may be sent any number of times, by several at once, and
from any point on after a break; it appears in the folder once, checked.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from mainspring.data.readers.log import LOG_SUFFIXES
from mainspring.domain.errors import Conflict, DamagedData, InvalidInput, StorageFull, Unavailable
from mainspring.domain.ports import Clock
from mainspring.objects import Blob, Data, blob_of_file
from mainspring.objects.files import reported, sync_path

ARRIVAL_BYTES_MAX = 256 << 30  # A day of a robot with six cameras.
PIECE_BYTES_MAX = 64 << 20  # Of one call, held in memory.
ARRIVING_MAX = 1_024  # At once: a fleet's robots, each with one recording under way.
_ARRIVING = ".arriving"  # Starts with a dot, so that whoever reads the folder passes over it.
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,119}")
_ID_LETTERS = 16  # In file names, before the sender's own: 64 bits.


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrival:
    """A recording on its way.

    Args:
        blob: Its content, as the sender says.
        name: A file name, as the sender says; its ending tells what it is.
    """

    blob: Blob
    name: str

    def __post_init__(self) -> None:
        """Checks what a stranger says.

        Raises:
            InvalidInput: The name is no plain file name of a log, or the size is out of bounds.
        """
        if not _NAME.fullmatch(self.name) or not self.name.endswith(LOG_SUFFIXES):
            raise InvalidInput(
                "accept a recording",
                got=f"name {self.name[:80]!r}",
                wanted=f"letters, digits, '.', '_', '-', ending in {', '.join(LOG_SUFFIXES)}",
            )
        if not 0 < self.blob.size_bytes <= ARRIVAL_BYTES_MAX:
            raise InvalidInput(
                "accept a recording",
                on=self.name,
                got=f"{self.blob.size_bytes} bytes",
                wanted=f"1 to {ARRIVAL_BYTES_MAX}",
            )

    @property
    def file_name(self) -> str:
        """Returns what its file is called once it is whole."""
        return f"{self.blob.id[:_ID_LETTERS]}-{self.name}"


class Inbox:
    """A folder that recordings arrive in. Calls may come from many threads and processes.

    Args:
        folder: Where whole recordings appear; made when missing.

    Raises:
        Unavailable: The folder cannot be made.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._arriving = folder / _ARRIVING
        with reported("open an inbox", str(folder)):
            self._arriving.mkdir(parents=True, exist_ok=True)

    def path(self, arrival: Arrival) -> Path:
        """Returns where a recording is once it is whole.

        Args:
            arrival: The recording.
        """
        return self._folder / arrival.file_name

    def offset(self, arrival: Arrival) -> int:
        """Returns how much of a recording is here: where to go on; all of its bytes when it is whole.

        Args:
            arrival: The recording.
        """
        if self.path(arrival).exists():
            return arrival.blob.size_bytes
        with reported("look at an arriving recording", arrival.name):
            try:
                return self._part(arrival).stat().st_size
            except FileNotFoundError:
                return 0

    def append(self, arrival: Arrival, offset: int, data: Data) -> int:
        """Adds bytes to a recording and returns how much of it is here; with the last of them it appears.

        May be repeated: bytes that are here already change nothing.

        Args:
            arrival: The recording.
            offset: Where in it the bytes begin.
            data: The bytes.

        Raises:
            Conflict: What is here ends elsewhere than `offset`, or somebody else is sending it now: ask for the offset.
            InvalidInput: The bytes are too many, or go past the end.
            DamagedData: It is whole, and is something else than was said; it must be sent again from the beginning.
            StorageFull: There is no room for the rest of it.
            Unavailable: `ARRIVING_MAX` others are on their way.
        """
        size_bytes = memoryview(data).nbytes
        if size_bytes > PIECE_BYTES_MAX or offset < 0 or offset + size_bytes > arrival.blob.size_bytes:
            raise InvalidInput(
                "receive a recording",
                on=arrival.name,
                got=f"{size_bytes} bytes at {offset}",
                wanted=f"at most {PIECE_BYTES_MAX}, within {arrival.blob.size_bytes}",
            )
        if self.path(arrival).exists():
            return arrival.blob.size_bytes
        with reported("receive a recording", arrival.name), self._opened(arrival) as file:
            here = file.seek(0, os.SEEK_END)
            if here != offset:
                raise Conflict(
                    "receive a recording", on=arrival.name, got=f"bytes at {offset}", wanted=f"bytes at {here}"
                )
            self._check_room(arrival, here)
            file.write(data)
            file.flush()
            if offset + size_bytes == arrival.blob.size_bytes:
                self._finish(arrival, file)
        return offset + size_bytes

    def coming(self) -> frozenset[str]:
        """Returns what those that are arriving will be called once they are whole."""
        parts = (path.name.partition("-") for path in self._arriving.iterdir())
        return frozenset(f"{blob[:_ID_LETTERS]}-{name}" for blob, _, name in parts)

    def sweep(self, clock: Clock, *, older_s: float) -> int:
        """Removes what arrived in part and was not gone on with, and returns how many there were.

        Args:
            clock: The time.
            older_s: How long nobody has sent more of it.
        """
        gone = 0
        with reported("sweep an inbox", str(self._folder)):
            for path in sorted(self._arriving.iterdir()):
                with contextlib.suppress(FileNotFoundError, BlockingIOError), open(path, "rb") as file:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    if clock.now_s() - os.fstat(file.fileno()).st_mtime > older_s:
                        path.unlink()
                        gone += 1
        return gone

    def _part(self, arrival: Arrival) -> Path:
        return self._arriving / f"{arrival.blob.id}-{arrival.name}"

    @contextlib.contextmanager
    def _opened(self, arrival: Arrival) -> Iterator[IO[bytes]]:
        """Gives the file that a recording grows in, locked."""
        path = self._part(arrival)
        if not path.exists() and sum(1 for _ in os.scandir(self._arriving)) >= ARRIVING_MAX:
            raise Unavailable(
                "receive a recording", on=arrival.name, got=f"{ARRIVING_MAX} on their way", wanted="fewer at once"
            )
        with open(path, "ab") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                raise Conflict("receive a recording", on=arrival.name, got="another who sends it now") from error
            if not path.exists() or path.stat().st_ino != os.fstat(file.fileno()).st_ino:
                raise Conflict("receive a recording", on=arrival.name, got="another who has just ended it")
            yield file

    def _check_room(self, arrival: Arrival, here: int) -> None:
        free, missing = shutil.disk_usage(self._folder).free, arrival.blob.size_bytes - here
        if free < missing:
            raise StorageFull(
                "receive a recording", on=arrival.name, got=f"{free} bytes free", wanted=f"{missing} for the rest of it"
            )

    def _finish(self, arrival: Arrival, file: IO[bytes]) -> None:
        os.fsync(file.fileno())
        part = self._part(arrival)
        found = blob_of_file(part)
        if found != arrival.blob:
            part.unlink()
            raise DamagedData(
                "receive a recording",
                on=arrival.name,
                got=f"bytes of {found.id[:_ID_LETTERS]}",
                wanted=f"of {arrival.blob.id[:_ID_LETTERS]}",
                next_step="send it again from the beginning",
            )
        part.rename(self.path(arrival))
        for folder in (self._folder, self._arriving):
            sync_path(folder)
