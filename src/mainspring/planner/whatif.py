"""What-if: changes tried on a copy of a snapshot, and two plans compared. Nothing that is given is ever changed.

Columns that no change touches are shared with the snapshot given.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from math import inf, isfinite
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mainspring.domain.answers import AddNodes, Shift, Submit, WhatIf
from mainspring.domain.codec import alike
from mainspring.domain.errors import InvalidInput, NotFound, nearest
from mainspring.domain.fleet import NODES_MAX
from mainspring.domain.ids import ClusterName, JobId, NodeName
from mainspring.domain.plan import Plan
from mainspring.domain.team import Team
from mainspring.planner.facts.gather import team_table
from mainspring.planner.facts.snapshot import (
    NONE,
    Integers,
    Nodes,
    Pending,
    RoleShape,
    Shape,
    Snapshot,
    Teams,
    sealed,
)
from mainspring.planner.facts.tables import columns, filled, table_of, taken

TRIED = "what-if"  # Jobs that are only tried are called `what-if-<n>`.
_SAME_S = 1.0  # Starts nearer to each other than this are the same.


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """What differs between two plans; see `domain.answers.WhatIfAnswer`."""

    start: tuple[JobId, ...]
    wait: tuple[JobId, ...]
    restart: tuple[JobId, ...]
    stranded: tuple[JobId, ...]
    shifts: tuple[Shift, ...]
    sooner: int
    later: int


def changed(snapshot: Snapshot, changes: WhatIf, now_s: float) -> Snapshot:
    """Returns the snapshot as it would be after some changes.

    Clusters go first: their running jobs wait again. Then nodes and teams are added, then jobs, each after all others.

    Raises:
        NotFound: A change speaks of a cluster, chip or team that is not known.
        InvalidInput: There would be too many nodes, or the teams would be no tree.
    """
    for cluster in changes.remove_clusters:
        snapshot = _without_cluster(snapshot, cluster)
    for more in changes.add_nodes:
        snapshot = _with_nodes(snapshot, more)
    for team in changes.teams:
        snapshot = _with_team(snapshot, team)
    tried = 0
    for submit in changes.submits:
        snapshot = _with_jobs(snapshot, submit, tried, now_s)
        tried += submit.count
    return snapshot


def compare(before: Plan, after: Plan, *, running: Iterable[JobId], now_s: float, shifts_max: int) -> Comparison:
    """Returns what differs between two plans made at one time.

    Args:
        running: Jobs that ran before.
        now_s: When both were made.
        shifts_max: The most shifts to tell of.
    """
    old, new = _starts_s(before, now_s), _starts_s(after, now_s)
    ran = frozenset(running)
    again = [job for job in new if job in ran]
    shifts: list[Shift] = []
    for job, after_s in new.items():
        before_s = old.get(job, inf)
        if job not in ran and (job not in old or abs(before_s - after_s) > _SAME_S):
            shifts.append(Shift(job=job, before_s=_known(before_s), after_s=_known(after_s)))
    known = [shift for shift in shifts if shift.job in old]
    waiting = [shift for shift in shifts if shift.after_s != now_s and shift.before_s != now_s]
    waiting.sort(key=lambda shift: (-_gain_s(shift), shift.job))
    starts_before = {start.job: None for start in before.starts}
    starts_after = {start.job: None for start in after.starts}
    return Comparison(
        start=tuple(job for job in starts_after if job not in starts_before and job not in ran),
        wait=tuple(job for job in starts_before if job not in starts_after),
        restart=tuple(job for job in again if job in starts_after),
        stranded=tuple(job for job in again if job not in starts_after),
        shifts=tuple(waiting[:shifts_max]),
        sooner=sum(new[shift.job] < old[shift.job] for shift in known),
        later=sum(new[shift.job] > old[shift.job] for shift in known),
    )


def _starts_s(made: Plan, now_s: float) -> dict[JobId, float]:
    times = {start.job: now_s for start in made.starts}
    waits = (pair for wait in made.waits for pair in zip(wait.jobs, wait.start_s, strict=True))
    return times | {job: inf if at_s is None else at_s for job, at_s in waits}


def _known(at_s: float) -> float | None:
    return at_s if isfinite(at_s) else None


def _gain_s(shift: Shift) -> float:
    return inf if shift.before_s is None or shift.after_s is None else abs(shift.before_s - shift.after_s)


# ---------------------------------------------------------------- clusters and nodes


def _cluster_row(snapshot: Snapshot, cluster: str) -> int:
    names = snapshot.clusters.names
    if cluster not in names:
        raise NotFound("try a change", on=f"cluster {cluster[:80]!r}", wanted=nearest(cluster[:80], names))
    return names.index(ClusterName(cluster))


def _without_cluster(snapshot: Snapshot, cluster: ClusterName) -> Snapshot:
    """Returns the snapshot without a cluster's machines; jobs that ran there wait again, from their beginning."""
    row = _cluster_row(snapshot, cluster)
    nodes, live = snapshot.nodes, snapshot.live
    keep = nodes.cluster != row
    new_row = sealed(np.where(keep, np.cumsum(keep) - 1, NONE))
    kept_nodes = taken(taken(nodes, np.flatnonzero(keep)), np.flatnonzero(keep[nodes.share_node]), "share")
    kept_nodes = replace(kept_nodes, share_node=sealed(new_row[kept_nodes.share_node]))
    gone = live.cluster == row
    number = np.cumsum(~gone) - 1
    kept_live = taken(taken(live, np.flatnonzero(~gone)), np.flatnonzero(~gone[live.held_by]), "held")
    node = kept_live.held_node
    kept_live = replace(
        kept_live,
        held_by=sealed(number[kept_live.held_by]),
        held_node=sealed(np.where(node == NONE, NONE, new_row[node])),
    )
    over = taken(live, np.flatnonzero(gone & ~live.stopping))  # What is ending there already is left out.
    lasts_s, safe_s = over.ends_s - over.granted_s, over.ends_safe_s - over.granted_s
    lasted = {"duration_s": np.maximum(lasts_s, 0.0), "duration_safe_s": np.maximum(safe_s, 0.0)}
    same = filled(Pending, len(over.jobs), alike(Pending, over) | lasted)
    waiting = table_of(Pending, jobs=over.jobs, **same)
    present = snapshot.data.present.copy()
    present[:, row] = False
    return replace(
        snapshot,
        nodes=kept_nodes,
        live=kept_live,
        pending=_joined(snapshot.pending, waiting),
        offers=tuple(offer for offer in snapshot.offers if offer.cluster != row),
        data=replace(snapshot.data, present=sealed(present)),
    )


