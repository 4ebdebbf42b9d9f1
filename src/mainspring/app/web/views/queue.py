"""The queue: who waits for what and until when, what the last plan decided, and what a change would make of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mainspring.app.render.plans import change_facts
from mainspring.app.sdk.lab import job as job_spec
from mainspring.app.web import tables
from mainspring.app.web.inside import Refusal
from mainspring.app.web.look import Shown
from mainspring.app.web.tables import Cell, Grid, Heading
from mainspring.app.web.visit import Visit
from mainspring.domain.answers import AddNodes, PlanView, Submit, Verdict, WaitView, WhatIf, WhatIfAnswer
from mainspring.domain.errors import InvalidInput, MainspringError
from mainspring.domain.ids import ClusterName
from mainspring.domain.job import Tier
from mainspring.domain.plan import Evict, Resize
from mainspring.domain.routes import LIST_MAX

_FIELDS = ("cluster", "nodes", "remove", "on", "replicas", "team", "tier")


async def view_queue(visit: Visit) -> Shown:
    """Returns the queue; with a change in the address, also what that would make of it."""
    since = await visit.newest()
    verdicts = await visit.lab.verdicts(limit=LIST_MAX)
    counts = dict((await visit.lab.job_counts()).states)
    plan = await visit.lab.plan()
    form = {name: visit.asked(name).strip() for name in _FIELDS}
    tried, wrong = None, ""
    if visit.asked("try"):
        try:
            tried = await visit.lab.what_if(_change(form))
        except Refusal as refusal:
            wrong = str(refusal.error)
        except MainspringError as error:
            wrong = str(error)
    words = {
        "plan": plan,
        "waiting": counts.get("queued", 0),
        "starting": counts.get("starting", 0),
        "running": counts.get("running", 0),
        "form": form,
        "tiers": [tier.value for tier in Tier],
        "clusters": [one.cluster for one in await visit.lab.fleet_map()],
        "wrong": wrong,
        "tried": tried is not None,
        "changes": change_facts(tried) if tried else {},
        "counts": _both(tried) if tried else [],
    }
    grids = [_verdicts(verdicts), _waits("waits", "Of the last plan", plan.waits), _reservations(plan), _ends(plan)]
    if tried:
        grids += [_shifts(tried), _waits("then", "Would still wait", tried.after.waits)]
    return Shown(
        template="queue",
        title="Queue",
        words=words,
        grids={grid.name: grid for grid in grids},
        follow="" if visit.asked("try") else "/v1/events",
        since=since,
    )


def _change(form: dict[str, str]) -> WhatIf:
    """Returns the change that a form asks to be tried.

    Raises:
        InvalidInput: It says nothing, or no number where one is wanted.
        InvalidSpec: No job can be like that.
    """
    added: tuple[AddNodes, ...] = ()
    removed: tuple[ClusterName, ...] = ()
    submits: tuple[Submit, ...] = ()
    if form["cluster"] and form["nodes"]:
        added = (AddNodes(cluster=ClusterName(form["cluster"]), nodes=_whole(form["nodes"], "nodes")),)
    if form["remove"]:
        removed = (ClusterName(form["remove"]),)
    if form["on"]:
        fields: dict[str, Any] = {name: form[name] for name in ("team", "tier") if form[name]}
        spec = job_spec(
            "what-if", ["true"], on=form["on"], replicas=_whole(form["replicas"] or "1", "replicas"), **fields
        )
        submits = (Submit(spec=spec),)
    return WhatIf(add_nodes=added, remove_clusters=removed, submits=submits)


def _whole(text: str, what: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 7):
        raise InvalidInput("try a change", on=what, got=repr(text[:20]), wanted="a whole number")
    return int(text)


def _both(tried: WhatIfAnswer) -> list[tuple[str, int, int]]:
    """Returns what the plan counts, as it is and as it would be."""
    both = ((name, count, tried.after.counts.get(name, 0)) for name, count in tried.before.counts.items())
    return [(name, before, after) for name, before, after in both if before or after]


def _verdicts(verdicts: Sequence[Verdict]) -> Grid:
    rows = [
        (
            tables.number(one.count, ",d"),
            tables.text(one.limit.value),
            tables.text(one.where or "-"),
            tables.job_link(one.first),
            tables.expected(one.start_s, exact=False),
            tables.text(one.reason),
        )
        for one in verdicts
    ]
    headings = (
        Heading(key="jobs", title="Jobs", right=True),
        Heading(key="limit", title="Wait for"),
        Heading(key="where", title="Whose", spare=True),
        Heading(key="first", title="The first"),
        Heading(key="starts", title="It starts"),
        Heading(key="because", title="Because", wide=True),
    )
    return Grid(name="verdicts", title="What jobs wait for", headings=headings, rows=rows, empty="Nobody waits.")


def _waits(name: str, title: str, waits: Sequence[WaitView]) -> Grid:
    rows = [
        (
            tables.number(wait.count, ",d"),
            tables.job_link(wait.jobs[0]),
            tables.text(wait.limit.value + (f" ({wait.where})" if wait.where else "")),
            tables.number(wait.short_by or None),
            tables.expected(wait.first_s, exact=wait.exact > 0),
            tables.expected(wait.last_s, exact=wait.exact >= wait.count),
            tables.text(wait.reason),
        )
        for wait in waits
    ]
    headings = (
        Heading(key="count", title="Alike", right=True),
        Heading(key="first", title="The first"),
        Heading(key="limit", title="Limit"),
        Heading(key="short_by", title="Chips short", right=True, spare=True),
        Heading(key="first_starts", title="First starts"),
        Heading(key="last_starts", title="Last starts", spare=True),
        Heading(key="reason", title="Reason", wide=True),
    )
    return Grid(name=name, title=title, headings=headings, rows=rows, empty="Nobody waits in it.")


def _reservations(plan: PlanView) -> Grid:
    rows = [
        (
            tables.job_link(one.job),
            tables.text(one.cluster),
            tables.number(one.nodes, ",d"),
            tables.expected(one.start_s, exact=True),
        )
        for one in plan.reservations
    ]
    headings = (
        Heading(key="job", title="Kept for"),
        Heading(key="cluster", title="Cluster"),
        Heading(key="nodes", title="Nodes", right=True),
        Heading(key="from", title="From"),
    )
    return Grid(name="reservations", title="Room that is kept", headings=headings, rows=rows, empty="None.")


def _ends(plan: PlanView) -> Grid:
    moved: list[Evict | Resize] = [*plan.evicts, *plan.resizes]
    rows: list[tuple[Cell, ...]] = [
        (tables.job_link(one.job), tables.job_link(one.for_job or "", one.for_job or "-"), tables.text(one.reason))
        for one in moved
    ]
    headings = (
        Heading(key="job", title="Makes room"),
        Heading(key="for", title="For"),
        Heading(key="reason", title="Reason", wide=True),
    )
    return Grid(name="ends", title="Who makes room", headings=headings, rows=rows, empty="Nobody.")


def _shifts(tried: WhatIfAnswer) -> Grid:
    rows = [
        (
            tables.job_link(one.job) if one.job.startswith("job-") else tables.text(one.job),
            tables.moment(one.before_s, none="nobody can know"),
            tables.moment(one.after_s, none="nobody can know"),
        )
        for one in tried.shifts
    ]
    headings = (
        Heading(key="job", title="Job"),
        Heading(key="before", title="Starts"),
        Heading(key="after", title="Would start"),
    )
    return Grid(name="shifts", title="Would start at another time", headings=headings, rows=rows, empty="Nobody would.")
