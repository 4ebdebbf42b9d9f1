"""How traces leave this machine: by OpenTelemetry's own exporter, OTLP over HTTP, from a thread that may wait.

What the exporter needs beside the endpoint (keys, certificates of its own) it finds in the environment, as every
program of OpenTelemetry's does.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from importlib.util import find_spec
from threading import Event, Thread
from typing import TYPE_CHECKING, final

from mainspring.control import Control
from mainspring.control.server import Server
from mainspring.control.service.traces.spans import Fact, JobSpan
from mainspring.control.service.traces.telling import Traces
from mainspring.domain.errors import Conflict, InvalidInput, MainspringError, Unavailable
from mainspring.domain.ports import Backoff
from mainspring.domain.release import RELEASE
from mainspring.domain.wire.telemetry import SpanPlace, TraceRules

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import ReadableSpan
    from opentelemetry.trace import SpanContext
    from requests import Response

EXPORTER = "opentelemetry.exporter.otlp.proto.http.trace_exporter"
ANSWER_S = 10.0  # For one request and its repeats: the exporter's own default.
AGAIN = Backoff(first_s=1.0, cap_s=60.0)
SCOPE = "mainspring"
_PAUSE_S = 1.0  # Between two looks at what is new.
_STEP_S = 2.0  # What is under way may take when the server stops; it is sent once more then.
_NEVER = (400, 413, 415, 422)  # It is the spans that are wrong: they would be tomorrow.
_ATTEMPTED = "send traces"
_log = logging.getLogger(__name__)


def require_exporter(rules: TraceRules) -> None:
    """Returns if traces can be sent, or need not be.

    Raises:
        Unavailable: What sends them is not installed.
    """
    try:
        missing = bool(rules.endpoint) and find_spec(EXPORTER) is None
    except ModuleNotFoundError:
        missing = True
    if missing:
        raise Unavailable(
            f"{_ATTEMPTED} to traces.endpoint of config.yaml",
            got="no packages of OpenTelemetry",
            next_step="pip install 'mainspring[otel]'",
        )


@final
class Exporter:
    """Posts spans to one endpoint. Used by one thread; `close` may be called by another.

    Args:
        url: Where to.
        instance: What tells this server from others.
    """

    def __init__(self, url: str, instance: str) -> None:
        import requests
        from opentelemetry.exporter.otlp.proto.http import Compression
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource

        logging.getLogger(EXPORTER).setLevel(logging.CRITICAL)  # It says of each try what is told here once.
        session = requests.Session()
        session.hooks["response"].append(self._answered)
        self._url = url
        self._status = 0
        self._exporter = OTLPSpanExporter(endpoint=url, timeout=ANSWER_S, compression=Compression.Gzip, session=session)
        about = {"service.name": SCOPE, "service.version": RELEASE, "service.instance.id": instance}
        self._resource = Resource.create(about)

    def send(self, spans: Sequence[JobSpan]) -> None:
        """Sends spans, and returns once they were taken.

        Raises:
            Unavailable: They were not, and may be later.
            InvalidInput: They never will be.
        """
        from opentelemetry.sdk.trace.export import SpanExportResult

        self._status = 0
        done = self._exporter.export([self._readable(span) for span in spans])
        status = self._status  # A redirect is success to the exporter, which follows none.
        if done is SpanExportResult.SUCCESS and 200 <= status < 300:
            return
        if status in _NEVER:
            raise InvalidInput(_ATTEMPTED, on=self._url, got=f"HTTP {status} for {len(spans)} spans")
        raise Unavailable(_ATTEMPTED, on=self._url, got=f"HTTP {status}" if status else "no answer")

    def close(self) -> None:
        """Ends its connections, and a wait between two tries."""
        self._exporter.shutdown()  # type: ignore[no-untyped-call]

    def _answered(self, response: Response, *args: object, **words: object) -> None:
        self._status = response.status_code

    def _readable(self, span: JobSpan) -> ReadableSpan:
        from opentelemetry.sdk import trace as sdk
        from opentelemetry.sdk.util.instrumentation import InstrumentationScope
        from opentelemetry.trace import Link, Status, StatusCode

        code = {None: StatusCode.UNSET, True: StatusCode.OK, False: StatusCode.ERROR}[span.well]
        return sdk.ReadableSpan(
            name=span.name,
            context=_context(span.place),
            parent=None if span.parent is None else _context(span.parent),
            resource=self._resource,
            attributes=_attributes(span.facts),
            events=[sdk.Event(mark.name, _attributes(mark.facts), _ns(mark.time_s)) for mark in span.marks],
            links=[Link(_context(link.place), _attributes(link.facts)) for link in span.links],
            status=Status(code, (span.words or None) if code is StatusCode.ERROR else None),
            start_time=_ns(span.begun_s),
            end_time=_ns(span.ended_s),
            instrumentation_scope=InstrumentationScope(SCOPE, RELEASE),
        )


def _context(place: SpanPlace) -> SpanContext:
    from opentelemetry.trace import SpanContext, TraceFlags

    flags = TraceFlags(TraceFlags.SAMPLED if place.sampled else TraceFlags.DEFAULT)
    return SpanContext(int(place.trace, 16), int(place.span, 16), is_remote=False, trace_flags=flags)


def _attributes(facts: object) -> dict[str, Fact]:
    assert isinstance(facts, dict)
    return dict(facts)


def _ns(time_s: float) -> int:
    return round(time_s * 1e6) * 1_000  # A float has no more of a date than microseconds.


@final
class TraceThread:
    """Has traces sent while its server leads, until it is stopped; nothing where the operator names no endpoint.

    What is not taken it tries again, later and later; the log says so once, and once when it is taken again.

    Args:
        instance: What tells this server from others.
    """

    def __init__(self, control: Control, server: Server, rules: TraceRules, *, instance: str) -> None:
        self._server = server
        self._instance = instance
        self._rules = rules
        self._control = control
        self._stopping = Event()
        self._exporter: Exporter | None = None
        self._failures = 0
        self._refused = 0
        self._thread = Thread(target=self._run, name="mainspring-traces", daemon=True)

    def start(self) -> None:
        """Begins with what the last leader left."""
        if self._rules.endpoint:
            self._thread.start()

    def stop(self) -> None:
        """Ends; what was not sent waits for the next leader."""
        self._stopping.set()
        if self._thread.is_alive():
            if self._exporter is not None:
                self._exporter.close()
            self._thread.join(_STEP_S)

    def _run(self) -> None:
        try:
            self._exporter = Exporter(self._rules.url, self._instance)
        except Exception:  # noqa: BLE001  What it reads of the environment may be anything.
            _log.exception("traces cannot be sent")
            return
        control = self._control
        traces = Traces(
            control.store,
            control.clock,
            self._rules,
            self._exporter.send,
            self._server.write_as_leader,
            since_s=control.pulse.began_s,
        )
        more = False
        while more or not self._stopping.wait(AGAIN.wait_s(self._failures) if self._failures else _PAUSE_S):
            more = False
            if not self._server.leads:
                traces.forget()
                continue
            try:
                more = traces.step() and not self._stopping.is_set()
                self._went_well(traces)
            except Conflict:
                traces.forget()
            except MainspringError as error:
                self._failed(error)
            except Exception:  # noqa: BLE001  As of a sweep: the next look begins from the store.
                _log.exception("traces failed")
                traces.forget()
                self._failures += 1

    def _failed(self, error: MainspringError) -> None:
        self._failures += 1
        if self._failures == 1 and not self._stopping.is_set():
            _log.warning("traces wait, and are tried again for %g hours: %s", self._rules.hours, error)

    def _went_well(self, traces: Traces) -> None:
        if self._failures:
            _log.warning("traces are taken again")
            self._failures = 0
        if traces.refused > self._refused:
            _log.warning(
                "%d spans were not taken by %s and are left out", traces.refused - self._refused, self._rules.url
            )
            self._refused = traces.refused