def _with_nodes(snapshot: Snapshot, more: AddNodes) -> Snapshot:
    """Returns the snapshot with more nodes like those a cluster has, free and ready, in domains of their own."""
    row = _cluster_row(snapshot, more.cluster)
    nodes = snapshot.nodes
    own = np.flatnonzero(nodes.cluster == row)
    if not 0 < more.nodes <= NODES_MAX - len(own):
        raise InvalidInput("add nodes", on=more.cluster, got=str(more.nodes), wanted=f"1 to {NODES_MAX - len(own)}")
    like = _like(snapshot, more, own)
    count = more.nodes
    pattern, turn = like[np.arange(count) % len(like)], np.arange(count) // len(like)
    places = nodes.domain[pattern]
    step = int(nodes.domain[own].max(initial=0)) + 1
    fresh = {
        "names": tuple(NodeName(f"{nodes.names[own[-1]]}-added-{index:06}") for index in range(count)),
        "whole": nodes.chips[pattern],
        "cpu_milli": nodes.cpu_total_milli[pattern],
        "memory_mib": nodes.memory_total_mib[pattern],
        "ready": np.ones(count, dtype=np.bool_),
        "leaves_s": np.full(count, inf),
        "avoided_s": np.full(count, -inf),
        "words": ("",) * count,
        "domain": np.where(places == NONE, NONE, places + step * (turn[:, None] + 1)),
    }
    at = int(own[-1]) + 1
    return replace(
        snapshot,
        nodes=replace(
            nodes,
            **{
                name: _inserted(getattr(nodes, name), at, fresh.get(name), pattern)
                for name in ("names", "words", *columns(Nodes, ""))
            },
            share_node=_shifted(nodes.share_node, at, count),
        ),
        live=replace(snapshot.live, held_node=_shifted(snapshot.live.held_node, at, count)),
    )


def _like(snapshot: Snapshot, more: AddNodes, own: Integers) -> Integers:
    """Returns the cluster's nodes that new ones shall be like."""
    chip = snapshot.nodes.chip[own]
    if not len(own):
        raise NotFound(
            "add nodes", on=more.cluster, got="a cluster without nodes", wanted="one that new ones can be like"
        )
    if more.chip and more.chip not in snapshot.chips:
        raise NotFound("add nodes", on=more.cluster, got=more.chip[:80], wanted=nearest(more.chip, snapshot.chips))
    wanted = snapshot.chips.index(more.chip) if more.chip else int(np.bincount(chip).argmax())
    like: Integers = own[chip == wanted]
    if not len(like):
        known = [snapshot.chips[each] for each in sorted(set(chip.tolist()))]
        raise NotFound("add nodes", on=more.cluster, got=f"no {more.chip} there", wanted=nearest(more.chip, known))
    return like


