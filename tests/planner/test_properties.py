"""Sentences that hold for every fleet and every queue."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import mainspring
from mainspring.domain.codec import encode
from mainspring.domain.fleet import Inventory, Node, NodeCondition
from mainspring.domain.ids import AttemptId, ChipName, ClusterName, JobId, NodeName, RoleName, TeamName
from mainspring.domain.job import MILLI, JobSpec, Option, Role, Tier
from mainspring.domain.plan import Plan
from mainspring.planner import Budget, Policy, Snapshot, SnapshotBuilder, TeamQuota, feasible, plan

CHIPS = ("h100", "b200")
TEAMS = ("lab", "vision", "control", "stray")
NOW_S = 1_000.0

pytestmark = pytest.mark.slow
property_of = settings(deadline=None, max_examples=60)  # A busy machine is no failure.


@dataclass(frozen=True, kw_only=True)
class World:
    inventories: tuple[Inventory, ...]
    silent: tuple[str, ...]
    quotas: tuple[TeamQuota, ...]
    jobs: tuple[JobSpec, ...]
    live_chips: tuple[int, ...]

    def builder(self) -> SnapshotBuilder:
        builder = SnapshotBuilder()
        builder.set_teams(self.quotas)
        for inventory in self.inventories:
            builder.set_inventory(inventory, answering=inventory.cluster not in self.silent)
        for index, chips in enumerate(self.live_chips):
            inventory = self.inventories[index % len(self.inventories)]
            builder.add_live(
                AttemptId(f"attempt-{index}"),
                JobId(f"live-{index}"),
                team=TeamName(TEAMS[index % len(TEAMS)]),
                tier=Tier.STANDARD,
                submitted_s=0.0,
                cluster=inventory.cluster,
                chip_milli={inventory.nodes[0].name: chips * MILLI},
            )
        for index, job in enumerate(self.jobs):
            builder.add_pending(JobId(f"job-{index:02}"), job, float(index % 3))
        return builder


@st.composite
def inventories(draw: st.DrawFn, name: str) -> Inventory:
    nodes = []
    for index in range(draw(st.integers(1, 6))):
        chips = draw(st.sampled_from((1, 4, 8)))
        nodes.append(
            Node(
                name=NodeName(f"n{index}"),
                chip=ChipName(draw(st.sampled_from(CHIPS))),
                chips=chips,
                domains=(("rack", f"r{index % 2}"),) if draw(st.booleans()) else (),
                condition=draw(st.sampled_from((NodeCondition.READY, NodeCondition.READY, NodeCondition.CORDONED))),
                foreign_chip_milli=draw(st.sampled_from((0, 0, 500, MILLI))),
            )
        )
    prices = {ChipName(chip): draw(st.sampled_from((0.0, 1.0, 2.0))) for chip in CHIPS}
    return Inventory(
        cluster=ClusterName(name), engine="local", simulated=True, dollars_per_chip_hour=prices, nodes=tuple(nodes)
    )


@st.composite
def options(draw: st.DrawFn) -> Option:
    replicas = draw(st.integers(1, 12))
    return Option(
        chip=ChipName(draw(st.sampled_from(CHIPS))),
        chips=draw(st.sampled_from((0.25, 0.5, 1.0, 2.0, 4.0, 12.0))),
        replicas=replicas,
        replicas_min=draw(st.sampled_from((0, 0, 1))),
        within=draw(st.sampled_from((None, None, "rack", "node", "cluster"))),
        speed=draw(st.sampled_from((1.0, 2.0))),
    )


@st.composite
def specs(draw: st.DrawFn) -> JobSpec:
    roles = tuple(
        Role(name=RoleName(name), command=("true",), options=tuple(draw(st.lists(options(), min_size=1, max_size=2))))
        for name in ("main", "sampler")[: draw(st.sampled_from((1, 1, 2)))]
    )
    team = draw(st.sampled_from(TEAMS))
    return JobSpec(name="job", team=TeamName(team), tier=draw(st.sampled_from(list(Tier))), roles=roles)


@st.composite
def worlds(draw: st.DrawFn) -> World:
    names = ("alpha", "beta", "gamma")[: draw(st.integers(1, 3))]
    limits = st.sampled_from((None, 0.0, 3.0, 10.0))
    quotas = (
        TeamQuota(name=TeamName("lab"), chips_max=draw(limits)),
        TeamQuota(name=TeamName("vision"), parent=TeamName("lab"), chips_max=draw(limits)),
        TeamQuota(name=TeamName("control"), parent=TeamName("lab"), chips_max=draw(limits)),
    )
    return World(
        inventories=tuple(draw(inventories(name)) for name in names),
        silent=names[:1] if draw(st.sampled_from((False, False, True))) else (),
        quotas=quotas,
        jobs=tuple(draw(st.lists(specs(), max_size=8))),
        live_chips=tuple(draw(st.lists(st.integers(0, 2), max_size=3))),
    )


def decided(snapshot: Snapshot) -> Plan:
    return plan(snapshot, Policy(), NOW_S, Budget())


def taken_milli(answer: Plan) -> Counter[tuple[str, str]]:
    taken: Counter[tuple[str, str]] = Counter()
    for start in answer.starts:
        for grant in start.grants:
            for node, milli in zip(grant.nodes, grant.chip_milli, strict=True):
                taken[grant.cluster, node] += milli
    return taken


@property_of
@given(worlds())
def test_placements_never_exceed_what_is_free_on_a_usable_node(world: World) -> None:
    snapshot = world.builder().build()
    free: dict[tuple[str, str], int] = {}
    for row, name in enumerate(snapshot.nodes.names):
        cluster = int(snapshot.nodes.cluster[row])
        usable = snapshot.nodes.ready[row] and snapshot.clusters.answering[cluster]
        free[snapshot.clusters.names[cluster], name] = int(snapshot.nodes.free_milli[row]) if usable else 0
    for place, milli in taken_milli(decided(snapshot)).items():
        assert 0 < milli <= free[place]


@property_of
@given(worlds())
def test_gangs_are_whole_on_one_cluster_with_the_right_chips_and_domains(world: World) -> None:
    answer = decided(world.builder().build())
    nodes = {(inventory.cluster, node.name): node for inventory in world.inventories for node in inventory.nodes}
    for start in answer.starts:
        job = world.jobs[int(start.job.removeprefix("job-"))]
        assert [grant.role for grant in start.grants] == [role.name for role in job.roles]
        assert len({grant.cluster for grant in start.grants}) == 1
        for role, grant in zip(job.roles, start.grants, strict=True):
            option = role.options[grant.option]
            here = [nodes[grant.cluster, node] for node in grant.nodes]
            assert {node.chip for node in here} == {option.chip}
            assert len(set(grant.nodes)) == len(grant.nodes)
            if option.within == "rack":
                assert len({node.domains for node in here}) == 1
                assert here[0].domains
            if all(
                milli == ranks * option.chip_milli for milli, ranks in zip(grant.chip_milli, grant.ranks, strict=True)
            ):
                assert option.replicas_min <= sum(grant.ranks) <= option.replicas
            else:
                assert {node.chips for node in here} == {here[0].chips}, "whole nodes of one size"
                assert set(grant.chip_milli) == {here[0].chips * MILLI}
                assert set(grant.ranks) == {1}
                per_replica = -(-option.chip_milli // (here[0].chips * MILLI))
                assert option.replicas_min <= len(here) / per_replica <= option.replicas
                assert len(here) % per_replica == 0


@property_of
@given(worlds())
def test_no_team_is_ever_pushed_over_its_quota(world: World) -> None:
    used: Counter[str] = Counter()
    above = {"lab": ("lab",), "vision": ("vision", "lab"), "control": ("control", "lab"), "stray": ("stray",)}
    for index, chips in enumerate(world.live_chips):
        for team in above[TEAMS[index % len(TEAMS)]]:
            used[team] += chips * MILLI
    for start in decided(world.builder().build()).starts:
        milli = sum(sum(grant.chip_milli) for grant in start.grants)
        for team in above[world.jobs[int(start.job.removeprefix("job-"))].team]:
            used[team] += milli
            limit = next((quota.chips_max for quota in world.quotas if quota.name == team), None)
            assert limit is None or used[team] <= limit * MILLI


@property_of
@given(worlds(), st.integers(0, 30))
def test_every_pending_job_starts_or_waits_for_exactly_one_reason(world: World, placements_max: int) -> None:
    answer = plan(world.builder().build(), Policy(), NOW_S, Budget(placements_max=placements_max))
    told = [start.job for start in answer.starts] + [wait.job for wait in answer.waits]
    assert sorted(told) == [f"job-{index:02}" for index in range(len(world.jobs))]
    assert all(wait.reason for wait in answer.waits)


@property_of
@given(worlds())
def test_what_starts_now_does_not_depend_on_the_order_facts_came_in(world: World) -> None:
    builder = SnapshotBuilder()
    for index in reversed(range(len(world.jobs))):
        builder.add_pending(JobId(f"job-{index:02}"), world.jobs[index], float(index % 3))
    for index in reversed(range(len(world.live_chips))):
        inventory = world.inventories[index % len(world.inventories)]
        builder.add_live(
            AttemptId(f"attempt-{index}"),
            JobId(f"live-{index}"),
            team=TeamName(TEAMS[index % len(TEAMS)]),
            tier=Tier.STANDARD,
            submitted_s=0.0,
            cluster=inventory.cluster,
            chip_milli={inventory.nodes[0].name: world.live_chips[index] * MILLI},
        )
    for inventory in reversed(world.inventories):
        builder.set_inventory(inventory, answering=inventory.cluster not in world.silent)
    builder.set_teams(reversed(world.quotas))
    assert encode(decided(builder.build())) == encode(decided(world.builder().build()))


@property_of
@given(worlds())
def test_job_that_is_feasible_starts_alone_on_the_empty_healthy_fleet(world: World) -> None:
    healthy = SnapshotBuilder()
    for inventory in world.inventories:
        nodes = tuple(
            Node(name=node.name, chip=node.chip, chips=node.chips, domains=node.domains) for node in inventory.nodes
        )
        healthy.set_inventory(
            Inventory(
                cluster=inventory.cluster,
                engine=inventory.engine,
                simulated=True,
                dollars_per_chip_hour=inventory.dollars_per_chip_hour,
                nodes=nodes,
            ),
            answering=True,
        )
    sick = world.builder().build()
    for job in world.jobs:
        healthy.add_pending(JobId("job"), job, 0.0)
        answer = decided(healthy.build())
        assert bool(answer.starts) == (feasible(sick, job) is None)


@property_of
@given(
    st.lists(st.integers(0, 8_000), min_size=1, max_size=6), st.integers(1, 16), st.sampled_from((0.25, 0.5, 1.0, 4.0))
)
def test_gang_starts_exactly_when_its_replicas_can_be_packed(
    free_milli: list[int], replicas: int, chips: float
) -> None:
    nodes = tuple(
        Node(name=NodeName(f"n{index}"), chip=ChipName("h100"), chips=8, foreign_chip_milli=8_000 - milli)
        for index, milli in enumerate(free_milli)
    )
    builder = SnapshotBuilder()
    builder.set_inventory(
        Inventory(cluster=ClusterName("alpha"), engine="local", simulated=True, nodes=nodes), answering=True
    )
    option = Option(chip=ChipName("h100"), chips=chips, replicas=replicas)
    job = JobSpec(name="job", roles=(Role(command=("true",), options=(option,)),))
    builder.add_pending(JobId("job"), job, 0.0)
    packable = sum(milli // option.chip_milli for milli in free_milli)
    assert bool(decided(builder.build()).starts) == (packable >= replicas)


@property_of
@given(worlds())
def test_snapshots_built_step_by_step_equal_one_built_at_once(world: World) -> None:
    builder = replace(world, jobs=()).builder()
    for index, job in enumerate(world.jobs):
        builder.add_pending(JobId(f"job-{index:02}"), job, 9.0)
        builder.add_pending(JobId("passing"), job, 5.0)
        builder.set_inventory(world.inventories[-1], answering=index % 2 == 0)
        builder.build()
        builder.remove_pending(JobId("passing"))
        builder.build()
        builder.add_pending(JobId(f"job-{index:02}"), job, float(index % 3))
    builder.set_inventory(world.inventories[-1], answering=world.inventories[-1].cluster not in world.silent)
    assert encode(decided(builder.build())) == encode(decided(world.builder().build()))


_PROGRAM = """
import sys
from benchmarks.planner_first import NOW_S, fill
from mainspring.domain.codec import to_plain
from mainspring.planner import Budget, Policy, SnapshotBuilder, plan
import json
builder = SnapshotBuilder()
fill(builder, node_count=64, job_count=300)
sys.stdout.write(json.dumps(to_plain(plan(builder.build(), Policy(), NOW_S, Budget()))))
"""


def test_plan_is_the_same_bytes_under_two_hash_seeds() -> None:
    source = Path(mainspring.__file__).parent.parent
    answers = []
    for seed in ("1", "2"):
        environment = {**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": f"{source}:{source.parent}"}
        done = subprocess.run(
            [sys.executable, "-c", _PROGRAM], env=environment, capture_output=True, check=True, timeout=30
        )
        answers.append(done.stdout)
    assert answers[0] == answers[1]
    assert answers[0].count(b'"grants"') > 20
