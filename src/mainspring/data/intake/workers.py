"""Ingest workers: units are read in this process, or in worker processes that may die of what they read."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import BrokenExecutor, ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from threading import Lock
from typing import ParamSpec, TypeVar

from mainspring.domain.errors import DamagedData, Unavailable
from mainspring.objects.files import reported

PROCESSES_PAY_BYTES = 64 << 20  # Python parses about 20 MB/s; below three seconds of that, starting workers costs more.
PROCESSES_PAY_UNIT_BYTES = 20_000  # A recording; handing a smaller one over costs more than the 1 ms of parsing it.
_PREFIX = "mainspring-intake-"
_LOCK = ".lock"
_TRIES_MAX = 8  # A try fails only when a sweep runs between two system calls of ours.

Given = ParamSpec("Given")
Result = TypeVar("Result")


def cores() -> int:
    """Returns how many cores this process may use."""
    return len(os.sched_getaffinity(0))


class Workers:
    """Runs functions in worker processes; used as a context manager.

    A worker that dies takes the work of all the others with it, so each is tried again, alone: what kills a process
    twice is to blame.

    Args:
        count: Processes.
    """

    def __init__(self, count: int) -> None:
        self._count = count
        self._lock = Lock()
        self._pool = self._fresh(count)

    def __enter__(self) -> Workers:
        """Returns itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Ends the processes."""
        self._pool.shutdown(cancel_futures=True)

    def run(self, on: str, function: Callable[Given, Result], *args: Given.args, **kwargs: Given.kwargs) -> Result:
        """Returns what a function returns.

        Args:
            on: What it works on, for messages.
            function: A function of a module.
            *args: Its arguments.
            **kwargs: More of them.

        Raises:
            DamagedData: It ends its process, also when it runs alone.
        """
        pool = self._pool
        try:
            return pool.submit(function, *args, **kwargs).result()
        except BrokenExecutor:
            with self._lock:
                if self._pool is pool:
                    pool.shutdown(cancel_futures=True)
                    self._pool = self._fresh(self._count)
                try:
                    with self._fresh(1) as alone:
                        return alone.submit(function, *args, **kwargs).result()
                except BrokenExecutor as error:
                    raise DamagedData(
                        "read a recording", on=on, got="a process that dies reading it, perhaps for lack of memory"
                    ) from error

    def _fresh(self, count: int) -> ProcessPoolExecutor:
        return ProcessPoolExecutor(count, mp_context=get_context("spawn"))


@contextlib.contextmanager
def scratch_folder() -> Iterator[Path]:
    """Gives an empty local folder that is gone afterwards; those of processes that were killed go too.

    Raises:
        StorageFull: There is no room.
        Unavailable: It cannot be made.
    """
    with reported("make a temporary folder", tempfile.gettempdir()):
        _sweep(Path(tempfile.gettempdir()))
    for _ in range(_TRIES_MAX):
        with reported("make a temporary folder", tempfile.gettempdir()):
            folder = Path(tempfile.mkdtemp(prefix=_PREFIX))
            lock = open(folder / _LOCK, "wb")  # noqa: SIM115 - closed two lines on.
        with lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # Contended only by a sweep, which never holds it for long.
            if not folder.exists():
                continue  # A sweep took it for a dead process's before we had locked it.
            try:
                yield folder
            finally:
                shutil.rmtree(folder, ignore_errors=True)
            return
    raise Unavailable("make a temporary folder", on=tempfile.gettempdir(), got="folders that vanish")


def _sweep(parent: Path) -> None:
    for folder in sorted(parent.glob(f"{_PREFIX}*")):
        with contextlib.suppress(OSError), open(folder / _LOCK, "rb") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(folder, ignore_errors=True)
