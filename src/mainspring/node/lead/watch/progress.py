"""Progress: how far an attempt has come."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from mainspring.domain.wire.events.leads import CaughtUpEvent, GenerationSteppingEvent


@final
@dataclass(slots=True)
class Progress:
    """The furthest step so far, and what of it this generation has seen.

    Args:
        furthest: The furthest step of all this attempt's generations, -1 before the first.
        here: The furthest step of this generation, -1 before the first.
        blocked_s: Seconds the lowest rank was blocked by snapshots.
        before: The furthest step of all generations and attempts before this one.
        caught_up: Whether it has passed `before`.
        reached: The furthest step of earlier attempts.
    """

    furthest: int = -1
    here: int = -1
    blocked_s: float = 0.0
    before: int = -1
    caught_up: bool = False
    reached: int = -1

    @property
    def stepping(self) -> bool:
        """Returns whether this generation has reported a step."""
        return self.here >= 0

    def new_generation(self) -> None:
        """Forgets what the generation before has seen."""
        self.before = max(self.furthest, self.reached)
        self.here = -1
        self.caught_up = self.before < 0  # Before the first step of all there is nothing to catch up with.

    def stepped(self, step: int) -> tuple[type[GenerationSteppingEvent | CaughtUpEvent], ...]:
        """Counts a step report; returns the events it amounts to."""
        events: list[type[GenerationSteppingEvent | CaughtUpEvent]] = []
        if not self.stepping:
            events.append(GenerationSteppingEvent)
        if not self.caught_up and step > self.before:
            self.caught_up = True
            events.append(CaughtUpEvent)
        self.here = max(self.here, step)
        self.furthest = max(self.furthest, step)
        return tuple(events)

    def reached_before(self, step: int) -> None:
        """Takes note of what a generation reached just before it was ended."""
        self.furthest = max(self.furthest, step)

    def blocked(self, seconds: float) -> None:
        """Counts time that the lowest rank was blocked by snapshots."""
        self.blocked_s += seconds
