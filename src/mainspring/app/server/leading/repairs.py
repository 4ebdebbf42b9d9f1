"""How a site's hooks are called, by HTTP or as a command; and the thread that has nodes repaired."""

from __future__ import annotations

import logging
import os
import signal
import ssl
import subprocess
from collections.abc import Mapping
from tempfile import TemporaryFile
from threading import Lock, Thread
from typing import final

import httpx

from mainspring.app.server.leading.thread import LeadingThread
from mainspring.control import Control
from mainspring.control.server import Server
from mainspring.control.service.nodes.repairing import HookCall, HookSaid, Repairs
from mainspring.domain.answers import RepairOutcome
from mainspring.domain.hardware.care import CareRules, put_in
from mainspring.domain.wire.trust import trust

SAID_KEPT = 1_000  # Calls of which it is remembered what came: many times those that are under way.
SAID_BYTES_MAX = 500  # Of what a command wrote last.
_PAUSE_S = 2.0  # Between two looks at what is due.
_PASSED = ("PATH", "HOME", "LANG", "TZ")  # Of the server's environment: nothing in which a secret may be.
_log = logging.getLogger(__name__)


@final
class HookThreads:
    """Calls hooks, each in a thread of its own, at most as many as are under way."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._said: dict[int, HookSaid] = {}

    def call(self, call: HookCall) -> None:
        """See `Hooks`."""
        Thread(target=self._call, args=(call,), name=f"mainspring-repair-{call.number}", daemon=True).start()

    def said(self) -> Mapping[int, HookSaid]:
        """See `Hooks`; what was told is told again."""
        with self._lock:
            return dict(self._said)

    def _call(self, call: HookCall) -> None:
        try:
            said = _posted(call) if call.hook.url else _run(call)
        except Exception as error:  # noqa: BLE001  Whatever it was, the ladder goes on.
            _log.exception("a hook of repairs failed")
            said = HookSaid(outcome=RepairOutcome.FAILED, words=type(error).__name__)
        with self._lock:
            self._said[call.number] = said
            for number in list(self._said)[:-SAID_KEPT]:
                del self._said[number]


def _posted(call: HookCall) -> HookSaid:
    headers = {"Content-Type": "application/json", "User-Agent": "mainspring", "Idempotency-Key": str(call.number)}
    url, limit_s = call.hook.url, call.hook.limit_s
    try:
        with (
            httpx.Client(verify=trust(url, ""), timeout=limit_s, trust_env=False) as client,
            client.stream("POST", url, content=call.body, headers=headers) as answer,
        ):
            status = answer.status_code  # What it says is not read.
    except httpx.TimeoutException:
        return HookSaid(outcome=RepairOutcome.LATE, words=f"no answer within {limit_s:g} s")
    except (httpx.HTTPError, httpx.InvalidURL, ssl.SSLError, OSError) as error:
        return HookSaid(outcome=RepairOutcome.FAILED, words=f"no answer ({type(error).__name__})")
    return HookSaid(outcome=RepairOutcome.DONE if 200 <= status < 300 else RepairOutcome.FAILED, words=f"HTTP {status}")


def _run(call: HookCall) -> HookSaid:
    words = put_in(call.hook.command, cluster=call.cluster, node=call.node)
    environment = {name: os.environ[name] for name in _PASSED if name in os.environ}
    with TemporaryFile() as told, TemporaryFile() as written:
        told.write(call.body)
        told.seek(0)
        try:
            child = subprocess.Popen(
                words, stdin=told, stdout=written, stderr=written, env=environment, start_new_session=True
            )
        except OSError as error:
            return HookSaid(outcome=RepairOutcome.FAILED, words=f"cannot be started: {error}")
        try:
            code = child.wait(call.hook.limit_s)
        except subprocess.TimeoutExpired:
            os.killpg(child.pid, signal.SIGKILL)
            child.wait()
            return HookSaid(
                outcome=RepairOutcome.LATE, words=f"was not over within {call.hook.limit_s:g} s, and killed"
            )
        size = written.seek(0, os.SEEK_END)
        written.seek(max(0, size - SAID_BYTES_MAX))
        last = " ".join(written.read(SAID_BYTES_MAX).decode(errors="replace").split())
    said = f"exit code {code}" + (f": {last}" if last else "")
    return HookSaid(outcome=RepairOutcome.DONE if code == 0 else RepairOutcome.FAILED, words=said)


def repair_thread(control: Control, server: Server, rules: CareRules) -> LeadingThread:
    """Returns what has nodes repaired; nothing where the operator sets nothing up."""
    repairs = Repairs(
        control.store, control.fleet, control.clock, control.dice, rules, HookThreads(), server.write_as_leader
    )
    return LeadingThread(server, "repairs", repairs.step, pause_s=_PAUSE_S, wanted=rules.comes_back_by_repair)
