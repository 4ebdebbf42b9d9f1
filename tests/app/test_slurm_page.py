"""The page about Slurm tells the truth: its commands run, in order, on a real Slurm with accounts."""

from __future__ import annotations

import os
import re
import subprocess
from getpass import getuser
from pathlib import Path

import pytest

from mainspring.app.base.home import Config
from mainspring.app.sdk.lab import Lab
from mainspring.engines.slurm.setup.findings import STEPS
from mainspring.testing.slurm import SlurmNodes, SlurmPartition, SlurmServer, slurm_missing
from tests.app.ready_ms import path_with_ready_ms

PAGE = Path(__file__).parents[2] / "docs" / "engines" / "slurm.md"
MISSING = slurm_missing(accounting=True)


def _blocks(language: str) -> list[str]:
    """Returns the page's blocks of one language, without the indentation of the list they are in."""
    found = re.findall(rf"^( *)```{language}\n(.*?)^ *```", PAGE.read_text(), re.DOTALL | re.MULTILINE)
    return ["\n".join(line.removeprefix(indent) for line in text.splitlines()) for indent, text in found]


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.skipif(bool(MISSING), reason=MISSING)
def test_commands_of_the_slurm_page_run_from_an_account_to_a_job(tmp_path: Path) -> None:
    lab = Lab(tmp_path / "home")
    lab.home.write_config(Config(port=0))
    with SlurmServer(
        tmp_path / "slurm",
        nodes=[SlurmNodes(count=4)],
        partitions=[SlurmPartition(name="robots", nodes="n[1-2]"), SlurmPartition(name="shared", nodes="n[3-4]")],
        accounting=True,
    ) as server:
        environment = {name: value for name, value in os.environ.items() if not name.startswith("MAINSPRING_")}
        environment |= {"MAINSPRING_HOME": str(lab.home.path), "SHARED": str(tmp_path / "shared"), "COLUMNS": "200"}
        environment |= {"PATH": path_with_ready_ms()}
        environment |= {"ACCOUNT_USER": getuser(), **server.environment}
        script = "\n".join(["set -eux -o pipefail", *_blocks("sh admin"), *_blocks("sh")])
        try:
            done = subprocess.run(
                ["bash", "-c", script], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=240
            )
        finally:
            lab.down()
    assert done.returncode == 0, done.stderr[-4_000:] + done.stdout[-4_000:]
    assert "hello from n" in done.stdout
    assert "failed" not in done.stdout
    assert "SLOTS" in done.stdout  # Of the delegated one.
    (row,) = [line for line in done.stdout.splitlines() if line.startswith("hall ") and "slurm" in line]
    assert "16 h100" in row


def test_the_page_speaks_of_every_step_of_a_check() -> None:
    told = PAGE.read_text().partition("## When something is wrong")[2]
    assert [step for step in STEPS if step not in told] == []
