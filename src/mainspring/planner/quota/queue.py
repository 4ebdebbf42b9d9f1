"""Queue order: pending jobs by standing, tier, level of chip-time had, share, age and id.

Jobs of one team, tier and level that ask for equally many chips lie in one bucket, oldest first: whatever happens, they
stand alike. A heap holds the buckets by the place of their first job. While a plan is made what teams hold only grows,
so a place only worsens: an outdated one is put right when it comes to the top. Where something is released, the
buckets concerned are placed anew.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping
from dataclasses import dataclass
from math import inf

import numpy as np

from mainspring.domain.ids import ChipName
from mainspring.domain.job import ANY_CHIP
from mainspring.planner.facts.policy import Policy
from mainspring.planner.facts.snapshot import NONE, Flags, Floats, Integers, Shape, Snapshot
from mainspring.planner.quota.entitlement import Entitlement
from mainspring.planner.quota.precedence import BORROWED, TIERS, Precedence, attained_level

FOREVER_S = 1e300  # Stands for a duration nobody can know: longer than any known one, yet less than infinity.
STEPS = 16  # Closed jobs skipped one by one before whole stretches are looked at together.
STRETCH = 256  # The first such stretch; each is four times as long as the last.

_Chips = tuple[tuple[int, int], ...]  # Pairs of chip type and thousandths.
_Place = tuple[int, tuple[float, ...], int, int]  # Precedence as one number, share, age, bucket.


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """A job whose turn it is.

    Args:
        row: Its row among the pending.
        shape: Index of its shape.
        team: Index of its team.
        precedence: It may displace live attempts whose precedence is greater.
    """

    row: int
    shape: int
    team: int
    precedence: Precedence


@dataclass(frozen=True, slots=True, kw_only=True)
class _Buckets:
    """Jobs that may start, bucket by bucket: first what each job is, then what each bucket is.

    `next` and `end` bound the jobs of a bucket that are left. Columns that are looked at one by one are lists.
    """

    row_of: list[int]
    age_of: list[int]
    shape: Integers
    shape_of: list[int]
    duration_s: Floats
    duration_s_of: list[float]
    team: list[int]
    rank: list[int]
    size: list[int]
    next: list[int]
    end: list[int]


class _Closed:
    """What is taken off the queue: shapes from some duration on, and shapes of one team."""

    def __init__(self, shapes: int, waiting: list[int]) -> None:
        self._from_s = np.full(shapes, inf)
        self._from_s_of: list[float] = self._from_s.tolist()
        self._of_team: dict[int, Flags] = {}
        self.open = set(waiting)

    def close(self, shape: int, duration_s: float) -> None:
        from_s = min(duration_s, self._from_s_of[shape])
        self._from_s[shape] = self._from_s_of[shape] = from_s
        if from_s <= 0.0:
            self.open.discard(shape)

    def close_for_team(self, shape: int, team: int) -> None:
        if team not in self._of_team:
            self._of_team[team] = np.zeros(len(self._from_s), dtype=np.bool_)
        self._of_team[team][shape] = True

    def first_open(self, jobs: _Buckets, bucket: int) -> int:
        """Returns where the first open job of a bucket lies; its end when there is none."""
        at, end = jobs.next[bucket], jobs.end[bucket]
        closed = self._of_team.get(jobs.team[bucket])
        steps_end = min(end, at + STEPS)
        while at < steps_end:
            shape = jobs.shape_of[at]
            if jobs.duration_s_of[at] < self._from_s_of[shape] and (closed is None or not closed[shape]):
                return at
            at += 1
        stretch = STRETCH
        while at < end:
            shapes = jobs.shape[at : min(end, at + stretch)]
            opened = jobs.duration_s[at : at + len(shapes)] < self._from_s[shapes]
            if closed is not None:
                opened &= ~closed[shapes]
            first = int(np.argmax(opened))
            if opened[first]:
                return at + first
            at += len(shapes)
            stretch *= 4
        return at


class Queue:
    """Pending jobs in order; blocked and paused ones, and those behind others of their service, are left out.

    Args:
        entitlement: What teams hold, kept up to date by others while the queue is emptied.
        policy: Gives the levels of chip-time had.
        now_s: The time; jobs from the future count as submitted now.
    """

    def __init__(self, snapshot: Snapshot, entitlement: Entitlement, policy: Policy, now_s: float) -> None:
        pending = snapshot.pending
        self._entitlement, self._teams = entitlement, pending.team
        self._standing, self._share = entitlement.guarantees.standing, entitlement.shares.of
        self._levels = len(policy.attained_levels_chip_s) + 1
        self._ranks = TIERS * self._levels
        level = attained_level(snapshot.teams, policy, pending)
        rank = pending.tier * self._levels + level
        self._age = _ages(snapshot, now_s)
        self._sizes: list[_Chips] = [()]
        size = self._sized(snapshot)
        self._kind = (pending.team * self._ranks + rank) * len(self._sizes) + size  # Of a job: its team, rank and size.
        rows = np.argsort(self._age)
        rows = rows[~(pending.blocked | pending.paused | pending.behind)[rows]]
        rows = rows[np.argsort(self._kind[rows], kind="stable")]
        own = self._kind[rows]
        first = np.flatnonzero(np.append(True, own[1:] != own[:-1])) if len(rows) else rows
        shape, duration_s = pending.shape[rows], np.minimum(pending.duration_safe_s[rows], FOREVER_S)
        self._jobs = _Buckets(
            row_of=rows.tolist(),
            age_of=self._age[rows].tolist(),
            shape=shape,
            shape_of=shape.tolist(),
            duration_s=duration_s,
            duration_s_of=duration_s.tolist(),
            team=pending.team[rows[first]].tolist(),
            rank=rank[rows[first]].tolist(),
            size=size[rows[first]].tolist(),
            next=first.tolist(),
            end=[*first[1:].tolist(), len(rows)],
        )
        self._closed = _Closed(len(snapshot.shapes), self._jobs.shape_of)
        self._eased = len(entitlement.eased)
        self._heap = [self._place(bucket) for bucket in range(len(first))]
        heapq.heapify(self._heap)

    def pop(self) -> Turn | None:
        """Returns the next open job and takes it off the queue; None at the end."""
        if len(self._entitlement.eased) > self._eased:
            self._replace_eased()
        heap, jobs = self._heap, self._jobs
        while heap and self._closed.open:
            known = heap[0]
            bucket = known[3]
            at = jobs.next[bucket] = self._closed.first_open(jobs, bucket)
            if at == jobs.end[bucket]:
                heapq.heappop(heap)
                continue
            place = self._place(bucket)
            if place > known:
                heapq.heapreplace(heap, place)
                continue
            jobs.next[bucket] = at + 1
            standing, rank = divmod(place[0], self._ranks)
            return Turn(
                row=jobs.row_of[at],
                shape=jobs.shape_of[at],
                team=jobs.team[bucket],
                precedence=(standing, *divmod(rank, self._levels)),
            )
        return None

    def close(self, shape: int, *, duration_s: float = 0.0) -> None:
        """Takes all jobs of a shape off the queue that may run at least this long.

        Args:
            shape: The shape.
            duration_s: What their `duration_safe_s` is compared with.
        """
        self._closed.close(shape, duration_s)

    def close_for_team(self, shape: int, team: int) -> None:
        """Takes all jobs of a shape and a team off the queue.

        Args:
            shape: The shape.
        """
        self._closed.close_for_team(shape, team)

    def order(self, rows: Integers) -> Integers:
        """Returns pending rows in the order of the queue, blocked, paused and closed ones too, by what teams hold now.

        Args:
            rows: Of the pending table.
        """
        teams, of_team = np.unique(self._teams[rows], return_inverse=True)
        shares = [self._share(team) for team in teams.tolist()]
        place_of = {share: place for place, share in enumerate(sorted(set(shares)))}
        share = np.array([place_of[each] for each in shares], dtype=np.int64)[of_team]
        kinds, of_kind = np.unique(self._kind[rows], return_inverse=True)
        sizes, ranks = len(self._sizes), self._ranks
        precedences = [
            self._precedence(kind // sizes // ranks, kind // sizes % ranks, kind % sizes) for kind in kinds.tolist()
        ]
        precedence = np.array(precedences, dtype=np.int64)[of_kind]
        return rows[np.lexsort((self._age[rows], share, precedence))]

    # ---------------------------------------------------------------- parts

    def _sized(self, snapshot: Snapshot) -> Integers:
        """Returns the size of each pending job: what it asks for, as an index of `_sizes`; 0 where none matters."""
        pending, over = snapshot.pending, self._entitlement.guarantees.over
        sure = np.array([bool(over(team)) for team in range(len(snapshot.teams.names))])
        if not sure.any():
            return np.zeros_like(pending.shape)
        chip_row = {chip: row for row, chip in enumerate(snapshot.chips)}
        index_of: dict[_Chips, int] = {(): 0}
        size = np.zeros(len(snapshot.shapes), dtype=np.int64)
        for shape in np.unique(pending.shape).tolist():
            size[shape] = index_of.setdefault(_asked(snapshot.shapes[shape], chip_row), len(index_of))
        self._sizes = list(index_of)
        return np.where(sure[pending.team], size[pending.shape], 0)

    def _precedence(self, team: int, rank: int, size: int) -> int:
        """Returns the precedence of a kind of job as one number."""
        chips = self._sizes[size]
        return (self._standing(team, chips, rank) if chips else BORROWED) * self._ranks + rank

    def _place(self, bucket: int) -> _Place:
        jobs = self._jobs
        team = jobs.team[bucket]
        precedence = self._precedence(team, jobs.rank[bucket], jobs.size[bucket])
        return precedence, self._share(team), jobs.age_of[jobs.next[bucket]], bucket

    def _replace_eased(self) -> None:
        """Places the buckets anew that something released may bring forward."""
        roots = set(self._entitlement.eased[self._eased :])
        self._eased = len(self._entitlement.eased)
        for index, place in enumerate(self._heap):
            bucket = place[3]
            left = self._jobs.next[bucket] < self._jobs.end[bucket]
            if left and self._entitlement.root(self._jobs.team[bucket]) in roots:
                self._heap[index] = self._place(bucket)
        heapq.heapify(self._heap)


def _ages(snapshot: Snapshot, now_s: float) -> Integers:
    """Returns the place of each pending row by age, then id."""
    pending = snapshot.pending
    by_age = np.arange(len(pending.jobs))
    first = int(np.searchsorted(pending.submitted_s, now_s))
    by_age[first:] = sorted(range(first, len(pending.jobs)), key=lambda row: pending.jobs[row])
    age = np.empty_like(by_age)
    age[by_age] = np.arange(len(by_age))
    return age


def _asked(shape: Shape, chip_row: Mapping[ChipName, int]) -> _Chips:
    """Returns the chips the first options of a shape's roles take; "any" is of unknown type unless there is but one."""
    chips: dict[int, int] = {}
    for role in shape.roles:
        option = role.options[0]
        chip = 0 if option.chip == ANY_CHIP and len(chip_row) == 1 else chip_row.get(option.chip, NONE)
        chips[chip] = chips.get(chip, 0) + option.chip_milli * option.replicas
    return tuple(sorted((chip, milli) for chip, milli in chips.items() if milli))
