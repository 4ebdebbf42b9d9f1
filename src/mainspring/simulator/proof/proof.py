"""Fault proof: the real loop and store against clusters that fail, on virtual time, from one seed.

Safety phase: anything may fail, and nothing may be wrong. Liveness phase: faults stop, and everything ends within a
bounded number of ticks. What may never be wrong is in `invariants`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import final

from mainspring.control import AgentAccess, Caller, Control, Settings, Step, TokenRole, open_store
from mainspring.domain.answers import Submit
from mainspring.domain.errors import MainspringError
from mainspring.domain.fleet import Inventory, Node
from mainspring.domain.ids import AttemptId, ChipName, ClusterName, JobId, NodeName, RoleName, TeamName
from mainspring.domain.job import LAB, JobSpec, Option, Role, Tier
from mainspring.domain.life import ended
from mainspring.domain.team import Team
from mainspring.planner import Policy
from mainspring.simulator.proof.cluster import CallFaults, SimulatedCluster, chance, pick
from mainspring.simulator.proof.gang import Gang, GangFaults
from mainspring.simulator.proof.invariants import Invariants
from mainspring.testing import FakeClock, FakeEngine, SeededDice

ADMIN = Caller(role=TokenRole.ADMIN, team=LAB)
_CHIP = ChipName("sim")
_TELLING = (Step.FOLDED, Step.COMMITTED, Step.ACTED, Step.RECORDED)  # The other steps change nothing outside.
_MEMORY = Path("/dev/shm")  # Where a store's flushes cost nothing; nothing here outlives the run.
_SILENT_S_MAX = 120  # Several times as long as a cluster may be silent before it is given up.
_STALE_MAX = 3  # Abandoned controllers that may still act.
# Everything that plans weigh in minutes comes in seconds here, so that one short run sees it all.
_POLICY = Policy(runtime_min_s=5.0, cooldown_s=20.0, restart_s=3.0, checkpoint_s=3.0, failover_s=30.0)
_SETTLE_TICKS_MAX = 3_000  # Virtual seconds: the longest wait in the controller is 900, and it may come twice.


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    """What happened: one line an event of the world, the same for the same seed.

    Args:
        seed: Where everything came from.
        lines: What happened, in order.
        settle_ticks: Ticks from the end of faults to the end of the last job.
    """

    seed: int
    lines: tuple[str, ...]
    settle_ticks: int

    @property
    def digest(self) -> str:
        """Returns a short name that differs when any line does."""
        return hashlib.sha256("\n".join(self.lines).encode()).hexdigest()[:16]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    """How often each thing goes wrong in one run, each step; drawn from its seed.

    Args:
        gangs: Agents, leads and their calls.
        crash: The controller dies between two steps.
        stale: A controller that died was only thought dead, and acts on.
        cluster_silent: A cluster stops answering.
        cut_off: When it does, its leads are not heard of either.
        taken: A cluster takes back something that was granted, waiting or running.
        starts: A cluster with a queue of its own lets something start.
        cancel: Somebody cancels a job.
        clock_jump: The machine's clock is set back or forward.
    """

    calls: CallFaults = field(default_factory=CallFaults)
    gangs: GangFaults = field(default_factory=GangFaults)
    crash: float = 0.0
    stale: float = 0.0
    cluster_silent: float = 0.0
    cut_off: float = 0.0
    node_down: float = 0.0
    taken: float = 0.0
    starts: float = 1.0
    cancel: float = 0.0
    clock_jump: float = 0.0


def prove(seed: int, *, steps: int = 150) -> Trace:
    """Runs one world through both phases and returns what happened.

    Args:
        seed: Where its size, its faults and its luck come from.
        steps: How long the safety phase is.

    Raises:
        AssertionError: A law was broken. This and any other error carries the seed and the last lines as its notes.
    """
    with TemporaryDirectory(prefix="mainspring-proof-", dir=_MEMORY if _MEMORY.is_dir() else None) as folder:
        world = _World(seed, Path(folder))
        try:
            return world.run(steps)
        except BaseException as error:
            error.add_note(f"seed {seed}, {steps} steps; the last lines:\n" + "\n".join(world.lines[-30:]))
            raise
        finally:
            world.control.store.close()


@dataclass(slots=True)
class _Outages:
    """Which clusters are silent, which of these cut their leads off too, and which nodes are down, and until when."""

    cut_off: dict[ClusterName, None] = field(default_factory=dict)
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
class _World:
    """Everything that takes part in one run."""

    def __init__(self, seed: int, folder: Path) -> None:
        self.seed = seed
        self.lines: list[str] = []
        self.luck = SeededDice(seed, "world")
        self.clock = FakeClock()
        self.rates = _draw_rates(SeededDice(seed, "rates"))
        self.clusters = {
            name: SimulatedCluster(FakeEngine(inventory, self.clock, obey_s=2.0), SeededDice(seed, f"faults of {name}"))
            for name, inventory in _draw_inventories(self.luck).items()
        }
        for cluster in self.clusters.values():
            cluster.inner.queueing = cluster.inner.inventory().delegated
        self.control = Control(
            store=open_store(f"sqlite:///{folder / 'store.db'}"),
            engines=dict(self.clusters),
            clock=self.clock,
            dice=SeededDice(seed, "control"),
            access=AgentAccess(controller_url="http://127.0.0.1:1", objects_url="file:///objects", key=f"key {seed}"),
            settings=Settings(),
            policy=_POLICY,
        )
        self.loop = self.control.new_loop()
        self.tick = self.loop.steps()
        self.stale: list[Iterator[Step]] = []
        self.gangs: dict[AttemptId, Gang] = {}
        self.jobs: list[JobId] = []
        faults = (self.rates.cluster_silent, self.rates.calls.lost, self.rates.calls.reply_lost)
        self.invariants = Invariants(self.control, self.clusters, silences=any(faults))
        self._outages = _Outages()

    def run(self, steps: int) -> Trace:
        self.control.set_team(Team(name=LAB), ADMIN)
        for name, limit in (("vision", 10.0), ("control", 12.0)):
            self.control.set_team(
                Team(name=TeamName(name), parent=LAB, chips_max=limit, guarantee={_CHIP: limit / 4}), ADMIN
            )
        self._step_whole_tick()  # Until clusters have answered once, what can never run is not refused.
        for _ in range(steps):
            self._mischief()
            self._advance(self.rates)
        self._say("faults stop")
        settle_ticks = self._settle()
        return Trace(seed=self.seed, lines=tuple(self.lines), settle_ticks=settle_ticks)

    def _advance(self, rates: Rates) -> None:
        for _ in range(1 + pick(self.luck, 8)):
            self._step_controller()
        self._advance_gangs(rates.gangs)
        self.invariants.check()
        self.invariants.check_leads(self.gangs)
        self.clock.advance(0.1 + pick(self.luck, 10) / 10)
        self._outages.end(self.clusters, self.clock.monotonic_s())

    def _next(self, tick: Iterator[Step], refused: str = "controller") -> Step | None:
        """Returns a controller's next step; None where its tick is over, or ends by an error."""
        try:
            return next(tick, None)
        except MainspringError as error:
            self._say(f"{refused}: {type(error).__name__}")
            return None

    def _step_controller(self) -> None:
        step = self._next(self.tick)
        if step in _TELLING:
            self.invariants.check()
        if step is None:
            self.tick = self.loop.steps()
        elif step in (Step.COMMITTED, Step.ACTED) and chance(self.luck, 5 * self.rates.crash):
            self._crash()  # What is decided and not done yet is where a death hurts most.

    def _advance_gangs(self, faults: GangFaults) -> None:
        for name, cluster in self.clusters.items():
            for allocation in sorted(cluster.orders):
                attempt = cluster.orders[allocation].attempt
                if attempt not in self.gangs:
                    self._say(f"{attempt} comes to life on {name}")
                    luck = SeededDice(self.seed, f"gang {attempt}")
                    self.gangs[attempt] = Gang(
                        attempt=attempt,
                        cluster_name=name,
                        cluster=cluster,
                        clock=self.clock,
                        dice=luck,
                        steps=2 + pick(luck, 30),
                        lease_s=self.control.settings.lease_s,
                    )
        running = {name: cluster.running() for name, cluster in self.clusters.items()}
        unheard = replace(faults, call_lost=1.0)
        for attempt in sorted(self.gangs):
            name = self.gangs[attempt].cluster_name
            self.gangs[attempt].advance(
                self.control, running[name], unheard if name in self._outages.cut_off else faults
            )

    def _mischief(self) -> None:
        """Lets the world do its worst for one step."""
        if chance(self.luck, 0.08):
            self._submit()
        if chance(self.luck, self.rates.cancel):
            self._cancel()
        if chance(self.luck, self.rates.crash):
            self._crash()
        if self.stale and chance(self.luck, 0.3):
            self._step_stale()
        if chance(self.luck, self.rates.clock_jump):
            self.clock.jump(pick(self.luck, 40) - 20.0)
        for name, cluster in self.clusters.items():
            cluster.faults = self.rates.calls
            if chance(self.luck, self.rates.cluster_silent):
                cluster.answering = False
                self._outages.silent_until_s[name] = self.clock.monotonic_s() + pick(self.luck, _SILENT_S_MAX)
                if chance(self.luck, self.rates.cut_off):
                    self._outages.cut_off[name] = None
                self._say(f"{name} falls silent{', its leads too' if name in self._outages.cut_off else ''}")
            if chance(self.luck, self.rates.node_down):
                nodes = cluster.inner.inventory().nodes
                node = nodes[pick(self.luck, len(nodes))].name
                cluster.inner.node_down(node)
                self._outages.node_up_s[name, node] = self.clock.monotonic_s() + pick(self.luck, 60)
                self._say(f"{node} of {name} goes down")
            self._queue(name, cluster)

    def _queue(self, name: ClusterName, cluster: SimulatedCluster) -> None:
        """Lets a cluster do what its own queue makes it do."""
        for allocation in cluster.inner.waiting():
            if chance(self.luck, self.rates.starts):
                cluster.inner.let_start(allocation)
                self._say(f"{allocation} leaves the queue of {name}")
        held = sorted(cluster.running())
        if held and chance(self.luck, self.rates.taken):
            allocation = held[pick(self.luck, len(held))]
            cluster.inner.take_back(allocation, "others come first", grace_s=float(pick(self.luck, 4)))
            self._say(f"{name} takes back {allocation}")

    def _cancel(self) -> None:
        live = [job for job, state in self.invariants.states().items() if not ended(state)]
        if live:
            job = live[pick(self.luck, len(live))]
            self._say(f"cancel {job}: {self.control.stop(job, ADMIN).state.value}")

    def _submit(self) -> None:
        spec = _draw_spec(self.luck, len(self.jobs), self.jobs)
        count = 2 + pick(self.luck, 3) if chance(self.luck, 0.15) else 1
        submit = Submit(spec=spec, key=f"key-{len(self.jobs)}", count=count)
        try:
            job = self.control.submit(submit, ADMIN).id
        except MainspringError as error:
            self._say(f"refused {spec.name}: {type(error).__name__}")
            return
        again = self.control.submit(submit, ADMIN).id
        assert again == job, f"key {submit.key} made {job} and {again}"
        made = [job] if count == 1 else [view.id for view in self.control.jobs(array=job)]
        assert len(made) == count, f"an array of {count} has the jobs {made}"
        self.jobs += made
        for each in made:
            self.invariants.submitted(each, after=spec.after)
        self._say(f"submit {', '.join(made)}: {spec.roles[0].options[0].replicas} replicas for {spec.team}")

    def _crash(self) -> None:
        self._say("the controller dies")
        if chance(self.luck, self.rates.stale) and len(self.stale) < _STALE_MAX:
            self.stale.append(self.tick)
        self.loop = self.control.new_loop()
        self.tick = self.loop.steps()
        if self.rates.cancel and chance(self.luck, 0.5):
            self._cancel()
        # Somebody else takes over once the lease has run out; virtual time makes the wait free.
        self.clock.advance(self.control.settings.leader_lease_s * (1 + pick(self.luck, 2)))

    def _step_stale(self) -> None:
        at = pick(self.luck, len(self.stale))
        if self._next(self.stale[at], "a stale controller is refused") is None:
            del self.stale[at]

    def _settle(self) -> int:
        """Stops all faults and waits until every job has ended."""
        quiet = Rates()
        self.rates = quiet
        self.stale.clear()
        self._outages = _Outages()
        for cluster in self.clusters.values():
            cluster.answering, cluster.faults = True, quiet.calls
            cluster.inner.queueing = False
            for allocation in cluster.inner.waiting():
                cluster.inner.let_start(allocation)
            for node in cluster.inner.inventory().nodes:
                cluster.inner.node_up(node.name)
        for ticks in range(_SETTLE_TICKS_MAX):
            running = any(cluster.running() for cluster in self.clusters.values())
            if not running and all(ended(state) for state in self.invariants.states().values()):
                self.invariants.check_ends(self.gangs)
                self._say_ends()
                return ticks
            self._step_whole_tick()
            self._advance_gangs(quiet.gangs)
            self.invariants.check()
            self.clock.advance(1.0)
        waiting = {job: state.value for job, state in self.invariants.states().items() if not ended(state)}
        raise AssertionError(f"{_SETTLE_TICKS_MAX} ticks after the last fault there wait {waiting}")

    def _step_whole_tick(self) -> None:
        step: Step | None = Step.LEADING
        while step is not None:
            step = self._next(self.tick)
            if step in _TELLING:
                self.invariants.check()
        self.tick = self.loop.steps()

    def _say_ends(self) -> None:
        for job in self.jobs:
            view = self.control.job(job)
            self._say(
                f"{job} {view.state.value} after {len(view.attempts)} attempts at step {view.step}: {view.reason}"
            )
            for attempt in view.attempts:
                self._say(f"  {attempt.id} {attempt.state.value} on {attempt.cluster} ${attempt.dollars:.6f}")

    def _say(self, words: str) -> None:
        self.lines.append(f"{self.clock.monotonic_s():.1f} {words}")


