"""The cheapest change that would start a waiting job now, found by trying changes on copies of the snapshot.

Every change told was planned by the same `plan` that runs the lab, so doing what it says does start the job, as long as
nothing else changes first.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import Enum

import numpy as np

from mainspring.domain.errors import NotFound
from mainspring.domain.ids import JobId
from mainspring.domain.job import ANY_CHIP, MILLI, Option, Tier
from mainspring.domain.plan import Limit, Plan, Start, Wait
from mainspring.planner.cycle import plan
from mainspring.planner.facts.policy import Budget, Policy
from mainspring.planner.facts.reasons import amount, together
from mainspring.planner.facts.snapshot import NO_LIMIT, Integers, Shape, Snapshot, sealed
from mainspring.planner.place.free_capacity import FreeCapacity
from mainspring.planner.quota.entitlement import Entitlement
from mainspring.planner.quota.queue import Queue

TRIALS_MAX = 48  # Plans made for one explanation,
TRIALS_MIN = 12  # and those that are made however large the lab is:
ROWS_MAX = 500_000  # in between, so that nodes and jobs planned over add up to no more.


class ChangeKind(str, Enum):
    """What would be changed; the first ones are the owner's to change, the last ones take somebody else."""

    TOPOLOGY = "topology"
    CHIP = "chip"
    SIZE = "size"
    TIER = "tier"
    QUOTA = "quota"
    BUDGET = "budget"


_OTHERS = (ChangeKind.TIER, ChangeKind.QUOTA, ChangeKind.BUDGET)


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """A change that would start a job now.

    Args:
        kind: What would be changed.
        text: The change, in words: "32 instead of 64 h100".
        shape: What the job would ask for.
        start: Where it would start.
        dollars_per_hour: What it would cost there.
        work: Useful work an hour, relative to what was asked for.
    """

    kind: ChangeKind
    text: str
    shape: Shape
    start: Start
    dollars_per_hour: float
    work: float


@dataclass(frozen=True, slots=True, kw_only=True)
class _Trial:
    kind: ChangeKind
    text: str
    snapshot: Snapshot
    shape: Shape


