"""What a check of the set-up finds, on a real Slurm that is sound and on ones that are not."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest

from mainspring.app.base.system import SystemClock
from mainspring.app.server.checking import Ask
from mainspring.domain.codec import decode, encode, to_plain
from mainspring.domain.ids import ChipName, ClusterName
from mainspring.engines.common.kind import CheckResult, Finding
from mainspring.engines.slurm.cluster.commands import Commands
from mainspring.engines.slurm.cluster.config import SlurmCluster
from mainspring.engines.slurm.setup import check_node
from mainspring.engines.slurm.setup.check import SetUp
from mainspring.engines.slurm.setup.check_node import Trial
from mainspring.engines.slurm.setup.findings import STEPS, NodeAnswer, NodeAsk
from mainspring.testing.slurm import SlurmNodes, SlurmPartition, SlurmServer, slurm_missing

real = pytest.mark.skipif(bool(slurm_missing()), reason=slurm_missing())
accounted = pytest.mark.skipif(bool(slurm_missing(accounting=True)), reason=slurm_missing(accounting=True))
ON_NODE = STEPS[STEPS.index("test job") :]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SlurmServer]:
    partitions = (SlurmPartition(name="robots"), SlurmPartition(name="closed", extra="State=DOWN"))
    nodes = [SlurmNodes(count=2, chips=2), SlurmNodes(count=1, prefix="c", chip="", cpus=4)]
    with SlurmServer(tmp_path_factory.mktemp("slurm"), nodes=nodes, partitions=partitions) as started:
        yield started


def _cluster(tmp_path: Path, **fields: Any) -> SlurmCluster:
    given = {"name": ClusterName("hall"), "partitions": ("robots",), "shared": str(tmp_path / "shared"), **fields}
    return SlurmCluster(**given)


def _found(
    server: SlurmServer, cluster: SlurmCluster, *, controller: str = "", environment: dict[str, str] | None = None
) -> dict[str, Finding]:
    set_up = SetUp(
        cluster,
        Commands(cluster, {**os.environ, **server.environment, **(environment or {})}),
        ask=NodeAsk(
            python=cluster.python or sys.executable, scratch=cluster.scratch, controller=controller, certificate=""
        ),
        version=version("mainspring"),
        clock=SystemClock(),
    )
    found = list(set_up.findings())
    assert tuple(finding.name for finding in found) == STEPS
    assert all(finding.fix for finding in found if finding.standing in (CheckResult.FAILED, CheckResult.WARNING))
    return {finding.name: finding for finding in found}


def _standing(found: dict[str, Finding], standing: CheckResult) -> set[str]:
    return {name for name, finding in found.items() if finding.standing is standing}


def _jobs(server: SlurmServer) -> str:
    return server.run("squeue", "-h", "-o", "%j").stdout


@real
@pytest.mark.slow
def test_check_of_a_sound_cluster_finds_nothing_wrong_and_leaves_nothing(server: SlurmServer, tmp_path: Path) -> None:
    prices = {ChipName("h100"): 2.0, ChipName("cpu"): 0.01}
    found = _found(server, _cluster(tmp_path, dollars_per_chip_hour=prices))
    assert _standing(found, CheckResult.OK) == set(STEPS) - {"server from a node"}
    assert found["server from a node"].standing is CheckResult.SKIPPED  # None runs.
    assert "2 x 2 h100" in found["chips"].found
    assert "1 x 4 cpu" in found["chips"].found
    assert list((tmp_path / "shared").iterdir()) == []
    assert (tmp_path / "shared").stat().st_mode & 0o777 == 0o700
    assert "mainspring" not in _jobs(server)


@real
@pytest.mark.slow
def test_check_warns_of_chips_without_a_price_and_of_names_no_node_has(server: SlurmServer, tmp_path: Path) -> None:
    (tmp_path / "shared").mkdir()  # Open to others: the last steps are not wanted here.
    found = _found(server, _cluster(tmp_path, chips={"a100": ChipName("big")}))
    assert _standing(found, CheckResult.WARNING) == {"chips", "prices"}
    assert "a100" in found["chips"].found
    assert "h100" in found["chips"].fix
    assert _standing(found, CheckResult.FAILED) == {"shared folder"}
    assert "chmod 700" in found["shared folder"].fix
    assert _standing(found, CheckResult.SKIPPED) == set(ON_NODE)


@real
@pytest.mark.slow
@pytest.mark.parametrize(
    ("fields", "step", "words"),
    [
        ({"partitions": ("robot",)}, "partitions", "did you mean 'robots'?"),
        ({"partitions": ("closed",)}, "partitions", "State=UP"),
        ({"shared": "/nowhere/at/all"}, "shared folder", "mkdir"),
    ],
)
def test_check_of_a_wrong_description_says_what_would_be_right_and_runs_no_job(
    server: SlurmServer, tmp_path: Path, fields: dict[str, Any], step: str, words: str
) -> None:
    found = _found(server, _cluster(tmp_path, **fields))
    assert _standing(found, CheckResult.FAILED) == {step}
    assert words in found[step].fix
    assert set(ON_NODE) <= _standing(found, CheckResult.SKIPPED)


@real
@pytest.mark.slow
def test_check_without_commands_or_controller_says_so_and_skips_what_needs_them(
    server: SlurmServer, tmp_path: Path
) -> None:
    found = _found(server, _cluster(tmp_path), environment={"PATH": str(tmp_path)})
    assert _standing(found, CheckResult.FAILED) == {"commands"}
    assert _standing(found, CheckResult.OK) == {"shared folder"}
    hasty = _cluster(tmp_path, command_s_max=1.0)
    found = _found(server, hasty, environment={"SLURM_CONF": str(tmp_path / "none.conf")})
    assert _standing(found, CheckResult.FAILED) == {"commands"}
    assert "SLURM_CONF" in found["commands"].fix
    assert set(ON_NODE) <= _standing(found, CheckResult.SKIPPED)


@real
@pytest.mark.slow
def test_check_of_a_node_without_python_or_scratch_or_the_way_back_says_which(
    server: SlurmServer, tmp_path: Path
) -> None:
    found = _found(server, _cluster(tmp_path, python="/nowhere/python"))
    assert _standing(found, CheckResult.FAILED) == {"test job"}
    assert "/nowhere/python" in found["test job"].found
    assert "--python" in found["test job"].fix
    bare = tmp_path / "bare"
    bare.write_text(f'#!/bin/sh\nexec {sys.executable} -S -I "$@"\n')  # A Python without packages.
    bare.chmod(0o700)
    wrong = _cluster(tmp_path, python=str(bare), scratch=f"{bare}/none")  # A file is nobody's folder, not even root's.
    found = _found(server, wrong, controller="http://127.0.0.1:1")
    assert _standing(found, CheckResult.FAILED) == {"Mainspring on a node", "scratch on a node"}
    found = _found(server, _cluster(tmp_path), controller="http://127.0.0.1:1")
    assert _standing(found, CheckResult.FAILED) == {"server from a node"}
    assert "host" in found["server from a node"].fix
    assert list((tmp_path / "shared").iterdir()) == []


@real
@pytest.mark.slow
@pytest.mark.skipif(os.geteuid() != 0, reason="a folder that nodes do not see needs a mount of its own: root")
def test_check_of_a_folder_that_nodes_do_not_see_says_so(server: SlurmServer, tmp_path: Path) -> None:
    cluster = _cluster(tmp_path)
    Path(cluster.shared).mkdir(mode=0o700)
    words = 'mount -t tmpfs -o mode=700 none "$0" && exec "$@"'
    done = subprocess.run(
        ["unshare", "-m", "sh", "-c", words, cluster.shared, sys.executable, "-m", "mainspring", "check-cluster"],
        input=encode(
            Ask(kind="slurm", cluster=to_plain(cluster), controller="", certificate="", version=version("mainspring"))
        ),
        env={**os.environ, **server.environment},
        capture_output=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    found = {finding.name: finding for finding in (decode(Finding, line) for line in done.stdout.splitlines())}
    assert _standing(found, CheckResult.FAILED) == {"test job"}
    assert f"does not see {cluster.shared}" in found["test job"].found


@real
@pytest.mark.slow
@pytest.mark.skipif(os.geteuid() != 0, reason="jobs of another user need root")
def test_check_of_a_pinned_partition_with_jobs_of_others_warns(server: SlurmServer, tmp_path: Path) -> None:
    held = ("--hold", "--output=/dev/null", "--wrap=true")
    assert server.run("sbatch", *held, user="nobody").returncode == 0
    try:
        found = _found(server, _cluster(tmp_path, python="/nowhere/python"))
        assert "1 jobs of others" in found["partitions"].found
        assert found["partitions"].standing is CheckResult.WARNING
        delegated = _cluster(tmp_path, python="/nowhere/python", delegated=True)
        assert _found(server, delegated)["partitions"].standing is CheckResult.OK
    finally:
        server.run("scancel", "-u", "nobody")


@accounted
@pytest.mark.slow
def test_check_of_accounts_and_qos_names_the_ones_this_user_has(tmp_path: Path) -> None:
    with SlurmServer(tmp_path / "slurm", nodes=[SlurmNodes(count=1)], accounting=True) as server:
        fields: dict[str, Any] = {"partitions": ("main",), "python": "/nowhere/python"}
        found = _found(server, _cluster(tmp_path, **fields, accounts={"lab": "main"}, qos={"critical": "normal"}))
        assert found["accounts"].standing is CheckResult.OK, found["accounts"]
        assert "--account=main" in found["submitting"].found
        found = _found(server, _cluster(tmp_path, **fields, accounts={"lab": "mian"}))
        assert _standing(found, CheckResult.FAILED) >= {"accounts", "submitting"}
        assert "did you mean 'main'?" in found["accounts"].fix
        found = _found(server, _cluster(tmp_path, **fields, qos={"critical": "high"}))
        assert "no QOS 'high'" in found["accounts"].found


def _trial(**fields: Any) -> Trial:
    sound = NodeAnswer(
        asked="x",
        node="n1",
        python="3.11.7",
        version="1.0",
        agent_error="",
        scratch_error="",
        scratch_free_bytes=1 << 40,
        server_status=200,
        server_error="",
        server_ahead_s=0.2,
        time_s=105.0,
    )
    return Trial(node="n1", waited_s=10.0, begun_s=100.0, over_s=110.0, answer=replace(sound, **fields))


@pytest.mark.parametrize(
    ("fields", "standing", "words"),
    [
        ({"server_ahead_s": 4.0}, CheckResult.OK, "4.0 s behind"),
        ({"server_ahead_s": -60.0}, CheckResult.FAILED, "60.0 s ahead"),
        ({"server_ahead_s": None, "time_s": 106.0}, CheckResult.OK, "within a second"),
        ({"server_ahead_s": None, "time_s": 40.0}, CheckResult.FAILED, "60.0 s behind"),
        ({"server_ahead_s": None, "time_s": 170.0}, CheckResult.FAILED, "60.0 s ahead"),
    ],
)
def test_clocks_are_compared_with_the_servers_or_else_with_when_the_job_ran(
    fields: dict[str, Any], standing: CheckResult, words: str
) -> None:
    finding = check_node.clocks_agree(_trial(**fields))
    assert finding.standing is standing
    assert words in finding.found


def test_another_version_on_the_node_is_refused() -> None:
    finding = check_node.agent_can_start(_trial(version="0.9"), "1.0")
    assert finding.standing is CheckResult.FAILED
    assert "0.9" in finding.found
    assert "1.0" in finding.fix


@pytest.mark.parametrize(
    ("url", "words"), [("http://127.0.0.1:7077", "host"), ("https://lab.example.org", "public_url")]
)
def test_a_server_that_nodes_do_not_reach_is_told_with_what_to_set(url: str, words: str) -> None:
    finding = check_node.server_answers(_trial(server_status=0, server_error="ConnectError: no route"), url)
    assert finding.standing is CheckResult.FAILED
    assert "no route" in finding.found
    assert words in finding.fix


def test_a_scratch_folder_that_is_nearly_full_is_a_warning() -> None:
    finding = check_node.scratch_has_room(_trial(scratch_free_bytes=1 << 20), "/scratch")
    assert finding.standing is CheckResult.WARNING
