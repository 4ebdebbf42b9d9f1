"""Keeps the daemons of a test server, and ends all that ever came from them: no process outlives its owner.

The owner writes one JSON list a line, and reads one JSON value a line in answer:

    ["start", name, log path, word, ...]   -> null, or the words of the error; the daemon writes to the log
    ["kill", name, signal number]          -> whether it was running; answers once it is gone
    ["status", name]                       -> null while it runs, else its exit status (negative: the signal)

When the pipe closes, however the owner ended, every descendant is killed and the folder named as its argument is
removed. The keeper is a child subreaper (PR_SET_CHILD_SUBREAPER), so that what a daemon leaves behind (a step's own
daemon, the programs of users) stays its descendant whatever session it moved to. Run as a file by an isolated
interpreter, it starts in milliseconds.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import select
import shutil
import signal
import sys
from collections.abc import Callable

PR_SET_CHILD_SUBREAPER = 36  # Source: linux/prctl.h.
SWEEPS_MAX = 500  # With the wait below, ten seconds: a killed process is gone in milliseconds unless its disk hangs.
SWEEP_WAIT_S = 0.02
IGNORED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)  # Its owner's end, and nothing else, ends it.


class DaemonKeeper:
    """The daemons by name, and how the ended ones ended."""

    def __init__(self) -> None:
        self._names: dict[int, str] = {}
        self._running: dict[str, int] = {}
        self._ended: dict[str, int] = {}

    def start(self, name: str, log: str, *words: str) -> str | None:
        """Starts a daemon in a session of its own; see the top of this file.

        Args:
            name: What it is called from now on.
            log: The file its output is appended to.
            words: The command, its first word a path.
        """
        assert name not in self._running
        try:
            file = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        except OSError as error:
            return str(error)
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGCHLD])  # It may end before its id is noted.
        try:
            pid = os.posix_spawnp(
                words[0],
                words,
                os.environb,
                file_actions=[
                    (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
                    (os.POSIX_SPAWN_DUP2, file, 1),
                    (os.POSIX_SPAWN_DUP2, file, 2),
                ],
                setsid=True,
                setsigmask=[],
                setsigdef=[*IGNORED, signal.SIGPIPE, signal.SIGXFSZ],  # Python ignores the last two.
            )
        except OSError as error:
            return str(error)
        else:
            self._names[pid] = name
            self._running[name] = pid
            self._ended.pop(name, None)
            return None
        finally:
            os.close(file)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGCHLD])

    def kill(self, name: str, number: int) -> bool:
        """Signals one daemon alone, and waits a bounded while until it is gone; returns whether it was running."""
        pid = self._running.get(name)
        if pid is None:
            return False
        os.kill(pid, number)
        for _ in range(SWEEPS_MAX):
            if name not in self._running:
                break
            select.select([], [], [], SWEEP_WAIT_S)
        return True

    def status(self, name: str) -> int | None:
        """Returns how a daemon ended, negative for a signal; None while it runs."""
        return None if name in self._running else self._ended[name]

    def reap(self) -> bool:
        """Takes note of what ended; returns whether any child is left."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return False
            if pid == 0:
                return True
            name = self._names.pop(pid, None)
            if name is not None:
                self._ended[name] = os.waitstatus_to_exitcode(status)
                del self._running[name]

    def end(self) -> None:
        """Kills every descendant, again until none is left: one that forks meanwhile has its child found next time."""
        for _ in range(SWEEPS_MAX):
            for pid in descendants(os.getpid()):
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, signal.SIGKILL)
            if not self.reap():
                return
            select.select([], [], [], SWEEP_WAIT_S)


def descendants(ancestor: int) -> list[int]:
    """Returns the ids of all processes that come from one, children before their own children."""
    children: dict[int, list[int]] = {}
    for pid in map(int, filter(str.isdigit, os.listdir("/proc"))):
        try:
            with open(f"/proc/{pid}/stat", "rb") as file:
                parent = int(file.read().rpartition(b")")[2].split()[1])
        except OSError:
            continue  # It ended meanwhile.
        children.setdefault(parent, []).append(pid)
    found = list(children.get(ancestor, ()))
    for pid in found:
        found += children.get(pid, ())
    return found


def main(folder: str) -> None:
    """Answers the owner until it is gone, then ends everything.

    Args:
        folder: What to remove at the very end.
    """
    for number in IGNORED:
        signal.signal(number, signal.SIG_IGN)
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    keeper = DaemonKeeper()
    calls: dict[str, Callable[..., object]] = {"start": keeper.start, "kill": keeper.kill, "status": keeper.status}
    # Orphans are reaped at once: a daemon that waits for its job's processes to go counts those that are dead too.
    signal.signal(signal.SIGCHLD, lambda _number, _frame: keeper.reap())
    try:
        for line in sys.stdin:
            what, *arguments = json.loads(line)
            sys.stdout.write(json.dumps(calls[what](*arguments)) + "\n")
            sys.stdout.flush()
    finally:
        keeper.end()
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main(sys.argv[1])
