"""The HTTP client behind the SDK and the command line: one method a route, wire values in and out."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator, Mapping
from types import TracebackType
from typing import TypeVar
from urllib.parse import quote

import httpx

from mainspring.domain.answers import (
    ArrivalView,
    ClusterView,
    Event,
    GoodputReport,
    JobView,
    PlanView,
    Problem,
    Submit,
    TeamView,
    WhatIf,
    WhatIfAnswer,
    Why,
    error_of,
)
from mainspring.domain.codec import decode, encode, from_plain, loads
from mainspring.domain.errors import InvalidInput, InvalidMessage, MainspringError, NotAllowed, NotFound, Unavailable
from mainspring.domain.fleet import LogChunk
from mainspring.domain.goodput import Goodput
from mainspring.domain.job import JobSpec
from mainspring.domain.team import Team
from mainspring.domain.wire.trust import trust
from mainspring.objects import Blob

TIMEOUT_S = 30.0
ASK_S = 300.0  # What makes whole plans, or a hundred thousand jobs, takes a while on a large fleet.
RECONNECT_S_MAX = 30.0  # A server that is started anew takes a few seconds.
EVENTS_PAGE = 1_000  # What the server lists at once.
EVENTS_MAX = 20_000  # Newest ones of a job that are worth holding: a month of an attempt with much trouble.
_POLL_S = 0.2
_DISTRUST = "CERTIFICATE_VERIFY_FAILED"  # OpenSSL's own word for it.
Value = TypeVar("Value")


class Client:
    """Calls one Mainspring server; one that has answered before is given time to start again.

    Args:
        url: Where it listens.
        token: Secret of somebody it knows.
        certificate: PEM text to trust besides the system's authorities.
    """

    def __init__(self, url: str, token: str, *, certificate: str = "") -> None:
        self.url = url
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

    def healthy(self) -> bool:
        """Returns whether a Mainspring server answers there.

        Raises:
            NotAllowed: What answers shows a certificate that is not trusted.
        """
        try:
            return self._http.get("/v1/health", timeout=2.0).status_code == 200
        except httpx.HTTPError as error:
            if _DISTRUST in str(error):
                raise self._distrusted(error) from error
            return False

    def submit(self, spec: JobSpec, *, key: str = "", count: int = 1) -> JobView:
        """Returns the job made of `spec`, or the one that `key` made before; of an array, its first job."""
        submit = Submit(spec=spec, key=key, count=count)
        return self._one(JobView, "POST", "/v1/jobs", content=encode(submit), timeout_s=ASK_S)

    def jobs(self, *, state: str = "", array: str = "", limit: int = 50) -> tuple[JobView, ...]:
        """Returns the newest jobs, newest first, one for each array; or every job of one array."""
        given = {"limit": str(limit), "state": state, "array": array}
        return self._many(JobView, "/v1/jobs", {name: value for name, value in given.items() if value})

    def job(self, job: str) -> JobView:
        """Returns one job by id or name."""
        return self._one(JobView, "GET", _path(job))

    def stop(self, job: str, *, array: bool = False) -> JobView:
        """Asks a job, or all jobs of its array, to end and returns it as it is now."""
        return self._one(JobView, "POST", f"{_path(job)}/stop{'?array=true' if array else ''}", timeout_s=ASK_S)

    def why(self, job: str, *, remedies: bool = False) -> Why:
        """Returns why a job is where it is, or waits; with `remedies`, also what would start it now."""
        return self._one(Why, "GET", f"{_path(job)}/why{'?remedies=true' if remedies else ''}", timeout_s=ASK_S)

    def plan(self) -> PlanView:
        """Returns the last plan."""
        return self._one(PlanView, "GET", "/v1/plan")

    def what_if(self, changes: WhatIf) -> WhatIfAnswer:
        """Returns what some changes would make of the last plan."""
        return self._one(WhatIfAnswer, "POST", "/v1/plan/what-if", content=encode(changes), timeout_s=ASK_S)

    def events(self, job: str) -> tuple[Event, ...]:
        """Returns a job's events, oldest first; the newest `EVENTS_MAX` of them at most are kept."""
        found: deque[Event] = deque(maxlen=EVENTS_MAX)
        while True:
            since = str(found[-1].sequence) if found else "0"
            page = self._many(Event, f"{_path(job)}/events", {"since": since})
            found.extend(page)
            if len(page) < EVENTS_PAGE:
                return tuple(found)

    def goodput(self, job: str) -> Goodput:
        """Returns what the time allocated to a job went into."""
        return self._one(Goodput, "GET", f"{_path(job)}/goodput")

    def goodput_report(self, *, team: str = "", cluster: str = "", since_s: float = 0.0) -> GoodputReport:
        """Returns what all allocated time went into, that of a team and those below it, or that of a cluster."""
        given = {"team": team, "cluster": cluster, "since": str(since_s)}
        params = {name: value for name, value in given.items() if value}
        response = self._send("GET", "/v1/goodput", params=params, timeout_s=ASK_S)
        return decode(GoodputReport, response.content)

    def clusters(self) -> tuple[ClusterView, ...]:
        """Returns every cluster."""
        return self._many(ClusterView, "/v1/clusters", {})

    def teams(self) -> tuple[TeamView, ...]:
        """Returns the tenant tree with what each team holds, in order of name."""
        return self._many(TeamView, "/v1/teams", {})

    def set_team(self, team: Team) -> Team:
        """Places a team in the tenant tree, or changes it, and returns it."""
        return self._one(Team, "PUT", f"/v1/teams/{quote(team.name, safe='')}", content=encode(team))

    def logs(self, job: str, *, attempt: int, rank: int = 0, since: int = 0) -> LogChunk:
        """Returns a piece of one rank's output."""
        params = {"attempt": str(attempt), "rank": str(rank), "since": str(since)}
        response = self._send("GET", f"{_path(job)}/logs", params=params)
        return LogChunk(data=response.content, next_offset=int(response.headers["X-Next-Offset"]))

    def arrival(self, dataset: str, name: str, blob: Blob) -> ArrivalView:
        """Returns where a recording that is sent to a dataset stands."""
        params = {"id": blob.id, "size": str(blob.size_bytes)}
        return decode(ArrivalView, self._send("GET", _arrival_path(dataset, name), params=params).content)

    def send(self, dataset: str, name: str, blob: Blob, *, offset: int, body: Iterator[bytes]) -> ArrivalView:
        """Adds bytes to a recording, from `offset` on, and returns where it stands then."""
        params = {"id": blob.id, "size": str(blob.size_bytes), "offset": str(offset)}
        return decode(
            ArrivalView,
            self._send("PUT", _arrival_path(dataset, name), content=body, params=params, timeout_s=ASK_S).content,
        )

    def set_recipe(self, dataset: str, text: bytes) -> None:
        """Sets the recipe by which recordings sent to a dataset are read from now on."""
        self._send("PUT", f"/v1/datasets/{quote(dataset, safe='')}/recipe", content=text)

    def _one(
        self,
        kind: type[Value],
        method: str,
        path: str,
        *,
        content: bytes | None = None,
        timeout_s: float = TIMEOUT_S,
    ) -> Value:
        return decode(kind, self._send(method, path, content=content, timeout_s=timeout_s).content)

    def _many(self, kind: type[Value], path: str, params: Mapping[str, str]) -> tuple[Value, ...]:
        plain = loads(self._send("GET", path, params=params).content)
        if not isinstance(plain, list):
            raise InvalidMessage("read the server's answer", on=path, wanted="a list")
        return tuple(_each(kind, plain))

    def _send(
        self,
        method: str,
        path: str,
        *,
        content: bytes | Iterator[bytes] | None = None,
        params: Mapping[str, str] | None = None,
        timeout_s: float = TIMEOUT_S,
    ) -> httpx.Response:
        deadline = time.monotonic() + (RECONNECT_S_MAX if self._answered and method == "GET" else 0.0)
        while True:
            try:
                return self._answer(self._http.request(method, path, content=content, params=params, timeout=timeout_s))
            except httpx.HTTPError as error:
                if _DISTRUST in str(error):
                    raise self._distrusted(error) from error
                if time.monotonic() >= deadline:
                    got = str(error) or type(error).__name__
                    raise Unavailable("reach the Mainspring server", on=self.url, got=got, next_step="ms up") from error
                time.sleep(_POLL_S)

    def _distrusted(self, error: httpx.HTTPError) -> NotAllowed:
        advice = "the URL must have a name that the certificate holds; SSL_CERT_FILE names one to trust (PEM)"
        return NotAllowed("trust the Mainspring server", on=self.url, got=str(error), next_step=advice)

    def _answer(self, response: httpx.Response) -> httpx.Response:
        self._answered = True
        if response.status_code >= 400:
            raise _error_of(response)
        return response


def _path(job: str) -> str:
    if job in ("", ".", "..") or "/" in job:
        raise NotFound("find a job", on=repr(job), next_step="ms ps")
    return f"/v1/jobs/{quote(job, safe='')}"


def _arrival_path(dataset: str, name: str) -> str:
    return f"/v1/datasets/{quote(dataset, safe='')}/arrivals/{quote(name, safe='')}"


def _each(kind: type[Value], plain: list[object]) -> Iterator[Value]:
    for item in plain:
        yield from_plain(kind, item)


def _error_of(response: httpx.Response) -> MainspringError:
    """Returns the server's error as the same class it was raised as."""
    try:
        return error_of(decode(Problem, response.content))
    except InvalidMessage:
        return Unavailable("use the Mainspring server", got=f"HTTP {response.status_code}: {response.text[:200]}")
