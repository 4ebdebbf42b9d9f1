"""The controller on HTTP: wire values in and out, bearer tokens on everything, errors as `answers.Problem`."""

from __future__ import annotations

from typing import Annotated, Any, cast

from fastapi import APIRouter, Depends, FastAPI, HTTPException, Query, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import Response, StreamingResponse
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer
from starlette.exceptions import HTTPException as StarletteHTTPException

from mainspring.control.api_arrivals import Arrivals, received
from mainspring.control.api_logs import Followers, follow
from mainspring.control.api_schema import documented, problems, publish
from mainspring.control.control import LIST_MAX, LOG_BYTES_MAX, Control
from mainspring.control.store.tokens import Caller, TokenRole
from mainspring.domain import answers, wire
from mainspring.domain.codec import MESSAGE_BYTES_MAX, WHOLE_MAX, decode, encode
from mainspring.domain.errors import (
    Conflict,
    InvalidInput,
    InvalidMessage,
    MainspringError,
    NotAllowed,
    NotFound,
    StorageFull,
    Unavailable,
)
from mainspring.domain.goodput import Goodput
from mainspring.domain.ids import ClusterName, TeamName
from mainspring.domain.life import JobState
from mainspring.domain.team import Team
from mainspring.objects import Blob

_STATUSES: tuple[tuple[type[MainspringError], int], ...] = (
    (InvalidInput, 400),
    (NotFound, 404),
    (Conflict, 409),
    (NotAllowed, 403),
    (StorageFull, 507),
    (Unavailable, 503),
)  # The first that fits.
_bearer = HTTPBearer(auto_error=False)
_router = APIRouter(prefix="/v1")


def create_app(control: Control, arrivals: Arrivals | None = None) -> FastAPI:
    """Returns the application that serves one controller.

    Args:
        control: The controller.
        arrivals: Where recordings that are sent arrive; None for a server that takes none.
    """
    app = FastAPI(title="Mainspring", version="1", docs_url=None, redoc_url=None)
    app.state.control = control
    app.state.arrivals = arrivals
    app.state.followers = Followers()
    app.include_router(_router)
    app.add_exception_handler(MainspringError, _tell_error)
    app.add_exception_handler(RequestValidationError, _tell_invalid)
    app.add_exception_handler(StarletteHTTPException, _tell_http)
    publish(app)
    return app


def _control(request: Request) -> Control:
    return cast(Control, request.app.state.control)


def _arrivals(request: Request) -> Arrivals:
    arrivals = cast("Arrivals | None", request.app.state.arrivals)
    if arrivals is None:
        raise NotFound("receive recordings", got="a server that takes none", wanted="one started by ms up")
    return arrivals


def _caller(
    control: Annotated[Control, Depends(_control)],
    credentials: Annotated[HTTPAuthorizationCredentials | None, Depends(_bearer)],
) -> Caller:
    try:
        return control.caller(credentials.credentials if credentials else "")
    except NotAllowed as error:
        raise HTTPException(401, detail=answers.problem_of(error), headers={"WWW-Authenticate": "Bearer"}) from error


def _sender(caller: Annotated[Caller, Depends(_caller)]) -> Caller:
    caller.require(TokenRole.MEMBER, "send recordings")
    return caller


def _viewer(caller: Annotated[Caller, Depends(_caller)]) -> Caller:
    caller.require(TokenRole.VIEWER, "look")
    return caller


async def _body(request: Request) -> bytes:
    """Returns the body, read no further than a message may be long."""
    parts, size = [], 0
    async for part in request.stream():
        size += len(part)
        if size > MESSAGE_BYTES_MAX:
            raise InvalidMessage("read a request", got=f"over {size} bytes", wanted=f"at most {MESSAGE_BYTES_MAX}")
        parts.append(part)
    return b"".join(parts)


def _answer(value: object, status: int = 200) -> Response:
    return Response(encode(value), status_code=status, media_type="application/json")


Controlled = Annotated[Control, Depends(_control)]
Called = Annotated[Caller, Depends(_caller)]
Seen = Annotated[Caller, Depends(_viewer)]
Sender = Annotated[Caller, Depends(_sender)]
Sent = Annotated[Arrivals, Depends(_arrivals)]
Body = Annotated[bytes, Depends(_body)]
ContentId = Annotated[str, Query(pattern="^[0-9a-f]{64}$")]
Since = Annotated[int, Query(ge=0, le=WHOLE_MAX)]
Limit = Annotated[int, Query(ge=1, le=LIST_MAX)]
Rank = Annotated[int, Query(ge=0, le=WHOLE_MAX)]
AttemptNumber = Annotated[int | None, Query(ge=1, le=WHOLE_MAX)]