def _draw_rates(dice: SeededDice) -> Rates:
    def rate(most: float) -> float:
        # A third of all faults are off in a run, so that the others are seen alone too.
        return 0.0 if chance(dice, 0.33) else most * pick(dice, 1_000) / 1_000

    return Rates(
        calls=CallFaults(lost=rate(0.2), reply_lost=rate(0.3)),
        gangs=GangFaults(
            agent_dies=rate(0.02),
            rank_dies=rate(0.1),
            call_lost=rate(0.3),
            reply_lost=rate(0.3),
            held_back=rate(0.2),
            program_fails=rate(0.01),
            lead_cut=rate(0.1),
        ),
        crash=rate(0.05),
        stale=rate(1.0),
        cluster_silent=rate(0.03),
        cut_off=rate(1.0),
        node_down=rate(0.03),
        taken=rate(0.05),
        starts=0.02 + rate(0.3),
        cancel=rate(0.03),
        clock_jump=rate(0.02),
    )


def _draw_inventories(dice: SeededDice) -> dict[ClusterName, Inventory]:
    inventories = {}
    for index in range(1 + pick(dice, 3)):
        name = ClusterName(f"cluster-{index}")
        chips = 1 + pick(dice, 4)
        inventories[name] = Inventory(
            cluster=name,
            engine="fake",
            simulated=True,
            nodes=tuple(Node(name=NodeName(f"n{n}"), chip=_CHIP, chips=chips) for n in range(1 + pick(dice, 6))),
            dollars_per_chip_hour={_CHIP: 1.0 + pick(dice, 100) / 10},
            delegated=chance(dice, 0.3),
        )
    return inventories


def _draw_spec(dice: SeededDice, number: int, before: list[JobId]) -> JobSpec:
    team = (LAB, TeamName("vision"), TeamName("control"))[pick(dice, 3)]
    replicas = 1 + pick(dice, 4)
    least = 1 + pick(dice, replicas) if chance(dice, 0.4) else replicas
    spares = pick(dice, least) if chance(dice, 0.3) else 0
    option = Option(chip=_CHIP, replicas=replicas, replicas_min=least, chips=(0.5, 1.0, 2.0)[pick(dice, 3)])
    roles = [Role(command=("train",), options=(option,), spares=spares)]
    if chance(dice, 0.3):
        helper = Option(chip=_CHIP, chips=option.chips)
        roles.append(Role(name=RoleName("helper"), command=("help",), options=(helper,)))
    return JobSpec(
        name=f"job-{number}",
        team=team,
        tier=list(Tier)[pick(dice, len(Tier))],
        roles=tuple(roles),
        after=(before[pick(dice, len(before))],) if before and chance(dice, 0.2) else (),
        duration_s=float(pick(dice, 60)),
        attempts_max=1 + pick(dice, 4),
    )
