"""`ms plan`: the last plan, and what changes would make of it."""

from __future__ import annotations

import dataclasses
import time
from pathlib import Path
from typing import Annotated

import typer

from mainspring.app import render, sdk
from mainspring.app.base.specs import chips_from, limit_from, read_spec
from mainspring.app.cli.arguments import Json, LabContext
from mainspring.domain import answers
from mainspring.domain.errors import InvalidSpec, NotFound, nearest
from mainspring.domain.ids import ClusterName, TeamName
from mainspring.domain.job import LAB
from mainspring.domain.routes import LIST_MAX
from mainspring.domain.team import Team

FORMS = {
    "add-nodes": "CLUSTER:COUNT[:CHIP]",
    "remove-cluster": "CLUSTER",
    "quota": "TEAM:chips=COUNT",
    "guarantee": "TEAM:CHIP=COUNT",
    "submit": "SPEC.yaml",
}


def plan(
    context: LabContext,
    changes: Annotated[
        list[str] | None,
        typer.Option(
            "--if",
            metavar="CHANGE",
            help="Try a change on a copy; repeat for more: "
            + "; ".join(f"{name}={form}" for name, form in FORMS.items()),
        ),
    ] = None,
    last: Annotated[int, typer.Option(min=0, max=LIST_MAX, help="List so many plans that changed something.")] = 0,
    as_json: Json = False,
) -> None:
    """Show the last plan: what starts, ends and waits, and until when. With --if: what changes would make of it."""
    lab = context.obj
    if last:
        lines = lab.plans(limit=last)
        render.show(lines, as_json=as_json, look=lambda: render.plans_table(lines, now_s=time.time()))
        return
    if not changes:
        view = lab.plan()
        render.show(view, as_json=as_json, look=lambda: render.plan_panel(view, now_s=time.time()))
        return
    answer = lab.what_if(read_changes(lab, changes))
    render.show(answer, as_json=as_json, look=lambda: render.what_if_panel(answer, now_s=time.time()))


def read_changes(lab: sdk.Lab, texts: list[str]) -> answers.WhatIf:
    """Returns the changes that were typed.

    Args:
        lab: Knows the teams as they are.
        texts: One or several of `FORMS`.

    Raises:
        InvalidSpec: One does not read so.
        NotFound: There is no such team or file.
    """
    nodes: list[answers.AddNodes] = []
    gone: list[ClusterName] = []
    submits: list[answers.Submit] = []
    before: dict[TeamName, Team] = {}
    teams: dict[TeamName, Team] = {}
    for text in texts:
        kind, _, rest = text.partition("=")
        match kind:
            case "add-nodes":
                nodes.append(_nodes(text, rest))
            case "remove-cluster":
                gone.append(ClusterName(rest))
            case "quota" | "guarantee":
                if not teams:
                    before = {view.team.name: view.team for view in lab.teams()}
                    teams = dict(before)
                team = _team(text, kind, rest, teams)
                teams[team.name] = team
            case "submit":
                submits.append(answers.Submit(spec=read_spec(Path(rest))))
            case _:
                raise InvalidSpec("read a change", on="--if", got=repr(text), wanted=nearest(kind, FORMS))
    return answers.WhatIf(
        add_nodes=tuple(nodes),
        remove_clusters=tuple(gone),
        teams=tuple(team for name, team in teams.items() if team != before[name]),
        submits=tuple(submits),
    )


def _nodes(text: str, rest: str) -> answers.AddNodes:
    cluster, _, more = rest.partition(":")
    count, _, chip = more.partition(":")
    if not cluster or not count.isdecimal():
        raise InvalidSpec("read a change", on="--if", got=repr(text), wanted=f"add-nodes={FORMS['add-nodes']}")
    return answers.AddNodes(cluster=ClusterName(cluster), nodes=int(count), chip=chip)


def _team(text: str, kind: str, rest: str, teams: dict[TeamName, Team]) -> Team:
    name, colon, counts = rest.partition(":")
    if not name or not colon:
        raise InvalidSpec("read a change", on="--if", got=repr(text), wanted=f"{kind}={FORMS[kind]}")
    team = teams.get(TeamName(name))
    if team is None:
        raise NotFound("try a change", on=f"team {name!r}", wanted=nearest(name, [LAB, *teams]))
    if kind == "guarantee":
        return dataclasses.replace(team, guarantee={**team.guarantee, **chips_from(counts.split(","))})
    what, _, limit = counts.partition("=")
    if what != "chips":
        raise InvalidSpec("read a change", on="--if", got=repr(text), wanted=f"quota={FORMS['quota']}")
    return dataclasses.replace(team, chips_max=limit_from(limit))
