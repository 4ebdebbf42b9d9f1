"""What changed since yesterday: jobs, nodes, plans, where time went, and what people did."""

from __future__ import annotations

from contextlib import suppress

from mainspring.app.render.events import event_words
from mainspring.app.web import charts, tables
from mainspring.app.web.inside import Refusal
from mainspring.app.web.look import Shown
from mainspring.app.web.tables import Grid, Heading
from mainspring.app.web.views.fleet import cluster_path
from mainspring.app.web.visit import Visit
from mainspring.domain.answers import AuditLine, Event, PastCluster, PastFleet
from mainspring.domain.life import JobState, ended
from mainspring.domain.routes import LIST_MAX
from mainspring.domain.team import Right
from mainspring.domain.wire.events import EVENTS
from mainspring.domain.wire.events.jobs import JobMovedEvent

_DAY_S = 86_400.0
_NOTABLE = {
    event.kind for event in EVENTS if event.notable or event.kind.startswith(("hold_", "node_", "breaker_", "health_"))
}


async def view_changes(visit: Visit) -> Shown:
    """Returns what is otherwise than it was a day ago."""
    since_s = visit.ago_s(_DAY_S)
    since = await visit.newest()
    before: PastFleet | None = None
    with suppress(Refusal):  # The lab is younger than that.
        before = await visit.lab.fleet_at(at_s=since_s)
    now = await visit.lab.fleet_at(at_s=visit.now_s)
    today = await visit.lab.goodput_report(since_s=since_s)
    week = await visit.lab.goodput_report(since_s=visit.ago_s(7 * _DAY_S))
    events = [one for one in await visit.lab.all_events(newest=True, limit=LIST_MAX) if one.time_s >= since_s]
    whole = len(events) < LIST_MAX
    over = [one for one in events if one.kind == JobMovedEvent.kind and _is_end(one)]
    counts: dict[str, int] = {}
    for one in over:
        counts[str(one.detail["after"])] = counts.get(str(one.detail["after"]), 0) + 1
    grids = [_clusters(before.clusters if before else (), now.clusters), _notable(events)]
    if visit.may(Right.READ_AUDIT):
        with suppress(Refusal):  # Its reader may see nobody's: the page goes without.
            lines = await visit.lab.audit(newest=True, limit=LIST_MAX)
            grids.append(_audit([one for one in lines if one.time_s >= since_s]))
    words = {
        "before": before,
        "now": now,
        "ended": sorted(counts.items()),
        "whole": whole,
        "from_s": events[0].time_s if events else since_s,
        "today": today.whole.ratio,
        "week": week.whole.ratio,
        "waterfall": charts.waterfall(today.whole),
    }
    return Shown(
        template="changes", title="Changes", words=words, grids={grid.name: grid for grid in grids}, since=since
    )


def _is_end(event: Event) -> bool:
    return any(state.value == event.detail.get("after") and ended(state) for state in JobState)


def _clusters(before: tuple[PastCluster, ...], now: tuple[PastCluster, ...]) -> Grid:
    old = {one.cluster: one for one in before}
    rows = []
    for one in now:
        then = old.get(one.cluster)
        rows.append(
            (
                tables.text(one.cluster, link=cluster_path(one.cluster)),
                tables.number(then.nodes if then else None, ",d"),
                tables.number(one.nodes, ",d"),
                tables.number(then.used if then else None, ",d"),
                tables.number(one.used, ",d"),
                tables.number(then.closed if then else None, ",d"),
                tables.number(one.closed, ",d"),
            )
        )
    headings = (
        Heading(key="cluster", title="Cluster"),
        Heading(key="nodes_before", title="Nodes then", right=True, spare=True),
        Heading(key="nodes", title="Nodes now", right=True),
        Heading(key="used_before", title="In use then", right=True),
        Heading(key="used", title="In use now", right=True),
        Heading(key="closed_before", title="Closed then", right=True),
        Heading(key="closed", title="Closed now", right=True),
    )
    return Grid(name="clusters", title="Clusters", headings=headings, rows=rows, empty="No cluster has answered yet.")


def _notable(events: list[Event]) -> Grid:
    rows = [
        (
            tables.moment(one.time_s),
            tables.job_link(one.job or "", one.job or "-"),
            tables.text(one.kind),
            tables.text(event_words(one)),
        )
        for one in reversed(events)
        if one.kind in _NOTABLE
    ]
    headings = (
        Heading(key="time", title="When"),
        Heading(key="job", title="Job"),
        Heading(key="kind", title="Event", spare=True),
        Heading(key="words", title="What happened", wide=True),
    )
    return Grid(
        name="notable", title="What went wrong, and what was held", headings=headings, rows=rows, empty="Nothing."
    )


def _audit(lines: list[AuditLine]) -> Grid:
    rows = [
        (
            tables.moment(one.time_s),
            tables.text(one.holder),
            tables.text(one.action),
            tables.text(one.target),
            tables.text(one.outcome, tone="good" if one.outcome == "done" else "bad"),
            tables.text(one.reason or "-"),
        )
        for one in reversed(lines)
    ]
    headings = (
        Heading(key="time", title="When"),
        Heading(key="who", title="Who"),
        Heading(key="action", title="Did"),
        Heading(key="target", title="To", wide=True),
        Heading(key="outcome", title="Outcome", spare=True),
        Heading(key="reason", title="Why not", spare=True),
    )
    return Grid(name="audit", title="What people did", headings=headings, rows=rows, empty="Nobody did anything.")
