"""The controller on HTTP: wire values in and out, bearer tokens on everything, errors as problems of RFC 9457.

What there is to call is listed in `domain.routes`; here each becomes an endpoint.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from operator import attrgetter
from typing import Annotated, Any, cast

import fastapi
from anyio import CapacityLimiter, to_thread
from fastapi import Depends, FastAPI, HTTPException, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import Response, StreamingResponse
from fastapi.routing import APIRoute
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer
from fastapi_offline import FastAPIOffline
from starlette.exceptions import HTTPException as StarletteHTTPException
from starlette.requests import ClientDisconnect
from starlette.routing import Match
from starlette.types import Scope

from mainspring.control.api_arrivals import ARRIVAL_ENDPOINTS, Arrivals, claimed
from mainspring.control.api_load import RETRY_AFTER_S, Familiar, InFlight
from mainspring.control.api_metrics import Measured, Metrics, read_metrics
from mainspring.control.api_releases import Releases, answered, calls_newer, request_id
from mainspring.control.api_schema import STREAM_TYPE, documented, publish
from mainspring.control.api_streams import Followers, followed_events, followed_output, resumed
from mainspring.control.api_trips import Call, Trips, keyed
from mainspring.control.control import Control
from mainspring.control.ddi.endpoints import DEVICE_ENDPOINTS
from mainspring.control.logins import Logins
from mainspring.control.service.nodes.care import FEW
from mainspring.control.store.store import each
from mainspring.control.store.tokens import Caller
from mainspring.domain import answers
from mainspring.domain.codec import MESSAGE_BYTES_MAX, decode, encode
from mainspring.domain.errors import (
    Busy,
    Conflict,
    InvalidInput,
    InvalidMessage,
    KeyReused,
    MainspringError,
    NotAllowed,
    NotFound,
    StorageFull,
    TooManyRequests,
    Unavailable,
)
from mainspring.domain.release import RELEASE
from mainspring.domain.routes import KEY_HEADER, ROUTES, Calls, Route, Stream, bounds_of
from mainspring.domain.team import Team
from mainspring.domain.wire import Heartbeat
from mainspring.domain.wire.controller import ATTEMPT_HEADER

_STATUSES: tuple[tuple[type[MainspringError], int], ...] = (
    (InvalidInput, 400),
    (NotFound, 404),
    (KeyReused, 422),
    (Conflict, 409),
    (NotAllowed, 403),
    (StorageFull, 507),
    (TooManyRequests, 429),
    (Unavailable, 503),
)  # The first that fits.
_KEY = Annotated[str | None, fastapi.Header(alias=KEY_HEADER, description="Under one key a call is done once.")]
_APART_MAX = 8  # Submits at once that ask the object store, which may be slow: a fifth of the threads.
_TELLING_MAX = 2  # Batches of health events read at once: a burst of them leaves the loop its share of the interpreter.
# Up to `FEW` events, each of which has this once, are read beside them: what is seen now waits for nobody's backlog.
_TOLD_ONE = b'"at_s"'
_bearer = HTTPBearer(auto_error=False)
STRANGERS_BYTES_MAX = 2 * answers.ID_TOKEN_LENGTH_MAX  # What is read of a body whose sender shows no token.
DOCS = "/docs"  # Where people try calls from a browser; what it shows comes from this server alone.


def create_app(control: Control, arrivals: Arrivals | None = None, logins: Logins | None = None) -> FastAPI:
    """Returns the application that serves one controller.

    Args:
        arrivals: Where recordings that are sent arrive; None for a server that takes none.
        logins: How people log in by a provider of identities; None for a server that has none.
    """
    app = FastAPIOffline(
        docs_url=DOCS,
        redoc_url=None,
        title="Mainspring",
        version="1",
        static_url=f"{DOCS}-assets",
        swagger_ui_parameters={"validatorUrl": None, "persistAuthorization": False},  # It would ask a stranger.
    )
    app.state.control = control
    app.state.arrivals = arrivals
    app.state.logins = logins
    app.state.followers = Followers()
    app.state.familiar = Familiar()
    app.state.metrics = Metrics(control)
    app.state.submits = Trips(_submit_each)
    app.state.apart = CapacityLimiter(_APART_MAX)
    app.state.telling = CapacityLimiter(_TELLING_MAX)
    for route in sorted(ROUTES, key=lambda one: not one.bare):  # A request is held against one after the other.
        app.router.add_api_route(
            route.path,
            _endpoint(route),
            methods=[route.method],
            name=route.operation,
            description=route.words,
            route_class_override=_Bare if route.bare else _Quick,
            **documented(route),
        )
    app.add_middleware(InFlight)
    app.add_middleware(Releases)
    app.add_middleware(Measured)
    app.add_exception_handler(MainspringError, _tell_error)
    app.add_exception_handler(RequestValidationError, _tell_invalid)
    app.add_exception_handler(StarletteHTTPException, _tell_http)
    app.add_exception_handler(ClientDisconnect, _tell_nobody)
    app.add_exception_handler(Exception, _tell_fault)
    publish(app)
    return app


# ---------------------------------------------------------------- endpoints


class _Quick(APIRoute):
    """A route that is passed over by how a path begins and ends: a request is held against a hundred of them."""

    def __init__(self, path: str, endpoint: Callable[..., Any], **given: Any) -> None:
        super().__init__(path, endpoint, **given)
        self._begin, self._end = path.partition("{")[0], path.rpartition("}")[2]

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        """Returns whether it serves a request, and what that adds to its scope."""
        path = scope.get("path", "")
        if scope.get("root_path") or (path.startswith(self._begin) and path.endswith(self._end)):
            return super().matches(scope)
        return Match.NONE, {}


class _Bare(_Quick):
    """A route that takes a token and a body alone: FastAPI's look for parameters takes longer than many a call."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """Returns what answers a request."""

        async def handle(request: Request) -> Response:
            secret = await _secret(request, await _bearer(request))
            return cast(Response, await self.endpoint(request=request, secret=secret, body=await _body(request)))

        return handle


