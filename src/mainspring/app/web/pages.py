"""The application below `/ui`: addresses, signing in, headers that bind a browser, errors that say what to do."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any, final
from urllib.parse import quote, urlencode, urlsplit

from anyio import to_thread
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import FileResponse, HTMLResponse, JSONResponse, PlainTextResponse, RedirectResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from mainspring.app.base.calls import PAGES
from mainspring.app.web import entry, provided
from mainspring.app.web.entry import Codes
from mainspring.app.web.inside import Inside, Refusal, pass_on
from mainspring.app.web.look import Shown, asset, draw
from mainspring.app.web.tables import job_path
from mainspring.app.web.views.acts import act
from mainspring.app.web.views.alerts import view_alerts
from mainspring.app.web.views.changes import view_changes
from mainspring.app.web.views.data import view_data, view_dataset, view_episode, view_version
from mainspring.app.web.views.fleet import node_path, view_fleet
from mainspring.app.web.views.job import view_job
from mainspring.app.web.views.jobs import view_jobs, view_mine
from mainspring.app.web.views.nodes import act_on_node, view_cluster, view_node
from mainspring.app.web.views.queue import view_queue
from mainspring.app.web.views.robots.robots import rollout_path, view_robot, view_robots
from mainspring.app.web.views.robots.rollouts import act_on_rollout, view_rollout, view_rollouts
from mainspring.app.web.views.services import view_service, view_services
from mainspring.app.web.views.teams import view_teams
from mainspring.app.web.visit import View, Visit
from mainspring.domain.answers import LoginOffer
from mainspring.domain.errors import InvalidInput, MainspringError, NotAllowed, NotFound, TooManyRequests
from mainspring.domain.ports import Clock, Dice

VIEWS: dict[str, View] = {
    "/": view_mine,
    "/jobs": view_jobs,
    "/queue": view_queue,
    "/fleet": view_fleet,
    "/clusters/{cluster}": view_cluster,
    "/clusters/{cluster}/nodes/{node}": view_node,
    "/services": view_services,
    "/services/{service}": view_service,
    "/robots": view_robots,
    "/robots/{robot}": view_robot,
    "/rollouts": view_rollouts,
    "/rollouts/{rollout}": view_rollout,
    "/teams": view_teams,
    "/alerts": view_alerts,
    "/changes": view_changes,
    "/data": view_data,
    "/data/{dataset}": view_dataset,
    "/data/{dataset}/{number}": view_version,
    "/data/{dataset}/{number}/{episode}": view_episode,
    "/jobs/{job}": view_job,
}
_FILE_S = 3_600  # How long a browser need not ask for what pages load again; their addresses name the release.
_POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self'",
        "connect-src 'self'",
        "form-action 'self'",
        "frame-ancestors 'none'",
        "base-uri 'none'",
    )
)
_HEADERS = {
    "content-security-policy": _POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=()",
    "cache-control": "no-store",
}
_ONCE = ("done", "export")  # What an address asks for this time alone, and not whenever the page is drawn anew.
_EXPORTS = {"csv": "text/csv", "json": "application/json"}


def create_pages(api: ASGIApp, clock: Clock, dice: Dice) -> Starlette:
    """Returns the application to be mounted at `PAGES`.

    Args:
        api: What serves the API.
        dice: Draws codes.
    """
    pages = _Pages(api, clock, dice)
    views = [Route(path, partial(_viewed, pages, view), name=path) for path, view in VIEWS.items()]
    return Starlette(
        routes=[
            Route("/in", pages.sign_in, methods=["GET", "POST"]),
            Route("/out", pages.sign_out, methods=["POST"]),
            Route("/enter", pages.enter),
            Route("/provider", pages.provider),
            Route("/back", pages.back),
            Route("/code", pages.code, methods=["POST"]),
            Route("/static/{name}", _static),
            Route("/api/{path:path}", _Passed(pages)),
            Route("/jobs/{job}/{what}", pages.act, methods=["POST"]),
            Route("/clusters/{cluster}/nodes/{node}/{what}", pages.act_on_node, methods=["POST"]),
            Route("/rollouts/{rollout}/{what}", pages.act_on_rollout, methods=["POST"]),
            *views,
        ],
        middleware=[Middleware(_Guarded)],
        exception_handlers={
            MainspringError: pages.tell,
            Refusal: pages.tell,
            HTTPException: pages.tell,
            ClientDisconnect: pages.tell,
            Exception: pages.tell,
        },
    )


@dataclass(frozen=True, slots=True)
class _Named:
    """What requests are counted by, as of the API their routes."""

    name: str


_PAGE = _Named("page")


@final
class _Guarded:
    """Adds to every answer what keeps a browser from doing more with it than we mean."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serves one request, which is counted as one of a page."""
        scope["route"] = _PAGE

        async def guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                given = {name for name, _ in message.get("headers", ())}
                own = [
                    (name.encode(), value.encode()) for name, value in _HEADERS.items() if name.encode() not in given
                ]
                message = {**message, "headers": [*message.get("headers", ()), *own]}
            await send(message)

        await self._app(scope, receive, guarded)


