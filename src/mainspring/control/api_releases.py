"""What every answer states: this release, by which callers that are too far from it are refused, and the request's id.

An id comes with the request, as from a proxy, or is drawn; it is in the answer, in errors, and in lines of the log.
Who asks from within this process, as pages do, is handed an answer as it is: nothing is written out only to be read.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextvars import ContextVar
from typing import final

from fastapi import Request
from fastapi.responses import Response
from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from mainspring.domain import answers
from mainspring.domain.codec import encode
from mainspring.domain.errors import InvalidMessage
from mainspring.domain.ids import draw_id
from mainspring.domain.release import RELEASE, RELEASE_HEADER, is_newer

_AGENTS = "/v1/agents/"  # Called by Mainspring alone; elsewhere who states no release may be a browser or a script.
REQUEST_HEADER = "X-Request-Id"
_KEY = "mainspring_newer"
HANDED_KEY = "mainspring_handed"  # Of a scope, which nobody sends from outside: where an answer is handed over.
_ID = re.compile(r"[A-Za-z0-9._:-]{1,64}")
_request: ContextVar[str] = ContextVar("request", default="")


def request_id() -> str:
    """Returns the id of the request that is being served, "" where none is."""
    return _request.get()


def request_facts() -> Mapping[str, str]:
    """Returns the same, as lines of a log have it."""
    served = _request.get()
    return {"request_id": served} if served else {}


@final
class Releases:
    """Reads what callers state before anything else of a request is read, and states what it has to in every answer."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serves one request, or refuses its caller."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        given = Headers(scope=scope)
        named = given.get(REQUEST_HEADER, "")
        served = named if _ID.fullmatch(named) else draw_id("req", scope["app"].state.control.dice)
        _request.set(served)  # A request is served by a task of its own.

        async def stating(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                headers[RELEASE_HEADER], headers[REQUEST_HEADER] = RELEASE, served
            await send(message)

        stated = given.get(RELEASE_HEADER)
        try:
            unknown = stated is None and not scope["path"].startswith(_AGENTS)
            scope[_KEY] = not unknown and is_newer(stated, f"the caller of {scope['path'][:100]}")
        except InvalidMessage as error:
            told = encode(answers.problem_of(error, 400, request=served))
            await Response(told, status_code=400, media_type=answers.PROBLEM_TYPE)(scope, receive, stating)
            return
        await self._app(scope, receive, stating)


def calls_newer(request: Request) -> bool:
    """Returns whether a caller's release is newer than this one, so that it may say what is not known here."""
    return bool(request.scope[_KEY])


@final
class Handed:
    """Takes the answer to one request, for who asks from within this process.

    The value is the handler's own, of which nothing is to be changed; it equals what would have been decoded.
    """

    def __init__(self) -> None:
        self.done = False
        self.value: object = None


def answered(value: object, status: int = 200, *, to: Request | None = None) -> Response:
    """Returns a value as an answer.

    Args:
        to: What it answers, where it may be handed over.
    """
    handed = None if to is None else to.scope.get(HANDED_KEY)
    if isinstance(handed, Handed):
        handed.value, handed.done = value, True
        return Response(status_code=status)
    if isinstance(value, bytes):
        return Response(value, status_code=status, media_type="application/octet-stream")
    return Response(encode(value), status_code=status, media_type="application/json")
