"""Who is let in, and how much of the server is theirs: how many requests of one caller are served at once."""

from __future__ import annotations

import hashlib
from collections import Counter
from typing import final

from starlette.types import ASGIApp, Receive, Scope, Send

from mainspring.control.store.tokens import Caller
from mainspring.domain.errors import TooManyRequests

REQUESTS_MAX = 32  # One caller's at once, streams among them: fewer than the 40 threads (AnyIO's) that serve all.
RETRY_AFTER_S = 1
FAMILIAR_MAX = 20_000  # Tokens of a lab's people, and of as many attempts as it may run at once.
_KEY = "mainspring_caller"


@final
class InFlight:
    """Counts the requests that each token has open, from its head, so with its body, until the answer has left.

    Agents are not counted: those of one attempt share a token, and come all at once. Used by the event loop's
    thread alone.

    Args:
        app: What serves them.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self._open: Counter[bytes] = Counter()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serves one request, and counts it no longer once that is done."""
        scope[_KEY] = entered = _Entered(self)
        try:
            await self._app(scope, receive, send)
        finally:
            if entered.token:
                self._open[entered.token] -= 1
                if not self._open[entered.token]:
                    del self._open[entered.token]

    def enter(self, token: bytes) -> None:
        """Counts one more request.

        Args:
            token: The hash of the caller's.

        Raises:
            TooManyRequests: The caller has its share open already.
        """
        if self._open[token] >= REQUESTS_MAX:
            raise TooManyRequests(
                "serve a request",
                got=f"{REQUESTS_MAX} others by the same token that are not answered yet",
                next_step="wait for some of them; many jobs at once go by POST /v1/jobs/batch",
            )
        self._open[token] += 1


@final
class Familiar:
    """Remembers secrets that were good a while ago, and whether they were people's. Whether they still are is asked
    with each call. Used by the event loop's thread alone.
    """

    def __init__(self) -> None:
        self._people: dict[bytes, bool] = {}

    def __contains__(self, secret: str) -> bool:
        """Returns whether a secret was good."""
        return _hash(secret) in self._people

    def add(self, secret: str, caller: Caller) -> None:
        """Remembers one more, in place of the oldest where there are too many."""
        if len(self._people) >= FAMILIAR_MAX:
            del self._people[next(iter(self._people))]
        self._people[_hash(secret)] = caller.attempt is None

    def count(self, secret: str, scope: Scope) -> None:
        """Counts a request among those by its token; nothing of it beyond its head was read.

        Args:
            secret: One that was good.
            scope: The request's.

        Raises:
            TooManyRequests: The token has its share open already.
        """
        token = _hash(secret)
        if self._people[token] and _KEY in scope:
            scope[_KEY].enter(token)


def _hash(secret: str) -> bytes:
    return hashlib.sha256(secret.encode("utf-8", "surrogateescape")).digest()


@final
class _Entered:
    """One request: by which token, b"" while that is not known."""

    def __init__(self, load: InFlight) -> None:
        self._load = load
        self.token = b""

    def enter(self, token: bytes) -> None:
        self._load.enter(token)
        self.token = token
