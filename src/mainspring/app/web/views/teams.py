"""Teams: what each is promised, holds, borrows, spends, waits for, and wastes."""

from __future__ import annotations

from collections.abc import Mapping
from urllib.parse import urlencode

from mainspring.app.base.calls import PAGES
from mainspring.app.render.plans import chips_text
from mainspring.app.web import tables
from mainspring.app.web.look import Shown
from mainspring.app.web.tables import Cell, Grid, Heading
from mainspring.app.web.visit import Visit
from mainspring.domain.answers import TeamView
from mainspring.domain.goodput import Goodput
from mainspring.domain.ids import ChipName

_DAYS = 7


async def view_teams(visit: Visit) -> Shown:
    """Returns the tenant tree with what each team has and does."""
    since = await visit.newest()
    teams = await visit.lab.teams()
    report = await visit.lab.goodput_report(since_s=visit.ago_s(_DAYS * 86_400.0))
    tree = _tree(teams)
    rows = [_row(view, depth, report.teams.get(view.team.name)) for depth, view in tree]
    held = sum(sum(view.use.chips.values()) for view in teams if view.use and view.team.parent is None)
    headings = (
        Heading(key="team", title="Team"),
        Heading(key="holds", title="Holds"),
        Heading(key="guarantee", title="Promised", spare=True),
        Heading(key="borrowed", title="Borrowed"),
        Heading(key="at_most", title="At most", right=True, spare=True),
        Heading(key="weight", title="Weight", right=True, spare=True),
        Heading(key="spent", title="Spent", right=True),
        Heading(key="budget", title="Of its budget"),
        Heading(key="jobs", title="Jobs", right=True, spare=True),
        Heading(key="goodput", title=f"Goodput, {_DAYS} d"),
        Heading(key="wasted_node_h", title="Wasted node-hours", right=True),
        Heading(key="hold", title="Held", wide=True, spare=True),
    )
    grid = Grid(name="teams", title="Teams", headings=headings, rows=rows, empty="No team was placed yet: ms team set.")
    words = {"count": len(teams), "held": held, "unplanned": all(view.use is None for view in teams)}
    return Shown(
        template="teams",
        title="Teams",
        words=words,
        grids={"teams": grid},
        follow="/v1/events",
        since=since,
        every_s=60,
    )


def _tree(teams: tuple[TeamView, ...]) -> list[tuple[int, TeamView]]:
    """Returns each team with its depth, those above before those below."""
    known = {view.team.name for view in teams}
    below: dict[str, list[TeamView]] = {}
    for view in teams:
        parent = view.team.parent
        below.setdefault(parent if parent in known else "", []).append(view)
    found: list[tuple[int, TeamView]] = []

    def walk(name: str, depth: int) -> None:
        for view in below.pop(name, []):
            found.append((depth, view))
            walk(view.team.name, depth + 1)

    walk("", 0)
    return found


def _row(view: TeamView, depth: int, told: Goodput | None) -> tuple[Cell, ...]:
    team, use = view.team, view.use
    held = dict(use.chips) if use else {}
    borrowed = {chip: count - team.guarantee.get(chip, 0.0) for chip, count in held.items()}
    over = {chip: count for chip, count in borrowed.items() if count > 0}
    lost_h = (told.allocated_s * (1.0 - told.ratio) / 3_600.0) if told and told.ratio is not None else None
    share = use.dollars / team.dollars_max if use and team.dollars_max else None
    return (
        Cell(text=f"{'· ' * depth}{team.name}", value=team.name, link=f"{PAGES}/jobs?{urlencode({'team': team.name})}"),
        _chips(held, none="nothing" if use else "-"),
        _chips(team.guarantee, none="-"),
        _chips(over, none="nothing") if team.guarantee or over else tables.text("-"),
        tables.number(team.chips_max),
        tables.number(team.weight),
        tables.dollars(use.dollars if use else None),
        tables.percent(min(1.0, share)) if share is not None else tables.text("-"),
        tables.number(view.waiting.jobs if view.waiting else None, ",d"),
        tables.percent(told.ratio if told else None),
        tables.number(round(lost_h, 1) if lost_h is not None else None),
        tables.text(str(view.hold) if view.hold else "-"),
    )


def _chips(counts: Mapping[ChipName, float], *, none: str) -> Cell:
    return Cell(text=chips_text(counts, none=none), value=sum(counts.values()))
