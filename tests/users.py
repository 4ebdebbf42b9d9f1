"""Users of this machine for tests of ranks that run as others: by root, or by a rule of sudo for an ordinary one."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import pytest

import mainspring

ROOT = "needs root: sudo python -m pytest"
SERVER = "news"  # Like those of teams a user of every Debian; nothing else of theirs runs in a test.
USERS = {"arms": "games", "vision": "nobody"}
LIBRARIES = os.pathsep.join([str(Path(mainspring.__file__).parents[1]), *filter(os.path.isabs, sys.path[1:])])
RULES = Path("/etc/sudoers.d")


@cache
def _python() -> str:
    """Returns an interpreter with our libraries that users of the tests can run, "" where there is none."""
    for program in (sys.executable, f"/usr/bin/python{sys.version_info[0]}.{sys.version_info[1]}"):
        words = ["sh", "-c", f"exec {program} -c 'import mainspring, numpy'"]
        environment: Mapping[str, str] = {"PYTHONPATH": LIBRARIES}
        tried = subprocess.run(
            words, cwd="/", env=environment, user="nobody", extra_groups=(), capture_output=True, check=False
        )
        if not tried.returncode:
            return program
    return ""


def python_of_everybody() -> str:
    """Returns an interpreter with our libraries that users of the tests can run; skips the test where there is none."""
    if os.geteuid() != 0:
        pytest.skip(ROOT)
    found = _python()
    if not found:
        pytest.skip(f"needs an interpreter and this package where user nobody can read them: not {sys.executable}")
    return found


@contextmanager
def sudo_rule() -> Iterator[None]:
    """Lets `SERVER` run commands as the users of the teams; skips the test where there is no sudo."""
    if shutil.which("sudo") is None or not RULES.is_dir():
        pytest.skip("needs sudo: apt-get install sudo")
    rule = RULES / f"mainspring-tests-{os.getpid()}"
    rule.write_text(f"{SERVER} ALL=({','.join(USERS.values())}) NOPASSWD: ALL\n")
    rule.chmod(0o440)
    try:
        yield
    finally:
        rule.unlink()
