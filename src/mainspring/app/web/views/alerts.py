"""Alerts and SLOs: how the server is now, what the lab promises, and who is told when a promise is not kept."""

from __future__ import annotations

from collections.abc import Sequence

from mainspring.app.render.tables import ago
from mainspring.app.web import tables
from mainspring.app.web.charts import SCALE, Lane, Strip
from mainspring.app.web.look import Shown
from mainspring.app.web.tables import Cell, Grid, Heading
from mainspring.app.web.visit import Visit
from mainspring.control.service.alerts.rules import alerts
from mainspring.control.service.alerts.slos import SLOS
from mainspring.control.service.alerts.values import BURNS, duration
from mainspring.domain.answers import PromiseView


async def view_alerts(visit: Visit) -> Shown:
    """Returns the server's health, every promise with what became of it, and every alert."""
    health = await visit.lab.health()
    kept = await visit.lab.promises()
    checks = Grid(
        name="checks",
        title="How the server is",
        headings=(
            Heading(key="what", title="What"),
            Heading(key="status", title="Status"),
            Heading(key="words", title="What is the matter", wide=True),
        ),
        rows=[
            (tables.text(one.name), tables.state(one.status.value), tables.text(one.words or "-"))
            for one in health.checks
        ],
    )
    slos = Grid(
        name="slos",
        title="Promises",
        headings=(
            Heading(key="slo", title="Promise"),
            Heading(key="objective", title="Of 30 days", right=True),
            Heading(key="budget", title="May fail for", right=True, spare=True),
            Heading(key="burns", title="Somebody is told when it burns", spare=True),
            Heading(key="words", title="What is promised", wide=True),
        ),
        rows=[
            (
                tables.text(slo.name),
                Cell(text=f"{slo.objective:.1%}", value=slo.objective),
                tables.span((1.0 - slo.objective) * 30 * 86_400.0),
                tables.text(", ".join(f"{burn.factor:g}x over {duration(burn.long_s)}" for burn in slo.burns)),
                tables.text(slo.words),
            )
            for slo in SLOS
        ],
    )
    told = Grid(
        name="alerts",
        title="Alerts",
        headings=(
            Heading(key="alert", title="Alert"),
            Heading(key="tells", title="Tells"),
            Heading(key="after", title="After", right=True),
            Heading(key="says", title="Says", wide=True),
            Heading(key="runbook", title="Runbook", spare=True),
        ),
        rows=[
            (
                tables.text(one.name),
                tables.state(one.severity.value),
                tables.text("at once") if not one.for_s else Cell(text=ago(one.for_s), value=one.for_s),
                tables.text(one.summary),
                tables.text(f"docs/runbooks/{one.runbook}.md"),
            )
            for one in alerts()
        ],
    )
    grids = {grid.name: grid for grid in (checks, _burns(kept), slos, told)}
    words = {"health": health, "history": [_history(one) for one in kept if any(day.total for day in one.days)]}
    return Shown(template="alerts", title="Alerts", words=words, grids=grids, every_s=15)


def _burns(kept: Sequence[PromiseView]) -> Grid:
    """Returns how fast the budget of each promise burns, of those that events tell of."""
    windows = [f"{burn.long_s:g}" for burn in BURNS]
    rows = []
    for one in kept:
        total, late = sum(day.total for day in one.days), sum(day.late for day in one.days)
        share = Cell(text=f"{1.0 - late / total:.1%}", value=1.0 - late / total) if total else Cell(text="-", value="")
        rows.append(
            (
                tables.text(one.name),
                tables.number(total, ",d"),
                tables.number(late, ",d"),
                share,
                *(_burn(one.burns.get(window), burn.factor) for window, burn in zip(windows, BURNS, strict=True)),
            )
        )
    headings = (
        Heading(key="slo", title="Promise"),
        Heading(key="total", title="Times", right=True, spare=True),
        Heading(key="late", title="Late", right=True),
        Heading(key="kept", title="Kept", right=True),
        *(
            Heading(key=f"burn_{window}", title=f"Burns over {duration(burn.long_s)}", right=True)
            for window, burn in zip(windows, BURNS, strict=True)
        ),
    )
    return Grid(name="burns", title="How fast budgets burn", headings=headings, rows=rows)


def _burn(pace: float | None, told_at: float) -> Cell:
    if pace is None:
        return Cell(text="-", value="")
    return Cell(text=f"{pace:.1f}x", value=pace, tone="bad" if pace > told_at else "warn" if pace > 1 else "good")


def _history(one: PromiseView) -> Lane:
    """Returns a bar a day, as high a share of it red as was late."""
    width = SCALE / len(one.days)
    strips = []
    for number, day in enumerate(one.days):
        if day.total:
            says = f"{day.late} of {day.total} late"
            strips.append(Strip(x=round(number * width, 2), width=round(0.9 * width, 2), tone="kept", says=says))
            if day.late:
                late = round(0.9 * width * day.late / day.total, 2)
                strips.append(Strip(x=round(number * width, 2), width=max(2.0, late), tone="broken", says=says))
    total, late_count = sum(day.total for day in one.days), sum(day.late for day in one.days)
    note = f"{one.words} {late_count} of {total} late"
    return Lane(label=one.name, value=f"{1.0 - late_count / total:.1%}", strips=tuple(strips), note=note)