@_router.get("/health")
def health(control: Controlled) -> Response:
    """Tells that the server answers and who leads; needs no token."""
    return _answer({"status": "ok", "leader_epoch": control.store.leader().epoch})


@_router.post("/jobs", **documented(body=answers.Submit, answer=answers.JobView))
def submit(control: Controlled, caller: Called, body: Body) -> Response:
    """Takes a job, or returns the one that the same key made before."""
    return _answer(control.submit(decode(answers.Submit, body), caller))


@_router.get("/jobs", **documented(answer=answers.JobView, many=True))
def list_jobs(
    control: Controlled,
    _: Seen,
    state: JobState | None = None,
    team: Annotated[str | None, Query(max_length=63)] = None,
    array: Annotated[str | None, Query(max_length=63)] = None,
    limit: Limit = 50,
) -> Response:
    """Lists the newest jobs, newest first, without ranks and goodput; one for each array, or every job of one array."""
    return _answer(control.jobs(state=state, team=TeamName(team) if team else None, array=array, limit=limit))


@_router.get("/jobs/{job}", **documented(answer=answers.JobView))
def show_job(control: Controlled, _: Seen, job: str) -> Response:
    """Shows one job, by id or by the newest of its name."""
    return _answer(control.job(job))


@_router.post("/jobs/{job}/stop", **documented(answer=answers.JobView))
def stop_job(
    control: Controlled,
    caller: Called,
    job: str,
    array: Annotated[bool, Query()] = False,  # noqa: FBT002
) -> Response:
    """Asks a job to end, or all jobs of its array; one that has ended stays as it is."""
    return _answer(control.stop(job, caller, array=array))


@_router.get("/jobs/{job}/why", **documented(answer=answers.Why))
def why(
    control: Controlled,
    _: Seen,
    job: str,
    remedies: Annotated[bool, Query()] = False,  # noqa: FBT002
) -> Response:
    """Tells why a job is where it is, or waits; with `remedies`, also what would start it now."""
    return _answer(control.questions.why(job, with_remedies=remedies))


@_router.get("/plan", **documented(answer=answers.PlanView))
def show_plan(control: Controlled, _: Seen) -> Response:
    """Shows the last plan."""
    return _answer(control.questions.plan())


@_router.post("/plan/what-if", **documented(body=answers.WhatIf, answer=answers.WhatIfAnswer))
def what_if(control: Controlled, _: Seen, body: Body) -> Response:
    """Tells what some changes would make of the last plan; nothing of it happens."""
    return _answer(control.questions.what_if(decode(answers.WhatIf, body)))


@_router.get("/jobs/{job}/events", **documented(answer=answers.Event, many=True))
def job_events(control: Controlled, _: Seen, job: str, since: Since = 0, limit: Limit = LIST_MAX) -> Response:
    """Lists a job's events after a sequence number, oldest first."""
    return _answer(control.events(reference=job, since=since, limit=limit))


@_router.get("/jobs/{job}/goodput", **documented(answer=Goodput))
def job_goodput(control: Controlled, _: Seen, job: str) -> Response:
    """Tells what the time allocated to a job went into; the parts add up to the whole."""
    return _answer(control.goodput(job))


@_router.get("/goodput", **documented(answer=answers.GoodputReport))
def goodput(
    control: Controlled,
    _: Seen,
    team: Annotated[str | None, Query(max_length=63)] = None,
    cluster: Annotated[str | None, Query(max_length=63)] = None,
    since: Annotated[float, Query(ge=0, allow_inf_nan=False)] = 0.0,
) -> Response:
    """Tells what allocated time went into: of all attempts granted since a time, by team and by cluster."""
    return _answer(
        control.goodput_report(
            team=TeamName(team) if team else None, cluster=ClusterName(cluster) if cluster else None, since_s=since
        )
    )


_LOGS: dict[int | str, dict[str, Any]] = {
    200: {
        "description": "A piece of output; with `follow`, server-sent events `log` and at last `end`",
        "content": {"application/octet-stream": {}, "text/event-stream": {}},
        "headers": {"X-Next-Offset": {"schema": {"type": "integer"}}},
    }
}


@_router.get("/jobs/{job}/logs", responses=_LOGS | problems())
def logs(
    request: Request,
    control: Controlled,
    _: Seen,
    job: str,
    rank: Rank = 0,
    since: Since = 0,
    attempt: AttemptNumber = None,
    limit: Annotated[int, Query(ge=1, le=LOG_BYTES_MAX)] = LOG_BYTES_MAX,
    follow_: Annotated[bool, Query(alias="follow")] = False,  # noqa: FBT002
) -> Response:
    """Returns a piece of one rank's output, or follows it across attempts until the job ends."""
    if follow_:
        followers = cast(Followers, request.app.state.followers)
        stream = follow(control, followers, job, rank=rank, since=since, attempt=attempt)
        return StreamingResponse(stream, media_type="text/event-stream")
    chunk = control.logs(job, rank=rank, since=since, attempt=attempt, limit=limit)
    headers = {"X-Next-Offset": str(chunk.next_offset)}
    return Response(chunk.data, media_type="application/octet-stream", headers=headers)