def _endpoint(route: Route[..., Any]) -> Callable[..., Any]:
    """Returns what FastAPI calls for a route: its parameters are the route's, beside the request and what it shows."""
    given: dict[str, Any] = {"request": Request}
    if route.people:
        given["secret"] = Annotated[str, Depends(_secret)]
    asked = [inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, annotation=kind) for name, kind in given.items()]
    for name, parameter in route.signature.parameters.items():
        kind = parameter.annotation
        if parameter.kind is inspect.Parameter.KEYWORD_ONLY:
            bounds = {word: value for word, value in asdict(bounds_of(parameter)).items() if value is not None}
            kind = Annotated[getattr(kind, "__origin__", kind), fastapi.Query(**bounds)]
        elif name == "body":
            if kind is Stream:  # Read by the endpoint itself.
                continue
            kind = Annotated[bytes, Depends(_body if route.people else _small_body)]
        asked.append(parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY, annotation=kind))
    if route.keyed:
        asked.append(inspect.Parameter("key", inspect.Parameter.KEYWORD_ONLY, annotation=_KEY, default=None))
    serve: Callable[..., Any] = _OWN.get(route) or partial(_serve, route)
    endpoint = partial(_submit) if route is Calls.submit else partial(_enter, route, serve)
    endpoint.__signature__ = inspect.Signature(asked)  # type: ignore[attr-defined]
    return endpoint


async def _enter(
    route: Route[..., Any], serve: Callable[..., Any], *, request: Request, secret: str = "", **given: Any
) -> Response:
    """Answers a call, in one trip to another thread where that can be: a trip costs as much as a small call."""
    if not route.people:
        return cast(Response, await to_thread.run_sync(partial(serve, request=request, **given)))
    if inspect.iscoroutinefunction(serve):
        caller = await to_thread.run_sync(_caller, route, request, secret)
        return cast(Response, await serve(request=request, caller=caller, **given))

    def entered() -> Response:
        return cast(Response, serve(request=request, caller=_caller(route, request, secret), **given))

    much = route is Calls.tell_health and given["body"].count(_TOLD_ONE) > FEW
    return await to_thread.run_sync(entered, limiter=request.app.state.telling if much else None)


