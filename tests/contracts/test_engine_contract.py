"""The promise of the `Engine` port, held by every adapter and the fake."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Protocol

import pytest

from mainspring.domain.codec import decode
from mainspring.domain.errors import Conflict, NotFound
from mainspring.domain.fleet import AllocationPhase, AllocationSeen, Inventory, LaunchOrder, Node, NodeCondition
from mainspring.domain.ids import AllocationId, AttemptId, ChipName, ClusterName, NodeName, RoleName
from mainspring.domain.ports import Engine
from mainspring.engines import LocalCluster, LocalEngine
from mainspring.engines.processes import alive
from mainspring.engines.records import Launched
from mainspring.testing import FakeClock, FakeEngine

# An agent that says hello in its rank's log, and ends well when asked to.
AGENT = """
import json, os, signal, sys
with open(sys.argv[sys.argv.index("--order") + 1]) as file:
    order = json.load(file)
os.chdir(order["work_dir"])
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
with open(os.environ["STARTS"], "a") as file:
    file.write(order["node"] + "\\n")
with open("draft", "w") as file:
    file.write("hello from rank %d" % order["index"])
os.rename("draft", "rank-%d.log" % order["index"])
signal.sigwait([signal.SIGTERM])
with open("exit.json", "w") as file:
    json.dump({"exit_code": 0, "reason": "stopped"}, file)
