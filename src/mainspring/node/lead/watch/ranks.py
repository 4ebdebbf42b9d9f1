"""Rank table of the running generation: each as last seen, its process, how far it is, how it ended."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import final

from mainspring.domain.ids import RoleName
from mainspring.domain.wire import RankPlace, Serving
from mainspring.node.lead.watch.hangs import RankPosition


@dataclass(slots=True)
class RankSeen:
    """One place as the lead last saw it: its process, how far it is, its last result. Written by its table alone.

    Args:
        exit_code: How its process ended, None while it lives.
        left: Whether it has left the generation because it was asked to.
        step: Its newest step, -1 before the first.
        serving: What it told last of how it serves, at `served_s`.
    """

    pid: int = 0
    exit_code: int | None = None
    left: bool = False
    step: int = -1
    metrics: Mapping[str, float] = field(default_factory=dict)
    results: int = 0
    serving: Serving | None = None
    served_s: float = 0.0

    @property
    def gone(self) -> bool:
        """Returns whether its program runs no more in this generation."""
        return self.left or self.exit_code is not None


@final
class RankTable:
    """Every place as last seen, and which of them run."""

    def __init__(self, ranks: Iterable[int]) -> None:
        self._seen = {rank: RankSeen() for rank in ranks}
        self._active: Mapping[int, RankPlace] = {}
        self._living: dict[RoleName, int] = {}
        self._unstepped: set[int] = set()

    def __getitem__(self, rank: int) -> RankSeen:
        """Returns a place, new or not."""
        return self._seen.get(rank) or RankSeen()

    def __contains__(self, rank: int) -> bool:
        """Returns whether a place was ever of a generation, or has told anything."""
        return rank in self._seen

    def assign(self, active: Mapping[int, RankPlace]) -> None:
        """Takes note that places were given role ranks anew: of their processes nothing is known yet."""
        self._active, self._living = active, {}
        for rank, place in active.items():
            before = self[rank]
            self._seen[rank] = RankSeen(metrics=before.metrics, results=before.results)
            self._living[place.role] = self._living.get(place.role, 0) + 1
        self._unstepped = set(active)

    def started(self, rank: int, pid: int) -> None:
        """Takes note of a rank's process."""
        self._seen[rank].pid = pid

    def result(self, rank: int, sequence: int) -> bool:
        """Counts a place's result; returns whether it is news."""
        seen = self._seen.setdefault(rank, RankSeen())
        news, seen.results = sequence > seen.results, max(seen.results, sequence)
        return news

    def stepped(self, rank: int, step: int, metrics: Mapping[str, float]) -> None:
        """Takes note of a rank's step report."""
        seen = self._seen[rank]
        seen.step, seen.metrics = max(seen.step, step), metrics or seen.metrics
        self._unstepped.discard(rank)

    def serves(self, rank: int, serving: Serving, now_s: float) -> None:
        """Takes note of what a rank that serves told of itself."""
        seen = self._seen[rank]
        seen.serving, seen.served_s = serving, now_s

    def serving(self, rank: int, now_s: float) -> Serving | None:
        """Returns how a rank serves and how old that word is, None for one that does not, or that has ended."""
        seen = self[rank]
        if seen.serving is None or not self.alive(rank) or seen.left:
            return None
        return replace(seen.serving, silent_s=round(max(0.0, now_s - seen.served_s), 1))

    def exited(self, rank: int, exit_code: int) -> None:
        """Takes note that a rank's process has ended."""
        self._living[self._active[rank].role] -= not self._seen[rank].gone
        self._seen[rank].exit_code = exit_code

    def left(self, rank: int) -> None:
        """Takes note that a rank has left its generation, and its process goes on."""
        self._living[self._active[rank].role] -= not self._seen[rank].gone
        self._seen[rank].left = True

    @property
    def any_live(self) -> bool:
        """Returns whether some rank runs."""
        return any(self._living.values())

    @property
    def living_roles(self) -> tuple[RoleName, ...]:
        """Returns the roles with ranks that run."""
        return tuple(role for role, living in sorted(self._living.items()) if living)

    @property
    def all_step(self) -> bool:
        """Returns whether every rank has reported a step in this generation."""
        return not self._unstepped

    @property
    def all_succeeded(self) -> bool:
        """Returns whether every rank's process has ended well."""
        return all(self._seen[rank].exit_code == 0 for rank in self._active)

    @property
    def metrics(self) -> Mapping[str, float]:
        """Returns the newest metrics of the lowest rank that reports any."""
        return next((self._seen[rank].metrics for rank in self._active if self._seen[rank].metrics), {})

    def alive(self, rank: int) -> bool:
        """Returns whether a place's process lives, as a rank of this generation."""
        return rank in self._active and self._seen[rank].pid > 0 and self._seen[rank].exit_code is None

    def positions(self, role: RoleName) -> Mapping[int, RankPosition]:
        """Returns where each rank of a role is."""
        return {
            rank: RankPosition(step=self._seen[rank].step, ended=self._seen[rank].gone)
            for rank, place in self._active.items()
            if place.role == role
        }
