"""Signing in by the lab's provider of identities: the browser goes there and comes back with a code (RFC 6749, 7636).

What a log-in is known by lies in a cookie of this browser for minutes, so that any server can take what comes back, and
nobody can be signed in as somebody else by a link.
"""

from __future__ import annotations

import secrets

from anyio import to_thread
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from mainspring.app.base.calls import PAGES
from mainspring.app.base.oidc import LOGIN_S_MAX, LoginAsked, address_to_log_in, taken
from mainspring.app.web.entry import own_path
from mainspring.app.web.inside import NOT_FOUND, Inside, Refusal
from mainspring.domain.answers import Login, LoginOffer
from mainspring.domain.errors import NotAllowed

BACK = f"{PAGES}/back"
_COOKIE = "mainspring-login"
_FIELDS = 4  # State, nonce, verifier, where to go: none of the first three has a dot.


async def offered(lab: Inside) -> LoginOffer | None:
    """Returns how people log in by the lab's provider of identities, None where it has none."""
    try:
        return await lab.login_offer()
    except Refusal as refusal:
        if refusal.status == NOT_FOUND:
            return None
        raise


async def sent(request: Request, offer: LoginOffer) -> Response:
    """Sends a browser to the provider.

    Raises:
        Unavailable: The provider does not answer.
    """
    asked, wanted = LoginAsked.drawn(), own_path(request.query_params.get("next", ""))
    where = await to_thread.run_sync(address_to_log_in, offer, asked, _back(request))
    answer = RedirectResponse(where, 303)
    answer.set_cookie(
        _cookie(request),
        ".".join((asked.state, asked.nonce, asked.verifier, wanted)),
        max_age=round(LOGIN_S_MAX),
        path=BACK,
        secure=request.url.scheme == "https",
        httponly=True,
        samesite="lax",  # The provider sends the browser back: that is no request of our own pages.
    )
    return answer


async def came_back(request: Request, lab: Inside, offer: LoginOffer) -> tuple[str, str]:
    """Returns the token of somebody who comes from the provider, and where they wanted to go.

    Raises:
        NotAllowed: This browser did not ask for it, or the provider did not let them in.
        Refusal: They are nobody here.
        Unavailable: The provider does not answer.
    """
    kept = request.cookies.get(_cookie(request), "").split(".", _FIELDS - 1)
    given = dict(request.query_params)
    if len(kept) != _FIELDS or not secrets.compare_digest(kept[0].encode(), given.get("state", "").encode()):
        raise NotAllowed(
            "sign in", got="an answer that this browser did not ask for, or too late", next_step=f"go to {PAGES}/in"
        )
    asked = LoginAsked(state=kept[0], nonce=kept[1], verifier=kept[2])
    granted = await to_thread.run_sync(taken, offer, asked, _back(request), given)
    made = await lab.log_in(Login(id_token=granted.id_token, nonce=granted.nonce))
    return made.secret, own_path(kept[3])


def forget(request: Request, answer: Response) -> None:
    """Has a browser forget what a log-in was known by: it is good once."""
    answer.delete_cookie(_cookie(request), path=BACK, httponly=True, samesite="lax")


def _back(request: Request) -> str:
    return f"{request.url.scheme}://{request.url.netloc}{BACK}"


def _cookie(request: Request) -> str:
    return f"{_COOKIE}-{request.url.port}" if request.url.port else _COOKIE
