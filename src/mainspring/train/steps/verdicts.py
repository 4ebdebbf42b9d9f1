"""Who is wrong where devices did the same work and did not come to the same: pure, from checksums alone.

What a device makes of rows is a checksum (`again`); here sums are compared. Nothing of JAX is needed, so that a fleet
that is simulated comes to the verdicts that a real one does.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias, final

THIRD = 3  # So many devices, or looks, it takes to say who is wrong.
CERTAIN_MIN = 3  # Of six looks: by chance, one of four sound devices is that often alone in 1 % of checks at worst.
NEVER_MAX = 3  # Checks in a row at which too many gave two answers: the program is one that does not repeat itself.

Sum: TypeAlias = tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """What came of one pass.

    Args:
        sums: The checksum of each device's own sums.
        upset: What is wrong with all of them together: see `Measures.upset`.
    """

    sums: tuple[Sum, ...]
    upset: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Again:
    """A step that went wrong, done twice more.

    Args:
        unsteady: Devices that gave two answers to one question.
        upset: Whether it went wrong again.
    """

    unsteady: tuple[int, ...]
    upset: bool

    @property
    def passed(self) -> bool:
        """Returns whether it came out well now, and twice the same."""
        return not self.unsteady and not self.upset


@dataclass(frozen=True, slots=True, kw_only=True)
class Neighbours:
    """Rows that several devices computed.

    Args:
        equal: Whether all came to the same.
        suspects: Devices that are at fault, or may be.
        certain: Whether they stand alone, each against two that agree and by no chance, and all others gave the same
            answers twice.
        unsteady: Devices that gave two answers to one question, where all were asked twice.
    """

    equal: bool
    suspects: tuple[int, ...] = ()
    certain: bool = False
    unsteady: tuple[int, ...] = ()


def compared(one: Look, other: Look) -> Again:
    """Returns what two passes over the same rows tell."""
    unsteady = tuple(at for at, (a, b) in enumerate(zip(one.sums, other.sums, strict=True)) if a != b)
    return Again(unsteady=unsteady, upset=bool(one.upset or other.upset))


def verdict(*rounds: Sequence[Sequence[Sum]]) -> Neighbours:
    """Returns what several looks at the same rows tell.

    Where a program mostly repeats itself, a sound device may stand alone by chance. So to be certain takes two rounds:
    what is wrong with a device gives the same wrong answer again, or others at many looks, and never shows at others.

    Args:
        rounds: One, or the same looks twice. Of each look, the sum of each device; in look k device i computed the rows
            of device i + k.
    """
    size = len(rounds[0][0])
    votes: dict[int, list[tuple[int, Sum]]] = defaultdict(list)
    for distance, sums in (look for looks in rounds for look in enumerate(looks)):
        for device, found in enumerate(sums):
            votes[(device + distance) % size].append((device, found))
    times_alone, repeated, unequal = Counter[int](), set[int](), set[int]()
    for of_rows in votes.values():
        usual = Counter(found for _, found in of_rows).most_common(1)[0][0]
        wrong = Counter((device, found) for device, found in of_rows if found != usual)
        apart, all_of_them = {device for device, _ in wrong}, {device for device, _ in of_rows}
        if len(apart) == 1 and len(all_of_them - apart) >= THIRD - 1:
            times_alone.update(device for device, _ in wrong.elements())
            repeated |= {device for (device, _), times in wrong.items() if times > 1}
        unequal |= all_of_them if apart else set()
    others = [{found for device, found in of_rows if device not in times_alone} for of_rows in votes.values()]
    odd = sorted(times_alone) if all(len(found) <= 1 for found in others) else []
    clear = repeated | {device for device, times in times_alone.items() if times >= CERTAIN_MIN}
    unsteady = [
        device for device in range(size) if len({tuple(sums[device] for sums in looks) for looks in rounds}) > 1
    ]
    return Neighbours(
        equal=not unequal,
        suspects=tuple(odd or unsteady or sorted(unequal)),
        certain=bool(odd) and len(rounds) > 1 and clear.issuperset(odd),
        unsteady=tuple(unsteady),
    )


@final
class NeighbourChecks:
    """Whether devices come to the same as their neighbours, check after check.

    Args:
        size: How many devices there are, each of which holds the whole state.
    """

    def __init__(self, size: int) -> None:
        self._size = size
        self._repeats = False
        self._never = 0

    @property
    def able(self) -> bool:
        """Returns whether a check says anything: not of one alone, nor of a program that does not repeat itself."""
        return self._size > 1 and not self.given_up

    @property
    def given_up(self) -> bool:
        """Returns whether no more is checked, for the program does not repeat itself."""
        return self._never >= NEVER_MAX

    def check(self, look: Callable[[int], Sequence[Sum]]) -> Neighbours | None:
        """Returns what a check tells; where devices do not come to the same, all are asked twice.

        None where too many then give two answers: the program's own affair, not a device's.

        Args:
            look: Returns what each device makes of the rows of the one so many places on.
        """
        looks = [look(distance) for distance in range(THIRD - 1)]
        found = verdict(looks)
        if not found.equal:
            looks += [look(distance) for distance in range(THIRD - 1, min(THIRD, self._size))]
            found = verdict(looks, [look(distance) for distance in range(len(looks))])
        if self.is_own_affair(found.unsteady) and not found.certain:
            self._never += 1
            return None
        self._repeats, self._never = True, 0
        return found

    def is_own_affair(self, unsteady: Sequence[int]) -> bool:
        """Returns whether two answers to one question are likely the program's own affair, for too many gave them.

        Args:
            unsteady: The devices that did.
        """
        half = self._size // 2
        return len(unsteady) > (half if self._repeats else min(1, half))