def _serve(
    route: Route[..., Any], *, request: Request, caller: Caller, key: str | None = None, **given: Any
) -> Response:
    """Answers with what the route's handler returns, or returned when it was called under the same key before."""
    first, query = [], {}
    for name, parameter in route.signature.parameters.items():
        if parameter.kind is inspect.Parameter.KEYWORD_ONLY:
            query[name] = parameter.default if given[name] == "" else given[name]
        else:
            first.append(decode(parameter.annotation, given[name]) if name == "body" else given[name])
    first.append(caller)
    control = _control(request)
    act = partial(attrgetter(route.handler)(control), *first, **query)
    if key is None:
        return answered(act(), to=request)
    said = f"{route.method} {request.url.path}?{request.url.query}\n".encode() + given.get("body", b"")
    asks = _BEFORE.get(route)
    before = None if asks is None else partial(attrgetter(asks)(control), *first[-2:])  # What is sent, and by whom.
    answer = control.repeats.once(caller, key, said, lambda: encode(act()), before=before)
    return Response(answer, media_type="application/json")


def _health(*, request: Request) -> Response:
    return answered(_control(request).health())


def _alive(*, request: Request) -> Response:
    return answered(_control(request).health(), 200 if _control(request).pulse.alive else 503)


def _ready(*, request: Request) -> Response:
    health = _control(request).health()
    return answered(health, 503 if health.status is answers.HealthStatus.FAILING else 200)


def _login_offer(*, request: Request) -> Response:
    return answered(_logins(request).offer())


def _log_in(*, request: Request, body: bytes) -> Response:
    return answered(_logins(request).log_in(decode(answers.Login, body), address=_address(request)))


def _set_team(*, request: Request, caller: Caller, name: str, body: bytes) -> Response:
    team = decode(Team, body)
    if team.name != name:
        raise InvalidInput("change a team", on=f"team {name[:80]!r}", got=f"a body for {team.name!r}")
    return answered(_control(request).people.set_team(team, caller))


def _logs(
    *,
    request: Request,
    caller: Caller,
    job: str,
    rank: int,
    since: int,
    attempt: int | None,
    limit: int,
    follow: bool,
) -> Response:
    control = _control(request)
    if follow:
        stream = followed_output(control, _followers(request), job, caller, rank=rank, since=since, attempt=attempt)
        return StreamingResponse(stream, media_type=STREAM_TYPE)
    chunk = control.logs(job, caller, rank=rank, since=since, attempt=attempt, limit=limit)
    headers = {"X-Next-Offset": str(chunk.next_offset)}
    return Response(chunk.data, media_type="application/octet-stream", headers=headers)


def _events(
    *,
    request: Request,
    caller: Caller,
    since: int,
    limit: int,
    newest: bool,
    follow: bool,
    job: str | None = None,
) -> Response:
    control = _control(request)
    if follow:
        seen = resumed(request, since)
        stream = followed_events(control, _followers(request), job, caller, since=seen)
        return StreamingResponse(stream, media_type=STREAM_TYPE)
    return answered(control.events(job, caller, since=since, limit=limit, newest=newest), to=request)


async def _submit(*, request: Request, secret: str, body: bytes) -> Response:
    call, state = Call(request=request, secret=secret, body=body), request.app.state
    answer = await cast(Trips[Call, Response | None], state.submits).ask(call)
    if answer is None:
        (apart,) = await to_thread.run_sync(partial(_submit_each, [call], apart=True), limiter=state.apart)
        if isinstance(apart, Exception):
            raise apart
        answer = apart
    assert answer is not None
    return answer