@final
class _Pages:
    """What endpoints share. Used by the event loop's thread alone."""

    def __init__(self, api: ASGIApp, clock: Clock, dice: Dice) -> None:
        self.api = api
        self._clock = clock
        self._codes = Codes(clock, dice)

    async def visit(self, request: Request, secret: str) -> Visit:
        """Returns a look by whoever a token stands for.

        Raises:
            Refusal: It stands for nobody, or no longer.
        """
        lab = Inside(self.api, secret, request.client.host if request.client else "")
        person = await lab.whoami()
        return Visit(request=request, lab=lab, person=person, secret=secret, now_s=self._clock.now_s())

    async def sign_in(self, request: Request) -> Response:
        """Shows the form that takes a token, and takes it."""
        wanted = entry.own_path(request.query_params.get("next", ""))
        if request.method == "GET":
            offer = await provided.offered(self._nobody(request))
            words = {"wrong": "", "next": wanted, "provider": _host(offer.issuer) if offer else ""}
            return _drawn(Shown(template="in", title="Sign in", words=words))
        fields = await entry.form_of(request)
        secret = fields.get("token", "").strip()
        try:
            if not secret or not secret.isascii() or not secret.isprintable():
                raise Refusal(NotAllowed("sign in", got="no token"), 401)
            await self.visit(request, secret)
        except Refusal as refusal:
            words = {"wrong": str(refusal.error), "next": wanted, "provider": ""}
            return _drawn(Shown(template="in", title="Sign in", words=words, status=refusal.status))
        return _entered(request, secret, entry.own_path(fields.get("next", "")))

    async def provider(self, request: Request) -> Response:
        """Sends a browser to the lab's provider of identities."""
        return await provided.sent(request, await self._offer(request))

    async def back(self, request: Request) -> Response:
        """Lets in who comes back from there; the page that it shows goes on by itself.

        A cookie that no other site can use is not sent along with where another site leads: so it takes a page of ours.
        """
        try:
            offer = await self._offer(request)
            secret, wanted = await provided.came_back(request, self._nobody(request), offer)
        except (MainspringError, Refusal) as refusal:
            error = refusal.error if isinstance(refusal, Refusal) else refusal
            words = {"wrong": str(error), "next": f"{PAGES}/", "provider": ""}
            answer = _drawn(Shown(template="in", title="Sign in", words=words, status=403))
        else:
            answer = _drawn(Shown(template="back", title="Signed in", words={"next": wanted}))
            answer.headers["refresh"] = f"0; url={wanted}"
            entry.let_in(request, answer, secret)
        provided.forget(request, answer)
        return answer

    async def _offer(self, request: Request) -> LoginOffer:
        offer = await provided.offered(self._nobody(request))
        if offer is None:
            raise NotFound("sign in by a provider of identities", got="a lab that has none", next_step="use a token")
        return offer

    def _nobody(self, request: Request) -> Inside:
        return Inside(self.api, "", request.client.host if request.client else "")

    async def enter(self, request: Request) -> Response:
        """Lets in by a code that is good once: nobody who follows a link of another site."""
        wanted = entry.own_path(request.query_params.get("next", ""))
        if not entry.is_own(request) or request.headers.get("sec-purpose"):
            raise NotAllowed("sign in", got="a link of another site", next_step="type its address, or run ms web again")
        secret = self._codes.take(request.query_params.get("code", ""))
        if not secret:
            wrong = "That code was used, or is too old: ms web makes another."
            words = {"wrong": wrong, "next": wanted, "provider": ""}
            return _drawn(Shown(template="in", title="Sign in", words=words, status=401))
        return _entered(request, secret, wanted)

    async def code(self, request: Request) -> Response:
        """Makes a code for whoever shows a token as programs do, so that their browser can come in."""
        scheme, _, secret = request.headers.get("authorization", "").partition(" ")
        try:
            if scheme.lower() != "bearer":
                raise Refusal(NotAllowed("make a code for a browser", got="no token"), 401)
            await self.visit(request, secret)
            return JSONResponse({"code": self._codes.make(secret), "seconds": entry.CODE_S})
        except Refusal as refusal:
            return JSONResponse({"detail": str(refusal.error)}, refusal.status)
        except TooManyRequests as error:
            return JSONResponse({"detail": str(error)}, 429)

    async def sign_out(self, request: Request) -> Response:
        """Has the browser forget its token, which stays good."""
        entry.require_form(await entry.form_of(request), entry.secret_of(request))
        answer = RedirectResponse(f"{PAGES}/in", 303)
        entry.let_out(request, answer)
        return answer

    async def act(self, request: Request) -> Response:
        """Does something to a job, then shows it."""
        visit, fields = await self._asked(request)
        job, what = request.path_params["job"], request.path_params["what"]
        await act(visit.lab, job, what, fields)
        return RedirectResponse(f"{job_path(job)}?{urlencode({'done': what})}", 303)

    async def act_on_node(self, request: Request) -> Response:
        """Does something to a node, then shows it."""
        visit, fields = await self._asked(request)
        cluster, node, what = (request.path_params[name] for name in ("cluster", "node", "what"))
        await act_on_node(visit.lab, cluster, node, what, fields)
        return RedirectResponse(node_path(cluster, node), 303)

    async def act_on_rollout(self, request: Request) -> Response:
        """Has a rollout do something, then shows it."""
        visit, fields = await self._asked(request)
        rollout, what = request.path_params["rollout"], request.path_params["what"]
        await act_on_rollout(visit.lab, rollout, what, fields)
        return RedirectResponse(rollout_path(int(rollout), done=what), 303)

    async def _asked(self, request: Request) -> tuple[Visit, dict[str, str]]:
        """Returns who sent a form of ours, and its fields."""
        secret = entry.secret_of(request)
        fields = await entry.form_of(request)
        entry.require_form(fields, secret)
        return await self.visit(request, secret), fields

    async def tell(self, request: Request, error: Exception) -> Response:
        """Shows an error and what to do about it; who is nobody signs in first."""
        if isinstance(error, ClientDisconnect):
            return Response(status_code=499)  # Nobody reads it.
        if isinstance(error, Refusal):
            told, status = error.error, error.status
        elif isinstance(error, MainspringError):
            told, status = error, 403 if isinstance(error, NotAllowed) else 400
        elif isinstance(error, HTTPException):
            kind = NotFound if error.status_code == 404 else InvalidInput
            told = kind("show a page", on=request.url.path[:200], got=str(error.detail), next_step=f"go to {PAGES}/")
            status = error.status_code
        else:
            kind_of = type(error).__name__
            told = MainspringError(
                "show a page",
                on=request.url.path[:200],
                got=f"a fault of the server's own: {kind_of}",
                next_step="whoever runs the server finds it in server.log",
            )
            status = 500
        if status == 401:
            path = request.url.path + (f"?{request.url.query}" if request.url.query else "")
            answer: Response = RedirectResponse(f"{PAGES}/in?next={quote(path, safe='')}", 303)
            if entry.secret_of(request):
                entry.let_out(request, answer)
            return answer
        return _drawn(Shown(template="error", title="Error", words={"error": told}, status=status))


