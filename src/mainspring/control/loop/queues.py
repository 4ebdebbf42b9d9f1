"""Queue waits: what clusters that place work by themselves say of allocations in their queues and of where they went.

Time in such a queue is not allocated time: an allocation counts as granted from when it leaves the queue, which is
when its engine first shows it elsewhere, or when the first of its agents comes.
"""

from __future__ import annotations

from mainspring.control.state.active_state import ActiveState
from mainspring.control.store.holdings import KEPT, AllocationRecord
from mainspring.control.store.ledger import StateWriter, clipped
from mainspring.domain.fleet import AllocationPhase, AllocationSeen


def follow_queue(
    ledger: StateWriter,
    mirror: ActiveState,
    allocation: AllocationRecord,
    seen: AllocationSeen | None,
    *,
    delegated: bool,
) -> None:
    """Writes what an engine's answer says of an allocation's wait and place, as far as that has changed.

    Args:
        mirror: Is told of what moved.
        allocation: As the store has it.
        seen: As its engine sees it, None when the engine answered without it.
        delegated: Whether its cluster has a queue of its own.
    """
    if seen is None:
        return
    queued, words = allocation.queued, clipped(seen.reason) or "its turn"
    # What an engine shows may be old: who has left, or whose agents have come, waits no more.
    waits = delegated and seen.phase is AllocationPhase.PENDING and queued != "" and allocation.came_s is None
    if waits and allocation.state in KEPT and queued != words:
        ledger.wait_in_queue(allocation, words)
        mirror.touch(allocation.attempt)
    elif queued and not waits:
        ledger.leave_queue(allocation)
        mirror.touch(allocation.attempt)
    if seen.hosts and seen.hosts != allocation.hosts:
        ledger.note_hosts(allocation, seen.hosts)
        mirror.touch(allocation.attempt)
