"""The HTTP client behind the SDK and the command line: `domain.routes` as requests, wire values in and out."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import is_dataclass, replace
from secrets import token_hex
from types import TracebackType
from typing import TYPE_CHECKING, Any, cast, final, get_args, get_origin
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
from mainspring.domain.routes import LIST_MAX, Answer, Calls, P, Route
from mainspring.domain.wire.trust import is_loopback, trust

if TYPE_CHECKING:
    from mainspring.domain.fleet import LogChunk
    from mainspring.domain.ids import TeamName
    from mainspring.domain.life import JobState

TIMEOUT_S = 30.0
ASK_S = 300.0  # What makes whole plans, or a hundred thousand jobs, takes a while on a large fleet.
RECONNECT_S_MAX = 30.0  # A server that is started anew takes a few seconds.
EVENTS_MAX = 20_000  # Newest ones of a job that are worth holding: a month of an attempt with much trouble.
QUIET_S_MAX = 60.0  # A stream says something four times as often.
KEY_BYTES = 16
KEY_ROOM = 2 * KEY_BYTES
BATCH_BYTES_MAX = 6 << 20  # Below what one message may hold, by its length and by its parts.
_POLL_S = 0.2
_DISTRUST = "CERTIFICATE_VERIFY_FAILED"  # OpenSSL's own word for it.


@final
class Client(Calls):
    """Calls one Mainspring server; one that has answered before is given time to start again.

    Args:
        token: Secret of somebody it knows.
        certificate: PEM text to trust besides the system's authorities.
        insecure: Whether the token may cross a network in the clear.

    Raises:
        NotAllowed: The token would, and may not.
    """

    def __init__(self, url: str, token: str, *, certificate: str = "", insecure: bool = False) -> None:
        self.url = url
        if token and not insecure and _in_the_clear(url):
            raise NotAllowed(
                "send a token",
                on=url,
                got="plain HTTP to another machine: whoever is on the way could read it",
                wanted="https",
                next_step="serve TLS there (docs/operations.md), or ms --insecure where the network is yours alone",
            )
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        try:
            self._http = httpx.Client(
                base_url=url, headers=headers, timeout=TIMEOUT_S, trust_env=False, verify=trust(url, certificate)
            )
        except (httpx.InvalidURL, UnicodeError) as error:
            raise InvalidInput(
                "reach the Mainspring server", on=url, got=str(error), wanted="a URL and a token"
            ) from error
        self._answered = False

    def __enter__(self) -> Client:
        """Returns itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Closes its connections."""
        self._http.close()

    def ready(self) -> bool:
        """Returns whether a Mainspring server answers there, leads, and can do its work.

        Raises:
            NotAllowed: What answers shows a certificate that is not trusted.
        """
        try:
            return self._http.get("/readyz", timeout=2.0).status_code == 200
        except httpx.HTTPError as error:
            if _DISTRUST in str(error):
                raise self._distrusted(error) from error
            return False

    def call(self, route: Route[P, Answer], /, *args: P.args, **kwargs: P.kwargs) -> Answer:
        """Returns the server's answer to a call.

        Args:
            **kwargs: What it takes by name; None and "" are not sent.

        Raises:
            MainspringError: The server's own error, of the same class.
            Unavailable: It does not answer.
        """
        content = self._response(route, *args, **kwargs).content
        kind = route.signature.return_annotation
        if get_origin(kind) is not tuple:
            return cast(Answer, None if kind is None else decode(kind, content))
        plain = loads(content)
        if not isinstance(plain, list):
            raise InvalidMessage("read the server's answer", on=route.path, wanted="a list")
        return cast(Answer, tuple(from_plain(get_args(kind)[0], item) for item in plain))

    def every_job(
        self,
        *,
        state: JobState | None = None,
        team: TeamName | None = None,
        owner: str | None = None,
        array: str | None = None,
    ) -> Iterator[answers.JobView]:
        """Yields the jobs that `ps` lists, to the first ever."""
        after = None
        while True:
            page = self.ps(state=state, team=team, owner=owner, array=array, after=after, limit=LIST_MAX)
            yield from page
            if len(page) < LIST_MAX:
                return
            after = page[-1].id

    def events(self, job: str) -> tuple[answers.Event, ...]:
        """Returns a job's events, oldest first; the newest `EVENTS_MAX` of them at most are kept."""
        found: deque[answers.Event] = deque(maxlen=EVENTS_MAX)
        while True:
            page = self.job_events(job, since=found[-1].sequence if found else 0)
            found.extend(page)
            if len(page) < LIST_MAX:
                return tuple(found)

    def past_events(self, job: str, *, since: int | None, limit: int) -> Iterator[answers.Event]:
        """Yields events, oldest first: the newest, or every one after a sequence.

        Args:
            job: Id or name, "" for all jobs.
            since: The last sequence that was seen; None for the newest `limit`.
            limit: How many of the newest.
        """
        while True:
            asked: dict[str, Any] = {"newest": True, "limit": limit} if since is None else {"since": since}
            page = self.job_events(job, **asked) if job else self.all_events(**asked)
            yield from page
            if since is None or len(page) < LIST_MAX:
                return
            since = page[-1].sequence

    def watch(self, job: str | None = None, *, since: int = 0) -> Iterator[answers.Event]:
        """Yields events as they come: of a job until it ends, or of all that the caller may read, without end.

        Where the connection breaks it goes on with the event after the last.

        Args:
            job: Id or name, None for all.
            since: The last sequence that was seen.

        Raises:
            Unavailable: The server does not come back within `RECONNECT_S_MAX`.
        """
        path = Calls.all_events.path if job is None else Calls.job_events.path.format(job=_segment("job", job))
        broke_s: float | None = None
        while True:
            try:
                asked = {"follow": "true", "since": str(since)}
                limits = httpx.Timeout(TIMEOUT_S, read=QUIET_S_MAX)
                with self._http.stream("GET", path, params=asked, timeout=limits) as response:
                    if response.status_code >= 400:
                        response.read()
                    self._answer(response)
                    for (
                        line
                    ) in response.iter_lines():  # Server-sent events (WHATWG HTML 9.2); ours are of one line each.
                        name, _, text = line.partition(": ")
                        if name == "event":  # The job's end: a stream that only stops is a connection that broke.
                            return
                        if name == "data":
                            event = decode(answers.Event, text.encode())
                            since, broke_s = event.sequence, None
                            yield event
            except httpx.HTTPError as error:
                now_s = time.monotonic()
                broke_s = now_s if broke_s is None else broke_s
                if now_s - broke_s > RECONNECT_S_MAX:
                    raise self._silent(error) from error
            time.sleep(_POLL_S)

    def logs(self, job: str, *, attempt: int, rank: int = 0, since: int = 0) -> LogChunk:
        """Returns a piece of one rank's output."""
        from mainspring.domain.fleet import LogChunk

        response = self._response(Calls.read_logs, job, attempt=attempt, rank=rank, since=since)
        return LogChunk(data=response.content, next_offset=int(response.headers["X-Next-Offset"]))

    def _response(self, route: Route[P, Any], *args: P.args, **kwargs: P.kwargs) -> httpx.Response:
        given = route.signature.bind(*args, **kwargs).arguments
        body = given.pop("body", None)
        if isinstance(body, answers.Submit):
            body = _with_key(body)
        elif isinstance(body, answers.SubmitBatch):
            body = replace(body, submits=tuple(map(_with_key, body.submits)))
        query = {name: to_plain(given.pop(each.name, None)) for name, each in route.query.items()}
        return self._send(
            route.method,
            route.path.format(**{name: _segment(name, value) for name, value in given.items()}),
            content=encode(body) if is_dataclass(body) else cast("bytes | Iterator[bytes] | None", body),
            params={name: value for name, value in query.items() if value not in (None, "")},
            timeout_s=ASK_S if route.patient else TIMEOUT_S,
            repeats=route.repeats and not isinstance(body, Iterator),
        )

    def _send(
        self,
        method: str,
        path: str,
        *,
        content: bytes | Iterator[bytes] | None,
        params: dict[str, Any],
        timeout_s: float,
        repeats: bool,
    ) -> httpx.Response:
        begun_s = time.monotonic()
        deadline = begun_s + (RECONNECT_S_MAX if self._answered and repeats else 0.0)
        while True:
            try:
                return self._answer(self._http.request(method, path, content=content, params=params, timeout=timeout_s))
            except httpx.HTTPError as error:
                if _DISTRUST in str(error):
                    raise self._distrusted(error) from error
                if time.monotonic() >= deadline:
                    raise self._silent(error) from error
            except TooManyRequests:
                if time.monotonic() >= begun_s + RECONNECT_S_MAX:
                    raise
            time.sleep(_POLL_S)

    def _silent(self, error: httpx.HTTPError) -> Unavailable:
        told = str(error) or type(error).__name__
        return Unavailable("reach the Mainspring server", on=self.url, got=told, next_step="ms up")

    def _distrusted(self, error: httpx.HTTPError) -> NotAllowed:
        return NotAllowed(
            "trust the Mainspring server",
            on=self.url,
            got=str(error),
            next_step="the URL must have a name that the certificate holds; SSL_CERT_FILE names one to trust (PEM)",
        )

    def _answer(self, response: httpx.Response) -> httpx.Response:
        self._answered = True
        if response.status_code >= 400:
            raise _error_of(response)
        return response


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


def _error_of(response: httpx.Response) -> MainspringError:
    """Returns the server's error as the same class it was raised as."""
    try:
        return answers.error_of(decode(answers.Problem, response.content))
    except InvalidMessage:
        return Unavailable("use the Mainspring server", got=f"HTTP {response.status_code}: {response.text[:200]}")
