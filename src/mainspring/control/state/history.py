"""Usage history: what teams used and spent, what jobs have had, how long jobs run.

Read whole when a controller begins to lead; from then on the mirror adds what ends. Hours are the grain: a budget's
window slides by whole hours.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from math import inf, log
from typing import Any

import sqlalchemy as sa

from mainspring.control.state.accounting import dollars
from mainspring.control.store.databases.functions import whole
from mainspring.control.store.records import (
    ATTEMPT_LIVE,
    JOB_LIVE,
    AttemptRecord,
    attempts_of,
    chunks,
    read_text,
    specs,
)
from mainspring.control.store.schema import UNCOUNTED, allocations, attempts, charges, jobs
from mainspring.domain.ids import AttemptId, ChipName, ClusterName, JobId, TeamName
from mainspring.domain.job import MILLI, JobSpec
from mainspring.domain.life import JobState
from mainspring.domain.ports import Backoff
from mainspring.domain.team import Team
from mainspring.planner.facts.builder import CHIP_VALUES, USAGE_HALF_LIFE_S

HALF_LIVES = 6  # What was used longer ago weighs under a sixty-fourth.
SUCCESSES_MAX = 2_000  # Newest ones learned from; each group of `planner.durations` remembers 64.
# After a cluster took a job back at once: as long as engines keep nodes that refuse work off plans, then longer from
# time to time, up to what a queue takes to change much.
AVOIDED = Backoff(first_s=60.0, cap_s=1_800.0)
STAYED_S = 600.0  # An attempt that had its nodes for longer was not in vain: the next may follow at once.
RAN_S_MIN = 1.0  # What ran for less, by clocks that were set back, teaches plans that its nodes are free at once.
_HOUR_S = 3_600.0
_DAY_HOURS = 24

_hour = {
    name: whole(column / _HOUR_S).label(name)
    for name, column in (("began", allocations.c.granted_s), ("ended", allocations.c.ended_s))
}
_lasted_s = allocations.c.ended_s - allocations.c.granted_s
ENDED_BY_HOUR = (  # As `charges` has it of attempts that are counted.
    sa.select(
        jobs.c.team,
        allocations.c.chips,
        *_hour.values(),
        sa.func.sum(_lasted_s).label("seconds"),
        sa.func.sum(_lasted_s * allocations.c.dollars_per_hour / _HOUR_S).label("dollars"),
    )
    .join(attempts, allocations.c.attempt_id == attempts.c.id)
    .join(jobs, attempts.c.job_id == jobs.c.id)
    .where(allocations.c.ended_s > allocations.c.granted_s)
    .group_by(jobs.c.team, allocations.c.chips, *_hour.values())
)
_LIVE = (
    sa.select(jobs.c.team, allocations.c.chips, allocations.c.granted_s)
    .join(attempts, allocations.c.attempt_id == attempts.c.id)
    .join(jobs, attempts.c.job_id == jobs.c.id)
    .where(
        attempts.c.state.in_(ATTEMPT_LIVE),
        allocations.c.ended_s.is_(None),
        sa.func.coalesce(allocations.c.queued, "") == "",
    )
)
_PASTS = (
    sa.select(
        attempts.c.id,
        attempts.c.job_id,
        attempts.c.cluster,
        attempts.c.granted_s,
        attempts.c.ended_s,
        attempts.c.stop_cause,
    )
    .join(jobs, attempts.c.job_id == jobs.c.id)
    .where(jobs.c.state.in_(JOB_LIVE), attempts.c.ended_s.is_not(None))
    .order_by(attempts.c.number)
)
_CHIPS = sa.select(allocations.c.attempt_id, allocations.c.chips, allocations.c.granted_s, allocations.c.ended_s).where(
    allocations.c.ended_s.is_not(None)
)
_SUCCEEDED = (
    sa.select(jobs.c.id)
    .where(jobs.c.state == JobState.SUCCEEDED.value)
    .order_by(jobs.c.ordinal.desc())
    .limit(SUCCESSES_MAX)
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Avoided:
    """A cluster that took a job back, how many times running, and until when the job is not to be placed there."""

    cluster: ClusterName
    times: int
    until_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Past:
    """What a job's ended attempts amount to.

    Args:
        attained_chip_s: Chip-seconds they had.
        ran_s: Seconds they lasted.
        evicted_s: When the last of them that a plan or a cluster ended was over; minus infinity for none.
        avoided: Clusters that took it back, in no particular order.
    """

    attained_chip_s: float = 0.0
    ran_s: float = 0.0
    evicted_s: float = -inf
    avoided: tuple[Avoided, ...] = ()

    @property
    def avoid(self) -> Mapping[ClusterName, float]:
        """Returns until when it is not to be placed on some clusters."""
        return {one.cluster: one.until_s for one in self.avoided}

    def with_attempt(
        self, *, chip_s: float, granted_s: float, ended_s: float, displaced: bool, taken_by: ClusterName | None = None
    ) -> Past:
        """Returns the past with one more attempt.

        Args:
            chip_s: Chip-seconds it had.
            ended_s: When it was over.
            displaced: Whether a plan or its cluster ended it.
            taken_by: The cluster that took it back, if one did.
        """
        lasted_s = max(0.0, ended_s - granted_s)
        avoided = self.avoided
        if taken_by is not None:
            before = next((one.times for one in avoided if one.cluster == taken_by), 0)
            times = 1 if lasted_s > STAYED_S else before + 1
            until_s = ended_s + AVOIDED.wait_s(times)
            others = tuple(one for one in avoided if one.cluster != taken_by)
            avoided = (*others, Avoided(cluster=taken_by, times=times, until_s=until_s))
        return Past(
            attained_chip_s=self.attained_chip_s + chip_s,
            ran_s=self.ran_s + lasted_s,
            evicted_s=max(self.evicted_s, ended_s) if displaced else self.evicted_s,
            avoided=avoided,
        )

    def set_back(self, now_s: float) -> Past:
        """Returns the same of a clock that was set back to now: no pause lasts longer for that."""
        avoided = tuple(
            replace(one, until_s=min(one.until_s, now_s + AVOIDED.wait_s(one.times))) for one in self.avoided
        )
        return replace(self, evicted_s=min(self.evicted_s, now_s), avoided=avoided)


@dataclass(frozen=True, slots=True, kw_only=True)
class Success:
    """A job that succeeded, and how long its attempts lasted together."""

    spec: JobSpec
    ran_s: float


def pasts(connection: sa.Connection, displacing: Iterable[str], *, taken: str) -> dict[JobId, Past]:
    """Returns the past of every job that has not ended and had an attempt before.

    Args:
        displacing: Causes of stops that were a plan's or a cluster's.
        taken: That of a cluster's.
    """
    found: dict[JobId, Past] = {}
    causes = tuple(displacing)
    rows = connection.execute(_PASTS).all()
    had = chip_seconds(connection, [AttemptId(row.id) for row in rows])
    for row in rows:
        job = JobId(row.job_id)
        found[job] = found.get(job, Past()).with_attempt(
            chip_s=had.get(AttemptId(row.id), 0.0),
            granted_s=row.granted_s,
            ended_s=row.ended_s,
            displaced=row.stop_cause in causes,
            taken_by=ClusterName(row.cluster) if row.stop_cause == taken else None,
        )
    return found


def chip_seconds(connection: sa.Connection, wanted: Iterable[AttemptId]) -> dict[AttemptId, float]:
    """Returns the chip-seconds that some attempts had, as far as what they held is over.

    Args:
        wanted: Ids of the attempts.
    """
    found: dict[AttemptId, float] = {}
    for some in chunks(wanted):
        for row in connection.execute(_CHIPS.where(allocations.c.attempt_id.in_(some))):
            had = sum(_chips(row.chips).values()) / MILLI * max(0.0, row.ended_s - row.granted_s)
            found[AttemptId(row.attempt_id)] = found.get(AttemptId(row.attempt_id), 0.0) + had
    return found


def usage(connection: sa.Connection, now_s: float) -> Mapping[TeamName, float]:
    """Returns chip value x seconds each team used by itself until now, decayed.

    Source: Slurm's multifactor plugin, decayed usage with a half-life; here in closed form over each interval.
    """
    half_s = USAGE_HALF_LIFE_S
    used: dict[TeamName, float] = {}

    def add(team: str, chips: str, began_s: float, ended_s: float, seconds: float) -> None:
        began_s, ended_s = min(began_s, now_s - 1.0), min(ended_s, now_s)
        ended_s = max(ended_s, began_s + 1.0)
        value = sum(CHIP_VALUES.get(chip, 1.0) * milli / MILLI for chip, milli in _chips(chips).items())
        weighed_s = (0.5 ** ((now_s - ended_s) / half_s) - 0.5 ** ((now_s - began_s) / half_s)) * half_s / log(2.0)
        used[TeamName(team)] = used.get(TeamName(team), 0.0) + value * seconds * weighed_s / (ended_s - began_s)

    for row in _ended_since(connection, now_s - HALF_LIVES * USAGE_HALF_LIFE_S):
        add(row.team, row.chips, row.began * _HOUR_S, row.ended * _HOUR_S, row.seconds)
    for one in connection.execute(_LIVE):
        add(one.team, one.chips, one.granted_s, now_s, max(0.0, now_s - one.granted_s))
    return used


def _ended_since(connection: sa.Connection, since_s: float) -> Iterator[sa.Row[Any]]:
    """Yields what is over since a time, by team, chips and hours: as it was counted, and what is not counted yet."""
    yield from connection.execute(sa.select(charges).where(charges.c.ended >= since_s // _HOUR_S))
    yield from connection.execute(ENDED_BY_HOUR.where(UNCOUNTED, allocations.c.ended_s > since_s))


def successes(connection: sa.Connection) -> Iterator[Success]:
    """Yields the newest jobs that succeeded, oldest first."""
    newest = [JobId(job) for job in connection.execute(_SUCCEEDED).scalars()]
    written, own = specs(connection, newest), attempts_of(connection, newest)
    for job in reversed(newest):
        yield Success(spec=written[job], ran_s=max(RAN_S_MIN, sum(map(_ran_s, own.get(job, ())))))


def _ran_s(attempt: AttemptRecord) -> float:
    return max(0.0, (attempt.ended_s or attempt.granted_s) - attempt.granted_s)


def _chips(text: str) -> Mapping[ChipName, int]:
    return read_text(dict[ChipName, int], text)


@dataclass(frozen=True, slots=True, kw_only=True)
class Charge:
    """An allocation that costs money, and whom."""

    team: TeamName
    dollars_per_hour: float
    granted_s: float


class Spending:
    """Dollars by team and hour, as far back as the longest budget's window reaches."""

    def __init__(self) -> None:
        self._by_hour: dict[TeamName, dict[int, float]] = {}
        self._hours = 0
        self._sums: dict[TeamName, float] = {}
        self._sums_of: tuple[int, tuple[Team, ...]] | None = None

    def reach(self, connection: sa.Connection, tree: tuple[Team, ...], now_s: float) -> None:
        """Reads what is over cost, if some window reaches further back than what was read."""
        hours = max((_window(team) for team in tree), default=0)
        if hours <= self._hours:
            return
        self._hours = hours
        self._by_hour.clear()
        for row in _ended_since(connection, now_s - hours * _HOUR_S):
            self._add(TeamName(row.team), row.dollars, row.began, row.ended)

    def ended(self, charge: Charge, ended_s: float) -> None:
        """Adds an allocation that is over.

        Args:
            ended_s: When it was over.
        """
        cost = dollars(dollars_per_hour=charge.dollars_per_hour, granted_s=charge.granted_s, ended_s=ended_s)
        self._add(charge.team, cost, int(charge.granted_s // _HOUR_S), int(max(charge.granted_s, ended_s) // _HOUR_S))

    def totals(self, tree: tuple[Team, ...], live: Iterable[Charge], now_s: float) -> Mapping[TeamName, float]:
        """Returns what each team and those below it spent in its budget's window.

        Args:
            live: What goes on; counted until now.
        """
        hour = int(now_s // _HOUR_S)
        if self._sums_of != (hour, tree):
            self._sums_of, self._sums = (hour, tree), self._over_windows(tree, hour)
        sums = dict(self._sums)
        above = {team.name: team for team in tree}
        for charge in live:
            team = above.get(charge.team)
            while team is not None:
                began_s = max(charge.granted_s, (hour - _window(team)) * _HOUR_S)
                cost = dollars(dollars_per_hour=charge.dollars_per_hour, granted_s=began_s, ended_s=now_s)
                sums[team.name] = sums.get(team.name, 0.0) + cost
                team = above.get(team.parent) if team.parent is not None else None
        return sums

    def _add(self, team: TeamName, cost: float, began: int, ended: int) -> None:
        by_hour = self._by_hour.setdefault(team, {})
        began = max(began, ended - self._hours)
        for hour in range(began, ended + 1):
            by_hour[hour] = by_hour.get(hour, 0.0) + cost / (ended + 1 - began)
        self._sums_of = None

    def _over_windows(self, tree: tuple[Team, ...], hour: int) -> dict[TeamName, float]:
        above = {team.name: team for team in tree}
        sums: dict[TeamName, float] = {}
        for name, by_hour in self._by_hour.items():
            for old in [one for one in by_hour if one < hour - self._hours]:
                del by_hour[old]
            team = above.get(name)
            while team is not None:
                since = hour - _window(team)
                spent = sum(cost for one, cost in by_hour.items() if one >= since)
                sums[team.name] = sums.get(team.name, 0.0) + spent
                team = above.get(team.parent) if team.parent is not None else None
        return sums


def _window(team: Team) -> int:
    return round(team.budget_days * _DAY_HOURS) + 1
