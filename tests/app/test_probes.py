"""`python -m mainspring probes`, as whoever watches a node runs it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from mainspring.app.server.programs.probes import SICK
from mainspring.domain import codec
from mainspring.domain.hardware.health import HealthEvent, Strategy
from tests.node.recorded import Recorded

pytestmark = pytest.mark.slow
LIMIT_S = 120


def _probes(*words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "mainspring", "probes", "--no-nvml", *words],
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        env={"PATH": "/usr/bin:/bin", **environment},
    )


def test_a_look_at_a_sick_node_says_what_is_wrong_and_ends_with_its_own_code(tmp_path: Path) -> None:
    node = Recorded(tmp_path)
    node.log("NVRM: Xid (PCI:0000:cb:00): 79, GPU has fallen off the bus.")
    words = ("--cluster", "hall", "--node", "n1", "--root", str(tmp_path), "--seconds", "0")
    ended = _probes("--once", *words, "--since", "1e12")
    assert ended.returncode == SICK, ended.stderr
    (line,) = (line for line in ended.stdout.splitlines() if "xid" in line)
    assert line.startswith("fatal: xid 0000:cb:00.0: Xid 79")
    assert line.endswith("would help: restart node")
    ended = _probes("--once", *words)
    assert (ended.returncode, "xid" in ended.stdout) == (0, False)  # It was logged long ago.


def test_events_are_written_as_lines_that_the_codec_reads(tmp_path: Path) -> None:
    Recorded(tmp_path).adapter("mlx5_0")
    words = ("--cluster", "hall", "--node", "n1", "--root", str(tmp_path), "--seconds", "0", "--json", "--shadow")
    ended = _probes(*words)
    assert ended.returncode == 0, ended.stderr
    events = [codec.decode(HealthEvent, line.encode()) for line in ended.stdout.splitlines()]
    assert "link-state" in {event.check for event in events}
    assert {event.strategy for event in events} == {Strategy.SHADOW}
    assert {event.scope.node for event in events} == {"n1"}
    assert all(json.loads(line)["version"] == 1 for line in ended.stdout.splitlines())


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--cluster", "No Name"), "could not accept a name for cluster"),
        (("--cluster", "hall", "--to", "http://127.0.0.1:9"), "ms token new"),
        (("--cluster", "hall", "--to", "http://127.0.0.1:9", "--token-file", "/nowhere"), "could not read a token"),
        (
            ("--cluster", "hall", "--to", "ftp://x", "--token-file", "/etc/hostname"),
            "could not read a server's addresses",
        ),
        (("--cluster", "hall", "--every", "nan"), "invalid number of seconds"),
        ((), "--cluster"),
    ],
)
def test_what_cannot_be_done_is_said_in_one_sentence(words: tuple[str, ...], said: str, tmp_path: Path) -> None:
    ended = _probes(*words, "--root", str(tmp_path), "--seconds", "0")
    assert ended.returncode not in (0, SICK)
    assert said in ended.stderr
    assert "Traceback" not in ended.stderr


def test_a_watch_that_nobody_takes_anything_from_says_so(tmp_path: Path) -> None:
    Recorded(tmp_path).adapter("mlx5_0")
    words = ("--cluster", "hall", "--root", str(tmp_path), "--seconds", "0", "--node", "n1")
    ended = _probes(*words, "--to", "http://127.0.0.1:9", MAINSPRING_TOKEN="secret")
    assert ended.returncode != 0
    assert "could not tell what was seen" in ended.stderr
    assert "secret" not in ended.stderr + ended.stdout
