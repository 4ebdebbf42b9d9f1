"""What the engines' answers and silences mean for the store: moves, losses, late starts, clusters that are given up."""

from __future__ import annotations

from typing import final

import sqlalchemy as sa

from mainspring.control.loop.beyond import hold_unseen, look_beyond
from mainspring.control.loop.engine_commands import Seen
from mainspring.control.loop.failover import Silence, given_up
from mainspring.control.loop.fold import Loss, judge, taken_words
from mainspring.control.loop.losses import LIVE, Lasting, drop_late, end_leaderless, lose
from mainspring.control.loop.queues import follow_queue
from mainspring.control.state.active_state import ActiveState
from mainspring.control.state.fleet import FleetView
from mainspring.control.store.evidence import culprit_of, evidence_by
from mainspring.control.store.holdings import AllocationRecord, grants
from mainspring.control.store.ledger import StateWriter, StopCause
from mainspring.control.store.records import AttemptRecord, attempt_by_id, attempts_by_id, jobs_by_id
from mainspring.control.store.restores.lives import Life
from mainspring.control.store.schema import agents
from mainspring.control.store.settings import Settings
from mainspring.domain.fleet import NodeRef
from mainspring.domain.ids import AllocationId, AttemptId, NodeName
from mainspring.domain.life import AllocationState, AttemptState, JobState, ended
from mainspring.domain.ports import Clock
from mainspring.domain.wire.events.attempts import NodeClearedEvent


