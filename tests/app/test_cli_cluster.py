"""`ms cluster` as a user runs it: clusters come and go while the server runs and jobs go on."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from mainspring.app.base.home import Config
from mainspring.app.sdk.lab import Lab, job
from mainspring.domain.errors import Conflict, Unavailable
from mainspring.domain.ids import ChipName, ClusterName
from mainspring.domain.life import JobState
from mainspring.engines.local.config import LocalCluster
from mainspring.engines.slurm.cluster.config import SlurmCluster
from mainspring.testing.slurm import SlurmNodes, SlurmServer, slurm_missing
from tests.app.conftest import clusters, until
from tests.app.ready_ms import ready_ms

pytestmark = pytest.mark.slow
PROGRAM = str(Path(sys.executable).parent / "ms")


def _ms(lab: Lab, *words: str, **variables: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "COLUMNS": "160", "MAINSPRING_HOME": str(lab.home.path), **variables}
    return subprocess.run([ready_ms(), *words], env=environment, capture_output=True, text=True, timeout=90)


def _json(lab: Lab, *words: str) -> Any:
    done = _ms(lab, *words, "--json")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def _pod(name: str = "pod") -> LocalCluster:
    return LocalCluster(
        name=ClusterName(name), chip=ChipName("b200"), chips_per_node=2, nodes=3, dollars_per_chip_hour=5.0
    )


def _names(lab: Lab) -> set[str]:
    return {str(shown.name) for shown in lab.clusters.ls()}


def test_a_cluster_is_added_to_a_running_server_and_jobs_go_on(lab: Lab) -> None:
    before = lab.up()
    running = lab.run(job("long", ["sleep", "300"], on=["h100"]))
    until(lambda: lab.status(running.id).state is JobState.RUNNING, "a job to run")
    words = ("--chip", "b200", "--nodes", "3", "--chips-per-node", "2", "--price", "5")
    done = _ms(lab, "cluster", "add", "local", "pod", *words)
    assert done.returncode == 0, done.stderr
    assert "pod (simulated)" in done.stdout
    assert "pod-[0-2]" in done.stdout
    assert "6 of 6" in done.stdout
    after = lab.up()
    assert after.url == before.url
    assert after.pid != before.pid
    first = lab.status(running.id)
    assert (first.state, len(first.attempts)) == (JobState.RUNNING, 1)
    view = lab.wait(lab.run(job("new", ["true"], on=["b200:2"])).id)
    assert (view.state, view.attempts[-1].cluster) == (JobState.SUCCEEDED, "pod")
    rows = _ms(lab, "cluster", "ls").stdout.splitlines()
    assert [row.split()[0] for row in rows] == ["CLUSTER", "alpha", "beta", "pod"]
    assert "6 b200" in rows[-1]


def test_a_cluster_with_jobs_is_removed_only_by_force_which_stops_them(lab: Lab) -> None:
    running = lab.run(job("long", ["sleep", "300"], on=["h100"]), count=2)
    until(lambda: lab.status(running.id).state is JobState.RUNNING, "a job to run")
    done = _ms(lab, "cluster", "remove", "alpha")
    assert done.returncode == Conflict.exit_code
    assert running.id in done.stderr
    assert "--force" in done.stderr
    removed = _json(lab, "cluster", "remove", "alpha", "--force")
    members = {view.id for view in lab.ps(array=running.id)}
    assert removed == {"name": "alpha", "stopped": sorted(members), "left": []}
    assert {lab.status(member).state for member in members} == {JobState.CANCELLED}
    assert _names(lab) == {"beta"}
    assert "h100" in _ms(lab, "run", "--on", "h100", "--no-code", "--", "true").stderr  # No such chip any more.


def test_a_name_in_use_or_unknown_is_told_with_what_to_do(lab: Lab) -> None:
    done = _ms(lab, "cluster", "add", "local", "alpha", "--chip", "x")
    assert done.returncode == Conflict.exit_code
    assert "ms cluster remove alpha" in done.stderr
    for verb in ("show", "check", "remove"):
        done = _ms(lab, "cluster", verb, "alpah")
        assert done.returncode == 3
        assert "did you mean 'alpha'?" in done.stderr
    done = _ms(lab, "cluster", "add", "slurm", "hall", "--partition", "main", "--shared", "relative")
    assert done.returncode == 2
    assert "an absolute folder" in done.stderr
    prices = ("--price", "h100=cheap")
    done = _ms(lab, "cluster", "add", "slurm", "hall", "--partition", "main", "--shared", "/shared", *prices)
    assert done.returncode == 2
    assert "cheap" in done.stderr
    memory = ("--chip-memory", "h100=80GB")
    done = _ms(lab, "cluster", "add", "slurm", "hall", "--partition", "main", "--shared", "/shared", *memory)
    assert done.returncode == 2
    assert "'80GB'" in done.stderr
    assert "CHIP=GIB" in done.stderr
    done = _ms(lab, "cluster", "remove", "alpha", MAINSPRING_URL="http://127.0.0.1:1", MAINSPRING_TOKEN="x")
    assert done.returncode == 2
    assert _names(lab) == {"alpha", "beta"}


def test_a_cluster_the_server_cannot_start_with_is_taken_back(lab: Lab) -> None:
    (lab.home.engines / "pod").write_text("not a folder")
    with pytest.raises(Unavailable):
        lab.clusters.add(_pod())
    assert _names(lab) == {"alpha", "beta"}
    with lab.client() as client:
        assert client.ready()


def test_without_a_server_clusters_are_written_down_and_wait_for_it(tmp_path: Path) -> None:
    lab = Lab(tmp_path / "home")
    lab.home.write_config(Config(clusters=clusters(), port=7_999, objects=f"file://{tmp_path / 'objects'}"))
    lab.clusters.add(_pod())
    assert lab.clusters.show("pod").view is None
    assert "no server runs" in _ms(lab, "cluster", "ls").stdout
    assert lab.home.config() == Config(
        clusters=(*clusters(), _pod()), port=7_999, objects=f"file://{tmp_path / 'objects'}"
    )
    done = _ms(lab, "cluster", "remove", "pod")
    assert done.returncode == Unavailable.exit_code
    assert "ms up, or --force" in done.stderr
    assert _ms(lab, "cluster", "remove", "pod", "--force").returncode == 0
    assert _names(lab) == {"alpha", "beta"}


def test_memory_of_chips_that_slurm_does_not_tell_is_kept_with_the_cluster(tmp_path: Path) -> None:
    lab = Lab(tmp_path / "home")
    lab.home.write_config(Config(clusters=clusters()))
    words = ("cluster", "add", "slurm", "hall", "--no-check", "--partition", "main", "--shared", "/shared")
    assert _ms(lab, *words, "--chip-memory", "a100=79.2", "--chip-memory", "l4=22.5").returncode == 0
    kept = next(cluster for cluster in lab.home.config().clusters if cluster.name == "hall")
    assert isinstance(kept, SlurmCluster)
    assert kept.chip_memory_gib == {"a100": 79.2, "l4": 22.5}


def test_clusters_added_at_once_are_all_there(tmp_path: Path) -> None:
    lab = Lab(tmp_path / "home")  # Nobody has used it: the clusters found here are set up by themselves.
    command = [PROGRAM, "cluster", "add", "local"]
    environment = {**os.environ, "MAINSPRING_HOME": str(lab.home.path)}
    adding = [
        subprocess.Popen([*command, f"pod-{index}", "--chip", "h100"], env=environment, stdout=subprocess.DEVNULL)
        for index in range(4)
    ]
    assert [process.wait(60) for process in adding] == [0, 0, 0, 0]
    assert _names(lab) == {*(each.name for each in Config().clusters), *(f"pod-{index}" for index in range(4))}


@pytest.mark.soak
@pytest.mark.skipif(bool(slurm_missing()), reason=slurm_missing())
def test_a_slurm_cluster_is_added_once_its_set_up_is_sound(lab: Lab, tmp_path: Path) -> None:
    with SlurmServer(tmp_path / "slurm", nodes=[SlurmNodes(count=2)]) as server:
        shared = str(tmp_path / "shared")
        words = ("cluster", "add", "slurm", "hall", "--shared", shared, "--price", "h100=2.4")
        done = _ms(lab, *words, "--partition", "mian", **server.environment)
        assert done.returncode == Unavailable.exit_code
        assert "did you mean 'main'?" in done.stdout + done.stderr
        assert _names(lab) == {"alpha", "beta"}
        done = _ms(lab, *words, "--partition", "main", **server.environment)
        assert done.returncode == 0, done.stdout + done.stderr
        assert "n[1-2]" in done.stdout
        assert "16 of 16" in done.stdout
        done = _ms(lab, "cluster", "check", "hall", "--json", **server.environment)
        assert {finding["standing"] for finding in json.loads(done.stdout)} == {"ok"}, done.stdout
        server.kill_controller()
        done = _ms(lab, "cluster", "check", "hall", **server.environment)
        assert done.returncode == Unavailable.exit_code
        assert "slurmctld" in done.stderr
        assert lab.clusters.remove("hall").left == ()
