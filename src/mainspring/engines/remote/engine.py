"""An engine on another machine: the whole of it runs there, and the seven calls travel over the pipe of an `ssh`."""

from __future__ import annotations

import base64
import shlex
import threading
from collections.abc import Mapping
from dataclasses import replace
from typing import final

from mainspring.domain.answers import error_of, problem_of
from mainspring.domain.errors import MainspringError, Unavailable
from mainspring.domain.fleet import AllocationSeen, Inventory, LaunchOrder, LogChunk
from mainspring.domain.ids import AllocationId, NodeName
from mainspring.domain.ports import Clock
from mainspring.engines.remote.connection import RemoteConnection, Reply
from mainspring.engines.remote.wire import LOG_BYTES_MAX, OPEN_S, SILENT_S, FarCall

CALLS_MAX = 32  # Under way at once. A controller's threads make six, and people who read logs some more.
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


def ssh_words(target: str, python: str, program: str) -> tuple[str, ...]:
    """Returns the command that runs one of our programs on another machine.

    Args:
        target: As ssh names it.
        python: The interpreter there that has Mainspring.
        program: Its name for `python -m mainspring`.
    """
    own = [word for name, value in _OPTIONS.items() for word in ("-o", f"{name}={value}")]
    # -P: what happens to lie in the home folder there is not imported.
    return ("ssh", *own, "--", target, f"exec {shlex.quote(python)} -P -m mainspring {program}")


@final
class RemoteEngine:
    """The `Engine` port to an engine on another machine. Any number of threads may call it.

    The line is opened by the first call, and again after it broke by the first call that comes once its wait is over;
    calls before that raise at once, in the words of what broke it.

    Args:
        words: The command that starts a host, as from `ssh_words`.
        opening: The message that tells the host which engine to make.
        on: How errors name the machine.
        environment: Every variable that command gets.
        clock: Time.
        call_s: How long a call may take; longer than the engine's own bound.
        open_s: How long a log-in may take, and again the making of the engine.
        silent_s: How long a host may say nothing before it counts as hanging.
    """

    def __init__(
        self,
        words: tuple[str, ...],
        opening: object,
        *,
        on: str,
        environment: Mapping[str, str],
        clock: Clock,
        call_s: float,
        open_s: float = OPEN_S,
        silent_s: float = SILENT_S,
    ) -> None:
        self._words = words
        self._opening = opening
        self._on = on
        self._environment = dict(environment)
        self._clock = clock
        self._call_s = call_s
        self._open_s = open_s
        self._silent_s = silent_s
        self._free = threading.BoundedSemaphore(CALLS_MAX)
        self._lock = threading.Lock()
        self._line: RemoteConnection | None = None
        self._broken: MainspringError | None = None
        self._failures = 0
        self._retry_at_s = float("-inf")
        self._closed = threading.Event()

    def inventory(self) -> Inventory:
        """Returns every node; see `Engine.inventory`."""
        reply = self._call(FarCall(number=0, call="inventory"))
        if reply.answer.inventory is None:
            raise Unavailable("list a cluster's nodes", on=self._on, got="an answer without them")
        return replace(reply.answer.inventory, nodes=tuple(reply.nodes))

    def observe(self) -> tuple[AllocationSeen, ...]:
        """Returns every allocation; see `Engine.observe`."""
        return tuple(self._call(FarCall(number=0, call="observe")).seen)

    def launch(self, order: LaunchOrder) -> None:
        """Starts one agent on each node; see `Engine.launch`.

        Args:
            order: What to start.
        """
        self._call(FarCall(number=0, call="launch", order=order))

    def stop(self, allocation: AllocationId, *, grace_s: float) -> None:
        """Asks the allocation's agents to end; see `Engine.stop`.

        Args:
            allocation: Its id.
            grace_s: Seconds after which they are ended by force.
        """
        self._call(FarCall(number=0, call="stop", allocation=allocation, grace_s=grace_s))

    def logs(self, allocation: AllocationId, *, rank: int, since: int, limit: int) -> LogChunk:
        """Returns a piece of one rank's output; see `Engine.logs`.

        Args:
            allocation: Its id.
            rank: Its number in the attempt.
            since: Byte to start from.
            limit: How many bytes at most; never more than `LOG_BYTES_MAX` come.
        """
        limit = min(limit, LOG_BYTES_MAX)
        call = FarCall(number=0, call="logs", allocation=allocation, rank=rank, since=since, limit=limit)
        answer = self._call(call).answer
        try:
            data = base64.b64decode(answer.log, validate=True)
        except ValueError as error:
            raise Unavailable("read a log", on=self._on, got=str(error), wanted="base64") from error
        return LogChunk(data=data, next_offset=answer.next_offset)

    def cordon(self, node: NodeName, *, owner: str, reason: str) -> None:
        """Keeps new allocations off a node; see `Engine.cordon`.

        Args:
            node: The node.
            owner: Who wants it.
            reason: Why, for people.
        """
        self._call(FarCall(number=0, call="cordon", node=node, owner=owner, reason=reason))

    def uncordon(self, node: NodeName, *, owner: str) -> None:
        """Takes back our own cordon; see `Engine.uncordon`.

        Args:
            node: The node.
            owner: Who set it.
        """
        self._call(FarCall(number=0, call="uncordon", node=node, owner=owner))

    def close(self) -> None:
        """Hangs up; every call under way and every later one raises `Unavailable`."""
        self._closed.set()
        line = self._line
        if line is not None:
            line.close()

    def _call(self, call: FarCall) -> Reply:
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
                self._line = line = RemoteConnection(
                    self._words,
                    on=self._on,
                    environment=self._environment,
                    open_s=self._open_s,
                    silent_s=self._silent_s,
                )
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
