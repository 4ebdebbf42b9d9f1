"""Which engines a server has: a Slurm whose commands are on another machine, beside a local cluster."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from mainspring.app.base.home import Config, Home
from mainspring.app.base.system import SystemClock
from mainspring.app.sdk.lab import Lab, job
from mainspring.app.server.engines import Engines, open_engine
from mainspring.domain.codec import frame, unframe
from mainspring.domain.errors import InvalidMessage, Unavailable
from mainspring.domain.ids import ChipName, ClusterName
from mainspring.domain.life import JobState, ended
from mainspring.domain.wire.trust import CERTIFICATE_VARIABLE
from mainspring.engines.common.kind import EngineContext
from mainspring.engines.local.kind import open_local
from mainspring.engines.remote.wire import FarAlive
from mainspring.engines.slurm.cluster.config import SlurmCluster
from mainspring.engines.slurm.kind import OpenSlurm, open_slurm
from mainspring.testing.slurm import SlurmNodes, SlurmServer, slurm_missing
from tests.app.certificates import self_signed
from tests.app.conftest import clusters, until
from tests.engines.sshd import Sshd


def slurm(folder: Path, **fields: str) -> SlurmCluster:
    return SlurmCluster(
        name=ClusterName("slurm"),
        partitions=("main",),
        shared=str(folder / "shared"),
        scratch=str(folder),
        dollars_per_chip_hour={ChipName("h100"): 2.0},
        simulated=True,
        refresh_s=1.0,
        **fields,  # type: ignore[arg-type]
    )


@pytest.fixture
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Lab]:
    """A lab with TLS, whose Slurm is reached over SSH alone, in folders short enough for sockets."""
    if missing := slurm_missing():
        pytest.skip(missing)
    for name in ("tls", "ssh", "bin"):
        (tmp_path / name).mkdir()
    with SlurmServer(tmp_path / "server", nodes=[SlurmNodes(count=2, chips=1)]) as server:
        sshd = Sshd(tmp_path / "ssh", greeting="Welcome.", exports=server.environment)
        ssh = tmp_path / "bin" / "ssh"
        ssh.write_text(f'#!/bin/sh\nexec {shutil.which("ssh")} -F {sshd.client} "$@"\n')
        ssh.chmod(0o700)
        monkeypatch.setenv("PATH", f"{ssh.parent}:{os.environ['PATH']}")
        monkeypatch.delenv("SLURM_CONF", raising=False)
        certificate = self_signed(tmp_path / "tls", name="localhost")
        made = Lab(tmp_path / "home")
        made.home.write_config(
            Config(
                host="localhost",
                certificate=str(certificate.chain),
                key=str(certificate.key),
                clusters=(*clusters()[1:], slurm(tmp_path, ssh="login")),
            )
        )
        made.up(port=0)
        try:
            yield made
            for view in made.ps():
                if not ended(view.state):
                    made.stop(view.id)
            with suppress(AssertionError):
                until(lambda: all(ended(view.state) for view in made.ps()), "jobs to end", wait_s=20)
        finally:
            made.down()
            sshd.kill()


@pytest.mark.slow
def test_a_job_runs_on_a_slurm_reached_over_ssh_and_its_agents_call_back_over_tls(lab: Lab) -> None:
    until(
        lambda: {view.inventory.cluster for view in lab.fleet() if view.answering} == {"beta", "slurm"}, "both clusters"
    )
    words = [sys.executable, "-c", f"import os; assert {CERTIFICATE_VARIABLE!r} not in os.environ; print('hello')"]
    view = lab.run(job("far", words, on=["h100"], replicas=2))
    until(lambda: ended(lab.status(view.id).state), "the job to end")
    assert lab.status(view.id).state is JobState.SUCCEEDED
    assert [attempt.cluster for attempt in lab.status(view.id).attempts] == ["slurm"]
    assert b"hello" in b"".join(lab.logs(view.id))


@pytest.mark.slow
def test_a_cluster_whose_commands_are_missing_is_silent_in_plain_words_and_holds_up_nobody(
    tmp_path: Path,
) -> None:
    config = Config(clusters=(*clusters(), slurm(tmp_path)))
    clock = SystemClock()
    begun = clock.monotonic_s()
    engines = Engines(config, Home(tmp_path), environment={"PATH": "/nowhere", "MAINSPRING_HOME": "x"}, clock=clock)
    assert list(engines.by_name) == ["alpha", "beta", "slurm"]
    assert len(engines.by_name[ClusterName("alpha")].inventory().nodes) == 2
    with pytest.raises(Unavailable):
        engines.by_name[ClusterName("slurm")].inventory()
    assert clock.monotonic_s() - begun < 10.0

    def told() -> bool:
        try:
            engines.by_name[ClusterName("slurm")].inventory()
        except Unavailable as error:
            return "PATH" in str(error)
        return False

    until(told, "what is missing to be told")
    engines.close()


def test_agents_get_the_certificate_and_no_credentials_of_slurms_account(tmp_path: Path) -> None:
    given = {"PATH": "/usr/bin", "SLURM_CONF": "/conf", "SLURM_JWT": "secret", "MAINSPRING_HOME": "x", "OTHER": "y"}
    context = EngineContext(environment=given, certificate="PEM", folder=tmp_path, clock=SystemClock())
    engine = open_slurm(slurm(tmp_path), context)
    local = open_local(clusters()[0], context)
    handed = str(vars(vars(engine)["_launching"]))
    assert "SLURM_CONF=/conf" in handed
    assert f"{CERTIFICATE_VARIABLE}=PEM" in handed
    assert "secret" not in handed
    assert vars(local)["_environment"][CERTIFICATE_VARIABLE] == "PEM"
    assert "MAINSPRING_HOME" not in vars(local)["_environment"]


def test_a_host_makes_what_its_opening_names_and_nothing_else(tmp_path: Path) -> None:
    opening = OpenSlurm(cluster=slurm(tmp_path), certificate="")
    assert unframe(frame(opening)[4:], OpenSlurm) == opening
    open_engine(opening)
    with pytest.raises(InvalidMessage, match="FarAlive"):
        unframe(frame(FarAlive())[4:], OpenSlurm)
