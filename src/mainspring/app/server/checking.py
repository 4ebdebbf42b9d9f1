"""Checking a cluster's set-up where its commands are: on this machine, or over SSH on its login node.

There this module is the program: `python -m mainspring check-cluster` reads an `Ask` on standard input and writes one
`Finding` a line.
"""

from __future__ import annotations

import os
import platform
import shlex
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from mainspring.app.base.system import SystemClock
from mainspring.domain.codec import decode, encode, from_plain, to_plain
from mainspring.domain.errors import InvalidMessage
from mainspring.domain.release import RELEASE, Skew, skew
from mainspring.engines.common.kind import CheckResult, ClusterSettings, EngineContext, Finding
from mainspring.engines.registry import kind_named
from mainspring.engines.remote.engine import ssh_words

LOGIN = "login node"  # The step before all others, where the commands are elsewhere.
FAR_S_MAX = 420.0  # A job may wait 60 s, run 60 s, and show its files after 70 s; the rest is for slow commands.
WORDS_MAX = 400  # Letters of what ssh says.


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """What is to be checked.

    Args:
        controller: Where its agents will call; "" while no server runs.
        certificate: What they are to trust there, as PEM text; "" for what the nodes trust.
        version: Of the Mainspring that asks.
    """

    kind: str = ""  # One that asks from another version may not say it, and is told that first.
    cluster: Mapping[str, Any]
    controller: str
    certificate: str
    version: str


def findings(cluster: ClusterSettings, *, controller: str, certificate: str) -> Iterator[Finding]:
    """Yields what a check finds, step by step.

    Args:
        controller: Where its agents will call; "" while no server runs.
        certificate: What they are to trust there, as PEM text.
    """
    kind = kind_named(cluster.kind)
    hosting = kind.hosting(cluster) if kind.hosting else None
    if hosting is None or not hosting.ssh:
        return _here(cluster, controller, certificate)
    ask = Ask(
        kind=cluster.kind,
        cluster=to_plain(cluster),
        controller=controller,
        certificate=certificate,
        version=RELEASE,
    )
    return _far(ask, hosting.ssh, hosting.python or sys.executable)


def _here(cluster: ClusterSettings, controller: str, certificate: str) -> Iterator[Finding]:
    return kind_named(cluster.kind).check(
        cluster, EngineContext(environment=os.environ, certificate=certificate, clock=SystemClock()), controller
    )


def _far(ask: Ask, target: str, python: str) -> Iterator[Finding]:
    """Yields what the login node writes, and at last why it wrote no more."""
    words = ssh_words(target, python, "check-cluster")
    with (
        tempfile.TemporaryFile() as errors,
        subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors) as process,
    ):
        assert process.stdin is not None
        assert process.stdout is not None
        limit = threading.Timer(FAR_S_MAX, process.kill)
        limit.start()
        try:
            with suppress(BrokenPipeError):  # It has ended, and its last words tell why.
                process.stdin.write(encode(ask))
                process.stdin.close()
            for line in process.stdout:
                with suppress(InvalidMessage):  # What a login shell has to say.
                    yield decode(Finding, line)
            code = process.wait()
        finally:
            limit.cancel()
            process.kill()
        errors.seek(0)
        said = " ".join(errors.read().decode(errors="replace").split())[-WORDS_MAX:]
    if code:
        yield Finding(
            name=LOGIN,
            standing=CheckResult.FAILED,
            found=said or ("no end in time" if code < 0 else f"an end with code {code}"),
            fix=f"see that this works without a password: ssh {target} {shlex.quote(python)} -P -c 'import mainspring'",
        )


def main() -> None:
    """Answers one ask."""
    ask = decode(Ask, sys.stdin.buffer.read())
    found = f"{platform.node()}, Mainspring {RELEASE}, Python {platform.python_version()}"
    if skew(RELEASE, ask.version) is not Skew.BEYOND:
        _write(Finding(name=LOGIN, standing=CheckResult.OK, found=found))
        cluster: ClusterSettings = from_plain(kind_named(ask.kind).settings, ask.cluster)
        for finding in _here(cluster, ask.controller, ask.certificate):
            _write(finding)
    else:
        fix = f"install mainspring=={ask.version} there"
        _write(Finding(name=LOGIN, standing=CheckResult.FAILED, found=f"{found}; here {ask.version}", fix=fix))


def _write(finding: Finding) -> None:
    sys.stdout.buffer.write(encode(finding) + b"\n")
    sys.stdout.buffer.flush()


if __name__ == "__main__":
    main()
