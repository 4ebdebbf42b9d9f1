"""The Slurm engine while Slurm, its operators and its users misbehave: nothing starts twice, nothing is concluded."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from mainspring.domain.errors import Unavailable
from mainspring.domain.fleet import AllocationPhase, Inventory, NodeCondition
from mainspring.domain.ids import AllocationId
from mainspring.engines.slurm.engine import SlurmEngine
from mainspring.engines.slurm.jobs.watch import PINNED_WAIT_S_MAX
from mainspring.testing.slurm import SlurmNodes, SlurmServer, slurm_missing
from tests.engines.slurm.rig import Rig, order
from tests.faults.slurm_rig import ARRAY_CONF, STRANGER, crowd, state, submit, wrapped

pytestmark = pytest.mark.slow
A1, A2 = AllocationId("allocation-1"), AllocationId("allocation-2")
STRANGERS = 10_000
CUTS = 12  # Of each command's output.
HOUR_S = 3_600.0


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SlurmServer]:
    if missing := slurm_missing():
        pytest.skip(missing)
    with SlurmServer(tmp_path_factory.mktemp("slurm"), nodes=[SlurmNodes(count=4)], extra_conf=[ARRAY_CONF]) as made:
        yield made


@pytest.fixture
def make(server: SlurmServer, tmp_path: Path) -> Iterator[Callable[..., Rig]]:
    """Makes a rig of a test's own, by what differs from the usual description."""
    made: list[Rig] = []

    def start(**fields: object) -> Rig:
        made.append(Rig(tmp_path, server, fields))
        return made[-1]

    yield start
    for rig in made:
        rig.clear()
    server.run("scontrol", "update", "nodename=ALL", "state=resume")
    server.wait_idle()


@pytest.fixture
def rig(make: Callable[..., Rig]) -> Rig:
    return make()


def with_commands(rig: Rig, folder: Path, **scripts: str) -> SlurmEngine:
    """Returns an engine for which some commands are scripts; see `wrapped`."""
    wrapped(folder, scripts)
    return rig.another(before_path=folder)


# ---------------------------------------------------------------- daemons that die


@pytest.mark.parametrize("agents", [0, pytest.param(2, marks=pytest.mark.soak)])
def test_slurmctld_killed_right_after_sbatch_starts_an_allocation_once_or_gives_it_back(
    tmp_path: Path, agents: int
) -> None:
    # A Slurm of its own: one that comes back shows jobs of other tests again, for a while.
    with SlurmServer(tmp_path / "slurm", nodes=[SlurmNodes(count=3)]) as server:
        rig = Rig(tmp_path, server, {"command_s_max": 3.0})
        rig.engine.launch(order("n1", "n2"))
        rig.until(lambda: rig.starts() >= agents)
        server.kill_controller()  # It saves lazily: what it says of the job when it is back may be nothing, or old.
        with pytest.raises(Unavailable):
            rig.engine.observe()
        with pytest.raises(Unavailable):
            rig.another().launch(order("n3", name=A2))
        server.start_controller()
        rig.another().launch(order("n1", "n2"))
        rig.another().launch(order("n3", name=A2))  # Its job may get the number of one that was forgotten.
        rig.found(0, A2)
        rig.until(lambda: settled(rig), step_s=0.2)
        rig.until_phase(AllocationPhase.RUNNING, A2)
        nodes = Path(tmp_path / "starts").read_text().split()
        assert len(nodes) == len(set(nodes)), "an agent was started twice"
        if "n1" in nodes and not rig.jobs():
            rig.until(lambda: not any(alive(rig.found(index).pid) for index in range(2)))


def settled(rig: Rig) -> bool:
    """Returns whether the first allocation is known to run, or is over and given back."""
    seen = rig.seen()
    assert seen is not None
    if seen.phase is AllocationPhase.ENDED:
        assert seen.taken or seen.agent_lost
        return not rig.jobs()
    return seen.phase is AllocationPhase.RUNNING and rig.starts() == 3 and len(rig.jobs(states="RUNNING")) == 1


