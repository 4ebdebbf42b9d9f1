"""The Slurm engine on a real Slurm of which a part is gone."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from mainspring.domain.errors import Unavailable
from mainspring.domain.fleet import AllocationPhase
from mainspring.domain.ids import AllocationId
from mainspring.testing.slurm import SlurmNodes, SlurmServer, slurm_missing
from tests.engines.slurm.rig import Rig, order

A1 = AllocationId("allocation-1")


@pytest.fixture
def server(tmp_path: Path) -> Iterator[SlurmServer]:
    if missing := slurm_missing():
        pytest.skip(missing)
    with SlurmServer(tmp_path / "slurm", nodes=[SlurmNodes(count=3)]) as made:
        yield made


@pytest.fixture
def rig(server: SlurmServer, tmp_path: Path) -> Rig:
    return Rig(tmp_path, server, {"command_s_max": 4.0})


def _lose(rig: Rig, node: str) -> None:
    """Kills a node's slurmd, and has its operator say so, which Slurm by itself notices in half a minute."""
    rig.server.kill_node(node)
    rig.slurm("scontrol", "update", f"node={node}", "state=down", "reason=fan")


@pytest.mark.slow
def test_an_orphan_of_a_dead_slurmd_keeps_its_allocation_until_it_ends_by_the_word(rig: Rig) -> None:
    rig.running(order("n1", "n2"))
    _lose(rig, "n2")
    seen = rig.until_phase(AllocationPhase.RUNNING)
    assert (seen.agent_lost, seen.lost_nodes) == (False, ()), "its processes live"
    rig.engine.stop(A1, grace_s=60.0)
    ended = rig.until_phase(AllocationPhase.ENDED)
    assert (ended.exit_code, ended.agent_lost) == (0, False)


@pytest.mark.slow
def test_a_job_that_ended_over_an_orphan_has_it_killed(rig: Rig) -> None:
    rig.running(order("n1", "n2"))
    _lose(rig, "n2")
    rig.slurm("scancel", *rig.jobs())
    stopping = rig.until_phase(AllocationPhase.STOPPING)
    assert stopping.taken or stopping.reason
    ended = rig.until_phase(AllocationPhase.ENDED)
    assert ended.taken
    assert not Path(f"/proc/{rig.found(1).pid}").exists()


@pytest.mark.slow
def test_an_orphan_that_answers_nobody_is_fenced_by_time(rig: Rig) -> None:
    rig.running(order("n1", "n2"))
    agent = rig.found(1).pid
    task = int(Path(f"/proc/{agent}/stat").read_text().rpartition(")")[2].split()[1])
    for pid in (task, agent):
        os.kill(pid, signal.SIGSTOP)
    _lose(rig, "n2")
    rig.slurm("scancel", *rig.jobs())
    rig.until(lambda: not rig.jobs())
    begun_s = rig.clock.monotonic_s()
    ended = rig.until_phase(AllocationPhase.ENDED, step_s=0.5)
    assert rig.clock.monotonic_s() - begun_s >= 24.0, "its lease may not be over before"
    assert ended.taken


@pytest.mark.slow
def test_a_controller_killed_right_after_sbatch_starts_each_agent_once(rig: Rig) -> None:
    rig.engine.launch(order("n1", "n2"))
    rig.server.kill_controller()
    for engine in (rig.engine, rig.another()):
        with pytest.raises(Unavailable):
            engine.observe()
        engine.launch(order("n1", "n2"))
    rig.server.start_controller()

    def settled() -> bool:
        seen = rig.seen()
        return rig.starts() >= 2 or (seen is not None and seen.phase is AllocationPhase.ENDED)

    rig.until(settled, step_s=0.1)
    rig.engine.stop(A1, grace_s=30.0)
    ended = rig.until_phase(AllocationPhase.ENDED)
    assert (rig.starts(), ended.exit_code, ended.taken) in ((2, 0, False), (0, None, True))


@pytest.mark.slow
def test_a_running_allocation_outlives_its_controller_and_ends_without_it(rig: Rig) -> None:
    rig.running(order("n1", "n2"))
    rig.server.save()
    rig.server.kill_controller()
    with pytest.raises(Unavailable):
        rig.engine.observe()
    rig.engine.stop(A1, grace_s=60.0)
    rig.until((rig.shared / A1 / "over" / "1.0").exists)
    rig.server.start_controller()
    ended = rig.until_phase(AllocationPhase.ENDED)
    assert (ended.exit_code, rig.starts()) == (0, 2)


@pytest.mark.soak
def test_munge_that_is_down_is_unavailable_and_refuses_nothing(rig: Rig) -> None:
    rig.engine.inventory()
    rig.server.kill_munge()
    for ask in (rig.engine.observe, rig.engine.inventory, lambda: rig.engine.launch(order("n1"))):
        with pytest.raises(Unavailable):
            ask()
    rig.server.start_munge()
    rig.running(order("n1"))
    assert rig.starts() == 1


@pytest.mark.soak  # srun gives up on a dead slurmd after most of a minute.
def test_a_launch_on_a_node_that_just_died_ends_and_blames_no_other(rig: Rig) -> None:
    rig.engine.inventory()
    rig.server.kill_node("n2")
    rig.engine.launch(order("n1", "n2"))
    ended = rig.until_phase(AllocationPhase.ENDED, step_s=0.05)
    assert ended.agent_lost or ended.taken
    assert ended.lost_nodes == ("n2",)


@pytest.mark.slow
def test_a_task_that_hears_nothing_is_ended_by_slurm(rig: Rig) -> None:
    rig.running(order("n1", "n2"))
    agent = rig.found(1).pid
    task = int(Path(f"/proc/{agent}/stat").read_text().rpartition(")")[2].split()[1])
    os.kill(task, signal.SIGSTOP)
    rig.engine.stop(A1, grace_s=1.0)
    ended = rig.until_phase(AllocationPhase.ENDED, step_s=0.5)
    assert (ended.taken, ended.lost_nodes) == (False, ("n2",))
    assert not Path(f"/proc/{agent}").exists()


@pytest.mark.soak  # Slurm counts time limits in minutes, and looks at them twice a minute.
def test_a_job_near_its_time_limit_is_told_and_is_taken(server: SlurmServer, tmp_path: Path) -> None:
    rig = Rig(tmp_path, server, {"time_limit_s": 120.0})
    rig.running(order("n1", "n2"))
    asked = rig.shared / A1 / "node-1" / "asked"
    rig.until(asked.exists)
    assert asked.read_text().split() == ["30"], "a quarter of the limit"
    ended = rig.until_phase(AllocationPhase.ENDED)
    assert (ended.taken, ended.exit_code) == (True, 0)
    assert "notice" in ended.reason
