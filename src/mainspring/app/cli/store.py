"""`ms store`: the database behind this home's server, while that is down."""

from __future__ import annotations

import time
from typing import Annotated

import typer

from mainspring.app import render
from mainspring.app.cli.arguments import Json, LabContext

app = typer.Typer(no_args_is_help=True, pretty_exceptions_enable=False, rich_markup_mode="rich")


@app.command()
def show(context: LabContext, as_json: Json = False) -> None:
    """Show where the store is, and of which revision its tables are."""
    from mainspring.control.store.store import look_at

    home = context.obj.home
    seen = look_at(home.database_url(home.config()))
    words = f"{seen.kind}, revision {seen.revision or 'none'}; this release reads {seen.newest}"
    render.show(seen, as_json=as_json, look=lambda: words)


@app.command()
def down(
    context: LabContext,
    revision: Annotated[str, typer.Argument(help="Of the tables that the older release reads.")],
    no_backup: Annotated[bool, typer.Option("--no-backup", help="Make no copy of the store before.")] = False,
    as_json: Json = False,
) -> None:
    """Bring the store's tables back for an older release; what only newer ones keep is lost but for the copy."""
    from mainspring.control.store.databases.backups import Backups
    from mainspring.control.store.store import bring_back, look_at

    home, now_s = context.obj.home, time.time()
    url = home.database_url(home.config())
    bring_back(url, revision, None if no_backup else Backups(folder=home.backups, now_s=now_s), now_s=now_s)
    render.show(look_at(url), as_json=as_json, look=lambda: f"The store is of revision {revision}.")
