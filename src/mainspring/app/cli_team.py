"""`ms team`: the tenant tree and its quotas."""

from __future__ import annotations

from typing import Annotated

import typer

from mainspring.app.output import show, teams_table
from mainspring.domain.job import LAB

app = typer.Typer(help="List teams and set their quotas.", no_args_is_help=True)
Json = Annotated[bool, typer.Option("--json", help="Print JSON for machines.")]


@app.command("ls")
def list_command(context: typer.Context, as_json: Json = False) -> None:
    """List the tenant tree."""
    teams = context.obj.teams()
    show(teams, as_json=as_json, look=lambda: teams_table(teams))


@app.command("set")
def set_command(
    context: typer.Context,
    name: Annotated[str, typer.Argument(help="The team.", metavar="TEAM")],
    under: Annotated[str, typer.Option(help="The team above it.")] = LAB,
    chips_max: Annotated[
        float | None,
        typer.Option(min=0, help="Most chips in use at once, teams below included; none when left out."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Place a team in the tenant tree, or change its quota."""
    team = context.obj.set_team(name, parent=under, chips_max=chips_max)
    show(team, as_json=as_json, look=lambda: teams_table((team,)))
