from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from tests.session.agent import Agent, welcome

from mainspring.domain import codec, wire
from mainspring.domain.errors import NotAllowed
from mainspring.session import open_named_store, open_view_store

# Joins, then asks for SIGTERM, and says what became of itself and of a worker it forked that was sent one too.
PROGRAM = """
import os, select, signal, sys
if sys.argv[1] == "own":
    signal.signal(signal.SIGTERM, lambda *_: print("its own handler", flush=True))
import mainspring as ms
session = ms.join()
ready, told = os.pipe()
worker = os.fork()
if not worker:
    os.write(told, b"1")
    select.select([], [], [], 60)
    os._exit(0)
os.read(ready, 1)
os.kill(worker, signal.SIGTERM)
_, status = os.waitpid(worker, 0) if sys.argv[1] != "own" else (0, 0)
os.kill(worker, signal.SIGKILL) if sys.argv[1] == "own" else None
print("joined", os.waitstatus_to_exitcode(status), flush=True)
sys.stdin.readline()
print("lives", flush=True)
"""


@pytest.mark.slow
@pytest.mark.parametrize(("which", "said"), [("none", []), ("own", ["its own handler"])])
def test_sigterm_to_every_process_does_not_end_one_that_joined(agent: Agent, which: str, said: list[str]) -> None:
    agent.welcomes.put(welcome())
    environment = {**os.environ, "MAINSPRING_SOCKET": agent.path}
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM, which],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=environment,
    ) as program:
        assert program.stdout is not None
        forked = 0 if which == "own" else -signal.SIGTERM
        assert program.stdout.readline().split() == ["joined", str(int(forked))]
        program.send_signal(signal.SIGTERM)
        told, _ = program.communicate("go on\n", timeout=120)
        assert told.splitlines() == [*said, "lives"]
    assert program.returncode == 0


@pytest.mark.parametrize("view", ["", "v1"])
def test_refusal_of_what_a_job_reads_says_what_was_wanted_and_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, view: str
) -> None:
    path = str(tmp_path / "rank.sock")
    monkeypatch.setenv("MAINSPRING_SOCKET", path)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as server:
        server.bind(path + wire.VIEWS_SUFFIX)
        server.listen()
        refusing = threading.Thread(target=refuse, args=(server,))
        refusing.start()
        with pytest.raises(NotAllowed) as refused:
            open_view_store("mem", view) if view else open_named_store("mem")
        refusing.join()
    error = refused.value
    assert error.got == "release:1 is another team's"
    assert error.on == (view or "the object store")
    assert error.wanted == f"what its spec names under {'views' if view else 'reads, evaluates or views'}"
    assert error.next_step == "name it there, in a job whose team may read it"


def refuse(server: socket.socket) -> None:
    """Answers whoever asks next for credentials."""
    line, _ = server.accept()
    with line, line.makefile("rb") as stream:
        codec.unframe(stream.read(codec.frame_length(stream.read(codec.FRAME_HEADER_BYTES))), wire.ViewWanted)
        line.sendall(codec.frame(wire.ViewRefused(reason="release:1 is another team's")))
