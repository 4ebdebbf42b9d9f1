"""Replays a workload on a fleet in virtual time: the planner decides, control's pure fold settles, nothing is stored.

What happens is a heap of events; submissions are a sorted list beside it. A plan is made when something happened, at
most once in `ReplayOptions.plan_every_s`. Nothing here costs work for every job at every plan: the planner's snapshot
builder is told changes only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from math import inf

import numpy as np

from mainspring.domain.plan import Limit, Plan
from mainspring.domain.ports import Backoff
from mainspring.domain.team import Team
from mainspring.planner.facts.builder import SnapshotBuilder
from mainspring.planner.facts.policy import Budget, Policy
from mainspring.planner.facts.snapshot import Snapshot, sealed
from mainspring.simulator.inputs.fleet import Fleet
from mainspring.simulator.inputs.workload import ReplayOptions, Workload
from mainspring.simulator.virtual.event_emitter import EventEmitter, Tell
from mainspring.simulator.virtual.job_lifecycle import JobLifecycle
from mainspring.simulator.virtual.machines import Machines
from mainspring.simulator.virtual.outcome import Outcome
from mainspring.simulator.virtual.record import Record
from mainspring.simulator.virtual.supply import Supply
from mainspring.simulator.virtual.timeline import Timeline

FRUITLESS_MAX = 24  # Plans in a row that decide nothing while nothing else can happen: what waits then waits for ever.
WAKE_S_MAX = 3_600.0
PROGRESS_STEPS = 500


Planner = Callable[[Snapshot, Policy, float, Budget], Plan]  # The form of `mainspring.planner.plan`.
Planned = Callable[[float, Snapshot, Plan], None]
Progress = Callable[[int, float], None]


def replay(
    workload: Workload,
    fleet: Fleet,
    *,
    planner: Planner,
    teams: Iterable[Team] = (),
    policy: Policy | None = None,
    options: ReplayOptions | None = None,
    budget: Budget | None = None,
    seed: int = 0,
    tell: Tell | None = None,
    planned: Planned | None = None,
    progress: Progress | None = None,
) -> Outcome:
    """Returns what becomes of a workload on a fleet.

    Args:
        planner: Decides; `mainspring.planner.plan`, or another function of its form to compare with.
        teams: The tenant tree; a team nobody lists stands alone.
        policy: What the lab decides about planning.
        options: How the replay runs.
        budget: How much work one plan may take.
        seed: Of the faults drawn; everything else is decided by the arguments.
        tell: Takes every event, in order, as it happens.
        planned: Called after each plan with the time, the snapshot it was made from and the plan.
        progress: Called now and then with how many jobs have ended, and the time.

    Raises:
        InvalidInput: The tenant tree is not one, or a job comes after one that is not in the workload.
    """
    under_way = _Replay(workload, fleet, tuple(teams), policy or Policy(), options or ReplayOptions(), seed, tell)
    under_way.go_on(planner, budget or Budget(), planned, progress)
    return under_way.outcome()


class _Replay:
    """One replay under way."""

    def __init__(
        self,
        workload: Workload,
        fleet: Fleet,
        teams: tuple[Team, ...],
        policy: Policy,
        options: ReplayOptions,
        seed: int,
        tell: Tell | None,
    ) -> None:
        self._policy = policy
        self._options = options
        self._builder = SnapshotBuilder()
        self._builder.set_teams(teams)
        self._timeline = Timeline(workload.jobs[0].submit_s if workload.jobs else 0.0)
        self._record = Record(workload, fleet.name, teams, policy, self._timeline.now_s)
        self._machines = Machines(fleet.inventories)
        self._lives = JobLifecycle(
            self._timeline, self._machines, self._builder, self._record, EventEmitter(tell), options
        )
        self._supply = Supply(self._timeline, self._lives, fleet, policy, seed)
        self._plans = 0
        self._planned_s = -inf
        self._fruitless = 0

    def outcome(self) -> Outcome:
        """Returns what the replay came to."""
        self._lives.finish()
        return self._record.outcome(self._lives.jobs, self._machines.pools, self._timeline.now_s)

    def go_on(self, planner: Planner, budget: Budget, planned: Planned | None, progress: Progress | None) -> None:
        """Lets time pass until all has ended, or nothing can happen any more.

        Args:
            budget: How much work one plan may take.
            planned: Called after each plan.
            progress: Called now and then.
        """
        timeline, lives, record = self._timeline, self._lives, self._record
        until_s = inf if self._options.until_s is None else timeline.now_s + self._options.until_s
        every = max(1, len(lives.jobs) // PROGRESS_STEPS)
        told = -1
        while record.tally.ended < len(lives.jobs):
            event_s = min(timeline.next_s, lives.submit_s)
            plan_s = max(timeline.changed_s, self._planned_s + self._options.plan_every_s)
            next_s = min(event_s, plan_s)
            if next_s == inf or self._hopeless():
                break
            timeline.now_s = max(timeline.now_s, min(next_s, until_s))
            if next_s > until_s:
                break
            if event_s <= plan_s:
                timeline.happen()
                lives.submit()
            else:
                timeline.changed_s = inf
                if self._supply.must_answer() or lives.waiting or lives.elastic:
                    self._plan(planner, budget, planned)
            if progress is not None and record.tally.ended // every != told:
                told = record.tally.ended // every
                progress(record.tally.ended, timeline.now_s)

    def _hopeless(self) -> bool:
        """Returns whether what waits would wait for ever: nothing runs or comes, and plan after plan finds nothing."""
        idle = not self._lives.runs and not self._timeline.expected and self._lives.submit_s == inf
        return idle and self._fruitless >= FRUITLESS_MAX

    def _snapshot(self) -> Snapshot:
        """Returns what the planner may know now; checkpoints of all live attempts are counted at once."""
        for inventory in self._machines.changes():
            self._builder.set_inventory(inventory, answering=True)
        if self._record.budgets.windows_s:
            self._builder.set_spent(self._record.budgets.spent(self._timeline.now_s, self._lives.runs.values()))
        snapshot = self._builder.build(number=self._plans, now_s=self._timeline.now_s)
        steps_s, every_s = snapshot.live.durable_s, self._options.checkpoint_s
        saves = np.floor(np.maximum(self._timeline.now_s - steps_s, 0.0) / every_s)
        return replace(
            snapshot,
            live=replace(snapshot.live, durable_s=sealed(np.minimum(steps_s + saves * every_s, self._timeline.now_s))),
        )

    def _plan(self, planner: Planner, budget: Budget, planned: Planned | None) -> None:
        self._plans += 1
        self._planned_s = self._timeline.now_s
        snapshot = self._snapshot()
        plan = planner(snapshot, self._policy, self._timeline.now_s, budget)
        if planned is not None:
            planned(self._timeline.now_s, snapshot, plan)
        self._record.planned(plan)
        decided = bool(plan.starts or plan.evicts or plan.resizes)
        for evict in plan.evicts:
            self._lives.evict(evict)
        # What shrinks makes room for what grows.
        for resize in sorted(plan.resizes, key=lambda each: each.for_job is None):
            self._lives.resize(resize)
        for start in plan.starts:
            self._lives.start(start, self._plans)
        for wait in plan.waits:
            # Where nodes can be ordered, what no machine here can run may run yet.
            if wait.limit is Limit.IMPOSSIBLE and not snapshot.offers:
                for name in wait.jobs:
                    self._lives.refuse(name, wait.reason)
        decided = self._supply.carry_out(plan) or decided
        self._fruitless = 0 if decided else self._fruitless + 1
        if self._lives.waiting and (self._fruitless < FRUITLESS_MAX or self._lives.runs or self._timeline.expected):
            # Time alone may free a job: a minimum runtime or a cooldown passes, or a job has waited for long enough.
            every_s = self._options.plan_every_s
            wake_s = Backoff(first_s=every_s, cap_s=max(WAKE_S_MAX, every_s)).wait_s(self._fruitless + 1)
            plans = self._plans
            self._timeline.at(
                self._timeline.now_s + wake_s,
                lambda: self._timeline.change() if self._plans == plans else None,
                expected=False,
            )
