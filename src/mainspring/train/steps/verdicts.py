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
NEVER_MAX = 3  # Checks without one on which all agreed, after which a program is taken for one that never repeats.

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
        odd: Devices that stand alone, each against two that agree; none where nothing tells who is right.
        unequal: Devices that computed rows on which not all agree.
    """

    equal: bool
    odd: tuple[int, ...] = ()
    unequal: tuple[int, ...] = ()


def compared(one: Look, other: Look) -> Again:
    """Returns what two passes over the same rows tell."""
    unsteady = tuple(at for at, (a, b) in enumerate(zip(one.sums, other.sums, strict=True)) if a != b)
    return Again(unsteady=unsteady, upset=bool(one.upset or other.upset))


def verdict(looks: Sequence[Sequence[Sum]]) -> Neighbours:
    """Returns what several looks at the same rows tell.

    Args:
        looks: Of each, the sum of each device; in look k device i computed the rows of device i + k.
    """
    size = len(looks[0])
    votes: dict[int, dict[int, Sum]] = defaultdict(dict)
    for distance, sums in enumerate(looks):
        for device, found in enumerate(sums):
            votes[(device + distance) % size][device] = found
    odd: set[int] = set()
    unequal: set[int] = set()
    for of_rows in votes.values():
        usual, count = Counter(of_rows.values()).most_common(1)[0]
        alone = [device for device, found in of_rows.items() if found != usual]
        if len(alone) == 1 and count >= THIRD - 1:
            odd |= set(alone)
        unequal |= set(of_rows) if alone else set()
    others = [{found for device, found in of_rows.items() if device not in odd} for of_rows in votes.values()]
    named = tuple(sorted(odd)) if all(len(found) <= 1 for found in others) else ()
    return Neighbours(equal=not unequal, odd=named, unequal=tuple(sorted(unequal)))


@final
class NeighbourChecks:
    """Whether devices come to the same as their neighbours, check after check.

    Args:
        size: How many devices there are, each of which holds the whole state.
    """

    def __init__(self, size: int) -> None:
        self._size = size
        self._agreed = False
        self._never = 0

    @property
    def able(self) -> bool:
        """Returns whether a check says anything: not of one alone, nor of a program that does not repeat itself."""
        return self._size > 1 and self._never < NEVER_MAX

    def check(self, look: Callable[[int], Sequence[Sum]]) -> Neighbours | None:
        """Returns what a check tells; where not all agree they are looked at a third time.

        None where they do not and never did, and nobody stands alone: the program's own affair, not a device's.

        Args:
            look: Returns what each device makes of the rows of the one so many places on.
        """
        looks = [look(distance) for distance in range(THIRD - 1)]
        found = verdict(looks)
        if not found.equal and self._size >= THIRD:
            looks.append(look(THIRD - 1))
            found = verdict(looks)
        if found.equal:
            self._agreed, self._never = True, 0
        elif not found.odd and not self._agreed:
            self._never += 1
            return None
        return found
