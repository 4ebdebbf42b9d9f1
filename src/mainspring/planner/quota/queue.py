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
from mainspring.planner.facts.snapshot import NONE, Flags, Integers, Shape, Snapshot
from mainspring.planner.quota.entitlement import BORROWED, TIERS, Entitlement, Precedence, attained_level

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


class Queue:
    """Pending jobs in order; blocked ones are left out.

    Args:
        snapshot: The facts.
        entitlement: What teams hold, kept up to date by others while the queue is emptied.
        policy: Gives the levels of chip-time had.
        now_s: The time; jobs from the future count as submitted now.
    """

    def __init__(self, snapshot: Snapshot, entitlement: Entitlement, policy: Policy, now_s: float) -> None:
        pending = snapshot.pending
        self._entitlement, self._pending = entitlement, pending
        self._levels = len(policy.attained_levels_chip_s) + 1
        self._ranks = TIERS * self._levels
        level = attained_level(snapshot.teams, policy, pending.team, pending.attained_chip_s)
        self._rank = pending.tier * self._levels + level
        self._age, by_age = _ages(snapshot, now_s)
        self._sizes: list[_Chips] = [()]
        size = self._sized(snapshot)

        # A kind of job: its team, rank and size.
        self._kind = (pending.team * self._ranks + self._rank) * len(self._sizes) + size
        rows = by_age[~pending.blocked[by_age]]
        rows = rows[np.argsort(self._kind[rows], kind="stable")]
        kind = self._kind[rows]
        first = np.flatnonzero(np.append(True, kind[1:] != kind[:-1])) if len(rows) else rows
        self._rows: list[int] = rows.tolist()
        self._age_of: list[int] = self._age[rows].tolist()
        self._shape, self._duration_s = pending.shape[rows], np.minimum(pending.duration_safe_s[rows], FOREVER_S)
        self._shape_of: list[int] = self._shape.tolist()
        self._duration_s_of: list[float] = self._duration_s.tolist()
        self._team_of: list[int] = pending.team[rows[first]].tolist()
        self._rank_of: list[int] = self._rank[rows[first]].tolist()
        self._size_of: list[int] = size[rows[first]].tolist()
        self._next: list[int] = first.tolist()
        self._end: list[int] = [*self._next[1:], len(rows)]

        self._closed_from_s = np.full(len(snapshot.shapes), inf)
        self._closed_from_s_of: list[float] = self._closed_from_s.tolist()
        self._open = set(self._shape_of)
        self._closed_for: dict[int, Flags] = {}
        self._eased = len(entitlement.eased)
        self._heap = [self._place(bucket) for bucket in range(len(self._next))]
        heapq.heapify(self._heap)

    def pop(self) -> Turn | None:
        """Returns the next open job and takes it off the queue; None at the end."""
        if len(self._entitlement.eased) > self._eased:
            self._replace_eased()
        heap = self._heap
        while heap and self._open:
            known = heap[0]
            bucket = known[3]
            at = self._skip_closed(bucket)
            if at == self._end[bucket]:
                heapq.heappop(heap)
                continue
            place = self._place(bucket)
            if place > known:
                heapq.heapreplace(heap, place)
                continue
            self._next[bucket] = at + 1
            standing, rank = divmod(place[0], self._ranks)
            return Turn(
                row=self._rows[at],
                shape=self._shape_of[at],
                team=self._team_of[bucket],
                precedence=(standing, *divmod(rank, self._levels)),
            )
        return None

    def close(self, shape: int, *, duration_s: float = 0.0) -> None:
        """Takes all jobs of a shape off the queue that may run at least this long.

        Args:
            shape: The shape.
            duration_s: What their `duration_safe_s` is compared with.
        """
        closed_from_s = min(duration_s, self._closed_from_s_of[shape])
        self._closed_from_s[shape] = self._closed_from_s_of[shape] = closed_from_s
        if closed_from_s <= 0.0:
            self._open.discard(shape)

    def close_for_team(self, shape: int, team: int) -> None:
        """Takes all jobs of a shape and a team off the queue.

        Args:
            shape: The shape.
            team: The team.
        """
        if team not in self._closed_for:
            self._closed_for[team] = np.zeros(len(self._closed_from_s), dtype=np.bool_)
        self._closed_for[team][shape] = True

    def order(self, rows: Integers) -> Integers:
        """Returns pending rows in the order of the queue, blocked and closed ones too, by what teams hold now.

        Args:
            rows: Of the pending table.
        """
        teams, of_team = np.unique(self._pending.team[rows], return_inverse=True)
        shares = [self._entitlement.share(team) for team in teams.tolist()]
        place_of = {share: place for place, share in enumerate(sorted(set(shares)))}
        share = np.array([place_of[each] for each in shares], dtype=np.int64)[of_team]
        kinds, of_kind = np.unique(self._kind[rows], return_inverse=True)
        sizes = len(self._sizes)
        precedences = [
            self._precedence(kind // sizes // self._ranks, kind // sizes % self._ranks, kind % sizes)
            for kind in kinds.tolist()
        ]
        precedence = np.array(precedences, dtype=np.int64)[of_kind]
        return rows[np.lexsort((self._age[rows], share, precedence))]

    # ---------------------------------------------------------------- parts

    def _sized(self, snapshot: Snapshot) -> Integers:
        """Returns the size of each pending job: what it asks for, as an index of `_sizes`; 0 where none matters."""
        pending = snapshot.pending
        sure = np.array([self._entitlement.guaranteed(team) for team in range(len(snapshot.teams.names))])
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
        standing = self._entitlement.standing_at(team, chips, rank) if chips else BORROWED
        return standing * self._ranks + rank

    def _place(self, bucket: int) -> _Place:
        team = self._team_of[bucket]
        precedence = self._precedence(team, self._rank_of[bucket], self._size_of[bucket])
        return precedence, self._entitlement.share(team), self._age_of[self._next[bucket]], bucket

    def _skip_closed(self, bucket: int) -> int:
        """Moves a bucket on to its first open job and returns where that lies; its end when there is none."""
        at, end = self._next[bucket], self._end[bucket]
        closed = self._closed_for.get(self._team_of[bucket])
        steps_end = min(end, at + STEPS)
        while at < steps_end:
            shape = self._shape_of[at]
            if self._duration_s_of[at] < self._closed_from_s_of[shape] and (closed is None or not closed[shape]):
                break
            at += 1
        else:
            stretch = STRETCH
            while at < end:
                shapes = self._shape[at : min(end, at + stretch)]
                opened = self._duration_s[at : at + len(shapes)] < self._closed_from_s[shapes]
                if closed is not None:
                    opened &= ~closed[shapes]
                first = int(np.argmax(opened))
                if opened[first]:
                    at += first
                    break
                at += len(shapes)
                stretch *= 4
        self._next[bucket] = at
        return at

    def _replace_eased(self) -> None:
        """Places the buckets anew that something released may bring forward."""
        roots = set(self._entitlement.eased[self._eased :])
        self._eased = len(self._entitlement.eased)
        for index, place in enumerate(self._heap):
            bucket = place[3]
            if self._entitlement.root(self._team_of[bucket]) in roots and self._next[bucket] < self._end[bucket]:
                self._heap[index] = self._place(bucket)
        heapq.heapify(self._heap)


def _ages(snapshot: Snapshot, now_s: float) -> tuple[Integers, Integers]:
    """Returns the place of each pending row by age, then id, and the rows in that order."""
    pending = snapshot.pending
    by_age = np.arange(len(pending.jobs))
    first = int(np.searchsorted(pending.submitted_s, now_s))
    by_age[first:] = sorted(range(first, len(pending.jobs)), key=lambda row: pending.jobs[row])
    age = np.empty_like(by_age)
    age[by_age] = np.arange(len(by_age))
    return age, by_age


def _asked(shape: Shape, chip_row: Mapping[ChipName, int]) -> _Chips:
    """Returns the chips the first options of a shape's roles take; "any" is of unknown type unless there is but one."""
    chips: dict[int, int] = {}
    for role in shape.roles:
        option = role.options[0]
        chip = 0 if option.chip == ANY_CHIP and len(chip_row) == 1 else chip_row.get(option.chip, NONE)
        chips[chip] = chips.get(chip, 0) + option.chip_milli * option.replicas
    return tuple(sorted((chip, milli) for chip, milli in chips.items() if milli))
