"""What our processes tell of themselves: the form of logs; traces of jobs, by ids that follow from those of jobs.

An id is never drawn: whoever knows a job or an attempt knows its span, before it is over and however often it is told.

Source: W3C Trace Context, 2021, 3.2.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum
from hashlib import sha256
from urllib.parse import urlsplit

from mainspring.domain.errors import InvalidInput, InvalidSpec
from mainspring.domain.ids import AttemptId, JobId

TRACEPARENT_HEADER, TRACEPARENT_VARIABLE = "traceparent", "TRACEPARENT"
HOURS_MAX = 720.0  # A month: no collector keeps the order of what is older.
_LENGTH_MAX = 300  # Of what a later version may make of it.
_FORM = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-[ -~]{0,200})?")
_SAMPLED = 1  # The lowest bit of its flags.
_TRACES_PATH = "/v1/traces"


class LogForm(str, Enum):
    """How our own processes say what they have to say."""

    TEXT = "text"
    JSON = "json"


@dataclass(frozen=True, slots=True, kw_only=True)
class SpanPlace:
    """One span in one trace, as others refer to it.

    Args:
        trace: 32 digits of base 16, not all 0.
        span: 16 of them, not all 0.
        sampled: Whether spans below it are kept.
    """

    trace: str
    span: str
    sampled: bool = True

    def __str__(self) -> str:
        """Returns it as `traceparent` has it."""
        return f"00-{self.trace}-{self.span}-{_SAMPLED if self.sampled else 0:02x}"


def place_from(text: str) -> SpanPlace | None:
    """Returns what a `traceparent` says; None where it says nothing that holds, as whoever reads one is to do then.

    Args:
        text: Of anybody.
    """
    found = _FORM.fullmatch(text.strip()) if len(text) <= _LENGTH_MAX else None
    if found is None or found[1] == "ff" or (found[1] == "00" and found[5]):
        return None
    if not int(found[2], 16) or not int(found[3], 16):
        return None
    return SpanPlace(trace=found[2], span=found[3], sampled=bool(int(found[4], 16) & _SAMPLED))


def require_place(text: str) -> SpanPlace | None:
    """Returns what a `traceparent` of our own messages says, None for none.

    Args:
        text: "" for none.

    Raises:
        InvalidInput: It is no such thing.
    """
    found = place_from(text)
    if text and found is None:
        wanted = "00-<32 digits of base 16>-<16>-<2>, as W3C Trace Context has it"
        raise InvalidInput("submit a job", on="field 'traceparent'", got=repr(text)[:120], wanted=wanted)
    return found


def place_of(job: JobId, *words: str, parent: SpanPlace | None) -> SpanPlace:
    """Returns a span of a job: its own, or, by more words, one below.

    Args:
        job: The job.
        words: What tells it from the job's others.
        parent: What the job was submitted under, None for nothing.
    """
    trace = _digits("trace", job)[:32] if parent is None else parent.trace
    return SpanPlace(trace=trace, span=_digits("span", job, *words)[:16], sampled=parent is None or parent.sampled)


def place_of_attempt(job: JobId, attempt: AttemptId, *, parent: SpanPlace | None) -> SpanPlace:
    """Returns the span of a job's attempt, which those of its programs are below.

    Args:
        job: The job.
        attempt: One of its attempts.
        parent: What the job was submitted under, None for nothing.
    """
    return place_of(job, "attempt", attempt, parent=parent)


def _digits(*words: str) -> str:
    return sha256("\0".join(words).encode()).hexdigest()


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceRules:
    """Where traces of jobs are sent, by the server's operator: nowhere unless an endpoint is named.

    Args:
        endpoint: Base URL of what takes OTLP over HTTP, such as "http://collector:4318". Keys that it asks for are in
            the server's environment, as `OTEL_EXPORTER_OTLP_HEADERS` names them.
        hours: For how long after its end a span is sent, where the endpoint does not take it before.
    """

    endpoint: str = ""
    hours: float = 24.0

    def __post_init__(self) -> None:
        """Checks every field.

        Raises:
            InvalidSpec: A field is out of its range.
        """
        wrong = {
            "endpoint": (
                bool(self.endpoint) and not _is_plain_url(self.endpoint),
                _host_of(self.endpoint),
                "http://HOST[:PORT][/PATH] or https://..., without a name and a password",
            ),
            "hours": (not 0 < self.hours <= HOURS_MAX, f"{self.hours:g}", f"over 0, to {HOURS_MAX:g}"),
        }
        for name, (bad, got, wanted) in wrong.items():
            if bad:
                raise InvalidSpec("accept a configuration", on=f"field 'traces.{name}'", got=got, wanted=wanted)

    @property
    def url(self) -> str:
        """Returns where spans are posted, "" for nowhere. Source: OpenTelemetry Protocol 1.5, "OTLP/HTTP Request"."""
        if not self.endpoint or self.endpoint.endswith(_TRACES_PATH):
            return self.endpoint
        return self.endpoint.rstrip("/") + _TRACES_PATH


def _is_plain_url(url: str) -> bool:
    try:
        parts = urlsplit(url)
        named = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        return False
    return named and parts.username is None and not parts.query and url.isascii() and url.isprintable()


def _host_of(url: str) -> str:
    """Returns what may be shown of an address that may hold a password."""
    return repr(url.rpartition("@")[2][:120])
