"""`ms demo --engine slurm`: the main job on a real Slurm, which is gone afterwards however the demo ends."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from mainspring.app.base.home import Home
from mainspring.testing.slurm import slurm_missing
from tests.app.conftest import until

pytestmark = [pytest.mark.slow, pytest.mark.skipif(bool(slurm_missing()), reason=slurm_missing())]
PROGRAM = str(Path(sys.executable).parent / "ms")


def _words(home: Path) -> list[str]:
    few = ("--episodes", "4", "--steps", "300", "--starts", "1")
    return [PROGRAM, "--home", str(home), "demo", "--engine", "slurm", *few]


def left_of(home: Path) -> list[str]:
    """Returns the command lines of processes that work for this home, Slurm's daemons included."""
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            line = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            where = os.readlink(f"/proc/{pid}/cwd")
        except OSError:
            continue
        if str(home) in line or where.startswith(str(home)):
            found.append(line)
    return found


@pytest.mark.soak
@pytest.mark.timeout(300)
def test_demo_on_slurm_trains_there_through_a_killed_rank(tmp_path: Path) -> None:
    home = tmp_path / "demo"
    done = subprocess.run([*_words(home), "--json"], capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stderr[-4_000:]
    report = json.loads(done.stdout)
    assert report["cluster"] == "slurm (simulated)"
    assert report["steps"] == 300
    assert report["generations"] == 2
    assert [cluster.name for cluster in Home(home).config().clusters if cluster.kind == "slurm"] == ["slurm"]
    until(lambda: not left_of(home), "everything to be over")


@pytest.mark.soak  # Half a minute; an interrupted demo without Slurm is a test of every day.
@pytest.mark.timeout(180)
def test_an_interrupted_demo_on_slurm_leaves_no_process(tmp_path: Path) -> None:
    home = tmp_path / "demo"
    demo = subprocess.Popen(_words(home), stderr=subprocess.PIPE, text=True)
    assert demo.stderr is not None
    begun = home / "slurm" / "shared"
    try:
        until(lambda: any(begun.glob("allocation-*/begun")), "a job to begin on Slurm")
    finally:
        demo.send_signal(signal.SIGTERM)
        _, errors = demo.communicate(timeout=90)
    assert demo.returncode == 130, errors[-2_000:]
    until(lambda: not left_of(home), "everything to be over")