"""
WAITS_MAX = 500
WAIT_S = 0.02


class Harness(Protocol):
    """One engine under test."""

    clock: FakeClock

    def engine(self) -> Engine:
        """Returns a new adapter to the same cluster, as after a restart of the controller."""
        ...

    def starts(self) -> int:
        """Returns how many agents have ever been started."""
        ...

    def speak(self, allocation: AllocationId, ranks: int) -> None:
        """Makes the ranks say "hello from rank <rank>"."""
        ...

    def end_agent(self, allocation: AllocationId, index: int, *, well: bool) -> None:
        """Ends one agent, well or by force; returns when it is gone."""
        ...

    def until(self, condition: Callable[[], bool]) -> None:
        """Lets time pass until the condition holds."""
        ...


class LocalHarness:
    def __init__(self, root: Path) -> None:
        self.clock = FakeClock()
        self._root = root
        self._starts = root / "starts"
        self._program = root / "agent.py"
        self._program.write_text(AGENT)

    def engine(self) -> Engine:
        return LocalEngine(
            LocalCluster(
                name=ClusterName("alpha"), chip=ChipName("h100"), chips_per_node=8, nodes=3, dollars_per_chip_hour=2.0
            ),
            root=self._root / "alpha",
            agent_command=(sys.executable, "-S", "-E", str(self._program)),
            environment={"STARTS": str(self._starts)},
            clock=self.clock,
        )

    def starts(self) -> int:
        return len(self._starts.read_text().splitlines()) if self._starts.exists() else 0

    def speak(self, allocation: AllocationId, ranks: int) -> None:
        pattern = f"{allocation}/node-*/rank-*.log"
        self.until(lambda: len(list((self._root / "alpha").glob(pattern))) == ranks)

    def end_agent(self, allocation: AllocationId, index: int, *, well: bool) -> None:
        agents = decode(Launched, (self._root / "alpha" / allocation / "launched.json").read_bytes()).agents
        os.kill(agents[index].pid, signal.SIGTERM if well else signal.SIGKILL)
        self.until(lambda: not alive(agents[index]))

    def until(self, condition: Callable[[], bool]) -> None:
        pause = threading.Event()
        for _ in range(WAITS_MAX):
            if condition():
                return
            pause.wait(WAIT_S)
            self.clock.advance(WAIT_S)
        raise AssertionError("waited too long")


class FakeHarness:
    def __init__(self) -> None:
        self.clock = FakeClock()
        nodes = tuple(Node(name=NodeName(f"alpha-{index}"), chip=ChipName("h100"), chips=8) for index in range(3))
        inventory = Inventory(
            cluster=ClusterName("alpha"),
            engine="fake",
            simulated=True,
            dollars_per_chip_hour={ChipName("h100"): 2.0},
            nodes=nodes,
        )
        self._engine = FakeEngine(inventory, self.clock, obey_s=0.1)

    def engine(self) -> Engine:
        return self._engine

    def starts(self) -> int:
        return self._engine.agents_started

    def speak(self, allocation: AllocationId, ranks: int) -> None:
        for rank in range(ranks):
            self._engine.write_log(allocation, rank, f"hello from rank {rank}".encode())

    def end_agent(self, allocation: AllocationId, index: int, *, well: bool) -> None:
        self._engine.end_agent(allocation, index, exit_code=0 if well else -9)

    def until(self, condition: Callable[[], bool]) -> None:
        for _ in range(WAITS_MAX):
            if condition():
                return
            self.clock.advance(WAIT_S)
        raise AssertionError("waited too long")


@pytest.fixture(params=["local", "fake"])
def harness(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Harness]:
    """Each engine in turn; whatever it started is gone afterwards."""
    made: Harness = LocalHarness(tmp_path) if request.param == "local" else FakeHarness()
    yield made
    engine = made.engine()
    for allocation in engine.observe():
        engine.stop(allocation.allocation, grace_s=0.0)
    made.until(lambda: all(allocation.phase is AllocationPhase.ENDED for allocation in engine.observe()))


def order(name: str = "allocation-1", nodes: tuple[str, ...] = ("alpha-0", "alpha-2")) -> LaunchOrder:
    return LaunchOrder(
        allocation=AllocationId(name),
        attempt=AttemptId("attempt-1"),
        role=RoleName("main"),
        nodes=tuple(NodeName(node) for node in nodes),
        chip_milli=(4_000,) * len(nodes),
        controller="http://127.0.0.1:1",
        token="a-secret",
    )


def seen(engine: Engine, name: str = "allocation-1") -> AllocationSeen | None:
    return next((allocation for allocation in engine.observe() if allocation.allocation == name), None)


def phase(engine: Engine, name: str = "allocation-1") -> AllocationPhase | None:
    found = seen(engine, name)
    return found.phase if found else None


def stopped(harness: Harness, engine: Engine, name: str = "allocation-1") -> AllocationSeen:
    engine.stop(AllocationId(name), grace_s=60.0)
    harness.until(lambda: phase(engine, name) is AllocationPhase.ENDED)
    found = seen(engine, name)
    assert found is not None
    return found


def test_inventory_lists_every_node_in_name_order(harness: Harness) -> None:
    inventory = harness.engine().inventory()
    assert [node.name for node in inventory.nodes] == ["alpha-0", "alpha-1", "alpha-2"]
    assert {(node.chip, node.chips, node.condition) for node in inventory.nodes} == {("h100", 8, NodeCondition.READY)}
    assert inventory.simulated
    assert inventory.dollars_per_chip_hour == {"h100": 2.0}


def test_launch_repeated_starts_each_agent_once(harness: Harness) -> None:
    engine = harness.engine()
    engine.launch(order())
    engine.launch(order())
    harness.engine().launch(order())
    harness.until(lambda: harness.starts() >= 2)
    found = seen(engine)
    assert found is not None
    assert (found.phase, found.nodes, found.exit_code) == (AllocationPhase.RUNNING, ("alpha-0", "alpha-2"), None)
    stopped(harness, engine)
    assert harness.starts() == 2


def test_launch_after_it_ended_starts_nothing(harness: Harness) -> None:
    engine = harness.engine()
    engine.launch(order())
    harness.speak(AllocationId("allocation-1"), 2)
    assert stopped(harness, engine).exit_code == 0
    engine.launch(order())
    assert phase(engine) is AllocationPhase.ENDED
    assert harness.starts() == 2


def test_launch_after_stop_of_an_unknown_id_starts_nothing(harness: Harness) -> None:
    engine = harness.engine()
    engine.stop(AllocationId("allocation-1"), grace_s=1.0)
    engine.launch(order())
    harness.engine().launch(order())
    assert seen(engine) is None
    assert harness.starts() == 0


def test_launch_on_an_unknown_node_starts_nothing(harness: Harness) -> None:
    engine = harness.engine()
    with pytest.raises(NotFound):
        engine.launch(order(nodes=("alpha-0", "beta-0")))
    assert engine.observe() == ()
    assert harness.starts() == 0


def test_stop_repeated_is_the_same_as_once(harness: Harness) -> None:
    engine = harness.engine()
    engine.launch(order())
    harness.speak(AllocationId("allocation-1"), 2)
    engine.stop(AllocationId("allocation-1"), grace_s=60.0)
    engine.stop(AllocationId("allocation-1"), grace_s=60.0)
    assert phase(engine) in (AllocationPhase.STOPPING, AllocationPhase.ENDED)
    first = stopped(harness, engine)
    assert stopped(harness, engine) == first


def test_observe_after_a_restart_of_the_controller_sees_everything(harness: Harness) -> None:
    engine = harness.engine()
    engine.launch(order("allocation-2"))
    engine.launch(order("allocation-1", nodes=("alpha-1",)))
    again = harness.engine()
    found = again.observe()
    assert [(each.allocation, each.phase, each.nodes) for each in found] == [
        ("allocation-1", AllocationPhase.RUNNING, ("alpha-1",)),
        ("allocation-2", AllocationPhase.RUNNING, ("alpha-0", "alpha-2")),
    ]
    stopped(harness, again, "allocation-2")
    assert phase(again, "allocation-1") is AllocationPhase.RUNNING


def test_ended_allocations_stay_visible_for_an_hour(harness: Harness) -> None:
    engine = harness.engine()
    engine.launch(order())
    stopped(harness, engine)
    harness.clock.advance(3_500.0)
    assert phase(harness.engine()) is AllocationPhase.ENDED
    harness.clock.advance(3_700.0)
    assert seen(harness.engine()) is None
    engine.launch(order())
    assert seen(engine) is None, "pruned, but never forgotten by launch"


def test_observe_tells_when_one_agent_is_lost_and_when_one_ended_well(harness: Harness) -> None:
    engine = harness.engine()
    engine.launch(order("allocation-1"))
    engine.launch(order("allocation-2"))
    for name in ("allocation-1", "allocation-2"):
        harness.speak(AllocationId(name), 2)
    harness.end_agent(AllocationId("allocation-1"), 1, well=False)
    harness.end_agent(AllocationId("allocation-2"), 1, well=True)
    for each in (engine, harness.engine()):
        found = {seen.allocation: (seen.phase, seen.agent_lost, seen.lost_nodes) for seen in each.observe()}
        assert found == {
            "allocation-1": (AllocationPhase.RUNNING, True, ("alpha-2",)),
            "allocation-2": (AllocationPhase.RUNNING, False, ()),
        }


def test_logs_continue_from_any_offset(harness: Harness) -> None:
    engine = harness.engine()
    name = AllocationId("allocation-1")
    engine.launch(order())
    harness.speak(name, 2)
    start = engine.logs(name, rank=1, since=0, limit=5)
    assert (start.data, start.next_offset) == (b"hello", 5)
    rest = harness.engine().logs(name, rank=1, since=start.next_offset, limit=1_000)
    assert (rest.data, rest.next_offset) == (b" from rank 1", 17)
    end = engine.logs(name, rank=1, since=17, limit=1_000)
    assert (end.data, end.next_offset) == (b"", 17)


@pytest.mark.parametrize(("name", "rank"), [("allocation-1", 7), ("allocation-9", 0)])
def test_logs_of_what_never_wrote_are_not_found(harness: Harness, name: str, rank: int) -> None:
    engine = harness.engine()
    engine.launch(order())
    with pytest.raises(NotFound):
        engine.logs(AllocationId(name), rank=rank, since=0, limit=10)


def test_cordon_belongs_to_its_owner(harness: Harness) -> None:
    engine, node = harness.engine(), NodeName("alpha-1")
    engine.cordon(node, owner="ada", reason="noisy fan")
    engine.cordon(node, owner="ada", reason="dead fan")
    with pytest.raises(Conflict):
        engine.cordon(node, owner="bob", reason="mine")
    with pytest.raises(Conflict):
        engine.uncordon(node, owner="bob")
    shown = harness.engine().inventory().nodes[1]
    assert (shown.condition, shown.condition_owner) == (NodeCondition.CORDONED, "ada")
    assert shown.condition_reason == "dead fan"
    engine.uncordon(node, owner="ada")
    engine.uncordon(node, owner="ada")
    shown = harness.engine().inventory().nodes[1]
    assert (shown.condition, shown.condition_owner, shown.condition_reason) == (NodeCondition.READY, "", "")


def test_cordon_keeps_what_runs(harness: Harness) -> None:
    engine = harness.engine()
    engine.launch(order())
    engine.cordon(NodeName("alpha-0"), owner="ada", reason="noisy fan")
    assert phase(engine) is AllocationPhase.RUNNING


def test_cordon_of_an_unknown_node_is_not_found(harness: Harness) -> None:
    engine = harness.engine()
    with pytest.raises(NotFound):
        engine.cordon(NodeName("beta-0"), owner="ada", reason="")
    with pytest.raises(NotFound):
        engine.uncordon(NodeName("beta-0"), owner="ada")
