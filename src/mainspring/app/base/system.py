"""The real clock and the real dice; everything below `app` takes them as arguments."""

from __future__ import annotations

import secrets
import time


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
