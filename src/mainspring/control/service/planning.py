"""Plan queries: what the last plan says, what would change it, what would start a job, what teams hold.

Everything here reads one `LatestPlan`, which nothing changes; trying something makes plans of copies and writes
nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from mainspring.control.state.latest_plan import LatestPlan, once
from mainspring.domain.answers import (
    SHOWN_MAX,
    PlannedStart,
    PlanView,
    Remedy,
    TeamUse,
    WaitView,
    WhatIf,
    WhatIfAnswer,
    Why,
)
from mainspring.domain.ids import ChipName, JobId, TeamName
from mainspring.domain.job import MILLI, Tier
from mainspring.domain.plan import Limit, Plan, Start, Wait
from mainspring.planner import Budget, plan
from mainspring.planner.explain import explain
from mainspring.planner.facts.snapshot import NONE
from mainspring.planner.whatif import changed, compare


def view_plan(made: Plan, now_s: float) -> PlanView:
    """Returns a plan for people.

    Args:
        now_s: When it was made.
    """
    counts = {
        "starts": len(made.starts),
        "evicts": len(made.evicts),
        "resizes": len(made.resizes),
        "moves": len(made.moves),
        "provisions": len(made.provisions),
        "reservations": len(made.reservations),
        "waits": sum(len(wait.jobs) for wait in made.waits),
    }
    return PlanView(
        number=made.number,
        made_s=now_s,
        complete=made.complete,
        counts=counts,
        starts=tuple(map(_view_start, made.starts[:SHOWN_MAX])),
        evicts=made.evicts[:SHOWN_MAX],
        resizes=made.resizes[:SHOWN_MAX],
        moves=made.moves[:SHOWN_MAX],
        provisions=made.provisions[:SHOWN_MAX],
        reservations=made.reservations[:SHOWN_MAX],
        waits=_view_waits(made.waits)[:SHOWN_MAX],
    )


@once
def plan_of(picture: LatestPlan) -> PlanView:
    """Returns the last plan for people."""
    return view_plan(picture.plan, picture.now_s)


def _view_start(start: Start) -> PlannedStart:
    return PlannedStart(
        job=start.job,
        cluster=start.grants[0].cluster,
        nodes=tuple(node for grant in start.grants for node in grant.nodes)[:SHOWN_MAX],
        chips=sum(sum(grant.chip_milli) for grant in start.grants) / MILLI,
    )


def _view_waits(waits: Iterable[Wait]) -> tuple[WaitView, ...]:
    """Returns waits with those of the same words as one."""
    same: dict[tuple[Limit, str, float, str], list[Wait]] = {}
    for wait in waits:
        same.setdefault((wait.limit, wait.where, wait.short_by, wait.reason), []).append(wait)
    return tuple(map(_view_wait, same.values()))


def _view_wait(waits: Sequence[Wait]) -> WaitView:
    first = waits[0]
    known = [at_s for wait in waits for at_s in wait.start_s if at_s is not None]
    count = sum(len(wait.jobs) for wait in waits)
    return WaitView(
        count=count,
        jobs=tuple(job for wait in waits[:3] for job in wait.jobs[:3])[:3],
        limit=first.limit,
        where=first.where,
        short_by=first.short_by,
        reason=first.reason,
        exact=sum(wait.exact for wait in waits),
        first_s=min(known, default=None),
        last_s=max(known) if len(known) == count else None,
    )


def what_if(picture: LatestPlan, changes: WhatIf) -> WhatIfAnswer:
    """Returns what some changes would make of the last plan.

    Args:
        picture: The last plan, and what it was made from.

    Raises:
        NotFound: A change speaks of a cluster, chip or team that is not known.
        InvalidInput: There would be too many nodes, or the teams would be no tree.
    """
    snapshot = changed(picture.snapshot, changes, picture.now_s)
    after = plan(snapshot, picture.policy, picture.now_s, Budget())
    found = compare(picture.plan, after, running=picture.snapshot.live.jobs, now_s=picture.now_s, shifts_max=SHOWN_MAX)
    return WhatIfAnswer(
        before=view_plan(picture.plan, picture.now_s),
        after=view_plan(after, picture.now_s),
        start=found.start[:SHOWN_MAX],
        wait=found.wait[:SHOWN_MAX],
        restart=found.restart[:SHOWN_MAX],
        stranded=found.stranded[:SHOWN_MAX],
        shifts=found.shifts,
        sooner=found.sooner,
        later=found.later,
    )


def waiting_why(picture: LatestPlan, told: Why) -> Why:
    """Returns why a waiting job waits as the last plan has it, which may not all be written yet.

    Args:
        picture: The last plan.
        told: What the store says; it stands for a job that the plan did not weigh.
    """
    number = _waits_of(picture).get(told.job)
    if number is None:
        return told
    wait = picture.plan.waits[number]
    place = wait.jobs.index(told.job)
    return replace(
        told,
        plan=picture.plan.number,
        summary=wait.reason,
        limit=wait.limit,
        candidates=wait.considered,
        where=wait.where,
        short_by=wait.short_by,
        start_s=wait.start_s[place],
        exact=place < wait.exact,
    )


@once
def _waits_of(picture: LatestPlan) -> Mapping[JobId, int]:
    """Returns which of a plan's waits each job is in."""
    return {job: number for number, wait in enumerate(picture.plan.waits) for job in wait.jobs}


def remedies(picture: LatestPlan, job: JobId) -> tuple[Remedy, ...]:
    """Returns changes that would start a waiting job now, cheapest first; none for a job that does not wait.

    Args:
        picture: The last plan, and what it was made from.
    """
    if job not in picture.snapshot.pending.jobs:
        return ()
    found = explain(picture.snapshot, job, picture.policy, picture.now_s, Budget())
    return tuple(
        Remedy(text=change.text, cluster=change.start.grants[0].cluster, dollars_per_hour=change.dollars_per_hour)
        for change in found
    )


_TIERS = [tier.value for tier in Tier]


@once
def team_uses(picture: LatestPlan) -> Mapping[TeamName, TeamUse]:
    """Returns what each team and those below it hold and have spent."""
    snapshot = picture.snapshot
    live, teams = snapshot.live, snapshot.teams
    held: list[dict[ChipName, float]] = [{} for _ in teams.names]
    tiers: list[dict[str, float]] = [{} for _ in teams.names]
    things = zip(
        live.team[live.held_by].tolist(),
        live.tier[live.held_by].tolist(),
        live.held_node.tolist(),
        (live.held_whole + live.held_share_milli / MILLI).tolist(),
        strict=True,
    )
    for team, tier, node, chips in things:
        above, chip = team, snapshot.chips[int(snapshot.nodes.chip[node])] if node != NONE else ChipName("unknown")
        while above != NONE:
            held[above][chip] = held[above].get(chip, 0.0) + chips
            tiers[above][_TIERS[tier]] = tiers[above].get(_TIERS[tier], 0.0) + chips
            above = int(teams.parent[above])
    return {
        name: TeamUse(chips=dict(sorted(held[row].items())), dollars=float(teams.dollars[row]), tiers=tiers[row])
        for row, name in enumerate(teams.names)
    }
