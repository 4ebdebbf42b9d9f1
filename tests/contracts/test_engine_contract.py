"""The promise of the `Engine` port, held by every adapter and the fake.

Nothing here knows how long a cluster takes: what is promised to come about is waited for, within a bound.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Protocol

import pytest
from tests.contracts.on_kubernetes import KubernetesHarness, kubernetes_of

from mainspring.domain.errors import Conflict, NotFound
from mainspring.domain.fleet import AllocationPhase, AllocationSeen, Inventory, LaunchOrder, Node, NodeCondition
from mainspring.domain.ids import AllocationId, AttemptId, ChipName, ClusterName, NodeName, RoleName
from mainspring.domain.ports import Engine
from mainspring.engines.common.nonblocking import NonBlockingEngine
from mainspring.engines.local.config import LocalCluster
from mainspring.engines.local.engine import LocalEngine
from mainspring.engines.slurm.cluster.config import SlurmCluster
from mainspring.engines.slurm.engine import SlurmEngine
from mainspring.testing import FakeClock, FakeEngine
from mainspring.testing.kubernetes import KubernetesServer, kubernetes_missing
from mainspring.testing.kubernetes_kueue import kueue_missing, start_kueue
from mainspring.testing.kubernetes_pods import pods_missing
from mainspring.testing.slurm import SlurmNodes, SlurmServer, slurm_missing

# An agent that says hello in its rank's log, and ends well when asked to.
AGENT = """
import json, os, signal, sys
with open(sys.argv[sys.argv.index("--order") + 1]) as file:
    order = json.load(file)
os.chdir(order.get("report_dir") or order["work_dir"])
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
with open(os.environ["STARTS"], "a") as file:
    file.write(order["node"] + "\\n")
with open("pid", "w") as file:
    file.write(str(os.getpid()))
with open("draft", "w") as file:
    file.write("hello from rank %d" % order["index"])
os.rename("draft", "rank-%d.log" % order["index"])
signal.sigwait([signal.SIGTERM])
with open("exit.json", "w") as file:
    json.dump({"exit_code": 0, "reason": "stopped"}, file)
"""
WAITS_MAX = 6_000
WAIT_S = 0.02
NODES = 4
COMMAND_S_MAX = 60.0  # A machine that runs all tests at once is slow.


class Harness(Protocol):
    """One engine under test."""

    clock: FakeClock
    nodes: tuple[str, ...]

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
        """Ends one agent, well or by force."""
        ...

    def until(self, condition: Callable[[], bool]) -> None:
        """Lets time pass until the condition holds."""
        ...


class ProcessHarness(ABC):
    """An engine whose agents are processes of this machine, with their folders below one folder."""

    def __init__(self, root: Path, folder: Path) -> None:
        self.clock = FakeClock()
        self._folder = folder
        self._starts = root / "starts"
        self._program = root / "agent.py"
        self._program.write_text(AGENT)

    @abstractmethod
    def engine(self) -> Engine: ...

    def starts(self) -> int:
        return len(self._starts.read_text().splitlines()) if self._starts.exists() else 0

    def speak(self, allocation: AllocationId, ranks: int) -> None:
        pattern = f"{allocation}/node-*/rank-*.log"
        self.until(lambda: len(list(self._folder.glob(pattern))) == ranks)

    def end_agent(self, allocation: AllocationId, index: int, *, well: bool) -> None:
        pid = int((self._folder / allocation / f"node-{index}" / "pid").read_text())
        os.kill(pid, signal.SIGTERM if well else signal.SIGKILL)

    def until(self, condition: Callable[[], bool]) -> None:
        pause = threading.Event()
        for _ in range(WAITS_MAX):
            if condition():
                return
            pause.wait(WAIT_S)
            self.clock.advance(WAIT_S)
        raise AssertionError("waited too long")


class LocalHarness(ProcessHarness):
    nodes = tuple(f"alpha-{index}" for index in range(NODES))

    def __init__(self, root: Path) -> None:
        super().__init__(root, root / "alpha")

    def engine(self) -> Engine:
        return LocalEngine(
            LocalCluster(
                name=ClusterName("alpha"),
                chip=ChipName("h100"),
                chips_per_node=8,
                nodes=NODES,
                dollars_per_chip_hour=2.0,
            ),
            root=self._folder,
            agent_command=(sys.executable, "-S", "-E", str(self._program)),
            environment={"STARTS": str(self._starts)},
            clock=self.clock,
        )


class BehindHarness(LocalHarness):
    """The local engine, called by threads of its own."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.made: list[NonBlockingEngine] = []

    def engine(self) -> Engine:
        name = ClusterName("alpha")
        made = NonBlockingEngine(
            super().engine(),
            name=name,
            clock=self.clock,
            inventory_s=0.0,
            observe_s=0.0,
            stale_s=COMMAND_S_MAX,
            moment_s=COMMAND_S_MAX,  # So that no call is broken off as too slow.
        )
        self.made.append(made)
        return made


