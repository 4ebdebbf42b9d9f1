"""The Slurm engine on a real Slurm: what its contract test cannot ask of every engine."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from mainspring.domain.errors import Conflict, Unavailable
from mainspring.domain.fleet import AllocationPhase, NodeCondition
from mainspring.domain.ids import AllocationId, NodeName, TeamName
from mainspring.testing.slurm import SlurmNodes, SlurmPartition, SlurmServer, slurm_missing
from tests.engines.slurm.rig import Rig, order

pytestmark = pytest.mark.slow
A1 = AllocationId("allocation-1")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SlurmServer]:
    if missing := slurm_missing():
        pytest.skip(missing)
    nodes = [SlurmNodes(count=4), SlurmNodes(count=1, prefix="c", chip="", cpus=32, memory_mib=64_000)]
    partitions = [
        SlurmPartition(name="main", extra="PriorityTier=1 GraceTime=20"),
        SlurmPartition(name="urgent", extra="PriorityTier=10 PreemptMode=OFF"),
        SlurmPartition(name="closed", extra="DisableRootJobs=YES AllowGroups=nobody"),
    ]
    with SlurmServer(tmp_path_factory.mktemp("slurm"), nodes=nodes, partitions=partitions) as made:
        yield made


@pytest.fixture
def rig(server: SlurmServer, tmp_path: Path) -> Iterator[Rig]:
    made = Rig(tmp_path, server)
    yield made
    made.clear()


def test_agents_get_their_orders_their_chips_and_nothing_of_slurm(rig: Rig) -> None:
    rig.running(order("n3", "n1", job="tune 'the' \"arm\" ; \u00fc"))
    first, second = rig.found(0), rig.found(1)
    assert (first.order["node"], second.order["node"]) == ("n3", "n1")
    assert (first.environment["SLURMD_NODENAME"], second.environment["SLURMD_NODENAME"]) == ("n3", "n1")
    assert first.environment["CUDA_VISIBLE_DEVICES"].count(",") == 3
    left = {name for name in first.environment if name.startswith(("SLURM_", "SBATCH_", "SRUN_"))}
    assert left == {"SLURM_CONF", "SLURM_JOB_ID"}, "libraries would take ranks for tasks of Slurm"
    assert rig.slurm("squeue", "-h", "-o", "%k") == "tune 'the' \"arm\" ; ?"


def test_a_share_is_of_cores_and_memory_as_of_chips_unless_something_particular_is_asked(rig: Rig) -> None:
    rig.running(order("n1", "n2", chip_milli=2_000))
    rig.running(order("n1", name="allocation-2", chip_milli=4_000, cpu_milli=(3_000,), memory_mib=(1_000,)))
    rig.running(order("n3", name="allocation-3", chip_milli=8_000))
    rig.running(order("c1", name="allocation-4", chip_milli=8_000))

    def asked(name: str) -> list[str]:
        return rig.slurm("squeue", "-h", f"--name=mainspring.{name}", "-o", "%C %m %b").split()

    assert asked("allocation-1") == ["32", "125G", "gres:gpu:h100:2"]
    assert asked("allocation-2") == ["3", "1000M", "gres:gpu:h100:4"]
    assert asked("allocation-3") == ["64", "0", "gres:gpu:h100:8"]
    assert asked("allocation-4") == ["8", "16000M", "N/A"]
    foreign = {node.name: node.foreign_chip_milli for node in rig.engine.inventory().nodes}
    assert set(foreign.values()) == {0}, "what is ours is not in use by others"


def test_team_without_an_account_runs_under_that_of_the_nearest_team_above(server: SlurmServer, tmp_path: Path) -> None:
    rig = Rig(tmp_path, server, fields={"accounts": {"vision": "robots", "lab": "everybody"}})
    line = tuple(TeamName(name) for name in ("arms", "vision", "lab"))
    rig.running(replace(order("n1"), teams=line))
    rig.running(replace(order("n2", name="allocation-2"), teams=line[2:]))
    shown = [rig.slurm("squeue", "-h", f"--name=mainspring.allocation-{n}", "-o", "%a") for n in (1, 2)]
    rig.clear()
    assert shown == ["robots", "everybody"]


def test_nodes_that_differ_are_one_allocation_with_one_kind_of_share_each(rig: Rig) -> None:
    rig.running(order("c1", "n2", "n1"))
    places = [rig.found(index).environment["SLURMD_NODENAME"] for index in range(3)]
    assert places == ["c1", "n2", "n1"]
    assert "CUDA_VISIBLE_DEVICES" not in rig.found(0).environment
    assert rig.found(1).environment["CUDA_VISIBLE_DEVICES"].count(",") == 3
    rig.engine.stop(A1, grace_s=30.0)
    ended = rig.until_phase(AllocationPhase.ENDED)
    assert (ended.exit_code, ended.agent_lost, ended.taken) == (0, False, False)
    assert rig.starts() == 3


def test_a_stop_tells_the_grace_and_leaves_neither_token_nor_scratch(rig: Rig) -> None:
    rig.running(order("n1", "n2"))
    assert any(rig.scratch.glob("*/allocation-1-*/order.json"))
    rig.engine.stop(A1, grace_s=17.0)
    rig.until_phase(AllocationPhase.ENDED)
    assert (rig.shared / A1 / "node-1" / "asked").read_text().split() == ["17"]
    rig.until(lambda: not any(rig.scratch.glob("*/*")))
    held = [path for path in rig.shared.rglob("*") if path.is_file() and b"a-secret" in path.read_bytes()]
    assert [path.name for path in held] == ["found.json"] * 2, "written there by the agents of this test alone"


def test_agents_that_do_not_end_within_the_grace_are_ended(server: SlurmServer, tmp_path: Path) -> None:
    rig = Rig(tmp_path, server, environment={"DEAF": "yes"})
    rig.running(order("n1", "n2"))
    rig.engine.stop(A1, grace_s=60.0)
    assert rig.until_phase(AllocationPhase.STOPPING).exit_code is None
    rig.clock.advance(61.0)
    ended = rig.until_phase(AllocationPhase.ENDED)
    assert (ended.exit_code, ended.taken) == (-signal.SIGKILL, False)
    rig.until(lambda: not any(rig.scratch.glob("*/*")))
    rig.clear()


def test_a_later_stop_with_less_grace_counts(server: SlurmServer, tmp_path: Path) -> None:
    rig = Rig(tmp_path, server, environment={"DEAF": "yes"})
    rig.running(order("n1"))
    rig.engine.stop(A1, grace_s=3_600.0)
    rig.engine.stop(A1, grace_s=0.0)
    rig.until_phase(AllocationPhase.ENDED)
    rig.clear()


def test_a_stop_before_it_begins_ends_it_at_once(rig: Rig) -> None:
    rig.slurm("sbatch", "--parsable", "--output=/dev/null", "--exclusive", "--nodelist=n1", "--wrap=sleep 60")
    rig.engine.launch(order("n1"))
    waiting = rig.until_phase(AllocationPhase.PENDING)
    assert waiting.reason.startswith("Slurm: ")
    rig.engine.stop(A1, grace_s=60.0)
    ended = rig.seen()
    assert ended is not None
    assert (ended.phase, ended.agent_lost, ended.taken) == (AllocationPhase.ENDED, False, False)
    rig.until(lambda: not rig.jobs())
    assert rig.starts() == 0


def test_an_allocation_submitted_several_times_begins_once(rig: Rig) -> None:
    engines = [rig.another() for _ in range(3)]
    threads = [threading.Thread(target=engine.launch, args=(order("n1", "n2"),)) for engine in engines]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    (rig.shared / A1 / "job.json").unlink()  # As after a crash between sbatch and the note of its answer.
    rig.another().launch(order("n1", "n2"))
    rig.until(lambda: rig.starts() >= 2)
    rig.until_phase(AllocationPhase.RUNNING)
    rig.until(lambda: len(rig.jobs()) == 1 or not rig.engine.observe())
    rig.engine.stop(A1, grace_s=30.0)
    assert rig.until_phase(AllocationPhase.ENDED).exit_code == 0
    rig.until(lambda: not rig.jobs())
    assert rig.starts() == 2


def test_a_launch_cut_short_before_sbatch_is_not_shown_and_can_be_repeated(rig: Rig) -> None:
    (rig.shared / A1).mkdir(parents=True)
    (rig.shared / A1 / "claim.json").write_text('{"nodes": ["n1"]}')
    assert rig.seen() is None
    rig.running(order("n1"))
    assert rig.starts() == 1


def test_a_job_nobody_wrote_down_is_found_again(rig: Rig) -> None:
    rig.slurm("sbatch", "--parsable", "--output=/dev/null", "--exclusive", "--nodelist=n1", "--wrap=sleep 60")
    rig.engine.launch(order("n1"))
    (rig.shared / A1 / "job.json").unlink()
    found = rig.another()
    waiting = rig.seen(engine=found)
    assert waiting is not None
    assert waiting.phase is AllocationPhase.PENDING
    found.launch(order("n1"))
    assert len(rig.jobs()) == 1
    assert (rig.shared / A1 / "job.json").exists()


def test_a_job_that_others_cancel_is_taken_and_its_agents_are_told(rig: Rig) -> None:
    rig.running(order("n1", "n2"))
    rig.slurm("scancel", *rig.jobs())
    ended = rig.until_phase(AllocationPhase.ENDED)
    assert (ended.taken, ended.lost_nodes) == (True, ())
    assert "Slurm" in ended.reason
    assert float((rig.shared / A1 / "node-0" / "asked").read_text().split()[0]) > 0


def test_a_job_that_is_preempted_is_told_its_grace_and_is_taken(rig: Rig) -> None:
    rig.running(order("n1", "n2"))
    rig.slurm(
        "sbatch",
        "--parsable",
        "--output=/dev/null",
        "--partition=urgent",
        "--exclusive",
        "--nodelist=n1",
        "--wrap=sleep 1",
    )
    ended = rig.until_phase(AllocationPhase.ENDED)
    assert (ended.taken, ended.exit_code) == (True, 0)
    grace_s = float((rig.shared / A1 / "node-1" / "asked").read_text().split()[0])
    assert 0 < grace_s <= 20.0


def test_a_job_cancelled_while_it_waits_is_taken(rig: Rig) -> None:
    rig.slurm("sbatch", "--parsable", "--output=/dev/null", "--exclusive", "--nodelist=n1", "--wrap=sleep 60")
    rig.engine.launch(order("n1"))
    rig.slurm("scancel", *rig.jobs())
    ended = rig.until_phase(AllocationPhase.ENDED)
    assert (ended.taken, ended.agent_lost) == (True, False)
    assert "CANCELLED" in ended.reason


def test_a_job_that_an_operator_puts_back_does_not_begin_again(rig: Rig) -> None:
    rig.running(order("n1", "n2"))
    number = rig.jobs()[0]
    rig.slurm("scontrol", "update", f"job={number}", "requeue=1")
    rig.slurm("scontrol", "requeue", number)
    ended = rig.until_phase(AllocationPhase.ENDED)
    assert ended.taken
    rig.until(lambda: not rig.jobs())
    assert rig.starts() == 2


def test_a_job_that_an_operator_holds_is_withdrawn_in_the_end(rig: Rig) -> None:
    rig.slurm("sbatch", "--parsable", "--output=/dev/null", "--exclusive", "--nodelist=n1", "--wrap=sleep 60")
    rig.engine.launch(order("n1"))
    rig.slurm("scontrol", "hold", *rig.jobs())
    rig.until(lambda: "holds it" in (rig.until_phase(AllocationPhase.PENDING).reason))
    rig.clock.advance(rig.cluster.queue_wait_s_max)
    ended = rig.until_phase(AllocationPhase.ENDED)
    assert ended.taken
    assert "JobHeld" in ended.reason
    rig.until(lambda: not rig.jobs())


def test_a_node_drained_after_the_plan_gives_the_allocation_back_soon(rig: Rig) -> None:
    rig.slurm("sbatch", "--parsable", "--output=/dev/null", "--exclusive", "--nodelist=n1", "--wrap=sleep 60")
    rig.engine.launch(order("n1"))
    rig.slurm("scontrol", "update", "node=n1", "state=drain", "reason=fan")
    try:
        rig.until(lambda: "ReqNodeNotAvail" in rig.until_phase(AllocationPhase.PENDING).reason)
        rig.clock.advance(60.0)
        assert rig.until_phase(AllocationPhase.ENDED).taken
    finally:
        rig.slurm("scontrol", "update", "node=n1", "state=resume")


def test_a_job_refused_by_slurm_is_taken_and_its_partition_is_left_alone_for_a_while(
    server: SlurmServer, tmp_path: Path
) -> None:
    rig = Rig(tmp_path, server, {"partitions": ("closed",)})
    assert rig.engine.inventory().nodes[0].condition is NodeCondition.READY
    rig.engine.launch(order("n1"))
    ended = rig.until_phase(AllocationPhase.ENDED)
    assert ended.taken
    assert "refused" in ended.reason
    shown = rig.engine.inventory().nodes[0]
    assert (shown.condition, shown.condition_owner) == (NodeCondition.CORDONED, "slurm")
    rig.clock.advance(61.0)
    assert rig.engine.inventory().nodes[0].condition is NodeCondition.READY


def test_a_job_that_slurm_forgot_is_taken_and_can_never_begin(rig: Rig) -> None:
    rig.slurm("sbatch", "--parsable", "--output=/dev/null", "--exclusive", "--nodelist=n1", "--wrap=sleep 60")
    rig.engine.launch(order("n1"))
    (rig.shared / A1 / "job.json").write_text('{"number": 999999, "at_s": 0.0}')
    number = rig.jobs()[0]
    rig.slurm("scontrol", "update", f"job={number}", "jobname=another")
    rig.until_phase(AllocationPhase.PENDING)
    rig.clock.advance(31.0)
    ended = rig.until_phase(AllocationPhase.ENDED)
    assert ended.taken
    assert "shows nothing" in ended.reason
    rig.slurm("scancel", "--name=wrap")
    rig.until(lambda: rig.slurm("squeue", "-h", f"--jobs={number}", "--states=all", "-o", "%T") == "COMPLETED")
    assert rig.starts() == 0


def test_an_agent_killed_with_its_task_is_known_to_be_lost_once_its_job_is_over(rig: Rig) -> None:
    rig.running(order("n1", "n2"))
    agent = rig.found(1).pid
    task = int(Path(f"/proc/{agent}/stat").read_text().rpartition(")")[2].split()[1])
    os.kill(task, signal.SIGKILL)
    os.kill(agent, signal.SIGKILL)
    assert rig.until_phase(AllocationPhase.RUNNING).lost_nodes == (), "who left no word may live"
    rig.engine.stop(A1, grace_s=30.0)
    ended = rig.until_phase(AllocationPhase.ENDED)
    assert (ended.agent_lost, ended.lost_nodes, ended.taken) == (True, ("n2",), False)
    assert any(rig.scratch.glob("*/allocation-1-1"))
    rig.running(order("n2", name="allocation-2"))
    rig.until(lambda: not any(rig.scratch.glob("*/allocation-1-1")))


def test_a_delegated_cluster_chooses_machines_and_tells_which(server: SlurmServer, tmp_path: Path) -> None:
    rig = Rig(tmp_path, server, {"delegated": True})
    slots = [node for node in rig.engine.inventory().nodes if node.chip == "h100"]
    assert rig.engine.inventory().delegated
    assert len(slots) >= 4
    rig.running(order(slots[3].name, slots[0].name))
    seen = rig.until_phase(AllocationPhase.RUNNING)
    assert seen.nodes == (slots[3].name, slots[0].name)
    hosts = tuple(rig.found(index).environment["SLURMD_NODENAME"] for index in range(2))
    assert seen.hosts == hosts
    with pytest.raises(Conflict):
        rig.engine.cordon(NodeName(slots[0].name), owner="ada", reason="")
    rig.clear()


def test_slurm_that_does_not_answer_is_unavailable_and_nothing_is_concluded(rig: Rig, tmp_path: Path) -> None:
    rig.running(order("n1"))
    broken = tmp_path / "broken"
    broken.mkdir()
    for text in ("exit 0", "echo 'x'", "printf '12|RUNN'", "echo '12|RUNNING'", "echo 'Socket timed out' >&2; exit 1"):
        (broken / "squeue").write_text(f"#!/bin/sh\n{text}\n")
        (broken / "squeue").chmod(0o755)
        engine = rig.another(before_path=broken)
        if text == "exit 0":
            seen = rig.seen(engine=engine)
            assert seen is not None
            assert seen.phase is AllocationPhase.RUNNING, "shown by nobody is not over"
        else:
            with pytest.raises(Unavailable):
                engine.observe()
    assert rig.starts() == 1
