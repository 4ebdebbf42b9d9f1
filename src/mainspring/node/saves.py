"""Paces durable saves: one step at a time, the same one on every rank, made real when the last share has come."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import final

from mainspring.domain.wire import Detail, Shard, ShardsStored

STORE_EVERY_S = 10.0  # The most work an attempt can lose with its nodes, beyond what one save takes.
TRIES_MAX = 8  # Of one step: with the waits between, three minutes of a store that is full or does not answer.
WAIT_S_MAX = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Stored:
    """A step whose shares are all in the store.

    Args:
        step: The step.
        shards: Every rank's shards, in rank order.
        state: The program's facts; where ranks differ, the lowest rank's.
    """

    step: int
    shards: tuple[Shard, ...]
    state: Detail


@final
class Saves:
    """The save under way, and which steps were tried.

    Args:
        ranks: Every rank whose share a step needs.
    """

    def __init__(self, ranks: tuple[int, ...]) -> None:
        self.step: int | None = None
        self.writing = False
        self._ranks = ranks
        self._shares: dict[int, ShardsStored] = {}
        self._through = self._failed = -1
        self._started_s = self._again_s = -math.inf
        self._tries = 0

    def due(self, monotonic_s: float) -> bool:
        """Returns whether the next save may start.

        Args:
            monotonic_s: The time.
        """
        return self.step is None and monotonic_s - self._started_s >= STORE_EVERY_S

    def start(self, step: int, monotonic_s: float) -> bool:
        """Returns whether a save of `step` starts: none is under way, and neither it nor a later one was tried.

        Args:
            step: The newest step every rank's arena holds, -1 for none.
            monotonic_s: The time.
        """
        if self.step is not None or step <= self._through or monotonic_s < self._again_s:
            return False
        self.step, self.writing, self._shares = step, False, {}
        self._through, self._started_s = step, monotonic_s
        return True

    def share(self, stored: ShardsStored) -> None:
        """Takes one rank's share; one of another step is of no use any more.

        Args:
            stored: What is in the store.
        """
        if stored.step == self.step:
            self._shares[stored.rank] = stored

    def finish(self) -> Stored | None:
        """Returns the step, once, when its last share has come."""
        if self.step is None or self.writing or len(self._shares) < len(self._ranks):
            return None
        self.writing = True
        state: dict[str, str | int | float | bool] = {}
        for rank in sorted(self._ranks, reverse=True):
            state.update(self._shares[rank].state)
        shards = tuple(shard for rank in sorted(self._ranks) for shard in self._shares[rank].shards)
        return Stored(step=self.step, shards=shards, state=state)

    def owes(self, step: int) -> bool:
        """Returns whether a save is under way, or `step` is yet to be saved or tried again.

        Args:
            step: The newest step every rank's arena holds, -1 for none.
        """
        return self.step is not None or step > self._through

    def fail(self, step: int, monotonic_s: float) -> bool:
        """Ends the save under way if it is one of `step`, which is tried again; returns whether this failure is news.

        Args:
            step: The step that could not be stored, or for which an arena had no room.
            monotonic_s: The time.
        """
        news, self._failed = step != self._failed, step
        self._tries = 1 if news else self._tries + 1
        if self.step == step and not self.writing:
            self.end()
            if self._tries < TRIES_MAX:
                self._through = min(self._through, step - 1)
                self._again_s = monotonic_s + min(2.0 ** (self._tries - 1), WAIT_S_MAX)
        return news

    def end(self) -> None:
        """Forgets the save under way."""
        self.step, self.writing, self._shares = None, False, {}

    def rewind(self, step: int) -> None:
        """Forgets what came after `step`: the attempt goes on from there, and will save those steps anew.

        Args:
            step: The step resumed from.
        """
        self._through = min(self._through, step)
        if self.step is not None and self.step > step and not self.writing:
            self.end()
