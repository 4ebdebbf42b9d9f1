"""Small workloads, fleets and planners that do exactly what a test says."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from mainspring.domain.answers import Event
from mainspring.domain.ids import ChipName, ClusterName, JobId, TeamName
from mainspring.domain.job import JobSpec, Option, Role
from mainspring.domain.plan import Evict, Limit, Plan
from mainspring.planner import Budget, Policy, Snapshot
from mainspring.simulator import DescribedCluster, DescribedFleet, Fleet, NodeGroup, TraceJob, Workload, described

from .standin import first_fit

GPU = ChipName("gpu")


def job(
    name: str,
    *,
    submit_s: float = 0.0,
    duration_s: float = 1_000.0,
    chips: float = 1.0,
    replicas: int = 1,
    replicas_min: int = 0,
    team: str = "lab",
    attempts_max: int = 1_000,
    after: Iterable[str] = (),
    inputs: Iterable[str] = (),
    requested_s: float = 0.0,
) -> TraceJob:
    option = Option(chip=GPU, chips=chips, replicas=replicas, replicas_min=replicas_min)
    spec = JobSpec(
        name="job",
        team=TeamName(team),
        roles=(Role(command=("trace",), options=(option,)),),
        attempts_max=attempts_max,
        after=tuple(map(JobId, after)),
        inputs=tuple(inputs),
        duration_s=requested_s,
    )
    return TraceJob(job=JobId(name), spec=spec, submit_s=submit_s, duration_s=duration_s)


def workload(*jobs: TraceJob) -> Workload:
    return Workload(name="test", jobs=tuple(sorted(jobs, key=lambda each: (each.submit_s, each.job))))


def fleet(nodes: int = 1, chips: int = 8, **cluster: object) -> Fleet:
    group = NodeGroup(count=nodes, chip=GPU, chips=chips, name="n")
    made = DescribedCluster(name=ClusterName("east"), nodes=(group,), **cluster)  # type: ignore[arg-type]
    return described(DescribedFleet(clusters=(made,)), name="test", folder=None)


def evicting(*times_s: float, of: str = "") -> Callable[[Snapshot, Policy, float, Budget], Plan]:
    """Returns a planner that displaces every attempt (of one job, if named) at the first plan after each time."""
    left = sorted(times_s)

    def plan(snapshot: Snapshot, policy: Policy, now_s: float, budget: Budget) -> Plan:
        found = first_fit(snapshot, policy, now_s, budget)
        if not left or now_s < left[0]:
            return found
        left.pop(0)
        live = snapshot.live
        evicts = tuple(
            Evict(attempt=attempt, job=name, cause=Limit.TIER, reason="a test says so")
            for attempt, name, stopping in zip(live.attempts, live.jobs, live.stopping, strict=True)
            if not stopping and name.startswith(of)
        )
        return Plan(number=found.number, starts=found.starts, evicts=evicts, waits=found.waits)

    return plan


class Heard:
    """Keeps every event."""

    def __init__(self) -> None:
        self.events: list[Event] = []

    def __call__(self, event: Event) -> None:
        self.events.append(event)
