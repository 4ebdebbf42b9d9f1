"""An engine for a Mainspring on another machine: `python -m mainspring engine-host`, started over ssh.

Speaks `engines.remote.wire` on standard input and output; what anything here prints goes to the error output instead.
It ends when its input does: with the ssh, and so with the server that started it.
"""

from __future__ import annotations

import argparse
import base64
import logging
import os
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import replace
from threading import Event, Lock, Thread
from typing import BinaryIO, Generic, TypeVar, final

from mainspring.app.server.engines import open_engine
from mainspring.app.server.output import OutputFile
from mainspring.app.server.telemetry.logs import start_log
from mainspring.domain import codec
from mainspring.domain.answers import problem_of
from mainspring.domain.errors import MainspringError, Unavailable
from mainspring.domain.fleet import Inventory, LogChunk
from mainspring.domain.ports import Engine
from mainspring.domain.wire.telemetry import LogForm
from mainspring.engines.common.forwarding import EngineCall, perform
from mainspring.engines.registry import openings
from mainspring.engines.remote.engine import CALLS_MAX
from mainspring.engines.remote.wire import (
    ALIVE_S,
    LOG_BYTES_MAX,
    PART_ITEMS_MAX,
    FarAlive,
    FarAnswer,
    FarPart,
    HostMessage,
    greeting,
)

Item = TypeVar("Item")
Opening = TypeVar("Opening")
Message = TypeVar("Message")
THREADS = 16  # What a controller has under way at once, and two for people who read logs.
DRAIN_S = 10.0  # For calls under way when the line is gone: they are to leave no half of a launch.
_log = logging.getLogger(__name__)


@final
class Host(Generic[Opening]):
    """One engine at the service of one line.

    Args:
        source: Where calls come from.
        sink: File descriptor that answers go to; nobody else writes there.
        make: Makes the engine that the opening message names.
        opening: What that may be: a message's class, or a union of several.
    """

    def __init__(
        self, source: BinaryIO, sink: int, make: Callable[[Opening], Engine], opening: codec.TypeForm[Opening]
    ) -> None:
        self._source = source
        self._sink = sink
        self._make = make
        self._opening = opening
        self._writing = Lock()
        self._pool = ThreadPoolExecutor(THREADS, thread_name_prefix="mainspring-call")
        self._running: set[Future[None]] = set()

    def run(self) -> None:
        """Serves until the line is gone.

        Raises:
            InvalidMessage: What came may not come here; nothing after it could be understood.
        """
        self._write(greeting())
        gone = Event()
        Thread(target=self._keep_alive, args=(gone,), name="mainspring-alive", daemon=True).start()
        try:
            engine = self._open()
            while engine is not None and (call := self._next(EngineCall)) is not None:
                self._take(engine, call)
        finally:
            gone.set()
            self._pool.shutdown(wait=False, cancel_futures=True)
            wait([each for each in self._running if not each.done()], DRAIN_S)  # To it, cancelled ones are not done.

    def _open(self) -> Engine | None:
        opening = self._next(self._opening)
        if opening is None:
            return None
        try:
            engine = self._make(opening)
        except MainspringError as error:
            self._say(FarAnswer(number=0, error=problem_of(error)))
            return None
        self._say(FarAnswer(number=0))
        return engine

    def _take(self, engine: Engine, call: EngineCall) -> None:
        self._running = {each for each in self._running if not each.done()}
        if len(self._running) >= CALLS_MAX:
            full = Unavailable(call.call, got=f"{len(self._running)} calls that have not ended")
            self._say(FarAnswer(number=call.number, error=problem_of(full)))
        else:
            self._running.add(self._pool.submit(self._answer, engine, call))

    def _answer(self, engine: Engine, call: EngineCall) -> None:
        try:
            self._say(self._done(engine, call))
        except MainspringError as error:
            self._say(FarAnswer(number=call.number, error=problem_of(error)))
        except OSError:
            return  # The line is gone; the main thread learns it too.
        except Exception as error:  # noqa: BLE001  (our own fault: told to the caller, and the host goes on)
            _log.exception("a fault in %s", call.call)
            fault = Unavailable(call.call, got=f"a fault in the engine: {error!r}")
            self._say(FarAnswer(number=call.number, error=problem_of(fault)))

    def _done(self, engine: Engine, call: EngineCall) -> FarAnswer:
        done = FarAnswer(number=call.number)
        found = perform(engine, replace(call, limit=min(call.limit, LOG_BYTES_MAX)))
        match found:
            case Inventory():
                for nodes in _parts(found.nodes):
                    self._say(FarPart(number=call.number, nodes=nodes))
                return replace(done, inventory=replace(found, nodes=()))
            case tuple():
                for seen in _parts(found):
                    self._say(FarPart(number=call.number, seen=seen))
            case LogChunk():
                return replace(done, log=base64.b64encode(found.data).decode(), next_offset=found.next_offset)
            case int():
                return replace(done, count=found)
            case str():
                return replace(done, attestation=found)
            case None:
                pass
        return done

    def _next(self, kinds: codec.TypeForm[Message]) -> Message | None:
        """Returns the next message, None when the line is gone."""
        header = self._source.read(codec.FRAME_HEADER_BYTES)
        if len(header) < codec.FRAME_HEADER_BYTES:
            return None
        length = codec.frame_length(header)
        body = self._source.read(length)
        return codec.unframe(body, kinds) if len(body) == length else None

    def _say(self, words: HostMessage) -> None:
        self._write(codec.frame(words))

    def _write(self, data: bytes) -> None:
        with self._writing:
            left = memoryview(data)
            while left:
                left = left[os.write(self._sink, left) :]

    def _keep_alive(self, gone: Event) -> None:
        while not gone.wait(ALIVE_S):
            try:
                self._say(FarAlive())
            except OSError:
                os._exit(1)  # Whoever listened is gone, and nothing else would end a host that waits for a call.


def _parts(items: tuple[Item, ...]) -> Iterator[tuple[Item, ...]]:
    yield from (items[begin : begin + PART_ITEMS_MAX] for begin in range(0, len(items), PART_ITEMS_MAX))


def main(make: Callable[[Opening], Engine], opening: codec.TypeForm[Opening]) -> None:
    """Hosts one engine on standard input and output, and ends the process.

    Args:
        make: Makes the engine that the opening message names.
        opening: What that may be: a message's class, or a union of several.
    """
    parser = argparse.ArgumentParser(description="Hosts one engine for a server.")
    parser.add_argument("--log-format", choices=[form.value for form in LogForm], default=LogForm.TEXT.value)
    parser.add_argument("--cluster", default="", help="what its log says it is for")
    words, _ = parser.parse_known_args()  # A server of the next release may say more.
    start_log(LogForm(words.log_format), about={"cluster": words.cluster})
    OutputFile().start()  # It writes to the same file as the server.
    sink = os.dup(1)
    os.dup2(2, 1)
    try:
        Host(sys.stdin.buffer, sink, make, opening).run()
    except (MainspringError, OSError) as error:
        _log.critical("%s", error)
    sys.stderr.flush()
    os._exit(0)  # A call that hangs must not keep the process.


if __name__ == "__main__":
    main(open_engine, openings())
