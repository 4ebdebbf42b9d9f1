"""The loop: observe -> plan -> commit -> act, over and over, by whoever holds the leader's lease.

Engines are called outside transactions. What to tell them follows from the store alone (a granted allocation is to be
launched, a stopping one to be stopped), so a crash between any two steps loses nothing and starts nothing twice.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

import sqlalchemy as sa

from mainspring.control.fleet import Fleet
from mainspring.control.fold import Judgement, judge
from mainspring.control.ledger import Ledger, NewAttempt, StopCause, clipped
from mainspring.control.mirror import Mirror
from mainspring.control.records import (
    AllocationRecord,
    allocations_of,
    attempt_by_id,
    chunks,
    jobs_by_id,
    text_of,
)
from mainspring.control.schema import agents, plans, whys
from mainspring.control.settings import Settings
from mainspring.control.store import Lease, Store
from mainspring.control.tokens import Caller, TokenRole, draw_secret, save_token
from mainspring.domain.errors import Conflict, MainspringError, Unavailable
from mainspring.domain.fleet import AllocationPhase, AllocationSeen, LaunchOrder
from mainspring.domain.ids import AllocationId, AttemptId, ClusterName, JobId, draw_id
from mainspring.domain.job import MILLI
from mainspring.domain.life import AllocationState, AttemptState, JobState
from mainspring.domain.plan import Candidate, Limit, Plan, Start, Wait
from mainspring.domain.ports import Clock, Dice, Engine
from mainspring.planner import Budget, Policy, plan

Seen = Mapping[ClusterName, Mapping[AllocationId, AllocationSeen]]
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


@dataclass(frozen=True, slots=True, kw_only=True)
class _Act:
    """One thing to tell an engine: a launch when there is an order, else a stop with a grace."""

    cluster: ClusterName
    allocation: AllocationId
    order: LaunchOrder | None = None
    grace_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class _Told:
    """What an engine answered: `refused` says why it will never do it, "" when it took it."""

    act: _Act
    refused: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Why:
    job: JobId
    summary: str
    limit: Limit | None
    considered: tuple[Candidate, ...]


class Loop:
    """One controller's loop. Used by one thread.

    Args:
        store: Where everything is kept.
        engines: The clusters.
        clock: Time.
        dice: Draws ids and tokens.
        fleet: Where the engines' answers are shown.
        controller_url: Where agents register.
        settings: Bounds.
    """

    def __init__(
        self,
        *,
        store: Store,
        engines: Mapping[ClusterName, Engine],
        clock: Clock,
        dice: Dice,
        fleet: Fleet,
        controller_url: str,
        settings: Settings,
    ) -> None:
        self._store = store
        self._engines = {name: engines[name] for name in sorted(engines)}
        self._clock = clock
        self._dice = dice
        self._fleet = fleet
        self._controller_url = controller_url
        self._settings = settings
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
        self._mirror = Mirror()
        self._told_waits: dict[JobId, Wait] = {}
        self._planned_version = -1
        self._planned_s = float("-inf")
        self._secrets: dict[AttemptId, str] = {}

    def _steps(self) -> Iterator[Step]:
        now_s = self._clock.now_s()
        lease = self._lead(now_s)
        if lease is None:
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
        yield Step.FOLDED
        decided = self._plan(now_s)
        yield Step.PLANNED
        with self._store.write(lease) as connection:
            if decided is not None:
                self._commit(connection, decided, now_s)
            acts = self._acts(connection, seen, now_s)
        yield Step.COMMITTED
        told: list[_Told] = []
        for act in acts:
            answer = self._tell(act)
            if answer is not None:
                told.append(answer)
            yield Step.ACTED
        if told:
            with self._store.write(lease) as connection:
                self._record(connection, told)
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
        self._lease = lease
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
            return None
        self._fleet.answered(inventory, now_s=self._clock.now_s())
        return {allocation.allocation: allocation for allocation in found}

    # ---------------------------------------------------------------- fold

    def _fold(self, connection: sa.Connection, seen: Seen, now_s: float) -> None:
        """Writes what the engines' answers mean, and ends attempts of which nothing is left."""
        mirror, ledger = self._mirror, Ledger(connection, now_s)
        mirror.refresh(connection)
        changed = False
        lost: set[AttemptId] = set()
        for allocation in mirror.allocations:
            # What the mirror shows of an attempt lost a moment ago is old: its other allocations stop now.
            if allocation.cluster in seen and allocation.attempt not in lost:
                found = seen[allocation.cluster].get(allocation.id)
                judgement = judge(allocation, found, now_s=now_s, absent_s=self._settings.absent_s)
                changed |= self._apply(connection, ledger, allocation, judgement)
                if judgement.lost:
                    lost.add(allocation.attempt)
        changed |= self._stop_late_starts(connection, ledger)
        if changed:
            mirror.refresh(connection)
        left = {allocation.attempt for allocation in mirror.allocations}
        over = [attempt for attempt in mirror.attempts.values() if attempt.id not in left]
        for attempt in over:
            assert attempt.state is AttemptState.STOPPING, f"{attempt.id} has no allocation left and was not stopped"
            job = mirror.jobs[attempt.job]
            self._secrets.pop(attempt.id, None)
            ledger.end_attempt(attempt, job, attempts_max=mirror.specs[job.id].attempts_max)
        if over:
            mirror.refresh(connection)

    def _apply(
        self, connection: sa.Connection, ledger: Ledger, allocation: AllocationRecord, judgement: Judgement
    ) -> bool:
        if judgement.after is not None:
            ledger.move_allocation(allocation, judgement.after)
        if judgement.lost:
            attempt = attempt_by_id(connection, allocation.attempt)
            assert attempt is not None
            ledger.stop_attempt(attempt, StopCause.LOST, judgement.lost)
        return judgement.after is not None or bool(judgement.lost)

    def _stop_late_starts(self, connection: sa.Connection, ledger: Ledger) -> bool:
        """Stops attempts whose agents have not all come within the time a start may take.

        The time counts from when this controller began to lead: while none led, agents had nowhere to register.
        """
        late = [
            attempt
            for attempt in self._mirror.attempts.values()
            if attempt.state is AttemptState.GRANTED
            and ledger.now_s - max(attempt.granted_s, self._led_since_s) > self._settings.start_s_max
        ]
        for attempt in late:
            came = connection.execute(
                sa.select(sa.func.count()).select_from(agents).where(agents.c.attempt_id == attempt.id)
            ).scalar_one()
            wanted = sum(len(grant.nodes) for grant in self._mirror.grants[attempt.id])
            ledger.stop_attempt(
                attempt,
                StopCause.LOST,
                f"{came} of {wanted} agents came and no lead spoke within {self._settings.start_s_max:.0f} s",
            )
        return bool(late)

    # ---------------------------------------------------------------- plan, commit

    def _plan(self, now_s: float) -> Plan | None:
        mirror = self._mirror
        mirror.feed_fleet(self._fleet)
        if mirror.version == self._planned_version and now_s - self._planned_s < self._settings.plan_s:
            return None
        self._planned_version, self._planned_s = mirror.version, now_s
        snapshot = mirror.builder.build(number=mirror.plan_number + 1)
        return plan(snapshot, Policy(), now_s, Budget())

    def _commit(self, connection: sa.Connection, decided: Plan, now_s: float) -> None:
        """Writes a plan. What has moved on since the plan was made is passed over; the next plan sees it."""
        ledger = Ledger(connection, now_s)
        waits = [wait for wait in decided.waits if self._told_waits.get(wait.job) != wait][: self._settings.whys_max]
        if not (decided.starts or decided.evicts or waits):
            return
        connection.execute(
            sa.insert(plans).values(
                number=decided.number,
                made_s=now_s,
                starts=len(decided.starts),
                evicts=len(decided.evicts),
                waits=len(decided.waits),
            )
        )
        self._mirror.plan_number = decided.number
        for evict in decided.evicts:
            attempt = attempt_by_id(connection, evict.attempt)
            if attempt is not None and attempt.state in (AttemptState.GRANTED, AttemptState.RUNNING):
                ledger.stop_attempt(attempt, StopCause.EVICT, evict.reason)
        jobs = jobs_by_id(connection, [start.job for start in decided.starts])
        told_whys = [
            _Why(job=wait.job, summary=wait.reason, limit=wait.limit, considered=wait.considered) for wait in waits
        ]
        for start in decided.starts:
            if jobs[start.job].state is JobState.QUEUED:
                new = self._new_attempt(start, decided.number)
                ledger.grant(jobs[start.job], new)
                told_whys.append(
                    _Why(job=start.job, summary=_summary(start, new), limit=None, considered=start.considered)
                )
        _write_whys(connection, told_whys, decided.number)
        waiting = {wait.job for wait in decided.waits}
        told = {job: wait for job, wait in self._told_waits.items() if job in waiting}
        self._told_waits = told | {wait.job: wait for wait in waits}

    def _new_attempt(self, start: Start, number: int) -> NewAttempt:
        inventory = self._fleet.seen()[start.grants[0].cluster].inventory
        spec = self._mirror.specs[start.job]
        roles = {role.name: role for role in spec.roles}
        dollars_per_hour = 0.0
        for grant in start.grants:
            chip = roles[grant.role].options[grant.option].chip
            dollars_per_hour += inventory.dollars_per_chip_hour.get(chip, 0.0) * sum(grant.chip_milli) / MILLI
        return NewAttempt(
            id=AttemptId(draw_id("attempt", self._dice)),
            allocations=tuple(AllocationId(draw_id("allocation", self._dice)) for _ in start.grants),
            grants=start.grants,
            simulated=inventory.simulated,
            plan=number,
            dollars_per_hour=dollars_per_hour,
        )

    # ---------------------------------------------------------------- act

    def _acts(self, connection: sa.Connection, seen: Seen, now_s: float) -> Sequence[_Act]:
        """Returns what the store says the engines should be told now, and stores the tokens that launches carry."""
        mirror = self._mirror
        mirror.refresh(connection)
        acts: list[_Act] = []
        for allocation in mirror.allocations:
            if len(acts) >= self._settings.acts_max:
                break
            if allocation.cluster not in seen:
                continue
            if allocation.state is AllocationState.STOPPING:
                waited_s = float("inf") if allocation.stopped_s is None else now_s - allocation.stopped_s
                if waited_s > self._settings.grace_s + self._settings.stop_again_s:
                    lost = mirror.attempts[allocation.attempt].stop_cause == StopCause.LOST
                    grace_s = self._settings.lost_grace_s if lost else self._settings.grace_s
                    acts.append(_Act(cluster=allocation.cluster, allocation=allocation.id, grace_s=grace_s))
            elif allocation.state is AllocationState.GRANTED:
                order = self._order(connection, allocation, now_s)
                acts.append(_Act(cluster=allocation.cluster, allocation=allocation.id, order=order))
        known = {allocation.id for allocation in mirror.allocations}
        for cluster, found in seen.items():
            for allocation_id, phase in ((one.allocation, one.phase) for one in found.values()):
                # What runs under our label and is not in the store would hold nodes that plans believe to be free.
                runs = phase in (AllocationPhase.PENDING, AllocationPhase.RUNNING)
                if runs and allocation_id not in known and len(acts) < self._settings.acts_max:
                    acts.append(_Act(cluster=cluster, allocation=allocation_id, grace_s=self._settings.grace_s))
        return acts

    def _order(self, connection: sa.Connection, allocation: AllocationRecord, now_s: float) -> LaunchOrder:
        attempt = self._mirror.attempts[allocation.attempt]
        grant = self._mirror.grants[attempt.id][allocation.place]
        if attempt.id not in self._secrets:
            # Only the hash is stored: a controller that starts anew gives the agents still to come another token.
            self._secrets[attempt.id] = draw_secret(self._dice)
            team = self._mirror.specs[attempt.job].team
            caller = Caller(role=TokenRole.ATTEMPT, team=team, attempt=attempt.id)
            save_token(connection, self._secrets[attempt.id], caller, now_s=now_s)
        return LaunchOrder(
            allocation=allocation.id,
            attempt=attempt.id,
            role=grant.role,
            nodes=grant.nodes,
            chip_milli=grant.chip_milli,
            controller=self._controller_url,
            token=self._secrets[attempt.id],
        )

    def _tell(self, act: _Act) -> _Told | None:
        """Tells an engine one thing; None when it did not answer and is to be asked again."""
        engine = self._engines[act.cluster]
        try:
            if act.order is None:
                engine.stop(act.allocation, grace_s=act.grace_s)
            else:
                engine.launch(act.order)
        except Unavailable:
            return None
        except MainspringError as error:
            return _Told(act=act, refused=str(error))
        return _Told(act=act)

    def _record(self, connection: sa.Connection, told: Sequence[_Told]) -> None:
        """Writes what the engines answered, unless the allocation has moved on meanwhile."""
        ledger = Ledger(connection, self._clock.now_s())
        states = {allocation.id: allocation for allocation in self._mirror.allocations}
        for answer in told:
            known = states.get(answer.act.allocation)
            if known is None:
                continue
            attempt = attempt_by_id(connection, known.attempt)
            assert attempt is not None
            current = allocations_of(connection, known.attempt)[known.place]
            if answer.act.order is None:
                if not answer.refused:
                    ledger.stop_taken(current.id)
            elif answer.refused:
                if attempt.state in (AttemptState.GRANTED, AttemptState.RUNNING):
                    ledger.stop_attempt(attempt, StopCause.LOST, answer.refused)
            elif current.state is AllocationState.GRANTED:
                ledger.move_allocation(current, AllocationState.LAUNCHED)


