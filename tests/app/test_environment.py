"""What a job gets of the variables of the server's shell: what is listed, what the site names, and nothing more."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from mainspring.app.base.home import Config
from mainspring.app.sdk.lab import Lab, job
from mainspring.domain.errors import InvalidSpec
from mainspring.domain.life import JobState
from mainspring.domain.wire.events.leads import CheckpointDurableEvent
from mainspring.node.process.environment import rank_environment
from tests.app.conftest import clusters, counting, halted, kinds, until
from tests.data.catalog.s3 import KEY, SECRET, moto

PRINT = "import json, os; print(json.dumps(dict(os.environ)))"


def test_rank_gets_what_is_listed_and_what_the_site_names_and_nothing_more() -> None:
    agents = {
        "PATH": "/bin",
        "LC_ALL": "C",
        "CUDA_VISIBLE_DEVICES": "0",
        "NCCL_DEBUG": "INFO",
        "AWS_SECRET_ACCESS_KEY": "s",
        "HF_HOME": "/hf",
        "HF_TOKEN": "t",
        "HTTPS_PROXY": "http://me:word@proxy",
    }
    usual = {"PATH", "LC_ALL", "CUDA_VISIBLE_DEVICES", "NCCL_DEBUG"}
    assert set(rank_environment(agents, ())) == usual
    assert set(rank_environment(agents, ("HF_HOME", "NONE"))) == {*usual, "HF_HOME"}
    assert set(rank_environment(agents, ("HF_*",))) == {*usual, "HF_HOME", "HF_TOKEN"}


@pytest.mark.parametrize("name", ["*", "", "A B", "A*B", "-", "A" * 200])
def test_a_name_to_pass_on_that_is_none_is_refused(name: str) -> None:
    with pytest.raises(InvalidSpec, match="environment_passed"):
        Config(environment_passed=(name,))


def test_more_names_to_pass_on_than_the_bound_are_refused() -> None:
    with pytest.raises(InvalidSpec, match="at most 64"):
        Config(environment_passed=tuple(f"NAME_{number}" for number in range(65)))


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Lab]:
    """Gives a lab whose object store is S3; its server's shell holds the credentials, and more."""
    (tmp_path / "s3").mkdir()
    with moto(tmp_path / "s3") as server:
        for name, value in {
            "AWS_ACCESS_KEY_ID": KEY,
            "AWS_SECRET_ACCESS_KEY": SECRET,
            "AWS_ENDPOINT_URL": f"http://127.0.0.1:{server.port}",
            "AWS_REGION": "us-east-1",
            "AWS_ALLOW_HTTP": "true",
            "SITE_CACHE": "/cache",
        }.items():
            monkeypatch.setenv(name, value)
        lab = Lab(tmp_path / "home")
        config = Config(clusters=clusters(), objects="s3://lab/objects", environment_passed=("SITE_*",))
        lab.home.write_config(config)
        lab.up(port=0)
        try:
            yield lab
        finally:
            lab.down()


@pytest.mark.slow
def test_credentials_of_the_servers_shell_reach_no_job_and_checkpoints_reach_the_store(
    store: Lab, tmp_path: Path
) -> None:
    gate = tmp_path / "gate"
    gate.mkdir()
    printing = store.run(job("print", [sys.executable, "-c", PRINT], on=["h100"], environment={"MINE": "yes"}))
    assert store.wait(printing.id, timeout_s=60).state is JobState.SUCCEEDED
    printed = json.loads(b"".join(store.logs(printing.id)))
    assert (printed["SITE_CACHE"], printed["MINE"]) == ("/cache", "yes")
    assert [name for name, value in printed.items() if name.startswith("AWS_") or SECRET in value] == []
    counted = store.run(counting(gate, 30))
    halted(store, counted.id, gate, 30)
    until(lambda: CheckpointDurableEvent.kind in kinds(store, counted.id), "a durable checkpoint")
    (gate / "go-30").touch()
    assert store.wait(counted.id, timeout_s=60).state is JobState.SUCCEEDED
