"""The page about evaluation tells the truth: its commands run, in order, from a world of one's own to a gate."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from mainspring.app.sdk.lab import Lab
from mainspring.domain.life import ended

PAGE = Path(__file__).parents[2] / "docs" / "evaluation.md"


@pytest.mark.soak
@pytest.mark.timeout(900)
def test_commands_of_the_evaluation_page_run(tmp_path: Path) -> None:
    blocks = re.findall(r"```sh\n(.*?)```", PAGE.read_text(), re.DOTALL)
    environment = {name: value for name, value in os.environ.items() if not name.startswith("MAINSPRING_")}
    environment["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{environment['PATH']}"
    environment |= {"MAINSPRING_HOME": str(tmp_path / "home"), "COLUMNS": "200", "PYTHONPATH": str(tmp_path)}
    script = "\n".join(["set -eux -o pipefail", *blocks])
    lab = Lab(tmp_path / "home")
    try:
        done = subprocess.run(
            ["bash", "-c", script], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=780
        )
    finally:  # What the rule has started goes on without it, and without a server.
        for job in [view.id for view in lab.ps() if not ended(view.state)]:
            lab.stop(job)
            lab.wait(job, timeout_s=60)
        lab.down()
    assert done.returncode == 0, done.stderr[-4_000:] + done.stdout[-2_000:]
    reports = lab.evaluations.ls()
    assert {report.name for report in reports} >= {"reach-py-Reach.seed0.starts40"}
    best = max(report.success.rate for report in reports if report.success is not None)
    assert best > 0.5
    assert all(report.score is not None for report in reports if report.success is not None)
    assert re.search(r"of the same starts +[+-]\d", done.stdout)
    assert all(report.held_out[0].task == "come to the mark" for report in reports)
    assert (tmp_path / "report" / "report.md").exists()
    assert "nightly" in done.stdout
    assert re.search(r"works +job-\S+ +passed", done.stdout)
