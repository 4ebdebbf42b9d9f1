"""The page about services tells the truth: its commands run, in order, and a robot is answered by what they began."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest

from mainspring.app.base.home import Config
from mainspring.app.sdk.lab import Lab, job
from mainspring.domain.ids import ChipName, ClusterName
from mainspring.domain.life import ended
from mainspring.engines.local.config import LocalCluster
from tests.app.ready_ms import path_with_ready_ms

pytest.importorskip("metaworld", reason="the sim extra is not installed")

from mainspring.data import ViewRecipe, build_view, ingest
from mainspring.robots.recorder import record_episodes
from mainspring.testing.time_and_chance import FakeClock

PAGE = (Path(__file__).parents[2] / "docs" / "serving.md").read_text()
STEPS = 20
POLICY = "import numpy as np\n\n\ndef act(observation):\n    return np.zeros((4, 2), dtype=np.float32)\n"
# Waits for so many replicas of a version; then asks as an openpi client does: a greeting, an observation, a chunk.
READY = """
import sys, threading
from mainspring import Lab
name, version, wanted = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
for _ in range(600):
    seen = Lab().service(name)
    if sum(one.ready and one.version == version for one in seen.members) >= wanted:
        sys.exit(0)
    threading.Event().wait(0.5)
sys.exit(f"waited for {wanted} replicas of version {version}: {seen}")
"""
ASK = """
import sys
import numpy as np
from websockets.sync.client import connect
from mainspring import Lab
from mainspring.robots.serving.wire import pack, unpack
shown = {"Authorization": "Api-Key " + sys.argv[1]}
with connect(Lab().service("pick").address, additional_headers=shown, compression=None) as line:
    unpack(line.recv())
    line.send(pack({name: np.zeros(39, np.float32) for name in ("state", "before")}))
    print("answered", unpack(line.recv())["actions"].shape)
"""
# What comes after a command of the page. Chips of the site are those that the page names; its jobs are ours.
AFTER = {
    "ms serve JOB@1": "python ready.py pick 1 2",
    "ms token new": "python ask.py $(cat token)",
    "ms service update": "python ready.py pick 2 2; python ask.py $(cat token)",
    "ms service scale": "ms service show pick --json > scaled.json",
    "ms serve pick:act": "python ready.py pick-act 1 1; ms service stop pick-act",
}


def commands() -> list[str]:
    """Every command of the page that has no word for something else, in order, its end and the SDK's lines last."""
    found = [line for block in re.findall(r"```sh\n(.*?)```", PAGE, re.DOTALL) for line in block.splitlines()]
    found += re.findall(r"`(ms serve pick:act -- --rate 20|ms service (?:scale|update|stop) pick[^`]*)`", PAGE)
    order = [f"ms {word}" for word in ("serve train", "service ls", "service show", "token", "service scale")]
    order += [f"ms {word}" for word in ("service update", "serve pick:act", "service stop")]
    assert {word for word in order if any(line.startswith(word) for line in found)} == {*order}
    return sorted(found, key=lambda line: next(number for number, word in enumerate(order) if line.startswith(word)))


def run_line(line: str, first: str, second: str) -> str:
    told = line.replace("train@1000", first).replace("train@2000", second)
    after = next((words for start, words in AFTER.items() if line.replace("train@1000", "JOB@1").startswith(start)), "")
    keep = " | tee told.txt; tail -1 told.txt > token" if line.startswith("ms token") else ""
    return f"{told}{keep}\n{after}"


def trained(lab: Lab, view: str) -> str:
    """Returns a checkpoint that a job has left."""
    command = ["python", "-m", "mainspring", "train", "--objects", lab.home.objects_url(lab.home.config())]
    command += ["--view", view, "--cache", str(lab.home.cache), "--recipe", "arm", "--steps", str(STEPS)]
    done = lab.wait(lab.run(job("train", command, on=["h100"])).id, timeout_s=600)
    return f"{done.id}@{done.step}"


@pytest.mark.soak
@pytest.mark.timeout(1_500)
def test_commands_of_the_page_about_services_run(tmp_path: Path) -> None:
    lab, work = Lab(tmp_path / "home"), tmp_path / "work"
    work.mkdir()
    for name, text in (("pick", POLICY), ("ready", READY), ("ask", ASK)):
        (work / f"{name}.py").write_text(text)
    clusters = [
        LocalCluster(name=ClusterName(chip), chip=ChipName(chip), chips_per_node=4, nodes=2, dollars_per_chip_hour=1.0)
        for chip in ("h100", "cpu")
    ]
    lab.home.write_config(Config(clusters=tuple(clusters)))
    environment = {name: value for name, value in os.environ.items() if not name.startswith("MAINSPRING_")}
    environment |= {"PATH": path_with_ready_ms(), "MAINSPRING_HOME": str(lab.home.path), "COLUMNS": "200"}
    record_episodes(tmp_path / "recordings", count=4, seed=0, progress=lambda done: None)
    report = ingest(tmp_path / "recordings", lab.objects(), "pick-place", clock=FakeClock())
    assert report.version is not None
    view = build_view(lab.objects(), report.version, ViewRecipe(holdout_fraction=0.0), scratch_dir=tmp_path).id
    (sdk,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    (work / "serve.py").write_text(sdk)
    try:
        lab.up(port=0)
        lab.clusters.wait()
        first, second = trained(lab, view), trained(lab, view)
        lines = [run_line(line, first, second) for line in commands()]
        script = "\n".join(["set -eux -o pipefail", *lines, "python serve.py", "python ready.py pick 1 2"])
        done = subprocess.run(
            ["bash", "-c", script], cwd=work, env=environment, capture_output=True, text=True, timeout=900
        )
    finally:
        for service in lab.services():
            lab.stop_service(service.name)
        for each in [each for each in lab.ps() if not ended(each.state)]:
            lab.stop(each.id)
            lab.wait(each.id, timeout_s=120)  # What runs would outlive the server, and this test.
        lab.down()
    assert done.returncode == 0, done.stderr[-4_000:] + done.stdout[-2_000:]
    assert done.stdout.count("answered (") == 2
    assert '"replicas_max": 16' in (work / "scaled.json").read_text()