def explain(snapshot: Snapshot, job: JobId, policy: Policy, now_s: float, budget: Budget) -> tuple[Change, ...]:
    """Returns single changes that would each start a job now, cheapest first: least work lost, then least dollars.

    Changes that take somebody else (a quota, a tier) come after those the owner can make.

    Args:
        policy: What the lab decides.
        budget: Bounds the work of each plan tried.

    Raises:
        NotFound: The job is not pending in the snapshot.
    """
    if job not in snapshot.pending.jobs:
        raise NotFound("explain why a job waits", on=job, got="a job that is not waiting", wanted="a pending job")
    row = snapshot.pending.jobs.index(job)
    if snapshot.pending.paused[row]:
        return ()  # What it asks for is not the matter.
    now = plan(_up_to(snapshot, row, policy, now_s), policy, now_s, budget)
    if any(start.job == job for start in now.starts):
        return ()
    asked = snapshot.shapes[int(snapshot.pending.shape[row])]
    found: list[Change] = []
    rows = len(snapshot.nodes.names) + len(snapshot.pending.jobs)
    trials_max = max(TRIALS_MIN, min(TRIALS_MAX, ROWS_MAX // max(1, rows)))
    for index, trial in enumerate(_trials(snapshot, row, asked, now, policy, now_s)):
        if index >= trials_max:
            break
        if any(change.kind is trial.kind and _same_role(change.shape, trial.shape, asked) for change in found):
            continue  # A smaller step of the same kind was enough already.
        made = plan(_up_to(trial.snapshot, row, policy, now_s), policy, now_s, budget)
        start = next((start for start in made.starts if start.job == job), None)
        if start is not None:
            found.append(
                Change(
                    kind=trial.kind,
                    text=trial.text,
                    shape=trial.shape,
                    start=start,
                    dollars_per_hour=sum(
                        each.dollars_per_hour for each in start.considered if each.verdict == "chosen"
                    ),
                    work=_work(trial.shape, start) / _work(asked, None),
                )
            )
    found.sort(key=lambda change: (change.kind in _OTHERS, -round(change.work, 3), change.dollars_per_hour))
    return tuple(found)


def _same_role(one: Shape, other: Shape, asked: Shape) -> bool:
    changed = [mine != theirs for mine, theirs in zip(one.roles, asked.roles, strict=True)]
    return changed == [mine != theirs for mine, theirs in zip(other.roles, asked.roles, strict=True)]


def _work(shape: Shape, start: Start | None) -> float:
    total = 0.0
    for row, role in enumerate(shape.roles):
        option = role.options[start.grants[row].option] if start else max(role.options, key=_rate)
        ranks = sum(start.grants[row].ranks) if start and option.chips <= 1 else option.replicas
        total += ranks * (option.chips or option.cpus) * option.speed
    return total


def _rate(option: Option) -> float:
    return option.replicas * (option.chips or option.cpus) * option.speed


def _up_to(snapshot: Snapshot, row: int, policy: Policy, now_s: float) -> Snapshot:
    """Returns the snapshot without the pending jobs that come after one: they cannot change its fate."""
    queue = Queue(snapshot, Entitlement(snapshot, policy, now_s), policy, now_s)
    order = queue.order(np.arange(len(snapshot.pending.jobs)))
    ahead = order[: int(np.flatnonzero(order == row)[0]) + 1]
    # A job of a team that holds less may come first once others have had their turn: its elders all stay.
    rows = np.union1d(ahead, np.flatnonzero(snapshot.pending.submitted_s <= snapshot.pending.submitted_s[row]))
    pending = snapshot.pending
    return replace(
        snapshot,
        pending=replace(
            pending,
            jobs=tuple(pending.jobs[each] for each in rows.tolist()),
            shape=sealed(pending.shape[rows]),
            team=sealed(pending.team[rows]),
            tier=sealed(pending.tier[rows]),
            submitted_s=sealed(pending.submitted_s[rows]),
            attained_chip_s=sealed(pending.attained_chip_s[rows]),
            evicted_s=sealed(pending.evicted_s[rows]),
            duration_s=sealed(pending.duration_s[rows]),
            duration_safe_s=sealed(pending.duration_safe_s[rows]),
            blocked=sealed(pending.blocked[rows]),
            paused=sealed(pending.paused[rows]),
            serves=sealed(pending.serves[rows]),
            behind=sealed(pending.behind[rows]),
        ),
    )


# ---------------------------------------------------------------- what to try


def _trials(snapshot: Snapshot, row: int, asked: Shape, now: Plan, policy: Policy, now_s: float) -> Iterator[_Trial]:
    wait = next((wait for wait in now.waits if snapshot.pending.jobs[row] in wait.jobs), None)
    if wait is not None and wait.limit in (Limit.QUOTA, Limit.BUDGET):
        yield from _limits(snapshot, row, asked, wait, policy, now_s)
    room = FreeCapacity(snapshot)
    for place, role in enumerate(asked.roles):
        for index, option in enumerate(role.options):
            for text, looser in _looser(snapshot, option):
                yield _with_option(snapshot, row, asked, place, index, looser, ChangeKind.TOPOLOGY, text)
        named = {option.chip for option in role.options}
        if ANY_CHIP not in named:
            first = role.options[0]
            for chip in snapshot.chips:
                if chip not in named:
                    wider = replace(first, chip=chip, slice="", speed=_speed(snapshot, first, chip))
                    yield _with_option(snapshot, row, asked, place, None, wider, ChangeKind.CHIP, f"accepts {chip}")
        for index, option in enumerate(role.options):
            for smaller in _smaller(room, option):
                text = f"{smaller.replicas} instead of {amount(option, option.replicas)}"
                yield _with_option(snapshot, row, asked, place, index, smaller, ChangeKind.SIZE, text)
    tier = int(snapshot.pending.tier[row])
    for better in range(tier - 1, -1, -1):
        changed = snapshot.pending.tier.copy()
        changed[row] = better
        yield _Trial(
            kind=ChangeKind.TIER,
            text=f"{list(Tier)[better].value} instead of {list(Tier)[tier].value}",
            snapshot=replace(snapshot, pending=replace(snapshot.pending, tier=sealed(changed))),
            shape=asked,
        )


def _speed(snapshot: Snapshot, option: Option, chip: str) -> float:
    """Returns how fast a chip is beside the one asked for, by their values; no better guess is known."""
    value = dict(zip(snapshot.chips, snapshot.chip_value.tolist(), strict=True))
    return option.speed * value[chip] / value[option.chip] if value.get(option.chip) else option.speed


def _looser(snapshot: Snapshot, option: Option) -> Iterator[tuple[str, Option]]:
    """Yields options with weaker wishes for closeness, the least weakened first."""
    if option.group:
        yield f"no longer each {option.group} in one {option.group_within}", replace(option, group=0, group_within=None)
    if option.within in (None, "cluster"):
        return
    levels = _levels(snapshot)
    if not option.group and option.replicas == option.replicas_min and option.within != "node":
        for parts in range(2, option.replicas + 1):
            if option.replicas % parts == 0 and parts <= 64:
                grouped = replace(option, within=None, group=option.replicas // parts, group_within=option.within)
                yield f"{parts} x {grouped.group} in one {option.within} each, instead of all in one", grouped
    wider = levels[: levels.index(option.within)] if option.within in levels else levels
    for level in (*reversed(wider), None):
        loose = replace(option, within=level, prefer=option.prefer or option.within)
        yield f"in one {level or 'cluster'} instead of one {option.within}", loose


def _levels(snapshot: Snapshot) -> list[str]:
    """Returns the levels of topology, widest first."""
    counts = [len(np.unique(snapshot.nodes.domain[:, column])) for column in range(len(snapshot.levels))]
    return [level for _, level in sorted(zip(counts, snapshot.levels, strict=True))]


def _smaller(room: FreeCapacity, option: Option) -> Iterator[Option]:
    """Yields fewer replicas, the most that would stand on some cluster now first, then halves of it."""
    most = 0
    for cluster in range(len(room.snapshot.clusters.names)):
        pool = room.pool(cluster, option)
        if pool is not None and pool.level_known:
            most = max(most, room.fits(pool, option.replicas))
    step = option.group or 1
    count = min(most, option.replicas_min - step)
    while count >= step:
        count -= count % step
        yield replace(option, replicas=count, replicas_min=count)
        count //= 2


def _with_option(
    snapshot: Snapshot,
    row: int,
    asked: Shape,
    place: int,
    index: int | None,
    option: Option,
    kind: ChangeKind,
    text: str,
) -> _Trial:
    role = asked.roles[place]
    options = (
        (*role.options, option)
        if index is None
        else tuple(option if each == index else known for each, known in enumerate(role.options))
    )
    roles = tuple(replace(role, options=options) if each == place else known for each, known in enumerate(asked.roles))
    shape = replace(asked, roles=roles)
    changed = snapshot.pending.shape.copy()
    changed[row] = len(snapshot.shapes)
    words = f"role {role.name}: {text}" if len(asked.roles) > 1 else text
    return _Trial(
        kind=kind,
        text=words + ("" if kind is not ChangeKind.SIZE else together(option)),
        snapshot=replace(
            snapshot,
            shapes=(*snapshot.shapes, shape),
            shape_weight=sealed(np.append(snapshot.shape_weight, 0.0)),
            pending=replace(snapshot.pending, shape=sealed(changed)),
        ),
        shape=shape,
    )


def _limits(snapshot: Snapshot, row: int, asked: Shape, wait: Wait, policy: Policy, now_s: float) -> Iterator[_Trial]:
    """Yields limits raised by what is missing: of the team that binds, then of it and all above it."""
    teams = snapshot.teams
    if wait.where not in teams.names:
        return
    team = teams.names.index(wait.where)
    if wait.limit is Limit.BUDGET:
        raised = teams.dollars_max.copy()
        raised[team] = np.inf
        text = f"a larger budget for team {wait.where}"
        yield _Trial(
            kind=ChangeKind.BUDGET,
            text=text,
            snapshot=replace(snapshot, teams=replace(teams, dollars_max=sealed(raised))),
            shape=asked,
        )
        return
    short = -(-int(wait.short_by * MILLI) // 1)
    if teams.milli_max[team] != NO_LIMIT:
        caps = teams.milli_max.copy()
        caps[team] += short
        text = f"{caps[team] / MILLI:g} chips for team {wait.where} instead of {teams.milli_max[team] / MILLI:g}"
        changed = replace(snapshot, teams=replace(teams, milli_max=sealed(caps)))
        yield _Trial(kind=ChangeKind.QUOTA, text=text, snapshot=changed, shape=asked)
    limited: Integers = teams.borrow_max_milli.copy()
    if (limited[team] != NO_LIMIT).any():
        limited[team] = np.where(limited[team] == NO_LIMIT, NO_LIMIT, limited[team] + short)
        changed = replace(snapshot, teams=replace(teams, borrow_max_milli=sealed(limited)))
        text = f"team {wait.where} may borrow {wait.short_by:g} chips more"
        yield _Trial(kind=ChangeKind.QUOTA, text=text, snapshot=changed, shape=asked)
