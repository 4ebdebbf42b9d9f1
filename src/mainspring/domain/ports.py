"""The ports every room may need: `Clock`, `Dice`, and `Engine`, each a documented promise; how to wait between tries.

The promise of a port is its docstring; one contract test in `tests/contracts` holds every adapter and the fake to it.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from typing import TYPE_CHECKING, Protocol, runtime_checkable

if TYPE_CHECKING:
    from mainspring.domain.fleet import AllocationSeen, EndedBefore, Inventory, LaunchOrder, LogChunk
    from mainspring.domain.ids import AllocationId, NodeName
    from mainspring.domain.plan import Provision


class Clock(Protocol):
    """Time. `now_s` may jump when the machine's clock is set; `monotonic_s` never goes back."""

    def now_s(self) -> float:
        """Returns seconds since the Unix epoch. Read once per decision."""

    def monotonic_s(self) -> float:
        """Returns seconds from an arbitrary start; only differences mean anything."""


class Dice(Protocol):
    """Chance. One instance per purpose, so that drawing for one never shifts another."""

    def bits(self, count: int) -> int:
        """Returns `count` random bits as a non-negative integer, 1 <= count <= 4096."""


_STEPS_MAX = 64  # Of growth: every limit is reached by then, and no power is too large for a float.


@dataclass(frozen=True, slots=True, kw_only=True)
class Backoff:
    """How long to wait before each new try: longer from try to try, up to a limit.

    Args:
        first_s: Before the second try.
        factor: How much longer each wait is than the one before.
        cap_s: The longest wait.
    """

    first_s: float
    factor: float = 2.0
    cap_s: float = inf

    def wait_s(self, tries: int, dice: Dice | None = None) -> float:
        """Returns how long to wait now.

        Args:
            tries: How many in a row have failed, at least 1.
            dice: Spread waits evenly over half to one and a half times their length, lest many come back at once.
        """
        wait_s = min(self.first_s * self.factor ** min(tries - 1, _STEPS_MAX), self.cap_s)
        return wait_s if dice is None else wait_s * (0.5 + dice.bits(16) / 65_536)


class Engine(Protocol):
    """One kind of cluster, behind eight calls. All block, none keeps a transaction open, all may be repeated.

    Every call raises `Unavailable` when the cluster does not answer within the adapter's own bound, and has then
    perhaps acted: callers look again with `observe` before they conclude anything, and repeat a launch or stop until it
    returns. What is shown may be as old as that bound.
    """

    def inventory(self) -> Inventory:
        """Returns every node with its chips, place and condition, and what others use; nodes ordered by name."""

    def observe(self) -> tuple[AllocationSeen, ...]:
        """Returns every allocation that carries our label, ordered by id.

        An allocation stays visible after it ended for at least one hour, so that a controller that was away learns
        how it ended. What was never launched (an id that was stopped first can never be), or was forgotten, is absent.
        Where the cluster's own queue starts it, it is PENDING first, for moments even if its nodes are free; that an
        agent is gone shows only seconds later where a shared file system has to tell.
        """

    def launch(self, order: LaunchOrder) -> None:
        """Starts one agent on each node of the order: all of them, or none.

        Idempotent by allocation id: a second launch of the same id does nothing, also after it ended or was stopped,
        so a stale controller can never start it twice. On a delegated cluster it may be PENDING for long afterwards.
        Where the cluster's own queue refuses it, `observe` shows it ENDED and taken, with that queue's words.

        Raises:
            NotFound: A node of the order does not exist here.
        """

    def stop(self, allocation: AllocationId, *, grace_s: float) -> None:
        """Asks the allocation's agents to end, and ends them by force after `grace_s` seconds.

        Returns at once. Idempotent; an unknown id is remembered as stopped, so that a launch still on its way starts
        nothing. From then on `observe` shows what was launched until it is over, however late it lists what it was just
        given. Agents that cannot be told directly learn of it within seconds; ones that nobody reaches any more are
        over once their lease surely is.
        """

    def logs(self, allocation: AllocationId, *, rank: int, since: int, limit: int) -> LogChunk:
        """Returns up to `limit` bytes of one rank's output from byte offset `since`.

        Offsets count all the rank ever wrote in this allocation. Output too old to be kept is passed over, which shows:
        `next_offset` is then more than `since` and the bytes returned.

        Raises:
            NotFound: No such allocation, or that rank wrote nothing yet.
        """

    def attestation(self, allocation: AllocationId) -> str:
        """Returns what came with the order of an allocation that is not over, for a store that has forgotten it.

        Raises:
            NotFound: There is no such allocation, it is over, or nothing came with its order.
        """

    def cordon(self, node: NodeName, *, owner: str, reason: str) -> None:
        """Keeps new allocations off a node. Running ones stay. Never overwrites a cordon of another owner.

        A node that the cluster's own operators drain is shown cordoned by the engine's name, and as leaving now.

        Raises:
            NotFound: No such node.
            Conflict: Another owner has cordoned it, or the cluster is delegated: its slots are no nodes.
        """

    def uncordon(self, node: NodeName, *, owner: str) -> None:
        """Takes back our own cordon; does nothing when there is none.

        Raises:
            NotFound: No such node.
            Conflict: The cordon belongs to another owner.
        """


@runtime_checkable
class Forgetting(Protocol):
    """What an engine can do that remembers allocations by itself: let go of those that ended long ago."""

    def forget_ended(self, due: EndedBefore) -> int:
        """Removes what is left of allocations that ended before a time: what was known of them, and what ranks wrote.

        Where what has ended takes more than a bound, what ended longest ago goes too.

        Blocks, and may be repeated. Each is forgotten whole or not at all, and its id is then one that nobody ever
        launched; what a call that was cut short has left of it is no allocation, and goes with the next call. What has
        not ended, or is not known to have, is never touched.

        Args:
            due: Which of them.

        Returns:
            How many there are, before any is removed.

        Raises:
            Unavailable: The cluster does not answer within the adapter's own bound; some may be gone.
        """


@runtime_checkable
class Provisioning(Protocol):
    """What an engine can do whose cluster offers nodes that it does not have yet: order some."""

    def provision(self, order: Provision) -> None:
        """Asks the cluster for nodes of one of its offers. Returns once that is asked, long before they come.

        Idempotent by offer and job while the order is under way. Until its nodes are all there the inventory shows it
        among `orders`, and as many nodes COMING; then they are nodes like any others. An order ends when they have
        come, when the cluster says that they will not, or when they are far too late; its offer is withheld then for a
        while, and says why. Nodes that came all the same, and all that are idle, the cluster takes back by itself.

        Raises:
            NotFound: It has no such offer.
            Conflict: The offer is withheld, or has not that many nodes left.
            Unavailable: The cluster does not answer within the adapter's own bound; it may have been asked.
        """
