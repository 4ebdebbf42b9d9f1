"""Parts of a simulated attempt: agents, ranks, snapshots in memory, lines."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, NamedTuple

from mainspring.domain import wire
from mainspring.domain.ids import AllocationId, NodeName
from mainspring.simulator.nodes.object_store import Content
from mainspring.simulator.nodes.releases import NEVER, NewerRelease

if TYPE_CHECKING:
    from mainspring.simulator.nodes.leading import SimulatedLead

DEVICES = 4  # Of a node, as most chips as one is drawn with.
SNAPSHOTS_KEPT = 2  # As an arena keeps: the newest of a place, and the one before.


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeClock:
    """How far a node's clocks are from the controller's.

    Args:
        ahead_s: Of the time of day, which people set; below 0 it is behind.
        up_s: Of the clock that never jumps, which tells how long a machine has been up.
    """

    ahead_s: float = 0.0
    up_s: float = 0.0


class RunKey(NamedTuple):
    """One generation of one lead."""

    epoch: int
    generation: int


@dataclass(frozen=True, slots=True)
class StateSnapshot:
    """What memory holds of one rank's state.

    Args:
        content: What its bytes are.
        damaged: Whether they are not what they were.
    """

    holding: wire.Holding
    content: Content
    damaged: bool = False


@dataclass(slots=True, kw_only=True)
class Device:
    """What one rank of a node computes with.

    Args:
        lies: Whether it computes wrongly, and says nothing.
        slips: Whether the next step, or the first look of a check before it, comes out wrong there, once.
        faulty: Whether it ever lied.
    """

    lies: bool = False
    slips: bool = False
    faulty: bool = False


def new_devices() -> tuple[Device, ...]:
    """Returns those of a node, all sound."""
    return tuple(Device() for _ in range(DEVICES))


@dataclass(slots=True, kw_only=True)
class Rank:
    """One process of the program.

    Args:
        run: The generation it belongs to, and whose.
        state: What it has computed.
        stepping: Whether its program has come up.
        stopped: Whether it hangs.
        told: The last step it has told of.
        reported: Whether it has told of any of its own.
        blocked_s: For how long snapshots have blocked it since.
    """

    place: wire.RankPlace
    run: RunKey
    state: Content
    every: int
    stepping: bool = False
    stopped: bool = False
    leave_at: int | None = None
    then: wire.Then = wire.Then.EXIT
    told: int = -2
    reported: bool = False
    blocked_s: float = 0.0

    @property
    def step(self) -> int:
        """Returns the step its state is after, -1 for none."""
        return self.state.step


@dataclass(slots=True, kw_only=True)
class Line:
    """A connection of an agent to a lead. What is sent on it arrives in order, late while one of them is cut off.

    Args:
        lead: Whom it leads to.
        up: False once either end has closed it; what was under way is lost.
        heard_s: When each end last heard the other.
        queues: What is under way, to the lead and to the agent.
    """

    lead: SimulatedLead
    heard_s: float
    up: bool = True
    queues: tuple[deque[object], deque[object]] = field(default_factory=lambda: (deque(), deque()))
    last_s: list[float] = field(default_factory=lambda: [0.0, 0.0])


@dataclass(slots=True, kw_only=True)
class Agent:
    """One agent that lives, or has lived.

    Args:
        index: Its place among its allocation's nodes.
        address: Where others reach it.
        clock: Its node's.
        newer: When its node runs the next release.
        devices: Its node's; see `device`.
        tried: What its ranks told of work that they did more than once.
        given: How many things each of its places has told that are counted.
        lost_epoch: The epoch of the lead it has lost and asks another for.
        patience_s: How long it waits for a word of its lead.
        leaves_s: When its engine ends it, once it was told so.
        hung: Whether it never comes to life and obeys nobody, until it is ended by force.
        told_to_leave: The generation whose ranks have been told to leave.
        cut_until_s: Until when no other agent hears it, nor it them.
    """

    allocation: AllocationId
    node: NodeName
    index: int
    address: str
    clock: NodeClock = NodeClock()
    newer: NewerRelease = NEVER
    devices: tuple[Device, ...] = field(default_factory=new_devices)
    tried: list[wire.RankTried] = field(default_factory=list)
    given: dict[int, int] = field(default_factory=dict)
    token: str = ""
    orders: wire.Orders | None = None
    alive: bool = True
    line: Line | None = None
    leads: SimulatedLead | None = None
    registering: bool = True
    lost_epoch: int = 0
    heard_s: float = 0.0
    patience_s: float = 0.0
    cut_until_s: float = 0.0
    leaves_s: float | None = None
    hung: bool = False
    stop_asked_s: float | None = None
    told_to_leave: int = -1
    generation: int = 0
    order: wire.PrepareGeneration | None = None
    started: bool = False
    prepared: wire.GenerationPrepared | None = None
    ranks: dict[int, Rank] = field(default_factory=dict)
    own: dict[int, list[StateSnapshot]] = field(default_factory=dict)
    copies: dict[int, list[StateSnapshot]] = field(default_factory=dict)
    exits: dict[int, wire.RankExited | wire.RankLeft] = field(default_factory=dict)

    @property
    def number(self) -> int:
        """Returns its number in the attempt."""
        assert self.orders is not None
        return self.orders.agent

    def device(self, rank: int) -> Device:
        """Returns what a place of it computes with."""
        return self.devices[rank % len(self.devices)]

    def damage(self) -> None:
        """Changes bytes of all that its memory holds."""
        for held in (self.own, self.copies):
            for rank, kept in held.items():
                held[rank] = [replace(one, damaged=True) for one in kept]

    @property
    def snapshots(self) -> tuple[StateSnapshot, ...]:
        """Returns all that its memory holds."""
        return tuple(one for held in (self.own, self.copies) for _, kept in sorted(held.items()) for one in kept)

    @property
    def holdings(self) -> tuple[wire.Holding, ...]:
        """Returns what it tells of that."""
        return tuple(one.holding for one in self.snapshots)


def keep(kept: list[StateSnapshot], snapshot: StateSnapshot) -> bool:
    """Adds a snapshot to those of one place, of which the newest stay; returns whether it is new."""
    if any(one.holding == snapshot.holding for one in kept):
        return False
    kept.append(snapshot)
    kept.sort(key=lambda one: (one.holding.generation, one.holding.step))
    del kept[:-SNAPSHOTS_KEPT]
    return True