@final
class _Passed:
    """Reads of the API by a browser, streams among them, by the token in its cookie."""

    def __init__(self, pages: _Pages) -> None:
        self._pages = pages

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope)
        secret, path = entry.secret_of(request), f"/{scope['path_params']['path']}"
        if request.method != "GET" or not entry.is_own(request) or not path.startswith("/v1/"):
            answer = PlainTextResponse("Only reads of /v1/, and from pages of this server.", 403)
            await answer(scope, receive, send)
            return
        await pass_on(self._pages.api, scope, receive, send, path=path, secret=secret)


async def _viewed(pages: _Pages, view: View, request: Request) -> Response:
    visit = await pages.visit(request, entry.secret_of(request))
    shown = await view(visit)
    name, dot, form = request.query_params.get("export", "").rpartition(".")
    if dot:
        grid = shown.grids.get(name)
        if grid is None or form not in _EXPORTS:
            raise NotFound("take a table out", got=repr(f"{name}.{form}"[:80]), wanted=", ".join(shown.grids))
        named = {"content-disposition": f'attachment; filename="{grid.name}.{form}"'}
        return Response(grid.as_csv if form == "csv" else grid.as_json, media_type=_EXPORTS[form], headers=named)
    asked = urlencode([(name, value) for name, value in request.query_params.multi_items() if name not in _ONCE])
    here = request.url.path + (f"?{asked}" if asked else "")
    drawn = partial(
        _drawn,
        shown,
        person=visit.person,
        csrf=entry.csrf_of(visit.secret),
        now_s=visit.now_s,
        here=here,
        path=request.url.path,
    )
    return await to_thread.run_sync(drawn)


def _host(url: str) -> str:
    return urlsplit(url).netloc


def _entered(request: Request, secret: str, wanted: str) -> Response:
    answer = RedirectResponse(wanted, 303)
    entry.let_in(request, answer, secret)
    return answer


def _drawn(shown: Shown, **given: Any) -> Response:
    nobody = {"pages": tuple(VIEWS), "person": None, "csrf": "", "now_s": 0.0, "here": f"{PAGES}/", "path": ""}
    return HTMLResponse(draw(shown, **(nobody | given)), shown.status)


async def _static(request: Request) -> Response:
    found = asset(request.path_params["name"])
    if found is None:
        raise HTTPException(404)
    path, kind = found
    return FileResponse(path, media_type=kind, headers={"cache-control": f"max-age={_FILE_S}"})
