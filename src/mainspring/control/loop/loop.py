"""The loop: observe -> plan -> commit -> act, over and over, by whoever holds the leader's lease.

Engines are called outside transactions. What to tell them follows from the store alone (a granted allocation is to be
launched, a stopping one to be stopped), so a crash between any two steps loses nothing and starts nothing twice.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from enum import Enum

import sqlalchemy as sa

from mainspring.control.loop.commit import Committer
from mainspring.control.loop.engine_commands import CommandResult, EngineCommands, Seen, tell
from mainspring.control.loop.failover import Silence, given_up
from mainspring.control.loop.fold import Loss, judge, taken_words
from mainspring.control.loop.losses import drop_late, end_leaderless, lose
from mainspring.control.loop.queues import follow_queue
from mainspring.control.state.active_state import ActiveState
from mainspring.control.state.latest_plan import LatestPlan, LatestPlans
from mainspring.control.store.fleet import FleetView
from mainspring.control.store.ledger import StateWriter, StopCause
from mainspring.control.store.records import attempt_by_id, attempts_by_id, jobs_by_id
from mainspring.control.store.schema import agents
from mainspring.control.store.settings import Settings
from mainspring.control.store.store import Lease, Store
from mainspring.domain.errors import Conflict, MainspringError, Unavailable
from mainspring.domain.fleet import AllocationSeen
from mainspring.domain.ids import AllocationId, AttemptId, ClusterName, draw_id
from mainspring.domain.life import AllocationState, AttemptState, JobState, ended
from mainspring.domain.plan import Plan
from mainspring.domain.ports import Clock, Dice, Engine
from mainspring.planner import Budget, Policy, plan

_log = logging.getLogger(__name__)


class Step(str, Enum):
    """Where a tick stands; a controller may die after any of them."""

    FOLLOWING = "following"
    LEADING = "leading"
    OBSERVED = "observed"
    FOLDED = "folded"
    PLANNED = "planned"
    COMMITTED = "committed"
    ACTED = "acted"
    RECORDED = "recorded"


class Loop:
    """One controller's loop. Used by one thread.

    Args:
        store: Where everything is kept.
        engines: The clusters.
        clock: Time.
        dice: Draws ids and tokens.
        fleet: Where the engines' answers are shown.
        pictures: Where the last plan is shown.
        controller_url: Where agents register.
        key: What the tokens of attempts are made from.
        settings: Bounds.
        policy: What the lab decides about planning.
    """

    def __init__(
        self,
        *,
        store: Store,
        engines: Mapping[ClusterName, Engine],
        clock: Clock,
        dice: Dice,
        fleet: FleetView,
        pictures: LatestPlans,
        controller_url: str,
        key: str,
        settings: Settings,
        policy: Policy,
    ) -> None:
        self._store = store
        self._engines = {name: engines[name] for name in sorted(engines)}
        self._clock = clock
        self._dice = dice
        self._fleet = fleet
        self._pictures = pictures
        self._controller_url = controller_url
        self._key = key
        self._settings = settings
        self._policy = policy
        self._silence = Silence()
        self._holder = draw_id("controller", dice)
        self._lease: Lease | None = None
        self._led_since_s = 0.0
        self._forget()

    def tick(self) -> Step:
        """Runs one whole tick and returns its last step: `FOLLOWING` when another controller leads.

        Raises:
            Conflict: Another controller has taken the lead in the middle; nothing of this tick counts from there on.
            Unavailable: The store does not answer.
        """
        last = Step.FOLLOWING
        for step in self.steps():
            last = step
        return last

    def steps(self) -> Iterator[Step]:
        """Runs one tick, pausing after every step; `tick` runs through.

        Raises:
            Conflict: See `tick`.
            Unavailable: See `tick`.
        """
        try:
            yield from self._steps()
        except BaseException as error:
            # The mirror may hold what a lost transaction showed it.
            self._forget()
            if isinstance(error, Conflict):
                self._lease = None
            raise

    def resign(self) -> None:
        """Gives up the lead, if held, so that the next controller need not wait."""
        if self._lease is not None:
            self._store.resign(self._lease)
            self._lease = None

    def _forget(self) -> None:
        self._mirror = ActiveState()
        self._committer = Committer(self._mirror, self._fleet, self._settings, self._dice)
        self._actor = EngineCommands(self._mirror, self._settings, self._key, self._controller_url)
        self._planned_version = -1
        self._planned_s = float("-inf")

    def _steps(self) -> Iterator[Step]:
        now_s = self._clock.now_s()
        lease = self._lead(now_s)
        if lease is None:
            self._pictures.newest = None
            yield Step.FOLLOWING
            return
        yield Step.LEADING
        seen: dict[ClusterName, Mapping[AllocationId, AllocationSeen]] = {}
        for cluster, engine in self._engines.items():
            found = self._observe(cluster, engine)
            if found is not None:
                seen[cluster] = found
            yield Step.OBSERVED
        with self._store.write(lease) as connection:
            self._fold(connection, seen, now_s)
            lease = self._renewed(connection, lease)
        yield Step.FOLDED
        decided = self._plan(now_s)
        yield Step.PLANNED
        with self._store.write(lease) as connection:
            if decided is not None:
                self._committer.commit(connection, decided, answering=seen, now_s=now_s)
            self._mirror.refresh(connection, now_s)
            acts = self._actor.acts(connection, seen, now_s)
            lease = self._renewed(connection, lease)
        yield Step.COMMITTED
        told: list[CommandResult] = []
        for act in acts:
            answer = tell(self._engines[act.cluster], act)
            if answer is not None:
                told.append(answer)
            yield Step.ACTED
        if told:
            with self._store.write(lease) as connection:
                self._actor.record(connection, told, self._clock.now_s())
        yield Step.RECORDED

    # ---------------------------------------------------------------- lead, observe

    def _lead(self, now_s: float) -> Lease | None:
        lease_s = self._settings.leader_lease_s
        held = self._lease
        if held is not None and 0.5 * lease_s < held.expires_s - now_s <= lease_s:
            return held
        lease = self._store.lead(self._holder, now_s=now_s, lease_s=lease_s)
        if lease is None or held is None or lease.epoch != held.epoch:
            self._forget()
            self._led_since_s = now_s
        if held is None or held.expires_s < now_s:
            self._silence.forget()  # It was this controller that was away.
        self._lease = lease
        return lease

    def _renewed(self, connection: sa.Connection, lease: Lease) -> Lease:
        """Returns the lease, renewed when it has come of age: the first look at a large store takes seconds."""
        now_s, lease_s = self._clock.now_s(), self._settings.leader_lease_s
        if lease.expires_s - now_s <= 0.5 * lease_s:
            self._lease = lease = self._store.renew(connection, lease, now_s=now_s, lease_s=lease_s)
        return lease

    def _observe(self, cluster: ClusterName, engine: Engine) -> Mapping[AllocationId, AllocationSeen] | None:
        try:
            inventory = engine.inventory()
            found = engine.observe()
        except MainspringError as error:
            # A cluster whose own records are damaged is as good as silent, and must not hold up the others.
            if not isinstance(error, Unavailable):
                _log.warning("cluster %s cannot be observed: %s", cluster, error)
            self._fleet.silent(cluster)
            self._silence.missed(cluster, monotonic_s=self._clock.monotonic_s())
            return None
        self._silence.heard(cluster)
        self._fleet.answered(inventory, now_s=self._clock.now_s())
        return {allocation.allocation: allocation for allocation in found}

    # ---------------------------------------------------------------- fold

    def _fold(self, connection: sa.Connection, seen: Seen, now_s: float) -> None:
        """Writes what the engines' answers and silences mean, and ends attempts of which nothing is left."""
        mirror, ledger = self._mirror, StateWriter(connection, now_s)
        mirror.refresh(connection, now_s)
        losses: dict[AttemptId, dict[AllocationId, Loss]] = {}
        dropped: dict[AttemptId, None] = {}
        delegated = {cluster: one.inventory.delegated for cluster, one in self._fleet.seen().items()}
        for allocation in mirror.allocations:
            if allocation.cluster in seen:
                found = seen[allocation.cluster].get(allocation.id)
                follow_queue(ledger, mirror, allocation, found, delegated=delegated[allocation.cluster])
                judgement = judge(allocation, found, now_s=now_s, absent_s=self._settings.absent_s)
                if judgement.after is not None:
                    ledger.move_allocation(allocation, judgement.after)
                    mirror.touch(allocation.attempt)
                    if judgement.loss is None and judgement.after is AllocationState.GONE:
                        dropped[allocation.attempt] = None
                        if found is not None and found.taken:
                            ledger.take_back(allocation, taken_words(allocation, found))
                if judgement.loss is not None:
                    losses.setdefault(allocation.attempt, {})[allocation.id] = judgement.loss
        for attempt_id, own in losses.items():
            lose(ledger, mirror, attempt_id, own)
        for attempt_id in dropped:
            if attempt_id in mirror.attempts and mirror.attempts[attempt_id].state is not AttemptState.STOPPING:
                ledger.settle_grants(attempt_id)
        mirror.refresh(connection, now_s)  # What is in a queue by now is not late.
        self._stop_late_starts(connection, ledger)
        # While this controller did not lead, agents had nowhere to register, and leads nobody to tell.
        for limit_s, end in ((self._settings.start_s_max, drop_late), (self._settings.leaderless_s, end_leaderless)):
            if now_s - self._led_since_s > limit_s:
                end(ledger, mirror, before_s=now_s - limit_s)
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

    def _end(self, connection: sa.Connection, ledger: StateWriter, attempt_id: AttemptId) -> None:
        attempt = attempt_by_id(connection, attempt_id)
        assert attempt is not None
        assert attempt.state is AttemptState.STOPPING, f"{attempt.id} has no allocation left and was not stopped"
        job = jobs_by_id(connection, [attempt.job])[attempt.job]
        ledger.end_attempt(attempt, job, attempts_max=self._mirror.specs[job.id].attempts_max)

    def _stop_late_starts(self, connection: sa.Connection, ledger: StateWriter) -> None:
        """Stops attempts whose agents have not all come within the time a start may take.

        The time counts from when this controller began to lead: while none led, agents had nowhere to register; and
        from when the last of its allocations left its cluster's own queue.
        """
        for attempt_id in [attempt for attempt in self._mirror.attempts if self._starts_late(attempt, ledger.now_s)]:
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

    def _starts_late(self, attempt_id: AttemptId, now_s: float) -> bool:
        attempt, own = self._mirror.attempts[attempt_id], self._mirror.allocations_of(attempt_id)
        if attempt.state is not AttemptState.GRANTED or any(one.queued for one in own):
            return False
        since_s = max((attempt.granted_s, self._led_since_s, *(one.granted_s for one in own)))
        return now_s - since_s > self._settings.start_s_max

    def _give_up_silent(self, connection: sa.Connection, ledger: StateWriter, seen: Seen) -> None:
        """Fences and ends attempts whose cluster and lead have both been silent for too long; see `failover`."""
        at_s = self._clock.monotonic_s()
        for cluster in {attempt.cluster: None for attempt in self._mirror.attempts.values()}:
            if cluster not in seen:
                self._silence.missed(cluster, monotonic_s=at_s)  # Also one that is no longer connected.
        silent_s = {
            known.id: self._silence.seconds(known.cluster, monotonic_s=at_s) for known in self._mirror.attempts.values()
        }
        quiet = [attempt for attempt, seconds in silent_s.items() if seconds > self._policy.failover_s]
        for attempt in sorted(attempts_by_id(connection, quiet), key=lambda attempt: attempt.id):
            if ended(attempt.state):
                continue
            reason = given_up(
                attempt,
                silent_s=silent_s[attempt.id],
                now_s=ledger.now_s,
                failover_s=self._policy.failover_s,
                lease_s=self._settings.lease_s,
            )
            if reason:
                ledger.stop_attempt(attempt, StopCause.FENCED, reason)
                self._end(connection, ledger, attempt.id)

    # ---------------------------------------------------------------- plan

    def _plan(self, now_s: float) -> Plan | None:
        mirror, at_s = self._mirror, self._clock.monotonic_s()
        silent_s = {cluster: self._silence.seconds(cluster, monotonic_s=at_s) for cluster in self._fleet.seen()}
        mirror.feed_fleet(self._fleet, silent_s)
        if mirror.version == self._planned_version and at_s - self._planned_s < self._settings.plan_s:
            return None
        self._planned_version, self._planned_s = mirror.version, at_s
        mirror.feed_spending(now_s)
        snapshot = mirror.builder.build(number=mirror.plan_number + 1, now_s=now_s)
        decided = plan(snapshot, self._policy, now_s, Budget())
        self._pictures.newest = LatestPlan(snapshot=snapshot, policy=self._policy, now_s=now_s, plan=decided)
        return decided
