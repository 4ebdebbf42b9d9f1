"""What a process of ours says goes to a file that is turned over: neither it nor its old parts grow beyond a bound."""

from __future__ import annotations

import fcntl
import os
import stat
from pathlib import Path
from threading import Event, Thread
from typing import final

BYTES_MAX = 16 << 20  # A server says a line where something is amiss: months of them.
PARTS_MAX = 4  # Older ones, beside the file: the newest is NAME.1.
LOOK_S = 1.0  # Between two looks at how long it is; a fault that repeats says some megabytes in that time.
_OUT, _ERROR = 1, 2


def turn_over(path: Path, *, bytes_max: int = BYTES_MAX, parts_max: int = PARTS_MAX) -> None:
    """Moves a file that is longer than a bound aside, and those that were moved before; the oldest goes.

    Many processes may do so at once: one of them does.

    Args:
        path: The file; nothing happens while there is none.
        bytes_max: How long it may be.
        parts_max: How many older parts are kept.
    """
    try:
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return
    try:
        fcntl.flock(file, fcntl.LOCK_EX)
        if os.fstat(file).st_size <= bytes_max or not _same(os.fstat(file), path):
            return
        for number in range(parts_max, 0, -1):
            before = path.with_name(f"{path.name}.{number - 1}") if number > 1 else path
            if before.exists():
                before.replace(path.with_name(f"{path.name}.{number}"))
    finally:
        os.close(file)


@final
class OutputFile:
    """The file that standard error of this process goes to, and what else goes there with it; none does no harm.

    Args:
        bytes_max: How long it may be.
        parts_max: How many older parts are kept beside it.
    """

    def __init__(self, *, bytes_max: int = BYTES_MAX, parts_max: int = PARTS_MAX) -> None:
        self._bytes_max = bytes_max
        self._parts_max = parts_max
        self._path: Path | None = None
        if stat.S_ISREG(os.fstat(_ERROR).st_mode):
            path = Path(os.readlink(f"/proc/self/fd/{_ERROR}"))
            # Whoever started this process may have turned it over since.
            self._path = path.with_suffix("") if path.suffix[1:].isdigit() else path

    def start(self) -> None:
        """Looks at it from time to time for as long as the process lives."""
        if self._path is not None:
            Thread(target=self._serve, daemon=True, name="mainspring-output").start()

    def look(self) -> None:
        """Turns it over where it is too long; follows where another process has done so."""
        if self._path is None:
            return
        turn_over(self._path, bytes_max=self._bytes_max, parts_max=self._parts_max)
        own = os.fstat(_ERROR)
        if _same(own, self._path):
            return
        file = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, stat.S_IMODE(own.st_mode))
        for number in (_OUT, _ERROR):
            if os.path.samestat(os.fstat(number), own):
                os.dup2(file, number)
        os.close(file)

    def _serve(self) -> None:
        never = Event()
        while not never.wait(LOOK_S):
            try:
                self.look()
            except OSError:  # A disk that is full: as it is, until the next look.
                continue


def _same(own: os.stat_result, path: Path) -> bool:
    try:
        return os.path.samestat(own, path.stat())
    except FileNotFoundError:
        return False
