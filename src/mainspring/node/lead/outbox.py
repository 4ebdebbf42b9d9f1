"""Effects and events of the news at hand; and the two decisions that every part of the lead may come to, and when."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from enum import Enum
from typing import final

from mainspring.domain import wire
from mainspring.domain.goodput import TimeUse
from mainspring.domain.life import AttemptState
from mainspring.domain.wire.events.leads import OfLeads, UnknownWordEvent
from mainspring.node.lead.effects import Effect, Instant, Tell

UNKNOWN_TOLD_MAX = 20  # A newer agent says its new words again and again: a few show which.


class Phase(Enum):
    """Where the attempt stands, as the lead sees it."""

    GATHERING = "gathering"
    FINDING = "finding"
    WAITING = "waiting"
    PREPARING = "preparing"
    RUNNING = "running"
    STORING = "storing"
    DRAINING = "draining"
    OVER = "over"


@dataclass(frozen=True, slots=True, kw_only=True)
class Beginning:
    """The next generation shall begin.

    Args:
        use: What the time until it steps goes into.
        closes: What the time since the last step went into, where that is something else.
        hasty: Agents whose ranks are ended at once instead of being waited for.
    """

    cause: str
    use: TimeUse = TimeUse.RECOVERY
    closes: TimeUse | None = None
    hasty: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """The attempt shall end.

    Args:
        save: Whether the newest step is made durable first.
    """

    outcome: AttemptState
    reason: str
    save: bool = True


@final
class Outbox:
    """The time of the news at hand, and the effects and events it leads to. Parts write to it; nobody decides by it."""

    def __init__(self, now: Instant) -> None:
        self.events: list[wire.LeadEvent] = []
        self._now = now
        self._effects: list[Effect] = []
        self._sequence = 0
        self._unknown: dict[tuple[int, str], None] = {}  # Who said which word.

    @property
    def now_s(self) -> float:
        """Returns the time on the monotonic clock."""
        return self._now.monotonic_s

    def open(self, now: Instant) -> None:
        """Begins with the next news: effects of the one before have been taken."""
        self._now, self._effects = now, []

    def take(self) -> tuple[Effect, ...]:
        """Returns the effects of the news at hand, in order."""
        return tuple(self._effects)

    def want(self, effect: Effect) -> None:
        """Adds an effect."""
        self._effects.append(effect)

    def tell(self, agents: int | Collection[int], message: wire.LeadToAgent) -> None:
        """Sends a message to one agent or several."""
        for agent in (agents,) if isinstance(agents, int) else agents:
            self._effects.append(Tell(agent=agent, message=message))

    def event(self, told: OfLeads) -> None:
        """Records an event."""
        self._sequence += 1
        time_s = self._now.now_s
        self.events.append(wire.LeadEvent(sequence=self._sequence, time_s=time_s, kind=told.kind, detail=told.detail))

    def unknown(self, agent: int, said: wire.Unknown) -> None:
        """Records a word of a newer agent that this release does not know, the first time."""
        if (agent, said.kind) not in self._unknown and len(self._unknown) < UNKNOWN_TOLD_MAX:
            self._unknown[agent, said.kind] = None
            self.event(UnknownWordEvent(word=said.kind, words=said.words))
