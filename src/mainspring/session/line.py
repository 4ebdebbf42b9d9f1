"""Client connection of a rank to its agent: one request at a time, each with its answer, from any thread.

Reports go from a thread of their own, so that the program's only stores numbers.
"""

from __future__ import annotations

import contextlib
import os
import socket
import threading
from collections.abc import Callable
from typing import TypeVar, final

from mainspring.domain import codec
from mainspring.domain.errors import InvalidMessage, Unavailable
from mainspring.domain.wire import (
    FILES_SUFFIX,
    Done,
    Hello,
    NextGeneration,
    RankRequest,
    Serving,
    ServingReport,
    StepReply,
    ViewWanted,
)
from mainspring.session.meter import Meter

ANSWER_LIMIT_S = 60.0  # An agent answers in under a millisecond; past this it is stuck, and says so by silence.
CLOSE_LIMIT_S = 10.0  # For the last words of a program that is done: an agent that is stuck must not keep it.
REPORT_EVERY_S = 0.1  # Ten reports a second show progress to people and cost a fast loop nothing.
REPEAT_EVERY_S = 0.5  # A long step learns of a stop while it is under way: the newest report is sent again.
_RECEIVE_BYTES_MAX = 1 << 20

Answer = TypeVar("Answer")
Question = Hello | NextGeneration | ViewWanted | RankRequest


@final
class AgentConnection:
    """A connection to the agent. After any failure it is of no use, and every question says so.

    Raises:
        Unavailable: Nobody listens there.
    """

    def __init__(self, path: str) -> None:
        self.turn = threading.RLock()
        self._path = path
        self._failure = ""
        self._deferred: list[tuple[Question, codec.TypeForm[object]]] = []
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            self._socket.connect(path)
        except OSError as error:
            self._socket.close()
            raise Unavailable("reach the agent", on=path, got=str(error)) from error

    def ask(self, message: Question, kind: codec.TypeForm[Answer], *, limit_s: float | None = ANSWER_LIMIT_S) -> Answer:
        """Returns the agent's answer to a message, once those deferred before it are answered.

        Args:
            message: A message of the wire.
            kind: What the answer must be: a message's class, or a union of several.
            limit_s: How long to wait for it; None for as long as the agent lives.

        Raises:
            Unavailable: The agent is gone, or does not answer in time.
            InvalidMessage: It answers something else.
        """
        with self.turn:
            self.settle()
            return self._exchange(message, kind, limit_s)

    def defer(self, message: Question, kind: codec.TypeForm[object]) -> None:
        """Leaves a message to be sent before the next question, by whichever thread asks it.

        Args:
            message: A message of the wire.
            kind: What its answer must be.
        """
        with self.turn:
            self._deferred.append((message, kind))

    def settle(self) -> None:
        """Sends what was deferred.

        Raises:
            Unavailable: See `ask`.
            InvalidMessage: See `ask`.
        """
        with self.turn:
            while self._deferred:
                message, kind = self._deferred.pop(0)
                self._exchange(message, kind, ANSWER_LIMIT_S)

    def open(self, path: str, flags: int) -> int:
        """Returns a descriptor of one of the agent's files: from the agent, where only its own account may open it.

        Args:
            path: What the agent called it.
            flags: Of `os.open`; what the agent hands over may be read and written.

        Raises:
            OSError: It cannot be had.
        """
        try:
            return os.open(path, flags)
        except (PermissionError, FileNotFoundError):  # The latter where others' processes are hidden.
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as line:
                line.settimeout(ANSWER_LIMIT_S)
                line.connect(self._path + FILES_SUFFIX)
                line.sendall(f"{path}\n".encode())
                files = socket.recv_fds(line, 1, 1, socket.MSG_CMSG_CLOEXEC)[1]
            if not files:
                raise
            return files[0]

    def close(self) -> None:
        """Hangs up; a question under way in another thread fails."""
        self._failure = self._failure or "the session is closed"
        with contextlib.suppress(OSError):  # The agent may have hung up first.
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()

    def _exchange(self, message: Question, kind: codec.TypeForm[Answer], limit_s: float | None) -> Answer:
        attempted = f"ask the agent with {codec.wire_name(type(message))}"
        if self._failure:
            raise Unavailable(attempted, on=self._path, got=self._failure)
        data = codec.frame(message)
        try:
            self._failure = "an earlier question was broken off"  # What comes back would answer that one.
            self._socket.settimeout(limit_s)
            self._socket.sendall(data)
            answer = codec.unframe(self._read(codec.frame_length(self._read(codec.FRAME_HEADER_BYTES))), kind)
            self._failure = ""
        except OSError as error:
            self._failure = str(error) or type(error).__name__
            raise Unavailable(attempted, on=self._path, got=self._failure) from error
        return answer

    def _read(self, count: int) -> bytes:
        data = bytearray()
        while len(data) < count:
            piece = self._socket.recv(min(count - len(data), _RECEIVE_BYTES_MAX))
            if not piece:
                raise ConnectionResetError("the agent hung up")
            data += piece
        return bytes(data)


