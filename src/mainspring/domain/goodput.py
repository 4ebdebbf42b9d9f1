"""Goodput: the uses that accelerators' time is put to, which add up to the time allocated."""

from __future__ import annotations

import math
from collections.abc import Mapping
from enum import Enum

from mainspring.domain.codec import message


class TimeUse(str, Enum):
    """What a node's second went into. Exactly one of these at any time; only the first is goodput."""

    PRODUCTIVE = "productive"  # Steps that nobody has to do again.
    STARTUP = "startup"  # From the grant until ranks run: agents, code, probes, and the program's own imports.
    COMPILE = "compile"  # The program compiles.
    DATA = "data"  # A rank waits for its next batch.
    SNAPSHOT = "snapshot"  # A rank is blocked by a snapshot.
    RESTORE = "restore"  # A rank reads the state it resumes from.
    REPEATED = "repeated"  # Steps done before, and lost.
    HANG = "hang"  # From the last step until the hang is seen.
    STRAGGLER = "straggler"  # What steps took beyond what they take when no rank is slow.
    RESIZE = "resize"  # From the decision to grow, shrink or swap a node until the next step.
    RECOVERY = "recovery"  # Idle after a failure: until ranks run again.
    WINDDOWN = "winddown"  # From the last step until the nodes are free: last saves, good-byes.


@message("Goodput")
class Goodput:
    """A ledger of node-seconds.

    Args:
        allocated_s: Node-seconds that were allocated.
        seconds: Node-seconds by use; they add up to `allocated_s`.
        waited_s: Seconds in the queue, beside the ledger.
        preemptions: How often it was made to stop for somebody else, beside the ledger.
    """

    allocated_s: float
    seconds: Mapping[TimeUse, float]
    waited_s: float = 0.0
    preemptions: int = 0

    def __post_init__(self) -> None:
        """Checks the law, to a millionth."""
        total_s = math.fsum(self.seconds.values())
        assert math.isclose(total_s, self.allocated_s, rel_tol=1e-6, abs_tol=1e-6), (total_s, self.allocated_s)

    @property
    def ratio(self) -> float | None:
        """Returns productive time over allocated time, None before any was allocated."""
        return self.seconds.get(TimeUse.PRODUCTIVE, 0.0) / self.allocated_s if self.allocated_s > 0 else None


def total(parts: tuple[Goodput, ...]) -> Goodput:
    """Returns the ledger of several together.

    Args:
        parts: Attempts, jobs, teams or clusters.
    """
    seconds = {use: math.fsum(part.seconds.get(use, 0.0) for part in parts) for use in TimeUse}
    return Goodput(
        allocated_s=math.fsum(part.allocated_s for part in parts),
        seconds=seconds,
        waited_s=math.fsum(part.waited_s for part in parts),
        preemptions=sum(part.preemptions for part in parts),
    )
