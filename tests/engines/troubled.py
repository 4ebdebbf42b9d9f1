"""An engine around another that hangs, fails and dawdles as told, called by several threads at once."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Condition, Event, Lock

from mainspring.domain.fleet import Inventory, LaunchOrder, Node
from mainspring.domain.ids import AllocationId, AttemptId, ChipName, ClusterName, NodeName, RoleName
from mainspring.domain.ports import Engine
from mainspring.engines.common.forwarding import CallResult, EngineCall, ForwardingEngine, perform
from mainspring.testing import FakeClock, FakeEngine

WAIT_S = 120.0


class Troubled(ForwardingEngine):
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

    def _forward(self, call: EngineCall) -> CallResult:
        try:
            self._pass(call.call, call.about if call.call in ("launch", "stop") else "")
            if call.call in self.error:
                raise self.error[call.call]
            with self._lock:
                found = perform(self.engine, call)
            self._pass(f"{call.call} replies", call.about if call.call in ("launch", "stop") else "")
            return found
        finally:
            self._note(self.ended, call.call)

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
