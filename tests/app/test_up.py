"""`ms up` and `ms down`: what is said of the one server of a home, and what that takes of the machine."""

from __future__ import annotations

import json
import socket
import subprocess
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
