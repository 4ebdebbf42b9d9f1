"""Fairness: what teams had of what was due to them.

Due to a team at an instant is its guarantee (where no team has one: its part of the fleet by weight), but no more than
it uses and waits for. A deficit is the part of a guarantee that is not used although waiting jobs would fit into it;
it counts once it has lasted for `PATIENCE_S`, from its beginning.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from mainspring.domain.ids import TeamName
from mainspring.domain.job import ANY_CHIP
from mainspring.domain.team import Team
from mainspring.planner.facts.snapshot import Flags, Floats
from mainspring.simulator.results.steps import integral, values
from mainspring.simulator.virtual.outcome import Outcome

HOUR_S = 3_600.0
PATIENCE_S = 1_800.0
SLACK = 1e-6  # Chips: sums of thousandths are not exact.


@dataclass(frozen=True, slots=True, kw_only=True)
class TeamShare:
    """What one team, and those below it, had.

    Args:
        due: Chips it could count on: its guarantee, or its part by weight.
        due_h: Chip-hours that were due to it.
        had: The part of those it had.
        deficit_h: Chip-hours its guarantee was short of for longer than half an hour, though it could have used them.
        jobs: Jobs of its own that succeeded.
        dollars: What its own jobs cost.
    """

    team: TeamName
    due: float
    used_h: float
    due_h: float
    had: float
    deficit_h: float
    jobs: int
    slowdown: float
    dollars: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Fairness:
    """How teams fared beside one another.

    Args:
        teams: Every team, by name.
        jain: Jain's index over the parts they had of what was due: 1 when all are equal, 1/n when one has all.
        deficit_h: Chip-hours by which teams with a guarantee they could use stayed below it.
    """

    teams: tuple[TeamShare, ...]
    jain: float
    deficit_h: float


@dataclass(frozen=True, slots=True, kw_only=True)
class _Course:
    """One team's use and demand at each of its changes."""

    at_s: Floats
    used: Floats
    waiting: Mapping[float, Floats]  # How many jobs wait, by size.

    def demand(self) -> Floats:
        return self.used + sum((size * count for size, count in self.waiting.items()), np.zeros_like(self.used))


def fairness(outcome: Outcome) -> Fairness:
    """Returns how teams fared.

    Args:
        outcome: What a replay came to.
    """
    tree = {team.name: team for team in outcome.tree}
    shares = []
    for name in outcome.teams:
        team = tree.get(name, Team(name=name))
        below = np.array([_is_below(other, name, tree) for other in outcome.teams], dtype=np.bool_)
        shares.append(_share(outcome, team, below, weighed=not any(each.guarantee for each in outcome.tree)))
    # A team's figures hold those of the teams below it: only the lowest are compared and added up.
    lowest = [share for share in shares if share.due_h > 0 and not _owed_below(share, shares, tree)]
    had = np.array([share.had for share in lowest])
    return Fairness(
        teams=tuple(shares),
        jain=float(had.sum() ** 2 / (len(had) * (had**2).sum())) if had.any() else 1.0,
        deficit_h=sum(share.deficit_h for share in lowest),
    )


def _owed_below(share: TeamShare, shares: Sequence[TeamShare], tree: Mapping[TeamName, Team]) -> bool:
    return any(other.due > 0 and _is_below(other.team, share.team, tree) for other in shares if other is not share)


def _is_below(name: TeamName, top: TeamName, tree: Mapping[TeamName, Team]) -> bool:
    at: TeamName | None = name
    while at is not None and at != top:
        at = tree[at].parent if at in tree else None
    return at == top


