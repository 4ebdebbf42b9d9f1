"""What both clients share: requests made of routes, answers and errors read, and followed events."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, is_dataclass, replace
from secrets import token_hex
from typing import Any, cast, final, get_args, get_origin
from urllib.parse import quote, urlsplit

import httpx

from mainspring.app.base.servers import Patience, Servers
from mainspring.domain import answers
from mainspring.domain.codec import ITEMS_MAX, decode, encode, from_plain, loads, to_plain
from mainspring.domain.errors import Busy, InvalidMessage, MainspringError, NotAllowed, NotFound, Unavailable
from mainspring.domain.release import RELEASE, RELEASE_HEADER, is_newer
from mainspring.domain.routes import KEY_HEADER, Answer, Calls, P, Route
from mainspring.domain.wire.telemetry import TRACEPARENT_VARIABLE, place_from
from mainspring.domain.wire.trust import is_loopback, trust

TIMEOUT_S = 30.0
ASK_S = 300.0  # What makes whole plans, or a hundred thousand jobs, takes a while on a large fleet.
CONNECT_S = 5.0  # A server that lives accepts within milliseconds; the next of several is tried after that.
QUIET_S_MAX = 60.0  # A stream says something four times as often.
KEY_BYTES = 16
KEY_ROOM = 2 * KEY_BYTES + 55  # With the span above it.
BATCH_BYTES_MAX = 8_000_000  # Below what one message may hold, by its length,
BATCH_PARTS_MAX = ITEMS_MAX - 1_000  # and by its parts.
PAGES = "/ui"  # Below a server's address: what it shows in a browser.
_AWAY = (502, 503, 504)  # Said by a proxy whose server is not there.


def connecting(
    servers: Servers, token: str, *, certificate: str, insecure: bool, renewed: httpx.Auth | None = None
) -> dict[str, Any]:
    """Returns what httpx's clients are made with.

    Args:
        token: Secret of somebody it knows, "" for nobody.
        certificate: PEM text to trust besides the system's authorities.
        insecure: Whether the token may cross a network in the clear.
        renewed: What shows the token, where that changes.

    Raises:
        NotAllowed: The token would, and may not.
        InvalidInput: The certificate is none.
    """
    for url in servers.urls if token else ():
        require_private(url, insecure=insecure)
    encrypted = [url for url in servers.urls if url.startswith("https:")]
    return {
        "headers": {RELEASE_HEADER: RELEASE}
        | ({"Authorization": f"Bearer {token}"} if token and renewed is None else {}),
        "auth": renewed,
        "trust_env": False,
        "verify": trust(encrypted[0], certificate) if encrypted else False,
    }


def require_private(url: str, *, insecure: bool) -> None:
    """Returns if a token may be sent to a server.

    Args:
        insecure: Whether it may cross a network in the clear.

    Raises:
        NotAllowed: It would, and may not.
    """
    if not insecure and _in_the_clear(url):
        raise NotAllowed(
            "send a token",
            on=url,
            got="plain HTTP to another machine: whoever is on the way could read it",
            wanted="https",
            next_step="serve TLS there (docs/operations.md), or ms --insecure where the network is yours alone",
        )


# ---------------------------------------------------------------- one call


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """One call of a route, as a request.

    Args:
        path: Below a server's address.
        words: What else httpx's `request` takes by name.
        repeats: Whether it may be made again when its answer was lost.
    """

    path: str
    words: dict[str, Any]
    repeats: bool


def asked(route: Route[P, Any], /, *args: P.args, **kwargs: P.kwargs) -> Asked:
    """Returns the request of a call.

    Args:
        **kwargs: What it takes by name; None and "" are not sent.
    """
    given = route.signature.bind(*args, **kwargs).arguments
    body = given.pop("body", None)
    if isinstance(body, answers.Submit):
        body = _with_key(body)
    elif isinstance(body, answers.SubmitBatch):
        body = replace(body, submits=tuple(map(_with_key, body.submits)))
    query = {name: to_plain(given.pop(each.name, None)) for name, each in route.query.items()}
    return Asked(
        path=route.path.format(**{name: _segment(name, value) for name, value in given.items()}),
        words={
            "method": route.method,
            "content": encode(body) if is_dataclass(body) else cast("bytes | Iterator[bytes] | None", body),
            "params": {name: value for name, value in query.items() if value not in (None, "")},
            "timeout": httpx.Timeout(ASK_S if route.patient else TIMEOUT_S, connect=CONNECT_S),
            "headers": {KEY_HEADER: f'"{token_hex(KEY_BYTES)}"'} if route.keyed else {},
        },
        repeats=(route.repeats or route.keyed) and not isinstance(body, Iterator),
    )


def answer_of(route: Route[P, Answer], response: httpx.Response) -> Answer:
    """Returns what a server answered to a call.

    Raises:
        InvalidMessage: It is nothing that this route answers.
    """
    kind, newer = route.signature.return_annotation, answers_newer(response)
    if kind is bytes:
        return cast(Answer, response.content)
    if get_origin(kind) is not tuple:
        return cast(Answer, None if kind is None else decode(kind, response.content, newer=newer, shown=newer))
    plain = loads(response.content)
    if not isinstance(plain, list):
        raise InvalidMessage("read the server's answer", on=route.path, wanted="a list")
    each = get_args(kind)[0]
    return cast(Answer, tuple(from_plain(each, item, newer=newer, shown=newer) for item in plain))


def answers_newer(response: httpx.Response) -> bool:
    """Returns whether whoever answers is of a newer release, so that it may say what is not known here.

    Raises:
        OtherRelease: Of one that this one does not speak with; what it answers may mean something else.
    """
    stated = response.headers.get(RELEASE_HEADER)
    if stated is None and not response.is_success:
        return False  # It may be the answer of a proxy.
    return is_newer(stated, f"the server at {response.url.netloc.decode()}")


def require_spoken(response: httpx.Response) -> None:
    """Returns if whoever answers is of a release that this one speaks with.

    Raises:
        OtherRelease: It is not.
    """
    answers_newer(response)


def error_of(response: httpx.Response) -> MainspringError:
    """Returns the server's error as the same class it was raised as; of a proxy that cannot reach one, `Busy`."""
    try:
        return answers.error_of(decode(answers.Problem, response.content))
    except InvalidMessage:
        kind = Busy if response.status_code in _AWAY else Unavailable
        return kind("use the Mainspring server", got=f"HTTP {response.status_code}: {response.text[:200]}")


