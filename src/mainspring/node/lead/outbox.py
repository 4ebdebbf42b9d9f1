"""What the parts of the lead's mind share: the time of the news at hand, what is to be done, and what is to be told."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import final

from mainspring.domain import wire
from mainspring.domain.goodput import TimeUse
from mainspring.domain.life import AttemptState
from mainspring.domain.wire.events.leads import OfLeads
from mainspring.node.lead.effects import Effect, Instant, Tell


@dataclass(frozen=True, slots=True, kw_only=True)
class Beginning:
    """The next generation shall begin.

    Args:
        cause: Why, for people.
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
        outcome: How.
        reason: Why, for people.
        save: Whether the newest step is made durable first.
    """

    outcome: AttemptState
    reason: str
    save: bool = True


@final
class Outbox:
    """Collects effects and events.

    Args:
        now: The time.
    """

    def __init__(self, now: Instant) -> None:
        self.now = now
        self.effects: list[Effect] = []
        self.events: list[wire.LeadEvent] = []
        self._sequence = 0

    @property
    def now_s(self) -> float:
        """Returns the time on the monotonic clock."""
        return self.now.monotonic_s

    def tell(self, agents: int | Collection[int], message: wire.LeadToAgent) -> None:
        """Sends a message.

        Args:
            agents: To whom: one agent or several.
            message: The message.
        """
        for agent in (agents,) if isinstance(agents, int) else agents:
            self.effects.append(Tell(agent=agent, message=message))

    def event(self, told: OfLeads) -> None:
        """Records an event.

        Args:
            told: What happened.
        """
        self._sequence += 1
        self.events.append(
            wire.LeadEvent(sequence=self._sequence, time_s=self.now.now_s, kind=told.kind, detail=told.detail)
        )
