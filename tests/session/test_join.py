from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest
from tests.session.agent import Agent, welcome

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
