"""The fake of the `Engine` port: a cluster in memory, on virtual time, whose faults are called by name."""

from __future__ import annotations

import math
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
    NodeOrder,
    NodeSign,
    Offer,
)
from mainspring.domain.ids import AllocationId, NodeName
from mainspring.domain.plan import Provision
from mainspring.domain.ports import Clock
from mainspring.engines.common.forwarding import CALLS

ENDED_VISIBLE_S = 3_600.0


@dataclass(slots=True, kw_only=True)
class _Agent:
    ended: bool = False
    exit_code: int = 0
    reason: str = ""


@dataclass(slots=True, kw_only=True)
class _Allocation:
    order: LaunchOrder
    agents: list[_Agent]
    pending: bool = False
    taken: str | None = None
    stop_at_s: float | None = None
    ended_at_s: float | None = None


@dataclass(slots=True, kw_only=True)
class _Faults:
    fail: dict[str, int] = field(default_factory=dict)
    drop: dict[str, int] = field(default_factory=dict)


@dataclass(slots=True, kw_only=True)
class _Ordered:
    order: NodeOrder
    nodes: tuple[Node, ...]


class _Offers:
    """What the cluster could get, and what is under way of it; nodes come once their lead time is over."""

    def __init__(self, inventory: Inventory, clock: Clock) -> None:
        self._cluster = inventory.cluster
        self._offers = {offer.name: offer for offer in inventory.offers}
        self._clock = clock
        self._given = dict.fromkeys(self._offers, 0)
        self._under_way: list[_Ordered] = []

    def shown(self) -> tuple[Offer, ...]:
        return tuple(
            replace(offer, nodes_max=offer.nodes_max - self._given[name])
            for name, offer in sorted(self._offers.items())
        )

    def under_way(self) -> tuple[_Ordered, ...]:
        return tuple(self._under_way)

    def order(self, wanted: Provision) -> None:
        if wanted.offer not in self._offers:
            raise NotFound(
                "order nodes", on=self._cluster, got=wanted.offer, wanted=nearest(wanted.offer, self._offers)
            )
        if any((each.order.offer, each.order.job) == (wanted.offer, wanted.for_job) for each in self._under_way):
            return
        offer, given = self._offers[wanted.offer], self._given[wanted.offer]
        if offer.withheld or given + wanted.nodes > offer.nodes_max:
            got = offer.withheld or f"{wanted.nodes} nodes, of which it has {offer.nodes_max - given}"
            raise Conflict("order nodes", on=wanted.offer, got=got, wanted="an offer that has as many")
        self._given[wanted.offer] += wanted.nodes
        order = NodeOrder(
            cluster=self._cluster,
            offer=wanted.offer,
            job=wanted.for_job,
            nodes=wanted.nodes,
            expected_s=self._clock.now_s() + offer.lead_time_s,
        )
        names = (NodeName(f"{wanted.offer}-{given + index:03}") for index in range(wanted.nodes))
        nodes = tuple(Node(name=name, chip=offer.chip, chips=offer.chips) for name in names)
        self._under_way.append(_Ordered(order=order, nodes=nodes))

    def arrived(self) -> Iterator[Node]:
        """Yields nodes that have come by now, once."""
        for each in self.under_way():
            if self._clock.now_s() >= each.order.expected_s:
                self._under_way.remove(each)
                yield from each.nodes

    def withhold(self, name: str, reason: str) -> None:
        """Ends the orders of an offer, none of whose nodes come, and gives none any more."""
        self._offers[name] = replace(self._offers[name], withheld=reason)
        self._under_way = [each for each in self._under_way if each.order.offer != name]


