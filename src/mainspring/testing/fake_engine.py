"""The fake of the `Engine` port: a cluster in memory, on virtual time, whose faults are called by name."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

from mainspring.domain.errors import Conflict, NotFound, Unavailable, nearest
from mainspring.domain.fleet import (
    AllocationPhase,
    AllocationSeen,
    Inventory,
    LaunchOrder,
    LogChunk,
    Node,
    NodeCondition,
)
from mainspring.domain.ids import AllocationId, NodeName
from mainspring.domain.ports import Clock

ENDED_VISIBLE_S = 3_600.0
CALLS = ("inventory", "observe", "launch", "stop", "logs", "cordon", "uncordon")


@dataclass(slots=True, kw_only=True)
class _Agent:
    ended: bool = False
    exit_code: int = 0
    reason: str = ""


@dataclass(slots=True, kw_only=True)
class _Allocation:
    order: LaunchOrder
    agents: list[_Agent]
    stop_at_s: float | None = None
    ended_at_s: float | None = None


@dataclass(slots=True, kw_only=True)
class _Faults:
    fail: dict[str, int] = field(default_factory=dict)
    drop: dict[str, int] = field(default_factory=dict)


class FakeEngine:
    """The `Engine` port in memory. Agents obey a stop after `obey_s`, or are ended when the grace is over.

    Args:
        inventory: The cluster's nodes at first.
        clock: Virtual time.
        obey_s: How long an agent takes to end after it was asked to.
    """

    def __init__(self, inventory: Inventory, clock: Clock, *, obey_s: float = 0.0) -> None:
        self._inventory = inventory
        self._clock = clock
        self._obey_s = obey_s
        self._nodes = {node.name: node for node in inventory.nodes}
        self._down: dict[NodeName, str] = {}
        self._allocations: dict[AllocationId, _Allocation] = {}
        self._never: set[AllocationId] = set()
        self._logs: dict[AllocationId, dict[int, bytes]] = {}
        self._faults = _Faults()
        self.answering = True
        self.agents_started = 0

    # ------------------------------------------------------------ faults and facts, for tests

    def fail_next(self, call: str, count: int = 1) -> None:
        """Makes the next calls raise `Unavailable` before they do anything.

        Args:
            call: One of `CALLS`.
            count: How many calls.
        """
        assert call in CALLS
        self._faults.fail[call] = count

    def drop_reply(self, call: str, count: int = 1) -> None:
        """Makes the next calls act, and then raise `Unavailable`.

        Args:
            call: One of `CALLS`.
            count: How many calls.
        """
        assert call in CALLS
        self._faults.drop[call] = count

    def node_down(self, node: NodeName, reason: str = "the machine is gone") -> None:
        """Takes a node down; agents on it end at once.

        Args:
            node: The node.
            reason: Why, for people.
        """
        self._down[self._known(node, "take down a node").name] = reason
        for allocation in self._allocations.values():
            for name, agent in zip(allocation.order.nodes, allocation.agents, strict=True):
                if name == node:
                    _end(agent, -9, reason)

    def node_up(self, node: NodeName) -> None:
        """Brings a node back, empty.

        Args:
            node: The node.
        """
        self._down.pop(node, None)

    def end_agent(self, allocation: AllocationId, index: int, *, exit_code: int, reason: str = "") -> None:
        """Ends one agent, as if it had by itself.

        Args:
            allocation: Its allocation.
            index: Its place among the allocation's nodes.
            exit_code: Negative for a signal.
            reason: Its last words.
        """
        _end(self._allocations[allocation].agents[index], exit_code, reason)

    def write_log(self, allocation: AllocationId, rank: int, data: bytes) -> None:
        """Adds to a rank's output.

        Args:
            allocation: Its allocation.
            rank: Its number in the attempt.
            data: What it writes.
        """
        logs = self._logs.setdefault(allocation, {})
        logs[rank] = logs.get(rank, b"") + data

    def used_chip_milli(self) -> Mapping[NodeName, int]:
        """Returns thousandths of chips in use on each node that is used at all, by agents that live."""
        self._settle()
        used: dict[NodeName, int] = {}
        for allocation in self._allocations.values():
            order = allocation.order
            for name, milli, agent in zip(order.nodes, order.chip_milli, allocation.agents, strict=True):
                if not agent.ended:
                    used[name] = used.get(name, 0) + milli
        return used

    # ------------------------------------------------------------ the port

    def inventory(self) -> Inventory:
        """Returns every node; see `Engine.inventory`."""
        with self._call("inventory"):
            nodes = tuple(self._shown(node) for node in self._nodes.values())
            answer = replace(self._inventory, nodes=nodes)
        return answer

    def observe(self) -> tuple[AllocationSeen, ...]:
        """Returns every allocation; see `Engine.observe`."""
        with self._call("observe"):
            now_s = self._clock.monotonic_s()
            answer = tuple(
                _seen(name, allocation)
                for name, allocation in sorted(self._allocations.items())
                if allocation.ended_at_s is None or now_s - allocation.ended_at_s < ENDED_VISIBLE_S
            )
        return answer

    def launch(self, order: LaunchOrder) -> None:
        """Starts one agent on each node; see `Engine.launch`.

        Args:
            order: What to start.

        Raises:
            NotFound: A node of the order does not exist here.
        """
        with self._call("launch"):
            for node in order.nodes:
                self._known(node, "launch an allocation")
            if order.allocation not in self._allocations and order.allocation not in self._never:
                self.agents_started += len(order.nodes)
                agents = [_Agent() for _ in order.nodes]
                self._allocations[order.allocation] = _Allocation(order=order, agents=agents)
                for node, agent in zip(order.nodes, agents, strict=True):
                    if node in self._down:
                        _end(agent, -9, self._down[node])

    def stop(self, allocation: AllocationId, *, grace_s: float) -> None:
        """Asks the allocation's agents to end; see `Engine.stop`.

        Args:
            allocation: Its id.
            grace_s: Seconds after which they are ended by force.
        """
        with self._call("stop"):
            known = self._allocations.get(allocation)
            if known is None:
                self._never.add(allocation)
            else:
                at_s = self._clock.monotonic_s() + min(self._obey_s, grace_s)
                known.stop_at_s = at_s if known.stop_at_s is None else min(known.stop_at_s, at_s)

    def logs(self, allocation: AllocationId, *, rank: int, since: int, limit: int) -> LogChunk:
        """Returns a piece of one rank's output; see `Engine.logs`.

        Args:
            allocation: Its id.
            rank: Its number in the attempt.
            since: Byte to start from.
            limit: How many bytes at most.

        Raises:
            NotFound: No such allocation, or that rank wrote nothing yet.
        """
        with self._call("logs"):
            data = self._logs.get(allocation, {}).get(rank)
            if data is None:
                raise NotFound("read a log", on=allocation, got=f"rank {rank}", wanted="a rank that wrote something")
            piece = data[since : since + limit]
        return LogChunk(data=piece, next_offset=since + len(piece))

    def cordon(self, node: NodeName, *, owner: str, reason: str) -> None:
        """Keeps new allocations off a node; see `Engine.cordon`.

        Args:
            node: The node.
            owner: Who wants it.
            reason: Why, for people.

        Raises:
            NotFound: No such node.
            Conflict: Another owner has cordoned it.
        """
        with self._call("cordon"):
            known = self._owned(node, owner, "cordon a node")
            self._nodes[node] = replace(
                known, condition=NodeCondition.CORDONED, condition_owner=owner, condition_reason=reason
            )

    def uncordon(self, node: NodeName, *, owner: str) -> None:
        """Takes back our own cordon; see `Engine.uncordon`.

        Args:
            node: The node.
            owner: Who set it.

        Raises:
            NotFound: No such node.
            Conflict: The cordon belongs to another owner.
        """
        with self._call("uncordon"):
            known = self._owned(node, owner, "uncordon a node")
            self._nodes[node] = replace(known, condition=NodeCondition.READY, condition_owner="", condition_reason="")

    # ------------------------------------------------------------ inside

    @contextmanager
    def _call(self, call: str) -> Iterator[None]:
        if not self.answering:
            raise Unavailable(call, on=self._inventory.cluster, got="no answer")
        if self._faults.fail.get(call, 0) > 0:
            self._faults.fail[call] -= 1
            raise Unavailable(call, on=self._inventory.cluster, got="a fault before it acted")
        self._settle()
        yield
        self._settle()
        if self._faults.drop.get(call, 0) > 0:
            self._faults.drop[call] -= 1
            raise Unavailable(call, on=self._inventory.cluster, got="no reply, though it has acted")

    def _settle(self) -> None:
        """Ends what has come to its end by now."""
        now_s = self._clock.monotonic_s()
        for allocation in self._allocations.values():
            if allocation.stop_at_s is not None and now_s >= allocation.stop_at_s:
                for agent in allocation.agents:
                    _end(agent, 0, "stopped")
            if allocation.ended_at_s is None and all(agent.ended for agent in allocation.agents):
                allocation.ended_at_s = now_s

    def _known(self, node: NodeName, attempted: str) -> Node:
        if node not in self._nodes:
            raise NotFound(attempted, on=self._inventory.cluster, got=node, wanted=nearest(node, self._nodes))
        return self._nodes[node]

    def _owned(self, node: NodeName, owner: str, attempted: str) -> Node:
        known = self._known(node, attempted)
        if known.condition is NodeCondition.CORDONED and known.condition_owner != owner:
            raise Conflict(attempted, on=node, got=f"a cordon of {known.condition_owner!r}", wanted=f"of {owner!r}")
        return known

    def _shown(self, node: Node) -> Node:
        if node.name not in self._down:
            return node
        return replace(node, condition=NodeCondition.DOWN, condition_owner="", condition_reason=self._down[node.name])


def _end(agent: _Agent, exit_code: int, reason: str) -> None:
    if not agent.ended:
        agent.ended, agent.exit_code, agent.reason = True, exit_code, reason


def _seen(name: AllocationId, allocation: _Allocation) -> AllocationSeen:
    gone = [agent for agent in allocation.agents if agent.ended]
    gone.sort(key=lambda agent: agent.exit_code == 0)
    if allocation.ended_at_s is not None:
        phase = AllocationPhase.ENDED
    else:
        phase = AllocationPhase.RUNNING if allocation.stop_at_s is None else AllocationPhase.STOPPING
    return AllocationSeen(
        allocation=name,
        phase=phase,
        nodes=allocation.order.nodes,
        exit_code=gone[0].exit_code if phase is AllocationPhase.ENDED else None,
        reason=gone[0].reason if gone else "",
        agent_lost=bool(gone) and gone[0].exit_code != 0,
        lost_nodes=tuple(
            node
            for node, agent in zip(allocation.order.nodes, allocation.agents, strict=True)
            if agent.ended and agent.exit_code != 0
        ),
    )
