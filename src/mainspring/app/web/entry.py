"""How a browser comes to a token: by a form, or a code that is good once. Its cookie alone keeps the token.

So servers keep nothing of a viewer, and any of them shows the next page. A code is the exception: for minutes it stands
for the token of whoever asked for it, in the memory of the server that was asked.
"""

from __future__ import annotations

import hashlib
import hmac
from collections import OrderedDict
from typing import final
from urllib.parse import parse_qsl, urlsplit

from starlette.requests import Request
from starlette.responses import Response

from mainspring.app.base.calls import PAGES
from mainspring.domain.errors import InvalidInput, NotAllowed, TooManyRequests
from mainspring.domain.ports import Clock, Dice

CODE_S = 600.0  # From a terminal to a browser, with a look at something else in between.
CODES_MAX = 1_000
CODES_OWN = 16  # Of one token: of more the oldest are good no longer.
_CODE_BITS = 128
FORM_BYTES_MAX = 64 << 10
FIELDS_MAX = 100
_CSRF = b"mainspring: forms of pages"


@final
class Codes:
    """Codes that are good once, and for what. Used by the event loop's thread alone."""

    def __init__(self, clock: Clock, dice: Dice) -> None:
        self._clock = clock
        self._dice = dice
        self._known: OrderedDict[bytes, tuple[float, str]] = OrderedDict()

    def make(self, secret: str) -> str:
        """Returns a code for a token.

        Raises:
            TooManyRequests: Too many wait to be used.
        """
        now_s = self._clock.monotonic_s()
        while self._known and next(iter(self._known.values()))[0] <= now_s:
            self._known.popitem(last=False)
        if len(self._known) >= CODES_MAX:
            raise TooManyRequests("make a code for a browser", got=f"{CODES_MAX} that nobody has used yet")
        own = [known for known, (_, whose) in self._known.items() if whose == secret]
        for known in own[: 1 - CODES_OWN]:
            del self._known[known]
        code = f"{self._dice.bits(_CODE_BITS):032x}"
        self._known[_hash(code)] = (now_s + CODE_S, secret)
        return code

    def take(self, code: str) -> str:
        """Returns the token that a code stands for, and forgets it; "" for none."""
        until_s, secret = self._known.pop(_hash(code), (0.0, ""))
        return secret if until_s > self._clock.monotonic_s() else ""


def _hash(text: str) -> bytes:
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).digest()


def _cookie(request: Request) -> str:
    """Returns the name of the cookie: cookies do not know ports, and one machine may have several homes."""
    name = f"mainspring-{request.url.port}" if request.url.port else "mainspring"
    return f"__Host-{name}" if request.url.scheme == "https" else name


def secret_of(request: Request) -> str:
    """Returns the token that a browser shows, "" for none."""
    secret = request.cookies.get(_cookie(request), "")
    return secret if secret.isascii() and secret.isprintable() else ""


def let_in(request: Request, response: Response, secret: str) -> None:
    """Has a browser keep a token until it is closed."""
    secure = request.url.scheme == "https"
    response.set_cookie(_cookie(request), secret, path="/", secure=secure, httponly=True, samesite="strict")


def let_out(request: Request, response: Response) -> None:
    """Has a browser forget its token."""
    secure = request.url.scheme == "https"
    response.delete_cookie(_cookie(request), path="/", secure=secure, httponly=True, samesite="strict")


def csrf_of(secret: str) -> str:
    """Returns what forms show to be ours: nobody who does not know the token can make it."""
    return hmac.new(secret.encode(), _CSRF, hashlib.sha256).hexdigest()


def is_own(request: Request) -> bool:
    """Returns whether a request comes from one of our pages, or from whoever types, as far as the browser says."""
    site = request.headers.get("sec-fetch-site")
    if site is not None:
        return site in ("same-origin", "none")
    origin = request.headers.get("origin")
    return origin is None or urlsplit(origin).netloc == request.headers.get("host", "")


async def form_of(request: Request) -> dict[str, str]:
    """Returns the fields of a form, of each name the last.

    Raises:
        InvalidInput: It is too long.
        NotAllowed: Another site sent it.
    """
    if not is_own(request):
        raise NotAllowed("take a form", got="one that another site sent", next_step=f"go to {PAGES} and do it there")
    body = b""
    async for part in request.stream():
        body += part
        if len(body) > FORM_BYTES_MAX:
            raise InvalidInput("take a form", got=f"over {FORM_BYTES_MAX} bytes")
    try:
        return dict(parse_qsl(body.decode(errors="replace"), max_num_fields=FIELDS_MAX, keep_blank_values=True))
    except ValueError as error:
        raise InvalidInput("take a form", got=str(error), wanted=f"at most {FIELDS_MAX} fields") from error


def require_form(fields: dict[str, str], secret: str) -> None:
    """Returns if a form was made for this token.

    Raises:
        NotAllowed: It was not.
    """
    if not hmac.compare_digest(fields.get("csrf", "").encode(), csrf_of(secret).encode()):
        raise NotAllowed("take a form", got="one of another sign-in", next_step="load the page again, and repeat it")


def own_path(wanted: str) -> str:
    """Returns where to go after signing in: one of our pages, whatever a link says."""
    parts = urlsplit(wanted.replace("\\", "/"))
    ours = not parts.scheme and not parts.netloc and (parts.path == PAGES or parts.path.startswith(f"{PAGES}/"))
    return wanted if ours and wanted.isprintable() and "\\" not in wanted else f"{PAGES}/"