class SlurmHarness(ProcessHarness):
    """Several tests share the cluster, never the folder."""

    def __init__(self, root: Path, server: SlurmServer) -> None:
        super().__init__(root, root / "shared")
        self._server = server
        self._scratch = root / "scratch"
        self._scratch.mkdir()
        self.nodes = server.node_names

    def engine(self) -> Engine:
        cluster = SlurmCluster(
            name=ClusterName("alpha"),
            partitions=("main",),
            shared=str(self._folder),
            scratch=str(self._scratch),
            dollars_per_chip_hour={ChipName("h100"): 2.0},
            simulated=True,
            command_s_max=COMMAND_S_MAX,
            refresh_s=0.0,
        )
        return SlurmEngine(
            cluster,
            agent_command=(sys.executable, "-S", "-E", str(self._program)),
            environment={**os.environ, **self._server.environment, "STARTS": str(self._starts)},
            clock=self.clock,
        )


class FakeHarness:
    nodes = tuple(f"alpha-{index}" for index in range(NODES))

    def __init__(self) -> None:
        self.clock = FakeClock()
        nodes = tuple(Node(name=NodeName(name), chip=ChipName("h100"), chips=8) for name in self.nodes)
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


@pytest.fixture(scope="session")
def slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SlurmServer]:
    """A real Slurm of nodes that are ours alone, started where a test first needs it."""
    if missing := slurm_missing():
        pytest.skip(missing)
    with SlurmServer(tmp_path_factory.mktemp("slurm"), nodes=[SlurmNodes(count=NODES, prefix="alpha-")]) as server:
        yield server


@pytest.fixture(scope="session")
def kubernetes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KubernetesServer]:
    """A real control plane, started where a test first needs it."""
    if missing := kubernetes_missing() or pods_missing():
        pytest.skip(missing)
    with kubernetes_of(tmp_path_factory.mktemp("kubernetes"), NODES) as server:
        yield server


@pytest.fixture(scope="session")
def kueue(kubernetes: KubernetesServer) -> KubernetesServer:
    """The same control plane, with a queue of its own from then on."""
    if missing := kueue_missing():
        pytest.skip(missing)
    start_kueue(kubernetes)
    return kubernetes


