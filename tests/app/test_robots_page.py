"""The page about robots tells the truth: every command on it runs, and a robot installs what it was told to."""

from __future__ import annotations

import json
import os
import re
import subprocess
from pathlib import Path

import numpy as np
import pytest
import yaml
from safetensors.numpy import save_file

from mainspring.app.base.home import Config
from mainspring.app.edge.config import EdgeConfig
from mainspring.app.sdk.lab import Lab
from mainspring.checkpoint.exchange import import_source
from mainspring.checkpoint.safetensors import SafetensorsSource
from mainspring.domain.answers.policies.releases import Embodiment
from mainspring.domain.codec import from_plain
from mainspring.domain.ids import JobId
from mainspring.objects import ObjectStore
from mainspring.robots.evaluation.keeping import keep_gate
from mainspring.robots.evaluation.report import GateRecord
from mainspring.robots.evaluation.statistics import GateVerdict
from tests.app.conftest import clusters
from tests.app.ready_ms import path_with_ready_ms
from tests.robots.test_swupdate import archive

PAGE = (Path(__file__).parents[2] / "docs" / "robots.md").read_text()
PICK = JobId("pick")
# What a command of the page needs that stands in its text, or what it is in its place. What it says is kept in `told`.
AROUND = {
    "ms release diff": "{command} && exit 1 || [ $? -eq 1 ]",
    "ms robot enrol arm-1": "{command} > enrol.txt; cat enrol.txt",
    "ms-edge enrol": "$(sed -n 's/^On the robot, once: //p' enrol.txt)",
    "ms-edge run": "start_edge; until_told 'ms robot show arm-1' runtime",
    "ms-edge tally": "ms robot install arm-1 arm@1; again; until_told 'ms-edge status' 'runs.*arm.1.json'; {command}",
    "ms robot ls": "again; {command}",  # What it counted is told.
    "ms robot cancel arm-1": "end_edge; ms robot install arm-1 arm@2 || true; {command}; start_edge",
    "ms rollout start": "ms robot enrol sim-1 --plain --group sim; ms robot enrol lab-1 --plain --group lab; {command}",
}
PASSED = GateRecord(
    checkpoint="pick@8000", name="pick", verdict=GateVerdict.PASSED, wanted="", seen="", evaluation="e", decided_s=0.0
)
LAST = ("ms release revoke arm@2", "ms robot revoke arm-1")  # Others need what these end.
HELP = """
start_edge() { ms-edge run 2>> edge.log & EDGE=$!; }
end_edge() { kill $EDGE; wait $EDGE || true; }
again() { end_edge; start_edge; }
until_told() { for _ in $(seq 240); do if $1 2> /dev/null | grep -q "$2"; then return; fi; sleep 0.5; done
  echo "waited for $2" >&2; cat edge.log >&2; exit 1; }
trap 'kill $EDGE || true; ms down' EXIT
"""


def commands() -> list[str]:
    """Every command of the page, as a shell runs it, in order."""
    found = re.findall(r"^    (ms(?:-edge)? [^#\n]*)", PAGE, re.MULTILINE)
    assert len(found) >= 30
    ordered = sorted((line.strip() for line in found), key=lambda line: line.startswith(LAST))
    return [
        next((form for start, form in AROUND.items() if line.startswith(start)), "{command}").replace("{command}", line)
        for line in ordered
    ]


def checkpoint(folder: Path, store: ObjectStore, step: int) -> None:
    weights = np.random.default_rng(step).normal(size=(8, 8)).astype(np.float32)
    save_file({"weights/w": weights}, folder / f"{step}.safetensors")
    import_source(store, SafetensorsSource(folder / f"{step}.safetensors"), job=PICK, step=step, now_s=0.0)


@pytest.mark.soak
@pytest.mark.timeout(900)
def test_commands_of_the_page_about_robots_run(tmp_path: Path) -> None:
    lab, edge = Lab(tmp_path / "home"), tmp_path / "edge"
    script = "\n".join(["set -eux -o pipefail", HELP, *commands()])
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("MAINSPRING_", "MS_"))}
    environment |= {
        "PATH": path_with_ready_ms(),
        "MAINSPRING_HOME": str(lab.home.path),
        "MS_EDGE_FOLDER": str(edge),
        "COLUMNS": "200",
    }
    edge.mkdir()
    (edge / "edge.json").write_text(json.dumps({"command": ["/bin/sleep", "600"], "limits": {"healthy_s": 0.2}}))
    (tmp_path / "panel-2.swu").write_bytes(archive({"sw-description": b"software = {}"}))
    lab.home.write_config(Config(clusters=clusters()))
    try:
        lab.up(port=0)
        for step in (8_000, 9_000):
            checkpoint(tmp_path, lab.objects(), step)
        keep_gate(lab.objects(), PICK, 8_000, PASSED)
        done = subprocess.run(
            ["bash", "-c", script], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=880
        )
    finally:
        lab.down()
    told = done.stdout
    assert done.returncode == 0, done.stderr[-4_000:] + told[-2_000:]
    assert "arm@1 is signed, whole and right" in told
    assert "The agent goes back now" in told
    assert "went back" in told or "going back" in told
    assert "Made panel@1" in told
    assert "Revoked arm-1." in told


def test_what_the_page_shows_in_files_is_what_is_read() -> None:
    fits, config = (
        re.search(form, PAGE, re.MULTILINE | re.DOTALL)
        for form in (r"^(    state: .*?)\n\n", r'^    (\{"command".*?\})\n\n')
    )
    assert fits
    assert config
    wanted = from_plain(Embodiment, yaml.safe_load(fits[1]), strict=True)
    assert (wanted.rate_hz, wanted.cameras[0].name) == (50, "wrist")
    assert from_plain(EdgeConfig, json.loads(config[1]), strict=True).window == "22:00-06:00"
