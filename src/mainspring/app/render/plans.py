"""Plan tables: why a job waits, the last plan, what if, and what teams hold."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from rich.console import Group, RenderableType
from rich.text import Text

from mainspring.app.render.events import events_table, notable
from mainspring.app.render.tables import (
    Listing,
    ago,
    asked,
    clock_text,
    facts_grid,
    framed,
    hold_text,
    size_text,
    start_text,
)
from mainspring.domain.answers import Event, JobView, PlanLine, PlanView, TeamView, Verdict, WaitView, WhatIfAnswer, Why
from mainspring.domain.fleet import NodeOrder
from mainspring.domain.ids import ChipName, JobId
from mainspring.domain.job import Hold, JobSpec
from mainspring.domain.life import ended
from mainspring.domain.plan import Candidate, Limit
from mainspring.domain.team import TeamOrder

_ROWS_MAX = 20  # Of one list of a plan; --json has more.


def why_panel(why: Why, job: JobView, events: Sequence[Event] = (), *, now_s: float) -> RenderableType:
    """Returns the planner's words, what would start the job now, how its runs fared, and every candidate weighed.

    Args:
        job: The job: its spec names the options.
        events: Its events, oldest first.
        now_s: For times of day.
    """
    spec = job.spec
    # How it ended comes first; why it ran where it did, second.
    past = ended(why.state) and job.reason != why.summary
    said: list[RenderableType] = [Text(f"{why.job} is {why.state.value}: {job.reason if past else why.summary}")]
    if past and why.candidates:
        said.append(Text(f"before that: {why.summary}"))
    if why.limit is not None:
        facts = {"limit": why.limit.value + (f" ({why.where})" if why.where else "")}
        if why.limit is Limit.DEPENDENCY:
            facts["after"] = ", ".join(spec.after)
        if why.short_by > 0:
            facts["short by"] = f"{why.short_by:g} chips"
        if why.limit is Limit.PAUSED:
            facts["now, if"] = " and ".join(f"ms resume {_released(hold, why)}" for hold in why.holds)
        if why.ordered:
            facts["ordered"] = "; ".join(_ordered(order, now_s) for order in why.ordered)
        starts = start_text(why.start_s, exact=why.exact, now_s=now_s)
        facts["starts"] = "nobody can know yet" if starts == "-" else starts
        for number, remedy in enumerate(why.remedies):
            facts["now, if" if number == 0 else " " * number] = (
                f"{remedy.text} (on {remedy.cluster}, ${remedy.dollars_per_hour:.2f} an hour)"
            )
        said += ["", facts_grid(facts)]
    if why.holds:
        said += ["", *(Text(hold_text(hold, now_s=now_s)) for hold in why.holds)]
    if why.avoided:
        kept = Listing("AVOIDS", "CLUSTER", "UNTIL", "~SINCE").add_rows(
            (one.at.node, one.at.cluster, clock_text(one.until_s, now_s=now_s), one.reason) for one in why.avoided
        )
        said += ["", kept]
    noted = notable(events)
    if noted:
        said += ["", events_table(noted)]
    return Group(*said, "", _candidates(why.candidates, spec, now_s)) if why.candidates else Group(*said)


def _ordered(order: NodeOrder, now_s: float) -> str:
    when = "late" if order.expected_s < now_s else f"expected at {clock_text(order.expected_s, now_s=now_s)}"
    return f"{order.nodes} nodes of {order.offer} on {order.cluster}, {when}"


def _released(hold: Hold, why: Why) -> str:
    return f"--team {hold.team}" if hold.team else why.job


def _candidates(candidates: Sequence[Candidate], spec: JobSpec, now_s: float) -> RenderableType:
    roles = {role.name: role for role in spec.roles}
    weighed = Listing("CLUSTER", "OPTION", "FITS", "?>$/HOUR", "?>$/USEFUL\nCHIP-HOUR", "?STARTS", "~VERDICT")
    for candidate in candidates:
        name = f"{candidate.cluster} (simulated)" if candidate.simulated else candidate.cluster
        role = f" for {candidate.role}" if len(roles) > 1 else ""
        option = asked(roles[candidate.role].options[candidate.option]) + role
        fits = Text("yes", style="green") if candidate.fits else Text("no", style="yellow")
        priced = candidate.fits or candidate.dollars_per_hour > 0  # A cluster without such chips has no price for them.
        hourly = f"{candidate.dollars_per_hour:.2f}" if priced else "-"
        work = f"{candidate.dollars_per_work:.2f}" if priced else "-"
        starts = "-" if candidate.start_s is None else clock_text(max(candidate.start_s, now_s), now_s=now_s)
        weighed.add_row(name, option, fits, hourly, work, starts, candidate.verdict)
    return weighed


def plan_panel(view: PlanView, *, now_s: float) -> RenderableType:
    """Returns one plan on a screen.

    Args:
        now_s: For times of day.
    """
    counts = {name: str(count) for name, count in view.counts.items() if count}
    facts = {"made": f"{ago(max(0.0, now_s - view.made_s))} ago", **(counts or {"decided": "nothing: nobody waits"})}
    if not view.complete:
        facts["complete"] = "no: its work budget ran out, and more might have been found"
    parts: list[RenderableType] = [framed(facts_grid(facts), f"plan {view.number}")]
    if view.starts:
        parts.append(
            Listing("STARTS", "CLUSTER", ">CHIPS", "~NODES").add_rows(
                (start.job, start.cluster, f"{start.chips:g}", ", ".join(start.nodes[:8]))
                for start in view.starts[:_ROWS_MAX]
            )
        )
    if view.evicts or view.resizes:
        ends = Listing("ENDS", "FOR", ">CHIP-SECONDS LOST", "~REASON").add_rows(
            (evict.job, evict.for_job or "-", f"{evict.price_chip_s:.0f}", evict.reason)
            for evict in view.evicts[:_ROWS_MAX]
        )
        resized = (
            (resize.job, resize.for_job or "-", "-", f"to {resize.replicas} replicas: {resize.reason}")
            for resize in view.resizes[:_ROWS_MAX]
        )
        parts.append(ends.add_rows(resized))
    if view.reservations:
        parts.append(
            Listing("KEPT FOR", "CLUSTER", ">NODES", "FROM").add_rows(
                (each.job, each.cluster, str(each.nodes), start_text(each.start_s, exact=True, now_s=now_s))
                for each in view.reservations[:_ROWS_MAX]
            )
        )
    if view.ordered:
        coming = ((order.job, _ordered(order, now_s)) for order in view.ordered[:_ROWS_MAX])
        parts.append(Listing("ORDERED FOR", "~WHAT").add_rows(coming))
    if view.moves or view.provisions:
        wanted = Listing("WANTED FOR", "~WHAT").add_rows(
            (move.for_job, f"{move.what} brought from {move.source} to {move.target}")
            for move in view.moves[:_ROWS_MAX]
        )
        ordered = (
            (order.for_job, f"{order.nodes} nodes of {order.offer} on {order.cluster}: {order.reason}")
            for order in view.provisions[:_ROWS_MAX]
        )
        parts.append(wanted.add_rows(ordered))
    if view.waits:
        parts.append(_waits(view.waits, now_s))
    return Group(*(each for part in parts for each in (part, "")))


def _waits(waits: Sequence[WaitView], now_s: float) -> RenderableType:
    made = Listing(">WAIT", "FIRST", "LIMIT", "?WHOSE", "?>SHORT BY", "STARTS", "~REASON")
    for wait in waits[:_ROWS_MAX]:
        first = start_text(wait.first_s, exact=wait.exact > 0, now_s=now_s)
        last = "" if wait.count == 1 or wait.last_s is None else f"; the last {clock_text(wait.last_s, now_s=now_s)}"
        if last and wait.exact < wait.count:
            last = f"{last}, estimate"
        short = f"{wait.short_by:g}" if wait.short_by else "-"
        made.add_row(
            *(str(wait.count), wait.jobs[0], wait.limit.value, wait.where or "-", short, first + last, wait.reason)
        )
    return made


def what_if_panel(answer: WhatIfAnswer, *, now_s: float) -> RenderableType:
    """Returns what changes would make of the last plan.

    Args:
        now_s: For times of day.
    """
    made = Listing("", ">AS IT IS", ">WHAT IF")
    for name in answer.before.counts:
        before, after = answer.before.counts[name], answer.after.counts.get(name, 0)
        if before or after:
            made.add_row(name, str(before), str(after))
    parts: list[RenderableType] = [made, "", facts_grid(change_facts(answer))]
    evicted = [evict for evict in answer.after.evicts if evict not in answer.before.evicts]
    if evicted:
        rows = ((evict.job, evict.for_job or "-", evict.reason) for evict in evicted[:_ROWS_MAX])
        parts += ["", Listing("WOULD END", "FOR", "~REASON").add_rows(rows)]
    if answer.shifts:
        shifts = ((each.job, (each.before_s, each.after_s)) for each in answer.shifts[:_ROWS_MAX])
        moved = Listing("WAITS", "STARTS", "WOULD START").add_rows(
            (job, *("-" if at_s is None else clock_text(at_s, now_s=now_s) for at_s in times)) for job, times in shifts
        )
        parts += ["", moved]
    if answer.after.waits:
        parts += ["", _waits(answer.after.waits, now_s)]
    return Group(*parts)


def change_facts(answer: WhatIfAnswer) -> dict[str, str]:
    """Returns what changes would make of jobs, by what would become of them."""
    facts = {
        "would start now": _named(answer.start),
        "would not start now": _named(answer.wait),
        "would move": _named(answer.restart),
        "would stop and wait": _named(answer.stranded),
        "would start sooner": str(answer.sooner) if answer.sooner else "",
        "would start later": str(answer.later) if answer.later else "",
    }
    return {name: text for name, text in facts.items() if text} or {"changes": "nothing for any job"}


def _named(jobs: Sequence[JobId]) -> str:
    return ", ".join(jobs[:5]) + (f" and {len(jobs) - 5} more" if len(jobs) > 5 else "")


def plans_table(lines: Sequence[PlanLine], *, now_s: float) -> RenderableType:
    """Returns one row a plan.

    Args:
        lines: Newest first.
        now_s: For times of day.
    """
    made = Listing(">PLAN", "MADE", ">STARTED", ">ENDED", ">WAITED")
    for line in lines:
        counts = (str(line.starts), str(line.evicts), str(line.waits))
        made.add_row(str(line.number), clock_text(line.made_s, now_s=now_s), *counts)
    return made


def verdicts_table(verdicts: Sequence[Verdict], *, now_s: float) -> RenderableType:
    """Returns one row for whatever jobs wait for.

    Args:
        verdicts: What most wait for first.
        now_s: For when the first is expected to start.
    """
    made = Listing(">JOBS", "LIMIT", "?WHERE", "FIRST", "?STARTS", "~BECAUSE")
    for one in verdicts:
        starts = start_text(one.start_s, exact=False, now_s=now_s)
        made.add_row(str(one.count), one.limit.value, one.where or "-", one.first, starts, one.reason)
    return made


def teams_table(teams: Sequence[TeamView]) -> RenderableType:
    """Returns one row a team: what it is promised and allowed, and what it holds.

    Args:
        teams: In name order.
    """
    made = Listing(
        "TEAM",
        "?UNDER",
        "HOLDS",
        "?AT MOST",
        "GUARANTEE",
        "?BORROWS",
        "?LENDS",
        "?>WEIGHT",
        "?>SPENT",
        "?ORDER",
        "?>JOBS",
        "?>SENT",
        "?READ BY",
        "?~PAUSED",
    )
    for view in teams:
        team, waiting = view.team, view.waiting
        held = "-" if view.use is None else chips_text(view.use.chips, none="nothing")
        spent = "-"
        if view.use is not None and (view.use.dollars or team.dollars_max is not None):
            most = "" if team.dollars_max is None else f" of {team.dollars_max:.0f}"
            spent = f"${view.use.dollars:.0f}{most} in {team.budget_days:g} d"
        made.add_row(
            team.name,
            team.parent or "-",
            held,
            "any" if team.chips_max is None else f"{team.chips_max:g} chips",
            chips_text(team.guarantee, none="-"),
            chips_text(team.borrow_max, none="any"),
            chips_text(team.lend_max, none="all"),
            f"{team.weight:g}",
            spent,
            "oldest first" if team.order is TeamOrder.AGE else "least had first",
            "-" if waiting is None else _of(str(waiting.jobs), waiting.jobs_max, str),
            "-" if waiting is None else _of(size_text(waiting.bytes), waiting.bytes_max, size_text),
            "everybody" if team.open else "its own",
            "-" if view.hold is None else f"by {view.hold.by}" + (f": {view.hold.reason}" if view.hold.reason else ""),
        )
    return made


def _of(there: str, most: int | None, told: Callable[[int], str]) -> str:
    return there if most is None else f"{there} of {told(most)}"


def chips_text(counts: Mapping[ChipName, float], *, none: str) -> str:
    """Returns how many chips of each type, `none` for none."""
    return ", ".join(f"{count:g} {chip}" for chip, count in sorted(counts.items())) or none
