"""The real clock and the real dice, which everything below `app` takes as arguments; limits of this process."""

from __future__ import annotations

import gc
import resource
import secrets
import sys
import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

FILES_WANTED = 65_536  # Of which a server makes half connections: three for each of 10,000 nodes.

# Objects made, of which cycles are looked for among the young, and how often so until among those that stayed, and all.
# Python's own are 700, 10 and 10, by which it looks through all there are in the middle of a call. At 200,000 everybody
# waits for a quarter of a second: requests leave a hundred objects each that hold each other.
_COLLECT_AFTER = (20_000, 5, 200)
_TURN_S = 0.000_5  # A tenth of Python's own.


def tune_for_serving() -> None:
    """Sets Python up for a process that makes much, of which little is cycles, in threads that wait for each other.

    It looks for cycles seldom, a little at a time, and never in what imports made: a third of the time of a batch of
    submits went into it. Threads take shorter turns than 5 ms: for every row that one reads of a database it lets
    others run, and then waits for a whole turn of theirs.
    """
    gc.freeze()
    gc.set_threshold(*_COLLECT_AFTER)
    sys.setswitchinterval(_TURN_S)


def raise_open_files() -> int:
    """Returns how many files this process may have open, from now on as many as it wants and its hard limit lets it.

    The usual soft limit of 1,024 is there for programs that call select(2). Source: systemd, "File Descriptor Limits".
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = max(soft, min(FILES_WANTED, hard))
    resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    return wanted


def looked(look: Callable[[], T], done: Callable[[T], object], *, every_s: float, timeout_s: float) -> T:
    """Returns what was seen once it is as wanted, or what was seen last when the time is over.

    For what nobody tells of by itself; where there are events, follow those.

    Args:
        look: Returns what there is to see.
        done: Returns whether it is as wanted.
        every_s: Between two looks.
        timeout_s: How long to go on; the first look comes at once, the last when the time is over.
    """
    over_s = time.monotonic() + timeout_s
    while not done(seen := look()) and (left_s := over_s - time.monotonic()) > 0:
        time.sleep(min(every_s, left_s))
    return seen


class SystemClock:
    """The machine's own time."""

    def now_s(self) -> float:
        """Returns seconds since the Unix epoch."""
        return time.time()

    def monotonic_s(self) -> float:
        """Returns seconds that never go back."""
        return time.monotonic()


class SystemDice:
    """The operating system's entropy."""

    def bits(self, count: int) -> int:
        """Returns `count` random bits.

        Args:
            count: 1 to 4096.
        """
        return secrets.randbits(count)
