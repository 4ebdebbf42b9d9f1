"""A check of a Slurm cluster whose commands are on a login node, over a real sshd."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator
from os import environ
from pathlib import Path

import pytest

from mainspring.app.server.checking import LOGIN, findings
from mainspring.domain.ids import ClusterName
from mainspring.engines.common.kind import CheckResult, Finding
from mainspring.engines.slurm.cluster.config import SlurmCluster
from mainspring.engines.slurm.setup.findings import STEPS
from mainspring.testing.slurm import SlurmNodes, SlurmServer, slurm_missing
from tests.engines.sshd import Sshd

pytestmark = [pytest.mark.slow, pytest.mark.skipif(bool(slurm_missing()), reason=slurm_missing())]


@pytest.fixture
def sshd(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Sshd]:
    """A login node: only over it is Slurm found."""
    for name in ("ssh", "bin"):
        (tmp_path / name).mkdir()
    with SlurmServer(tmp_path / "slurm", nodes=[SlurmNodes(count=1)]) as server:
        made = Sshd(tmp_path / "ssh", greeting="Welcome. 3 updates can be applied.", exports=server.environment)
        ssh = tmp_path / "bin" / "ssh"
        ssh.write_text(f'#!/bin/sh\nexec {shutil.which("ssh")} -F {made.client} "$@"\n')
        ssh.chmod(0o700)
        monkeypatch.setenv("PATH", f"{ssh.parent}:{environ['PATH']}")
        try:
            yield made
        finally:
            made.kill()


def _found(tmp_path: Path, *, python: str = "") -> list[Finding]:
    shared = str(tmp_path / "shared")
    cluster = SlurmCluster(name=ClusterName("hall"), partitions=("main",), shared=shared, ssh="login", python=python)
    return list(findings(cluster, controller="", certificate="", run_as={}))


def test_a_check_over_ssh_looks_at_everything_from_the_login_node(sshd: Sshd, tmp_path: Path) -> None:
    found = _found(tmp_path)
    assert [finding.name for finding in found] == [LOGIN, *STEPS]
    assert {finding.name for finding in found if finding.standing is CheckResult.FAILED} == set()
    assert "Mainspring" in found[0].found


def test_a_check_of_a_login_node_that_lets_nobody_in_says_why(sshd: Sshd, tmp_path: Path) -> None:
    (found,) = _found(tmp_path, python="/nowhere/python")
    assert (found.name, found.standing) == (LOGIN, CheckResult.FAILED)
    assert "/nowhere/python" in found.found
    sshd.lock_out()
    (found,) = _found(tmp_path)
    assert (found.name, found.standing) == (LOGIN, CheckResult.FAILED)
    assert "Permission denied" in found.found
    assert f"ssh login {sys.executable}" in found.fix
