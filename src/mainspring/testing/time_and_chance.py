"""The fakes of `Clock` and `Dice`: time that moves when told to, and chance that repeats."""

from __future__ import annotations

from hashlib import shake_256


class FakeClock:
    """A clock that stands still until told.

    Args:
        start_s: What `now_s` says at first, in seconds since the Unix epoch.
    """

    def __init__(self, start_s: float = 1_700_000_000.0) -> None:
        self._now_s = start_s
        self._monotonic_s = 0.0

    def now_s(self) -> float:
        """Returns seconds since the Unix epoch; see `Clock.now_s`."""
        return self._now_s

    def monotonic_s(self) -> float:
        """Returns seconds since this clock was made; see `Clock.monotonic_s`."""
        return self._monotonic_s

    def advance(self, seconds: float) -> None:
        """Lets time pass.

        Args:
            seconds: How long, never negative.
        """
        assert seconds >= 0
        self._now_s += seconds
        self._monotonic_s += seconds

    def jump(self, seconds: float) -> None:
        """Sets the machine's clock forward or back; no time passes."""
        self._now_s += seconds


class SeededDice:
    """Chance that depends on nothing but its seed and purpose.

    Args:
        seed: The seed of the whole run.
        purpose: What these dice are for; other purposes draw other numbers.
    """

    def __init__(self, seed: int, purpose: str = "") -> None:
        self._key = f"{seed}/{purpose}"
        self._drawn = 0

    def bits(self, count: int) -> int:
        """Returns random bits; see `Dice.bits`.

        Args:
            count: How many, 1 to 4096.
        """
        assert 1 <= count <= 4096
        self._drawn += 1
        size = -(-count // 8)
        digest = shake_256(f"{self._key}/{self._drawn}".encode()).digest(size)
        return int.from_bytes(digest, "big") >> (8 * size - count)