@pytest.fixture(
    params=[
        "local",
        "fake",
        "behind",
        *(pytest.param(name, marks=pytest.mark.slow) for name in ("slurm", "kubernetes", "kueue")),
    ]
)
def harness(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Harness]:
    """Each engine in turn; whatever it started is gone afterwards."""
    made: Harness
    if request.param == "slurm":
        made = SlurmHarness(tmp_path, request.getfixturevalue("slurm"))
    elif request.param == "kubernetes":
        names = [f"alpha-{index + 1}" for index in range(NODES)]
        made = KubernetesHarness(tmp_path, request.getfixturevalue("kubernetes"), names)
    elif request.param == "kueue":
        names = [f"alpha-{index + 1}" for index in range(NODES)]
        made = KubernetesHarness(tmp_path, request.getfixturevalue("kueue"), names, queues={"lab": 8 * NODES})
    elif request.param == "behind":
        made = BehindHarness(tmp_path)
    else:
        made = LocalHarness(tmp_path) if request.param == "local" else FakeHarness()
    yield made
    engine = made.engine()
    for allocation in engine.observe():
        engine.stop(allocation.allocation, grace_s=0.0)
    made.until(lambda: all(allocation.phase is AllocationPhase.ENDED for allocation in engine.observe()))
    for behind in getattr(made, "made", ()):
        behind.close()
    if isinstance(made, KubernetesHarness):
        made.close()


