"""Who is next, and who may hold how much: the tenant tree's ledger, and the queue of shapes.

Order: tier, then the use of the team (and of the teams above it, compared from the top of the tree down, chips held
now and granted so far in this plan), then age. Only equals by all three are ordered by id.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass

from mainspring.domain.ids import JobId, TeamName
from mainspring.planner.snapshot import NO_LIMIT, NONE, Live, Shape, Teams


@dataclass(frozen=True, slots=True, kw_only=True)
class Overdraft:
    """A team limit that a grant would break.

    Args:
        team: The team whose limit it is.
        used_milli: What the team holds.
        milli_max: Its limit.
        short_milli: How much the grant is over it.
    """

    team: TeamName
    used_milli: int
    milli_max: int
    short_milli: int


class Ledger:
    """What each team holds, those below it included, while a plan is made.

    Args:
        teams: The tenant tree.
        live: What is charged already.
    """

    def __init__(self, teams: Teams, live: Live) -> None:
        self._names = teams.names
        self._milli_max = teams.milli_max.tolist()
        parent = teams.parent.tolist()
        self._path: list[tuple[int, ...]] = []
        for row in range(len(self._names)):
            path = [row]
            while parent[path[0]] != NONE:
                path.insert(0, parent[path[0]])
            self._path.append(tuple(path))
        self._used = [0] * len(self._names)
        team_of = live.team.tolist()
        for attempt, milli in zip(live.held_by.tolist(), live.held_milli.tolist(), strict=True):
            self.charge(team_of[attempt], milli)

    def charge(self, team: int, milli: int) -> None:
        """Charges a team, and all above it.

        Args:
            team: Index of the team.
            milli: How much it holds from now on.
        """
        for row in self._path[team]:
            self._used[row] += milli

    def overdraft(self, team: int, milli: int) -> Overdraft | None:
        """Returns the first limit, from the top of the tree down, that a grant would break.

        Args:
            team: Index of the team that would be charged.
            milli: How much.
        """
        for row in self._path[team]:
            limit = self._milli_max[row]
            if limit != NO_LIMIT and self._used[row] + milli > limit:
                used = self._used[row]
                return Overdraft(
                    team=self._names[row], used_milli=used, milli_max=limit, short_milli=used + milli - limit
                )
        return None

    def share(self, team: int) -> tuple[int, ...]:
        """Returns what the team's ancestors and itself hold, from the top down: who holds less goes first.

        Args:
            team: Index of the team.
        """
        return tuple(self._used[row] for row in self._path[team])


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Turn:
    """A job's place in the queue; less is sooner.

    Args:
        tier: Rank of its tier.
        share: See `Ledger.share`.
        since_s: When it was submitted, now at the latest.
        job: The job.
        shape: Index of its shape.
        index: Index of the job in its shape.
    """

    tier: int
    share: tuple[int, ...]
    since_s: float
    job: JobId
    shape: int
    index: int


class Queue:
    """The next job of each shape, in order.

    Every team's use only grows while a plan is made, so a turn only worsens: an outdated one is put right when it comes
    to the top.

    Args:
        shapes: What is pending.
        ledger: What teams hold, kept up to date by others.
        now_s: The time.
    """

    def __init__(self, shapes: tuple[Shape, ...], ledger: Ledger, now_s: float) -> None:
        self._shapes = shapes
        self._ledger = ledger
        self._now_s = now_s
        self._heap = [self._turn(shape, 0) for shape in range(len(shapes))]
        heapq.heapify(self._heap)

    def pop(self) -> Turn | None:
        """Returns the next job and takes its shape off the queue; None at the end."""
        while self._heap:
            top = self._heap[0]
            current = self._turn(top.shape, top.index)
            if current == top:
                return heapq.heappop(self._heap)
            heapq.heapreplace(self._heap, current)
        return None

    def push_next(self, turn: Turn) -> None:
        """Puts the next job of the same shape on the queue, if there is one.

        Args:
            turn: The job that was started.
        """
        if turn.index + 1 < len(self._shapes[turn.shape].jobs):
            heapq.heappush(self._heap, self._turn(turn.shape, turn.index + 1))

    def _turn(self, shape: int, index: int) -> Turn:
        entry = self._shapes[shape]
        return Turn(
            tier=entry.tier.rank,
            share=self._ledger.share(entry.team),
            since_s=min(float(entry.submitted_s[index]), self._now_s),
            job=entry.jobs[index],
            shape=shape,
            index=index,
        )
