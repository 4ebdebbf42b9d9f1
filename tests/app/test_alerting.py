"""From a fault to a page and back: a real server, Prometheus, Alertmanager, and a webhook; hours go by in seconds."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import httpx
import pytest
import yaml

from mainspring.app.sdk.lab import Lab, job
from mainspring.control.service.alerts.dashboards import RATE, dashboards
from mainspring.control.service.alerts.rules import groups, rules_yaml
from mainspring.domain.life import ended
from mainspring.node.net.connection import free_port
from tests.app.conftest import until
from tests.programs import program

PACE = 600.0  # Two minutes of an alert are a fifth of a second.
REMEDY = "apt-get install prometheus prometheus-alertmanager"
# What a lab has nothing of that is healthy, has no certificate, and has run for seconds on two nodes.
EMPTY = {
    "Where time of large jobs goes",
    "Certificate ends in",
    "Attempts stopped, an hour",
    "large-job-goodput: burn rate (objective 0.9)",
}


@dataclass
class Pager:
    """What Alertmanager posted: alerts by name and state, in order."""

    url: str = ""
    told: list[tuple[str, str]] = field(default_factory=list)
    posts: list[Any] = field(default_factory=list)


@contextmanager
def pager() -> Iterator[Pager]:
    found = Pager()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            post = json.loads(self.rfile.read(int(self.headers["content-length"])))
            found.posts.append(post)
            found.told += [(alert["labels"]["alertname"], alert["status"]) for alert in post["alerts"]]
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            """Says nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    found.url = f"http://127.0.0.1:{server.server_address[1]}/"
    thread = Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield found
    finally:
        server.shutdown()
        server.server_close()


@contextmanager
def running(folder: Path, *words: str) -> Iterator[None]:
    """A program, ended by its own process id; its output is shown where it ends by itself."""
    with (folder / f"{Path(words[0]).name}.log").open("wb") as log:
        process = subprocess.Popen(words, cwd=folder, stdout=log, stderr=log)
    try:
        yield
        assert process.poll() is None, Path(log.name).read_text()[-3_000:]
    finally:
        process.terminate()
        process.wait(120)


@contextmanager
def watched(folder: Path, lab_url: str, token: str, pager_url: str) -> Iterator[str]:
    """Prometheus and Alertmanager that watch a server and tell a pager; yields Prometheus's address."""
    prometheus, alertmanager = program("prometheus", REMEDY), program("prometheus-alertmanager", REMEDY)
    here, there = (f"127.0.0.1:{free_port('127.0.0.1')}" for _ in range(2))
    (folder / "token").write_text(token)
    (folder / "rules.yaml").write_text(rules_yaml(pace=PACE))
    job_of_lab = {
        "job_name": "mainspring",
        "authorization": {"credentials_file": str(folder / "token")},
        "static_configs": [{"targets": [lab_url.removeprefix("http://")]}],
    }
    told = {
        "global": {"scrape_interval": "500ms", "scrape_timeout": "500ms", "evaluation_interval": "500ms"},
        "rule_files": ["rules.yaml"],
        "alerting": {"alertmanagers": [{"static_configs": [{"targets": [there]}]}]},
        "scrape_configs": [job_of_lab],
    }
    (folder / "prometheus.yaml").write_text(yaml.safe_dump(told))
    route = {"receiver": "pager", "group_by": ["alertname"], "group_wait": "0s", "group_interval": "1s"}
    receiver = {"name": "pager", "webhook_configs": [{"url": pager_url, "send_resolved": True}]}
    (folder / "alertmanager.yaml").write_text(yaml.safe_dump({"route": route, "receivers": [receiver]}))
    words = ["--config.file=prometheus.yaml", f"--storage.tsdb.path={folder / 'data'}", "--rules.alert.resend-delay=1s"]
    own = ["--config.file=alertmanager.yaml", f"--storage.path={folder / 'silences'}", "--cluster.listen-address="]
    with (
        running(folder, alertmanager, *own, f"--web.listen-address={there}"),
        running(folder, prometheus, *words, f"--web.listen-address={here}"),
    ):
        until(lambda: _ready(f"http://{here}") and _ready(f"http://{there}"), "Prometheus and Alertmanager")
        yield f"http://{here}"


