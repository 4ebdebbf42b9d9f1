"""The page about health tells the truth: its commands run, in order, on a real server."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest

from tests.app.ready_ms import path_with_ready_ms

PAGE = Path(__file__).parents[2] / "docs" / "health.md"


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_commands_of_the_health_page_run(tmp_path: Path) -> None:
    blocks = re.findall(r"```sh\n(.*?)```", PAGE.read_text(), re.DOTALL)
    environment = {name: value for name, value in os.environ.items() if not name.startswith("MAINSPRING_")}
    environment["PATH"] = path_with_ready_ms()
    environment["MAINSPRING_HOME"] = str(tmp_path / "home")
    environment["COLUMNS"] = "240"  # What is looked for stands in one line.
    script = "\n".join(["set -eux -o pipefail", "trap 'ms down' EXIT", *blocks, "ms node ls --wrong", "ms audit"])
    done = subprocess.run(
        ["bash", "-c", script], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=550
    )
    assert done.returncode == 0, done.stderr[-4_000:] + done.stdout[-2_000:]
    said = done.stdout
    assert "12 of 12 were right" in said
    assert re.search(r"hall-4: quarantine by \S+ 0 s ago, until .*: burn-in failed", said)
    assert re.search(r"hall-4: quarantine by \S+ is over", said)
    assert re.search(r"breaker +hall .* at most [12] are closed so", said)
    for deed in (
        "promote a rule",
        "demote a rule",
        "cordon a node",
        "drain a node",
        "quarantine a node",
        "open a node",
        "announce maintenance",
        "withdraw maintenance",
        "say whether a rule of health was right",
    ):
        assert deed in said, deed
