"""Asks an exporter of Prometheus for its text: in a thread of its own, within bounds of time and size."""

from __future__ import annotations

import ssl
from collections.abc import Callable
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from ipaddress import ip_address
from threading import Event, Lock, Thread
from typing import Protocol, final
from urllib.parse import urlsplit

from mainspring.domain.errors import InvalidInput
from mainspring.domain.ports import Clock

USUAL_URL = "http://127.0.0.1:9400/metrics"  # Of DCGM's.
SCRAPED_S = 30.0  # As often as that itself asks DCGM. Source: dcgm-exporter, `--collect-interval`.
CALL_LIMIT_S = 10.0  # One scrape, from the first byte to the last.
WAIT_LIMIT_S = 5.0  # For the next byte of it.
ANSWER_BYTES_MAX = 4 << 20  # 8 GPUs of 7 parts and 100 fields each come to 2 MiB.


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What came of one call.

    Args:
        text: What was answered.
        trouble: Why nothing was; "" where something was.
    """

    text: str = ""
    trouble: str = ""


def checked_url(url: str) -> str:
    """Returns where an exporter is asked.

    Args:
        url: What somebody said.

    Raises:
        InvalidInput: That is no address of HTTP.
    """
    try:
        parts = urlsplit(url)
        held = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        held = False
    if not held or not url.isascii() or not url.isprintable() or " " in url:
        raise InvalidInput("ask DCGM's exporter", on="--dcgm", got=repr(url)[:120], wanted=USUAL_URL)
    return url


def is_own(url: str) -> bool:
    """Returns whether nobody but this machine answers at an address."""
    host = urlsplit(url).hostname or ""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def ask(url: str, clock: Clock) -> Answer:
    """Returns what an exporter answers, or why it does not, after `CALL_LIMIT_S` at the latest or `WAIT_LIMIT_S` more.

    Args:
        url: As `checked_url` has it.
    """
    parts, over_s = urlsplit(url), clock.monotonic_s() + CALL_LIMIT_S
    host, port = parts.hostname or "", parts.port
    if parts.scheme == "https":
        line: HTTPConnection = HTTPSConnection(host, port, timeout=WAIT_LIMIT_S, context=ssl.create_default_context())
    else:
        line = HTTPConnection(host, port, timeout=WAIT_LIMIT_S)
    try:
        line.request("GET", (parts.path or "/") + (f"?{parts.query}" if parts.query else ""))
        answer = line.getresponse()
        if answer.status != 200:
            return Answer(trouble=f"{url} answers {answer.status}")
        found, size = list[bytes](), 0
        while part := answer.read1(1 << 16):
            found.append(part)
            size += len(part)
            if size > ANSWER_BYTES_MAX:
                return Answer(trouble=f"{url} answers more than {ANSWER_BYTES_MAX >> 20} MiB")
            if clock.monotonic_s() > over_s:
                return Answer(trouble=f"{url} takes longer than {CALL_LIMIT_S:g} s")
        return Answer(text=b"".join(found).decode(errors="replace"))
    except (OSError, HTTPException, ValueError) as error:  # ValueError: a name that cannot be looked up.
        return Answer(trouble=f"no answer from {url}: {error!r}"[:300])
    finally:
        line.close()


class Answers(Protocol):
    """What comes of calls that somebody makes. No call waits for one, and none raises."""

    def take(self) -> Answer | None:
        """Returns the newest answer, once; None where there is no newer one."""

    def close(self) -> None:
        """Asks no more."""


@final
class Scrape:
    """Asks again and again, in a thread of its own, so that no watcher waits for it.

    Args:
        ask: Asks once.
        every_s: How long it waits between two calls.
    """

    def __init__(self, ask: Callable[[], Answer], every_s: float = SCRAPED_S) -> None:
        self._ask = ask
        self._every_s = every_s
        self._lock = Lock()
        self._answer: Answer | None = None
        self._closed = Event()
        self._thread = Thread(target=self._run, name="scrape", daemon=True)
        self._thread.start()

    def take(self) -> Answer | None:
        """Returns the newest answer; see `Answers`."""
        with self._lock:
            answer, self._answer = self._answer, None
            return answer

    def close(self) -> None:
        """Asks no more."""
        self._closed.set()

    def _run(self) -> None:
        while not self._closed.is_set():
            answer = self._ask()
            with self._lock:
                self._answer = answer
            self._closed.wait(self._every_s)