def _submit_each(calls: Sequence[Call], *, apart: bool = False) -> Sequence[Response | Exception | None]:
    """Answers submits that came at one time: lets each caller in, reads what each says, and writes all together.

    Args:
        apart: Whether nobody else waits for them. Where others do, None answers a submit that names views: whose they
            are the object store knows, and that may take long.
    """
    entered: dict[tuple[str, ...], Caller] = {}

    def read(call: Call) -> tuple[answers.Submit, Caller] | None:
        at = (call.secret, _address(call.request), call.request.headers.get(ATTEMPT_HEADER, ""))
        caller = call.request.state.caller = entered.get(at) or _caller(Calls.submit, call.request, call.secret)
        entered[at] = caller
        (submit,) = keyed(call.request, [decode(answers.Submit, call.body)])
        return (submit, caller) if apart or not submit.spec.views else None

    asked = each(read, calls)
    together = [one for one in asked if one is not None and not isinstance(one, Exception)]
    made = iter(_control(calls[0].request).submit_each(together))
    told = (one if one is None or isinstance(one, Exception) else next(made) for one in asked)
    return each(lambda one: None if one is None else answered(one), told)


def _submit_batch(*, request: Request, caller: Caller, body: bytes) -> Response:
    submits = keyed(request, decode(answers.SubmitBatch, body).submits)
    return answered(_control(request).submit_batch(answers.SubmitBatch(submits=submits), caller))


def _heartbeat(*, request: Request, caller: Caller, body: bytes) -> Response:
    newer = calls_newer(request)
    return answered(_control(request).heartbeat(decode(Heartbeat, body, newer=newer), caller, newer=newer))


def _teams(*, request: Request, caller: Caller) -> Response:
    return answered(_control(request).people.teams(caller, claimed=claimed(request)), to=request)


def _whoami(*, request: Request, caller: Caller) -> Response:
    return answered(_control(request).people.whoami(caller, claimed=claimed(request)), to=request)


_OWN: Mapping[Route[..., Any], Callable[..., Any]] = {
    Calls.health: _health,
    Calls.livez: _alive,
    Calls.readyz: _ready,
    Calls.metrics: read_metrics,
    Calls.login_offer: _login_offer,
    Calls.log_in: _log_in,
    Calls.put_team: _set_team,
    Calls.read_logs: _logs,
    Calls.job_events: _events,
    Calls.all_events: _events,
    Calls.heartbeat: _heartbeat,
    Calls.submit_batch: _submit_batch,
    Calls.teams: _teams,
    Calls.whoami: _whoami,
    **ARRIVAL_ENDPOINTS,
    **DEVICE_ENDPOINTS,
}  # Whatever is more than a message in and a message out.

_BEFORE: Mapping[Route[..., Any], str] = {
    Calls.create_release: "releases.require_files",
    Calls.serve: "services.require_data",
    Calls.update_service: "services.require_data",
}  # What asks the object store, which may be slow: under a key all the rest is done in one turn of the writers.


def _control(request: Request) -> Control:
    return cast(Control, request.app.state.control)


def _followers(request: Request) -> Followers:
    return cast(Followers, request.app.state.followers)


def _logins(request: Request) -> Logins:
    logins = cast("Logins | None", request.app.state.logins)
    if logins is None:
        raise NotFound(
            "log in by a provider of identities",
            got="a server that has none",
            next_step="ask an admin of your team for a token (ms token new); or oidc in the server's config.yaml",
        )
    return logins


def _address(request: Request) -> str:
    return request.client.host if request.client else ""


async def _secret(
    request: Request, credentials: Annotated[HTTPAuthorizationCredentials | None, Depends(_bearer)]
) -> str:
    """Returns the secret that a request shows, of somebody known: nobody else's body is read."""
    secret = credentials.credentials if credentials else ""
    familiar = cast(Familiar, request.app.state.familiar)
    if secret not in familiar:
        familiar.add(secret, await to_thread.run_sync(_known, request, secret))
    familiar.count(secret, request.scope)
    return secret


