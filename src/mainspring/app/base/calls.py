"""What both clients share: requests made of routes, answers and errors read, patience, and followed events."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, is_dataclass, replace
from secrets import token_hex
from typing import Any, cast, final, get_args, get_origin
from urllib.parse import quote, urlsplit

import httpx

from mainspring.domain import answers
from mainspring.domain.codec import decode, encode, from_plain, loads, to_plain
from mainspring.domain.errors import (
    InvalidInput,
    InvalidMessage,
    MainspringError,
    NotAllowed,
    NotFound,
    TooManyRequests,
    Unavailable,
)
from mainspring.domain.release import RELEASE, RELEASE_HEADER, is_newer
from mainspring.domain.routes import KEY_HEADER, Answer, Calls, P, Route
from mainspring.domain.wire.trust import is_loopback, trust

TIMEOUT_S = 30.0
ASK_S = 300.0  # What makes whole plans, or a hundred thousand jobs, takes a while on a large fleet.
RECONNECT_S_MAX = 30.0  # A server that is started anew takes a few seconds.
QUIET_S_MAX = 60.0  # A stream says something four times as often.
POLL_S = 0.2
KEY_BYTES = 16
TRIES_MAX = 5  # Of a call to a server that has not answered yet.
_LOST = (httpx.ReadError, httpx.RemoteProtocolError)  # It was reached, and may have done what it was asked.
KEY_ROOM = 2 * KEY_BYTES
BATCH_BYTES_MAX = 6 << 20  # Below what one message may hold, by its length and by its parts.
_DISTRUST = "CERTIFICATE_VERIFY_FAILED"  # OpenSSL's own word for it.


def connecting(
    url: str, token: str, *, certificate: str, insecure: bool, renewed: httpx.Auth | None = None
) -> dict[str, Any]:
    """Returns what httpx's clients are made with.

    Args:
        url: The server's.
        token: Secret of somebody it knows, "" for nobody.
        certificate: PEM text to trust besides the system's authorities.
        insecure: Whether the token may cross a network in the clear.
        renewed: What shows the token, where that changes.

    Raises:
        NotAllowed: The token would, and may not.
        InvalidInput: The certificate is none.
    """
    if token:
        require_private(url, insecure=insecure)
    return {
        "base_url": url,
        "headers": {RELEASE_HEADER: RELEASE}
        | ({"Authorization": f"Bearer {token}"} if token and renewed is None else {}),
        "auth": renewed,
        "timeout": TIMEOUT_S,
        "trust_env": False,
        "verify": trust(url, certificate),
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


def no_url(url: str, error: Exception) -> InvalidInput:
    """Returns the error of what cannot be a server's address."""
    return InvalidInput("reach the Mainspring server", on=url, got=str(error), wanted="a URL and a token")


# ---------------------------------------------------------------- one call


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """One call of a route, as a request.

    Args:
        request: What httpx's `request` takes by name.
        repeats: Whether it may be made again when its answer was lost.
    """

    request: dict[str, Any]
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
        request={
            "method": route.method,
            "url": route.path.format(**{name: _segment(name, value) for name, value in given.items()}),
            "content": encode(body) if is_dataclass(body) else cast("bytes | Iterator[bytes] | None", body),
            "params": {name: value for name, value in query.items() if value not in (None, "")},
            "timeout": ASK_S if route.patient else TIMEOUT_S,
            "headers": {KEY_HEADER: f'"{token_hex(KEY_BYTES)}"'} if route.keyed else {},
        },
        repeats=(route.repeats or route.keyed) and not isinstance(body, Iterator),
    )


def answer_of(route: Route[P, Answer], content: bytes) -> Answer:
    """Returns what a server answered to a call.

    Raises:
        InvalidMessage: It is nothing that this route answers.
    """
    kind = route.signature.return_annotation
    if get_origin(kind) is not tuple:
        return cast(Answer, None if kind is None else decode(kind, content))
    plain = loads(content)
    if not isinstance(plain, list):
        raise InvalidMessage("read the server's answer", on=route.path, wanted="a list")
    return cast(Answer, tuple(from_plain(get_args(kind)[0], item) for item in plain))


