"""The page about recordings tells the truth: its commands run, in order, and end with what it says."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest

from mainspring.app.sdk.lab import Lab
from tests.app.ready_ms import path_with_ready_ms
from tests.data.making import ROBOTS

PAGE = Path(__file__).parents[2] / "docs" / "recordings.md"


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.skipif(not ROBOTS.exists(), reason="the recordings are not here: ../shared/robots")
def test_commands_of_the_recordings_page_run_and_give_back_what_went_out(tmp_path: Path) -> None:
    blocks = re.findall(r"```sh\n(.*?)```", PAGE.read_text(), re.DOTALL)
    environment = {name: value for name, value in os.environ.items() if not name.startswith("MAINSPRING_")}
    environment["PATH"] = path_with_ready_ms()
    environment["SET"], environment["BAG"] = str(ROBOTS / "so101_v3_tabular"), str(ROBOTS / "logs" / "example-lz4.bag")
    script = "\n".join(["set -eu -o pipefail", *blocks])
    done = subprocess.run(
        ["bash", "-c", script], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=280
    )
    assert done.returncode == 0, done.stderr[-4_000:] + done.stdout[-2_000:]
    lab = Lab(tmp_path / "lab")
    found = {version.dataset: version for version in lab.data.datasets()}
    assert {name: (found[name].episodes, found[name].lossy) for name in found} == {
        "so": (4, 0),
        "turtle": (1, 1),
        "again": (4, 0),
        "back": (4, 0),
    }
    assert found["again"].id == found["so"].id
    assert "--without-camera" in done.stdout
