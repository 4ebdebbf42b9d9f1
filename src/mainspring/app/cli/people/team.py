"""`ms team`: the tenant tree: guarantees, limits, budgets, and what is in use."""

from __future__ import annotations

import math
from typing import Annotated

import typer

from mainspring.app import render
from mainspring.app.base.specs import NONE_WORD, chips_from, limit_from
from mainspring.app.cli.arguments import Json, LabContext
from mainspring.app.sdk.lab import Lab
from mainspring.domain import answers
from mainspring.domain.team import NoticeForm, TeamOrder

app = typer.Typer()
Counts = list[str] | None
Told = Annotated[
    str | None,
    typer.Option(help="Where it is told of its jobs; `none` for nowhere.", metavar="https://...|mailto:...|none"),
]
Form = Annotated[NoticeForm | None, typer.Option(help="What notices are written as.", show_default="by the address")]


@app.command("ls")
def list_command(context: LabContext, as_json: Json = False) -> None:
    """List the tenant tree, with what each team and those below it hold and have spent."""
    teams = context.obj.teams()
    render.show(teams, as_json=as_json, look=lambda: render.teams_table(teams))


@app.command("set")
def set_command(
    context: LabContext,
    name: Annotated[str, typer.Argument(help="The team.", metavar="TEAM")],
    under: Annotated[
        str | None, typer.Option(help="The team above it; `none` for the top.", show_default="lab")
    ] = None,
    chips_max: Annotated[
        str | None, typer.Option(help="Most chips in use at once, teams below included.", metavar="COUNT|none")
    ] = None,
    guarantee: Annotated[
        Counts, typer.Option(help="Chips it can always have; repeat for more types.", metavar="CHIP=COUNT|none")
    ] = None,
    borrow_max: Annotated[
        Counts, typer.Option(help="Most chips beyond its guarantee; any, when not named.", metavar="CHIP=COUNT|none")
    ] = None,
    lend_max: Annotated[
        Counts,
        typer.Option(
            help="Most of its guarantee others may use meanwhile; all, when not named.", metavar="CHIP=COUNT|none"
        ),
    ] = None,
    weight: Annotated[float | None, typer.Option(help="Its part of what is borrowed, beside its siblings.")] = None,
    dollars_max: Annotated[
        str | None, typer.Option(help="Most dollars in the budget's window.", metavar="DOLLARS|none")
    ] = None,
    budget_days: Annotated[float | None, typer.Option(help="Length of the budget's sliding window.")] = None,
    order: Annotated[
        TeamOrder | None, typer.Option(help="Order of its own jobs: oldest first, or least chip-time had first.")
    ] = None,
    jobs_max: Annotated[
        str | None, typer.Option(help="Most jobs that have not ended, teams below included.", metavar="COUNT|none")
    ] = None,
    bytes_max: Annotated[
        str | None, typer.Option(help="Most bytes of recordings that are in no dataset yet.", metavar="BYTES|none")
    ] = None,
    notify: Told = None,
    notify_form: Form = None,
    open_: Annotated[
        bool | None, typer.Option("--open/--closed", help="Whether people of other teams may read its jobs.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Place a team in the tenant tree, or change it; what is left out, a chip type too, stays as it was."""
    fields: dict[str, object] = {}
    if under is not None:
        fields["parent"] = None if under == NONE_WORD else under
    for field, limit in (("chips_max", chips_max), ("dollars_max", dollars_max)):
        if limit is not None:
            fields[field] = limit_from(limit)
    for field, limit in (("jobs_max", jobs_max), ("bytes_max", bytes_max)):
        if limit is not None:
            most = limit_from(limit)
            fields[field] = None if most is None else math.floor(most)
    known = next((view.team for view in context.obj.teams() if view.team.name == name), None)
    for field, counts in (("guarantee", guarantee), ("borrow_max", borrow_max), ("lend_max", lend_max)):
        if counts:
            kept = {} if known is None or NONE_WORD in counts else getattr(known, field)
            fields[field] = {**kept, **chips_from(counts)}
    plain = {"weight": weight, "budget_days": budget_days, "order": order and order.value, "open": open_}
    fields |= {field: value for field, value in plain.items() if value is not None}
    if notify is not None and not fields:
        place = _place(context.obj, name, notify, notify_form)
        render.show(place, as_json=as_json, look=lambda: _told_of(place, notify))
        return
    team = context.obj.set_team(name, **fields)
    if notify is not None:
        render.ERRORS.print(_told_of(_place(context.obj, name, notify, notify_form), notify))
    render.show(team, as_json=as_json, look=lambda: render.teams_table((answers.TeamView(team=team),)))


def _place(lab: Lab, name: str, notify: str, form: NoticeForm | None) -> answers.NoticePlace:
    if notify == NONE_WORD:
        return lab.remove_notices(name)
    return lab.set_notices(name, answers.NewNoticePlace(url=notify, form=form))


def _told_of(place: answers.NoticePlace, notify: str) -> str:
    word = "no longer told" if notify == NONE_WORD else "told"
    return f"Team {place.team} is {word} of its jobs at {place.host} ({place.form.value})."
