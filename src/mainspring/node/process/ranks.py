"""Rank processes: started in groups of their own, never orphaned, their output and memory kept within bounds."""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
import threading
from collections import deque
from collections.abc import Mapping
from pathlib import Path
from typing import IO, final

from mainspring.node.process.account import Account, Child
from mainspring.node.process.limits import MemoryLimit
from mainspring.node.process.secrets import MaskedOutput, Masks

LOG_BYTES_MAX = 256 << 20  # Twice this a rank, with the one rotation: days of a chatty program.
LAST_WORDS_BYTES = 2_000  # A Python traceback's end; also what fits on a screen.
EXIT_NOT_STARTED = 127  # What a shell answers for a command it cannot start.
PIPE_LIMIT_S = 1.0  # All that carry a rank's mark are killed when it ends, so its pipe closes at once.
READ_BYTES = 1 << 16  # A pipe's size on Linux.
OUTPUT_BYTES_PER_S_MAX = (
    32 << 20
)  # Faster output waits in its pipe; a disk writes that on the side, whatever floods it.
WRITE_LIMIT_S = 1.0  # A disk that takes longer over a piece of output is not waited for again until it has caught up.
WAITING_BYTES_MAX = 4 << 20  # Output a rank, while its disk hangs; then it is lost.
HEARD_BYTES_MAX = 256 << 10  # Of output listened to: stacks of a rank, among whatever else it writes.
LOOK_S = 0.05  # A tenth of what it takes to take a process of a few gigabytes apart; a look takes 20 us.
_PF_EXITING = 0x4  # See `include/linux/sched.h`, and proc(5) for the places of the two numbers read here.
_FLAGS, _EXIT_CODE = 6, 49


@final
class RankLog:
    """A rank's output: a file with a size bound and one rotation, and the last words in memory. For any thread.

    The file may lie on a disk of others: only a thread of its own touches it, and nobody waits for that for long.

    Args:
        path: The file; the one before is kept beside it, named after the offset in all output at which it ends.
        bytes_max: Size at which it is turned over.
        masks: What is not to be told, in the file, the last words, and what is heard; nothing when left out.
    """

    def __init__(self, path: Path, *, bytes_max: int, masks: Masks | None = None) -> None:
        self.masks = masks or Masks()
        self._masked = MaskedOutput(self.masks)
        self._path = path
        self._bytes_max = bytes_max
        self._file: IO[bytes] | None = None
        self._tail = b""
        self._heard: bytearray | None = None
        self._changed = threading.Condition()
        self._waiting: deque[bytes | Path] = deque([path])  # Output, and the files that what follows goes to.
        self._waiting_bytes = 0
        self._lost_bytes = 0
        self._slow = False
        self._closing = False
        self._writer = threading.Thread(target=self._serve, daemon=True, name="mainspring-log")
        self._writer.start()

    @property
    def last_words(self) -> str:
        """Returns the end of the output so far."""
        return self._tail.decode(errors="replace").strip()

    def write(self, data: bytes) -> None:
        """Appends output; a disk that is full or hangs loses it, never the rank.

        Returns once it is written, so that a disk sets the pace; one that hangs makes it wait `WRITE_LIMIT_S` once.
        What may be the front of a secret waits for what comes next, or for the end.
        """
        with self._changed:
            self._take(self._masked.passed(data))

    def _take(self, data: bytes) -> None:
        if not data:
            return
        self._tail = (self._tail + data)[-LAST_WORDS_BYTES:]
        if self._heard is not None:
            self._heard += data[: HEARD_BYTES_MAX - len(self._heard)]
        if self._waiting_bytes + len(data) > WAITING_BYTES_MAX or self._closing:
            self._lost_bytes += len(data)
            return
        self._waiting.append(data)
        self._waiting_bytes += len(data)
        self._changed.notify_all()
        if not self._slow:
            self._slow = not self._changed.wait_for(lambda: not self._waiting_bytes, WRITE_LIMIT_S)

    def move(self, path: Path) -> None:
        """Sends further output to another file."""
        with self._changed:
            self._waiting.append(path)
            self._changed.notify_all()

    def listen(self) -> None:
        """Begins to keep what is written, up to `HEARD_BYTES_MAX`, for `heard`."""
        with self._changed:
            self._heard = bytearray()

    def heard(self) -> bytes:
        """Returns what was written since `listen`."""
        return bytes(self._heard or b"")

    def close(self) -> str:
        """Closes the file, waiting `WRITE_LIMIT_S` for it at the most; returns the last words."""
        with self._changed:
            self._take(self._masked.rest())
            self._closing = True
            self._changed.notify_all()
        self._writer.join(WRITE_LIMIT_S)
        return self.last_words

    def _serve(self) -> None:
        """Writes what waits, in order, until it is closed."""
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting or self._closing)
                if not self._waiting:
                    break
                next_one = self._waiting[0]
            with contextlib.suppress(OSError):
                self._open(next_one) if isinstance(next_one, Path) else self._append(next_one)
            with self._changed:
                self._waiting.popleft()
                if isinstance(next_one, bytes):
                    self._waiting_bytes -= len(next_one)
                if not self._waiting_bytes:
                    self._slow = False
                if self._lost_bytes and not self._waiting_bytes:
                    words = b"\n[%d bytes of output lost: the disk was too slow]\n" % self._lost_bytes
                    self._waiting.append(words)
                    self._waiting_bytes, self._lost_bytes = len(words), 0
                self._changed.notify_all()
        if self._file is not None:
            self._file.close()

    def _open(self, path: Path) -> None:
        file, self._file, self._path = self._file, None, path
        if file is not None:
            file.close()
        self._file = path.open("ab", buffering=0)

    def _append(self, data: bytes) -> None:
        if self._file is not None and self._file.tell() + len(data) > self._bytes_max:
            self._turn_over(self._file)
        if self._file is None:  # Tried again at every write.
            self._file = self._path.open("ab", buffering=0)
        self._file.write(data)

    def _turn_over(self, file: IO[bytes]) -> None:
        older = list(self._path.parent.glob(f"{self._path.name}.*"))
        begin = max((int(path.suffix[1:]) for path in older), default=0)
        self._path.rename(self._path.with_name(f"{self._path.name}.{begin + file.tell()}"))
        self._file = None
        file.close()
        for path in older:
            path.unlink()


