"""What the agent asks and tells the server: hawkBit's DDI, and beside it what is signed by TUF.

DDI is a hint of what to install. Nothing of it is believed: it names a target, and TUF says whether that is signed.

Source: Eclipse hawkBit, Direct Device Integration API: https://eclipse.dev/hawkbit/apis/ddi_api
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, final
from urllib.parse import urlsplit

from mainspring.domain.answers.policies.robots import (
    POLL_S,
    POLL_S_MAX,
    POLL_S_MIN,
    REPORT,
    TARGET,
    UNHEALTHY,
    RobotReport,
)
from mainspring.domain.codec import encode, loads
from mainspring.domain.errors import InvalidMessage, MainspringError, NotAllowed, NotFound, Unavailable
from mainspring.robots.edge.device import SignedCalls, problem_of
from mainspring.robots.edge.machine import InstallOutcome
from mainspring.robots.edge.ports import EdgeAnswer

_ACTION = re.compile("[0-9]{1,18}")
_SLEEP = re.compile("([0-9]{2}):([0-5][0-9]):([0-5][0-9])")


@dataclass(frozen=True, slots=True, kw_only=True)
class DdiOrders:
    """What the server wants now.

    Args:
        install: The action by which something is to be installed, "" for none.
        cancel: The action that is to be given up, "" for none.
        confirm: The action that somebody at the robot is to confirm, "" for none.
        sleep_s: Until the next poll.
    """

    install: str = ""
    cancel: str = ""
    confirm: str = ""
    sleep_s: float = POLL_S


@final
class DdiClient:
    """The server, as one robot calls it."""

    def __init__(self, calls: SignedCalls) -> None:
        self._calls = calls

    def poll(self) -> DdiOrders:
        """Returns what the server wants.

        Raises:
            Unavailable: Nobody answers, or nothing that can be read.
            NotAllowed: The robot is let in no more.
        """
        document = self._document("")
        links = _mapping(document.get("_links"))
        named = {name: _action(_mapping(link).get("href")) for name, link in links.items()}
        polling = _mapping(_mapping(document.get("config")).get("polling"))
        return DdiOrders(
            install=named.get("deploymentBase", ""),
            cancel=named.get("cancelAction", ""),
            confirm=named.get("confirmationBase", ""),
            sleep_s=_seconds(polling.get("sleep")),
        )

    def target(self, action: str) -> str:
        """Returns the target that an action installs, "" where it says none.

        Raises:
            NotFound: It is over.
        """
        document = self._document(f"/deploymentBase/{action}")
        chunks = _mapping(document.get("deployment")).get("chunks")
        for chunk in chunks if isinstance(chunks, list) else ():
            notes = _mapping(chunk).get("metadata")
            for note in notes if isinstance(notes, list) else ():
                if _mapping(note).get("key") == TARGET:
                    return str(_mapping(note).get("value"))
        return ""

    def going(self, action: str, words: str) -> None:
        """Tells that an action goes on."""
        self._feedback(f"/deploymentBase/{action}/feedback", "proceeding", "none", words, 0)

    def ended(self, outcome: InstallOutcome) -> None:
        """Tells how an action ended; does nothing where the server knows it no more."""
        base, code = f"/deploymentBase/{outcome.action}/feedback", UNHEALTHY if outcome.unhealthy else 0
        if outcome.cancelled:
            self.given_up(outcome.action)
        else:
            self._feedback(base, "closed", "success" if outcome.committed else "failure", outcome.why, code)

    def given_up(self, action: str) -> None:
        """Tells that an action was given up, as the server wanted."""
        self._feedback(f"/cancelAction/{action}/feedback", "closed", "success", "given up", 0)

    def confirmed(self, action: str, words: str) -> None:
        """Tells that somebody at the robot confirmed an action."""
        body = {"confirmation": "confirmed", "details": [words]}
        self._tell("POST", f"/confirmationBase/{action}/feedback", encode(body))

    def report(self, report: RobotReport) -> None:
        """Tells what the robot is and how it does."""
        body = {"mode": "merge", "data": {REPORT: encode(report).decode()}}
        self._tell("PUT", "/configData", encode(body))

    def metadata(self, name: str) -> bytes:
        """Returns metadata of TUF; see `trust.Fetch`."""
        return self._read(self._calls.call("GET", f"/trust/{name}"), name)

    def piece(self, path: str, offset: int, size_bytes: int) -> bytes:
        """Returns a piece of a target; see `source.FetchPiece`."""
        return self._read(self._calls.call("GET", f"/targets/{path}", piece=(offset, size_bytes)), path)

    # ---------------------------------------------------------------- calls

    def _feedback(self, path: str, execution: str, finished: str, words: str, code: int) -> None:
        status = {"execution": execution, "result": {"finished": finished}, "code": code, "details": [words]}
        self._tell("POST", path, encode({"status": status}))

    def _tell(self, method: str, path: str, body: bytes) -> None:
        answer = self._calls.call(method, path, body)
        if answer.status not in (200, 204, 404, 410):  # What is over need not be told.
            _refuse(answer, "tell the server")

    def _document(self, path: str) -> Mapping[str, Any]:
        answer = self._calls.call("GET", path)
        try:
            return _mapping(loads(self._read(answer, path or "the robot")))
        except InvalidMessage as error:
            raise Unavailable("ask the server", got="an answer that is no JSON") from error

    def _read(self, answer: EdgeAnswer, what: str) -> bytes:
        if answer.status in (404, 410):
            raise NotFound("ask the server", on=what, got=problem_of(answer))
        if answer.status not in (200, 206):
            _refuse(answer, "ask the server")
        return answer.body


def _refuse(answer: EdgeAnswer, attempted: str) -> None:
    kind: type[MainspringError] = NotAllowed if answer.status in (401, 403) else Unavailable
    raise kind(attempted, got=problem_of(answer), next_step="again, later")


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _action(href: object) -> str:
    last = urlsplit(href).path.rpartition("/")[2] if isinstance(href, str) else ""
    return last if _ACTION.fullmatch(last) else ""


def _seconds(sleep: object) -> float:
    found = _SLEEP.fullmatch(sleep) if isinstance(sleep, str) else None
    if found is None:
        return DdiOrders().sleep_s
    hours, minutes, seconds = map(int, found.groups())
    return min(POLL_S_MAX, max(POLL_S_MIN, hours * 3600.0 + minutes * 60 + seconds))