class FakeEngine:
    """The `Engine` port in memory. Agents obey a stop after `obey_s`, or are ended when the grace is over.

    A delegated one chooses machines by itself; what is launched starts at once unless it is `queueing`.

    Args:
        inventory: The cluster's nodes at first.
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
        self._offers = _Offers(inventory, clock)
        self.answering = True
        self.queueing = False  # Whether what is launched waits until it is let start.
        self.agents_started = 0

    # ------------------------------------------------------------ faults and facts, for tests

    def fail_next(self, call: str, count: int = 1) -> None:
        """Makes the next calls raise `Unavailable` before they do anything.

        Args:
            call: One of `CALLS`.
        """
        assert call in CALLS
        self._faults.fail[call] = count

    def drop_reply(self, call: str, count: int = 1) -> None:
        """Makes the next calls act, and then raise `Unavailable`.

        Args:
            call: One of `CALLS`.
        """
        assert call in CALLS
        self._faults.drop[call] = count

    def node_down(self, node: NodeName, reason: str = "the machine is gone") -> None:
        """Takes a node down; agents on it end at once."""
        self._down[self._known(node, "take down a node").name] = reason
        for allocation in self._allocations.values():
            for name, agent in zip(allocation.order.nodes, allocation.agents, strict=True):
                if name == node and not allocation.pending:
                    _end(agent, -9, reason)

    def add_node(self, node: Node) -> None:
        """Makes a machine come that was not there before."""
        self._nodes[node.name] = node

    def node_up(self, node: NodeName) -> None:
        """Brings a node back, empty."""
        self._down.pop(node, None)

    def end_agent(self, allocation: AllocationId, index: int, *, exit_code: int, reason: str = "") -> None:
        """Ends one agent, as if it had by itself.

        Args:
            index: Its place among the allocation's nodes.
            exit_code: Negative for a signal.
            reason: Its last words.
        """
        _end(self._allocations[allocation].agents[index], exit_code, reason)

    def drain(self, node: NodeName, reason: str) -> None:
        """Drains a node, as the cluster's own operators do: it is cordoned by the engine, and leaves now."""
        self._nodes[node] = replace(
            self._known(node, "drain a node"),
            condition=NodeCondition.CORDONED,
            condition_owner=self._inventory.engine,
            condition_reason=reason,
            leaves_s=self._clock.now_s(),
        )

    def say(self, *signs: NodeSign) -> None:
        """Shows that others say this of its nodes, and nothing else any more."""
        self._inventory = replace(self._inventory, signs=signs)

    def withhold(self, offer: str, reason: str) -> None:
        """Ends the orders of an offer: none of their nodes come, and it gives none any more, for that reason."""
        self._offers.withhold(offer, reason)

    def waiting(self) -> tuple[AllocationId, ...]:
        """Returns what waits in the cluster's own queue, in order of id."""
        self._settle()
        return tuple(sorted(name for name, one in self._allocations.items() if one.pending))

    def let_start(self, allocation: AllocationId) -> None:
        """Lets an allocation leave the cluster's own queue.

        Args:
            allocation: One of those `waiting`.
        """
        waiting = self._allocations[allocation]
        assert waiting.pending
        self._start(waiting)

    def take_back(self, allocation: AllocationId, reason: str, *, grace_s: float = 0.0) -> None:
        """Takes an allocation back, as clusters do for what comes before it: agents have a grace to end in.

        Args:
            allocation: One that has not ended and was not stopped.
            reason: Why, in the cluster's words.
            grace_s: How long agents have; nothing when it is still in the queue.
        """
        known = self._allocations[allocation]
        if known.stop_at_s is None:
            known.taken = reason
            known.stop_at_s = self._clock.monotonic_s() + (0.0 if known.pending else min(self._obey_s, grace_s))
        self._settle()

    def forget(self, allocation: AllocationId) -> None:
        """Forgets an allocation that waits, as if it had never been launched; it may be launched again."""
        assert self._allocations[allocation].pending
        del self._allocations[allocation]

    def grace_left_s(self, allocation: AllocationId) -> float:
        """Returns how long an allocation's agents have until they are ended by force; infinite before a stop."""
        stop_at_s = self._allocations[allocation].stop_at_s
        return math.inf if stop_at_s is None else max(0.0, stop_at_s - self._clock.monotonic_s())

    def write_log(self, allocation: AllocationId, rank: int, data: bytes) -> None:
        """Adds to a rank's output.

        Args:
            rank: Its number in the attempt.
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
                if not agent.ended and not allocation.pending:
                    used[name] = used.get(name, 0) + milli
        return used

    # ------------------------------------------------------------ the port

    def inventory(self) -> Inventory:
        """Returns every node; see `Engine.inventory`."""
        with self._call("inventory"):
            nodes = {name: self._shown(node) for name, node in self._nodes.items()}
            under_way = self._offers.under_way()
            for ordered in under_way:
                reason = f"ordered of {ordered.order.offer} for {ordered.order.job}"
                coming = (
                    replace(node, condition=NodeCondition.COMING, condition_reason=reason) for node in ordered.nodes
                )
                nodes |= {node.name: node for node in coming}
            answer = replace(
                self._inventory,
                nodes=tuple(nodes[name] for name in sorted(nodes)),
                offers=self._offers.shown(),
                orders=tuple(ordered.order for ordered in under_way),
            )
        return answer

    def observe(self) -> tuple[AllocationSeen, ...]:
        """Returns every allocation; see `Engine.observe`."""
        with self._call("observe"):
            now_s = self._clock.monotonic_s()
            answer = tuple(
                self._seen(name, allocation)
                for name, allocation in sorted(self._allocations.items())
                if allocation.ended_at_s is None or now_s - allocation.ended_at_s < ENDED_VISIBLE_S
            )
        return answer

    def launch(self, order: LaunchOrder) -> None:
        """Starts one agent on each node; see `Engine.launch`.

        Raises:
            NotFound: A node of the order does not exist here.
        """
        with self._call("launch"):
            for node in order.nodes:
                self._known(node, "launch an allocation")
            if order.allocation not in self._allocations and order.allocation not in self._never:
                launched = _Allocation(order=order, agents=[_Agent() for _ in order.nodes], pending=True)
                self._allocations[order.allocation] = launched
                if not self.queueing:
                    self._start(launched)

    def stop(self, allocation: AllocationId, *, grace_s: float) -> None:
        """Asks the allocation's agents to end; see `Engine.stop`.

        Args:
            grace_s: Seconds after which they are ended by force.
        """
        with self._call("stop"):
            known = self._allocations.get(allocation)
            if known is None:
                self._never.add(allocation)
            else:
                at_s = self._clock.monotonic_s() + (0.0 if known.pending else min(self._obey_s, grace_s))
                known.stop_at_s = at_s if known.stop_at_s is None else min(known.stop_at_s, at_s)

    def logs(self, allocation: AllocationId, *, rank: int, since: int, limit: int) -> LogChunk:
        """Returns a piece of one rank's output; see `Engine.logs`.

        Args:
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

    def attestation(self, allocation: AllocationId) -> str:
        """Returns what came with an allocation's order; see `Engine.attestation`.

        Raises:
            NotFound: There is no such allocation, it is over, or nothing came with its order.
        """
        with self._call("attestation"):
            known = self._allocations.get(allocation)
            if known is None or known.ended_at_s is not None or not known.order.attestation:
                raise NotFound("know an allocation again", on=allocation, got="none that runs and has an attestation")
        return known.order.attestation

    def cordon(self, node: NodeName, *, owner: str, reason: str) -> None:
        """Keeps new allocations off a node; see `Engine.cordon`.

        Raises:
            NotFound: No such node.
            Conflict: Another owner has cordoned it, or the cluster is delegated.
        """
        with self._call("cordon"):
            if self._inventory.delegated:
                raise Conflict("cordon a node", on=node, got="a slot", wanted="a cluster where we choose the nodes")
            known = self._owned(node, owner, "cordon a node")
            self._nodes[node] = replace(
                known, condition=NodeCondition.CORDONED, condition_owner=owner, condition_reason=reason
            )

    def uncordon(self, node: NodeName, *, owner: str) -> None:
        """Takes back our own cordon; see `Engine.uncordon`.

        Raises:
            NotFound: No such node.
            Conflict: The cordon belongs to another owner.
        """
        with self._call("uncordon"):
            known = self._owned(node, owner, "uncordon a node")
            self._nodes[node] = replace(known, condition=NodeCondition.READY, condition_owner="", condition_reason="")

    def provision(self, order: Provision) -> None:
        """Orders nodes of an offer; see `Provisioning.provision`.

        Raises:
            NotFound: There is no such offer.
            Conflict: It is withheld, or has not as many left.
        """
        with self._call("provision"):
            self._offers.order(order)

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

    def _start(self, waiting: _Allocation) -> None:
        waiting.pending = False
        self.agents_started += len(waiting.agents)
        for node, agent in zip(waiting.order.nodes, waiting.agents, strict=True):
            if node in self._down:
                _end(agent, -9, self._down[node])

    def _settle(self) -> None:
        """Ends what has come to its end by now."""
        now_s = self._clock.monotonic_s()
        self._nodes |= {node.name: node for node in self._offers.arrived()}
        for allocation in self._allocations.values():
            if allocation.stop_at_s is not None and now_s >= allocation.stop_at_s:
                for agent in allocation.agents:
                    _end(agent, 0, "stopped")
            if allocation.ended_at_s is None and all(agent.ended for agent in allocation.agents):
                allocation.ended_at_s, allocation.pending = now_s, False

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

    def _seen(self, name: AllocationId, allocation: _Allocation) -> AllocationSeen:
        seen = _seen(name, allocation)
        if allocation.pending:
            return replace(seen, reason="those that come before it")
        if self._inventory.delegated:
            return replace(seen, hosts=tuple(f"host-of-{node}" for node in allocation.order.nodes))
        return seen


