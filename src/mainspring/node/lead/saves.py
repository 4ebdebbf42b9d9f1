"""Durable saves: one step at a time, the same one on every rank, made real when the last share has come."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import final

from mainspring.domain.ports import Backoff
from mainspring.domain.wire import Detail, ShareStored, StoreStep
from mainspring.node.lead.holdings import Holdings, Taken
from mainspring.node.lead.watch.replicas import Divergence, Replicas

STORE_EVERY_S = 10.0  # The most work an attempt can lose with all its nodes, beyond what one save takes.
REST_PARTS = 3.0  # A save that took long is followed by three times as long a rest: disk and network are training's.
TRIES_MAX = 8  # Of one step: with the waits between, three minutes of a store that is full or does not answer.
AGAIN = Backoff(first_s=1.0, cap_s=60.0)
OVERTAKEN_WAIT_S = 1.0  # Snapshots that overtake saves come many times a second: the next one will do as well.


@dataclass(frozen=True, slots=True, kw_only=True)
class Stored:
    """A step whose shares are all in the store.

    Args:
        taken: The step, and the generation it was taken in.
        shares: Every rank's share, by place.
        state: The program's facts; where ranks differ, the lowest place's.
        divergence: What ranks should have in common and have not, None where all is as it should be.
    """

    taken: Taken
    shares: tuple[ShareStored, ...]
    state: Detail
    divergence: Divergence | None


@final
class Saves:
    """The save under way, and which steps were tried."""

    def __init__(self) -> None:
        self._taken: Taken | None = None
        self._writing = False
        self._agents: frozenset[int] = frozenset()
        self._ranks: frozenset[int] = frozenset()
        self._shares: dict[int, ShareStored] = {}
        self._through = self._failed = -1
        self._due_s = self._started_s = self._again_s = -math.inf
        self._tries = 0
        self._replicas = Replicas()

    @property
    def agents(self) -> frozenset[int]:
        """Returns the agents that have a share in the save under way, or had in the last."""
        return self._agents

    @property
    def writing(self) -> bool:
        """Returns whether the manifest of the save under way is being written."""
        return self._writing

    def due(self, monotonic_s: float) -> bool:
        """Returns whether the next save may start."""
        return self._taken is None and monotonic_s >= max(self._due_s, self._again_s)

    def start(self, holdings: Holdings, monotonic_s: float) -> StoreStep | None:
        """Returns the order, for `agents`, of a save that starts: none is under way, and of the newest step of which
        every rank's own agent holds the snapshot no save was tried, nor of a later one.
        """
        taken = holdings.newest_own() if self._taken is None and monotonic_s >= self._again_s else None
        if taken is None or taken.step <= self._through:
            return None
        held = holdings.holders(taken)
        self._agents, self._ranks = frozenset(held), frozenset(one.rank for own in held.values() for one in own)
        self._taken, self._writing, self._shares = taken, False, {}
        self._through, self._started_s, self._due_s = taken.step, monotonic_s, monotonic_s + STORE_EVERY_S
        return StoreStep(step=taken.step, taken_in=taken.generation)

    def order(self, agent: int) -> StoreStep | None:
        """Returns the order of the save under way, None where the agent has no share in it."""
        if self._taken is None or agent not in self._agents:
            return None
        return StoreStep(step=self._taken.step, taken_in=self._taken.generation)

    def share(self, stored: ShareStored) -> None:
        """Takes one rank's share; one of another step is of no use any more."""
        if self._taken is not None and stored.step == self._taken.step and stored.rank in self._ranks:
            self._shares[stored.rank] = stored

    def finish(self) -> Stored | None:
        """Returns the step, once, when its last share has come."""
        if self._taken is None or self._writing or len(self._shares) < len(self._ranks):
            return None
        self._writing = True
        state: dict[str, str | int | float | bool] = {}
        for rank in sorted(self._ranks, reverse=True):
            state.update(self._shares[rank].state)
        shares = tuple(self._shares[rank] for rank in sorted(self._ranks))
        return Stored(taken=self._taken, shares=shares, state=state, divergence=self._replicas.compare(shares))

    def owes(self, taken: Taken | None) -> bool:
        """Returns whether a save is under way, or this step is yet to be saved or tried again.

        Args:
            taken: The newest step of which every rank's own agent holds the snapshot.
        """
        return self._taken is not None or (taken is not None and taken.step > self._through)

    def fail(self, step: int, monotonic_s: float) -> bool:
        """Ends the save under way if it is one of `step`, which is tried again; returns whether this failure is news.

        Args:
            step: The step that could not be stored, or for which an arena had no room.
        """
        news, self._failed = step != self._failed, step
        self._tries = 1 if news else self._tries + 1
        if self._taken is not None and self._taken.step == step and not self._writing:
            self._taken = None
            if self._tries < TRIES_MAX:
                self._through = min(self._through, step - 1)
                self._again_s = monotonic_s + AGAIN.wait_s(self._tries)
        return news

    def overtaken(self, step: int, monotonic_s: float) -> None:
        """Ends the save under way if it is one of `step`, for the sake of a newer one, which may start soon."""
        if self._taken is not None and self._taken.step == step and not self._writing:
            self._taken, self._due_s, self._again_s = None, -math.inf, monotonic_s + OVERTAKEN_WAIT_S

    def written(self, monotonic_s: float) -> None:
        """Takes note that the save under way is durable; the next one waits the longer, the longer this one took."""
        took_s = monotonic_s - self._started_s
        self._due_s = max(self._due_s, monotonic_s + REST_PARTS * took_s)
        self._taken, self._writing = None, False

    def disown(self) -> None:
        """Ends the save under way, of which all shares have come: nobody shall have that step."""
        self._taken, self._writing = None, False

    def distrust(self) -> None:
        """Ends the save under way: what it saves is not trusted. A manifest that is on its way there comes first."""
        if not self._writing:
            self._taken = None

    def unwritten(self, step: int, monotonic_s: float) -> bool:
        """Takes note that the manifest could not be written; the rest is as with `fail`."""
        self._writing = False
        return self.fail(step, monotonic_s)

    def rewind(self, step: int) -> None:
        """Forgets what came after `step`: the attempt goes on from there, and will save those steps anew."""
        self._through = min(self._through, step)
        if self._taken is not None and self._taken.step > step and not self._writing:
            self._taken = None

    def abandon(self) -> None:
        """Gives up the save under way, unless all its shares are there: an agent that has one of them is lost."""
        if self._taken is not None and not self._writing:
            self._through = min(self._through, self._taken.step - 1)
            self._taken = None
