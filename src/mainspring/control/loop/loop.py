"""The loop: observe -> plan -> commit -> act, over and over, by whoever holds the leader's lease.

Engines are called outside transactions. What to tell them follows from the store alone (a granted allocation is to be
launched, a stopping one to be stopped), so a crash between any two steps loses nothing and starts nothing twice.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from enum import Enum

import sqlalchemy as sa

from mainspring.control.loop.commit import Committer
from mainspring.control.loop.engine_commands import CommandResult, EngineCommands, NodeOrders, tell
from mainspring.control.loop.failover import Silence
from mainspring.control.loop.leadership import Leadership
from mainspring.control.loop.losses import Lasting
from mainspring.control.loop.nodes.cordons import Cordons
from mainspring.control.loop.nodes.step import HealthStep
from mainspring.control.loop.plan_cycle import PlanCycle
from mainspring.control.loop.services.step import ServiceStep
from mainspring.control.loop.settling import Settling
from mainspring.control.state.active_state import ActiveState
from mainspring.control.state.fleet import FleetView
from mainspring.control.state.ledgers import count_ended
from mainspring.control.store.records import FreshWrites
from mainspring.control.store.settings import AgentAccess, Settings
from mainspring.domain.errors import Conflict, MainspringError, Unavailable
from mainspring.domain.fleet import AllocationSeen
from mainspring.domain.ids import AllocationId, ClusterName
from mainspring.domain.plan import Plan
from mainspring.domain.ports import Clock, Dice, Engine

_COUNTED_MAX = 50  # Attempts added to the accounts each tick: some milliseconds; more end in the same second seldom.
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
class LoopWriters:
    """Who writes what during a tick, all from one mirror."""

    mirror: ActiveState
    settling: Settling
    committer: Committer
    commands: EngineCommands
    orders: NodeOrders
    health: HealthStep
    cordons: Cordons
    services: ServiceStep


def new_writers(
    *,
    fleet: FleetView,
    silence: Silence,
    clock: Clock,
    dice: Dice,
    settings: Settings,
    access: AgentAccess,
    failover_s: float,
    fresh: FreshWrites,
) -> LoopWriters:
    """Returns writers with a new mirror.

    Args:
        fleet: Where the engines' answers are shown.
        silence: Where it is noted which do not answer.
        access: How agents reach this controller.
        failover_s: How long a cluster may be silent.
        fresh: What this process has just written.
    """
    mirror, lasting = ActiveState(fresh.jobs), Lasting(clock)
    return LoopWriters(
        mirror=mirror,
        settling=Settling(mirror, fleet, silence, lasting, clock, settings, failover_s),
        committer=Committer(mirror, fleet, settings, dice),
        commands=EngineCommands(mirror, lasting, settings, access.key, access.controller_urls),
        orders=NodeOrders(mirror, fleet, clock),
        health=HealthStep(fleet, settings.care, fresh.samples),
        cordons=Cordons(fleet, clock, settings.acts_max),
        services=ServiceStep(dice),
    )


class Loop:
    """One controller's loop. Used by one thread.

    Args:
        leadership: Whether this controller leads.
        fleet: Where the engines' answers are shown.
        silence: Where it is noted which do not answer.
        writers: Makes a new mirror, and those who write from it.
    """

    def __init__(
        self,
        *,
        leadership: Leadership,
        engines: Mapping[ClusterName, Engine],
        clock: Clock,
        fleet: FleetView,
        silence: Silence,
        plans: PlanCycle,
        writers: Callable[[], LoopWriters],
    ) -> None:
        self._leadership = leadership
        self._engines = {name: engines[name] for name in sorted(engines)}
        self._clock = clock
        self._fleet = fleet
        self._silence = silence
        self._plans = plans
        self._new_writers = writers
        self._followed = False
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
            # The mirror may hold what a lost transaction showed it, and the fleet count as kept what was not.
            self._forget()
            self._fleet.lead(self._engines)
            if isinstance(error, Conflict):
                self._leadership.lost()
            raise

    def keep_lead(self) -> None:
        """Keeps the lead, if held, through a step of any length; called by another thread.

        Raises:
            Unavailable: The store does not answer.
        """
        self._leadership.keep()

    def write(self) -> AbstractContextManager[sa.Connection]:
        """Returns a transaction of the leader's, for another thread.

        Raises:
            Conflict: Another controller leads, or may.
        """
        return self._leadership.write()

    def resign(self) -> None:
        """Gives up the lead, if held, so that the next controller need not wait."""
        self._leadership.resign()

    def _forget(self) -> None:
        self._followed = False
        self._writers = self._new_writers()
        self._mirror = self._writers.mirror
        self._plans.forget()

    def _steps(self) -> Iterator[Step]:
        now_s, leadership = self._clock.now_s(), self._leadership
        check = leadership.check(now_s)
        if check.anew:
            if not self._followed:
                self._forget()
            if check.leads:
                self._fleet.lead(self._engines)
                self._take_over()
        if check.away:
            self._silence.forget()  # It was this controller that was away.
        self._writers.health.turn(leads=check.leads)
        if not check.leads:
            self._plans.follow(following=leadership.shared)
            if leadership.shared:
                self._follow(now_s)
            yield Step.FOLLOWING
            return
        yield Step.LEADING
        seen: dict[ClusterName, Mapping[AllocationId, AllocationSeen]] = {}
        for cluster, engine in self._engines.items():
            found = self._observe(cluster, engine)
            if found is not None:
                seen[cluster] = found
            yield Step.OBSERVED
        with leadership.read() as connection:
            self._mirror.refresh(connection, now_s)  # While others write: a second's jobs take a while to learn.
            self._writers.health.read(connection, now_s)
        with leadership.write() as connection:
            self._writers.health.write(connection, now_s)  # So that what is closed now is closed to this tick's plan.
            self._writers.settling.settle(connection, seen, now_s, led_since_s=leadership.since_s)
            self._writers.services.write(connection, now_s)
            self._fleet.note(connection, now_s)
            if leadership.shared:
                self._fleet.keep(connection, now_s)
            count_ended(connection, limit=_COUNTED_MAX)
            leadership.renew(connection)
        self._writers.settling.written(seen)
        yield Step.FOLDED
        decided = self._plan(now_s)
        waits = None if decided is None else self._writers.committer.compare(decided, now_s)
        yield Step.PLANNED
        with leadership.write() as connection:
            if decided is not None and waits is not None:
                self._writers.committer.commit(connection, decided, waits, answering=seen, now_s=now_s)
            self._mirror.refresh(connection, now_s)
            acts = [
                *self._writers.commands.acts(connection, seen, now_s),
                *self._writers.orders.acts(connection, decided, seen, now_s),
                *self._writers.cordons.acts(connection, seen, now_s),
            ]
            leadership.renew(connection)
        yield Step.COMMITTED
        told: list[CommandResult] = []
        for act in acts:
            if (answer := tell(self._engines[act.cluster], act)) is not None:
                told.append(answer)
            yield Step.ACTED
        if decided is not None and waits is not None:
            self._writers.committer.tell(leadership.write, decided, waits, now_s=now_s)
        if told:
            with leadership.write() as connection:
                now_s = self._clock.now_s()
                self._writers.commands.record(connection, told, now_s)
                self._writers.orders.record(connection, told, now_s)
                self._writers.cordons.record(connection, told)
        yield Step.RECORDED

    def _follow(self, now_s: float) -> None:
        """Learns what the one who leads has written."""
        with self._leadership.read() as connection:
            self._fleet.follow(connection)
            self._mirror.refresh(connection, now_s)  # Who takes the lead need not read all that waits.
            if self._plans.wanted:
                self._mirror.count_plans(connection)
        self._followed = True
        self._show(now_s)

    def _take_over(self) -> None:
        """Goes on from what was seen while another led, where it was."""
        if self._followed:
            self._followed = False
            with self._leadership.read() as connection:
                self._mirror.take_over(connection)

    def _observe(self, cluster: ClusterName, engine: Engine) -> Mapping[AllocationId, AllocationSeen] | None:
        try:
            inventory = engine.inventory()
            found = engine.observe()
        except MainspringError as error:
            # A cluster whose own records are damaged is as good as silent, and must not hold up the others.
            if not isinstance(error, Unavailable):
                _log.warning("cluster %s cannot be observed: %s", cluster, error, extra={"cluster": cluster})
            self._fleet.silent(cluster)
            self._silence.missed(cluster, monotonic_s=self._clock.monotonic_s())
            return None
        self._silence.heard(cluster)
        self._fleet.answered(inventory, now_s=self._clock.now_s())
        return {allocation.allocation: allocation for allocation in found}

    def _show(self, now_s: float) -> None:
        """Makes the plan that another controller would make now, where somebody asks this one."""
        if self._plans.wanted:
            seen = self._fleet.seen()
            silent_s = {name: 0.0 if one.answering else max(0.0, now_s - one.seen_s) for name, one in seen.items()}
            self._mirror.feed_fleet(self._fleet, silent_s)
            self._plans.show(self._mirror, now_s)

    def _plan(self, now_s: float) -> Plan | None:
        at_s = self._clock.monotonic_s()
        silent_s = {cluster: self._silence.seconds(cluster, monotonic_s=at_s) for cluster in self._fleet.seen()}
        self._mirror.feed_fleet(self._fleet, silent_s)
        return self._plans.decide(self._mirror, now_s, monotonic_s=at_s)
