"""A whole lab on a real Slurm: whatever dies, drains or is preempted, jobs end well and nothing is lost or doubled."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path

import pytest

from mainspring.app.sdk.lab import job
from mainspring.domain.answers import NewSecret
from mainspring.domain.life import AttemptState, JobState
from mainspring.domain.wire.events.attempts import AttemptStoppingEvent
from mainspring.domain.wire.events.leads import AgentLeavingEvent, LeadEndedEvent
from mainspring.testing.slurm import slurm_missing
from tests.app.conftest import kill, kinds
from tests.faults.slurm_lab import BESIDE, DELEGATED, GRACE_S, PINNED, RANKS, SlurmLab, slurm_lab
from tests.faults.slurm_rig import STRANGER, state, submit, until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]
CHIPS = {PINNED: 3, DELEGATED: RANKS, BESIDE: RANKS}


@pytest.fixture
def slurm(lab: SlurmLab) -> SlurmLab:
    """Gives the lab once the controller knows that all of it is free, whatever the test before has done to it."""
    for view in lab.lab.ps():
        lab.lab.stop(view.id)
    free = "the controller to know that all is free"
    until(lambda: all(lab.free(cluster) >= chips for cluster, chips in CHIPS.items()), free, wait_s=150)
    return lab


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SlurmLab]:
    if missing := slurm_missing():
        pytest.skip(missing)
    with slurm_lab(tmp_path_factory.mktemp("lab")) as made:
        yield made


def test_job_with_a_killed_rank_goes_on_in_the_same_allocation(slurm: SlurmLab) -> None:
    slurm.lab.run(slurm.counting("rank", ["h100"], 30))
    kill(slurm.halted("rank", 30).attempts[-1].ranks[1].pid)
    slurm.open("rank", 30)
    view = slurm.check("rank")
    assert [(attempt.cluster, attempt.generation) for attempt in view.attempts] == [(PINNED, 2)]


def test_secrets_reach_ranks_and_stand_in_no_file_of_ours_or_slurms(slurm: SlurmLab) -> None:
    value = "hf_" + sha256(b"a value that no file may hold").hexdigest()
    slurm.lab.set_secret("lab", "HF_TOKEN", NewSecret(value=value))
    program = "import os; v = os.environ['HF_TOKEN']; print(v); assert v == open(os.environ['HF_TOKEN_FILE']).read()"
    program += "; os.environ['SLURM_JOB_ID']; print(len(v), 'letters')"
    command = [sys.executable, "-c", program]
    spec = job("secret", command, on=["h100"], secrets=["HF_TOKEN"], secret_files=["HF_TOKEN"])
    view = slurm.lab.wait(slurm.lab.run(spec).id, timeout_s=90)
    assert (view.state, view.attempts[-1].cluster) == (JobState.SUCCEEDED, PINNED), view.reason
    assert b"[secret HF_TOKEN]\n67 letters\n" in b"".join(slurm.lab.logs("secret"))
    files = [path for path in slurm.folder.rglob("*") if path.is_file()]
    assert len(files) > 10
    assert not [path for path in files if value.encode() in path.read_bytes()]


def test_job_outlives_a_killed_slurmd(slurm: SlurmLab) -> None:
    slurm.lab.run(slurm.counting("slurmd", ["h100"], 30))
    nodes = slurm.halted("slurmd", 30).attempts[-1].nodes
    slurm.server.kill_node(nodes[1])
    slurm.open("slurmd", 30)
    try:
        view = slurm.check("slurmd")
        assert [attempt.generation for attempt in view.attempts] == [1]
    finally:
        slurm.server.start_node(nodes[1])
    until(slurm.idle, "Slurm to end what is left of it")


@pytest.mark.soak  # A minute and a half: Slurm takes its time to call a machine lost.
@pytest.mark.timeout(300)
def test_job_that_loses_a_whole_machine_goes_on_elsewhere(slurm: SlurmLab) -> None:
    slurm.lab.run(slurm.counting("machine", ["h100"], 30))
    rank = slurm.halted("machine", 30).attempts[-1].ranks[1]
    agent = parent(rank.pid)
    slurm.server.kill_node(rank.node)
    for pid in (parent(parent(agent)), parent(agent), agent):  # Slurm's step, its task, ours: nobody leaves word.
        kill(pid)
    slurm.open("machine", 30)
    try:
        view = slurm.check("machine", wait_s=200.0)
    finally:
        slurm.server.start_node(rank.node)
    assert rank.node not in view.attempts[-1].nodes, slurm.story("machine")
    until(slurm.idle, "Slurm to end what is left of it")


def parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def test_job_outlives_a_killed_slurmctld_and_ends_once_it_is_back(slurm: SlurmLab) -> None:
    slurm.lab.run(slurm.counting("slurmctld", ["h100"], 30))
    slurm.halted("slurmctld", 30)
    slurm.server.save()
    slurm.server.kill_controller()
    try:
        slurm.open("slurmctld", 30)
        until(lambda: LeadEndedEvent.kind in kinds(slurm.lab, "slurmctld"), "the run to end without slurmctld")
    finally:
        slurm.server.start_controller()
    view = slurm.check("slurmctld")
    assert [attempt.generation for attempt in view.attempts] == [1]
    until(slurm.idle, "Slurm to end what is left of it")


def test_node_drained_by_an_operator_moves_the_job(slurm: SlurmLab) -> None:
    slurm.lab.run(slurm.counting("drain", ["h100"], 30))
    nodes = slurm.halted("drain", 30).attempts[-1].nodes
    slurm.server.run("scontrol", "update", f"nodename={nodes[0]}", "state=drain", "reason=fan 3 is loud")
    try:
        until(lambda: AttemptStoppingEvent.kind in kinds(slurm.lab, "drain"), "the plan to move it")
        slurm.open("drain", 30)
        view = slurm.check("drain")
    finally:
        slurm.server.run("scontrol", "update", f"nodename={nodes[0]}", "state=resume")
    assert [attempt.cluster for attempt in view.attempts] == [PINNED, PINNED], slurm.story("drain")
    assert nodes[0] not in view.attempts[1].nodes
    assert slurm.resumed("drain")[-1] >= 30, "it goes on from what it saved when asked to leave"


def preempt(slurm: SlurmLab) -> str:
    """Has somebody else take both of the machines that others use first; returns their job."""
    return submit(slurm.server, "--partition=urgent", "--nodes=2", "--exclusive", "--wrap", "sleep 600", user=STRANGER)


def test_job_preempted_by_somebody_elses_saves_in_time_and_goes_on_in_another_cluster(slurm: SlurmLab) -> None:
    slurm.lab.run(slurm.counting("preempted", ["a100", "v5e@0.5"], 30))
    before = slurm.halted("preempted", 30).attempts[-1]
    assert before.cluster == DELEGATED, slurm.story("preempted")
    theirs = preempt(slurm)
    try:
        until(lambda: AgentLeavingEvent.kind in kinds(slurm.lab, "preempted"), "the notice to arrive")
        slurm.open("preempted", 30)
        view = slurm.check("preempted")
        until(lambda: state(slurm.server, theirs) == "RUNNING", "the other job to have its machines")
    finally:
        slurm.server.run("scancel", theirs)
    assert [attempt.cluster for attempt in view.attempts] == [DELEGATED, BESIDE]
    stopping = next(event for event in slurm.lab.events("preempted") if event.kind == AttemptStoppingEvent.kind)
    assert stopping.detail["cause"] == "taken"
    assert "Slurm asked the job to end" in view.attempts[0].reason
    assert slurm.resumed("preempted")[-1] >= 30, "it saved within the grace, and the checkpoint moved along"
    leaving = [event for event in slurm.lab.events("preempted") if event.kind == AgentLeavingEvent.kind]
    assert all(0 < float(event.detail["grace_s"]) <= GRACE_S for event in leaving)


@pytest.mark.soak  # A minute and a quarter, most of it the pause before the cluster is asked again.
@pytest.mark.timeout(300)
def test_job_preempted_comes_back_when_nothing_else_is_free(slurm: SlurmLab) -> None:
    slurm.lab.run(slurm.counting("back", ["a100"], 30))
    slurm.halted("back", 30)
    theirs = preempt(slurm)
    try:
        until(lambda: AgentLeavingEvent.kind in kinds(slurm.lab, "back"), "the notice to arrive")
        slurm.open("back", 30)
        until(lambda: slurm.lab.status("back").state is JobState.QUEUED, "the job to be queued again")
        assert "took it back" in slurm.lab.why("back").summary
    finally:
        slurm.server.run("scancel", theirs)
    view = slurm.check("back")
    assert [attempt.state for attempt in view.attempts] == [AttemptState.CANCELLED, AttemptState.SUCCEEDED]
    assert slurm.resumed("back")[-1] >= 30, slurm.story("back")


@pytest.mark.soak
def test_slurm_that_answers_late_holds_up_neither_other_clusters_nor_what_runs(slurm: SlurmLab) -> None:
    slurm.lab.run(slurm.counting("steady", ["h100"], 30))
    slurm.halted("steady", 30)
    slurm.fault.write_text("sleep 10")
    try:
        slurm.lab.run(slurm.counting("other", ["v5e"]))
        slurm.open("steady", 30)
        slurm.check("other")
        until(lambda: LeadEndedEvent.kind in kinds(slurm.lab, "steady"), "the run to end without word of Slurm")
    finally:
        slurm.fault.unlink()
    view = slurm.check("steady")
    assert [attempt.generation for attempt in view.attempts] == [1]


@pytest.mark.soak
def test_job_cancelled_by_an_operator_goes_on_in_another_cluster(slurm: SlurmLab) -> None:
    slurm.lab.run(slurm.counting("cancelled", ["h100", "v5e@0.3"], 30))
    slurm.halted("cancelled", 30)
    slurm.server.run("scancel", "--partition=robots")
    until(lambda: AgentLeavingEvent.kind in kinds(slurm.lab, "cancelled"), "the notice to arrive")
    slurm.open("cancelled", 30)
    view = slurm.check("cancelled")
    assert [attempt.cluster for attempt in view.attempts] == [PINNED, BESIDE], slurm.story("cancelled")
    assert slurm.resumed("cancelled")[-1] >= 30
