"""What clusters show beyond what the store knows, and what an operator says of it."""

from __future__ import annotations

from mainspring.domain.codec import message
from mainspring.domain.ids import AllocationId, ClusterName, JobId, NodeName


@message("HeldView")
class HeldView:
    """An allocation under our label that the store does not know, or no longer how it ended: it went back in time.

    Args:
        job: The job it was launched for, "" where nobody knows.
        over: Whether it runs no more; then its job waits until somebody settles it.
        since_s: When it was first seen.
        settled_by: Who had it ended, "" while nobody has.
    """

    allocation: AllocationId
    cluster: ClusterName
    job: JobId
    nodes: tuple[NodeName, ...]
    over: bool
    since_s: float
    settled_by: str = ""

    @property
    def holds_job(self) -> bool:
        """Returns whether its job must not start: it runs, or nobody has said yet what became of it."""
        return not (self.over and self.settled_by)


@message("HeldOnes")
class HeldOnes:
    """Some of what is held.

    Args:
        allocations: By id, or by that of their job: then all that is held of it.
        all: Whether all of it; else those named.
    """

    allocations: tuple[AllocationId, ...] = ()
    all: bool = False


@message("NotAdopted")
class NotAdopted:
    """An allocation that is held still, and why."""

    allocation: AllocationId
    reason: str


@message("Adopted")
class Adopted:
    """What became of what was to be adopted.

    Args:
        adopted: Allocations that the store knows from now on.
        refused: Those that it cannot know.
    """

    adopted: tuple[AllocationId, ...]
    refused: tuple[NotAdopted, ...]
