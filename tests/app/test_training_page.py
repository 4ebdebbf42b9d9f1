"""The page about training tells the truth: its commands run, in order."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest

from mainspring.train.plan.targets import CHIPS, OTHER_NAMES
from tests.app.ready_ms import path_with_ready_ms

PAGE = Path(__file__).parents[2] / "docs" / "training.md"


@pytest.mark.soak
@pytest.mark.timeout(900)
def test_commands_of_the_training_page_run(tmp_path: Path) -> None:
    blocks = re.findall(r"```sh\n(.*?)```", PAGE.read_text(), re.DOTALL)
    environment = {name: value for name, value in os.environ.items() if not name.startswith("MAINSPRING_")}
    environment["PATH"] = path_with_ready_ms()
    environment |= {"MAINSPRING_HOME": str(tmp_path / "home"), "COLUMNS": "200"}
    script = "\n".join(["set -eu -o pipefail", "trap 'ms down' EXIT", *blocks])
    done = subprocess.run(
        ["bash", "-c", script], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=880
    )
    assert done.returncode == 0, done.stderr[-4_000:] + done.stdout[-2_000:]
    assert done.stdout.count("succeeded") >= 4
    assert "got   a view without images" in done.stdout
    assert "3,238,048,528" in done.stdout
    assert "wide_arms" in done.stdout
    assert "v6e:4x4: it fits with --set mesh.replica=8 --set mesh.data=2" in done.stdout
    assert "memory of a chip by step time" in done.stdout


def test_chips_of_the_page_are_those_that_can_be_named() -> None:
    row = re.search(r"\| `--on` \| chips: (.*?) \|", PAGE.read_text())
    assert row
    named = re.findall(r"`([\w-]+)`", row[1])
    assert [OTHER_NAMES.get(name, name) for name in named] == [*CHIPS]
