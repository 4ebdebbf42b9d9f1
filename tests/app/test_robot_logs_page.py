"""The page about logs of robots tells the truth: its commands run, from a robot's program to a view of corrections."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest

from mainspring.app.sdk.lab import Lab
from tests.app.ready_ms import path_with_ready_ms

PAGE = (Path(__file__).parents[2] / "docs" / "robot-logs.md").read_text()


@pytest.mark.soak
def test_commands_of_the_page_about_logs_of_robots_run(tmp_path: Path) -> None:
    lines = ["set -eux -o pipefail"]
    for number, (kind, text) in enumerate(re.findall(r"```(sh|python)\n(.*?)```", PAGE, re.DOTALL)):
        lines.append(text if kind == "sh" else f"cat > {number}.py <<'END'\n{text}END\npython {number}.py")
    environment = {name: value for name, value in os.environ.items() if not name.startswith("MAINSPRING_")}
    environment["PATH"] = path_with_ready_ms()
    lab = Lab(tmp_path / "lab")
    try:
        done = subprocess.run(
            ["bash", "-c", "\n".join(lines)], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=600
        )
    finally:
        lab.down()
    assert done.returncode == 0, done.stderr[-4_000:] + done.stdout[-2_000:]
    assert "0 lost" in done.stdout
    assert "1 clips told of, 1 sent." in done.stdout
    assert "corrections@1: 1 episodes, 121 steps" in done.stdout
    assert {one.label for one in lab.data.annotations("corrections")} == {"intervention", "missed the cup"}
