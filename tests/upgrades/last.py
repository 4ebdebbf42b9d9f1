"""The last release beside the working tree: its files, and commands of either."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import tarfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from threading import Event
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
RELEASES = Path(__file__).with_name("releases.txt")
LIMIT_S = 200.0  # Two JAX programs that start on a machine with much else to do.
LOOK_AGAIN_S = 0.2


def releases() -> dict[str, str]:
    """Returns the commit of each release, oldest first."""
    return dict(line.split() for line in RELEASES.read_text().splitlines() if not line.startswith("#"))


def unpack(folder: Path) -> Path:
    """Returns the files of the last release; skips the test where they cannot be had, and says why."""
    name, commit = list(releases().items())[-1]
    if not (ROOT / ".git").exists():
        pytest.skip(f"release {name} is a commit, and this is no checkout of git")
    found = subprocess.run(["git", "archive", commit], cwd=ROOT, capture_output=True)
    if found.returncode:
        pytest.skip(f"release {name}, commit {commit[:12]}, is not in this clone (shallow?): {found.stderr.decode()}")
    with tarfile.open(fileobj=io.BytesIO(found.stdout)) as archive:
        archive.extractall(folder, filter="data")
    asked = [sys.executable, "-c", "from mainspring.domain import release; print(release.RELEASE, release.__file__)"]
    told = subprocess.run(asked, env=running(folder), cwd=folder, capture_output=True, text=True, check=True).stdout
    assert told.split() == [name, str(folder / "src/mainspring/domain/release.py")]
    return folder


def running(tree: Path) -> dict[str, str]:
    """Returns the variables by which a program runs what is in a tree."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("MAINSPRING_")}
    return kept | {"PYTHONPATH": os.pathsep.join([str(tree / "src"), str(tree)]), "PYTHONSAFEPATH": "1"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Commands:
    """`ms` of one tree, in one home."""

    tree: Path
    home: Path

    def told(self, *words: str) -> str:
        """Returns what a command prints."""
        command = [sys.executable, "-c", "from mainspring.app.cli.main import main; main()", "--home", str(self.home)]
        done = subprocess.run([*command, *words], env=running(self.tree), cwd=self.home, capture_output=True, text=True)
        assert done.returncode == 0, f"ms {' '.join(words)} of {self.tree}: {done.stdout}{done.stderr}"
        return done.stdout

    def json(self, *words: str) -> Any:
        """Returns what a command says to machines."""
        at = words.index("--") if "--" in words else len(words)
        return json.loads(self.told(*words[:at], "--json", *words[at:]))

    def step(self, job: str) -> int:
        """Returns how far a job is."""
        return int(self.json("status", job)["step"])

    def wait_step(self, job: str, step: int) -> None:
        """Returns once a job is past a step."""
        until(lambda: self.step(job) > step, f"step {step} of {job} to be passed, by {self.tree}")

    def wait_on(self, job: str) -> None:
        """Returns once a job's lead has told this server, which has only begun, of another step."""
        self.wait_step(job, self.step(job))

    def wait_end(self, job: str) -> Any:
        """Returns a job that has succeeded."""
        until(lambda: self.json("status", job)["state"] not in ("queued", "running"), f"{job} to end")
        view = self.json("status", job)
        assert view["state"] == "succeeded", view
        return view


def until(true: Callable[[], bool], what: str) -> None:
    """Returns once something is so."""
    over_s = time.monotonic() + LIMIT_S
    while not true():
        assert time.monotonic() < over_s, f"waited for {what}"
        Event().wait(LOOK_AGAIN_S)
