"""The server's entry program with its pages: `python -m mainspring server`, as `app.server.server` says it."""

from __future__ import annotations

import sys

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from mainspring.app.base.calls import PAGES
from mainspring.app.base.system import SystemClock, SystemDice
from mainspring.app.server.server import main
from mainspring.app.web.pages import create_pages
from mainspring.control.server import Server


def add_pages(server: Server) -> None:
    """Has a server show pages beside its API."""
    server.api.mount(PAGES, create_pages(server.api, SystemClock(), SystemDice()))
    server.api.add_route("/", _to_pages, include_in_schema=False)


async def _to_pages(_: Request) -> Response:
    return RedirectResponse(f"{PAGES}/", 307)


if __name__ == "__main__":
    sys.exit(main(add_pages))