def _share(outcome: Outcome, team: Team, below: Flags, *, weighed: bool) -> TeamShare:
    due = used_s = due_s = had_s = deficit_s = 0.0
    for chips, chip in _dues(outcome, team, weighed=weighed):
        course = _course(outcome, below, chip)
        owed = np.minimum(chips, course.demand())
        spans_s = np.diff(np.append(course.at_s, outcome.end_s))
        due += chips
        due_s += float((owed * spans_s).sum())
        had_s += float((np.minimum(course.used, owed) * spans_s).sum())
        if not weighed:
            deficit_s += _deficit_s(course, chips, spans_s)
    mine = below[outcome.use.whole("team")]
    used_s = float(integral(outcome.use.time_s[mine], outcome.use["amount"][mine], np.array([outcome.end_s]))[0])
    jobs = outcome.jobs
    own = jobs.succeeded[jobs.team[jobs.succeeded] == outcome.teams.index(team.name)]
    took = (jobs.end_s[own] - jobs.submit_s[own]) / np.maximum(jobs.duration_s[own], 10.0)
    return TeamShare(
        team=team.name,
        due=due,
        used_h=used_s / HOUR_S,
        due_h=due_s / HOUR_S,
        had=had_s / due_s if due_s else 0.0,
        deficit_h=deficit_s / HOUR_S,
        jobs=len(own),
        slowdown=float(np.maximum(took, 1.0).mean()) if len(own) else 0.0,
        dollars=float(jobs.dollars[jobs.team == outcome.teams.index(team.name)].sum()),
    )


def _dues(outcome: Outcome, team: Team, *, weighed: bool) -> Iterable[tuple[float, str]]:
    """Yields what is due to a team, and of which chip; "" for any."""
    if not weighed:
        yield from ((team.guarantee[chip], chip) for chip in sorted(team.guarantee))
        return
    parents = {each.parent for each in outcome.tree}
    tree = {each.name: each for each in outcome.tree}
    leaves = [tree.get(name, Team(name=name)) for name in outcome.teams if name not in parents]
    if team.name in parents:
        return
    there_s = integral(outcome.room.time_s, outcome.room["amount"], np.array([outcome.end_s]))[0]
    there = float(there_s) / max(outcome.end_s - outcome.start_s, 1.0)
    yield there * team.weight / sum(leaf.weight for leaf in leaves), ""


def _course(outcome: Outcome, below: Flags, chip: str) -> _Course:
    pools = np.array([chip in ("", pool.chip) for pool in outcome.pools], dtype=np.bool_)
    asked = np.array([chip == "" or name in (chip, ANY_CHIP) for name in outcome.chips], dtype=np.bool_)
    use, want = outcome.use, outcome.want
    uses = below[use.whole("team")] & pools[use.whole("pool")]
    wants = below[want.whole("team")] & asked[want.whole("chip")]
    at_s = np.unique(np.concatenate([use.time_s[uses], want.time_s[wants], [outcome.start_s]]))
    waiting = {}
    for size in np.unique(want["size"][wants]).tolist():
        of_size = wants & (want["size"] == size)
        waiting[size] = values(want.time_s[of_size], want["count"][of_size], at_s)
    return _Course(at_s=at_s, used=values(use.time_s[uses], use["amount"][uses], at_s), waiting=waiting)


def _deficit_s(course: _Course, guarantee: float, spans_s: Floats) -> float:
    """Returns chip-seconds of a guarantee that were not used for long, though waiting jobs would have fitted."""
    room = np.maximum(guarantee - course.used, 0.0)
    short = np.zeros_like(room)
    for size in sorted((size for size in course.waiting if size > 0), reverse=True):
        taken = np.minimum(course.waiting[size], np.floor((room + SLACK) / size)) * size
        room, short = room - taken, short + taken
    lacking = short > SLACK
    # An episode is a run of instants with a deficit.
    begins = np.flatnonzero(lacking & ~np.concatenate([[False], lacking[:-1]]))
    if not len(begins):
        return 0.0
    lacking_s = np.add.reduceat(np.where(lacking, spans_s, 0.0), begins)
    short_s = np.add.reduceat(short * np.where(lacking, spans_s, 0.0), begins)
    return float(short_s[lacking_s > PATIENCE_S].sum())
