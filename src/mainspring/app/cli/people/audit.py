"""`ms audit`: who did what, from where, and what was refused."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from mainspring.app import render
from mainspring.app.cli.arguments import Json, LabContext
from mainspring.app.render.terminal import json_text
from mainspring.domain.routes import LIST_MAX


def audit(
    context: LabContext,
    limit: Annotated[int, typer.Option(min=1, max=LIST_MAX, help="How many of the newest lines to show.")] = 50,
    since: Annotated[
        int | None, typer.Option(min=0, help="Every line after this number, oldest first, instead of the newest.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Show the audit log of your teams: the newest lines; with --since and --json, export it, a line each."""
    lab = context.obj
    lines = lab.audit(limit=limit, newest=True) if since is None else lab.audit(since=since)
    while lines:
        if as_json:
            sys.stdout.writelines(json_text(line) + "\n" for line in lines)
        else:
            render.show(lines, look=lambda shown=lines: render.audit_table(shown))  # type: ignore[misc]
        lines = () if since is None else lab.audit(since=lines[-1].sequence)
