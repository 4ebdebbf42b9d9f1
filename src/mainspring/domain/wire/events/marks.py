"""What events have in common: how their facts are written, and what marks say of those who read them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import ClassVar, TypeVar, dataclass_transform

from mainspring.domain.codec import fields_of, to_plain
from mainspring.domain.wire.facts import Detail


class Renews(Enum):
    """What the controller's picture of what has not ended must read again after an event."""

    JOB = "job"
    ATTEMPT = "attempt"
    CHECKPOINT = "checkpoint"
    NODE = "node"
    HOLDS = "holds"


@dataclass(frozen=True, slots=True)
class EventMarks:
    """What a kind of event means; one without marks is only told and kept. `str(event)` is what it says to people."""

    kind: ClassVar[str]
    renews: ClassVar[Renews | None] = None
    accounted: ClassVar[bool] = False  # It tells what an attempt's time goes into.
    notable: ClassVar[bool] = False  # It tells how a run fares, and is shown wherever one asks about its job.
    frequent: ClassVar[bool] = False  # It comes often: of those shown together, only the newest is.
    passes_on: ClassVar[bool] = False  # Its reason is often that of an event before, and then shown once.


Marked = TypeVar("Marked", bound=EventMarks)


@dataclass(frozen=True, slots=True)
class EventFacts(EventMarks):
    """An event whose facts are its fields; one that is None is not written."""

    @property
    def detail(self) -> Detail:
        """Returns its facts, as they are kept and sent."""
        return {name: to_plain(fact) for name, fact in fields_of(self) if fact is not None}


@dataclass_transform(frozen_default=True, kw_only_default=True)
def event(kind: str, *, renews: Renews | None = None, **marks: bool) -> Callable[[type[Marked]], type[Marked]]:
    """Returns a decorator that makes a class of annotated facts a kind of event.

    Args:
        kind: What stores and peers call it, for good.
        renews: See `EventMarks`.
        marks: The other marks of `EventMarks` that hold of it.
    """

    def made(told: type[Marked]) -> type[Marked]:
        told.kind, told.renews = kind, renews
        for mark, holds in marks.items():
            assert isinstance(getattr(EventMarks, mark), bool), mark
            setattr(told, mark, holds)
        return dataclass(frozen=True, slots=True, kw_only=True)(told)

    return made


def step_words(step: int) -> str:
    """Returns how a step is called.

    Args:
        step: -1 for none yet.
    """
    return f"step {step}" if step >= 0 else "the start"


def clause(before: str, words: str | None) -> str:
    """Returns words with what leads up to them, "" when there are none."""
    return f"{before}{words}" if words else ""


def counted(number: int, what: str) -> str:
    """Returns a number of things."""
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def ordinal(number: int) -> str:
    """Returns a number as a place in an order."""
    ending = "th" if 10 <= number % 100 <= 20 else {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number}{ending}"


def listed(facts: Detail) -> str:
    """Returns facts as they came."""
    return ", ".join(f"{name} {fact}" for name, fact in facts.items())
