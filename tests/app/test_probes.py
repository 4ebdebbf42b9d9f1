"""`python -m mainspring probes`, as whoever watches a node runs it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from mainspring.app.sdk.lab import Lab
from mainspring.app.server.programs.probes import SICK
from mainspring.domain import codec
from mainspring.domain.answers import NewToken
from mainspring.domain.hardware.health import HealthEvent, Strategy
from mainspring.domain.routes import Calls
from mainspring.domain.team import TeamRole
from mainspring.node.probes.sweep.meeting import free_port
from tests.node.recorded import Recorded

from .conftest import until

pytestmark = pytest.mark.slow
LIMIT_S = 240


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


def test_a_watch_whose_lines_nobody_reads_on_ends_without_a_word(tmp_path: Path) -> None:
    Recorded(tmp_path).adapter("mlx5_0")
    words = ("--cluster", "hall", "--node", "n1", "--root", str(tmp_path), "--json")
    command = [sys.executable, "-m", "mainspring", "probes", "--no-nvml", *words]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as watch:
        assert watch.stdout is not None
        watch.stdout.close()
        _, said = watch.communicate(timeout=LIMIT_S)
    assert (watch.returncode, said) == (0, "")


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


def _ranks(count: int, *words: str, port: int) -> list[subprocess.Popen[str]]:
    common = {"PATH": "/usr/bin:/bin", "JAX_PLATFORMS": "cpu", "NPROC": "1", "MASTER_ADDR": "127.0.0.1"}
    command = [sys.executable, "-m", "mainspring", "probes", "sweep", "--cluster", "hall", "--work", "0.1", *words]
    return [
        subprocess.Popen(
            [*command, "--node", f"n{rank}"],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=common | {"RANK": str(rank), "WORLD_SIZE": str(count), "MASTER_PORT": str(port)},
        )
        for rank in range(count)
    ]


def test_a_sweep_over_ranks_says_how_each_is_and_remembers_its_rates(tmp_path: Path) -> None:
    pytest.importorskip("jax", reason="the train extra is not installed")
    ranks = _ranks(3, "--history", str(tmp_path / "history"), port=free_port())
    said = [rank.communicate(timeout=LIMIT_S) for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0, 0, 0], said
    lines = [line for line in said[0][0].splitlines() if line.startswith("rank ")]
    assert [line.split(" is ")[0] for line in lines] == ["rank 0 on n0", "rank 1 on n1", "rank 2 on n2"]
    assert all("matmul" in line and "bad" not in line for line in lines)
    assert {path.name for path in (tmp_path / "history").iterdir()} == {"n0.json", "n1.json", "n2.json"}


def test_a_sweep_of_one_node_judges_it_alone_and_its_events_are_read_by_the_codec(tmp_path: Path) -> None:
    pytest.importorskip("jax", reason="the train extra is not installed")
    (tmp_path / "n0.json").write_text('{"sweep-matmul": "garbage", "sweep-memory": [1, null, "x"]}')
    (rank,) = _ranks(1, "--json", "--history", str(tmp_path), port=0)
    out, errors = rank.communicate(timeout=LIMIT_S)
    assert rank.returncode == 0, errors
    events = [codec.decode(HealthEvent, line.encode()) for line in out.splitlines()]
    assert {event.check for event in events} == {"sweep-alone", "sweep-bits", "sweep-matmul", "sweep-memory"}
    assert all(event.healthy for event in events)


@pytest.mark.parametrize(
    ("variables", "said"),
    [
        ({"RANK": "3", "WORLD_SIZE": "2", "MASTER_PORT": "1"}, "RANK=3 WORLD_SIZE=2"),
        ({"RANK": "x"}, "'x'"),
        ({"WORLD_SIZE": "2"}, "MASTER_PORT=0"),
    ],
)
def test_a_sweep_that_nobody_can_meet_in_says_why(variables: dict[str, str], said: str) -> None:
    command = [sys.executable, "-m", "mainspring", "probes", "sweep", "--cluster", "hall"]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, env=variables)
    assert ended.returncode == 2
    assert said in ended.stderr
    assert "Traceback" not in ended.stderr


def test_what_a_watch_sees_is_in_the_lab_once_however_often_it_is_told(lab: Lab, tmp_path: Path) -> None:
    Recorded(tmp_path).log("NVRM: Xid (PCI:0000:cb:00): 79, GPU has fallen off the bus.")
    until(lambda: any(node.node.name == "alpha-0" for node in lab.nodes("alpha")), "the cluster to answer")
    server = lab.home.server()
    assert server is not None
    secret = lab.call(Calls.new_token, NewToken(holder="probes", role=TeamRole.WATCHER)).secret
    words = ("--cluster", "alpha", "--node", "alpha-0", "--root", str(tmp_path), "--since", "1e12", "--once")
    for _ in range(2):
        ended = _probes(*words, "--seconds", "0", "--to", server.url, MAINSPRING_TOKEN=secret)
        assert ended.returncode == SICK, ended.stderr
    told = [view.event for view in lab.call(Calls.health_events) if view.event.check == "xid"]
    assert [(event.scope.part, event.codes, event.fatal) for event in told] == [("0000:cb:00.0", ("79",), True)]
    ended = _probes(*words, "--seconds", "0", "--to", server.url, MAINSPRING_TOKEN="nobody's")
    assert (ended.returncode, "HTTP 401" in ended.stderr) == (6, True)