# ---------------------------------------------------------------- what takes more than one


@final
class Following:
    """Reads events that a server streams: of a job until it ends, or of all that the caller may read.

    Args:
        job: Id or name, None for all.
        since: The last sequence that was seen.
    """

    def __init__(self, servers: Servers, job: str | None, *, since: int) -> None:
        self._path = Calls.all_events.path if job is None else Calls.job_events.path.format(job=_segment("job", job))
        self._servers = servers
        self._since = since
        self._broken: Patience | None = None
        self.ended = False  # Said by the stream: one that only stops is a connection that broke.

    @property
    def request(self) -> dict[str, Any]:
        """Returns what httpx's `stream` takes by name, to go on after the last event."""
        return {
            "method": "GET",
            "url": self._servers.url + self._path,
            "params": {"follow": "true", "since": str(self._since)},
            "timeout": httpx.Timeout(TIMEOUT_S, connect=CONNECT_S, read=QUIET_S_MAX),
        }

    def read(self, line: str) -> answers.Event | None:
        """Returns the event that a line tells, if it does.

        Server-sent events (WHATWG HTML, 9.2); ours are of one line each.
        """
        self._broken = None
        name, _, text = line.partition(": ")
        if name == "event":
            self.ended = True
        if name != "data" or self.ended:
            return None
        event = decode(answers.Event, text.encode())
        self._since = event.sequence
        return event

    def broke(self, error: httpx.HTTPError | Unavailable | None = None) -> float:
        """Returns how long to wait before the stream is asked for again, perhaps of another server.

        Args:
            error: What broke it; None where it only stopped, without its end.

        Raises:
            MainspringError: No server came back in time.
        """
        self._broken = self._broken or Patience(self._servers, again=True, known=True)
        return self._broken.spend(error or httpx.RemoteProtocolError("a stream that stops before its end"))


def batches(submits: Iterable[answers.Submit]) -> Iterator[answers.SubmitBatch]:
    """Yields submits in batches that a server takes: of so many at most, so many bytes, and so many parts."""
    some: list[answers.Submit] = []
    size = parts = 0
    for submit in submits:
        text = encode(submit)
        own, own_parts = len(text) + KEY_ROOM, _parts(text)
        full = len(some) == answers.BATCH_MAX or size + own > BATCH_BYTES_MAX or parts + own_parts > BATCH_PARTS_MAX
        if some and full:
            yield answers.SubmitBatch(submits=tuple(some))
            some, size, parts = [], 0, 0
        some.append(submit)
        size, parts = size + own, parts + own_parts
    if some:
        yield answers.SubmitBatch(submits=tuple(some))


def _parts(text: bytes) -> int:
    """Returns how many values a JSON text holds, or a few more where its strings look like JSON."""
    opened = text.count(b"{") + text.count(b"[") - text.count(b"{}") - text.count(b"[]")
    return 1 + text.count(b",") + opened


def _with_key(submit: answers.Submit) -> answers.Submit:
    """Returns a submit of which a repeat, after an answer that was lost, makes no second job.

    What runs under a span of its own, and says so in its environment, has the job hang under that.
    """
    if not submit.traceparent and place_from(above := os.environ.get(TRACEPARENT_VARIABLE, "")) is not None:
        submit = replace(submit, traceparent=above.strip())
    return submit if submit.key else replace(submit, key=token_hex(KEY_BYTES))


def _in_the_clear(url: str) -> bool:
    """Returns whether what is sent there crosses a network that anybody may listen on."""
    try:
        return url.startswith("http:") and not is_loopback(urlsplit(url).hostname or "")
    except ValueError:
        return False  # No URL at all: nothing is sent.


def _segment(name: str, value: str) -> str:
    if name == "job" and (value in ("", ".", "..") or "/" in value):
        raise NotFound("find a job", on=repr(value), next_step="ms ps")
    return quote(value, safe="")
