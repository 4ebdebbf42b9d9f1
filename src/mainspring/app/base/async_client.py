"""The client for programs of one event loop: `await client.ps()`, `async for event in client.watch(job)`."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from types import TracebackType
from typing import TYPE_CHECKING, final

import httpx

from mainspring.app.base.calls import (
    POLL_S,
    Following,
    Patience,
    answer_of,
    asked,
    connecting,
    error_of,
    no_url,
    require_spoken,
)
from mainspring.domain import answers
from mainspring.domain.errors import TooManyRequests
from mainspring.domain.routes import LIST_MAX, Answer, Calls, P, Route

if TYPE_CHECKING:
    from mainspring.domain.ids import TeamName
    from mainspring.domain.life import JobState


@final
class AsyncClient(Calls):
    """Calls one Mainspring server from an event loop; as `Client` otherwise, every call to be awaited.

    Args:
        token: Secret of somebody it knows.
        certificate: PEM text to trust besides the system's authorities.
        insecure: Whether the token may cross a network in the clear.
        renewed: What shows the token, where that changes.

    Raises:
        NotAllowed: The token would, and may not.
    """

    def __init__(
        self,
        url: str,
        token: str,
        *,
        certificate: str = "",
        insecure: bool = False,
        renewed: httpx.Auth | None = None,
    ) -> None:
        self.url = url
        how = connecting(url, token, certificate=certificate, insecure=insecure, renewed=renewed)
        try:
            self._http = httpx.AsyncClient(**how, event_hooks={"response": [_require_spoken]})
        except (httpx.InvalidURL, UnicodeError) as error:
            raise no_url(url, error) from error
        self._answered = False

    async def __aenter__(self) -> AsyncClient:
        """Returns itself."""
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Closes its connections."""
        await self._http.aclose()

    async def call(self, route: Route[P, Answer], /, *args: P.args, **kwargs: P.kwargs) -> Answer:
        """Returns the server's answer to a call.

        Args:
            **kwargs: What it takes by name; None and "" are not sent.

        Raises:
            MainspringError: The server's own error, of the same class.
            Unavailable: It does not answer.
        """
        call = asked(route, *args, **kwargs)
        patience = Patience(self.url, again=call.repeats, known=self._answered)
        while True:
            try:
                response = await self._http.request(**call.request)
                return answer_of(route, self._checked(response).content)
            except (httpx.HTTPError, TooManyRequests) as error:
                patience.spend(error)
            await asyncio.sleep(POLL_S)

    async def every_job(
        self,
        *,
        state: JobState | None = None,
        team: TeamName | None = None,
        owner: str | None = None,
        array: str | None = None,
    ) -> AsyncIterator[answers.JobView]:
        """Yields the jobs that `ps` lists, to the first ever."""
        after = None
        while True:
            page = await self.ps(state=state, team=team, owner=owner, array=array, after=after, limit=LIST_MAX)
            for view in page:
                yield view
            if len(page) < LIST_MAX:
                return
            after = page[-1].id

    async def watch(self, job: str | None = None, *, since: int = 0) -> AsyncIterator[answers.Event]:
        """Yields events as they come: of a job until it ends, or of all that the caller may read, without end.

        Where the connection breaks it goes on with the event after the last.

        Args:
            job: Id or name, None for all.
            since: The last sequence that was seen.

        Raises:
            Unavailable: The server does not come back within `RECONNECT_S_MAX`.
        """
        following = Following(self.url, job, since=since)
        while True:
            try:
                async with self._http.stream(**following.request) as response:
                    if response.status_code >= 400:
                        await response.aread()
                    self._checked(response)
                    async for line in response.aiter_lines():
                        if event := following.read(line):
                            yield event
                        if following.ended:
                            return
                following.broke()
            except httpx.HTTPError as error:
                following.broke(error)
            await asyncio.sleep(POLL_S)

    def _checked(self, response: httpx.Response) -> httpx.Response:
        self._answered = True
        if response.status_code >= 400:
            raise error_of(response)
        return response


async def _require_spoken(response: httpx.Response) -> None:
    require_spoken(response)
