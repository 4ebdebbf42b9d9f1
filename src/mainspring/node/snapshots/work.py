"""What snapshots take of an agent's node while its ranks go on: checksums, messages that list shards, bytes to a peer.

Measured, in seconds of the whole node: CPU time over its cores, and the time in which its bytes travel. The way to the
store is left out: it has a pace of its own.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar, final

from mainspring.domain import codec
from mainspring.domain.ports import Clock
from mainspring.domain.wire import CopyBegin, SnapshotCommit

Result = TypeVar("Result")
Message = TypeVar("Message")


@final
class SnapshotWork:
    """One agent's books. `computed` and `read` are for any thread.

    Args:
        cores: How many the node has.
        cpu_s: Seconds of CPU that the calling thread has had.
    """

    def __init__(self, *, cores: int, cpu_s: Callable[[], float], clock: Clock) -> None:
        self._cores = max(1, cores)
        self._cpu_s = cpu_s
        self._clock = clock
        self._lock = threading.Lock()
        self._untold_s = 0.0

    def computed(self, work: Callable[[], Result]) -> Result:
        """Does work on a snapshot, and returns what comes of it."""
        began_s = self._cpu_s()
        try:
            return work()
        finally:
            self._add((self._cpu_s() - began_s) / self._cores)

    def read(self, body: bytes, kinds: codec.TypeForm[Message]) -> Message:
        """Returns the message in a frame's body, as `codec.unframe` does; one that lists shards is work."""
        began_s = self._cpu_s()
        message = codec.unframe(body, kinds)
        if isinstance(message, SnapshotCommit | CopyBegin):
            self._add((self._cpu_s() - began_s) / self._cores)
        return message

    @contextmanager
    def travelling(self) -> Iterator[None]:
        """Counts the time until the block ends: meanwhile bytes go to a peer."""
        began_s = self._clock.monotonic_s()
        try:
            yield
        finally:
            self._add(self._clock.monotonic_s() - began_s)

    def take(self) -> float:
        """Returns what was counted since this was last asked."""
        with self._lock:
            untold_s, self._untold_s = self._untold_s, 0.0
        return untold_s

    def _add(self, seconds: float) -> None:
        with self._lock:
            self._untold_s += max(0.0, seconds)
