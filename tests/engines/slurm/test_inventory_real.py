"""The inventory of a real Slurm, through its own commands."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mainspring.domain.errors import Unavailable
from mainspring.domain.fleet import Node, NodeCondition
from mainspring.domain.ids import ClusterName, NodeName
from mainspring.engines.common.hostlist import compress_hosts
from mainspring.engines.slurm.cluster.commands import Commands
from mainspring.engines.slurm.cluster.config import SlurmCluster
from mainspring.engines.slurm.cluster.inventory import Ours, Stock
from mainspring.engines.slurm.cluster.text import expand_hosts
from mainspring.testing import FakeClock
from mainspring.testing.slurm import SlurmNodes, SlurmPartition, SlurmServer, slurm_missing

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(bool(slurm_missing(accounting=True)), reason=slurm_missing(accounting=True)),
]

TOPOLOGY = """
SwitchName=leaf0 Nodes=r1n[1-2]
SwitchName=leaf1 Nodes=r2n[1-2],Cpu1
SwitchName=spine Switches=leaf[0-1]
"""
READY, CORDONED, DOWN = NodeCondition.READY, NodeCondition.CORDONED, NodeCondition.DOWN
LOOKS_MAX = 400
_NAMES = st.from_regex(r"(r[0-3])?[a-c]{1,2}-?0?[0-9]{0,2}", fullmatch=True)


class Now(FakeClock):
    """The time it is, since Slurm's own daemons keep to it."""

    def now_s(self) -> float:
        return time.time()


class Place:
    """One real Slurm and what is known of it here."""

    def __init__(self, server: SlurmServer) -> None:
        self.server = server
        self.cluster = SlurmCluster(name=ClusterName("ada"), partitions=("main",), shared="/shared", queued_nodes_max=0)
        self.environment = {**os.environ, **server.environment}

    def stock(self, **fields: object) -> Stock:
        cluster = replace(self.cluster, **fields)  # type: ignore[arg-type]
        return Stock(cluster, Commands(cluster, self.environment), Now())

    def nodes(self, **fields: object) -> dict[str, Node]:
        return {node.name: node for node in self.stock(**fields).look(Ours()).nodes}

    def must(self, *words: str) -> str:
        done = self.server.run(*words)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    def until(self, condition: Callable[[], bool]) -> None:
        pause = threading.Event()
        for _ in range(LOOKS_MAX):
            if condition():
                return
            pause.wait(0.05)
        raise AssertionError(self.must("scontrol", "-o", "show", "node"))


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    nodes = (
        SlurmNodes(count=2, prefix="r1n"),
        SlurmNodes(count=2, prefix="r2n"),
        SlurmNodes(count=1, prefix="Cpu", chip="", chips=0, cpus=16, memory_mib=64_000),
    )
    partitions = (
        SlurmPartition(name="main", extra="GraceTime=7 MaxTime=1-00:00:00"),
        SlurmPartition(name="Small", nodes="r1n[1-2]", extra="MaxNodes=1"),
        SlurmPartition(name="hidden", nodes="r1n1", extra="Hidden=YES"),
    )
    coming = "NodeName=r9n[1-2] State=FUTURE CPUs=4"
    folder = tmp_path_factory.mktemp("slurm")
    with SlurmServer(
        folder, nodes=nodes, partitions=partitions, topology=TOPOLOGY, extra_conf=(coming,), accounting=True
    ) as server:
        yield Place(server)


@pytest.fixture
def place(running: Place) -> Iterator[Place]:
    """Yields it as it began, whatever the last test did to it."""
    yield running
    running.server.run("scancel", "--user", running.must("id", "-un"))
    running.server.run("scontrol", "update", "node=r1n[1-2],r2n[1-2],Cpu1", "state=resume")
    running.server.run("scontrol", "update", "partition=main", "state=up")
    running.server.run("scontrol", "delete", "reservation=mending")
    running.server.wait_idle()


def test_nodes_of_a_real_slurm_are_read_whole(place: Place) -> None:
    nodes = place.nodes()
    assert sorted(nodes) == ["cpu1", "r1n1", "r1n2", "r2n1", "r2n2"]
    assert (nodes["r1n1"].chip, nodes["r1n1"].chips, nodes["r1n1"].cpus) == ("h100", 8, 64.0)
    assert nodes["r1n1"].memory_gib == 500.0
    assert nodes["r1n1"].domains == (("block", "spine"), ("rack", "leaf0"))
    assert (nodes["cpu1"].chip, nodes["cpu1"].chips) == ("cpu", 16)
    assert all(node.condition is READY and not node.foreign_chip_milli for node in nodes.values())
    assert place.stock().machine(NodeName("cpu1")).name == "Cpu1"


def test_jobs_of_others_on_a_real_slurm_are_seen_to_the_chip(place: Place) -> None:
    shape = ("-w", "r1n2", "--gres=gpu:h100:3", "-c", "6", "--mem=2G", "-o", "/dev/null")
    job = place.must("sbatch", "--parsable", "--output=/dev/null", *shape, "--wrap", "sleep 60")
    place.until(lambda: place.must("squeue", "-h", "-j", job, "-o", "%T") == "RUNNING")
    node = place.nodes()["r1n2"]
    assert (node.foreign_chip_milli, node.foreign_cpus, node.foreign_memory_gib) == (3_000, 6.0, 2.0)


