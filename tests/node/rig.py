"""What the tests of whole attempts share: a controller of a few lines of HTTP, and real agents with real ranks."""

from __future__ import annotations

import http.server
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mainspring.domain import codec, wire
from mainspring.domain.fleet import AgentExit, AgentOrder
from mainspring.domain.ids import AllocationId, AttemptId, JobId, NodeName, RoleName, SecretName
from mainspring.domain.job import Code
from mainspring.domain.release import RELEASE, RELEASE_HEADER
from mainspring.domain.wire.events.leads import GenerationResumedEvent, GenerationSteppingEvent, ResultEvent

from .program import ROWS, digest_of, expected_rows

LIMIT_S = 120.0
MAIN = RoleName("main")
JOB = JobId("job-1")
ATTEMPT = AttemptId("attempt-1")
TOKEN = "secret-of-the-attempt"
PEERS_SECRET = "secret-of-the-peers"
SOURCE = Path(__file__).parents[2] / "src"
AGENT = (sys.executable, "-m", "mainspring", "agent")


def gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True


@dataclass
class Rig:
    """An attempt's controller and its agents. Agent `n` serves node `n<n>`, with `ranks_each` places.

    The controller is `away` for everybody, or `deaf` to heartbeats alone. With `sees` an engine tells it of agents that
    have ended.
    """

    folder: Path
    command: tuple[str, ...]
    attempt: AttemptId = ATTEMPT
    job: JobId = JOB
    agents: int = 2
    ranks_each: int = 1
    spares: int = 0
    ranks_min: int = 0
    memory_mib: int = 0
    restarts_max: int = 8
    lease_s: float = 2.0
    hang_s: float = 0.0
    peers_secret: str = PEERS_SECRET
    number: int = 1
    host: str = "127.0.0.1"
    objects_url: str = ""
    environment: Mapping[str, str] = field(default_factory=dict)
    secrets: Mapping[SecretName, str] = field(default_factory=dict)  # Given to ranks as files.
    pythonpath: str = str(SOURCE)
    credentials: Callable[[], wire.StoreCredentials] | None = None
    view_credentials: Callable[[str], wire.StoreCredentials] | None = None
    program: tuple[str, ...] = AGENT
    within: Mapping[int, tuple[str, ...]] = field(default_factory=dict)  # What runs an agent's command, by agent.
    away: bool = False
    deaf: bool = False
    sees: bool = False
    apart: bool = False  # Agents report in a folder of its own, as where engines read a shared disk.
    fenced: bool = False
    formed: bool = False
    epoch: int = 1
    lead: int = 0
    heard_s: float = 0.0
    addresses: dict[int, str] = field(default_factory=dict)
    heartbeats: list[wire.Heartbeat] = field(default_factory=list)
    events: list[wire.LeadEvent] = field(default_factory=list)
    seen: dict[int, int] = field(default_factory=dict)
    processes: list[subprocess.Popen[bytes]] = field(default_factory=list)
    changed: threading.Condition = field(default_factory=threading.Condition)

    # ------------------------------------------------------------ life

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
                refused = rig.fenced and isinstance(reply, wire.Orders)
                data = codec.encode(reply) if reply is not None and not refused else b"the attempt is over"
                self.send_response(409 if refused else 200 if reply is not None else 503)
                self.send_header("Content-Length", str(len(data)))
                self.send_header(RELEASE_HEADER, RELEASE)
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, format: str, *args: Any) -> None:
                pass

        class Server(http.server.ThreadingHTTPServer):
            def handle_error(self, request: Any, client_address: Any) -> None:
                pass  # A killed agent hangs up in the middle of things; that is the point.

        self.server = Server((self.host, 0), Handler)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        self.first = self.agents
        for _ in range(self.agents):
            self._add()

    def add_agent(self) -> int:
        """Adds a node to the attempt while it runs; returns its agent's number."""
        with self.changed:
            self.agents += 1
        self._add()
        return self.agents - 1

    def _add(self) -> None:
        index = len(self.processes)
        work = self.work(index)
        work.mkdir(parents=True)
        order = AgentOrder(
            allocation=AllocationId(f"{self.attempt}-main-{index}"),
            attempt=self.attempt,
            role=MAIN,
            node=NodeName(f"n{index}"),
            index=index,
            chip_milli=1000,
            controller=f"http://{self.host}:{self.server.server_port}",
            token=TOKEN,
            work_dir=str(work),
            report_dir=str(self.reports(index)) if self.apart else "",
        )
        (work / "order.json").write_bytes(codec.encode(order))
        with (work / "agent.log").open("wb") as log:
            self.processes.append(
                subprocess.Popen(
                    [*self.within.get(index, ()), *self.program, "--order", str(work / "order.json")],
                    stdout=log,
                    stderr=log,
                    start_new_session=True,
                    env={**os.environ, "PYTHONPATH": str(SOURCE), **self.environment},
                )
            )

    def close(self) -> None:
        for process in self.processes:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        self.server.shutdown()
        self.server.server_close()

    # ------------------------------------------------------------ the controller

    def answer(self, path: str, body: bytes) -> object:
        if path == "/v1/agents/register":
            register = codec.decode(wire.Register, body)
            agent = int(register.node[1:])
            self.addresses[agent] = register.address
            self.name(agent, register.lost_epoch)
            return self.orders(agent)
        if path == "/v1/agents/store-credentials":
            assert self.credentials is not None
            return self.credentials()
        if path == "/v1/agents/view-credentials":
            assert self.view_credentials is not None
            return self.view_credentials(codec.decode(wire.ViewCredentialsWanted, body).view)
        if self.deaf:
            return None
        heartbeat = codec.decode(wire.Heartbeat, body)
        if heartbeat.epoch == self.epoch:
            self.heartbeats.append(heartbeat)
            self.heard_s = time.monotonic()
        seen = self.seen.get(heartbeat.epoch, 0)
        fresh = [event for event in heartbeat.events if event.sequence > seen]
        self.events += fresh
        self.seen[heartbeat.epoch] = seen + len(fresh)
        fenced = self.fenced or heartbeat.epoch != self.epoch
        ended = [agent for agent, process in enumerate(self.processes) if process.poll() is not None]
        gone = tuple(ended) if self.sees else ()
        return wire.HeartbeatReply(acknowledged=self.seen[heartbeat.epoch], fenced=fenced, gone=gone)

    def name(self, agent: int, lost_epoch: int) -> None:
        """Names the first lead once all have come, and another when this one has been silent for a lease."""
        if not self.formed and all(number in self.addresses for number in range(self.first)):
            self.formed, self.heard_s = True, time.monotonic()
        if lost_epoch == self.epoch and time.monotonic() - self.heard_s >= self.lease_s:
            self.name_lead(agent)

    def orders(self, agent: int) -> wire.Orders:
        size = self.agents * self.ranks_each
        places = tuple(
            wire.RankPlace(rank=rank, role=MAIN, role_rank=rank, role_size=size, agent=rank // self.ranks_each)
            for rank in range(size)
        )
        leads = agent == self.lead
        return wire.Orders(
            ready=self.formed,
            attempt=self.attempt,
            job=self.job,
            epoch=self.epoch,
            agent=agent,
            agents=self.agents,
            lead=leads,
            lead_address=self.addresses.get(self.lead, ""),
            ranks=places if leads else tuple(place for place in places if place.agent == agent),
            roles=(
                wire.RoleOrders(
                    role=MAIN,
                    command=self.command,
                    environment={"PYTHONPATH": self.pythonpath},
                    secret_files=tuple(self.secrets),
                    spares=self.spares,
                    ranks_min=self.ranks_min,
                    memory_mib=self.memory_mib,
                ),
            ),
            code=Code(),
            objects_url=self.objects_url or f"file://{self.folder / 'objects'}",
            restarts_max=self.restarts_max,
            lease_s=self.lease_s,
            heartbeat_s=0.2,
            hang_s=self.hang_s,
            number=self.number,
            peers_secret=self.peers_secret,
            store_credentials=self.credentials is not None,
            secrets=self.secrets,
            generation=self.heartbeats[-1].generation if self.heartbeats else 0,
        )

    def name_lead(self, agent: int) -> None:
        """Names another lead, whatever has become of the one before."""
        with self.changed:
            self.epoch, self.lead, self.heard_s = self.epoch + 1, agent, time.monotonic()

    # ------------------------------------------------------------ what tests do

    def signal_rank(self, rank: int, number: signal.Signals) -> int:
        """Signals a rank's process; returns its id."""
        pid = next(status.pid for status in self.heartbeats[-1].ranks if status.rank == rank)
        os.kill(pid, number)
        return pid

    def signal_agent(self, agent: int, number: signal.Signals) -> None:
        self.processes[agent].send_signal(number)

    def preempt(self, agent: int, grace_s: float) -> None:
        """Takes a node away as engines do: the grace in a file, then SIGTERM."""
        (self.reports(agent) / "grace").write_text(str(grace_s))
        self.signal_agent(agent, signal.SIGTERM)

    def pids(self) -> list[int]:
        return [status.pid for status in self.heartbeats[-1].ranks if status.pid]

    # ------------------------------------------------------------ what tests see

    def work(self, agent: int) -> Path:
        return self.folder / self.attempt / f"agent-{agent}"

    def reports(self, agent: int) -> Path:
        return self.folder / "reports" / f"node-{agent}" if self.apart else self.work(agent)

    def wait(self, condition: Callable[[], bool], what: str, *, limit_s: float = LIMIT_S) -> None:
        until_s = time.monotonic() + limit_s
        with self.changed:
            while not condition():
                assert time.monotonic() < until_s, f"no {what}; {self.story()}"
                self.changed.wait(0.05)  # Files and processes change without a word to us.

    def story(self) -> str:
        logs = "\n".join(f"{path}: {path.read_text()[-1500:]}" for path in sorted(self.folder.glob("*/*/*.log")))
        events = "\n".join(f"{event.time_s:.2f} {event.kind} {dict(event.detail)}" for event in self.events)
        return f"events:\n{events}\nlogs:\n{logs[-6000:]}"

    def wait_outcome(self) -> wire.Heartbeat:
        self.wait(lambda: self.heartbeats[-1:] != [] and self.heartbeats[-1].outcome is not None, "outcome")
        return self.heartbeats[-1]

    def wait_step(self, step: int) -> None:
        self.wait(lambda: self.heartbeats[-1:] != [] and self.heartbeats[-1].step > step, f"step {step}")

    def wait_event(self, kind: str, count: int = 1) -> wire.Detail:
        self.wait(lambda: len(self.of_kind(kind)) >= count, f"{kind} number {count}")
        return self.of_kind(kind)[count - 1]

    def wait_stepping(self, generation: int) -> None:
        """Waits until a generation, or a newer one, steps."""
        self.wait(
            lambda: any(int(d["generation"]) >= generation for d in self.of_kind(GenerationSteppingEvent.kind)),
            f"step of generation {generation}",
        )

    def wait_resumed(self, *, ranks: int, after: wire.Detail | None = None) -> wire.Detail:
        """Waits until a generation of so many ranks has begun, later than another."""

        def found() -> list[wire.Detail]:
            least = int(after["generation"]) if after is not None else 0
            seen = self.of_kind(GenerationResumedEvent.kind)
            return [detail for detail in seen if detail["ranks"] == ranks and int(detail["generation"]) > least]

        self.wait(lambda: found() != [], f"generation of {ranks} ranks")
        return found()[0]

    def of_kind(self, kind: str) -> list[wire.Detail]:
        return [event.detail for event in self.events if event.kind == kind]

    def exit_of(self, agent: int) -> AgentExit:
        self.processes[agent].wait(timeout=LIMIT_S)
        return codec.decode(AgentExit, (self.reports(agent) / "exit.json").read_bytes())

    def check_results(self, steps: int, *, ranks: int) -> None:
        """Checks that the end is bitwise what an undisturbed run comes to."""
        state = expected_rows(steps)
        bounds = [ROWS * rank // ranks for rank in range(ranks + 1)]
        wanted = {f"rows-{rank}-{ranks}": digest_of(state[bounds[rank] : bounds[rank + 1]]) for rank in range(ranks)}
        got = {name: value for detail in self.of_kind(ResultEvent.kind) for name, value in detail.items()}
        assert {name: got.get(name) for name in wanted} == wanted
