"""Which replica a request goes to, and for how long one is waited for before another is asked too. Pure.

A replica that broke off, or was slower than another that was asked after it, is passed over for a while, unless there
is no other.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import final

from mainspring.domain.ports import Backoff

PASSED_OVER = Backoff(first_s=0.5, cap_s=10.0)  # A replica that is gone is out of the list within a few seconds.
SEEN = 128  # Answers that say how long one takes; at a request a second, two minutes of one robot.
SEEN_MIN = 16
# Another is asked once an answer takes twice as long as the slowest of those seen: a twentieth of the load, at most
# (Dean & Barroso, "The Tail at Scale", 2013, defer to the 95th percentile); and at half of the deadline in any case.
SLOW_PARTS = 2.0
SLOW_S_MIN = 0.02
DEADLINE_PARTS = 0.5
STICKS_TO = 1  # A robot stays where it is unless another replica has fewer requests of this proxy by more than that.


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """Where a replica is called and how, and whether it says that it answers.

    Args:
        ticket: What it is shown, "" for nothing.
        certificate: What it is known by in TLS, as PEM text; "" where any authority of the system will do.
    """

    address: str
    ready: bool
    ticket: str = field(default="", repr=False)
    certificate: str = ""


@dataclass(slots=True)
class _Replica:
    target: Target
    in_flight: int = 0
    failed: int = 0
    again_s: float = 0.0


@final
class Replicas:
    """The replicas of one service, as one proxy knows them."""

    def __init__(self) -> None:
        self._known: dict[str, _Replica] = {}
        self._took_s: deque[float] = deque(maxlen=SEEN)

    @property
    def addresses(self) -> Collection[str]:
        """Returns where they are."""
        return self._known.keys()

    @property
    def in_flight(self) -> int:
        """Returns how many requests are under way, those asked twice counted twice."""
        return sum(one.in_flight for one in self._known.values())

    def learn(self, targets: Sequence[Target]) -> None:
        """Takes a newer list of them."""
        before = self._known
        self._known = {one.address: before.get(one.address) or _Replica(target=one) for one in targets}
        for one in targets:
            self._known[one.address].target = one

    def target(self, address: str) -> Target | None:
        """Returns what was told last of a replica, None where it is gone."""
        one = self._known.get(address)
        return None if one is None else one.target

    def choose(self, tried: Collection[str], stays: str, now_s: float) -> str | None:
        """Returns whom to ask, None where nobody is left.

        Args:
            tried: Those that were asked already.
            stays: Where the robot's last request went, "" for none.
        """
        left = {address: one for address, one in self._known.items() if address not in tried}
        if not left:
            return None
        order = {
            address: (one.again_s > now_s, not one.target.ready, one.in_flight - (STICKS_TO if address == stays else 0))
            for address, one in left.items()
        }
        return min(order, key=lambda address: (*order[address], address != stays, address))

    def begun(self, address: str) -> None:
        """Counts a request."""
        if (one := self._known.get(address)) is not None:
            one.in_flight += 1

    def over(self, address: str) -> None:
        """Counts a request no longer."""
        if (one := self._known.get(address)) is not None:
            one.in_flight -= 1

    def answered(self, address: str, took_s: float) -> None:
        """Takes note of an answer."""
        self._took_s.append(took_s)
        if (one := self._known.get(address)) is not None:
            one.failed, one.again_s = 0, 0.0

    def failed(self, address: str, now_s: float) -> None:
        """Takes note that there was none, or not in time."""
        if (one := self._known.get(address)) is not None:
            one.failed += 1
            one.again_s = now_s + PASSED_OVER.wait_s(one.failed)

    def patience_s(self, deadline_s: float) -> float:
        """Returns for how long to wait for one before another is asked too.

        Args:
            deadline_s: How long there is in all.
        """
        half_s = deadline_s * DEADLINE_PARTS
        if len(self._took_s) < SEEN_MIN:
            return half_s
        return min(half_s, max(SLOW_S_MIN, SLOW_PARTS * max(self._took_s)))