def require_spoken(response: httpx.Response) -> None:
    """Returns if whoever answers is of a release that this one speaks with.

    Raises:
        OtherRelease: It is not, and what it answers may mean something else.
    """
    stated = response.headers.get(RELEASE_HEADER)
    if stated is not None or response.is_success:  # Else it may be the answer of a proxy.
        is_newer(stated, f"the server at {response.url.netloc.decode()}")


def error_of(response: httpx.Response) -> MainspringError:
    """Returns the server's error as the same class it was raised as."""
    try:
        return answers.error_of(decode(answers.Problem, response.content))
    except InvalidMessage:
        return Unavailable("use the Mainspring server", got=f"HTTP {response.status_code}: {response.text[:200]}")


@final
class Patience:
    """How long one call is made again.

    Args:
        url: The server's.
        again: Whether it may be made again when its answer was lost.
        known: Whether a server has answered there: one that has is given time to start again. Of one that has not,
            only an answer that was on its way is worth another try.
    """

    def __init__(self, url: str, *, again: bool, known: bool = True) -> None:
        self._url = url
        self._deadline = time.monotonic() + RECONNECT_S_MAX
        self._again = again
        self._tries = math.inf if known else TRIES_MAX

    def spend(self, error: httpx.HTTPError | TooManyRequests) -> None:
        """Returns if the call is to be made again after this error.

        Raises:
            MainspringError: It is not; says why.
        """
        late = time.monotonic() >= self._deadline
        if isinstance(error, TooManyRequests):
            if late:
                raise error
            return
        if is_distrust(error):
            raise distrusted(self._url, error) from error
        self._tries = self._tries - 1 if self._tries == math.inf or isinstance(error, _LOST) else 0
        if late or not self._again or self._tries <= 0:
            told = str(error) or type(error).__name__
            raise Unavailable("reach the Mainspring server", on=self._url, got=told, next_step="ms up") from error


def is_distrust(error: httpx.HTTPError) -> bool:
    """Returns whether a server was reached whose certificate is not trusted."""
    return _DISTRUST in str(error)


def distrusted(url: str, error: httpx.HTTPError) -> NotAllowed:
    """Returns the error of a server whose certificate is not trusted."""
    return NotAllowed(
        "trust the Mainspring server",
        on=url,
        got=str(error),
        next_step="the URL must have a name that the certificate holds; SSL_CERT_FILE names one to trust (PEM)",
    )


# ---------------------------------------------------------------- what takes more than one


@final
class Following:
    """Reads events that a server streams: of a job until it ends, or of all that the caller may read.

    Args:
        job: Id or name, None for all.
        since: The last sequence that was seen.
    """

    def __init__(self, url: str, job: str | None, *, since: int) -> None:
        self._path = Calls.all_events.path if job is None else Calls.job_events.path.format(job=_segment("job", job))
        self._url = url
        self._since = since
        self._broken: Patience | None = None
        self.ended = False  # Said by the stream: one that only stops is a connection that broke.

    @property
    def request(self) -> dict[str, Any]:
        """Returns what httpx's `stream` takes by name, to go on after the last event."""
        return {
            "method": "GET",
            "url": self._path,
            "params": {"follow": "true", "since": str(self._since)},
            "timeout": httpx.Timeout(TIMEOUT_S, read=QUIET_S_MAX),
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

    def broke(self, error: httpx.HTTPError | None = None) -> None:
        """Returns if the stream is to be asked for again.

        Args:
            error: What broke it; None where it only stopped, without its end.

        Raises:
            MainspringError: The server did not come back in time.
        """
        self._broken = self._broken or Patience(self._url, again=True)
        self._broken.spend(error or httpx.RemoteProtocolError("a stream that stops before its end"))


def batches(submits: Iterable[answers.Submit]) -> Iterator[answers.SubmitBatch]:
    """Yields submits in batches that a server takes: of so many at most, and so many bytes."""
    some: list[answers.Submit] = []
    size = 0
    for submit in submits:
        own = len(encode(submit)) + KEY_ROOM
        if some and (len(some) == answers.BATCH_MAX or size + own > BATCH_BYTES_MAX):
            yield answers.SubmitBatch(submits=tuple(some))
            some, size = [], 0
        some.append(submit)
        size += own
    if some:
        yield answers.SubmitBatch(submits=tuple(some))


def _with_key(submit: answers.Submit) -> answers.Submit:
    """Returns a submit of which a repeat, after an answer that was lost, makes no second job."""
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
