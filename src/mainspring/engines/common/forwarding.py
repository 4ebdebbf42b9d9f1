"""Proxies of engines: the calls of both ports as one value, to be sent, delayed or failed in one place."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any, cast

from mainspring.domain.codec import message
from mainspring.domain.errors import InvalidMessage, NotFound
from mainspring.domain.fleet import AllocationSeen, EndedBefore, Inventory, LaunchOrder, LogChunk
from mainspring.domain.ids import AllocationId, NodeName
from mainspring.domain.plan import Provision
from mainspring.domain.ports import Engine, Forgetting, Provisioning

_NO_ALLOCATION, _NO_NODE = AllocationId(""), NodeName("")
CallResult = Inventory | tuple[AllocationSeen, ...] | LogChunk | int | str | None


@message("FarCall")
class EngineCall:
    """One call of the port, by name, with those of the fields that it takes; on a pipe the number of its answer too."""

    number: int = 0
    call: str
    order: LaunchOrder | None = None
    allocation: AllocationId = _NO_ALLOCATION
    grace_s: float = 0.0
    rank: int = 0
    since: int = 0
    limit: int = 0
    node: NodeName = _NO_NODE
    owner: str = ""
    reason: str = ""
    due: EndedBefore | None = None
    provision: Provision | None = None

    @property
    def about(self) -> AllocationId:
        """Returns the allocation it is about; "" where that is none in particular."""
        return self.order.allocation if self.order else self.allocation

    @property
    def subject(self) -> str:
        """Returns the allocation, the order of nodes, or the node, that it is about."""
        ordered = f"{self.provision.offer} for {self.provision.for_job}" if self.provision else ""
        return self.about or ordered or (f"node {self.node}" if self.node else "")


def _provision(engine: Engine, order: Provision) -> None:
    if not isinstance(engine, Provisioning):
        raise NotFound("order nodes", on=order.cluster, got=f"offer {order.offer}", wanted="an engine that orders any")
    engine.provision(order)


_CALLS: Mapping[str, Callable[[Engine, Any], CallResult]] = {
    "inventory": lambda engine, call: engine.inventory(),
    "observe": lambda engine, call: engine.observe(),
    "launch": lambda engine, call: engine.launch(call.order),
    "stop": lambda engine, call: engine.stop(call.allocation, grace_s=call.grace_s),
    "logs": lambda engine, call: engine.logs(call.allocation, rank=call.rank, since=call.since, limit=call.limit),
    "attestation": lambda engine, call: engine.attestation(call.allocation),
    "cordon": lambda engine, call: engine.cordon(call.node, owner=call.owner, reason=call.reason),
    "uncordon": lambda engine, call: engine.uncordon(call.node, owner=call.owner),
    "provision": lambda engine, call: _provision(engine, call.provision),
    "forget_ended": lambda engine, call: engine.forget_ended(call.due) if isinstance(engine, Forgetting) else 0,
}
CALLS = tuple(_CALLS)


def perform(engine: Engine, call: EngineCall) -> CallResult:
    """Returns what an engine answers to a call.

    Raises:
        InvalidMessage: It is none of these, or a launch or provision without its order.
    """
    ordered = {"launch": call.order, "provision": call.provision}
    if call.call not in _CALLS or ordered.get(call.call, call) is None:
        raise InvalidMessage(
            "serve an engine",
            got=f"{call.call[:80]} {'with an' if call.order or call.provision else 'without'} order",
            wanted=f"one of {', '.join(CALLS)}",
        )
    return _CALLS[call.call](engine, call)


class ForwardingEngine(ABC):
    """The `Engine` port in front of another: each call becomes an `EngineCall`. The promises are the port's."""

    @abstractmethod
    def _forward(self, call: EngineCall) -> CallResult:
        """Returns what `perform` would return for the engine behind this one."""

    def inventory(self) -> Inventory:
        """Returns every node; see `Engine.inventory`."""
        return cast(Inventory, self._forward(EngineCall(call="inventory")))

    def observe(self) -> tuple[AllocationSeen, ...]:
        """Returns every allocation; see `Engine.observe`."""
        return cast(tuple[AllocationSeen, ...], self._forward(EngineCall(call="observe")))

    def launch(self, order: LaunchOrder) -> None:
        """Starts one agent on each node of the order; see `Engine.launch`."""
        self._forward(EngineCall(call="launch", order=order))

    def stop(self, allocation: AllocationId, *, grace_s: float) -> None:
        """Asks the allocation's agents to end; see `Engine.stop`."""
        self._forward(EngineCall(call="stop", allocation=allocation, grace_s=grace_s))

    def logs(self, allocation: AllocationId, *, rank: int, since: int, limit: int) -> LogChunk:
        """Returns a piece of one rank's output; see `Engine.logs`."""
        return cast(
            LogChunk, self._forward(EngineCall(call="logs", allocation=allocation, rank=rank, since=since, limit=limit))
        )

    def attestation(self, allocation: AllocationId) -> str:
        """Returns what came with an allocation's order; see `Engine.attestation`."""
        return cast(str, self._forward(EngineCall(call="attestation", allocation=allocation)))

    def cordon(self, node: NodeName, *, owner: str, reason: str) -> None:
        """Keeps new allocations off a node; see `Engine.cordon`."""
        self._forward(EngineCall(call="cordon", node=node, owner=owner, reason=reason))

    def uncordon(self, node: NodeName, *, owner: str) -> None:
        """Takes back our own cordon; see `Engine.uncordon`."""
        self._forward(EngineCall(call="uncordon", node=node, owner=owner))

    def provision(self, order: Provision) -> None:
        """Asks for nodes of an offer, where the engine can; see `Provisioning.provision`."""
        self._forward(EngineCall(call="provision", provision=order))

    def forget_ended(self, due: EndedBefore) -> int:
        """Removes what is left of old allocations, where the engine can; see `Forgetting.forget_ended`."""
        return cast(int, self._forward(EngineCall(call="forget_ended", due=due)))
