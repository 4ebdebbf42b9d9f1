"""An engine around another that hangs, fails and dawdles as told, called by several threads at once."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Condition, Event, Lock
from typing import TypeVar

from mainspring.domain.fleet import AllocationSeen, Inventory, LaunchOrder, LogChunk, Node
from mainspring.domain.ids import AllocationId, AttemptId, ChipName, ClusterName, NodeName, RoleName
from mainspring.domain.ports import Engine
from mainspring.testing import FakeClock, FakeEngine

Value = TypeVar("Value")
WAIT_S = 20.0


class Troubled:
    """The `Engine` port around another engine, one of whose calls runs at a time.

    Before a call acts, and again before it returns, it passes the gates that tests close.
    """

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.begun: list[str] = []
        self.ended: list[str] = []
        self.error: dict[str, Exception] = {}
        self.dawdle: Callable[[str], None] = lambda _: None
        self._lock = Lock()
        self._changed = Condition()
        self._gates: dict[str, Event] = {}

    @contextmanager
    def closed(self, gate: str) -> Iterator[None]:
        """Holds up calls: "launch" before they act, "launch replies" before they return."""
        self._gates[gate] = Event()
        try:
            yield
        finally:
            self._gates.pop(gate).set()

    def reached(self, gate: str, times: int = 1) -> None:
        """Returns once so many calls have come as far as a gate, closed or not."""
        with self._changed:
            assert self._changed.wait_for(lambda: self.begun.count(gate) >= times, WAIT_S), (gate, self.begun)

    def returned(self, call: str, times: int = 1) -> None:
        """Returns once so many calls have returned or raised."""
        with self._changed:
            assert self._changed.wait_for(lambda: self.ended.count(call) >= times, WAIT_S), (call, self.ended)

    def inventory(self) -> Inventory:
        return self._call("inventory", "", self.engine.inventory)

    def observe(self) -> tuple[AllocationSeen, ...]:
        return self._call("observe", "", self.engine.observe)

    def launch(self, order: LaunchOrder) -> None:
        self._call("launch", order.allocation, lambda: self.engine.launch(order))

    def stop(self, allocation: AllocationId, *, grace_s: float) -> None:
        self._call("stop", allocation, lambda: self.engine.stop(allocation, grace_s=grace_s))

    def logs(self, allocation: AllocationId, *, rank: int, since: int, limit: int) -> LogChunk:
        return self._call("logs", "", lambda: self.engine.logs(allocation, rank=rank, since=since, limit=limit))

    def cordon(self, node: NodeName, *, owner: str, reason: str) -> None:
        self._call("cordon", "", lambda: self.engine.cordon(node, owner=owner, reason=reason))

    def uncordon(self, node: NodeName, *, owner: str) -> None:
        self._call("uncordon", "", lambda: self.engine.uncordon(node, owner=owner))

    def _call(self, call: str, on: str, act: Callable[[], Value]) -> Value:
        try:
            self._pass(call, on)
            if call in self.error:
                raise self.error[call]
            with self._lock:
                value = act()
            self._pass(f"{call} replies", on)
            return value
        finally:
            self._note(self.ended, call)

    def _pass(self, gate: str, on: str) -> None:
        self._note(self.begun, gate)
        if on:
            self._note(self.begun, f"{gate} {on}")
        self.dawdle(gate)
        closed = self._gates.get(gate)
        assert closed is None or closed.wait(WAIT_S)

    def _note(self, notes: list[str], what: str) -> None:
        with self._changed:
            notes.append(what)
            self._changed.notify_all()


def small_cluster(clock: FakeClock) -> FakeEngine:
    """Returns a cluster of three nodes in memory."""
    nodes = tuple(Node(name=NodeName(f"alpha-{index}"), chip=ChipName("h100"), chips=8) for index in range(3))
    inventory = Inventory(
        cluster=ClusterName("alpha"),
        engine="fake",
        simulated=True,
        dollars_per_chip_hour={ChipName("h100"): 2.0},
        nodes=nodes,
    )
    return FakeEngine(inventory, clock, obey_s=0.1)


def order(name: str = "allocation-1", node: str = "alpha-0") -> LaunchOrder:
    return LaunchOrder(
        allocation=AllocationId(name),
        attempt=AttemptId("attempt-1"),
        role=RoleName("main"),
        nodes=(NodeName(node),),
        chip_milli=(1_000,),
        controller="http://127.0.0.1:1",
        token="a-secret",
    )