def _known(request: Request, secret: str) -> Caller:
    try:
        attempt = request.headers.get(ATTEMPT_HEADER, "")
        return _control(request).entered(secret, address=_address(request), attempt=attempt)
    except NotAllowed as error:
        raise HTTPException(401, detail=error, headers={"WWW-Authenticate": "Bearer"}) from error


def _caller(route: Route[..., Any], request: Request, secret: str) -> Caller:
    caller = request.state.caller = _known(request, secret)
    if route.may is not None:
        caller.require_some(route.may)
    return caller


async def _body(request: Request) -> bytes:
    """Returns the body, read no further than a message may be long."""
    return await _read(request, MESSAGE_BYTES_MAX)


async def _small_body(request: Request) -> bytes:
    """Returns the body of whoever it may be, so no more than the little they may have to say."""
    return await _read(request, STRANGERS_BYTES_MAX)


async def _read(request: Request, most: int) -> bytes:
    parts, size = [], 0
    async for part in request.stream():
        size += len(part)
        if size > most:
            told = InvalidMessage("read a request", got=f"over {size} bytes", wanted=f"at most {most}")
            raise HTTPException(413, detail=told)
        parts.append(part)
    return b"".join(parts)


# ---------------------------------------------------------------- errors


async def _tell_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, MainspringError)
    caller = getattr(request.state, "caller", None)
    if isinstance(error, NotAllowed) and caller is not None:
        refused = _control(request).people.refused
        told = partial(refused, caller, str(error), action=error.attempted, target=request.url.path)
        await to_thread.run_sync(told)
    return _refuse(error, next((status for kind, status in _STATUSES if isinstance(error, kind)), 500))


async def _tell_invalid(_: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    first = error.errors()[0]
    where = ".".join(str(part) for part in first["loc"])
    told = InvalidInput("read a request", on=where, got=repr(first.get("input"))[:120], wanted=str(first["msg"]))
    return _refuse(told, 400)


async def _tell_http(request: Request, error: Exception) -> Response:
    assert isinstance(error, StarletteHTTPException)
    told: object = error.detail
    if not isinstance(told, MainspringError):
        kind = NotFound if error.status_code == 404 else InvalidInput
        later = f"upgrade the server, which is of release {RELEASE}" if calls_newer(request) else ""
        on = f"{request.method} {request.url.path}"[:200]
        told = kind("serve a request", on=on, got=str(error.detail), next_step=later)
    answer = _refuse(told, error.status_code)
    answer.headers.update(error.headers or {})
    if error.status_code == 405:  # Starlette names the methods of the first route alone.
        own = [route for route in request.app.routes if route.matches(request.scope)[0] is not Match.NONE]
        answer.headers["Allow"] = ", ".join(sorted({method for route in own for method in route.methods}))
    return answer


def _refuse(error: MainspringError, status: int) -> Response:
    headers = {"Retry-After": str(RETRY_AFTER_S)} if isinstance(error, TooManyRequests | Busy) else None
    told = encode(answers.problem_of(error, status, request=request_id()))
    return Response(told, status_code=status, media_type=answers.PROBLEM_TYPE, headers=headers)


async def _tell_fault(request: Request, error: Exception) -> Response:
    """Returns what is told of a fault of ours: no word of it, which whoever runs the server finds in its log."""
    told = MainspringError(
        "serve a request",
        on=f"{request.method} {request.url.path}"[:200],
        got=f"a fault of the server's own: {type(error).__name__}",
        next_step=f"whoever runs the server finds it in server.log, under {request_id()}",
    )
    return _refuse(told, 500)


async def _tell_nobody(_: Request, error: Exception) -> Response:
    """Returns what nobody reads: a caller that dies in the middle of its request is no fault to log."""
    assert isinstance(error, ClientDisconnect)
    return Response(status_code=499)  # nginx's "client closed request"; HTTP itself has no status for it.