@final
class RankProcess:
    """One process of a rank's program.

    Args:
        account: What it runs under.
        log: Where output goes; closed when the process ends.
        socket: Its own socket's path, which is also the mark that all its descendants carry.
        limit: Its memory's bound, None for none; given back when the process ends.
    """

    def __init__(self, account: Account, log: RankLog, socket: str, limit: MemoryLimit | None) -> None:
        self.account = account
        self.log = log
        self.last_words = ""
        self._socket = socket
        self._limit = limit
        self._child: Child | None = None
        self._pumped = asyncio.Event()
        self._hurry = threading.Event()

    @property
    def pid(self) -> int:
        """Returns the process id, 0 when it could not be started."""
        return self._child.pid if self._child is not None else 0

    async def start(self, command: tuple[str, ...], *, environment: Mapping[str, str], folder: Path) -> None:
        """Starts the program.

        Raises:
            Unavailable: The account cannot be used any more.
        """
        if self._limit is not None:
            self.account.guard.note_folder(self._limit.folder)
        outlet, inlet = os.pipe()
        try:
            self._child = await self.account.start(
                command,
                environment=environment,
                folder=folder,
                mark=self._socket,
                output=inlet,
                entry=self._limit.procs if self._limit is not None else -1,
            )
        except (OSError, ValueError, subprocess.SubprocessError) as error:
            await asyncio.to_thread(self.log.write, f"could not start {command[0]!r}: {error}\n".encode())
        finally:
            os.close(inlet)
            if self._child is None:
                os.close(outlet)
        if self._child is not None:
            loop = asyncio.get_running_loop()
            threading.Thread(target=self._pump, args=(outlet, loop), daemon=True, name="mainspring-output").start()

    async def doomed(self) -> int | None:
        """Returns the exit code of a process that a signal ends, as soon as it is bound to end; None for others.

        It does nothing any more, but its memory may take the kernel a second, and only then is it waited for.
        """
        while self._child is not None and not self._child.over:
            with contextlib.suppress(OSError):
                number = _ended_by(self.pid)
                if number:
                    self.last_words = self._words(self.log.last_words)
                    return -number
            await asyncio.sleep(LOOK_S)
        return None

    async def ended(self) -> int:
        """Returns the exit code once the process has ended and nothing it started lives."""
        if self._child is None:
            exit_code = EXIT_NOT_STARTED
        else:
            exit_code = await self._child.ended()
            self._hurry.set()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(PIPE_LIMIT_S):
                    await self._pumped.wait()
        words = await asyncio.to_thread(self.log.close)
        self.last_words = self._words(words) if exit_code != 0 else words
        if self._limit is not None:
            await self._limit.close()
        return exit_code

    def _words(self, last: str) -> str:
        passed = self._limit.passed if self._limit is not None else ""
        return f"{last}\n{passed}".strip() if passed else last

    def signal(self, number: int) -> None:
        """Signals the process's whole group."""
        if self._child is not None and not self._child.over:
            self.account.signal(self.pid, number, group=True)

    def _pump(self, outlet: int, loop: asyncio.AbstractEventLoop) -> None:
        """Brings output to the log, in a thread: neither a flood nor a disk that hangs stops the agent."""
        with contextlib.closing(open(outlet, "rb", buffering=0)) as output:
            while data := output.read(READ_BYTES):
                self.log.write(data)
                self._hurry.wait(len(data) / OUTPUT_BYTES_PER_S_MAX)
        with contextlib.suppress(RuntimeError):  # The agent's loop has ended before its ranks' output did.
            loop.call_soon_threadsafe(self._pumped.set)


def _ended_by(pid: int) -> int:
    """Returns the signal that ends a process which does nothing any more, 0 for others."""
    numbers = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    number = int(numbers[_EXIT_CODE]) & 0x7F  # The rest tells of a core dump, or of an exit by itself.
    return number if int(numbers[_FLAGS]) & _PF_EXITING else 0
