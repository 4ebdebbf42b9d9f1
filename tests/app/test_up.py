"""`ms up` and `ms down`: what is said of the one server of a home, and what that takes of the machine."""

from __future__ import annotations

import json
import re
import select
import socket
import subprocess
from contextlib import ExitStack
from pathlib import Path

import pytest

from mainspring.app.base.home import ServerRecord
from mainspring.app.sdk.lab import Lab
from tests.app.test_cli import PROGRAM, _environment, _json, _ms

pytestmark = pytest.mark.slow


def test_a_port_in_use_is_named_with_a_next_step(lab: Lab, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as holder:
        port = holder.getsockname()[1]
        done = _ms(Lab(tmp_path / "other"), "up", "--port", str(port), cwd=tmp_path)
    assert done.returncode == 4
    assert str(port) in done.stderr
    assert "ms up --port 0" in done.stderr


def test_up_twice_is_one_server_and_down_stops_it(lab: Lab) -> None:
    record = _json(lab, "up")
    port = int(record["url"].rpartition(":")[2])
    assert [lab.up(port=asked) for asked in (port, 0)] == [ServerRecord(**record)] * 2
    other = _ms(lab, "up", "--port", str(port - 1))
    assert other.returncode == 4
    assert all(word in other.stderr for word in (f"port {port - 1}", record["url"], str(lab.home.path), "ms down"))
    assert _json(lab, "down") == {"stopped": True}
    assert _json(lab, "down") == {"stopped": False}
    assert _ms(lab, "ps").returncode == 6
    lab.up()


def test_a_server_with_few_files_takes_what_it_may_says_so_and_answers_in_a_crowd(tmp_path: Path) -> None:
    lab = Lab(tmp_path / "home")
    command = ["prlimit", "--nofile=250:600", PROGRAM, "up", "--port", "0", "--json"]
    done = subprocess.run(command, env=_environment(lab), cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    try:
        record = json.loads(done.stdout)
        limits = Path(f"/proc/{record['pid']}/limits").read_text()
        assert re.search(r"Max open files +600 +600", limits)
        assert "may have 600 files open, and so serves 300 connections" in lab.home.log.read_text()
        address = ("127.0.0.1", int(record["url"].rpartition(":")[2]))
        with ExitStack() as held:
            lines = [held.enter_context(socket.create_connection(address)) for _ in range(700)]
            with lab.client() as client:
                assert client.ready()
            gone = select.poll()
            for line in lines:
                gone.register(line)
            assert len([line for line, what in gone.poll(0) if what & select.POLLIN]) >= 400
        assert "out of system resource" not in lab.home.log.read_text()
    finally:
        lab.down()


def test_two_ups_at_once_make_one_server(tmp_path: Path) -> None:
    lab = Lab(tmp_path / "home")
    words = [PROGRAM, "up", "--port", "0", "--json"]
    pair = [subprocess.Popen(words, env=_environment(lab), stdout=subprocess.PIPE) for _ in range(2)]
    try:
        first, second = (json.loads(each.communicate(timeout=60)[0]) for each in pair)
        assert first == second
        assert _ms(lab, "ps").returncode == 0
    finally:
        lab.down()
