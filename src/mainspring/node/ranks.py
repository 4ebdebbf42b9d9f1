"""Rank processes: started in groups of their own, never orphaned, their output kept within bounds."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import IO, final

LOG_BYTES_MAX = 256 << 20  # Twice this a rank, with the one rotation: days of a chatty program.
LAST_WORDS_BYTES = 2_000  # A Python traceback's end; also what fits on a screen.
EXIT_NOT_STARTED = 127  # What a shell answers for a command it cannot start.
PIPE_LIMIT_S = 1.0  # A rank's group is killed when the rank ends, so its pipe closes at once.
_PR_SET_PDEATHSIG = 1
_LIBC = ctypes.CDLL(None, use_errno=True)


@final
class RankLog:
    """A rank's output: a file with a size bound and one rotation, and the last words in memory.

    Args:
        path: The file; the one before is kept beside it, named after the offset in all output at which it ends.
        bytes_max: Size at which it is turned over.
    """

    def __init__(self, path: Path, *, bytes_max: int) -> None:
        self._path = path
        self._bytes_max = bytes_max
        self._file: IO[bytes] | None = path.open("ab", buffering=0)
        self._tail = b""

    def write(self, data: bytes) -> None:
        """Appends output; a full disk loses it, never the rank.

        Args:
            data: The output.
        """
        self._tail = (self._tail + data)[-LAST_WORDS_BYTES:]
        with contextlib.suppress(OSError):
            if self._file is not None and self._file.tell() + len(data) > self._bytes_max:
                self._turn_over(self._file)
            if self._file is None:
                self._file = self._path.open("ab", buffering=0)
            self._file.write(data)

    def close(self) -> str:
        """Closes the file; returns the last words."""
        if self._file is not None:
            self._file.close()
        return self._tail.decode(errors="replace").strip()

    def _turn_over(self, file: IO[bytes]) -> None:
        older = list(self._path.parent.glob(f"{self._path.name}.*"))
        begin = max((int(path.suffix[1:]) for path in older), default=0)
        self._path.rename(self._path.with_name(f"{self._path.name}.{begin + file.tell()}"))
        self._file = None
        file.close()
        for path in older:
            path.unlink()


@final
class Guard:
    """The agent's end of `guard.py`."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", str(Path(__file__).with_name("guard.py"))],
            stdin=subprocess.PIPE,
            start_new_session=True,
            bufsize=0,
        )

    def note(self, group: int) -> None:
        """Notes a process group as ours.

        Args:
            group: Its id.
        """
        self._write(f"+{group}\n")

    def forget(self, group: int) -> None:
        """Notes that a process group is gone.

        Args:
            group: Its id.
        """
        self._write(f"-{group}\n")

    def close(self) -> None:
        """Lets the guard end, killing what is still noted."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()

    def _write(self, line: str) -> None:
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # Somebody killed the guard; ranks still die with the agent.
            self._process.stdin.write(line.encode())


@final
class RankProcess:
    """One life of one rank. `ended` completes with its exit code, negative for a signal.

    Args:
        guard: Told of the process group.
        log: Where output goes; closed when the rank ends.
    """

    def __init__(self, guard: Guard, log: RankLog) -> None:
        self._guard = guard
        self._log = log
        self._process: asyncio.subprocess.Process | None = None
        self.last_words = ""

    @property
    def pid(self) -> int:
        """Returns the process id, 0 when it could not be started."""
        return self._process.pid if self._process is not None else 0

    async def start(self, command: tuple[str, ...], *, environment: Mapping[str, str], folder: Path) -> None:
        """Starts the program.

        Args:
            command: Program and arguments.
            environment: All its variables.
            folder: Where it runs.
        """
        agent = os.getpid()

        def die_with_agent() -> None:
            _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
            if os.getppid() != agent:  # The agent died before the line above took hold.
                os.kill(os.getpid(), signal.SIGKILL)

        try:
            self._process = await asyncio.create_subprocess_exec(
                *command,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.STDOUT,
                cwd=folder,
                env=dict(environment),
                start_new_session=True,
                preexec_fn=die_with_agent,
            )
        except (OSError, ValueError, subprocess.SubprocessError) as error:
            self._log.write(f"could not start {command[0]!r}: {error}\n".encode())
            return
        self._guard.note(self._process.pid)

    async def ended(self) -> int:
        """Returns the exit code once the rank has ended and nothing of its group lives."""
        if self._process is None:
            self.last_words = self._log.close()
            return EXIT_NOT_STARTED
        pump = asyncio.create_task(self._pump())
        exit_code = await self._process.wait()
        self.signal(signal.SIGKILL)  # Children the rank left behind.
        self._guard.forget(self._process.pid)
        await asyncio.wait([pump], timeout=PIPE_LIMIT_S)
        pump.cancel()
        self.last_words = self._log.close()
        return exit_code

    def signal(self, number: int) -> None:
        """Signals the rank's whole group.

        Args:
            number: The signal.
        """
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, number)

    async def _pump(self) -> None:
        assert self._process is not None
        assert self._process.stdout is not None
        while data := await self._process.stdout.read(1 << 16):
            self._log.write(data)
