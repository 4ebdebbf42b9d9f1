"""`ms login`, `ms logout`, `ms whoami`: which lab this home works with, and as whom."""

from __future__ import annotations

import os
import sys
import time
import webbrowser
from typing import TYPE_CHECKING, Annotated

import typer

from mainspring.app import render
from mainspring.app.base.home import LoginRecord
from mainspring.app.cli.arguments import Json, LabContext
from mainspring.domain.answers import Login, LoginOffer
from mainspring.domain.errors import InvalidInput, NotFound
from mainspring.domain.wire.addresses import addresses_of

if TYPE_CHECKING:
    from mainspring.app.base.client import Client

_TOKEN_BYTES_MAX = 4_096


def login(
    context: LabContext,
    urls: Annotated[
        str,
        typer.Argument(help="Where the lab's server is; of several, URL,URL: any of them is called.", metavar="URL"),
    ],
    by_token: Annotated[
        bool, typer.Option("--token", help="By a token, though the lab has a provider of identities.")
    ] = False,
    device: Annotated[
        bool | None,
        typer.Option(
            "--device/--browser",
            help="Log in on any device that has a browser, or in this machine's.",
            show_default="--browser where there is a display",
        ),
    ] = None,
    team: Annotated[
        str, typer.Option(help="The team to have a role in, of several that the provider's groups give.")
    ] = "",
    as_json: Json = False,
) -> None:
    """Work with a lab elsewhere: by its provider of identities, or by a token, which is asked for or read from standard
    input. What is got is kept for you alone, and that of a provider is renewed by itself.
    """
    from mainspring.app.base.calls import require_private
    from mainspring.app.base.client import Client  # Help needs none.

    lab, addresses = context.obj, addresses_of(urls)
    for address in addresses:
        require_private(address, insecure=lab.insecure)
    url = ",".join(addresses)
    token = "" if sys.stdin.isatty() else sys.stdin.read(_TOKEN_BYTES_MAX).strip()
    with Client(url, "") as client:
        try:
            offer = None if token or by_token else client.login_offer()
        except NotFound:  # As servers say that have no provider, or are older than this.
            offer = None
        record = None if offer is None else _by_provider(client, url, offer, device=device, team=team)
    if record is None:
        if not token and sys.stdin.isatty():
            token = typer.prompt("Token", hide_input=True, err=True).strip()
        if not token:
            raise InvalidInput("log in", on=url, got="no token", next_step="ask an admin of your team: ms token new")
        record = LoginRecord(url=url, token=token)
    with Client(url, record.token, insecure=lab.insecure) as client:
        person = client.whoami()
    lab.home.write_login(record)
    told = f"{url} knows you as {person.holder or 'somebody'}, {person.role.value} of team {person.team}."
    render.show(person, as_json=as_json, look=lambda: told)


def _by_provider(client: Client, url: str, offer: LoginOffer, *, device: bool | None, team: str) -> LoginRecord:
    from mainspring.app.base import oidc, renewal

    display = has_display()
    if device or (device is None and not display and oidc.has_device_flow(offer)):
        granted = oidc.by_device(offer, _show_code)
    else:
        granted = oidc.by_browser(offer, _open if display else _show)
    made = client.log_in(Login(id_token=granted.id_token, nonce=granted.nonce, team=team))
    return renewal.record_of(url, made, offer, granted.refresh_token, team=team)


def has_display() -> bool:
    """Returns whether a browser that is opened here is seen by whoever types."""
    names = ("DISPLAY", "WAYLAND_DISPLAY")
    return "SSH_CONNECTION" not in os.environ and (sys.platform == "darwin" or any(map(os.environ.get, names)))


def _show(where: str) -> None:
    render.ERRORS.print(f"Log in here:\n{where}", soft_wrap=True, markup=False, highlight=False)


def _show_code(where: str, code: str) -> None:
    render.ERRORS.print(
        f"Log in on any device, and see that it shows {code}:\n{where}", soft_wrap=True, markup=False, highlight=False
    )


def _open(where: str) -> None:
    _show(where)
    webbrowser.open(where)


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
