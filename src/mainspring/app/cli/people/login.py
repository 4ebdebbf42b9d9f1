"""`ms login`, `ms logout`, `ms whoami`: which lab this home works with, and as whom."""

from __future__ import annotations

import sys
import time
from typing import Annotated

import typer

from mainspring.app import render
from mainspring.app.base.home import LoginRecord
from mainspring.app.cli.arguments import Json, LabContext
from mainspring.domain.errors import InvalidInput

_TOKEN_BYTES_MAX = 4_096


def login(
    context: LabContext,
    url: Annotated[str, typer.Argument(help="Where the lab's server is.", metavar="URL")],
    as_json: Json = False,
) -> None:
    """Work with a lab elsewhere, by a token: asked for, or read from standard input. It is kept for you alone."""
    from mainspring.app.base.client import Client  # Help needs none.

    asked = typer.prompt("Token", hide_input=True, err=True) if sys.stdin.isatty() else sys.stdin.read(_TOKEN_BYTES_MAX)
    token, lab = asked.strip(), context.obj
    if not token:
        raise InvalidInput("log in", on=url, got="no token", next_step="ask an admin of your team: ms token new")
    with Client(url.rstrip("/"), token, insecure=lab.insecure) as client:
        person = client.whoami()
    lab.home.write_login(LoginRecord(url=url.rstrip("/"), token=token))
    told = f"{url} knows you as {person.holder or 'somebody'}, {person.role.value} of team {person.team}."
    render.show(person, as_json=as_json, look=lambda: told)


def logout(context: LabContext, as_json: Json = False) -> None:
    """Forget the lab elsewhere; the token stays good until it ends or is removed."""
    gone = context.obj.home.forget_login()
    told = f"Logged out of {gone.url}." if gone else "Logged in nowhere."
    render.show({"url": gone.url if gone else ""}, as_json=as_json, look=lambda: told)


def whoami(context: LabContext, as_json: Json = False) -> None:
    """Say who you are to the server, and until when."""
    person = context.obj.whoami()
    ends = "" if person.expires_s is None else f", for {render.ago(max(0.0, person.expires_s - time.time()))} more"
    waits = ""
    if (waiting := person.waiting) is not None:
        waits = f" Of {waiting.jobs_max} jobs that may be waiting or running {waiting.jobs} are."
    told = f"{person.holder or 'Nobody knows who'}: {person.role.value} of team {person.team}{ends}.{waits}"
    render.show(person, as_json=as_json, look=lambda: told)
