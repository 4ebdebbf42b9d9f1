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


APART = "PushT from pictures"  # A section that takes as long as all others.


def run_page(section: re.Pattern[str], folder: Path, *, first: str = "") -> subprocess.CompletedProcess[str]:
    """Runs the commands of the sections whose headings match, in order, beside a home that is not in their folder.

    Args:
        first: Commands before them.
    """
    parts = re.split(r"^(?=## )", PAGE.read_text(), flags=re.MULTILINE)
    chosen = [part for part in parts if section.match(part.partition("\n")[0].removeprefix("## "))]
    blocks = [block for part in chosen for block in re.findall(r"```sh\n(.*?)```", part, re.DOTALL)]
    assert blocks
    work = folder / "work"
    work.mkdir()
    environment = {name: value for name, value in os.environ.items() if not name.startswith("MAINSPRING_")}
    environment["PATH"] = path_with_ready_ms()
    environment |= {"MAINSPRING_HOME": str(folder / "home"), "COLUMNS": "200"}
    script = "\n".join(["set -eu -o pipefail", "trap 'ms down' EXIT", first, *blocks])
    return subprocess.run(
        ["bash", "-c", script], cwd=work, env=environment, capture_output=True, text=True, timeout=880
    )


@pytest.mark.soak
@pytest.mark.timeout(900)
def test_commands_of_the_section_on_pusht_run(tmp_path: Path) -> None:
    pytest.importorskip("gym_pusht", reason="the sim extra is not installed")
    done = run_page(re.compile(APART), tmp_path, first="ms up --port 0")
    assert done.returncode == 0, done.stderr[-4_000:] + done.stdout[-2_000:]
    assert re.search(r"sound +20 episodes", done.stdout)
    assert done.stdout.count("succeeded") >= 2
    assert re.search(r"mean scores +0\.\d+ and 0\.\d+", done.stdout)
    assert re.search(r"mean score +0\.\d+ of 1, 95 %", done.stdout)


@pytest.mark.soak
@pytest.mark.timeout(900)
def test_commands_of_the_training_page_run(tmp_path: Path) -> None:
    done = run_page(re.compile(f"(?!{APART})"), tmp_path)
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