@final
class Reporter:
    """Sends reports at most every `REPORT_EVERY_S`, and repeats the newest every `REPEAT_EVERY_S`.

    Args:
        told: Called with each answer, while the line is held.
    """

    def __init__(self, line: AgentConnection, meter: Meter, told: Callable[[StepReply], None]) -> None:
        self._line = line
        self._meter = meter
        self._told = told
        self._wake = threading.Event()
        self._closed = False
        self._serving: Serving | None = None  # What the program told last, until it is sent.
        self._ready: bool | None = None
        self.failure: Unavailable | InvalidMessage | None = None  # For the program to raise where it reports next.
        self._thread = threading.Thread(target=self._run, name="mainspring-report", daemon=True)
        self._thread.start()

    def wake(self) -> None:
        """Sends what waits at once. Costs a thread's wake-up, so it is for what is rare."""
        self._wake.set()

    def serve(self, serving: Serving) -> None:
        """Takes what a replica tells of itself; sends it at once where its readiness changes."""
        self._serving = serving
        if serving.ready is not self._ready:
            self._ready = serving.ready
            self.wake()

    def send(self, *, again: bool = False, rest: bool = False, limit_s: float = ANSWER_LIMIT_S) -> bool:
        """Sends what waits, now; returns whether there was a report.

        Args:
            again: See `Meter.take`.
            rest: See `Meter.take`.
            limit_s: See `AgentConnection.ask`.

        Raises:
            Unavailable: The agent is gone.
            InvalidMessage: It does not speak as agents do.
        """
        with self._line.turn:  # Taken under it: what was noted in one generation is never sent in the next.
            self._line.settle()
            report = self._meter.take(again=again, rest=rest)
            if report is not None:
                self._told(self._line.ask(report, StepReply, limit_s=limit_s))
            serving, self._serving = self._serving, None
            if serving is not None:
                reply = self._line.ask(ServingReport(serving=serving), StepReply | Done, limit_s=limit_s)
                if isinstance(reply, StepReply):  # An agent of the release before knows no services.
                    self._told(reply)
            return report is not None

    def close(self) -> None:
        """Ends the thread, without waiting for it."""
        self._closed = True
        self._wake.set()

    def _run(self) -> None:
        quiet_s = 0.0
        while True:  # Looks by itself whether there is something to send: to be told every step costs the program more.
            woken = self._wake.wait(REPORT_EVERY_S)
            if self._closed:
                return
            self._wake.clear()
            quiet_s += 0.0 if woken else REPORT_EVERY_S
            try:
                if self.send(again=quiet_s >= REPEAT_EVERY_S):
                    quiet_s = 0.0
            except (Unavailable, InvalidMessage) as error:
                self.failure = error
                return