def _ready(url: str) -> bool:
    try:
        return httpx.get(f"{url}/-/ready", timeout=5).status_code == 200
    except httpx.TransportError:
        return False


def _asked(url: str, expr: str) -> list[Any]:
    answer = httpx.get(f"{url}/api/v1/query", params={"query": expr}, timeout=120).json()
    assert answer["status"] == "success", (expr, answer)
    found: list[Any] = answer["data"]["result"]
    return found


def _fires(url: str, alert: str) -> bool:
    return bool(_asked(url, f"ALERTS{{alertname='{alert}',alertstate='firing'}}"))


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_a_killed_server_pages_and_one_that_is_back_ends_the_page(lab: Lab, tmp_path: Path) -> None:
    record = lab.home.server()
    assert record is not None
    with pager() as phone, watched(tmp_path, record.url, lab.home.token(), phone.url) as prometheus:
        until(lambda: ("MainspringDeadMan", "firing") in phone.told, "the dead man's switch")
        until(lambda: bool(_asked(prometheus, "mainspring_leads == 1")), "a leader")
        until(lambda: not _fires(prometheus, "MainspringServersDown"), "nothing to be wrong")
        os.kill(record.pid, signal.SIGKILL)
        until(lambda: ("MainspringServersDown", "firing") in phone.told, "the page")
        (alert,) = (
            alert
            for post in phone.posts
            for alert in post["alerts"][:1]
            if (alert["labels"]["alertname"], alert["status"]) == ("MainspringServersDown", "firing")
        )
        assert alert["labels"] == {"alertname": "MainspringServersDown", "severity": "page"}
        assert alert["annotations"]["runbook_url"] == "docs/runbooks/servers-down.md"
        lab.up()
        until(lambda: ("MainspringServersDown", "resolved") in phone.told, "the end of the page")


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_every_panel_of_every_dashboard_shows_something(lab: Lab, tmp_path: Path) -> None:
    record = lab.home.server()
    assert record is not None
    with pager() as phone, watched(tmp_path, record.url, lab.home.token(), phone.url) as prometheus:
        until(lambda: bool(_asked(prometheus, "mainspring_leads == 1")), "a leader")
        gate = tmp_path / "gate"
        wait = f"import os, threading\nwhile not os.path.exists({str(gate)!r}): threading.Event().wait(0.05)"
        runs = [lab.run(job(f"run-{index}", [sys.executable, "-c", wait], on=["h100"])) for index in range(4)]
        until(lambda: bool(_asked(prometheus, "mainspring_queue_jobs > 0")), "a job that waits")
        lab.stop(runs[-1].id)
        until(lambda: bool(_asked(prometheus, "rate(mainspring_jobs_ended_total[1h]) >= 0")), "a job that ended")
        back_up = [str(Path(sys.executable).parent / "ms"), "--home", str(lab.home.path), "backup", "lab.backup"]
        subprocess.run(back_up, cwd=tmp_path, check=True, timeout=60, capture_output=True)
        panels = [(one.name, panel) for one in dashboards() for panel in one.panels]

        def silent() -> set[str]:
            return {
                panel.title
                for _, panel in panels
                if not any(_asked(prometheus, line.expr.replace(RATE, "10s")) for line in panel.lines)
            }

        with suppress(AssertionError):  # Which panels are empty is told below.
            until(lambda: silent() <= EMPTY, "every panel to show something")
        assert silent() == EMPTY
        evaluated = httpx.get(f"{prometheus}/api/v1/rules", timeout=120).json()["data"]["groups"]
        assert [rule["lastError"] for group in evaluated for rule in group["rules"] if rule["health"] == "err"] == []
        assert len(evaluated) == len(groups())
        gate.touch()
        until(lambda: all(ended(lab.status(one.id).state) for one in runs), "jobs to end")