def _end(agent: _Agent, exit_code: int, reason: str) -> None:
    if not agent.ended:
        agent.ended, agent.exit_code, agent.reason = True, exit_code, reason


def _seen(name: AllocationId, allocation: _Allocation) -> AllocationSeen:
    gone = [agent for agent in allocation.agents if agent.ended]
    gone.sort(key=lambda agent: agent.exit_code == 0)
    if allocation.ended_at_s is not None:
        phase = AllocationPhase.ENDED
    elif allocation.pending:
        phase = AllocationPhase.PENDING
    else:
        phase = AllocationPhase.RUNNING if allocation.stop_at_s is None else AllocationPhase.STOPPING
    taken = phase is AllocationPhase.ENDED and allocation.taken is not None
    return AllocationSeen(
        allocation=name,
        phase=phase,
        nodes=allocation.order.nodes,
        job_id=allocation.order.job_id,
        exit_code=gone[0].exit_code if phase is AllocationPhase.ENDED else None,
        reason=(allocation.taken or "") if taken else gone[0].reason if gone else "",
        agent_lost=bool(gone) and gone[0].exit_code != 0,
        taken=taken,
        lost_nodes=tuple(
            node
            for node, agent in zip(allocation.order.nodes, allocation.agents, strict=True)
            if agent.ended and agent.exit_code != 0
        ),
    )
