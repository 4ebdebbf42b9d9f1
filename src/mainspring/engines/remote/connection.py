"""One life of the pipe to a host on another machine: how it opens, who waits for which answer, and why it broke."""

from __future__ import annotations

import logging
import os
import select
import shlex
import signal
import subprocess
import threading
from collections.abc import Mapping
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import final

from mainspring.domain.codec import FRAME_HEADER_BYTES, MESSAGE_VERSION, frame, frame_length, unframe
from mainspring.domain.errors import MainspringError, OtherRelease, Unavailable
from mainspring.domain.fleet import AllocationSeen, Node
from mainspring.domain.release import Unknown, is_newer
from mainspring.engines.common.forwarding import EngineCall
from mainspring.engines.remote.wire import (
    OPEN_S,
    SILENT_S,
    FarAlive,
    FarAnswer,
    FarPart,
    Greeting,
    HostMessage,
    find_greeting,
)

BANNER_BYTES_MAX = 64 << 10  # What a login shell may print; a message of the day is a page.
WORDS_KEPT = 2_000  # Characters of the error output: the end of a traceback, or all that ssh ever says.
END_S = 2.0  # From the end of its output to the end of the command.
UNKNOWN_LOGGED_MAX = 10  # Of one line: whoever says them says them again.
_READ_BYTES = 1 << 18
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class HostCommand:
    """The command that starts a host.

    Args:
        words: The command, such as one from `ssh_words`.
        on: How errors name the machine.
        environment: Every variable it gets.
        open_s: How long it may take to greet (a log-in), and again to make its engine.
        silent_s: How long it may say nothing afterwards before it counts as hanging.
    """

    words: tuple[str, ...]
    on: str
    environment: Mapping[str, str]
    open_s: float = OPEN_S
    silent_s: float = SILENT_S


@dataclass(slots=True, kw_only=True)
class Reply:
    """All that came for one call."""

    answer: FarAnswer
    nodes: list[Node] = field(default_factory=list)
    seen: list[AllocationSeen] = field(default_factory=list)


@dataclass(slots=True)
class _Waiting:
    """Somebody who waits for an answer, and the parts of it so far."""

    future: Future[Reply] = field(default_factory=Future)
    nodes: list[Node] = field(default_factory=list)
    seen: list[AllocationSeen] = field(default_factory=list)


