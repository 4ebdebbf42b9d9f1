"""Alerts and SLOs: how the server is now, what the lab promises, and who is told when a promise is not kept."""

from __future__ import annotations

from mainspring.app.render.tables import ago
from mainspring.app.web import tables
from mainspring.app.web.look import Shown
from mainspring.app.web.tables import Cell, Grid, Heading
from mainspring.app.web.visit import Visit
from mainspring.control.service.alerts.rules import alerts
from mainspring.control.service.alerts.slos import SLOS
from mainspring.control.service.alerts.values import duration


async def view_alerts(visit: Visit) -> Shown:
    """Returns the server's health, every promise, and every alert."""
    health = await visit.lab.health()
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
    grids = {grid.name: grid for grid in (checks, slos, told)}
    return Shown(template="alerts", title="Alerts", words={"health": health}, grids=grids, every_s=15)
