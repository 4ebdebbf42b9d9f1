"""Losses: what of a recording is gone, how much of what, by whom it is known."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

LOST_MAX = 0.01  # Share of a recording that may be gone unless its owner says otherwise: a dropped chunk, a lost tail.
LOST = "lost"  # In an episode's metadata: what of its recording is gone.
_NAMED_MAX = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Loss:
    """Part of a recording that is gone.

    Args:
        subject: Of what, such as "topic /joint_states", "camera top", "rows".
        lost: How many messages, frames or rows.
        total: How many there should be; 0 when nothing tells, which counts as if all were lost.
        unit: What is counted, such as "messages".
        seconds: How much time that is; 0 when it is not known.
        what: Which of them, and how that is known, in words.
    """

    subject: str
    lost: int
    total: int
    unit: str
    seconds: float = 0.0
    what: str = ""

    @property
    def share(self) -> float:
        """Returns how much of the whole is gone, 0 to 1; 1 when nobody can know."""
        return min(1.0, self.lost / self.total) if self.total else 1.0

    def __str__(self) -> str:
        """Returns one clause for people."""
        if not self.total:
            return f"{self.subject}: nobody can know how much is gone" + (f" ({self.what})" if self.what else "")
        lasts = f", {self.seconds:.1f} s" if self.seconds else ""
        details = f" ({self.what})" if self.what else ""
        return f"{self.subject}: {self.lost} of {self.total} {self.unit} lost, {100 * self.share:.2g} %{lasts}{details}"


def losses_text(losses: Iterable[Loss]) -> str:
    """Returns what is gone in one line, the largest share first.

    Args:
        losses: All of a recording.
    """
    found = sorted(losses, key=lambda loss: (-loss.share, loss.subject))
    more = f"; and {len(found) - _NAMED_MAX} more" if len(found) > _NAMED_MAX else ""
    return "; ".join(map(str, found[:_NAMED_MAX])) + more