def order(harness: Harness, name: str = "allocation-1", places: tuple[int, ...] = (0, 2)) -> LaunchOrder:
    return LaunchOrder(
        allocation=AllocationId(name),
        attempt=AttemptId("attempt-1"),
        role=RoleName("main"),
        nodes=tuple(NodeName(harness.nodes[place]) for place in places),
        chip_milli=(4_000,) * len(places),
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
    assert tuple(node.name for node in inventory.nodes) == harness.nodes
    assert {(node.chip, node.chips, node.condition) for node in inventory.nodes} == {("h100", 8, NodeCondition.READY)}
    assert inventory.simulated
    assert inventory.dollars_per_chip_hour == {"h100": 2.0}


def test_launch_repeated_starts_each_agent_once(harness: Harness) -> None:
    engine = harness.engine()
    engine.launch(order(harness))
    engine.launch(order(harness))
    harness.engine().launch(order(harness))
    harness.until(lambda: harness.starts() >= 2)
    found = seen(engine)
    assert found is not None
    assert (found.phase, found.exit_code) == (AllocationPhase.RUNNING, None)
    assert found.nodes == (harness.nodes[0], harness.nodes[2])
    stopped(harness, engine)
    assert harness.starts() == 2


def test_launch_after_it_ended_starts_nothing(harness: Harness) -> None:
    engine = harness.engine()
    engine.launch(order(harness))
    harness.speak(AllocationId("allocation-1"), 2)
    assert stopped(harness, engine).exit_code == 0
    engine.launch(order(harness))
    assert phase(engine) is AllocationPhase.ENDED
    assert harness.starts() == 2


def test_launch_after_stop_of_an_unknown_id_starts_nothing(harness: Harness) -> None:
    engine = harness.engine()
    engine.stop(AllocationId("allocation-1"), grace_s=1.0)
    engine.launch(order(harness))
    harness.engine().launch(order(harness))
    assert seen(engine) is None
    assert harness.starts() == 0


def test_launch_on_an_unknown_node_starts_nothing(harness: Harness) -> None:
    engine = harness.engine()
    unknown = replace(order(harness), nodes=(NodeName(harness.nodes[0]), NodeName("beta-0")))
    with pytest.raises(NotFound):
        engine.launch(unknown)
    assert engine.observe() == ()
    assert harness.starts() == 0


def test_stop_repeated_is_the_same_as_once(harness: Harness) -> None:
    engine = harness.engine()
    engine.launch(order(harness))
    harness.speak(AllocationId("allocation-1"), 2)
    engine.stop(AllocationId("allocation-1"), grace_s=60.0)
    engine.stop(AllocationId("allocation-1"), grace_s=60.0)
    assert phase(engine) in (AllocationPhase.STOPPING, AllocationPhase.ENDED)
    first = stopped(harness, engine)
    assert stopped(harness, engine) == first


def test_observe_after_a_restart_of_the_controller_sees_everything(harness: Harness) -> None:
    engine = harness.engine()
    engine.launch(order(harness, "allocation-2"))
    engine.launch(order(harness, "allocation-1", places=(1,)))
    again = harness.engine()
    harness.until(lambda: {each.phase for each in again.observe()} == {AllocationPhase.RUNNING})
    assert [(each.allocation, each.nodes) for each in again.observe()] == [
        ("allocation-1", (harness.nodes[1],)),
        ("allocation-2", (harness.nodes[0], harness.nodes[2])),
    ]
    stopped(harness, again, "allocation-2")
    assert phase(again, "allocation-1") is AllocationPhase.RUNNING


def test_ended_allocations_stay_visible_for_an_hour(harness: Harness) -> None:
    engine = harness.engine()
    engine.launch(order(harness))
    stopped(harness, engine)
    harness.clock.advance(3_500.0)
    assert phase(harness.engine()) is AllocationPhase.ENDED
    harness.clock.advance(3_700.0)
    assert seen(harness.engine()) is None
    engine.launch(order(harness))
    assert seen(engine) is None, "pruned, but never forgotten by launch"


def test_observe_tells_when_one_agent_is_lost_and_when_one_ended_well(harness: Harness) -> None:
    engine = harness.engine()
    engine.launch(order(harness, "allocation-1"))
    engine.launch(order(harness, "allocation-2"))
    for name in ("allocation-1", "allocation-2"):
        harness.speak(AllocationId(name), 2)
    harness.end_agent(AllocationId("allocation-1"), 1, well=False)
    harness.end_agent(AllocationId("allocation-2"), 1, well=True)
    wanted = {
        "allocation-1": (AllocationPhase.RUNNING, True, (harness.nodes[2],)),
        "allocation-2": (AllocationPhase.RUNNING, False, ()),
    }
    for each in (engine, harness.engine()):

        def found(each: Engine = each) -> object:
            return {seen.allocation: (seen.phase, seen.agent_lost, seen.lost_nodes) for seen in each.observe()}

        harness.until(lambda: found() == wanted)


def test_attestation_is_kept_until_the_allocation_is_over(harness: Harness) -> None:
    engine, name = harness.engine(), AllocationId("allocation-1")
    engine.launch(replace(order(harness), attestation="whose I am"))
    engine.launch(order(harness, "allocation-2", places=(1,)))
    assert harness.engine().attestation(name) == "whose I am"
    with pytest.raises(NotFound):
        engine.attestation(AllocationId("allocation-2"))
    engine.stop(name, grace_s=10.0)
    harness.until(lambda: (one := seen(engine)) is not None and one.phase is AllocationPhase.ENDED)
    with pytest.raises(NotFound):
        engine.attestation(name)


def test_logs_continue_from_any_offset(harness: Harness) -> None:
    engine = harness.engine()
    name = AllocationId("allocation-1")
    engine.launch(order(harness))
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
    engine.launch(order(harness))
    with pytest.raises(NotFound):
        engine.logs(AllocationId(name), rank=rank, since=0, limit=10)


def test_cordon_belongs_to_its_owner(harness: Harness) -> None:
    engine, node = harness.engine(), NodeName(harness.nodes[1])
    if engine.inventory().delegated:
        with pytest.raises(Conflict, match="slot"):
            engine.cordon(node, owner="ada", reason="noisy fan")
        return
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
    engine.launch(order(harness))
    harness.until(lambda: phase(engine) is AllocationPhase.RUNNING)
    if engine.inventory().delegated:
        return
    engine.cordon(NodeName(harness.nodes[0]), owner="ada", reason="noisy fan")
    assert phase(engine) is AllocationPhase.RUNNING
    engine.uncordon(NodeName(harness.nodes[0]), owner="ada")


def test_cordon_of_an_unknown_node_is_not_found(harness: Harness) -> None:
    engine = harness.engine()
    with pytest.raises(NotFound):
        engine.cordon(NodeName("beta-0"), owner="ada", reason="")
    with pytest.raises(NotFound):
        engine.uncordon(NodeName("beta-0"), owner="ada")
