"""Worlds of teams, live attempts and pending jobs, for tests of entitlement and queue."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from mainspring.domain.fleet import Inventory, Node, NodeCondition
from mainspring.domain.ids import AttemptId, ChipName, ClusterName, JobId, NodeName, RoleName, TeamName
from mainspring.domain.job import LAB, MILLI, JobSpec, Option, Role, Tier
from mainspring.domain.plan import Grant
from mainspring.domain.team import Team, TeamOrder
from mainspring.planner import LiveAttempt, PendingJob, Policy, Snapshot, SnapshotBuilder
from mainspring.planner.quota.entitlement import Entitlement
from mainspring.planner.quota.limits import Charge
from mainspring.planner.quota.queue import Queue

NOW_S = 100_000.0
H100 = ChipName("h100")
B200 = ChipName("b200")


def team(
    name: str,
    parent: str | None = None,
    *,
    chips_max: float | None = None,
    guarantee: Mapping[ChipName, float] | float | None = None,
    borrow_max: Mapping[ChipName, float] | float | None = None,
    lend_max: Mapping[ChipName, float] | float | None = None,
    weight: float = 1.0,
    dollars_max: float | None = None,
    order: TeamOrder = TeamOrder.AGE,
) -> Team:
    """Returns a team; plain numbers are of h100."""
    return Team(
        name=TeamName(name),
        parent=None if parent is None else TeamName(parent),
        chips_max=chips_max,
        guarantee=_by_chip(guarantee),
        borrow_max=_by_chip(borrow_max),
        lend_max=_by_chip(lend_max),
        weight=weight,
        dollars_max=dollars_max,
        order=order,
    )


def _by_chip(chips: Mapping[ChipName, float] | float | None) -> Mapping[ChipName, float]:
    if chips is None:
        return {}
    return chips if isinstance(chips, Mapping) else {H100: chips}


@dataclass(frozen=True, kw_only=True)
class Job:
    """A job that is live when it was granted, and pending else."""

    team: str = LAB
    chips: Mapping[ChipName, int] = field(default_factory=lambda: {H100: 1})
    tier: Tier = Tier.STANDARD
    submitted_s: float = 0.0
    granted_s: float | None = None
    attained_chip_s: float = 0.0
    duration_s: float = 0.0
    stopping: bool = False
    blocked: bool = False
    listed: bool = True

    @property
    def spec(self) -> JobSpec:
        """Returns a role for each type of chip; a job without chips wants cores."""
        options = {chip: Option(chip=chip, chips=1, replicas=count) for chip, count in self.chips.items()}
        roles = [
            Role(name=RoleName(chip), command=("true",), options=(option,)) for chip, option in sorted(options.items())
        ]
        cores = Role(command=("true",), options=(Option(chip=H100, chips=0, cpus=1),))
        return JobSpec(
            name="job",
            team=TeamName(self.team),
            tier=self.tier,
            roles=tuple(roles or [cores]),
            duration_s=self.duration_s,
        )

    @property
    def charge(self) -> Charge:
        """Returns what it takes; b200 sorts before h100."""
        types = sorted((B200, H100))
        chips = tuple((types.index(chip), count * MILLI) for chip, count in sorted(self.chips.items()))
        return Charge(chips=chips, dollars_per_hour=0.0, duration_s=0.0)


def holds(team: str, chips: int, **more: object) -> Job:
    """Returns a live job that holds h100s."""
    return Job(**{"team": team, "chips": {H100: chips}, "granted_s": 0.0, **more})  # type: ignore[arg-type]


def wants(team: str, chips: int, **more: object) -> Job:
    """Returns a pending job that wants h100s."""
    return Job(**{"team": team, "chips": {H100: chips}, **more})  # type: ignore[arg-type]


def snapshot(
    teams: Iterable[Team],
    jobs: Mapping[str, Job] | None = None,
    *,
    h100s: int = 32,
    b200s: int = 32,
    down: int = 0,
    dollars: Mapping[str, float] | None = None,
    usage: Mapping[str, float] | None = None,
) -> Snapshot:
    """Returns a world of two nodes, one of each chip type, and one with `down` h100s that is down."""
    builder = SnapshotBuilder()
    builder.set_teams(teams)
    builder.set_spent({TeamName(name): spent for name, spent in (dollars or {}).items()})
    builder.set_usage({TeamName(name): used for name, used in (usage or {}).items()}, at_s=NOW_S)
    sizes = {"b200": (B200, b200s), "down": (H100, down), "h100": (H100, h100s)}
    nodes = tuple(
        Node(
            name=NodeName(name),
            chip=chip,
            chips=count,
            condition=NodeCondition.DOWN if name == "down" else NodeCondition.READY,
        )
        for name, (chip, count) in sizes.items()
    )
    builder.set_inventory(
        Inventory(cluster=ClusterName("alpha"), engine="local", simulated=True, nodes=nodes), answering=True
    )
    for name, job in (jobs or {}).items():
        if job.granted_s is None:
            builder.add_pending(
                PendingJob(
                    job=JobId(name),
                    spec=job.spec,
                    submitted_s=job.submitted_s,
                    attained_chip_s=job.attained_chip_s,
                    blocked=job.blocked,
                )
            )
        else:
            builder.add_live(
                LiveAttempt(
                    attempt=AttemptId(name),
                    job=JobId(name),
                    spec=job.spec,
                    grants=tuple(_grants(job)),
                    submitted_s=job.submitted_s,
                    granted_s=job.granted_s,
                    attained_chip_s=job.attained_chip_s,
                    stopping=job.stopping,
                )
            )
    return builder.build(now_s=NOW_S)


def _grants(job: Job) -> Iterable[Grant]:
    for role in job.spec.roles:
        option = role.options[0]
        yield Grant(
            role=role.name,
            option=0,
            cluster=ClusterName("alpha"),
            nodes=(NodeName(option.chip if job.listed else "gone"),),
            chip_milli=(option.chip_milli * option.replicas,),
            ranks=(option.replicas,),
        )


@dataclass(frozen=True, kw_only=True)
class Tenants:
    """The entitlement and the queue of a snapshot, asked by name."""

    snapshot: Snapshot
    entitlement: Entitlement
    queue: Queue

    def row(self, team: str) -> int:
        """Returns the index of a team."""
        return self.snapshot.teams.names.index(TeamName(team))

    def standing(self, job: Job) -> int:
        """Returns the standing of what a job would take."""
        return self.entitlement.standing(self.row(job.team), job.charge, tier=job.tier.rank, level=0)

    def bar(self, job: Job) -> str | None:
        """Returns what stands in a job's way, in words."""
        bar = self.entitlement.bar(self.row(job.team), job.charge, tier=job.tier.rank, level=0)
        return None if bar is None else bar.text

    def charge(self, job: Job) -> None:
        """Charges what a job takes."""
        self.entitlement.charge(self.row(job.team), job.charge)

    def release(self, name: str, job: Job) -> None:
        """Releases what a live job holds."""
        standing, tier, level = self.precedences()[name]
        self.entitlement.release(self.row(job.team), job.charge, (standing, tier, level))

    def precedences(self) -> dict[str, tuple[int, ...]]:
        """Returns the precedence of each live job."""
        rows = self.entitlement.live_precedence.tolist()
        return {job: tuple(row) for job, row in zip(self.snapshot.live.jobs, rows, strict=True)}

    def standings(self) -> dict[str, int]:
        """Returns the standing of each live job."""
        return {job: precedence[0] for job, precedence in self.precedences().items()}

    def popped(self) -> list[str]:
        """Empties the queue and returns the jobs."""
        popped = []
        while (turn := self.queue.pop()) is not None:
            popped.append(self.snapshot.pending.jobs[turn.row])
        return [str(job) for job in popped]


def tenants(of: Snapshot, policy: Policy | None = None) -> Tenants:
    """Returns the entitlement and the queue of a snapshot."""
    policy = policy or Policy()
    entitlement = Entitlement(of, policy, NOW_S)
    return Tenants(snapshot=of, entitlement=entitlement, queue=Queue(of, entitlement, policy, NOW_S))
