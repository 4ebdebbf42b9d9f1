"""Calls of the public API from within its own process: pages know what any client may know, and no more."""

from __future__ import annotations

from functools import partial
from typing import final

import httpx
from anyio import to_thread
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from mainspring.app.base.calls import answer_of, asked, error_of
from mainspring.domain.errors import MainspringError
from mainspring.domain.release import RELEASE, RELEASE_HEADER
from mainspring.domain.routes import Answer, Calls, P, Route

_QUICK_BYTES = 1 << 15  # Read in about a millisecond.
NOT_FOUND = 404  # Of HTTP.
_BASE = "http://mainspring"  # Never resolved: requests do not leave the process.
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
        self._transport = httpx.ASGITransport(app=api, client=(address, 0), raise_app_exceptions=False)
        self._headers = {"Authorization": f"Bearer {secret}", RELEASE_HEADER: RELEASE}

    async def call(self, route: Route[P, Answer], /, *args: P.args, **kwargs: P.kwargs) -> Answer:
        """Returns the answer to a call.

        Raises:
            Refusal: The API refused it.
        """
        try:
            made = asked(route, *args, **kwargs)
        except MainspringError as error:
            raise Refusal(error, NOT_FOUND) from error
        request = httpx.Request(
            made.words["method"],
            _BASE + made.path,
            params=made.words["params"],
            content=made.words["content"],
            headers={**made.words["headers"], **self._headers},
        )
        response = await self._transport.handle_async_request(request)
        response.request = request
        await response.aread()
        if response.status_code >= 400:
            raise Refusal(error_of(response), response.status_code)
        # Tens of thousands of values take a while to be made, in which the thread of all sockets is not to stand still.
        read = partial(answer_of, route, response)
        return read() if len(response.content) < _QUICK_BYTES else await to_thread.run_sync(read)


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
