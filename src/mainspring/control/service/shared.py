"""Answers that many ask for at one time: made once for all who may read the same, and kept for a moment."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from math import inf
from threading import Lock
from typing import Any, TypeVar, cast, final

from mainspring.domain.ports import Clock

KEPT_S = 1.0  # The longest that an answer is told again: pages ask again no sooner.
COST = 20.0  # And no longer than so often what it took, so that what is made in no time is always new.
ANSWERS_MAX = 256  # Kept at one time, each for others who ask; in a lab of many teams, one of each and more.
Value = TypeVar("Value")


@final
class Shared:
    """Answers by what was asked. Used by many threads: those who ask for one while it is made wait for it.

    Args:
        kept_s: How long an answer is told again at the longest.
    """

    def __init__(self, clock: Clock, *, kept_s: float = KEPT_S, answers_max: int = ANSWERS_MAX) -> None:
        self._clock = clock
        self._kept_s, self._answers_max = kept_s, answers_max
        self._choosing = Lock()
        self._answers: dict[Hashable, _Answer] = {}  # That asked for longest ago first.

    def of(self, asked: Hashable, make: Callable[[], Value]) -> Value:
        """Returns an answer, made now unless it was made a moment ago; of it nothing is to be changed.

        Args:
            asked: What is asked, and by whom as far as that makes another answer.
            make: Makes it; what it raises is raised here, and nothing is kept.
        """
        asked_s = self._clock.monotonic_s()
        with self._choosing:
            answer = self._answers.pop(asked) if asked in self._answers else _Answer()
            self._answers[asked] = answer
            if len(self._answers) > self._answers_max:
                del self._answers[next(iter(self._answers))]
        with answer.making:
            begun_s = self._clock.monotonic_s()
            if begun_s >= answer.until_s and answer.ended_s <= asked_s:  # Who waited for it takes it, however old.
                answer.value, answer.until_s, answer.ended_s = None, -inf, -inf
                answer.value = make()
                answer.ended_s = self._clock.monotonic_s()
                answer.until_s = begun_s + min(self._kept_s, COST * (answer.ended_s - begun_s))
            return cast(Value, answer.value)


@final
class _Answer:
    """One answer, when it was made, and until when it is told again."""

    def __init__(self) -> None:
        self.making = Lock()
        self.value: Any = None
        self.ended_s = self.until_s = -inf