@_router.get("/events", **documented(answer=answers.Event, many=True))
def events(control: Controlled, _: Seen, since: Since = 0, limit: Limit = LIST_MAX) -> Response:
    """Lists all events after a sequence number, oldest first."""
    return _answer(control.events(since=since, limit=limit))


@_router.get("/clusters", **documented(answer=answers.ClusterView, many=True))
def clusters(control: Controlled, _: Seen) -> Response:
    """Lists every cluster that ever answered."""
    return _answer(control.clusters())


@_router.get("/teams", **documented(answer=answers.TeamView, many=True))
def teams(control: Controlled, _: Seen) -> Response:
    """Lists the tenant tree with what each team holds, in order of name."""
    return _answer(control.teams())


@_router.put("/teams/{name}", **documented(body=Team, answer=Team))
def set_team(control: Controlled, caller: Called, name: str, body: Body) -> Response:
    """Places a team in the tenant tree, or changes it."""
    team = decode(Team, body)
    if team.name != name:
        raise InvalidInput("change a team", on=f"team {name[:80]!r}", got=f"a body for {team.name!r}")
    return _answer(control.set_team(team, caller))


@_router.get("/datasets/{dataset}/arrivals/{name}", **documented(answer=answers.ArrivalView))
def show_arrival(_: Seen, arrivals: Sent, dataset: str, name: str, id: ContentId, size: Since) -> Response:
    """Tells how much of a recording is here, named by its content, and what became of it."""
    return _answer(arrivals.view(dataset, name, Blob(id=id, size_bytes=size)))


_FILE = {"requestBody": {"required": True, "content": {"application/octet-stream": {}}}}


@_router.put("/datasets/{dataset}/arrivals/{name}", **documented(answer=answers.ArrivalView) | {"openapi_extra": _FILE})
async def receive_arrival(
    request: Request,
    _: Sender,
    arrivals: Sent,
    dataset: str,
    name: str,
    id: ContentId,
    size: Since,
    offset: Since = 0,
) -> Response:
    """Adds a body of any length to a recording, named by its content; with its last byte the recording has arrived."""
    blob = Blob(id=id, size_bytes=size)
    return _answer(await received(arrivals, request.stream(), dataset=dataset, name=name, blob=blob, offset=offset))


@_router.put("/datasets/{dataset}/recipe", responses=problems(), status_code=204, openapi_extra=_FILE)
def set_recipe(_: Sender, arrivals: Sent, dataset: str, body: Body) -> Response:
    """Keeps the recipe (YAML) by which recordings sent to a dataset are read from now on."""
    arrivals.set_recipe(dataset, body)
    return Response(status_code=204)


@_router.post("/agents/register", **documented(body=wire.Register, answer=wire.Orders))
def register(control: Controlled, caller: Called, body: Body) -> Response:
    """Gives an agent its orders; `ready` once every agent of the attempt has come."""
    return _answer(control.register(decode(wire.Register, body), caller))


@_router.post("/agents/heartbeat", **documented(body=wire.Heartbeat, answer=wire.HeartbeatReply))
def heartbeat(control: Controlled, caller: Called, body: Body) -> Response:
    """Takes a lead's report."""
    return _answer(control.heartbeat(decode(wire.Heartbeat, body), caller))


# ---------------------------------------------------------------- errors


async def _tell_error(_: Request, error: Exception) -> Response:
    assert isinstance(error, MainspringError)
    status = next((status for kind, status in _STATUSES if isinstance(error, kind)), 500)
    return _answer(answers.problem_of(error), status)


async def _tell_invalid(_: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    first = error.errors()[0]
    where = ".".join(str(part) for part in first["loc"])
    told = InvalidInput("read a request", on=where, got=repr(first.get("input"))[:120], wanted=str(first["msg"]))
    return _answer(answers.problem_of(told), 400)


async def _tell_http(request: Request, error: Exception) -> Response:
    assert isinstance(error, StarletteHTTPException)
    told: object = error.detail
    if not isinstance(told, answers.Problem):
        kind = NotFound if error.status_code == 404 else InvalidInput
        told = answers.problem_of(
            kind("serve a request", on=f"{request.method} {request.url.path}"[:200], got=str(error.detail))
        )
    answer = _answer(told, error.status_code)
    answer.headers.update(error.headers or {})
    return answer
