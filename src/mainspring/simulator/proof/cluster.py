"""A cluster that fails as a network does: calls that never arrive, answers that never come back, hours of silence."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import final

from mainspring.domain.errors import Unavailable
from mainspring.domain.fleet import AllocationPhase, AllocationSeen, LaunchOrder
from mainspring.domain.ids import AllocationId
from mainspring.domain.ports import Dice
from mainspring.engines.common.forwarding import CallResult, EngineCall, ForwardingEngine, perform
from mainspring.testing import FakeEngine

_SIXTEEN_BITS = 1 << 16


def chance(dice: Dice, rate: float) -> bool:
    """Returns true at a rate.

    Args:
        dice: Where it is drawn.
        rate: 0 for never, 1 for always.
    """
    return dice.bits(16) < rate * _SIXTEEN_BITS


def pick(dice: Dice, count: int) -> int:
    """Returns a number below `count`.

    Args:
        dice: Where it is drawn.
        count: At least 1.
    """
    return dice.bits(32) % count


@dataclass(frozen=True, slots=True, kw_only=True)
class CallFaults:
    """How often calls fail.

    Args:
        lost: A call never arrives.
        reply_lost: A call acts, and its answer never comes back.
    """

    lost: float = 0.0
    reply_lost: float = 0.0


@final
class SimulatedCluster(ForwardingEngine):
    """An `Engine` around the fake one: faults are drawn from dice, and what truly runs can be seen past them.

    Args:
        inner: The cluster itself, which never fails.
    """

    def __init__(self, inner: FakeEngine, dice: Dice) -> None:
        self.inner = inner
        self.faults = CallFaults()
        self.answering = True
        self.orders: dict[AllocationId, LaunchOrder] = {}
        self._dice = dice

    def running(self) -> Mapping[AllocationId, AllocationSeen]:
        """Returns every allocation with an agent that lives, or may yet come to, as it truly is."""
        return {seen.allocation: seen for seen in self.inner.observe() if seen.phase is not AllocationPhase.ENDED}

    def _forward(self, call: EngineCall) -> CallResult:
        if not self.answering or chance(self._dice, self.faults.lost):
            raise Unavailable(call.call, got="no answer")
        found = perform(self.inner, call)
        # A second order for one allocation is ignored: its agents hold what the first one brought.
        if call.order and call.about not in self.orders and call.about in self.running():
            self.orders[call.about] = call.order
        if chance(self._dice, self.faults.reply_lost):
            raise Unavailable(call.call, got="no answer, though it has acted")
        return found
