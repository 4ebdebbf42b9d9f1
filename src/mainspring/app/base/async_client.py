"""The client for programs of one event loop: `await client.ps()`, `async for event in client.watch(job)`."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from types import TracebackType
from typing import TYPE_CHECKING, final

import httpx

from mainspring.app.base.calls import (
    Following,
    answer_of,
    asked,
    connecting,
    error_of,
    require_spoken,
)
from mainspring.app.base.servers import Patience, Servers
from mainspring.domain import answers
from mainspring.domain.errors import Unavailable
from mainspring.domain.routes import LIST_MAX, Answer, Calls, P, Route

if TYPE_CHECKING:
    from mainspring.domain.ids import TeamName
    from mainspring.domain.life import JobState


@final
class AsyncClient(Calls):
    """Calls a Mainspring server from an event loop; as `Client` otherwise, every call to be awaited.

    Args:
        url: Where it is; of several, "URL,URL".
        token: Secret of somebody they know.
        certificate: PEM text to trust besides the system's authorities.
        insecure: Whether the token may cross a network in the clear.
        renewed: What shows the token, where that changes.

    Raises:
        NotAllowed: The token would, and may not.
        InvalidInput: That is no list of addresses.
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
        self.servers = Servers(url)
        how = connecting(self.servers, token, certificate=certificate, insecure=insecure, renewed=renewed)
        self._http = httpx.AsyncClient(**how, event_hooks={"response": [_require_spoken]})

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
            Unavailable: None answers.
        """
        call = asked(route, *args, **kwargs)
        patience = Patience(self.servers, again=call.repeats)
        while True:
            try:
                response = await self._http.request(url=patience.url + call.path, **call.words)
                return answer_of(route, self._checked(response))
            except (httpx.HTTPError, Unavailable) as error:
                wait_s = patience.spend(error)
            await asyncio.sleep(wait_s)

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
            Unavailable: No server comes back within `RECONNECT_S_MAX`.
        """
        following = Following(self.servers, job, since=since)
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
                wait_s = following.broke()
            except (httpx.HTTPError, Unavailable) as error:
                wait_s = following.broke(error)
            await asyncio.sleep(wait_s)

    def _checked(self, response: httpx.Response) -> httpx.Response:
        self.servers.answered = True
        if response.status_code >= 400:
            raise error_of(response)
        return response


async def _require_spoken(response: httpx.Response) -> None:
    require_spoken(response)
