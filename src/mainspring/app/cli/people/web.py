"""`ms web`: the lab's pages in a browser, signed in."""

from __future__ import annotations

import webbrowser
from typing import Annotated
from urllib.parse import quote

import typer

from mainspring.app import render
from mainspring.app.cli.arguments import Json, LabContext
from mainspring.app.cli.people.login import has_display


def web(
    context: LabContext,
    job: Annotated[str, typer.Argument(help="Id or name of a job whose page to show.", metavar="JOB")] = "",
    show: Annotated[bool, typer.Option("--print", help="Only print the address, also where a browser is.")] = False,
    as_json: Json = False,
) -> None:
    """Show the lab in a browser, signed in as whoever you are here: the address is good once, for ten minutes."""
    address = context.obj.page(f"/jobs/{quote(job, safe='')}" if job else "/")
    if has_display() and not show and not as_json:
        webbrowser.open(address)
    render.show({"url": address}, as_json=as_json, look=lambda: address)
