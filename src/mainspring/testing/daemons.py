"""The daemons of one test server, in the care of a child process that outlives nobody; see `keeper`."""

from __future__ import annotations

import contextlib
import json
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from mainspring.domain.errors import Unavailable
from mainspring.testing import keeper

LOG_LINES_MAX = 12
TRIES = 2  # A free port may be taken by somebody else between asking for it and listening on it.


class Daemons:
    """Starts, kills and watches daemons by name; all of them end with this process, however it ends.

    Args:
        folder: Goes with them.
        work: Where they run.
    """

    def __init__(self, folder: Path, *, work: Path) -> None:
        self._keeper = subprocess.Popen(
            [sys.executable, "-I", "-S", keeper.__file__, str(folder)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=work,
            start_new_session=True,  # Ctrl-C in a terminal is for the owner, who then stops them.
        )

    @property
    def pid(self) -> int:
        """Returns the process that all of them come from."""
        return self._keeper.pid

    def start(self, name: str, log: Path, *words: str) -> str:
        """Starts a daemon; returns why that failed, "" where it did not.

        Args:
            log: What it says is appended there.
            words: Its command.
        """
        return str(self._ask("start", name, str(log), *words) or "")

    def kill(self, name: str, number: int) -> bool:
        """Sends one daemon a signal that ends it; returns, once it has ended, whether it had been running."""
        return bool(self._ask("kill", name, number))

    def runs(self, name: str) -> bool:
        """Returns whether a daemon that was started has not ended."""
        return self._ask("status", name) is None

    def stop(self) -> None:
        """Kills every daemon and all that came from them."""
        assert self._keeper.stdin is not None
        assert self._keeper.stdout is not None
        with contextlib.suppress(BrokenPipeError):
            self._keeper.stdin.close()
        self._keeper.wait()  # Bounded: it sweeps a fixed number of times.
        self._keeper.stdout.close()

    def _ask(self, *question: str | int) -> object:
        assert self._keeper.stdin is not None
        assert self._keeper.stdout is not None
        self._keeper.stdin.write(json.dumps(question) + "\n")
        self._keeper.stdin.flush()
        return json.loads(self._keeper.stdout.readline())


def start_up(start: Callable[[], None], stop: Callable[[], None]) -> None:
    """Starts a server, and again where somebody took one of its ports first; nothing of it runs where that fails.

    Raises:
        Unavailable: It did not come up, however often.
    """
    for left in reversed(range(TRIES)):
        try:
            start()
        except BaseException as error:
            stop()
            if not left or not isinstance(error, Unavailable):
                raise
        else:
            return


def last_words(log: Path) -> str:
    """Returns how a daemon's log ends, for messages."""
    lines = log.read_text(errors="replace").splitlines() if log.exists() else []
    return f"{log} ends with:\n" + "\n".join(lines[-LOG_LINES_MAX:])


def free_ports(count: int) -> list[int]:
    """Returns ports nobody listens on, all different: they are held together while they are asked for."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for holder in sockets:
            holder.bind(("", 0))
        return [int(holder.getsockname()[1]) for holder in sockets]
