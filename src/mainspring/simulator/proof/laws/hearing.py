"""When controllers truly listened to leads, and when agents were told of them, by the clock that never jumps."""

from __future__ import annotations

from math import inf
from typing import final

from mainspring.domain import wire
from mainspring.domain.ids import AttemptId


@final
class Hearing:
    """What was heard in one run."""

    def __init__(self) -> None:
        self.last_s: dict[AttemptId, float] = {}
        """When a lead of each attempt was last listened to."""
        self._of_lead_s: dict[tuple[AttemptId, int], float] = {}
        self._named_s: dict[tuple[AttemptId, int], float] = {}

    def heard(self, beat: wire.Heartbeat, now_s: float) -> None:
        """Takes note that a controller has listened to a lead."""
        self.last_s[beat.attempt] = self._of_lead_s[beat.attempt, beat.epoch] = now_s

    def named(self, orders: wire.Orders, now_s: float) -> None:
        """Takes note of the lead that an agent was told of."""
        self._named_s.setdefault((orders.attempt, orders.epoch), now_s)

    def silence_s(self, attempt: AttemptId, epoch: int, *, since_s: float) -> float:
        """Returns for how long the lead before one was not heard when that was named; infinity where nobody knows.

        Args:
            since_s: What was heard before then says nothing.
        """
        heard_s = self._of_lead_s.get((attempt, epoch - 1), -1.0)
        return self._named_s.get((attempt, epoch), inf) - heard_s if heard_s > since_s else inf
