"""`ms goodput`: what allocated time went into."""

from __future__ import annotations

import time
from typing import Annotated

import typer

from mainspring.app import render
from mainspring.app.base.specs import DURATION_FORM, duration_from
from mainspring.app.cli.arguments import Json, LabContext
from mainspring.domain.errors import InvalidInput
from mainspring.domain.ids import ClusterName, TeamName


def goodput(
    context: LabContext,
    name: Annotated[str, typer.Argument(help="Id or name of a job; everything when left out.", metavar="JOB")] = "",
    team: Annotated[str, typer.Option(help="Only of this team and those below it.")] = "",
    cluster: Annotated[str, typer.Option(help="Only on this cluster.")] = "",
    since: Annotated[str, typer.Option(help=f"Only attempts granted within: {DURATION_FORM}.")] = "",
    as_json: Json = False,
) -> None:
    """Show what the time of nodes went into: a part for each use, which add up to what was allocated."""
    given = [flag for flag, value in {"--team": team, "--cluster": cluster, "--since": since}.items() if value]
    if name:
        if given:
            raise InvalidInput(
                "tell goodput", on=given[0], got=f"a job, {name!r}, beside it", wanted="one or the other"
            )
        told = context.obj.goodput(name)
        render.show(told, as_json=as_json, look=lambda: render.goodput_table(told, title=name))
        return
    report = context.obj.goodput_report(
        team=TeamName(team),
        cluster=ClusterName(cluster),
        since_s=max(0.0, time.time() - duration_from(since)) if since else 0.0,
    )
    title = " on ".join(part for part in (f"team {team}" if team else "", cluster) if part) or "everything"
    render.show(report, as_json=as_json, look=lambda: render.report_panel(report, title=title))
