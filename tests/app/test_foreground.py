"""A server in the foreground, as systemd starts and ends it."""

from __future__ import annotations

import signal
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest

from mainspring.app.base.client import Client
from mainspring.app.base.home import Config
from mainspring.app.sdk.lab import Lab
from mainspring.app.server import daemon
from mainspring.domain.errors import Conflict
from tests.app.conftest import clusters, until


@pytest.mark.slow
def test_server_in_the_foreground_is_the_process_that_was_started(tmp_path: Path) -> None:
    lab = Lab(tmp_path / "home")
    lab.home.write_config(Config(clusters=clusters()))
    words = [
        str(Path(sys.executable).with_name("ms")),
        "--home",
        str(lab.home.path),
        "up",
        "--foreground",
        "--port",
        "0",
    ]
    with subprocess.Popen(words, stderr=subprocess.PIPE, text=True) as server, ExitStack() as last:
        last.callback(server.kill)
        until(lambda: (record := lab.home.server()) is not None and daemon.running(record, lab.home), "the server")
        record = lab.home.server()
        assert record is not None
        assert record.pid == server.pid
        with Client(record.url, "") as client:
            until(client.ready, "the server to lead")
        assert lab.up() == record
        again = subprocess.run(words, capture_output=True, text=True)
        assert (again.returncode, "ms down" in again.stderr) == (Conflict.exit_code, True)
        server.send_signal(signal.SIGTERM)
        assert server.wait(120) == 0
        assert server.stderr is not None
        assert server.stderr.read() == ""
    assert not lab.down()
