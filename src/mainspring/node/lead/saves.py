"""Paces durable saves: one step at a time, the same one on every rank, made real when the last share has come."""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass
from typing import final

from mainspring.domain.ports import Backoff
from mainspring.domain.wire import NO_LONGER_HELD, Detail, ShareStored, StoreFailed, StoreStep
from mainspring.domain.wire.events.leads import CheckpointDurableEvent, CheckpointFailedEvent
from mainspring.node.lead.effects import ManifestWritten, WriteManifest
from mainspring.node.lead.holdings import Holdings, Taken
from mainspring.node.lead.outbox import Outbox
from mainspring.node.lead.resume import ResumeSource, Resumption

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
    """

    taken: Taken
    shares: tuple[ShareStored, ...]
    state: Detail


@final
class Saves:
    """The save under way, and which steps were tried."""

    def __init__(self) -> None:
        self.taken: Taken | None = None
        """What is being saved, None for nothing."""
        self.writing = False
        """Whether its manifest is being written."""
        self._ranks: frozenset[int] = frozenset()
        self._shares: dict[int, ShareStored] = {}
        self._through = self._failed = -1
        self._due_s = self._started_s = self._again_s = -math.inf
        self._tries = 0

    def due(self, monotonic_s: float) -> bool:
        """Returns whether the next save may start.

        Args:
            monotonic_s: The time.
        """
        return self.taken is None and monotonic_s >= max(self._due_s, self._again_s)

    def start(self, taken: Taken | None, ranks: Collection[int], monotonic_s: float) -> bool:
        """Returns whether a save starts: none is under way, and neither this step nor a later one was tried.

        Args:
            taken: The newest step of which every rank's own agent holds the snapshot.
            ranks: The places whose shares it has.
            monotonic_s: The time.
        """
        if self.taken is not None or taken is None or taken.step <= self._through or monotonic_s < self._again_s:
            return False
        self.taken, self.writing, self._shares, self._ranks = taken, False, {}, frozenset(ranks)
        self._through, self._started_s, self._due_s = taken.step, monotonic_s, monotonic_s + STORE_EVERY_S
        return True

    def share(self, stored: ShareStored) -> None:
        """Takes one rank's share; one of another step is of no use any more.

        Args:
            stored: What is in the store.
        """
        if self.taken is not None and stored.step == self.taken.step and stored.rank in self._ranks:
            self._shares[stored.rank] = stored

    def finish(self) -> Stored | None:
        """Returns the step, once, when its last share has come."""
        if self.taken is None or self.writing or len(self._shares) < len(self._ranks):
            return None
        self.writing = True
        state: dict[str, str | int | float | bool] = {}
        for rank in sorted(self._ranks, reverse=True):
            state.update(self._shares[rank].state)
        shares = tuple(self._shares[rank] for rank in sorted(self._ranks))
        return Stored(taken=self.taken, shares=shares, state=state)

    def owes(self, taken: Taken | None) -> bool:
        """Returns whether a save is under way, or this step is yet to be saved or tried again.

        Args:
            taken: The newest step of which every rank's own agent holds the snapshot.
        """
        return self.taken is not None or (taken is not None and taken.step > self._through)

    def fail(self, step: int, monotonic_s: float) -> bool:
        """Ends the save under way if it is one of `step`, which is tried again; returns whether this failure is news.

        Args:
            step: The step that could not be stored, or for which an arena had no room.
            monotonic_s: The time.
        """
        news, self._failed = step != self._failed, step
        self._tries = 1 if news else self._tries + 1
        if self.taken is not None and self.taken.step == step and not self.writing:
            self.taken = None
            if self._tries < TRIES_MAX:
                self._through = min(self._through, step - 1)
                self._again_s = monotonic_s + AGAIN.wait_s(self._tries)
        return news

    def overtaken(self, step: int, monotonic_s: float) -> None:
        """Ends the save under way if it is one of `step`, for the sake of a newer one, which may start soon.

        Args:
            step: The step that is not to be had any more.
            monotonic_s: The time.
        """
        if self.taken is not None and self.taken.step == step and not self.writing:
            self.taken, self._due_s, self._again_s = None, -math.inf, monotonic_s + OVERTAKEN_WAIT_S

    def written(self, monotonic_s: float) -> None:
        """Takes note that the save under way is durable; the next one waits the longer, the longer this one took.

        Args:
            monotonic_s: The time.
        """
        took_s = monotonic_s - self._started_s
        self._due_s = max(self._due_s, monotonic_s + REST_PARTS * took_s)
        self.taken, self.writing = None, False

    def rewind(self, step: int) -> None:
        """Forgets what came after `step`: the attempt goes on from there, and will save those steps anew.

        Args:
            step: The step resumed from.
        """
        self._through = min(self._through, step)
        if self.taken is not None and self.taken.step > step and not self.writing:
            self.taken = None

    def abandon(self) -> None:
        """Gives up the save under way, unless all its shares are there: an agent that has one of them is lost."""
        if self.taken is not None and not self.writing:
            self._through = min(self._through, self.taken.step - 1)
            self.taken = None


@final
class Saving:
    """Starts saves, takes shares, has manifests written.

    Args:
        holdings: What is in memory.
        resumption: What is durable.
        outbox: Where events and messages go.
    """

    def __init__(self, holdings: Holdings, resumption: Resumption, outbox: Outbox) -> None:
        self.saves = Saves()
        self._holdings = holdings
        self._resumption = resumption
        self._outbox = outbox
        self._agents: tuple[int, ...] = ()
        self._parent: ResumeSource | None = None

    @property
    def owes(self) -> bool:
        """Returns whether something in memory is yet to be made durable."""
        return self.saves.owes(self._holdings.newest_own())

    def start(self) -> None:
        """Starts the next save, when there is something to save."""
        if self.saves.taken is not None:
            return
        taken = self._holdings.newest_own()
        held = self._holdings.holders(taken) if taken is not None else {}
        ranks = [holding.rank for own in held.values() for holding in own]
        if self.saves.start(taken, ranks, self._outbox.now_s):
            self._agents = tuple(held)
            self.tell(self._agents)

    def tell(self, agents: Collection[int]) -> None:
        """Tells agents of the save under way, again where need be.

        Args:
            agents: The agents.
        """
        taken = self.saves.taken
        if taken is not None:
            mine = [agent for agent in agents if agent in self._agents]
            self._outbox.tell(mine, StoreStep(step=taken.step, taken_in=taken.generation))

    def failed(self, agent: int, message: StoreFailed) -> None:
        """Takes note that a share could not be made durable; one that newer snapshots have overwritten is no failure.

        Args:
            agent: Where.
            message: Which, and why.
        """
        if message.reason == NO_LONGER_HELD and self._holdings.overtaken(agent, message.rank, message.step):
            self.saves.overtaken(message.step, self._outbox.now_s)
        else:
            self._fail(message.step, message.reason)

    def began(self, source: ResumeSource) -> None:
        """Takes note of where a generation resumes: the first tells what checkpoint this lead began from.

        Args:
            source: Where.
        """
        if self._parent is None:
            self._parent = source if source.name == "store" else ResumeSource()

    def finish(self) -> None:
        """Has the manifest written once the last share has come."""
        stored = self.saves.finish()
        if stored is not None:
            parent = self._parent or ResumeSource()
            self._outbox.effects.append(
                WriteManifest(
                    step=stored.taken.step,
                    generation=stored.taken.generation,
                    parent_step=parent.step,
                    begins_from=parent.begins_from,
                    shares=stored.shares,
                    state=stored.state,
                    replace=self._resumption.damaged(stored.taken.step),
                )
            )

    def written(self, news: ManifestWritten) -> None:
        """Takes note of how writing a manifest went.

        Args:
            news: How.
        """
        if news.failure:
            self.saves.writing = False
            self._fail(news.step, news.failure)
            return
        self.saves.written(self._outbox.now_s)
        self._resumption.stored(news.step)
        self._outbox.event(CheckpointDurableEvent(step=news.step, size_bytes=news.size_bytes))

    def _fail(self, step: int, reason: str) -> None:
        if self.saves.fail(step, self._outbox.now_s):
            self._outbox.event(CheckpointFailedEvent(step=step, reason=reason))