@final
class RemoteConnection:
    """A running command that hosts an engine. Broken for good by the first thing that goes wrong.

    Raises:
        Unavailable: It cannot be started.
    """

    def __init__(self, command: HostCommand) -> None:
        self.broken: Unavailable | None = None
        self.answered = False
        self._command = command
        self._on = command.on
        self._lock = threading.Lock()
        self._writing = threading.Lock()
        self._waiting: dict[int, _Waiting] = {0: _Waiting()}
        self._number = self._unknown = 0
        self._greeted: Future[Greeting] = Future()
        self._said = b""
        self._errors = ""
        try:
            self._process = subprocess.Popen(
                command.words,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                bufsize=0,
                env=dict(command.environment),
                start_new_session=True,
            )
        except OSError as error:
            raise Unavailable("reach an engine on another machine", on=command.on, got=str(error)) from error
        assert self._process.stdin is not None
        os.set_blocking(self._process.stdin.fileno(), False)
        self._reader = threading.Thread(target=self._read, name=f"mainspring-far-{command.on}", daemon=True)
        self._reader.start()

    def open(self, opening: object) -> None:
        """Has the host make its engine.

        Args:
            opening: The message that says which.

        Raises:
            Unavailable: It did not come to that; says why.
        """
        try:
            greeting = self._greeted.result(self._command.open_s)
            if greeting.messages != MESSAGE_VERSION:
                raise self._error(
                    f"Mainspring {greeting.mainspring}, whose messages are of version {greeting.messages}",
                    wanted=f"messages of version {MESSAGE_VERSION}",
                    next_step="install the same Mainspring on both machines",
                )
            is_newer(greeting.mainspring, self._on)
            self._send(frame(opening), self._command.open_s)
            answer = self._waiting[0].future.result(self._command.open_s).answer
            if answer.error is not None:
                told = answer.error
                raise Unavailable(
                    told.attempted,
                    on=told.on or self._on,
                    got=told.got,
                    wanted=told.wanted,
                    next_step=told.next_step,
                )
        except TimeoutError as error:
            self._break(self._error(f"nothing for {self._command.open_s:g} s{self._shown()}"))
            raise self._again() from error
        except OtherRelease as error:
            self._break(self._error(error.got, wanted=error.wanted, next_step=error.next_step))
            raise self._again() from error
        except Unavailable as error:
            self._break(error)
            raise

    def call(self, call: EngineCall, *, wait_s: float) -> Reply:
        """Returns what the host answers.

        Args:
            call: What to ask; its number is given here.
            wait_s: How long that may take.

        Raises:
            Unavailable: No answer came in time, or the line broke.
        """
        waiting = _Waiting()
        with self._lock:
            if self.broken is not None:
                raise self._again()
            self._number += 1
            number = self._number
            self._waiting[number] = waiting
        try:
            self._send(frame(replace(call, number=number)), wait_s)
            return waiting.future.result(wait_s)
        except TimeoutError as error:
            raise Unavailable(call.call, on=self._on, got=f"no answer within {wait_s:g} s") from error
        finally:
            with self._lock:
                self._waiting.pop(number, None)

    def close(self) -> None:
        """Hangs up: everybody who waits is told."""
        self._break(Unavailable("reach an engine on another machine", on=self._on, got="an engine that was closed"))
        if threading.current_thread() is not self._reader:
            self._reader.join(END_S)

    def _send(self, data: bytes, wait_s: float) -> None:
        if not self._writing.acquire(timeout=wait_s):
            raise TimeoutError
        try:
            assert self._process.stdin is not None
            descriptor, left = self._process.stdin.fileno(), memoryview(data)
            poll = select.poll()
            poll.register(descriptor, select.POLLOUT)
            while left:
                try:
                    left = left[os.write(descriptor, left) :]
                except BlockingIOError:
                    if not poll.poll(wait_s * 1_000):
                        # Half a message went: whatever follows would not be understood.
                        self._break(self._error(f"a host that has taken nothing for {wait_s:g} s"))
                        raise self._again() from None
        except (OSError, ValueError) as error:  # A pipe that is closed. The reader learns why.
            self._reader.join(2 * END_S)
            raise (self._again() if self.broken else self._error(str(error))) from error
        finally:
            self._writing.release()

    # ---------------------------------------------------------------- the reader's thread

    def _read(self) -> None:
        try:
            error = self._listen()
        except MainspringError as failed:
            error = self._error(f"{failed.got or failed}{self._shown()}", wanted=failed.wanted)
        except Exception as failed:  # noqa: BLE001  (our own fault; whoever waits must hear of it)
            _log.exception("a fault while listening to %s", self._on)
            error = self._error(f"a fault: {failed!r}")
        self._break(error)
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(END_S)
        for stream in (self._process.stdout, self._process.stderr):
            assert stream is not None
            stream.close()
        with self._writing, suppress(OSError):
            assert self._process.stdin is not None
            self._process.stdin.close()

    def _listen(self) -> Unavailable:
        """Takes what the host says until the line is no more; returns why."""
        assert self._process.stdout is not None
        assert self._process.stderr is not None
        out, errors = self._process.stdout.fileno(), self._process.stderr.fileno()
        poll = select.poll()
        for descriptor in (out, errors):
            poll.register(descriptor, select.POLLIN)
        while True:
            silent_s = self._command.silent_s if self._greeted.done() else self._command.open_s
            ready = poll.poll(silent_s * 1_000)
            if not ready:
                return self._error(f"not a word for {silent_s:g} s{self._shown()}")
            for descriptor, _ in ready:
                data = os.read(descriptor, _READ_BYTES)
                if descriptor == errors:
                    self._errors = (self._errors + data.decode(errors="replace"))[-WORDS_KEPT:]
                    if not data:
                        poll.unregister(errors)
                elif data:
                    self._take(data)
                else:
                    return self._ended(errors)

    def _ended(self, errors: int) -> Unavailable:
        """Returns why the command ended, as its status and its last words tell."""
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(END_S)
        os.set_blocking(errors, False)
        with suppress(BlockingIOError):
            self._errors = (self._errors + os.read(errors, _READ_BYTES).decode(errors="replace"))[-WORDS_KEPT:]
        status = self._process.poll()
        how = "that closed its output" if status is None else f"that ended with exit status {status}"
        return self._error(f"a command {how}{self._shown()}", next_step=f"try {shlex.join(self._command.words)}")

    def _take(self, data: bytes) -> None:
        said = self._said + data if self._said else data
        if not self._greeted.done():
            found = find_greeting(said)
            if found is None:
                if len(said) > BANNER_BYTES_MAX:
                    raise Unavailable("reach an engine", got=f"{len(said)} bytes that hold no greeting")
                self._said = said
                return
            greeting, said = found
            self._greeted.set_result(greeting)
        at = 0
        while len(said) - at >= FRAME_HEADER_BYTES:
            end = at + FRAME_HEADER_BYTES + frame_length(said[at : at + FRAME_HEADER_BYTES])
            if len(said) < end:
                break
            self._note(unframe(said[at + FRAME_HEADER_BYTES : end], HostMessage))
            at = end
        self._said = said[at:]

    def _note(self, message: HostMessage) -> None:
        match message:
            case FarAlive():
                return
            case Unknown():
                self._unknown += 1
                if self._unknown <= UNKNOWN_LOGGED_MAX:
                    _log.warning("%s, newer, says %r, which this release does not know", self._on, message.kind)
            case FarPart():
                waiting = self._waiting.get(message.number)
                if waiting is not None:
                    waiting.nodes.extend(message.nodes)
                    waiting.seen.extend(message.seen)
            case FarAnswer():
                self.answered = self.answered or message.number > 0
                waiting = self._waiting.get(message.number)
                if waiting is not None and not waiting.future.done():
                    waiting.future.set_result(Reply(answer=message, nodes=waiting.nodes, seen=waiting.seen))

    # ---------------------------------------------------------------- its end

    def _break(self, error: Unavailable) -> None:
        """Ends the line for good; the first reason stays."""
        with self._lock:
            if self.broken is not None:
                return
            self.broken = error
            waiting = list(self._waiting.values())
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        if not self._greeted.done():
            self._greeted.set_exception(self._again())
        for each in waiting:
            if not each.future.done():
                each.future.set_exception(self._again())

    def _again(self) -> Unavailable:
        """Returns why it broke, as an error of the caller's own."""
        known = self.broken
        assert known is not None
        return Unavailable(known.attempted, on=known.on, got=known.got, wanted=known.wanted, next_step=known.next_step)

    def _error(self, got: str, *, wanted: str = "", next_step: str = "") -> Unavailable:
        return Unavailable(
            "reach an engine on another machine", on=self._on, got=got, wanted=wanted, next_step=next_step
        )

    def _shown(self) -> str:
        """Returns the last words of the command, or else what it printed in place of a greeting."""
        words = " ".join(self._errors.split())
        if not words and not self._greeted.done():
            words = " ".join(self._said[-WORDS_KEPT:].decode(errors="replace").split())
        return f": {words[-500:]}" if words else ""