@final
class Settling:
    """Brings the store up to what was seen, once a tick.

    Args:
        mirror: What has not ended.
        fleet: What the engines said.
        silence: For how long those that do not answer have not.
        lasting: How long other things have lasted.
        failover_s: How long a cluster may be silent.
    """

    def __init__(
        self,
        mirror: ActiveState,
        fleet: FleetView,
        silence: Silence,
        lasting: Lasting,
        clock: Clock,
        settings: Settings,
        failover_s: float,
    ) -> None:
        self._mirror = mirror
        self._fleet = fleet
        self._silence = silence
        self._lasting = lasting
        self._clock = clock
        self._settings = settings
        self._failover_s = failover_s

    def settle(self, connection: sa.Connection, seen: Seen, now_s: float, *, led_since_s: float) -> None:
        """Writes what the engines' answers and silences mean, and ends attempts of which nothing is left.

        Args:
            connection: From `Store.write`.
            seen: What the engines that answer see.
            led_since_s: Since when this controller leads: before, agents had nowhere to register.
        """
        mirror, ledger = self._mirror, StateWriter(connection, now_s)
        self._lasting.next_tick()
        mirror.refresh(connection, now_s)
        life = self._look_beyond(connection, seen, now_s)
        losses: dict[AttemptId, dict[AllocationId, Loss]] = {}
        dropped: dict[AttemptId, list[AllocationId]] = {}
        delegated = {cluster: one.inventory.delegated for cluster, one in self._fleet.seen().items()}
        for allocation in mirror.allocations:
            if allocation.cluster in seen:
                found = seen[allocation.cluster].get(allocation.id)
                follow_queue(ledger, mirror, allocation, found, delegated=delegated[allocation.cluster])
                missing_s = self._missing_s(allocation) if found is None else 0.0
                judgement = judge(allocation, found, missing_s=missing_s, absent_s=self._settings.absent_s)
                if judgement.after is not None:
                    ledger.move_allocation(allocation, judgement.after)
                    mirror.touch(allocation.attempt)
                    if judgement.loss is None and judgement.after is AllocationState.GONE:
                        dropped.setdefault(allocation.attempt, []).append(allocation.id)
                        if found is not None and found.taken:
                            ledger.take_back(allocation, taken_words(allocation, found))
                if judgement.loss is not None:
                    losses.setdefault(allocation.attempt, {})[allocation.id] = judgement.loss
        for attempt_id, own in hold_unseen(ledger, mirror, losses, dropped, life).items():
            lose(ledger, mirror, attempt_id, own)
        for attempt_id in dropped:
            if attempt_id in mirror.attempts and mirror.attempts[attempt_id].state is not AttemptState.STOPPING:
                ledger.release_gone(attempt_id)
        self._stop_held(ledger)
        mirror.refresh(connection, now_s)  # What is in a queue by now is not late.
        self._stop_late_starts(connection, ledger, led_since_s)
        settings, lasting = self._settings, self._lasting
        drop_late(ledger, mirror, lasting, led_since_s=led_since_s, limit_s=settings.start_s_max)
        end_leaderless(ledger, mirror, lasting, led_since_s=led_since_s, limit_s=settings.leaderless_s)
        self._give_up_silent(connection, ledger, seen)
        mirror.refresh(connection, now_s)
        left = {allocation.attempt for allocation in mirror.allocations}
        for attempt_id in [attempt for attempt in mirror.attempts if attempt not in left]:
            self._end(connection, ledger, attempt_id)
        mirror.refresh(connection, now_s)
        while mirror.doomed:
            for job in jobs_by_id(connection, mirror.doomed).values():
                assert job.state is JobState.QUEUED
                ledger.move_job(job, JobState.FAILED, mirror.doomed[job.id])
            mirror.refresh(connection, now_s)

    def written(self, seen: Seen) -> None:
        """Notes that what was settled is in the store.

        Args:
            seen: What it was settled by.
        """
        self._silence.written(seen)

    def _look_beyond(self, connection: sa.Connection, seen: Seen, now_s: float) -> Life | None:
        """Holds what the store does not know; returns the store's newest life, None where it never went back.

        Until every cluster has shown what runs there, or is given up, no job starts that may run there already.
        """
        life = look_beyond(connection, self._mirror, seen, now_s)
        if life is None or not life.began_s:
            return None
        waits = self._silence.waits_for_any(
            life.number, seen, monotonic_s=self._clock.monotonic_s(), failover_s=self._failover_s
        )
        self._mirror.set_unseen_until(life.began_s if waits else 0.0)
        return life

    def _stop_held(self, ledger: StateWriter) -> None:
        """Asks attempts to end, saved, whose jobs somebody paused, or whose teams or places somebody drains."""
        for attempt_id, hold in self._mirror.held_back():
            attempt = attempt_by_id(ledger.connection, attempt_id)
            if attempt is not None and attempt.state in LIVE:
                ledger.stop_attempt(attempt, StopCause.HOLD, str(hold))

    def _end(self, connection: sa.Connection, ledger: StateWriter, attempt_id: AttemptId) -> None:
        attempt = attempt_by_id(connection, attempt_id)
        assert attempt is not None
        assert attempt.state is AttemptState.STOPPING, f"{attempt.id} has no allocation left and was not stopped"
        job = jobs_by_id(connection, [attempt.job])[attempt.job]
        attempts_max = self._mirror.specs[job.id].attempts_max
        blamed = culprit_of(connection, attempt) if self._blames(attempt) else None
        spared = blamed is not None and attempts_max > 1 and self._spares(connection, attempt, blamed, ledger.now_s)
        end = ledger.end_attempt(attempt, job, attempts_max=attempts_max, blamed=blamed, spared=spared)
        if end.attempt is AttemptState.SUCCEEDED:
            self._clear(connection, ledger, attempt)

    def _blames(self, attempt: AttemptRecord) -> bool:
        """Returns whether an attempt's end may be held against a node: we chose it, and nobody asked for the end."""
        seen = self._fleet.seen().get(attempt.cluster)
        failed = attempt.stop_cause == StopCause.OUTCOME and attempt.outcome is not AttemptState.SUCCEEDED
        pinned = seen is not None and not seen.inventory.delegated
        return pinned and (failed or attempt.stop_cause == StopCause.LOST)

    def _spares(self, connection: sa.Connection, attempt: AttemptRecord, node: NodeName, now_s: float) -> bool:
        """Returns whether a program's failure may be its node's: others were lost there, and it never failed before."""
        if attempt.outcome is not AttemptState.FAILED:
            return False
        seen = self._fleet.seen()
        others = sum(len(one.inventory.nodes) for one in seen.values()) > 1
        at = NodeRef(cluster=attempt.cluster, node=node)
        if not others or not self._mirror.avoidance.stands_against(at, now_s, but=attempt.job):
            return False
        return all(one.outcome is not AttemptState.FAILED for one in evidence_by(connection, attempt.job))

    def _clear(self, connection: sa.Connection, ledger: StateWriter, attempt: AttemptRecord) -> None:
        """Notes that an attempt ended well on nodes against which something stands."""
        for grant in grants(connection, [attempt.id])[attempt.id]:
            for node in grant.nodes:
                at = NodeRef(cluster=attempt.cluster, node=node)
                if self._mirror.avoidance.stands_against(at, ledger.now_s):
                    cleared = NodeClearedEvent(cluster=at.cluster, node=at.node)
                    ledger.event(cleared, job=attempt.job, attempt=attempt.id)

    def _stop_late_starts(self, connection: sa.Connection, ledger: StateWriter, led_since_s: float) -> None:
        """Stops attempts whose agents have not all come within the time a start may take.

        The time counts from when this controller began to lead: while none led, agents had nowhere to register; and
        from when the last of its allocations left its cluster's own queue, its lead was named, or it was adopted.
        """
        for attempt_id in [attempt for attempt in self._mirror.attempts if self._starts_late(attempt, led_since_s)]:
            attempt = attempt_by_id(connection, attempt_id)
            if attempt is None or attempt.state is not AttemptState.GRANTED:
                continue
            came = connection.execute(
                sa.select(sa.func.count()).select_from(agents).where(agents.c.attempt_id == attempt_id)
            ).scalar_one()
            wanted = sum(one.nodes for one in self._mirror.allocations_of(attempt_id))
            ledger.stop_attempt(
                attempt,
                StopCause.LOST,
                f"{came} of {wanted} agents came and no lead spoke within {self._settings.start_s_max:.0f} s",
            )

    def _starts_late(self, attempt_id: AttemptId, led_since_s: float) -> bool:
        attempt, own = self._mirror.attempts[attempt_id], self._mirror.allocations_of(attempt_id)
        if attempt.state is not AttemptState.GRANTED or any(one.queued for one in own):
            return False
        heard_s = attempt.granted_s if attempt.heard_s is None else attempt.heard_s
        since_s = max((heard_s, led_since_s, *(one.granted_s for one in own)))
        return self._lasting.seconds("start", attempt_id, since_s) > self._settings.start_s_max

    def _missing_s(self, allocation: AllocationRecord) -> float:
        """Returns for how long an allocation that was launched may have been missing, 0 for others."""
        launched_s = allocation.launched_s
        return 0.0 if launched_s is None else self._lasting.seconds("missing", allocation.id, launched_s)

    def _give_up_silent(self, connection: sa.Connection, ledger: StateWriter, seen: Seen) -> None:
        """Fences and ends attempts whose cluster and lead have both been silent for too long; see `failover`."""
        at_s = self._clock.monotonic_s()
        for cluster in {attempt.cluster: None for attempt in self._mirror.attempts.values()}:
            if cluster not in seen:
                self._silence.missed(cluster, monotonic_s=at_s)  # Also one that is no longer connected.
        silent_s = {
            known.id: self._silence.seconds(known.cluster, monotonic_s=at_s) for known in self._mirror.attempts.values()
        }
        quiet = [attempt for attempt, seconds in silent_s.items() if seconds > self._failover_s]
        for attempt in sorted(attempts_by_id(connection, quiet), key=lambda attempt: attempt.id):
            if ended(attempt.state):
                continue
            reason = given_up(
                attempt,
                silent_s=silent_s[attempt.id],
                quiet_s=self._lasting.seconds(
                    "lead is quiet", attempt.id, attempt.granted_s if attempt.heard_s is None else attempt.heard_s
                ),
                failover_s=self._failover_s,
                lease_s=self._settings.lease_s,
            )
            if reason:
                ledger.stop_attempt(attempt, StopCause.FENCED, reason)
                self._end(connection, ledger, attempt.id)
