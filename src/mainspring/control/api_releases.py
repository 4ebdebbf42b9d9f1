"""Releases over HTTP: every answer states this one, and a caller whose own is too far from it is refused by name."""

from __future__ import annotations

from typing import final

from fastapi import Request
from fastapi.responses import Response
from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from mainspring.domain import answers
from mainspring.domain.codec import encode
from mainspring.domain.errors import InvalidMessage
from mainspring.domain.release import RELEASE, RELEASE_HEADER, is_newer

_AGENTS = "/v1/agents/"  # Called by Mainspring alone; elsewhere who states no release may be a browser or a script.
_KEY = "mainspring_newer"


@final
class Releases:
    """Reads what callers state before anything else of a request is read, and states this release in every answer."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serves one request, or refuses its caller."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def stating(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message)[RELEASE_HEADER] = RELEASE
            await send(message)

        stated = Headers(scope=scope).get(RELEASE_HEADER)
        try:
            unknown = stated is None and not scope["path"].startswith(_AGENTS)
            scope[_KEY] = not unknown and is_newer(stated, f"the caller of {scope['path'][:100]}")
        except InvalidMessage as error:
            told = encode(answers.problem_of(error, 400))
            await Response(told, status_code=400, media_type=answers.PROBLEM_TYPE)(scope, receive, stating)
            return
        await self._app(scope, receive, stating)


def calls_newer(request: Request) -> bool:
    """Returns whether a caller's release is newer than this one, so that it may say what is not known here."""
    return bool(request.scope[_KEY])
