"""`ms demo --loop` where something goes wrong: what a gate keeps back, and processes that cannot go on."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("metaworld", reason="the sim extra is not installed")

from mainspring.app.cli.demos.loop.site import SITE, WORK, ArmSite, Site, Work, write_plain
from mainspring.app.cli.demos.loop.story import merged
from mainspring.app.sdk.lab import Lab
from mainspring.data import VersionCandidate, Waiver
from mainspring.domain.errors import Conflict, InvalidMessage
from tests.data.making import record

pytestmark = pytest.mark.slow


def test_what_a_gate_keeps_back_is_merged_by_waivers_where_it_alone_waits(tmp_path: Path) -> None:
    lab, asked = Lab(tmp_path / "home"), list[str]()
    for seed, (name, scale) in enumerate({"usual": 1.0, "high": 40.0, "higher": 90.0}.items()):
        record(tmp_path / name / "a.mcap", steps=1_200, seed=seed, scale=scale)
        lab.data.ingest(tmp_path / name, dataset=name)

    def waivers(candidate: VersionCandidate) -> list[Waiver]:
        asked.append(candidate.id)
        closed = sorted({finding.gate for finding in lab.data.findings(candidate)})
        return [Waiver(gate=gate, by="ada", reason="it is higher") for gate in closed]

    assert merged(lab.data, ["usual", "high"], "one", waivers=waivers).name == "one@1"
    assert len(asked) == 1
    with pytest.raises(Conflict):
        lab.data.merge(["usual", "high"], "two")
    with pytest.raises(Conflict, match="publish a version"):  # Which of both is meant?
        merged(lab.data, ["usual", "higher"], "two", waivers=waivers)
    assert len(asked) == 1


def plays(folder: Path) -> subprocess.CompletedProcess[str]:
    """Plays one arm, on which nothing runs, until the process ends by itself."""
    agent, log = folder / "agent", folder / "log"
    agent.mkdir()
    (log / "clips").mkdir(parents=True, exist_ok=True)
    arm = ArmSite(name="arm-01", ring="lab", agent=str(agent), log=str(log), port=1, token="a token", seed=1)
    site = Site(url="http://127.0.0.1:1", dataset="shelf", helper="ada", failures_each=2, arms=(arm,))
    write_plain(folder, SITE, site)
    command = [sys.executable, "-m", "mainspring.app.cli.demos.loop.physics", str(folder), "0", "1"]
    return subprocess.run(command, capture_output=True, text=True, timeout=180)


@pytest.mark.timeout(240)
def test_process_that_plays_arms_tells_what_it_cannot_read(tmp_path: Path) -> None:
    (tmp_path / WORK).write_bytes(b"no work")
    done = plays(tmp_path)
    assert done.returncode == InvalidMessage.exit_code
    assert "could not" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.timeout(240)
def test_process_that_plays_arms_ends_where_its_clips_are_sent_no_more(tmp_path: Path) -> None:
    write_plain(tmp_path, WORK, Work())
    for name in ("a.mcap", "a.json"):
        (tmp_path / "log" / "clips" / name).mkdir(parents=True)
    done = plays(tmp_path)
    assert done.returncode == 1
    assert "sending" in done.stderr