def _write_whys(connection: sa.Connection, told: Sequence[_Why], number: int) -> None:
    if not told:
        return
    for some in chunks([why.job for why in told]):
        connection.execute(sa.delete(whys).where(whys.c.job_id.in_(some)))
    # Jobs of one shape share one tuple of candidates: it is written out once.
    texts = {id(why.considered): text_of(why.considered) for why in told}
    rows = [
        {
            "job_id": why.job,
            "plan": number,
            "summary": clipped(why.summary),
            "limit_name": why.limit.value if why.limit else None,
            "candidates": texts[id(why.considered)],
        }
        for why in told
    ]
    connection.execute(sa.insert(whys), rows)


def _summary(start: Start, new: NewAttempt) -> str:
    """Returns one sentence on where a job was placed and why there."""
    placed = [
        f"{_counted(sum(grant.chip_milli) / MILLI, 'chip')} on {_counted(len(grant.nodes), 'node')} of {grant.cluster}"
        + (f" for {grant.role}" if len(start.grants) > 1 else "")
        for grant in start.grants
    ]
    fit = sum(candidate.fits for candidate in start.considered)
    pretended = " (simulated)" if new.simulated else ""
    return (
        f"placed {'; '.join(placed)}{pretended}, ${new.dollars_per_hour:.2f} an hour: "
        f"the cheapest per useful chip-hour of {fit} that fit, of {len(start.considered)} weighed"
    )


def _counted(count: float, what: str) -> str:
    return f"{count:g} {what}" if count == 1 else f"{count:g} {what}s"
