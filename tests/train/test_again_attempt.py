"""Devices that hold the whole state check their neighbours: whose memory is wrong is named, and told to the lead."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from mainspring.data import View
from mainspring.data.views.manifest import Split
from mainspring.domain import wire
from tests.session.agent import Agent, welcome

from .again_of_devices import CHECK_EVERY, STEPS

ROOT = Path(__file__).parents[2]
EVERY = 5
NEVER = 0
pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
EQUAL = wire.StepTried(step=CHECK_EVERY, equal=True, agreed_step=CHECK_EVERY - 1)


def trained(
    view: View, folder: Path, *, devices: int, flip_after: int = NEVER, device: int = 0, agent: Agent | None = None
) -> Any:
    """Returns what a rank says of itself that trains on so many devices."""
    environment = {
        **os.environ,
        "NPROC": "64",
        "XLA_FLAGS": f"--xla_force_host_platform_device_count={devices} --xla_backend_optimization_level=0",
        "JAX_PLATFORMS": "cpu",
        "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}",
    }
    words = ["" if agent is None else agent.path, str(folder), view.manifest.id, str(flip_after), str(device)]
    command = [sys.executable, "-m", "tests.train.again_of_devices", *words]
    done = subprocess.run(
        command, env=environment, cwd=ROOT, stdout=subprocess.PIPE, text=True, timeout=400, check=True
    )
    return json.loads(done.stdout)


@pytest.fixture(scope="module")
def folder(views: dict[Split, View], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the store of the views lies."""
    return next(path for path in tmp_path_factory.getbasetemp().glob("swing*") if (path / "objects").is_dir())


def told(view: View, folder: Path, tmp_path: Path, **faults: Any) -> list[wire.StepTried]:
    agent = Agent(tmp_path)
    agent.reply = wire.StepReply(snapshot_every=EVERY)
    agent.welcomes.put(welcome(rank=0, world_size=1, every=EVERY))
    said = trained(view, folder, agent=agent, **faults)
    assert said["step"] == STEPS
    compiled = {int(step): count for step, count in said["compiled"].items()}
    for step in range(CHECK_EVERY, STEPS + 1, CHECK_EVERY):
        assert compiled[step] == compiled[step - 1] > 0, "what checks run is there since the first step"
    facts = [commit.state["agreed_step"] for commit in agent.all(wire.SnapshotCommit)]
    assert facts[0] == CHECK_EVERY - 1, "a snapshot tells on which step all agreed"
    agent.hang_up()
    return agent.all(wire.StepTried)


def test_device_whose_memory_is_wrong_stands_alone_and_is_named_with_the_step_on_which_all_agreed(
    views: dict[Split, View], folder: Path, tmp_path: Path
) -> None:
    found = told(views["train"], folder, tmp_path, devices=4, flip_after=CHECK_EVERY + 2, device=2)
    first, second, *_ = found
    assert first == EQUAL
    assert (second.step, second.equal, second.certain, second.again) == (2 * CHECK_EVERY, False, True, False)
    assert (second.ranks, second.device) == ((0,), "device 2 of rank 0 (cpu)")
    assert second.agreed_step == CHECK_EVERY - 1


@pytest.mark.soak
def test_of_two_devices_that_disagree_both_are_suspected_and_none_is_blamed(
    views: dict[Split, View], folder: Path, tmp_path: Path
) -> None:
    found = told(views["train"], folder, tmp_path, devices=2, flip_after=CHECK_EVERY + 2, device=1)
    assert found[0] == EQUAL
    assert [(one.equal, one.certain, one.ranks) for one in found[1:]] == [(False, False, (0,))] * 2
    assert found[1].device == "device 0 of rank 0 (cpu), device 1 of rank 0 (cpu)"


@pytest.mark.soak
def test_sound_devices_agree_at_every_check(views: dict[Split, View], folder: Path, tmp_path: Path) -> None:
    found = told(views["train"], folder, tmp_path, devices=3)
    assert [(one.step, one.equal) for one in found] == [(step, True) for step in (4, 8, 12)]


def test_run_without_a_lead_ends_where_a_device_stands_alone(views: dict[Split, View], folder: Path) -> None:
    said = trained(views["train"], folder, devices=3, flip_after=CHECK_EVERY + 1, device=0)
    assert "device 0 of rank 0 (cpu) computes otherwise than two that agree" in said["error"]
    assert "step 8" in said["error"]
