"""The program that serves a policy: from a command to chunks, what it refuses, and how it ends."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import subprocess
import sys
import time
import venv
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import numpy as np
import pytest
from websockets.sync.client import connect

from mainspring.app.server.programs.robots.serve import arguments_of, check_open, serve
from mainspring.domain.errors import InvalidInput, MainspringError
from mainspring.robots.serving.admission import Admission
from mainspring.robots.serving.client import Doing, RobotClient
from mainspring.robots.serving.wire import pack, unpack

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]

POLICY = """
import numpy as np

def act(observation):
    return {"actions": np.tile(np.asarray(observation["observation/state"], np.float32), (20, 1))}

act.example = {"observation/state": np.zeros(7)}
"""


@contextmanager
def serving(folder: Path, *words: str) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """Yields the address that the program says it serves at, and the program."""
    (folder / "reach.py").write_text(POLICY)
    command = [sys.executable, "-m", "mainspring", "serve", "reach:act", "--port", "0", *words]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("MAINSPRING_")}
    with subprocess.Popen(command, cwd=folder, env=environment, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        try:
            line = process.stderr.readline()
            found = re.fullmatch(r"serving reach:act on (\S+)\n", line)
            assert found, line + process.stderr.read()
            yield found[1], process
        finally:
            process.kill()


def test_a_function_is_served_by_one_command_until_sigterm(tmp_path: Path) -> None:
    (tmp_path / "limits.json").write_text('{"low": [-1, -1, -1, -1, -1, -1, -1], "high": [1, 1, 1, 1, 1, 1, 1]}')
    (tmp_path / "tokens").write_text("one\n\ntwo\n")
    words = ["--limits", "limits.json", "--token-file", "tokens", "--keep", "kept"]
    with serving(tmp_path, *words) as (url, process):
        assert httpx.get(f"{url.replace('ws', 'http', 1)}/healthz").text == "OK\n"
        with connect(url, additional_headers={"Authorization": "Api-Key two"}, compression=None) as line:
            assert unpack(line.recv())["mainspring"]["policy"] == "reach:act"  # type: ignore[arg-type]
            line.send(pack({"observation/state": np.full(7, 0.5), "mainspring": {"keep": True}}))
            answer = unpack(line.recv())  # type: ignore[arg-type]
            assert answer["actions"].tolist() == [[0.5] * 7] * 20
            line.send(pack({"observation/state": np.full(7, 2.0)}))
            assert str(line.recv()).startswith("unsafe_action: ")
            process.send_signal(signal.SIGTERM)
            assert process.wait(60) == 0
        assert process.stderr is not None
        assert process.stderr.read() == "served 1 chunks, 0 late\n"
    assert [path.name for path in (tmp_path / "kept").iterdir()] == ["0.msgpack"]


def test_a_robot_of_ours_is_driven_by_the_program(tmp_path: Path) -> None:
    async def robot(url: str) -> list[Doing]:
        async with RobotClient(url, period_ms=20.0, ask_every=5, hold_steps=10_000) as client:
            await client.connected.wait()
            done = []
            for step in range(60):
                done.append(client.step({"observation/state": np.full(7, step / 100)}).doing)
                await asyncio.sleep(0.02)
            return done

    with serving(tmp_path) as (url, _):
        done = asyncio.run(robot(url))
    assert done.count(Doing.FOLLOW) > 30


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["nowhere_at_all:act"], "could not find a policy"),
        (["job-1"], "a job and no store"),
        (["job-1", "--objects", "memory://"], "could not find a checkpoint; on job-1"),
        (["job-1@x", "--objects", "memory://"], "step x"),
        (["job-1@5", "--objects", "memory://", "--follow"], "JOB, to follow it"),
        (["json:dumps", "--follow"], "got no job"),
        (["lerobot:nowhere"], "no model.safetensors"),
        (["json:dumps", "--batched", "0"], "--batched"),
        (["json:dumps", "--host", "0.0.0.0"], "no tokens"),
        (["json:dumps", "--host", "0.0.0.0", "--token-file", "tokens"], "no TLS"),
        (
            ["json:dumps", "--host", "no.such.host.invalid", "--token-file", "tokens", "--behind-proxy"],
            "could not listen",
        ),
        (["json:dumps", "--token-file", "nowhere"], "could not read tokens"),
        (["json:dumps", "--limits", "nowhere"], "could not read a robot's limits"),
        (["json:dumps", "--certificate", "nowhere"], "could not read a certificate"),
        (["json:dumps", "--rate", "0"], "requests_per_s"),
    ],
)
def test_a_command_that_cannot_be_is_refused_with_what_is_wanted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: list[str], said: str
) -> None:
    (tmp_path / "tokens").write_text("one\n")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(MainspringError, match=re.escape(said)):
        asyncio.run(serve(arguments_of(["--port", "0", *words])))


def test_a_command_that_is_refused_says_so_in_a_line(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "mainspring", "serve", "nowhere_at_all:act"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert (done.returncode, len(done.stderr.splitlines())) == (2, 1)


OPENPI = """
import sys
import numpy as np
from openpi_client.websocket_client_policy import WebsocketClientPolicy

