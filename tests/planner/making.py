"""Small fleets, specs and worlds for tests of the planner."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import inf
from typing import Any

from mainspring.domain.fleet import AvoidedNode, Inventory, Node, NodeCondition
from mainspring.domain.ids import AttemptId, ChipName, ClusterName, JobId, NodeName, RoleName, TeamName
from mainspring.domain.job import LAB, MILLI, JobSpec, Option, Role, Tier
from mainspring.domain.plan import Grant, Plan, Start, Wait
from mainspring.domain.team import Team
from mainspring.planner import Budget, LiveAttempt, PendingJob, Policy, Snapshot, SnapshotBuilder, plan

H100 = ChipName("h100")
ONE = Option(chip=H100)
NOW_S = 10_000.0


def cluster(
    name: str,
    *,
    nodes: int = 4,
    chips: int = 8,
    chip: str = "h100",
    price: float = 2.0,
    rack_size: int = 2,
    cpus: float | None = None,
    memory_gib: float | None = None,
    foreign: dict[int, int] | None = None,
    unready: tuple[int, ...] = (),
    delegated: bool = False,
    divides: bool = True,
    chip_memory_gib: tuple[float | None, ...] = (None,),
) -> Inventory:
    """Returns one cluster of equal nodes, `rack_size` of them in each rack, two racks in each block.

    Args:
        chip_memory_gib: What the nodes say of their chips, in turn.
    """
    rows = tuple(
        Node(
            name=NodeName(f"n{index:03}"),
            chip=ChipName(chip),
            chips=chips,
            domains=(("block", f"b{index // (2 * rack_size):03}"), ("rack", f"r{index // rack_size:03}")),
            condition=NodeCondition.DOWN if index in unready else NodeCondition.READY,
            foreign_chip_milli=(foreign or {}).get(index, 0),
            cpus=cpus,
            memory_gib=memory_gib,
            divides=divides,
            chip_memory_gib=chip_memory_gib[index % len(chip_memory_gib)],
        )
        for index in range(nodes)
    )
    return Inventory(
        cluster=ClusterName(name),
        engine="local",
        simulated=True,
        dollars_per_chip_hour={ChipName(chip): price},
        nodes=rows,
        delegated=delegated,
    )


def spec(
    *options: Option,
    team: str = LAB,
    tier: Tier = Tier.STANDARD,
    others: dict[str, Option] | None = None,
    duration_s: float = 0.0,
    inputs: tuple[str, ...] = (),
) -> JobSpec:
    """Returns the spec of a job with one role, or several."""
    roles = [Role(command=("true",), options=options)]
    roles += [
        Role(name=RoleName(name), command=("true",), options=(option,)) for name, option in (others or {}).items()
    ]
    return JobSpec(name="job", team=TeamName(team), tier=tier, roles=tuple(roles), duration_s=duration_s, inputs=inputs)


def grant(name: str, nodes: dict[str, int]) -> Grant:
    """Returns a grant of whole chips on nodes of a cluster."""
    return Grant(
        role=RoleName("main"),
        option=0,
        cluster=ClusterName(name),
        nodes=tuple(NodeName(node) for node in nodes),
        chip_milli=tuple(chips * MILLI for chips in nodes.values()),
        ranks=tuple(nodes.values()),
    )


@dataclass(kw_only=True)
class Lab:
    """A builder with jobs and attempts named by the test; time stands at `NOW_S` until it is moved."""

    builder: SnapshotBuilder = field(default_factory=SnapshotBuilder)
    specs: dict[str, JobSpec] = field(default_factory=dict)
    submitted_s: dict[str, float] = field(default_factory=dict)
    policy: Policy = field(default_factory=Policy)
    now_s: float = NOW_S

    def clusters(self, *inventories: Inventory, silent: tuple[str, ...] = ()) -> Lab:
        """Adds clusters."""
        for inventory in inventories:
            self.builder.set_inventory(inventory, answering=inventory.cluster not in silent)
        return self

    def teams(self, *teams: Team) -> Lab:
        """Replaces the tenant tree."""
        self.builder.set_teams(teams)
        return self

    def pend(
        self,
        job: str,
        of: JobSpec,
        submitted_s: float = 0.0,
        *,
        evicted_s: float = -inf,
        avoid: dict[ClusterName, float] | None = None,
        avoid_nodes: tuple[AvoidedNode, ...] = (),
    ) -> Lab:
        """Adds a pending job."""
        self.specs[job], self.submitted_s[job] = of, submitted_s
        known: dict[str, Any] = {"avoid": avoid or {}, "avoid_nodes": avoid_nodes, "evicted_s": evicted_s}
        self.builder.add_pending(PendingJob(job=JobId(job), spec=of, submitted_s=submitted_s, **known))
        return self

    def live(
        self,
        job: str,
        of: JobSpec,
        *grants: Grant,
        granted_s: float = 0.0,
        resized_s: float = -inf,
        durable_s: float | None = None,
        stopping: bool = False,
    ) -> Lab:
        """Adds a live attempt of a job."""
        self.specs[job] = of
        self.submitted_s.setdefault(job, granted_s)
        self.builder.add_live(
            LiveAttempt(
                attempt=AttemptId(f"attempt-{job}"),
                job=JobId(job),
                spec=of,
                grants=grants,
                submitted_s=self.submitted_s[job],
                granted_s=granted_s,
                resized_s=resized_s,
                durable_s=durable_s,
                stopping=stopping,
            )
        )
        return self

    def snapshot(self) -> Snapshot:
        """Returns everything known now."""
        return self.builder.build(now_s=self.now_s)

    def plan(self, budget: Budget | None = None) -> Plan:
        """Returns the plan for now."""
        return plan(self.snapshot(), self.policy, self.now_s, budget or Budget())

    def act(self, answer: Plan) -> Lab:
        """Carries a plan out at once: what starts runs, what is evicted is gone and waits again."""
        for evict in answer.evicts:
            self.builder.remove_live(evict.attempt)
            self.pend(evict.job, self.specs[evict.job], self.submitted_s[evict.job], evicted_s=self.now_s)
        for start in answer.starts:
            self.builder.remove_pending(start.job)
            self.live(start.job, self.specs[start.job], *start.grants, granted_s=self.now_s)
        return self


def started(answer: Plan) -> list[str]:
    """Returns the jobs that start, in order."""
    return [start.job for start in answer.starts]


def waiting(answer: Plan) -> list[str]:
    """Returns the jobs that wait, class by class."""
    return [job for wait in answer.waits for job in wait.jobs]


def why(answer: Plan, job: str) -> Wait:
    """Returns the class a job waits in."""
    return next(wait for wait in answer.waits if job in wait.jobs)


def only_start(answer: Plan) -> Start:
    """Returns the one start of a plan in which nothing waits."""
    assert not answer.waits, answer.waits[0].reason
    assert len(answer.starts) == 1
    return answer.starts[0]


def only_wait(answer: Plan) -> Wait:
    """Returns the one wait of a plan in which nothing starts."""
    assert not answer.starts
    assert len(answer.waits) == 1
    return answer.waits[0]