def alive(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()


def test_munge_down_is_no_answer_in_bounded_time_and_agents_go_on(
    make: Callable[..., Rig], server: SlurmServer, tmp_path: Path
) -> None:
    rig = make(command_s_max=1.0)
    rig.running(order("n1", "n2"))
    server.kill_munge()
    try:
        for ask in (rig.engine.observe, rig.engine.inventory, lambda: rig.engine.launch(order("n3", name=A2))):
            begun_s = time.monotonic()
            with pytest.raises(Unavailable):
                ask()
            assert time.monotonic() - begun_s < 30.0, "a command was waited for beyond its bound"
        assert alive(rig.found(0).pid)
        rig.engine.stop(A1, grace_s=60.0)
        rig.until(lambda: not alive(rig.found(0).pid))
    finally:
        server.start_munge()
    ended = rig.until_phase(AllocationPhase.ENDED)
    assert (ended.exit_code, ended.taken, rig.starts()) == (0, False, 2)
    rig.until(lambda: not rig.jobs())


# ---------------------------------------------------------------- commands that misbehave


def test_hanging_commands_are_ended_and_leave_no_process(
    make: Callable[..., Rig], server: SlurmServer, tmp_path: Path
) -> None:
    rig = make(command_s_max=1.0)
    mark = "71234.5"
    hanging = f"sleep {mark} & sleep {mark}"
    engine = with_commands(rig, tmp_path / "hang", squeue=hanging, scontrol=hanging, sbatch=hanging)
    for ask in (engine.observe, engine.inventory, lambda: engine.launch(order("n1"))):
        begun_s = time.monotonic()
        with pytest.raises(Unavailable, match="no answer within 1 s"):
            ask()
        assert time.monotonic() - begun_s < 30.0
    rig.until(lambda: not any(mark in line for line in command_lines()))


def command_lines() -> list[str]:
    """Returns the command lines of all processes."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            found.append(path.read_bytes().replace(b"\0", b" ").decode(errors="replace"))
        except OSError:
            continue
    return found


def test_sbatch_whose_answer_is_lost_or_late_starts_an_allocation_once(
    make: Callable[..., Rig], server: SlurmServer, tmp_path: Path
) -> None:
    rig = make(command_s_max=2.0)
    rig.engine.inventory()
    for name, script in (
        ("late", 'REAL "$@"; sleep 10'),
        ("lost", 'REAL "$@" | tail -n 0'),
        ("cut", 'REAL "$@" | tr -d "\\n"'),
    ):
        engine = with_commands(rig, tmp_path / name, sbatch=script)
        with pytest.raises(Unavailable):
            engine.launch(order("n1", "n2", name=name, chip_milli=2_000))
        engine.launch(order("n1", "n2", name=name, chip_milli=2_000))  # Found in the queue.
    for name in ("late", "lost", "cut"):
        rig.found(0, name)
        rig.found(1, name)
        assert len(rig.jobs(name)) == 1
    assert rig.starts() == 6


def test_sbatch_that_submits_twice_starts_an_allocation_once(rig: Rig, tmp_path: Path) -> None:
    twice = 'cat > "$0.script"; REAL "$@" < "$0.script" > "$0.first"; REAL "$@" < "$0.script"'
    engine = with_commands(rig, tmp_path / "twice", sbatch=twice)
    engine.launch(order("n1", "n2"))
    rig.found(0)
    rig.found(1)
    rig.until_phase(AllocationPhase.RUNNING)
    rig.until(lambda: len(rig.jobs()) == 1)
    rig.engine.stop(A1, grace_s=30.0)
    assert rig.until_phase(AllocationPhase.ENDED).exit_code == 0
    rig.until(lambda: not rig.jobs())
    assert rig.starts() == 2


ASKED = {
    "queue": ("squeue", "--format"),
    "config": ("scontrol", "show config"),
    "partition": ("scontrol", "show partition"),
    "node": ("scontrol", "show node"),
}


@pytest.mark.parametrize("asked", ASKED)
def test_output_cut_off_or_garbled_is_no_answer_or_changes_nothing(rig: Rig, tmp_path: Path, asked: str) -> None:
    rig.running(order("n1", "n2"))
    rig.engine.launch(order("n1", "n2", name=A2, chip_milli=8_000))
    rig.until_phase(AllocationPhase.PENDING, A2)
    inventory = rig.another().inventory()
    phases = {one.allocation: one.phase for one in rig.engine.observe()}
    command, words = ASKED[asked]
    spoilt, real = tmp_path / "spoilt", tmp_path / "real"
    kept = f'REAL "$@" > {real}.$$ && mv {real}.$$ {real}; cat {real}'
    answer = f'case "$*" in *"{words}"*) ' + '{} ;; *) exec REAL "$@" ;; esac'
    recording = with_commands(rig, tmp_path / "record", **{command: answer.format(kept)})
    recording.inventory()
    text = real.read_bytes()
    assert text
    wrong = with_commands(rig, tmp_path / "wrong", **{command: answer.format(f"cat {spoilt}")})
    answers = 0
    for bad in spoil(text):
        spoilt.write_bytes(bad)
        with suppress(Unavailable):
            assert {one.allocation: one.phase for one in wrong.observe()} == phases, f"{asked} that reads {bad!r}"
            answers += 1
        with suppress(Unavailable):
            found = rig.another(before_path=tmp_path / "wrong").inventory()
            assert no_better(found, inventory), f"{asked} that reads {bad!r}"
            answers += 1
    assert {one.allocation: one.phase for one in rig.engine.observe()} == phases
    assert rig.starts() == 2
    assert answers < 2 * 2 * CUTS, "nothing was noticed"


def no_better(found: Inventory, true: Inventory) -> bool:
    """Returns whether an inventory is the true one, but for what may count as used by others for the time being."""
    used = [node.foreign_chip_milli for node in found.nodes]
    same = [replace(node, foreign_chip_milli=0, foreign_cpus=0.0, foreign_memory_gib=0.0) for node in found.nodes]
    return used >= [node.foreign_chip_milli for node in true.nodes] and same == [
        replace(node, foreign_chip_milli=0, foreign_cpus=0.0, foreign_memory_gib=0.0) for node in true.nodes
    ]


def spoil(text: bytes) -> Iterator[bytes]:
    """Yields outputs that break off anywhere but at the end of a line, and ones with a line that is something else."""
    dice = np.random.default_rng(7)
    inside = [place for place in range(1, len(text)) if text[place - 1 : place] != b"\n"]
    for place in dice.choice(inside, min(CUTS, len(inside)), replace=False):
        yield text[: int(place)]
    lines = text.splitlines(keepends=True)
    for number in dice.choice(len(lines), min(CUTS, len(lines)), replace=False):
        yield b"".join([*lines[:number], b"\xff\x00 slurm: error: |= no such |thing=\n", *lines[number + 1 :]])


# ---------------------------------------------------------------- jobs that begin while they are looked at


def behind_another(rig: Rig) -> str:
    """Launches an allocation on a node that another job has; returns that job."""
    theirs = submit(rig.server, "--exclusive", "--nodelist=n1", "--wrap", "sleep 600")
    rig.until(lambda: state(rig.server, theirs) == "RUNNING")
    rig.engine.launch(order("n1"))
    rig.until_phase(AllocationPhase.PENDING)
    return theirs


def test_job_that_begins_while_the_queue_is_read_runs_and_is_not_cancelled(rig: Rig, tmp_path: Path) -> None:
    theirs = behind_another(rig)
    old, begun = tmp_path / "old", rig.shared / A1 / "begun"
    begins = f'REAL "$@" > {old}; scancel {theirs}; until [ -s {begun} ]; do sleep 0.05; done; cat {old}'
    engine = with_commands(rig, tmp_path / "slow", squeue=begins)
    seen = rig.seen(engine=engine)
    assert f"{rig.jobs()[0]}|PENDING" in old.read_text(), "what it was shown was older than its beginning"
    assert seen is not None
    assert (seen.phase, seen.taken) == (AllocationPhase.RUNNING, False)
    rig.found(0)
    for one in (engine, rig.engine):
        rig.clock.advance(1.0)
        assert (seen := rig.seen(engine=one)) is not None
        assert (seen.phase, seen.taken) == (AllocationPhase.RUNNING, False)
    assert (rig.starts(), len(rig.jobs(states="RUNNING"))) == (1, 1)


def test_job_that_begins_just_as_its_wait_is_over_runs_and_is_not_cancelled(rig: Rig) -> None:
    theirs = behind_another(rig)
    rig.slurm("scontrol", "update", "nodename=n1", "state=drain", "reason=fan 3")
    rig.until(lambda: "ReqNodeNotAvail" in rig.until_phase(AllocationPhase.PENDING).reason)
    rig.clock.advance(PINNED_WAIT_S_MAX)
    # A look stands still where it reads the word of the allocation after: the one before it was looked at by then.
    next_one = rig.shared / A2
    next_one.mkdir()
    (next_one / "claim.json").write_bytes((rig.shared / A1 / "claim.json").read_bytes())
    (next_one / "begun").write_text("999999")
    os.mkfifo(next_one / "word")
    try:
        with ThreadPoolExecutor(1) as pool:
            looking = pool.submit(rig.engine.observe)
            with (next_one / "word").open("w"):
                rig.slurm("scontrol", "update", "nodename=n1", "state=resume")
                rig.slurm("scancel", theirs)
                rig.found(0)
            first = next(one for one in looking.result() if one.allocation == A1)
    finally:
        shutil.rmtree(next_one)
    assert first.reason.startswith("waited")
    assert first.phase is AllocationPhase.STOPPING, "it has not ended"
    assert (seen := rig.seen()) is not None
    assert (seen.phase, seen.taken) == (AllocationPhase.RUNNING, False)
    assert (rig.starts(), len(rig.jobs(states="RUNNING"))) == (1, 1)


# ---------------------------------------------------------------- other people, other names, other clocks


def test_job_that_got_the_number_of_a_forgotten_one_is_left_alone(rig: Rig) -> None:
    rig.running(order("n1"))
    theirs = submit(rig.server, "--nodelist=n2", "--wrap", "sleep 600")
    number = rig.jobs()[0]
    (rig.shared / A1 / "job.json").write_text(f'{{"number": {theirs}, "at_s": 0.0}}')
    (rig.shared / A1 / "begun").write_text(theirs)
    engine = rig.another()
    engine.stop(A1, grace_s=60.0)
    rig.until(
        lambda: (rig.seen(engine=engine) or rig.until_phase(AllocationPhase.ENDED)).phase is AllocationPhase.ENDED
    )
    assert state(rig.server, theirs) == "RUNNING"
    rig.until(lambda: number not in rig.jobs())


def test_names_with_spaces_quotes_and_signs_reach_only_people(make: Callable[..., Rig], tmp_path: Path) -> None:
    strange = tmp_path / 'it\'s "ours"; $(touch /tmp/broken) `id` %j %% é'
    rig = make(shared=str(strange), scratch=str(tmp_path / "scratch 'of' us"))
    rig.shared = strange
    rig.running(order("n1", "n2", job="tune 'the' \"arm\" | $(id)\nRUNNING|é"))
    assert {rig.found(index).order["node"] for index in range(2)} == {"n1", "n2"}
    assert rig.found(0).order["report_dir"] == f"{strange}/{A1}/node-0"
    rig.engine.stop(A1, grace_s=60.0)
    assert rig.until_phase(AllocationPhase.ENDED).exit_code == 0
    assert not Path("/tmp/broken").exists()
    assert (strange / A1 / "slurm.log").exists()


def test_clock_set_forward_and_back_ends_and_withdraws_nothing(rig: Rig) -> None:
    rig.running(order("n1", "n2"))
    rig.engine.launch(order("n1", "n2", name=A2, chip_milli=8_000))
    rig.slurm("scontrol", "update", "nodename=n4", "state=drain", "reason=fan 3")
    rig.until_phase(AllocationPhase.PENDING, A2)
    for ahead_s in (HOUR_S, -2 * HOUR_S, -10_000 * HOUR_S, 10_001 * HOUR_S):
        rig.clock.jump(ahead_s)
        for engine in (rig.engine, rig.another()):
            phases = {one.allocation: one.phase for one in engine.observe()}
            assert phases == {A1: AllocationPhase.RUNNING, A2: AllocationPhase.PENDING}
            node = engine.inventory().nodes[3]
            assert (node.condition, node.condition_reason) == (NodeCondition.CORDONED, "fan 3 (root)")
    assert rig.starts() == 2


def test_ten_thousand_jobs_of_others_and_some_of_our_own_user_are_nobodys_business(rig: Rig) -> None:
    theirs = crowd(rig.server, STRANGERS)
    own = submit(rig.server, "--hold", "--job-name", f"mainspring.{A2} | RUNNING|None\nand 'more'", "--wrap", "sleep 1")
    try:
        begun_s = time.monotonic()
        rig.running(order("n1", "n2"))
        rig.engine.inventory()
        rig.engine.stop(A1, grace_s=60.0)
        rig.until_phase(AllocationPhase.ENDED)
        assert [one.allocation for one in rig.engine.observe()] == [A1]
        assert time.monotonic() - begun_s < 30.0
        rig.until(lambda: not rig.jobs())
        assert state(rig.server, own) == "PENDING"
        assert len(rig.slurm("squeue", "-h", "-u", STRANGER, "-o", "%A").split()) == STRANGERS
    finally:
        rig.slurm("scancel", theirs, own)
        rig.until(lambda: not rig.slurm("squeue", "-h", "-u", STRANGER, "-o", "%A"))


@pytest.mark.skipif(bool(slurm_missing(accounting=True)), reason=slurm_missing(accounting=True))
def test_limits_of_an_association_are_told_and_hammered_by_nobody(tmp_path: Path) -> None:
    with SlurmServer(tmp_path / "slurm", nodes=[SlurmNodes(count=2)], accounting=True) as server:
        rig = Rig(tmp_path, server)
        limit = ("sacctmgr", "-i", "modify", "account", "main", "set")
        rig.slurm(*limit, "GrpTRES=gres/gpu=10")
        rig.running(order("n1", chip_milli=8_000))
        rig.engine.launch(order("n2", name=A2, chip_milli=8_000))
        rig.until(lambda: "AssocGrpGRES" in rig.until_phase(AllocationPhase.PENDING, A2).reason)
        assert "a limit of its account" in rig.until_phase(AllocationPhase.PENDING, A2).reason
        rig.slurm(*limit, "GrpSubmitJobs=2")
        rig.engine.launch(order("n2", name="allocation-3", chip_milli=1_000))
        refused = rig.until_phase(AllocationPhase.ENDED, "allocation-3")
        assert refused.taken
        assert "limit" in refused.reason
        shown = rig.engine.inventory().nodes[1]
        assert (shown.condition, shown.condition_owner) == (NodeCondition.CORDONED, "slurm")
        rig.slurm(*limit, "GrpTRES=gres/gpu=-1")
        rig.until_phase(AllocationPhase.RUNNING, A2)
        rig.clear()
