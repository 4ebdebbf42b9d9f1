"""A real Slurm for tests and benchmarks of what goes wrong on one: other people's jobs, commands that misbehave."""

from __future__ import annotations

import os
import shutil
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from mainspring.testing.slurm import SlurmServer

STRANGER = "nobody"  # Another user, who exists everywhere.
WAIT_S = 60.0  # Far above the seconds each wait takes on an idle machine.
ARRAY_CONF = "MaxArraySize=20001"  # For `crowd`: the usual 1,001 is too few.


def until(true: Callable[[], object], what: str, *, wait_s: float = WAIT_S) -> None:
    """Waits for a condition, bounded."""
    deadline = time.monotonic() + wait_s
    while not true():
        assert time.monotonic() < deadline, f"waited {wait_s} s for {what}"
        threading.Event().wait(0.05)


def submit(server: SlurmServer, *words: str, user: str = "") -> str:
    """Submits a job and returns its number."""
    done = server.run("sbatch", "--parsable", "--output=/dev/null", *words, user=user)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def state(server: SlurmServer, job: str) -> str:
    """Returns the state of a job, "" when Slurm does not know it."""
    return server.run("squeue", "-h", "-t", "all", "-j", job, "-o", "%T").stdout.strip()


def crowd(server: SlurmServer, count: int) -> str:
    """Puts so many jobs of somebody else into the queue, held, each a record of its own; returns their number.

    Tasks of an array are one record until one of them is changed by itself; a change of all but one splits them all.
    """
    job = submit(server, "--hold", f"--array=1-{count}", "--wrap", "sleep 1", user=STRANGER)
    done = server.run("scontrol", "update", f"jobid={job}_[2-{count}]", "name=somebody's work, \"2\" | 'x'")
    assert done.returncode == 0, done.stderr
    rows = server.run("squeue", "-h", "-u", STRANGER, "-o", "%A").stdout.split()
    assert len(rows) == count, f"{len(rows)} rows of {count}"
    return job


def wrapped(folder: Path, scripts: Mapping[str, str]) -> str:
    """Returns a PATH on which some commands are scripts; in a script, REAL stands for the command itself."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in scripts.items():
        real = shutil.which(name)
        assert real is not None
        draft = folder / f".{name}"
        draft.write_text("#!/bin/sh\n" + text.replace("REAL", real) + "\n")
        draft.chmod(0o755)
        draft.rename(folder / name)
    return os.pathsep.join([str(folder), os.environ.get("PATH", os.defpath)])


@contextmanager
def variables(some: Mapping[str, str]) -> Iterator[None]:
    """Sets variables for processes started meanwhile."""
    before = dict(os.environ)
    os.environ.update(some)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)
