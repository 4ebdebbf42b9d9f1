"""A cluster that fails as a network does: calls that never arrive, answers that never come back, hours of silence."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import final

from mainspring.domain.errors import Unavailable
from mainspring.domain.fleet import AllocationPhase, AllocationSeen, Inventory, LaunchOrder, LogChunk
from mainspring.domain.ids import AllocationId, NodeName
from mainspring.domain.ports import Dice
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
class SimulatedCluster:
    """An `Engine` around the fake one: faults are drawn from dice, and what truly runs can be seen past them.

    Args:
        inner: The cluster itself, which never fails.
        dice: Draw the faults.
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

    def inventory(self) -> Inventory:
        """Returns every node; see `Engine.inventory`."""
        with self._call("inventory"):
            return self.inner.inventory()

    def observe(self) -> tuple[AllocationSeen, ...]:
        """Returns every allocation; see `Engine.observe`."""
        with self._call("observe"):
            return self.inner.observe()

    def launch(self, order: LaunchOrder) -> None:
        """Starts agents; see `Engine.launch`.

        Args:
            order: What to start.
        """
        with self._call("launch"):
            self.inner.launch(order)
            # A second order for one allocation is ignored: its agents hold what the first one brought.
            if order.allocation not in self.orders and order.allocation in self.running():
                self.orders[order.allocation] = order

    def stop(self, allocation: AllocationId, *, grace_s: float) -> None:
        """Asks agents to end; see `Engine.stop`.

        Args:
            allocation: Its id.
            grace_s: Seconds after which they are ended by force.
        """
        with self._call("stop"):
            self.inner.stop(allocation, grace_s=grace_s)

    def logs(self, allocation: AllocationId, *, rank: int, since: int, limit: int) -> LogChunk:
        """Returns a piece of one rank's output; see `Engine.logs`.

        Args:
            allocation: Its id.
            rank: Its number in the attempt.
            since: Byte to start from.
            limit: How many bytes at most.
        """
        with self._call("logs"):
            return self.inner.logs(allocation, rank=rank, since=since, limit=limit)

    def cordon(self, node: NodeName, *, owner: str, reason: str) -> None:
        """Keeps new allocations off a node; see `Engine.cordon`.

        Args:
            node: The node.
            owner: Who wants it.
            reason: Why, for people.
        """
        with self._call("cordon"):
            self.inner.cordon(node, owner=owner, reason=reason)

    def uncordon(self, node: NodeName, *, owner: str) -> None:
        """Takes back our own cordon; see `Engine.uncordon`.

        Args:
            node: The node.
            owner: Who set it.
        """
        with self._call("uncordon"):
            self.inner.uncordon(node, owner=owner)

    @contextmanager
    def _call(self, name: str) -> Iterator[None]:
        if not self.answering or chance(self._dice, self.faults.lost):
            raise Unavailable(name, got="no answer")
        yield
        if chance(self._dice, self.faults.reply_lost):
            raise Unavailable(name, got="no answer, though it has acted")