assert np.__version__ < "2"
policy = WebsocketClientPolicy(sys.argv[1], api_key="one")
assert policy.get_server_metadata()["mainspring"]["policy_version"] == 1
picture = np.zeros((224, 224, 3), np.uint8)
for step in range(5):
    seen = {"observation/image": picture, "observation/state": np.full(7, step / 10), "prompt": "put the cup away"}
    answer = policy.infer(seen)
    assert answer["actions"].shape == (20, 7) and answer["actions"].dtype == np.float32
    assert np.allclose(answer["actions"], step / 10)
    assert answer["server_timing"]["infer_ms"] > 0
try:
    policy.infer({"observation/state": np.full(7, 5.0)})
except RuntimeError as error:
    assert "unsafe_action: " in str(error) and "Traceback" not in str(error)
else:
    raise AssertionError("an unsafe chunk was sent")
assert policy.infer({"observation/state": np.zeros(7)})["actions"].shape == (20, 7)
print("served")
"""


def test_the_published_client_of_openpi_connects_unchanged(tmp_path: Path) -> None:
    venv.create(tmp_path / "theirs", with_pip=True)
    python = str(tmp_path / "theirs" / "bin" / "python")
    # It imports typing_extensions and does not say that it needs it.
    install = [python, "-m", "pip", "install", "-q", "openpi-client==0.1.2", "typing_extensions"]
    installed = subprocess.run(install, capture_output=True, text=True)
    if installed.returncode:
        words = " ".join(install)
        pytest.skip(f"the package index did not give openpi-client 0.1.2 ({installed.stderr.strip()[-200:]}): {words}")
    (tmp_path / "limits.json").write_text('{"low": [-1, -1, -1, -1, -1, -1, -1], "high": [1, 1, 1, 1, 1, 1, 1]}')
    (tmp_path / "tokens").write_text("one\n")
    with serving(tmp_path, "--limits", "limits.json", "--token-file", "tokens") as (url, _):
        done = subprocess.run([python, "-c", OPENPI, url], capture_output=True, text=True, timeout=120)
    assert done.stdout == "served\n", done.stderr


def test_addresses_that_only_this_machine_reaches_need_no_token() -> None:
    for host in ("127.0.0.1", "localhost", "::1", "127.1.2.3"):
        check_open(arguments_of(["a:b", "--host", host]), Admission(now_s=time.time))
    with pytest.raises(InvalidInput, match="no tokens"):
        check_open(arguments_of(["a:b", "--host", "192.0.2.1"]), Admission(now_s=time.time))
    with pytest.raises(InvalidInput, match="no TLS"):
        check_open(arguments_of(["a:b", "--host", "192.0.2.1"]), Admission(tokens=["one"], now_s=time.time))
    check_open(arguments_of(["a:b", "--host", "192.0.2.1"]), Admission(secret="a replica's", now_s=time.time))
