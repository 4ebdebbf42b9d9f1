"""An engine on another machine: the whole of it runs there, and the eight calls travel over the pipe of an `ssh`."""

from __future__ import annotations

import base64
import shlex
import threading
from dataclasses import replace
from typing import final

from mainspring.domain.answers import error_of, problem_of
from mainspring.domain.errors import MainspringError, Unavailable
from mainspring.domain.fleet import LogChunk
from mainspring.domain.ports import Clock
from mainspring.engines.common.forwarding import CallResult, EngineCall, ForwardingEngine
from mainspring.engines.remote.connection import HostCommand, RemoteConnection, Reply
from mainspring.engines.remote.wire import LOG_BYTES_MAX

CALLS_MAX = 32  # Under way at once. A controller's threads make fourteen, and people who read logs some more.
RETRY_S = (
    0.0,
    1.0,
    2.0,
    5.0,
    10.0,
    30.0,
)  # Waits before a new line after one that broke; a machine reboots in minutes.
_OPTIONS = {
    "BatchMode": "yes",  # Nobody is there to type a password.
    "ConnectTimeout": "10",
    "ServerAliveInterval": "5",  # With the count: a dead network is noticed after 15 s.
    "ServerAliveCountMax": "3",
    "ClearAllForwardings": "yes",
    "ForwardAgent": "no",
    "ForwardX11": "no",
    "RequestTTY": "no",
}


def ssh_words(target: str, python: str, *program: str) -> tuple[str, ...]:
    """Returns the command that runs one of our programs on another machine.

    Args:
        target: As ssh names it.
        python: The interpreter there that has Mainspring.
        program: Its name for `python -m mainspring`, and its arguments.
    """
    own = [word for name, value in _OPTIONS.items() for word in ("-o", f"{name}={value}")]
    # -P: what happens to lie in the home folder there is not imported.
    return ("ssh", *own, "--", target, f"exec {shlex.quote(python)} -P -m mainspring {shlex.join(program)}")


@final
class RemoteEngine(ForwardingEngine):
    """The `Engine` port to an engine on another machine. Any number of threads may call it.

    The line is opened by the first call, and again after it broke by the first call that comes once its wait is over;
    calls before that raise at once, in the words of what broke it. Never more than `LOG_BYTES_MAX` of a log come.

    Args:
        opening: The message that tells the host which engine to make.
        call_s: How long a call may take; longer than the engine's own bound.
    """

    def __init__(self, command: HostCommand, opening: object, *, clock: Clock, call_s: float) -> None:
        self._command = command
        self._opening = opening
        self._on = command.on
        self._clock = clock
        self._call_s = call_s
        self._free = threading.BoundedSemaphore(CALLS_MAX)
        self._lock = threading.Lock()
        self._line: RemoteConnection | None = None
        self._broken: MainspringError | None = None
        self._failures = 0
        self._retry_at_s = float("-inf")
        self._closed = threading.Event()

    def close(self) -> None:
        """Hangs up; every call under way and every later one raises `Unavailable`."""
        self._closed.set()
        line = self._line
        if line is not None:
            line.close()

    def _forward(self, call: EngineCall) -> CallResult:
        reply = self._call(replace(call, limit=min(call.limit, LOG_BYTES_MAX)))
        match call.call:
            case "inventory":
                if reply.answer.inventory is None:
                    raise Unavailable("list a cluster's nodes", on=self._on, got="an answer without them")
                return replace(reply.answer.inventory, nodes=tuple(reply.nodes))
            case "observe":
                return tuple(reply.seen)
            case "logs":
                try:
                    data = base64.b64decode(reply.answer.log, validate=True)
                except ValueError as error:
                    raise Unavailable("read a log", on=self._on, got=str(error), wanted="base64") from error
                return LogChunk(data=data, next_offset=reply.answer.next_offset)
            case "forget_ended":
                return reply.answer.count
            case "attestation":
                return reply.answer.attestation
            case _:
                return None

    def _call(self, call: EngineCall) -> Reply:
        if not self._free.acquire(timeout=self._call_s):
            raise Unavailable(call.call, on=self._on, got=f"{CALLS_MAX} calls under way", wanted="an answer to one")
        try:
            reply = self._open(call.call).call(call, wait_s=self._call_s)
        finally:
            self._free.release()
        if reply.answer.error is not None:
            raise error_of(reply.answer.error)
        return reply

    def _open(self, attempted: str) -> RemoteConnection:
        """Returns a line that is open as far as anybody knows."""
        if self._closed.is_set():
            raise Unavailable(attempted, on=self._on, got="an engine that was closed")
        if not self._lock.acquire(timeout=self._call_s):
            raise Unavailable(attempted, on=self._on, got=f"no line to it within {self._call_s:g} s")
        try:
            line, now_s = self._line, self._clock.monotonic_s()
            if line is not None and line.broken is None:
                return line
            if line is not None:
                # One that broke before it answered anything is no better than one that never opened.
                self._failures = 0 if line.answered else self._failures
                assert line.broken is not None
                self._fail(line.broken, now_s)
                self._line = None
            if self._broken is not None and now_s < self._retry_at_s:
                raise error_of(problem_of(self._broken))
            try:
                self._line = line = RemoteConnection(self._command)
                if self._closed.is_set():
                    line.close()
                line.open(self._opening)
            except MainspringError as error:
                self._line = None
                self._fail(error, self._clock.monotonic_s())
                raise
            return line
        finally:
            self._lock.release()

    def _fail(self, error: MainspringError, now_s: float) -> None:
        self._broken = error
        self._failures += 1
        self._retry_at_s = now_s + RETRY_S[min(self._failures, len(RETRY_S)) - 1]
