"""The HTTP client behind the SDK and the command line: `domain.routes` as requests, wire values in and out."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator
from types import TracebackType
from typing import TYPE_CHECKING, Any, final
from urllib.parse import urlencode

import httpx

from mainspring.app.base.calls import (
    PAGES,
    Following,
    answer_of,
    asked,
    connecting,
    error_of,
    require_spoken,
)
from mainspring.app.base.servers import Patience, Servers, distrusted, is_distrust
from mainspring.domain import answers
from mainspring.domain.errors import Unavailable
from mainspring.domain.routes import LIST_MAX, Answer, Calls, P, Route

if TYPE_CHECKING:
    from mainspring.domain.fleet import LogChunk
    from mainspring.domain.ids import TeamName
    from mainspring.domain.life import JobState

EVENTS_MAX = 20_000  # Newest ones of a job that are worth holding: a month of an attempt with much trouble.


@final
class Client(Calls):
    """Calls a Mainspring server, and another of the same lab when it does not answer; see `servers.Patience`.

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
        self._http = httpx.Client(**how, event_hooks={"response": [require_spoken]})

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
            return self._http.get(f"{self.servers.url}/readyz", timeout=2.0).status_code == 200
        except httpx.HTTPError as error:
            if is_distrust(error):
                raise distrusted(self.servers.url, error) from error
            return False

    def page(self, path: str = "/") -> str:
        """Returns an address that shows a page in a browser: good once, for some minutes, to let in as whoever asks.

        Args:
            path: The page's, below where pages are.

        Raises:
            MainspringError: The server's own error; NotFound of one that shows no pages.
        """
        try:
            made = self._checked(self._http.post(f"{self.servers.url}{PAGES}/code")).json()
        except httpx.HTTPError as error:
            raise Unavailable("make an address for a browser", on=self.servers.url, got=str(error)) from error
        wanted = {"code": str(made["code"])} | ({} if path == "/" else {"next": PAGES + path})
        return f"{self.servers.url}{PAGES}/enter?{urlencode(wanted)}"

    def call(self, route: Route[P, Answer], /, *args: P.args, **kwargs: P.kwargs) -> Answer:
        """Returns the server's answer to a call.

        Args:
            **kwargs: What it takes by name; None and "" are not sent.

        Raises:
            MainspringError: The server's own error, of the same class.
            Unavailable: None answers.
        """
        return answer_of(route, self._response(route, *args, **kwargs))

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
            Unavailable: No server comes back within `RECONNECT_S_MAX`.
        """
        following = Following(self.servers, job, since=since)
        while True:
            try:
                with self._http.stream(**following.request) as response:
                    if response.status_code >= 400:
                        response.read()
                    self._checked(response)
                    for line in response.iter_lines():
                        if event := following.read(line):
                            yield event
                        if following.ended:
                            return
                wait_s = following.broke()
            except (httpx.HTTPError, Unavailable) as error:
                wait_s = following.broke(error)
            time.sleep(wait_s)

    def logs(self, job: str, *, attempt: int, rank: int = 0, since: int = 0) -> LogChunk:
        """Returns a piece of one rank's output."""
        from mainspring.domain.fleet import LogChunk

        response = self._response(Calls.read_logs, job, attempt=attempt, rank=rank, since=since)
        return LogChunk(data=response.content, next_offset=int(response.headers["X-Next-Offset"]))

    def _response(self, route: Route[P, Any], *args: P.args, **kwargs: P.kwargs) -> httpx.Response:
        call = asked(route, *args, **kwargs)
        patience = Patience(self.servers, again=call.repeats)
        while True:
            try:
                return self._checked(self._http.request(url=patience.url + call.path, **call.words))
            except (httpx.HTTPError, Unavailable) as error:
                wait_s = patience.spend(error)
            time.sleep(wait_s)

    def _checked(self, response: httpx.Response) -> httpx.Response:
        self.servers.answered = True
        if response.status_code >= 400:
            raise error_of(response)
        return response
