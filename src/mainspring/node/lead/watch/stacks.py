"""Where ranks stand, when somebody asks: those at one place together, so that thousands of them are a few events."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import final

from mainspring.domain.wire import StacksDumped
from mainspring.domain.wire.events.leads import StacksSeenEvent

ANSWER_LIMIT_S = 5.0  # Dumping stacks takes milliseconds; who has not answered by then is told of as silent.
GROUPS_MAX = 8  # Places that are told of one by one, those of most ranks first; the rest are one more.
STACKS_LENGTH_MAX = 12_000  # Of the text of one place: some forty threads.
_TELLING = ("T", "t", "D", "Z")  # proc(5): stopped, waits for the kernel, ended. Any other comes and goes.
SILENT, ELSEWHERE = "does not answer", "elsewhere, each at a place of its own or of few"


@final
class StackLook:
    """One look after the other at where ranks stand, as people ask for them."""

    def __init__(self) -> None:
        self._asked = 0
        self._until_s: float | None = None
        self._found: dict[int, StacksDumped] = {}

    def ask(self, number: int, now_s: float) -> bool:
        """Takes note of how often people have asked; returns whether that is once more, and ranks are to be asked."""
        if number <= self._asked:
            return False
        self._asked, self._until_s, self._found = number, now_s + ANSWER_LIMIT_S, {}
        return True

    def take(self, message: StacksDumped) -> None:
        """Takes where a rank stands."""
        if self._until_s is not None:
            self._found[message.rank] = message

    def due(self, generation: int, living: Collection[int], now_s: float) -> Sequence[StacksSeenEvent]:
        """Returns what to tell of the look, once all have answered or its time is over; nothing before.

        Args:
            living: Ranks that are to answer.
        """
        if self._until_s is None or (now_s < self._until_s and not self._found.keys() >= {*living}):
            return ()
        groups: dict[tuple[str, str], list[int]] = {}
        for rank in sorted(living):
            seen = self._found.get(rank)
            state = seen.process_state if seen is not None and seen.process_state in _TELLING else ""
            groups.setdefault((state, seen.top if seen is not None else SILENT), []).append(rank)
        ordered = sorted(groups.items(), key=lambda one: (-len(one[1]), one[1][0]))
        told = [self._told(generation, at, ranks) for at, ranks in ordered[:GROUPS_MAX]]
        if rest := sorted(rank for _, ranks in ordered[GROUPS_MAX:] for rank in ranks):
            told.append(self._told(generation, ("", ELSEWHERE), rest))
        self._until_s, self._found = None, {}
        return told

    def _told(self, generation: int, at: tuple[str, str], ranks: Sequence[int]) -> StacksSeenEvent:
        seen = self._found.get(ranks[0])
        return StacksSeenEvent(
            generation=generation,
            ranks=spans(ranks),
            count=len(ranks),
            process_state=at[0],
            top=at[1],
            stacks=seen.stacks[:STACKS_LENGTH_MAX] if seen is not None else "",
        )


def spans(ranks: Sequence[int], *, most: int = 16) -> str:
    """Returns numbers in order as "0-3, 7", and how many more there are.

    Args:
        most: Of how many spans.
    """
    found: list[list[int]] = []
    for rank in ranks:
        if found and rank == found[-1][-1] + 1:
            found[-1][1:] = [rank]
        else:
            found.append([rank])
    words = ", ".join(f"{one[0]}-{one[-1]}" if len(one) > 1 else str(one[0]) for one in found[:most])
    more = sum(one[-1] - one[0] + 1 for one in found[most:])
    return f"{words} and {more} more" if more else words
