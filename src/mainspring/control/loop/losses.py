"""Writes what became of the allocations of live attempts: an attempt ends with them, or goes on without them.

What takes too long counts as lost too; `Lasting` tells how long that is.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import final

from mainspring.control.loop.fold import Loss, fatal
from mainspring.control.state.active_state import ActiveState
from mainspring.control.store.holdings import KEPT, AllocationRecord, allocation_by_id
from mainspring.control.store.ledger import StateWriter, StopCause
from mainspring.control.store.records import AttemptRecord, attempt_by_id, attempts_by_id
from mainspring.domain.ids import AllocationId, AttemptId
from mainspring.domain.life import AllocationState, AttemptState
from mainspring.domain.ports import Clock

LIVE = (AttemptState.GRANTED, AttemptState.RUNNING)


@final
class Lasting:
    """How long things have lasted: by the times that are stored, or by the clock that never jumps, whichever is longer.

    A machine's clock that is set back by hours would otherwise keep a lost start from being seen for as long. The
    other clock counts from when a thing was first asked for; what a whole tick does not ask for is forgotten.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._known: dict[tuple[str, str], tuple[float, float]] = {}
        self._asked: dict[tuple[str, str], tuple[float, float]] = {}

    def next_tick(self) -> None:
        """Forgets what the last tick did not ask for."""
        self._known, self._asked = self._asked, {}

    def seconds(self, what: str, of: str, since_s: float) -> float:
        """Returns how long something has lasted.

        Args:
            what: One thing that lasts, as a word.
            of: The id of what it is asked of.
            since_s: When it began, as stored.
        """
        at_s = self._clock.monotonic_s()
        known_s, first_s = self._known.get((what, of), (since_s, at_s))
        self._asked[what, of] = since_s, at_s if known_s != since_s else first_s
        return max(self._clock.now_s() - since_s, at_s - self._asked[what, of][1])


def lose(ledger: StateWriter, mirror: ActiveState, attempt_id: AttemptId, losses: Mapping[AllocationId, Loss]) -> None:
    """Ends an attempt that cannot go on after some losses; else takes what is lost from it, and lets its lead go on.

    Args:
        mirror: Shows the attempt's allocations as they were before.
        losses: What was lost of it, by allocation.
    """
    attempt = attempt_by_id(ledger.connection, attempt_id)
    if attempt is None or attempt.state not in LIVE:
        return
    held = {one: mirror.parts[one.id] for one in mirror.allocations_of(attempt_id)}
    taken = {one: losses[one.id].reason for one in held if one.id in losses and losses[one.id].taken}
    spec, overrides = mirror.specs[attempt.job], mirror.jobs[attempt.job].overrides
    spec = spec.sized(overrides.fewest()) if overrides is not None else spec
    reason = fatal(held, losses, spec, led=attempt.epoch > 0)
    for one, words in taken.items():
        ledger.take_back(one, words)
    if reason:
        cause = StopCause.TAKEN if taken else StopCause.LOST
        ended = {node: None for loss in losses.values() if not loss.well for node in loss.ended}
        node = next(iter(ended)) if len(ended) == 1 else None  # Of several nobody can tell which was first.
        ledger.stop_attempt(attempt, cause, next(iter(taken.values()), reason), node=node)
        mirror.touch(attempt_id)
        return
    for one in held:
        loss = losses.get(one.id)
        if loss is not None and loss.ended:
            nodes = mirror.parts[one.id].nodes
            ledger.note_gone(one, [nodes.index(node) for node in loss.ended if node in nodes])
        if loss is None or (one.lost and not loss.whole):
            continue
        mirror.touch(attempt_id)
        if not loss.well:
            ledger.lose_allocation(one)
        if loss.whole:
            _take(ledger, one)
            ledger.release_gone(attempt_id)


def drop_late(
    ledger: StateWriter, mirror: ActiveState, lasting: Lasting, *, led_since_s: float, limit_s: float
) -> None:
    """Takes allocations from attempts that go on, whose agents have not come in the time a start may take.

    It counts from the grant, or from when they left their cluster's queue.

    Args:
        mirror: Shows what has not ended.
        led_since_s: Since when this controller leads: before, agents had nowhere to register.
        limit_s: The time a start may take.
    """
    late: dict[AttemptId, dict[AllocationId, Loss]] = {}
    for one in mirror.allocations:
        if one.state in KEPT and one.came_s is None and not one.queued:
            attempt = mirror.attempts.get(one.attempt)
            if lasting.seconds("agents come", one.id, max(one.granted_s, led_since_s)) <= limit_s:
                continue
            if attempt is not None and attempt.state is AttemptState.RUNNING and _missing(ledger, one.id):
                late.setdefault(one.attempt, {})[one.id] = Loss(reason=f"the agents of {one.id} have not come")
    for attempt_id, losses in late.items():
        lose(ledger, mirror, attempt_id, losses)


def end_leaderless(
    ledger: StateWriter, mirror: ActiveState, lasting: Lasting, *, led_since_s: float, limit_s: float
) -> None:
    """Ends attempts that have lost an agent, and of whose lead nothing was heard since.

    Args:
        mirror: Shows which have lost one.
        led_since_s: Since when this controller leads: before, leads had nobody to tell.
        limit_s: Leads that were not heard of for longer are gone too.
    """
    for attempt in _in_order(attempts_by_id(ledger.connection, mirror.bereaved)):
        heard_s = attempt.granted_s if attempt.heard_s is None else attempt.heard_s
        silent_s = lasting.seconds("no lead speaks", attempt.id, max(heard_s, led_since_s))
        if attempt.state in LIVE and silent_s > limit_s:
            reason = f"an agent was lost, and no lead was heard of for {silent_s:.0f} s"
            ledger.stop_attempt(attempt, StopCause.LOST, reason)
            mirror.touch(attempt.id)


def _missing(ledger: StateWriter, allocation: AllocationId) -> bool:
    """Returns whether its agents have not come; the mirror does not hear of that."""
    current = allocation_by_id(ledger.connection, allocation)
    assert current is not None
    return current.came_s is None


def _take(ledger: StateWriter, allocation: AllocationRecord) -> None:
    current = allocation_by_id(ledger.connection, allocation.id)
    assert current is not None
    if current.state in KEPT:
        ledger.move_allocation(current, AllocationState.STOPPING)


def _in_order(found: Iterable[AttemptRecord]) -> list[AttemptRecord]:
    return sorted(found, key=lambda attempt: attempt.id)
