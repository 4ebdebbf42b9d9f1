"""The page about data tells the truth: its commands run, in order, and end with a policy that is better than none."""

from __future__ import annotations

import json
import os
import re
import subprocess
from pathlib import Path

import pytest

from mainspring.app.sdk.lab import Lab
from tests.app.ready_ms import path_with_ready_ms
from tests.data.making import ROBOTS

PAGE = Path(__file__).parents[2] / "docs" / "data.md"
RECORDINGS = ROBOTS / "unitree_g1_bottle"


def _script() -> str:
    """Returns the page's commands and programs as one shell script."""
    lines = ["set -eux -o pipefail"]
    for number, (kind, text) in enumerate(re.findall(r"```(sh|python)\n(.*?)```", PAGE.read_text(), re.DOTALL)):
        lines.append(text if kind == "sh" else f"cat > {number}.py <<'END'\n{text}END\npython {number}.py")
    return "\n".join(lines)


@pytest.mark.soak
@pytest.mark.timeout(900)
@pytest.mark.skipif(not RECORDINGS.exists(), reason="the Unitree G1 recordings are not here")
def test_commands_of_the_data_page_run_from_files_to_a_trained_policy(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="the plot extra is not installed")
    environment = {name: value for name, value in os.environ.items() if not name.startswith("MAINSPRING_")}
    environment["PATH"] = path_with_ready_ms()
    environment["RECORDINGS"] = str(RECORDINGS)
    lab = Lab(tmp_path / "lab")
    try:
        done = subprocess.run(
            ["bash", "-c", _script()], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=840
        )
    finally:
        lab.down()
    assert done.returncode == 0, done.stderr[-4_000:] + done.stdout[-2_000:]
    (told,) = [line for line in done.stdout.splitlines() if line.startswith('{"action_error"')]
    errors = json.loads(told)
    assert errors["action_error"] < 0.8 * errors["action_error_hold_last_state"]
    assert (tmp_path / "episode.png").stat().st_size > 10_000
    assert {version.dataset for version in lab.data.datasets()} == {
        "arm",
        "g1-bottle",
        "g1-lively",
        "g1-long",
        "g1-slipped",
    }
    assert {link.kind for link in lab.data.descendants("g1-long@1")} == {"run", "view"}
