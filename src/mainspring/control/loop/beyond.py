"""What clusters show beyond what the store knows, as after it went back in time: neither stopped nor started again."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import sqlalchemy as sa

from mainspring.control.loop.fold import Loss
from mainspring.control.loop.losses import LIVE
from mainspring.control.state.active_state import ActiveState
from mainspring.control.store.ledger import StateWriter, StopCause
from mainspring.control.store.records import attempts_by_id
from mainspring.control.store.restores.held import follow_held, hold
from mainspring.control.store.restores.lives import Life, first_attempt, follow_timeline
from mainspring.domain.answers import HeldView
from mainspring.domain.fleet import AllocationSeen
from mainspring.domain.ids import AllocationId, AttemptId, ClusterName
from mainspring.domain.life import AttemptState

Losses = Mapping[AttemptId, Mapping[AllocationId, Loss]]


def look_beyond(
    connection: sa.Connection,
    mirror: ActiveState,
    seen: Mapping[ClusterName, Mapping[AllocationId, AllocationSeen]],
    now_s: float,
) -> Life | None:
    """Holds what the store does not know; returns the store's newest life, None where it never went back.

    Args:
        connection: From `Store.write`.
        mirror: What has not ended; it is told what is held.
        seen: What the engines that answer see.
    """
    life = follow_timeline(connection, now_s)
    known = {one.id for one in mirror.allocations}
    mirror.set_held(follow_held(connection, seen, known=known, jobs=mirror.jobs, now_s=now_s))
    return life


def hold_unseen(
    ledger: StateWriter,
    mirror: ActiveState,
    losses: Losses,
    gone: Mapping[AttemptId, Collection[AllocationId]],
    life: Life | None,
) -> Losses:
    """Returns losses but for those of attempts whose end may have been told to a store that has forgotten it.

    Nobody can tell whether such an attempt did its work: it ends here, its job waits, and what it had is held. So too
    of one that was to stop before the store went back, and may have come to its end first. A lead that was heard since
    has told of its end what there was to tell, but where its agents ended well: then what was heard was old.

    Args:
        mirror: What has not ended; it is told what is held.
        losses: What was lost of attempts, by allocation.
        gone: What came to its end as it was told to, by attempt.
        life: The store's newest: of leads heard since it began, the store knows what they told.
    """
    if life is None:
        return losses
    over = {name: tuple(own) for name, own in losses.items() if any(loss.whole for loss in own.values())}
    over |= {name: (*over.get(name, ()), *own) for name, own in gone.items() if _stopping(mirror, name)}
    well = {name for name, own in losses.items() if any(loss.well for loss in own.values())}
    unseen = [
        attempt
        for attempt in attempts_by_id(ledger.connection, over)
        if attempt.outcome is None
        and attempt.number < first_attempt(life, mirror.jobs[attempt.job].submitted_s)
        and (attempt.id in well or (attempt.heard_s or 0.0) < life.began_s)
    ]
    held = dict(mirror.held)
    for attempt in sorted(unseen, key=lambda attempt: attempt.id):
        if attempt.state in LIVE:
            words = "it was over when the store went back in time, and how it ended is not known here"
            ledger.stop_attempt(attempt, StopCause.HOLD, words)
            mirror.touch(attempt.id)
        for allocation in over[attempt.id]:
            if allocation in held:
                continue
            held[allocation] = HeldView(
                allocation=allocation,
                cluster=attempt.cluster,
                job=attempt.job,
                nodes=mirror.parts[allocation].nodes,
                over=True,
                since_s=ledger.now_s,
            )
            hold(ledger.connection, held[allocation])
    mirror.set_held(held)
    unseen_ids = {attempt.id for attempt in unseen}
    return {name: own for name, own in losses.items() if name not in unseen_ids}


def _stopping(mirror: ActiveState, attempt: AttemptId) -> bool:
    return attempt in mirror.attempts and mirror.attempts[attempt].state is AttemptState.STOPPING
