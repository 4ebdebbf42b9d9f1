"""One command of Slurm's at a time, played by scripts."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from mainspring.domain.errors import Unavailable
from mainspring.domain.ids import ClusterName
from mainspring.engines.slurm.cluster.commands import Commands, Refused
from mainspring.engines.slurm.cluster.config import SlurmCluster
from tests.node.rig import gone


def commands(folder: Path, script: str, *, limit_s: float = 30.0, **environment: str) -> Commands:
    """Returns what runs `squeue`, a script that is found first in PATH."""
    program = folder / "squeue"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    cluster = SlurmCluster(name=ClusterName("alpha"), partitions=("main",), shared=str(folder), command_s_max=limit_s)
    return Commands(cluster, {"PATH": f"{folder}:/usr/bin:/bin", **environment})


def test_a_command_gets_its_words_its_input_and_nothing_of_the_environment_but_what_finds_slurm(tmp_path: Path) -> None:
    ask = commands(
        tmp_path,
        'cat; printf "%s\\n" "$@"; env | cut -d= -f1 | sort',
        SLURM_CONF="/x",
        MAINSPRING_KEY="secret",
        AWS_SECRET_ACCESS_KEY="secret",
        SQUEUE_FORMAT="%i",
        SLURM_JOB_ID="7",
    )
    lines = ask.run("squeue", "--me", "a b; 'c'", attempted="ask", stdin="first\n").splitlines()
    assert lines[:3] == ["first", "--me", "a b; 'c'"]
    assert {"SLURM_CONF", "PATH", "TZ", "LC_ALL"} <= set(lines)
    assert not {"MAINSPRING_KEY", "AWS_SECRET_ACCESS_KEY", "SQUEUE_FORMAT", "SLURM_JOB_ID"} & set(lines)


@pytest.mark.parametrize(
    "words",
    [
        "squeue: error: slurm_load_jobs: Unable to contact slurm controller (connect failure)",
        "sbatch: error: Batch job submission failed: Socket timed out on send/recv operation",
        "sbatch: error: If munged is up, restart with --num-threads=10",
        "sbatch: error: Slurm temporarily unable to accept job, sleeping and retrying",
        "",
    ],
)
def test_trouble_that_passes_is_unavailable(tmp_path: Path, words: str) -> None:
    with pytest.raises(Unavailable):
        commands(tmp_path, f'printf "%s" "{words}" >&2; exit 1').run("squeue", attempted="ask")


@pytest.mark.parametrize(
    "words",
    [
        "Batch job submission failed: Invalid account or account/partition combination specified",
        "Batch job submission failed: Job violates accounting/QOS policy (job submit limit, user's size)",
        "Batch job submission failed: Requested node configuration is not available",
    ],
)
def test_a_no_is_refused_with_slurms_own_words(tmp_path: Path, words: str) -> None:
    with pytest.raises(Refused) as caught:
        commands(tmp_path, f'echo "{words}" >&2; exit 1').run("squeue", attempted="ask")
    assert caught.value.got == words


@pytest.mark.slow
def test_a_command_that_hangs_is_killed_with_all_it_started(tmp_path: Path) -> None:
    ask = commands(tmp_path, f"sleep 100 & echo $! > {tmp_path}/child; wait", limit_s=0.3)
    with pytest.raises(Unavailable, match=r"0\.3 s"):
        ask.run("squeue", attempted="ask")
    child = int((tmp_path / "child").read_text())
    assert any(gone(child) or tick.wait(0.05) for tick in [threading.Event()] * 200), "it still runs after 10 s"


@pytest.mark.parametrize("script", ["printf '1|RUNN'", "kill -9 $$", "printf 'x\\n'; kill -15 $$"])
def test_output_that_breaks_off_is_unavailable(tmp_path: Path, script: str) -> None:
    with pytest.raises(Unavailable):
        commands(tmp_path, script).run("squeue", attempted="ask")


def test_a_command_that_is_not_there_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(Unavailable, match="PATH"):
        commands(tmp_path, "true").run("sinfo-that-is-not-there", attempted="ask")
