"""What the tests of whole attempts share: a controller of a few lines of HTTP, real agents, and a NumPy program."""

from __future__ import annotations

import hashlib
import http.server
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from mainspring.domain import codec, wire
from mainspring.domain.fleet import AgentExit, AgentOrder
from mainspring.domain.ids import AllocationId, AttemptId, JobId, NodeName, RoleName
from mainspring.domain.job import Code
from mainspring.domain.wire import EventKind

LIMIT_S = 18.0
MAIN = RoleName("main")
JOB = JobId("job-1")
ATTEMPT = AttemptId("attempt-1")
TOKEN = "secret-of-the-attempt"

PROGRAM = """
import hashlib, sys, threading
import numpy as np
from pathlib import Path
from mainspring.session import Block, join

steps, pause_s, meeting = int(sys.argv[1]), float(sys.argv[2]), Path(sys.argv[3])
session, moment = join(), threading.Event()
state, start = np.arange(5000, dtype=np.float64), 0
restored = session.restore()
if restored is not None:
    state, start = restored.array(f"state/{session.rank}"), restored.step
for step in range(start + 1, steps + 1):
    state = np.sin(state * 1.0001 + step + session.rank)
    own = meeting / f"{session.generation}-{session.rank}"
    own.with_suffix(".new").write_text(str(step))
    own.with_suffix(".new").replace(own)
    for peer in range(session.world_size):
        other = meeting / f"{session.generation}-{peer}"
        while not other.exists() or int(other.read_text()) < step:
            moment.wait(0.001)
    moment.wait(pause_s)
    stop = session.report(step, {"loss": 1.0 / step})
    if step % 5 == 0 or stop:
        block = Block.whole(f"state/{session.rank}", state)
        session.snapshot(step, [block], {"step": step})
    if stop:
        own.write_text(str(10**9))  # Peers need not wait: they learn of the stop at a report of their own.
        sys.exit(75)
session.result({f"digest-{session.rank}": hashlib.sha256(state.tobytes()).hexdigest()})
"""


def expected_digest(rank: int, steps: int) -> str:
    state = np.arange(5000, dtype=np.float64)
    for step in range(1, steps + 1):
        state = np.sin(state * 1.0001 + step + rank)
    return hashlib.sha256(state.tobytes()).hexdigest()


@dataclass
class Rig:
    """An attempt's controller and its agents."""

    folder: Path
    command: tuple[str, ...]
    attempt: AttemptId = ATTEMPT
    job: JobId = JOB
    agents: int = 2
    restarts_max: int = 8
    lease_s: float = 2.0
    away: bool = False
    fenced: bool = False
    addresses: dict[str, str] = field(default_factory=dict)
    heartbeats: list[wire.Heartbeat] = field(default_factory=list)
    events: list[wire.LeadEvent] = field(default_factory=list)
    processes: list[subprocess.Popen[bytes]] = field(default_factory=list)
    changed: threading.Condition = field(default_factory=threading.Condition)

    def start(self) -> None:
        rig = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                assert self.headers["Authorization"] == f"Bearer {TOKEN}"
                with rig.changed:
                    reply = None if rig.away else rig.answer(self.path, body)
                    rig.changed.notify_all()
                data = codec.encode(reply) if reply is not None else b""
                self.send_response(200 if reply is not None else 503)
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, format: str, *args: Any) -> None:
                pass

        class Server(http.server.ThreadingHTTPServer):
            def handle_error(self, request: Any, client_address: Any) -> None:
                pass  # A killed agent hangs up in the middle of things; that is the point.

        self.server = Server(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        for index in range(self.agents):
            work = self.folder / self.attempt / f"agent-{index}"
            work.mkdir(parents=True)
            order = AgentOrder(
                allocation=AllocationId(f"{self.attempt}-main"),
                attempt=self.attempt,
                role=MAIN,
                node=NodeName(f"n{index}"),
                index=index,
                chip_milli=1000,
                controller=f"http://127.0.0.1:{self.server.server_port}",
                token=TOKEN,
                work_dir=str(work),
            )
            (work / "order.json").write_bytes(codec.encode(order))
            with (work / "agent.log").open("wb") as log:
                self.processes.append(
                    subprocess.Popen(
                        [sys.executable, "-m", "mainspring.app.agent", "--order", str(work / "order.json")],
                        stdout=log,
                        stderr=log,
                        start_new_session=True,
                        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2] / "src")},
                    )
                )

    def answer(self, path: str, body: bytes) -> object:
        if path == "/v1/agents/register":
            register = codec.decode(wire.Register, body)
            self.addresses[register.node] = register.address
            return self.orders(int(register.node[1:]))
        heartbeat = codec.decode(wire.Heartbeat, body)
        self.heartbeats.append(heartbeat)
        seen = len(self.events)
        self.events += [event for event in heartbeat.events if event.sequence > seen]
        return wire.HeartbeatReply(acknowledged=len(self.events), fenced=self.fenced)

    def orders(self, agent: int) -> wire.Orders:
        return wire.Orders(
            ready=len(self.addresses) == self.agents,
            attempt=self.attempt,
            job=self.job,
            epoch=1,
            agent=agent,
            agents=self.agents,
            lead=agent == 0,
            lead_address=self.addresses.get("n0", ""),
            ranks=tuple(
                wire.RankPlace(rank=rank, role=MAIN, role_rank=rank, role_size=self.agents, agent=rank)
                for rank in range(self.agents)
            ),
            roles=(wire.RoleOrders(role=MAIN, command=self.command, environment={}),),
            code=Code(),
            objects_url=f"file://{self.folder / 'objects'}",
            restarts_max=self.restarts_max,
            lease_s=self.lease_s,
            heartbeat_s=0.3,
        )

    def wait(self, condition: Callable[[], bool], what: str) -> None:
        with self.changed:
            if not self.changed.wait_for(condition, timeout=LIMIT_S):
                logs = "\n".join(path.read_text() for path in self.folder.glob("*/*/*.log"))
                raise AssertionError(f"no {what}; events {self.events}; logs {logs[-4000:]}")

    def wait_outcome(self) -> wire.Heartbeat:
        self.wait(lambda: self.heartbeats[-1:] != [] and self.heartbeats[-1].outcome is not None, "outcome")
        return self.heartbeats[-1]

    def wait_step(self, step: int) -> None:
        self.wait(lambda: self.heartbeats[-1:] != [] and self.heartbeats[-1].step > step, f"step {step}")

    def of_kind(self, kind: EventKind) -> list[wire.Detail]:
        return [event.detail for event in self.events if event.kind is kind]

    def exit_of(self, agent: int) -> AgentExit:
        self.processes[agent].wait(timeout=LIMIT_S)
        path = self.folder / self.attempt / f"agent-{agent}" / "exit.json"
        return codec.decode(AgentExit, path.read_bytes())

    def close(self) -> None:
        for process in self.processes:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        self.server.shutdown()
        self.server.server_close()