# ---------------------------------------------------------------- teams and jobs


def _with_team(snapshot: Snapshot, team: Team) -> Snapshot:
    """Returns the snapshot with a team added, or changed."""
    teams = snapshot.teams
    names = list(teams.names)
    if team.parent is not None and team.parent not in names:
        raise NotFound("try a change", on=f"team {team.parent!r}", wanted=nearest(team.parent, names))
    known = team.name in names
    at = names.index(team.name) if known else sum(name < team.name for name in names)
    usage, dollars = (float(teams.usage[at]), float(teams.dollars[at])) if known else (0.0, 0.0)
    made = team_table([team], snapshot.chips, usage=[usage], dollars=[dollars])
    told = {name: getattr(teams, name) for name in columns(Teams)}
    if known:
        for name, column in told.items():
            told[name] = column.copy()
            told[name][at] = getattr(made, name)[0]
    else:
        names.insert(at, team.name)
        told["parent"] = _shifted(teams.parent, at, 1)
        told = {name: np.insert(column, at, getattr(made, name)[0], axis=0) for name, column in told.items()}
    told["parent"][at] = NONE if team.parent is None else names.index(team.parent)
    above, steps = at, 0
    while (above := int(told["parent"][above])) != NONE:
        steps += 1
        if steps > len(names):
            raise InvalidInput("try a change", on=f"team {team.name!r}", got="a team above itself", wanted="a tree")
    moved = 0 if known else 1
    return replace(
        snapshot,
        teams=table_of(Teams, names=tuple(names), **told),
        live=replace(snapshot.live, team=_shifted(snapshot.live.team, at, moved)),
        pending=replace(snapshot.pending, team=_shifted(snapshot.pending.team, at, moved)),
    )


def _with_jobs(snapshot: Snapshot, submit: Submit, tried: int, now_s: float) -> Snapshot:
    """Returns the snapshot with more jobs that wait, younger than all others."""
    spec, teams = submit.spec, snapshot.teams
    if spec.team not in teams.names:
        raise NotFound("try a job", on=f"team {spec.team!r}", wanted=nearest(spec.team, teams.names))
    roles = tuple(RoleShape(name=role.name, options=role.options) for role in spec.roles)
    shape = Shape(roles=roles, inputs=spec.inputs)
    shapes, weight = snapshot.shapes, snapshot.shape_weight.copy()
    if shape not in shapes:
        shapes, weight = (*shapes, shape), np.append(weight, 0.0)
    row = shapes.index(shape)
    weight[row] += submit.count
    count = submit.count
    youngest_s = float(snapshot.pending.submitted_s.max(initial=now_s))
    unfinished = frozenset((*snapshot.pending.jobs, *snapshot.live.jobs))
    known = {
        "shape": row,
        "team": teams.names.index(spec.team),
        "tier": spec.tier.rank,
        "submitted_s": youngest_s,
        "duration_s": spec.duration_s or inf,
        "duration_safe_s": spec.duration_s or inf,
        "blocked": any(job in unfinished for job in spec.after),
    }
    names = tuple(JobId(f"{TRIED}-{tried + index:06}") for index in range(count))
    waiting = table_of(Pending, jobs=names, **filled(Pending, count, known))
    return replace(snapshot, shapes=shapes, shape_weight=sealed(weight), pending=_joined(snapshot.pending, waiting))


# ---------------------------------------------------------------- columns


def _joined(pending: Pending, more: Pending) -> Pending:
    """Returns both tables' rows, oldest first, then by id."""
    both = {name: np.concatenate([getattr(pending, name), getattr(more, name)]) for name in columns(Pending)}
    jobs = (*pending.jobs, *more.jobs)
    order = np.lexsort((np.array(jobs, dtype=np.str_), both["submitted_s"]))
    return taken(Pending(jobs=jobs, **both), order)


def _inserted(column: Any, at: int, fresh: Any, pattern: Integers) -> Any:
    """Returns a column of nodes with new rows; like those of the pattern, when there is nothing fresh to say."""
    if isinstance(column, tuple):
        return (*column[:at], *fresh, *column[at:])
    new = column[pattern] if fresh is None else fresh
    return sealed(np.concatenate([column[:at], new.astype(column.dtype), column[at:]]))


def _shifted(column: NDArray[np.int64], at: int, count: int) -> Integers:
    """Returns a column of row numbers, those from `at` on moved up."""
    return sealed(np.where(column >= at, column + count, column)) if count else column
