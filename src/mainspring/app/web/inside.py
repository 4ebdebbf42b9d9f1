"""Calls of the public API from within its own process: pages know what any client may know, and no more.

They go the whole way of a request, past all that lets in, counts and refuses; only the answer is handed over as it is.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import cast, final
from urllib.parse import unquote

import httpx
from anyio import sleep_forever, to_thread
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from mainspring.app.base.calls import Asked, answer_of, asked, error_of
from mainspring.control.api_releases import HANDED_KEY, Handed
from mainspring.domain.errors import MainspringError
from mainspring.domain.release import RELEASE, RELEASE_HEADER
from mainspring.domain.routes import Answer, Calls, P, Route

TAKEN = frozenset(
    (
        Calls.whoami,
        Calls.ps,
        Calls.job_counts,
        Calls.status,
        Calls.job_events,
        Calls.all_events,
        Calls.why,
        Calls.history,
        Calls.verdicts,
        Calls.plan,
        Calls.fleet_map,
        Calls.fleet_at,
        Calls.closures,
        Calls.incidents,
        Calls.nodes,
        Calls.node,
        Calls.node_history,
        Calls.goodput_report,
        Calls.promises,
        Calls.teams,
        Calls.audit,
    )
)  # What is asked for most, and is taken as it is: a test holds each against what would have been decoded.
_QUICK_BYTES = 1 << 15  # Read in about a millisecond.
NOT_FOUND = 404  # Of HTTP.
_PASSED = (b"accept", b"last-event-id", b"user-agent")  # What of a browser's own headers means something to the API.
_GUARD = (
    (b"content-security-policy", b"default-src 'none'; sandbox"),
    (b"x-content-type-options", b"nosniff"),
    (b"cache-control", b"no-store"),
    (b"cross-origin-resource-policy", b"same-origin"),
)  # A job's output is no page, whatever it begins with.


@final
class Refusal(Exception):
    """The API refused a call.

    Args:
        error: Why.
        status: HTTP's.
    """

    def __init__(self, error: MainspringError, status: int) -> None:
        super().__init__(str(error))
        self.error = error
        self.status = status


@final
class Inside(Calls):
    """Makes calls of the API in its own process, as whomever a secret stands for.

    Args:
        api: What serves them.
        secret: Of a token.
        address: Where its holder's browser is.
    """

    def __init__(self, api: ASGIApp, secret: str, address: str) -> None:
        self._api = api
        self._client = (address, 0)
        self._headers = [
            (b"authorization", f"Bearer {secret}".encode()),
            (RELEASE_HEADER.lower().encode(), RELEASE.encode()),
        ]

    async def call(self, route: Route[P, Answer], /, *args: P.args, **kwargs: P.kwargs) -> Answer:
        """Returns the answer to a call, of which nothing is to be changed: others may have it too.

        Raises:
            Refusal: The API refused it.
        """
        try:
            made = asked(route, *args, **kwargs)
        except MainspringError as error:
            raise Refusal(error, NOT_FOUND) from error
        handed = Handed()
        said = await self._said(made, handed if route in TAKEN else None)
        if said.status >= 400:
            raise Refusal(error_of(said.response()), said.status)
        if handed.done:
            return cast(Answer, handed.value)
        response = said.response()
        # Tens of thousands of values take a while to be made, in which the thread of all sockets is not to stand still.
        read = partial(answer_of, route, response)
        return read() if len(response.content) < _QUICK_BYTES else await to_thread.run_sync(read)

    async def _said(self, made: Asked, handed: Handed | None) -> _Said:
        """Returns what the API says to a request; its body is empty where the answer is handed over."""
        method, params, headers = made.words["method"], made.words["params"], made.words["headers"]
        scope = {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "method": method,
            "scheme": "http",
            "path": unquote(made.path),
            "raw_path": made.path.encode(),
            "root_path": "",
            "query_string": str(httpx.QueryParams(params)).encode() if params else b"",
            "headers": [(name.lower().encode(), value.encode()) for name, value in headers.items()] + self._headers,
            "client": self._client,
            "server": ("mainspring", 80),  # Never resolved: requests do not leave the process.
            HANDED_KEY: handed,
        }
        body, begun, parts = [made.words["content"] or b""], list[Message](), list[bytes]()

        async def receive() -> Message:
            if not body:  # Whoever asks does not go away before there is an answer.
                await sleep_forever()
            return {"type": "http.request", "body": body.pop(), "more_body": False}

        async def send(message: Message) -> None:
            if message["type"] == "http.response.start":
                begun.append(message)
            elif message["type"] == "http.response.body":
                parts.append(message.get("body", b""))

        try:
            await self._api(scope, receive, send)
        except Exception:
            if not begun:  # A fault of the API's own, which it logs and answers with 500 before it raises it again.
                raise
        (start,) = begun
        return _Said(method=method, path=made.path, start=start, body=b"".join(parts))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Said:
    """What the API says to a request."""

    method: str
    path: str
    start: Message
    body: bytes

    @property
    def status(self) -> int:
        """Returns HTTP's."""
        return int(self.start["status"])

    def response(self) -> httpx.Response:
        """Returns it as who asks from outside has it."""
        request = httpx.Request(self.method, f"http://mainspring{self.path}")
        return httpx.Response(self.status, headers=self.start["headers"], content=self.body, request=request)


async def pass_on(api: ASGIApp, scope: Scope, receive: Receive, send: Send, *, path: str, secret: str) -> None:
    """Lets a browser read what the API answers, streams too, by the token in its cookie.

    Args:
        path: The API's.
        secret: The token's.
    """
    kept = [(name, value) for name, value in scope["headers"] if name in _PASSED]
    inner = {name: scope.get(name) for name in ("type", "asgi", "http_version", "scheme", "client", "server")}
    inner |= {
        "method": "GET",
        "path": path,
        "raw_path": path.encode(),
        "root_path": "",
        "query_string": scope["query_string"],
        "headers": [*kept, (b"authorization", b"Bearer " + secret.encode())],
    }

    async def guarded(message: Message) -> None:
        if message["type"] == "http.response.start":
            message = {**message, "headers": [*message.get("headers", ()), *_GUARD]}
        await send(message)

    await api(inner, receive, guarded)
