"""The promises of the one-machine Slurm that tests, the demonstration and benchmarks stand on."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from mainspring.domain.errors import Unavailable
from mainspring.testing.slurm import SlurmNodes, SlurmPartition, SlurmServer, slurm_missing

pytestmark = [pytest.mark.slow, pytest.mark.skipif(bool(slurm_missing()), reason=slurm_missing())]

LOOKS_MAX = 600  # A minute of looks: far above the seconds each wait takes on an idle machine.
LOOK_S = 0.1
TIERS = (
    SlurmPartition(name="low", extra="PriorityTier=1 PreemptMode=REQUEUE GraceTime=30"),
    SlurmPartition(name="high", extra="PriorityTier=10 PreemptMode=OFF"),
)


def until(condition: Callable[[], object]) -> None:
    for _ in range(LOOKS_MAX):
        if condition():
            return
        subprocess.run(["sleep", str(LOOK_S)], check=True)
    raise AssertionError("waited in vain")


@pytest.fixture
def server(tmp_path: Path) -> Iterator[SlurmServer]:
    with SlurmServer(tmp_path / "slurm", nodes=[SlurmNodes(count=2, features=("fast",))]) as started:
        yield started


def submit(server: SlurmServer, *words: str, user: str = "") -> str:
    done = server.run("sbatch", "--parsable", "--output=/dev/null", *words, user=user)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def state(server: SlurmServer, job: str) -> str:
    return server.run("squeue", "-h", "-t", "all", "-j", job, "-o", "%T").stdout.strip()


def mentioning(mark: str) -> list[int]:
    """Returns the processes whose command line or environment holds a mark."""
    found = []
    for pid in map(int, filter(str.isdigit, os.listdir("/proc"))):
        try:
            text = Path(f"/proc/{pid}/cmdline").read_bytes() + Path(f"/proc/{pid}/environ").read_bytes()
        except OSError:
            continue
        if mark.encode() in text and pid != os.getpid():
            found.append(pid)
    return found


def test_job_with_chips_on_a_named_node_runs_there_and_sees_them(server: SlurmServer, tmp_path: Path) -> None:
    said = tmp_path / "said"
    script = f"echo $SLURMD_NODENAME $CUDA_VISIBLE_DEVICES > {said}.tmp; mv {said}.tmp {said}"
    submit(server, "-w", "n2", "-C", "fast", "--gres=gpu:h100:3", "--wrap", script)
    until(said.exists)
    assert said.read_text().split() == ["n2", "0,1,2"]
    server.wait_idle()


def test_topology_given_is_the_one_slurm_shows(tmp_path: Path) -> None:
    text = "SwitchName=leaf1 Nodes=a1\nSwitchName=leaf2 Nodes=b[1-2]\nSwitchName=top Switches=leaf[1-2]\n"
    nodes = [SlurmNodes(prefix="a", count=1, chip="tpu"), SlurmNodes(prefix="b", count=2, chip="")]
    with SlurmServer(tmp_path, nodes=nodes, topology=text) as server:
        assert "SwitchName=leaf2 Level=0 LinkSpeed=1 Nodes=b[1-2]" in server.run("scontrol", "show", "topology").stdout
        seen = server.run("sinfo", "-h", "-N", "-o", "%N %G").stdout.split()
        assert seen == ["a1", "gpu:tpu:8", "b1", "(null)", "b2", "(null)"]


@pytest.mark.soak
def test_controller_killed_once_it_has_saved_keeps_its_jobs_and_gives_no_number_again(server: SlurmServer) -> None:
    job = submit(server, "--wrap", "sleep 300")
    until(lambda: state(server, job) == "RUNNING")
    held = submit(server, "--hold", "--wrap", "sleep 300")
    server.save()
    server.kill_controller()
    assert server.run("scontrol", "ping").returncode
    server.start_controller()
    assert [state(server, job), state(server, held)] == ["RUNNING", "PENDING"]
    assert int(submit(server, "--hold", "--wrap", "true")) > int(held)


def test_node_drained_by_an_operator_shows_with_its_reason(server: SlurmServer) -> None:
    server.run("scontrol", "update", "nodename=n1", "state=drain", "reason=fan broken")
    assert server.run("sinfo", "-h", "-R", "-o", "%N %E").stdout.strip() == "n1 fan broken"
    with pytest.raises(Unavailable, match="drained"):
        server.wait_idle(1)


def test_job_of_another_user_in_a_higher_tier_preempts_with_sigterm_and_grace(tmp_path: Path) -> None:
    ready, saved, script = tmp_path / "ready", tmp_path / "saved", tmp_path / "script"
    rank = f"trap 'sleep 1; touch {saved}; exit 0' TERM; touch {ready}; while :; do sleep 0.1; done"
    script.write_text(f'#!/bin/bash\nsrun bash -c "{rank}"\n')
    with SlurmServer(tmp_path / "slurm", nodes=[SlurmNodes(count=1)], partitions=TIERS) as server:
        ours = submit(server, "--exclusive", str(script))
        until(ready.exists)
        theirs = submit(server, "-p", "high", "--exclusive", "--wrap", "sleep 1", user="nobody")
        until(saved.exists)
        until(lambda: state(server, theirs) in {"RUNNING", "COMPLETED"})
        assert state(server, ours) != "RUNNING"


def test_node_killed_leaves_its_program_and_comes_back(server: SlurmServer) -> None:
    job = submit(server, "-w", "n1", "--export=ALL,MARK=left-running", "--wrap", "exec sleep 301")
    until(lambda: any(Path(f"/proc/{pid}/comm").read_text() == "sleep\n" for pid in mentioning("MARK=left-running")))
    server.kill_node("n1")
    assert mentioning("MARK=left-running")
    server.start_node("n1")
    assert state(server, job) == "RUNNING"
    server.run("scancel", job)
    server.wait_idle()


def test_munge_killed_hangs_commands_until_it_is_back(server: SlurmServer) -> None:
    server.kill_munge()
    with pytest.raises(Unavailable, match="squeue"):
        server.run("squeue", timeout_s=1)
    server.start_munge()
    assert server.run("squeue").returncode == 0


def test_stop_ends_what_jobs_left_in_sessions_of_their_own(tmp_path: Path) -> None:
    mark = f"MARK={tmp_path.name}-stop"
    with SlurmServer(tmp_path / "slurm", nodes=[SlurmNodes(count=1)]) as server:
        job = submit(server, f"--export=ALL,{mark}", "--wrap", "setsid -f sleep 302; sleep 300")
        until(lambda: len(mentioning(mark)) >= 3)
        server.kill_node("n1")
        conf = server.environment["SLURM_CONF"]
        assert state(server, job) == "RUNNING"
    assert mentioning(mark) == []
    assert mentioning(conf) == []
    assert not Path(conf).parent.exists()


def test_owner_killed_takes_the_whole_server_along(tmp_path: Path) -> None:
    program = (
        "import sys; from pathlib import Path; from mainspring.testing.slurm import *\n"
        "server = SlurmServer(Path(sys.argv[1]), nodes=[SlurmNodes(count=1)]); server.start()\n"
        "server.run('sbatch', '-o', '/dev/null', '--wrap', 'sleep 303')\n"
        "print(server.environment['SLURM_CONF'], flush=True); sys.stdin.read()"
    )
    words = [sys.executable, "-c", program, str(tmp_path)]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as owner:
        assert owner.stdout is not None
        conf = owner.stdout.readline().strip()
        running = mentioning(conf)
        owner.send_signal(signal.SIGKILL)
    assert len(running) >= 2
    until(lambda: not mentioning(conf) and not Path(conf).parent.exists())


def test_daemon_that_cannot_start_is_quoted(tmp_path: Path) -> None:
    server = SlurmServer(tmp_path, nodes=[SlurmNodes(count=1)], extra_conf=["SelectType=select/nonsense"])
    with pytest.raises(Unavailable, match="select/nonsense"):
        server.start()
    server.stop()


@pytest.mark.soak
@pytest.mark.skipif(bool(slurm_missing(accounting=True)), reason=slurm_missing(accounting=True))
def test_limit_of_an_account_holds_a_job_back_and_sacct_tells_the_ended(tmp_path: Path) -> None:
    with SlurmServer(tmp_path, nodes=[SlurmNodes(count=2)], accounting=True) as server:
        done = submit(server, "--wrap", "exit 3", user="nobody")
        words = ("sacct", "-n", "-X", "-P", "-j", done, "-o", "State,ExitCode,Account")
        until(lambda: server.run(*words).stdout.strip() == "FAILED|3:0|main")
        limit = ("sacctmgr", "-i", "modify", "account", "main", "set", "GrpTRES=gres/gpu=4")
        assert server.run(*limit).returncode == 0
        held = submit(server, "--gres=gpu:h100:5", "--wrap", "hostname")
        reason = ("squeue", "-h", "-j", held, "-o", "%r")
        until(lambda: server.run(*reason).stdout.strip() == "AssocGrpGRES")
