"""Who is let in, and how much of the server is theirs: how many requests of one caller are served at once."""

from __future__ import annotations

import hashlib
from collections import Counter
from threading import Lock
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
    """Counts the requests that each caller has open, from when its token is known until the answer has left.

    Agents are not counted: those of one attempt share a token, and come all at once.

    Args:
        app: What serves them.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self._open: Counter[str] = Counter()
        self._lock = Lock()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serves one request, and counts it no longer once that is done."""
        scope[_KEY] = entered = _Entered(self)
        try:
            await self._app(scope, receive, send)
        finally:
            if entered.token:
                with self._lock:
                    self._open[entered.token] -= 1
                    if not self._open[entered.token]:
                        del self._open[entered.token]

    def enter(self, token: str) -> None:
        """Counts one more request.

        Args:
            token: What the caller's token is called.

        Raises:
            TooManyRequests: The caller has its share open already.
        """
        with self._lock:
            if self._open[token] >= REQUESTS_MAX:
                raise TooManyRequests(
                    "serve a request",
                    got=f"{REQUESTS_MAX} others by the same token that are not answered yet",
                    next_step="wait for some of them; many jobs at once go by POST /v1/jobs/batch",
                )
            self._open[token] += 1


@final
class Familiar:
    """Remembers secrets that were good a while ago: whether they still are is asked with each call. Used by the event
    loop's thread alone.
    """

    def __init__(self) -> None:
        self._hashes: dict[bytes, None] = {}

    def __contains__(self, secret: str) -> bool:
        """Returns whether a secret was good."""
        return _hash(secret) in self._hashes

    def add(self, secret: str) -> None:
        """Remembers one more, in place of the oldest where there are too many."""
        if len(self._hashes) >= FAMILIAR_MAX:
            del self._hashes[next(iter(self._hashes))]
        self._hashes[_hash(secret)] = None


def _hash(secret: str) -> bytes:
    return hashlib.sha256(secret.encode("utf-8", "surrogateescape")).digest()


@final
class _Entered:
    """One request: by which token, "" while that is not known."""

    def __init__(self, load: InFlight) -> None:
        self._load = load
        self.token = ""

    def enter(self, token: str) -> None:
        self._load.enter(token)
        self.token = token


def count(scope: Scope, caller: Caller) -> None:
    """Counts a request among its caller's.

    Args:
        scope: The request's.

    Raises:
        TooManyRequests: The caller has its share open already.
    """
    entered = scope.get(_KEY)
    if entered is not None and caller.attempt is None and caller.token:
        entered.enter(caller.token)
