"""One run's world: clusters, jobs, controllers that die and act on, the agents of every attempt, and all mischief."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import final

from mainspring.control import AgentAccess, Control, Settings, Step, Store, open_store
from mainspring.domain.answers import HeldOnes, HeldView, Submit
from mainspring.domain.errors import Conflict, IllegalTransition, MainspringError, Unavailable
from mainspring.domain.ids import ClusterName, JobId, NodeName
from mainspring.domain.job import LAB
from mainspring.domain.life import ended
from mainspring.domain.team import Team
from mainspring.planner import Policy
from mainspring.simulator.nodes.agenda import Agenda, chance, pick
from mainspring.simulator.nodes.rare import Rare, count_told
from mainspring.simulator.proof.cluster import SimulatedCluster
from mainspring.simulator.proof.draws import CHIP, Rates, draw_inventories, draw_limits, draw_rates, draw_submit
from mainspring.simulator.proof.gangs import Gangs
from mainspring.simulator.proof.going_back import GoingBack
from mainspring.simulator.proof.laws.failover import FailoverLaws
from mainspring.simulator.proof.laws.invariants import Invariants
from mainspring.simulator.proof.servers import Server, Servers
from mainspring.simulator.proof.steering import People, let_go, pause, steer
from mainspring.simulator.proof.store_faults import StoreFaults
from mainspring.testing import FakeClock, FakeEngine, SeededDice

_OF_THE_WORLD = (Unavailable, Conflict)  # Errors of a controller whose store fails, or that leads no more.
_TELLING = (Step.FOLDED, Step.COMMITTED, Step.ACTED, Step.RECORDED)  # The other steps change nothing outside.
_SILENT_S_MAX = 120  # Several times as long as a cluster may be silent before it is given up.
_SLOW_S_MAX = 20  # Longer than a plan of 100,000 jobs takes.
_EVICTING = 10  # So many times as often are plans slow that evict; what they would evict comes to its end meanwhile.
_STALE_MAX = 3  # Abandoned controllers that may still act.
_LEAP_S_MAX = 4_000  # Over every bound of the controller, of which the longest is 900 s.
_RUSH_MAX = 8  # So many jobs come at once before anything fails.
_OBEY_S = 1e9  # Agents end by themselves, or by force when their grace is over.
# Everything that plans weigh in minutes comes in seconds here, so that one short run sees it all.
_POLICY = Policy(runtime_min_s=5.0, cooldown_s=20.0, restart_s=3.0, checkpoint_s=3.0, failover_s=30.0)
_QUIET = Rates()
_SETTLE_S_MAX = 6_000.0  # A lead gathers for 600 s, the controller waits 900, and each may come twice.
_BUSY_TICKS = 100  # After these, what is left waits for some bound: ticks come less often.


@dataclass(slots=True)
class _Outages:
    """Which clusters are silent, which of these cut their leads off too, and which nodes are down, and until when."""

    cut_off: dict[ClusterName, None] = field(default_factory=dict)
    silent_since_s: dict[ClusterName, float] = field(default_factory=dict)
    silent_until_s: dict[ClusterName, float] = field(default_factory=dict)
    node_up_s: dict[tuple[ClusterName, NodeName], float] = field(default_factory=dict)

    def end(self, clusters: Mapping[ClusterName, SimulatedCluster], now_s: float) -> None:
        """Ends those whose time has come."""
        for name, cluster in clusters.items():
            if self.silent_until_s.get(name, 0.0) <= now_s:
                cluster.answering = True
                self.cut_off.pop(name, None)
        for (name, node), up_s in sorted(self.node_up_s.items()):
            if up_s <= now_s:
                clusters[name].inner.node_up(node)
                del self.node_up_s[name, node]


@final
class World:
    """Everything that takes part in one run.

    Args:
        folder: Where its store is.
    """

    def __init__(self, seed: int, folder: Path) -> None:
        self.lines: list[str] = []
        self.seen: Counter[Rare] = Counter()
        self._luck = SeededDice(seed, "world")
        self._agenda = Agenda(FakeClock())
        self._rates = draw_rates(SeededDice(seed, "rates"))
        self._clusters = {
            name: self._new_cluster(FakeEngine(inventory, self._agenda.clock, obey_s=_OBEY_S), seed)
            for name, inventory in draw_inventories(self._luck).items()
        }
        self._people = People(seed, draw_limits(self._luck))
        url = f"sqlite:///{folder / 'store.db'}"
        self._servers = Servers(seed, self._agenda, seen=self.seen, say=self._say)
        self._past = GoingBack(seed, url, folder)
        if self._past.wanted:  # When it went back, a store knows by the clock of then.
            self._rates = replace(self._rates, clock_jump=0.0, clock_leap=0.0)
            self._people.watching.there = False
        self._faults = StoreFaults(SeededDice(seed, "store"), self.seen)
        self._begin()
        self._jobs: list[JobId] = []
        self._outages = _Outages()
        self._gangs = Gangs(
            seed,
            self._agenda,
            control=self._reached,
            is_cut=lambda name: name in self._outages.cut_off,
            say=self._say,
            seen=self.seen,
        )
        calls = self._rates.calls
        silences = any((self._rates.cluster_silent, calls.lost, calls.reply_lost, calls.late))
        clock = self._agenda.clock
        failover = FailoverLaws(self._gangs.hearing, clock, _POLICY.failover_s)
        watching = self._people.watching
        self._laws = Invariants(
            open_store(url), self._clusters, self._gangs, clock, failover=failover, silences=silences, watching=watching
        )

    def _begin(self) -> None:
        """Opens the store, and starts servers on it."""
        self._store = Store(open_store(self._past.url).engine, shared=self._servers.replicated)
        self._faults.listen(self._store)
        self._servers.first = self._new_server()
        if self._servers.replicated:
            self._servers.second = self._new_server()

    def close(self) -> None:
        """Lets go of the store."""
        self._store.close()
        self._laws.close()

    def _new_cluster(self, inner: FakeEngine, seed: int) -> SimulatedCluster:
        inventory = inner.inventory()
        inner.queueing = inventory.delegated
        return SimulatedCluster(
            inner,
            SeededDice(seed, f"faults of {inventory.cluster}"),
            later=self._agenda.after,
            now_s=lambda: self._agenda.now_s,
            saw=lambda what: self.seen.update((what,)),
        )

    def _new_server(self) -> Server:
        control = Control(
            store=self._store,
            engines=dict(self._clusters),
            clock=self._agenda.clock,
            dice=SeededDice(self._luck.bits(60), "control"),
            access=AgentAccess(controller_urls=("http://127.0.0.1:1",), objects_url="file:///objects", key="key"),
            settings=Settings(),
            policy=_POLICY,
        )
        loop = control.new_loop()
        server = Server(control=control, loop=loop, tick=loop.steps())
        self._servers.keep(server)
        return server

    def _reached(self) -> Control:
        """Returns the controller that a call reaches: any that lives serves the API."""
        stale = self._servers.stale
        if stale and chance(self._luck, 0.3):
            return stale[pick(self._luck, len(stale))].control
        return self._servers.reached()

    # ------------------------------------------------------------ both phases

    def run(self, steps: int) -> int:
        """Runs both phases; returns how many ticks the second took.

        Raises:
            AssertionError: A law was broken.
        """
        control = self._servers.first.control
        for name, limit in self._people.limits.items():
            parent, guarantee = (None, {}) if name == LAB else (LAB, {CHIP: limit / 4})
            control.people.set_team(Team(name=name, parent=parent, chips_max=limit, guarantee=guarantee))
        self._step_whole_tick()  # Until clusters have answered once, what can never run is not refused.
        for _ in range(pick(self._luck, _RUSH_MAX)):
            self._submit()
        self._faults.rates = self._rates.store
        self._gangs.faults = self._rates.gangs
        for step in range(steps):
            self._go_back(step / steps)
            self._mischief()
            for _ in range(1 + pick(self._luck, 8)):
                self._step_controller()
            self._servers.follow(self._next)
            self._pass(self._rates.pace * (0.1 + pick(self._luck, 10) / 10))
            self._outages.end(self._clusters, self._agenda.now_s)
        self._say("faults stop")
        return self._settle()

    def _pass(self, seconds: float) -> None:
        """Lets time pass for everybody but the controller."""
        for name, cluster in self._clusters.items():
            self._gangs.look(name, cluster)
        self._agenda.run(seconds)
        self._laws.check()

    def _settle(self) -> int:
        """Stops all faults and waits until every job has ended."""
        quiet = _QUIET
        self._faults.rates = quiet.store
        if self._servers.replicated:
            self._servers.leave_one()
            self._step_whole_tick()  # So that it knows whether it leads.
        self._rates, self._gangs.faults = quiet, quiet.gangs
        self._servers.stale.clear()
        self._servers.first.tick = self._servers.first.loop.steps()
        let_go(self._servers.first.control, self._live())
        self._outages = _Outages()
        self._gangs.heal()
        for cluster in self._clusters.values():
            cluster.answering, cluster.faults = True, quiet.calls
            cluster.inner.queueing = False
            for allocation in cluster.inner.waiting():
                cluster.inner.let_start(allocation)
            for node in cluster.inner.inventory().nodes:
                cluster.inner.node_up(node.name)
        end_s, ticks = self._agenda.now_s + _SETTLE_S_MAX, 0
        while self._agenda.now_s < end_s:
            running = any(cluster.running() for cluster in self._clusters.values())
            if not running and all(ended(state) for state in self._laws.states().values()):
                count_told(self.seen, self._laws.check_ends())
                self._say_ends()
                return ticks
            self._step_whole_tick()
            self._people.watching.let_go(self._servers.first.control, self._clusters)
            self._settle_held()
            self._pass(1.0 if ticks < _BUSY_TICKS else 5.0)
            ticks += 1
        waiting = {job: state.value for job, state in self._laws.states().items() if not ended(state)}
        raise AssertionError(f"{_SETTLE_S_MAX:g} s after the last fault there wait {waiting}")

    # ------------------------------------------------------------ controllers

    def _next(self, who: Server) -> Step | None:
        """Returns a controller's next step; None where its tick is over, or ends by an error."""
        self._laws.failover.before_controller()
        try:
            step = next(who.tick, None)
        except MainspringError as error:
            if self._rates is _QUIET or not isinstance(error, _OF_THE_WORLD) or isinstance(error, IllegalTransition):
                raise AssertionError("a controller met an error that no fault explains") from error
            stale = who in self._servers.stale
            self._say(f"{'a stale controller is refused' if stale else 'controller'}: {type(error).__name__}")
            if isinstance(error, Conflict):
                self._servers.refused(who)
            step = None
        self._servers.took_step(who, step)
        if step is None:
            who.tick = who.loop.steps()
        if step is Step.COMMITTED:
            answering = [name for name, cluster in who.control.fleet.seen().items() if cluster.answering]
            self._laws.failover.answered(answering, who.led_s)
            who.stops_due = self._laws.stops_due(answering)
        elif step is Step.RECORDED:
            self._laws.check_said(who.stops_due)
        if step in _TELLING:
            self._laws.check()
        if step is Step.FOLDED and self._heard_past_silence():
            self.seen[Rare.CALLED_OFF] += 1
        return step

    def _heard_past_silence(self) -> bool:
        """Returns whether an attempt lives on, for its lead is heard, whose cluster has been silent for too long."""
        now_s, lease_s = self._agenda.now_s, self._servers.first.control.settings.lease_s
        since_s = {
            name: since for name, since in self._outages.silent_since_s.items() if not self._clusters[name].answering
        }
        return any(
            now_s - since_s.get(name, now_s) > _POLICY.failover_s
            and now_s - self._gangs.hearing.last_s.get(attempt, 0.0) <= lease_s
            for attempt, name in self._gangs.clusters.items()
        )

    def _step_controller(self) -> None:
        if self._servers.paused(self._servers.first):
            return
        step = self._next(self._servers.first)
        if step in (Step.COMMITTED, Step.ACTED) and chance(self._luck, 5 * self._rates.crash):
            self._crash()  # What is decided and not done yet is where a death hurts most.
        elif step is Step.PLANNED:
            plan = self._servers.first.control.questions.plan()
            evicts, starts = plan.evicts, plan.starts
            if chance(self._luck, self._rates.slow * (_EVICTING if evicts else 1)):
                if self._rates.cancel and chance(self._luck, 0.5):
                    self._cancel()
                if self._rates.steer and starts and chance(self._luck, 0.3):
                    self._say(pause(self._reached(), starts[pick(self._luck, len(starts))].job))
                slow_s = pick(self._luck, _SLOW_S_MAX)
                if evicts:
                    self._gangs.finish(evicts[pick(self._luck, len(evicts))].attempt)
                    slow_s += _SLOW_S_MAX
                self._servers.plan_slowly(float(slow_s), step=self._next, wait=self._pass)

    def _step_whole_tick(self) -> None:
        while self._next(self._servers.first) is not None:
            pass

    def _crash(self) -> None:
        self._say("the controller dies")
        servers = self._servers
        servers.die()
        if chance(self._luck, self._rates.stale) and len(servers.stale) < _STALE_MAX:
            servers.stale.append(servers.first)
        servers.first = self._new_server()
        if self._rates.cancel and chance(self._luck, 0.5):
            self._cancel()
        if servers.second is not None:  # It lives on, and the new one follows it.
            servers.first, servers.second = servers.second, servers.first
            self._laws.check()
            return
        # Somebody else takes over once the lease has run out.
        self._pass(servers.first.control.settings.leader_lease_s * (1 + pick(self._luck, 2)))

    def _step_stale(self) -> None:
        at = pick(self._luck, len(self._servers.stale))
        if chance(self._luck, 0.1):
            del self._servers.stale[at]  # Now it is truly dead.
            return
        for _ in range(1 + pick(self._luck, 6)):
            if self._next(self._servers.stale[at]) is Step.LEADING:
                self.seen[Rare.STALE_LEADS] += 1

    # ------------------------------------------------------------ mischief

    def _mischief(self) -> None:
        """Lets the world do its worst for one step."""
        luck, rates = self._luck, self._rates
        if chance(luck, rates.submit):
            self._submit()
        if chance(luck, rates.cancel):
            self._cancel()
        if chance(luck, rates.steer):
            self._say(steer(self._reached(), luck, self._live(), list(self._people.limits)))
        if (submit := self._people.checked(len(self._jobs) + self._past.forgotten)) is not None:
            self._submit(submit)
        if self._people.breathe():
            if (submit := self._people.elastic(len(self._jobs) + self._past.forgotten)) is not None:
                self._submit(submit)
            self._say(self._people.resize(self._servers.first.control, self._live()))
        if watched := self._people.watching.step(self._servers.first.control, self._clusters):
            self._say(watched)
        if chance(luck, rates.crash):
            self._crash()
        if self._servers.stale and chance(luck, 0.3):
            self._step_stale()
        if chance(luck, rates.strangers):
            self._settle_held()
        if chance(luck, rates.clock_jump):
            self._jump(pick(luck, 40) - 20.0)
        if chance(luck, rates.clock_leap):
            self._jump(pick(luck, 2 * _LEAP_S_MAX) - float(_LEAP_S_MAX))
        for name, cluster in self._clusters.items():
            self._harm(name, cluster)
        self._gangs.mischief()

    def _jump(self, seconds: float) -> None:
        self._agenda.clock.jump(seconds)
        self._laws.failover.jumped(seconds)
        self._say(f"the clock jumps by {seconds:g} s")

    def _harm(self, name: ClusterName, cluster: SimulatedCluster) -> None:
        luck, rates, now_s = self._luck, self._rates, self._agenda.now_s
        cluster.faults = rates.calls
        if chance(luck, rates.cluster_silent):
            if cluster.answering:
                self._outages.silent_since_s[name] = now_s
            cluster.answering = False
            self._outages.silent_until_s[name] = now_s + pick(luck, _SILENT_S_MAX)
            if chance(luck, rates.cut_off):
                self._outages.cut_off[name] = None
            self._say(f"{name} falls silent{', its leads too' if name in self._outages.cut_off else ''}")
        if chance(luck, rates.node_down):
            nodes = cluster.inner.inventory().nodes
            node = nodes[pick(luck, len(nodes))].name
            cluster.inner.node_down(node)
            self._outages.node_up_s[name, node] = now_s + pick(luck, 60)
            self._say(f"{node} of {name} goes down")
        if chance(luck, rates.engine_restarts):
            cluster.forget_queue()
        for allocation in cluster.inner.waiting():
            if chance(luck, rates.starts):
                cluster.inner.let_start(allocation)
                self._say(f"{allocation} leaves the queue of {name}")
        if chance(luck, rates.strangers):
            cluster.start_stranger()
        held = sorted(cluster.running())
        if held and chance(luck, rates.taken):
            allocation = held[pick(luck, len(held))]
            cluster.inner.take_back(allocation, "others come first", grace_s=float(pick(luck, 30)))
            self._say(f"{name} takes back {allocation}")

    def _settle_held(self) -> None:
        """Has an operator end what no store knows, or adopt it."""
        try:
            held = [one for one in self._reached().restores.held() if not one.settled_by]
            if held and self._past.adopts():
                self._adopt(held)
            elif held:
                self._laws.beyond.settled(held)
                self._reached().restores.end(_asked(held))
                self.seen[Rare.SETTLED] += 1
        except MainspringError as error:
            self._say(f"settle what is held: {type(error).__name__}")

    def _adopt(self, held: Sequence[HeldView]) -> None:
        self._laws.beyond.may_adopt(held)
        try:
            done = self._reached().restores.adopt(_asked(held))
            self.seen[Rare.ADOPTED] += len(done.adopted)
            self._say(f"adopt {', '.join(done.adopted) or 'nothing'}")
        finally:
            self._found(after=())  # Jobs that were forgotten too are made again.

    def _live(self) -> list[JobId]:
        return [job for job, state in self._laws.states().items() if not ended(state)]

    def _cancel(self) -> None:
        live = self._live()
        if not live:
            return
        job = live[pick(self._luck, len(live))]
        try:
            self._say(f"cancel {job}: {self._reached().steering.stop(job).state.value}")
        except MainspringError as error:
            self._say(f"cancel {job}: {type(error).__name__}")

    def _go_back(self, share: float) -> None:
        """Lets the store go back in time, where it is time for that, and an operator look at what is held since."""
        past, now_s = self._past, self._agenda.clock.now_s()
        if past.copies(share):
            self._say("the store is copied")
            past.copy(now_s)
            with self._laws.read() as connection:
                self._laws.beyond.copied(connection)
        elif past.returns(share):
            self._say("the store goes back")
            self.seen[Rare.WENT_BACK] += 1
            self._servers.stale.clear()
            self._store.close()
            for cluster in self._clusters.values():
                cluster.settle_calls()
            with self._laws.read() as connection:
                self._laws.beyond.remember(connection)
            past.go(now_s)
            self._laws.went_back(open_store(self._past.url))
            known = self._laws.states()
            past.forgotten += len(self._jobs)
            self._jobs = [job for job in self._jobs if job in known]
            past.forgotten -= len(self._jobs)
            self._begin()
        if past.settles():
            self._settle_held()

    def _submit(self, submit: Submit | None = None) -> None:
        number = len(self._jobs) + self._past.forgotten
        submit = submit or draw_submit(self._luck, number, self._jobs, self._people.limits)
        spec, count = submit.spec, submit.count
        control = self._servers.reached()
        if len(control.fleet.seen()) < len(self._clusters):
            return  # One that has not heard of all clusters cannot tell what none of them could ever run.
        try:
            job = control.submit(submit).id
            again = self._servers.reached().submit(submit).id
            made = [job] if count == 1 else [view.id for view in control.jobs(array=job)]
        except MainspringError as error:
            self._say(f"refused {spec.name}: {type(error).__name__}")
            self._found(spec.after)
            return
        assert again == job, f"key {submit.key} made {job} and {again}"
        assert len(made) == count, f"an array of {count} has the jobs {made}"
        self._note(made, spec.after)
        self._say(f"submit {', '.join(made)}: {spec.roles[0].options[0].replicas} replicas for {spec.team}")

    def _found(self, after: tuple[JobId, ...]) -> None:
        """Finds what a submit has made of which nobody learnt."""
        self._note([job for job in self._laws.states() if job not in self._jobs], after)

    def _note(self, made: list[JobId], after: tuple[JobId, ...]) -> None:
        self._jobs += made
        for each in made:
            self._laws.submitted(each, after=after)

    # ------------------------------------------------------------ the trace

    def _say_ends(self) -> None:
        for job in self._jobs:
            view = self._servers.first.control.job(job)
            self._say(
                f"{job} {view.state.value} after {len(view.attempts)} attempts at step {view.step}: {view.reason}"
            )
            for attempt in view.attempts:
                self._say(f"  {attempt.id} {attempt.state.value} on {attempt.cluster} ${attempt.dollars:.6f}")

    def _say(self, words: str) -> None:
        self.lines.append(f"{self._agenda.now_s:.1f} {words}")


def _asked(held: Sequence[HeldView]) -> HeldOnes:
    return HeldOnes(allocations=tuple(one.allocation for one in held))
