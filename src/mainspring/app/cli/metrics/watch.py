"""Looks at a lab again and again, and draws it on a terminal until somebody types q."""

from __future__ import annotations

import json
import os
import select
import sys
import termios
import time
import tty
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import final

import httpx
from rich.live import Live

from mainspring.app.base.client import Client
from mainspring.app.render.live.top import Concern, Top, concerns_of, top_screen
from mainspring.app.render.tables import CONSOLE
from mainspring.domain.answers import Incident
from mainspring.domain.errors import Unavailable

JOBS_MAX = 50  # More than a screen has lines.
INCIDENTS_S = 10.0  # What is wrong with nodes is a look at all of them.
ALERTS_MAX, ALERTS_BYTES_MAX, ALERTS_S = 50, 4 << 20, 3.0
_END = ("q", "Q", "\x03", "\x04")  # Ctrl-C and Ctrl-D, where they come as letters.


@final
class LabWatch:
    """Looks at one lab.

    Args:
        prometheus: Where alerts are asked for, "" for nowhere.
    """

    def __init__(self, client: Client, prometheus: str) -> None:
        self._client = client
        self._prometheus = prometheus.rstrip("/")
        self._incidents: tuple[Incident, ...] = ()
        self._asked_s = float("-inf")

    def look(self) -> Top:
        """Returns what is so now.

        Raises:
            Unavailable: No server answers, or none has planned.
            MainspringError: The server's own word.
        """
        glance, health = self._client.glance(limit=JOBS_MAX), self._client.health()
        if time.monotonic() - self._asked_s >= INCIDENTS_S:
            self._incidents, self._asked_s = self._client.incidents(), time.monotonic()
        concerns = concerns_of(glance, health, self._incidents, self._alerts())
        return Top(server=self._client.servers.url, status=health.status, glance=glance, concerns=concerns)

    def _alerts(self) -> Iterator[Concern]:
        if not self._prometheus:
            return
        try:
            yield from firing(_read(f"{self._prometheus}/api/v1/alerts"))
        except (httpx.HTTPError, httpx.InvalidURL, ValueError) as error:
            words = f"Prometheus does not tell its alerts ({type(error).__name__})"
            yield Concern(grave=False, words=words, look=self._prometheus)


def _read(url: str) -> object:
    size, parts = 0, []
    with httpx.stream("GET", url, timeout=ALERTS_S) as answer:
        answer.raise_for_status()
        for part in answer.iter_bytes():
            size += len(part)
            if size > ALERTS_BYTES_MAX:
                raise ValueError("an answer without an end")
            parts.append(part)
    return json.loads(b"".join(parts))


def firing(told: object) -> Iterator[Concern]:
    """Yields the alerts that fire, pages first, of what Prometheus answers; but for the one that always does.

    Source: Prometheus 3, HTTP API, "Alerts".
    """
    data = told.get("data") if isinstance(told, dict) else None
    alerts = data.get("alerts") if isinstance(data, dict) else None
    found = []
    for one in (alerts if isinstance(alerts, list) else [])[: ALERTS_MAX * 10]:
        labels, said = (one.get("labels"), one.get("annotations")) if isinstance(one, dict) else (None, None)
        if not isinstance(labels, dict) or one.get("state") != "firing":
            continue
        name, severity = str(labels.get("alertname", "")), str(labels.get("severity", ""))
        if name == "MainspringDeadMan":
            continue
        summary = said.get("summary", "") if isinstance(said, dict) else ""
        found.append(Concern(grave=severity == "page", words=f"{name}: {summary}"[:300], look=f"ms alerts {name}"[:80]))
    yield from sorted(found, key=lambda one: not one.grave)[:ALERTS_MAX]


def live(watch: LabWatch, every: float) -> None:
    """Draws what is so every so many seconds, until somebody types q."""
    seen = watch.look()
    trouble = ""
    with _letters(), Live(console=CONSOLE, screen=True, auto_refresh=False, vertical_overflow="crop") as live:
        while True:
            size = CONSOLE.size
            live.update(top_screen(seen, height=size.height, width=size.width, trouble=trouble), refresh=True)
            if _asked_to_end(every):
                return
            try:
                seen, trouble = watch.look(), ""
            except Unavailable as error:
                shown = time.strftime("%H:%M:%S", time.localtime(seen.glance.at_s))
                trouble = f"As of {shown}: {' '.join(str(error).split())}"


@contextmanager
def _letters() -> Iterator[None]:
    """Has letters come as they are typed, and not shown."""
    stdin = sys.stdin.fileno()
    before = termios.tcgetattr(stdin)
    try:
        tty.setcbreak(stdin)
        yield
    finally:
        termios.tcsetattr(stdin, termios.TCSADRAIN, before)


def _asked_to_end(wait_s: float) -> bool:
    """Waits, and returns whether somebody has typed q meanwhile."""
    deadline = time.monotonic() + wait_s
    while (left := deadline - time.monotonic()) > 0:
        ready, _, _ = select.select([sys.stdin], [], [], left)
        if ready:
            with suppress(OSError):
                typed = os.read(sys.stdin.fileno(), 64).decode(errors="replace")
                if not typed or any(letter in _END for letter in typed):
                    return True
    return False
