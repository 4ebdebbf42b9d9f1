"""Submitting jobs over HTTP, durably: ours one by one and in batches, slurmrestd, and sbatch.

Run as `python -m benchmarks.control_submit [--quick] [--store postgresql]`. 16 clients on kept connections submit jobs
of distinct specs and keys to a server on this machine, whose store is SQLite with synchronous=FULL, or PostgreSQL with
fsync and synchronous_commit on; jobs wait, since their team may hold no chips. `single_per_s`: answers a second over
the whole time, `p99_ms` of them; `batch_per_s`: jobs a second in batches of 10,000 different ones from one client.
After each, the server is killed by SIGKILL and started anew, and every job that was answered must be there. Beside it,
in turn: 16 processes at a time that call `sbatch` (`sbatch_per_s`), and 16 clients on kept connections to slurmrestd
(`slurmrestd_per_s`, None where it is not installed), on a real Slurm here whose jobs are held. `sbatch_ratio` is ours
over the faster of these. Medians of 3 rounds. `loop_s` is the time of 6,000,000 turns of `total += i * i % 7`, by which
bounds scale (0.20 s is the reference).
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from threading import Lock
from typing import Any
from urllib.parse import urlsplit

from mainspring.app.sdk.lab import Lab, job
from mainspring.control.store.records import ACTIVE_MAX
from mainspring.domain.answers import BATCH_MAX, Submit, SubmitBatch, SubmittedBatch
from mainspring.domain.codec import decode, encode
from mainspring.domain.ids import TeamName
from mainspring.domain.team import WaitingLimits
from mainspring.testing.postgres import PostgresServer
from mainspring.testing.slurm import SlurmNodes, SlurmServer

CLIENTS = 16
PROCESSES = 4  # The clients': one Python process would be the limit of what it measures.
ROUNDS = 3
SINGLE_S = 60.0
PEER_S = 15.0
QUICK_S = 5.0
SAFE = {"fsync": "on", "synchronous_commit": "on", "max_wal_size": "4GB"}
BATCHES = 3
TEAM = TeamName("waiting")
SCRIPT = "#!/bin/sh\ntrue\n"


class UnixConnection(http.client.HTTPConnection):
    """HTTP over a Unix socket, as slurmrestd speaks it."""

    def __init__(self, path: str) -> None:
        super().__init__("localhost")
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.connect(self._path)


def loop_s() -> float:
    begun_s = time.process_time()
    total = 0
    for i in range(6_000_000):
        total += i * i % 7
    return time.process_time() - begun_s


# ---------------------------------------------------------------- ours


def one_by_one(url: str, token: str, seconds: float, first: int) -> list[tuple[str, float]]:
    """Submits from a few threads, and returns the id and the seconds of each answer."""
    parts = urlsplit(url)
    found: list[tuple[str, float]] = []
    until_s = time.monotonic() + seconds

    def client(number: int) -> None:
        connection = http.client.HTTPConnection(str(parts.hostname), parts.port, timeout=60)
        headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
        count, text = 0, pattern()
        while time.monotonic() < until_s:
            body = text.replace(b"NAME", f"s{number}-{os.getpid()}-{count}".encode())
            begun_s = time.monotonic()
            connection.request("POST", "/v1/jobs", body=body, headers=headers)
            answer = connection.getresponse()
            told = answer.read()
            assert answer.status == 200, told[:500]
            found.append((json.loads(told)["id"], time.monotonic() - begun_s))
            count += 1

    with ThreadPoolExecutor(CLIENTS // PROCESSES) as threads:
        list(threads.map(client, range(first, first + CLIENTS // PROCESSES)))
    return found


def pattern() -> bytes:
    """Returns the text of a submit whose names are NAME: what clients spend on theirs is taken from the server here."""
    spec = job("name", ["train", "--run", "NAME"], on=["cpu"], team=TEAM, environment={"RUN": "NAME"})
    return encode(Submit(spec=spec, key="NAME")).replace(b'"name":"name"', b'"name":"NAME"')


def ours(folder: Path, seconds: float, database: str) -> dict[str, float]:
    lab = Lab(folder / "home")
    limits = WaitingLimits(person_jobs=ACTIVE_MAX, team_jobs=ACTIVE_MAX)
    lab.home.write_config(replace(lab.home.config(), limits=limits, database=database))
    record = lab.up(port=0)
    try:
        lab.set_team(TEAM, chips_max=0.0)
        with ProcessPoolExecutor(PROCESSES) as pool:
            parts = [
                pool.submit(one_by_one, record.url, lab.home.token(), seconds, number * CLIENTS)
                for number in range(PROCESSES)
            ]
            answers = [each for part in parts for each in part.result()]
        record = killed_and_back(lab)
        check(lab, {each for each, _ in answers})
        bodies = [batch(number) for number in range(BATCHES)]
        begun_s, made = time.monotonic(), batched(record.url, lab.home.token(), bodies)
        batch_s = time.monotonic() - begun_s
        killed_and_back(lab)
        check(lab, made)
    finally:
        lab.down()
    taken = sorted(each for _, each in answers)
    return {
        "single_per_s": len(answers) / seconds,
        "p50_ms": 1e3 * taken[len(taken) // 2],
        "p99_ms": 1e3 * taken[int(0.99 * len(taken))],
        "batch_per_s": len(made) / batch_s,
    }


def batch(number: int) -> bytes:
    plain = job("b", ["train"], on=["cpu"], team=TEAM)
    specs = [replace(plain, name=f"b-{number}-{index}") for index in range(BATCH_MAX)]
    return encode(SubmitBatch(submits=tuple(Submit(spec=spec, key=spec.name) for spec in specs)))


def batched(url: str, token: str, bodies: Sequence[bytes]) -> set[str]:
    """Submits whole batches from one client; their texts are made before."""
    parts = urlsplit(url)
    connection = http.client.HTTPConnection(str(parts.hostname), parts.port, timeout=600)
    headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
    made: set[str] = set()
    for body in bodies:
        connection.request("POST", "/v1/jobs/batch", body=body, headers=headers)
        answer = connection.getresponse()
        told = answer.read()
        assert answer.status == 200, told[:500]
        made.update(decode(SubmittedBatch, told).jobs)
    return made


def killed_and_back(lab: Lab) -> Any:
    """Kills the server as a power cut would, for all that it knows, and starts it anew."""
    record = lab.home.server()
    assert record is not None
    os.kill(record.pid, signal.SIGKILL)
    os.waitpid(record.pid, 0)  # Ours: until it is gone, it may still answer.
    return lab.up(port=0)


def check(lab: Lab, answered: set[str]) -> None:
    with lab.client() as client:
        kept = {view.id for view in client.every_job(team=TEAM)}
    assert answered <= kept, f"{len(answered - kept)} of {len(answered)} answered jobs are lost"


# ---------------------------------------------------------------- peers


def sbatched(server: SlurmServer, folder: Path, seconds: float) -> float:
    script = folder / "script.sh"
    script.write_text(SCRIPT)
    environment = {**os.environ, **server.environment}
    command = ("sbatch", "--parsable", "--hold", "-o", "/dev/null", str(script))

    def submit() -> None:
        subprocess.run(command, env=environment, check=True, capture_output=True, timeout=60)

    return rate(submit, seconds)


def rested(server: SlurmServer, folder: Path, seconds: float) -> float | None:
    if shutil.which("slurmrestd") is None:
        return None
    path = folder / "rest.sock"
    environment = {**os.environ, **server.environment, "SLURMRESTD_SECURITY": "disable_user_check"}
    command = ("slurmrestd", "-a", "rest_auth/local", "-s", "openapi/v0.0.38", f"unix:{path}")
    daemon = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        until_s = time.monotonic() + 10.0
        while not path.exists():
            assert time.monotonic() < until_s, "slurmrestd does not listen"
            time.sleep(0.02)
        job_of = {"name": "one", "hold": True, "current_working_directory": "/tmp", "environment": {"PATH": "/bin"}}
        body = json.dumps({"script": SCRIPT, "job": job_of | {"standard_output": "/dev/null"}}).encode()
        local: dict[int, UnixConnection] = {}
        lock = Lock()

        def submit(client: int) -> None:
            with lock:
                connection = local.setdefault(client, UnixConnection(str(path)))
            headers = {"Content-Type": "application/json"}
            connection.request("POST", "/slurm/v0.0.38/job/submit", body=body, headers=headers)
            answer = connection.getresponse()
            told = answer.read()
            assert answer.status == 200, told[:500]
            assert json.loads(told).get("job_id"), told[:500]

        return rate(submit, seconds, numbered=True)
    finally:
        daemon.terminate()
        daemon.wait(20)


def rate(submit: Callable[..., None], seconds: float, *, numbered: bool = False) -> float:
    """Returns how many submits a second 16 clients are answered."""
    until_s = time.monotonic() + seconds

    def client(number: int) -> int:
        count = 0
        while time.monotonic() < until_s:
            submit(number) if numbered else submit()
            count += 1
        return count

    with ThreadPoolExecutor(CLIENTS) as threads:
        return sum(threads.map(client, range(CLIENTS))) / seconds


def peers(folder: Path, seconds: float) -> dict[str, float | None]:
    conf = "MaxJobCount=200000\nSchedulerParameters=max_submit_line_size=4096,defer"
    with SlurmServer(folder / "server", nodes=[SlurmNodes(count=2)], extra_conf=[conf]) as server:
        return {
            "slurmrestd_per_s": rested(server, folder, seconds),
            "sbatch_per_s": sbatched(server, folder, seconds),
        }


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--quick", action="store_true", help=f"one round of {QUICK_S:g} s each")
    parser.add_argument("--store", choices=("sqlite", "postgresql"), default="sqlite", help="where jobs are kept")
    parser.add_argument("--ours", action="store_true", help="leave out the peers")
    given = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended"))
    rounds, single_s, peer_s = (1, QUICK_S, QUICK_S) if given.quick else (ROUNDS, SINGLE_S, PEER_S)
    found: dict[str, list[float]] = {}
    for _ in range(rounds):
        folder = Path(tempfile.mkdtemp(prefix="control-submit-"))
        try:
            with PostgresServer(**SAFE) if given.store == "postgresql" else nullcontext() as database:
                url = database.new_database() if database is not None else ""
                figures: dict[str, float | None] = {"loop_s": loop_s(), **ours(folder, single_s, url)}
            figures |= {} if given.ours else peers(folder, peer_s)
        finally:
            shutil.rmtree(folder, ignore_errors=True)
        print(json.dumps(figures), flush=True)
        for name, figure in figures.items():
            if figure is not None:
                found.setdefault(name, []).append(figure)
    medians = {name: statistics.median(some) for name, some in found.items()}
    theirs = [medians[name] for name in ("sbatch_per_s", "slurmrestd_per_s") if name in medians]
    if theirs:
        medians["sbatch_ratio"] = medians["single_per_s"] / max(theirs)
    print(json.dumps({name: round(figure, 3) for name, figure in medians.items()}))


if __name__ == "__main__":
    main()
