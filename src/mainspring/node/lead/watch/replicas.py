"""Silent corruption: what ranks have in common must be equal at every step that all of them save.

A device that computes wrongly says nothing. Where it works on a replica of what others have, too, the replicas differ
from then on, and the checksums of a durable save tell (after ByteRobust's and Llama 3's checks of replicas). Whoever
stands alone against more than half of the others is the liar; of two nobody knows which. What never was equal is the
program's own affair (statistics of each rank's batches), and so is what differs again although the liar is gone.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import final

from mainspring.domain.wire import ShareStored

AGREED_MIN = 2  # Saves in a row in which a sum was equal everywhere, before one that is not says anything.
TOLD_MAX = 2  # Times that one sum may differ: what does so again and again is no fault of a machine.


@dataclass(frozen=True, slots=True, kw_only=True)
class Divergence:
    """Replicas that are not equal.

    Args:
        ranks: All places that should have the same.
        odd: Those that differ from more than half of them; none where nothing tells who is right.
    """

    ranks: tuple[int, ...]
    odd: tuple[int, ...] = ()


@final
class Replicas:
    """Which sums have been equal, and for how many saves."""

    def __init__(self) -> None:
        self._agreed: Counter[tuple[int, int]] = Counter()
        self._told: Counter[tuple[int, int]] = Counter()

    def compare(self, shares: Iterable[ShareStored]) -> Divergence | None:
        """Returns what is not equal though it was before; None where all is as it should be.

        Args:
            shares: Every rank's, of one step.
        """
        alike: dict[int, dict[int, tuple[int, ...]]] = defaultdict(dict)
        for share in shares:
            if share.replicas_of and share.replicas:
                alike[share.replicas_of][share.rank] = share.replicas
        found = [self._of(names, sums) for names, sums in sorted(alike.items()) if len(sums) > 1]
        return next((one for one in found if one is not None), None)

    def _of(self, names: int, sums: Mapping[int, tuple[int, ...]]) -> Divergence | None:
        odd: set[int] | None = None
        for at, column in enumerate(zip(*sums.values(), strict=False)):
            if len(set(column)) == 1:
                self._agreed[names, at] += 1
                continue
            if self._agreed[names, at] < AGREED_MIN:
                self._agreed[names, at] = 0
            elif self._told[names, at] < TOLD_MAX:
                self._told[names, at] += 1
                usual, count = Counter(column).most_common(1)[0]
                alone = {rank for rank, each in zip(sums, column, strict=True) if each != usual}
                odd = (odd or set()) | (alone if 2 * count > len(column) else set())
        return Divergence(ranks=tuple(sorted(sums)), odd=tuple(sorted(odd))) if odd is not None else None