def test_drain_of_a_real_slurm_is_a_cordon_that_leaves_now(place: Place) -> None:
    before_s = time.time()
    place.must("scontrol", "update", "node=r1n1", "state=drain", "reason=new fan, State=IDLE [a@b]")
    node = place.nodes()["r1n1"]
    assert (node.condition, node.condition_owner) == (CORDONED, "slurm")
    assert node.condition_reason.startswith("new fan, State=IDLE [a@b] (")
    assert node.leaves_s is not None
    assert abs(node.leaves_s - before_s) < 10.0


def test_node_that_is_down_on_a_real_slurm_is_down(place: Place) -> None:
    place.server.kill_node("r2n1")  # It would come back by itself.
    try:
        place.must("scontrol", "update", "node=r2n1", "state=down", "reason=fire")
        node = place.nodes()["r2n1"]
    finally:
        place.server.start_node("r2n1")
    assert (node.condition, node.condition_owner) == (DOWN, "")
    assert "fire" in node.condition_reason


def test_reservations_of_a_real_slurm_close_a_node_when_they_come(place: Place) -> None:
    words = ("scontrol", "create", "reservation=mending", "duration=60", "nodes=r2n2", "users=root", "flags=maint")
    before_s = time.time()
    place.must(*words, "starttime=now+1hour")
    node = place.nodes()["r2n2"]
    assert node.condition is READY
    assert node.leaves_s is not None
    assert abs(node.leaves_s - before_s - 3_600.0) < 30.0
    place.must("scontrol", "delete", "reservation=mending")
    place.must(*words, "starttime=now")
    node = place.nodes()["r2n2"]
    assert (node.condition, node.condition_reason) == (CORDONED, "reserved in Slurm: mending")


def test_partition_that_an_operator_closes_on_a_real_slurm_closes_its_nodes(place: Place) -> None:
    place.must("scontrol", "update", "partition=main", "state=drain")
    assert {node.condition_reason for node in place.nodes().values()} == {"Slurm's partition main is DRAIN"}


def test_hidden_partition_of_a_real_slurm_is_read(place: Place) -> None:
    assert sorted(place.nodes(partitions=("hidden",))) == ["r1n1"]


def test_slots_of_a_real_slurm_are_what_its_limits_leave(place: Place) -> None:
    fields = {"delegated": True, "partitions": ("Small",)}
    names = ["small-h100x8-0001", "small-h100x8-0002"]
    assert [node.foreign_chip_milli for node in place.nodes(**fields).values()] == [0, 8_000], "one node a job"
    stock = place.stock(**fields)
    assert [node.name for node in stock.look(Ours()).nodes] == names
    user = place.must("id", "-un")
    place.must("sacctmgr", "-i", "modify", "user", user, "set", "GrpTRES=gres/gpu=5")

    def offered() -> list[int]:
        return [node.foreign_chip_milli for node in place.nodes(**fields).values()]

    place.until(lambda: offered() == [3_000, 8_000])
    place.must("sacctmgr", "-i", "modify", "user", user, "set", "GrpTRES=gres/gpu=-1")
    place.until(lambda: offered() == [0, 8_000])


def test_grace_and_time_limit_of_a_real_slurm_are_its_partitions(place: Place) -> None:
    stock = place.stock(partitions=("main", "Small"))
    assert (stock.grace_s("main", ""), stock.time_max_s("main", "")) == (7.0, 86_400.0)
    assert (stock.grace_s("Small", ""), stock.time_max_s("Small", "")) == (5.0, None)


def test_controller_that_is_dead_is_unavailable(place: Place) -> None:
    stock = place.stock(command_s_max=3.0)
    place.server.save()
    place.server.kill_controller()
    try:
        with pytest.raises(Unavailable):
            stock.look(Ours())
    finally:
        place.server.start_controller()
    assert len(stock.look(Ours()).nodes) == 5


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(names=st.lists(_NAMES, min_size=1, max_size=40))
def test_host_lists_mean_to_slurm_what_they_mean_here(place_of_lists: Place, names: list[str]) -> None:
    assert set(place_of_lists.must("scontrol", "show", "hostnames", compress_hosts(names)).split()) == set(names)
    theirs = place_of_lists.must("scontrol", "show", "hostlist", ",".join(names))
    assert expand_hosts(theirs) == place_of_lists.must("scontrol", "show", "hostnames", theirs).split()


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    text=st.from_regex(r"[a-c](\[0[1-3]-0?[4-9]\]|\[[1-3],[5-7]-[8-9]\])n\[0?[1-2]-[3-9]\](,x[1-9])?", fullmatch=True)
)
def test_nested_brackets_mean_to_slurm_what_they_mean_here(place_of_lists: Place, text: str) -> None:
    assert expand_hosts(text) == place_of_lists.must("scontrol", "show", "hostnames", text).split()


@pytest.fixture
def place_of_lists(running: Place) -> Place:
    """Returns it for commands that ask the controller nothing."""
    return running
