"""Sentences that hold for every fleet and every queue."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter, defaultdict
from dataclasses import dataclass, replace
from math import inf
from pathlib import Path

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

import mainspring
from mainspring.domain.codec import encode
from mainspring.domain.fleet import Inventory, Node, NodeCondition
from mainspring.domain.ids import ChipName, ClusterName, NodeName, RoleName, TeamName
from mainspring.domain.job import MILLI, JobSpec, Option, Role, Tier
from mainspring.domain.plan import Grant, Limit, Plan
from mainspring.domain.team import Team, TeamOrder
from mainspring.planner import Budget, Policy
from mainspring.planner.explain import explain
from mainspring.planner.feasible import feasible

from .making import H100, NOW_S, Lab, cluster, grant, spec, started, waiting

CHIPS = ("h100", "b200")
TEAMS = ("lab", "vision", "control", "stray")

pytestmark = pytest.mark.slow
property_of = settings(max_examples=25, suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much])


@dataclass(frozen=True, kw_only=True)
class World:
    inventories: tuple[Inventory, ...]
    silent: tuple[str, ...]
    teams: tuple[Team, ...]
    jobs: tuple[JobSpec, ...]
    live: tuple[int, ...]

    def lab(self, *, backwards: bool = False) -> Lab:
        lab = Lab()
        order = -1 if backwards else 1
        lab.teams(*self.teams[::order])
        lab.clusters(*self.inventories[::order], silent=self.silent)
        for index in range(len(self.live))[::order]:
            inventory = self.inventories[index % len(self.inventories)]
            node = inventory.nodes[index % len(inventory.nodes)]
            held = spec(Option(chip=node.chip), team=TEAMS[index % 4], tier=list(Tier)[index % 3])
            chips = min(self.live[index], node.chips - -(-node.foreign_chip_milli // MILLI))
            if chips > 0:
                lab.live(f"live-{index}", held, grant(inventory.cluster, {node.name: chips}), granted_s=1_000.0 * index)
        for index in range(len(self.jobs))[::order]:
            lab.pend(f"job-{index:02}", self.jobs[index], float(index % 3))
        return lab


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
                cpus=draw(st.sampled_from((None, 8.0, 32.0))),
                memory_gib=draw(st.sampled_from((None, 64.0))),
                taints=draw(st.sampled_from(((), (), ("lent",)))),
                chip_memory_gib=draw(st.sampled_from((None, 40.0, 79.6))),
            )
        )
    prices = {ChipName(chip): draw(st.sampled_from((0.0, 1.0, 2.0))) for chip in CHIPS}
    return Inventory(
        cluster=ClusterName(name), engine="local", simulated=True, dollars_per_chip_hour=prices, nodes=tuple(nodes)
    )


@st.composite
def options(draw: st.DrawFn) -> Option:
    replicas = draw(st.integers(1, 12))
    group = draw(st.sampled_from((0, 0, 0, 2)))
    grouped = group and replicas % group == 0
    return Option(
        chip=ChipName(draw(st.sampled_from((*CHIPS, "any")))),
        chips=draw(st.sampled_from((0.25, 0.5, 1.0, 2.0, 4.0, 12.0))),
        cpus=draw(st.sampled_from((0.0, 0.0, 2.0))),
        memory_gib=draw(st.sampled_from((0.0, 0.0, 8.0))),
        chip_memory_gib=draw(st.sampled_from((0.0, 0.0, 60.0, 100.0))),
        replicas=replicas,
        replicas_min=0 if grouped else draw(st.sampled_from((0, 0, 1))),
        within=draw(st.sampled_from((None, None, "rack", "node", "cluster"))),
        prefer=draw(st.sampled_from((None, None, "rack"))),
        group=group if grouped else 0,
        group_within="rack" if grouped else None,
        tolerates=draw(st.sampled_from(((), ("lent",)))),
        speed=draw(st.sampled_from((1.0, 2.0))),
    )


@st.composite
def specs(draw: st.DrawFn) -> JobSpec:
    roles = tuple(
        Role(name=RoleName(name), command=("true",), options=tuple(draw(st.lists(options(), min_size=1, max_size=2))))
        for name in ("main", "sampler")[: draw(st.sampled_from((1, 1, 2)))]
    )
    return JobSpec(
        name="job",
        team=TeamName(draw(st.sampled_from(TEAMS))),
        tier=draw(st.sampled_from(list(Tier))),
        roles=roles,
        duration_s=draw(st.sampled_from((0.0, 600.0, 7_200.0))),
    )


@st.composite
def teams(draw: st.DrawFn, name: str, parent: str | None) -> Team:
    chips = st.dictionaries(st.sampled_from([ChipName(chip) for chip in CHIPS]), st.sampled_from((0.0, 2.0, 5.0)))
    return Team(
        name=TeamName(name),
        parent=None if parent is None else TeamName(parent),
        chips_max=draw(st.sampled_from((None, None, 0.0, 3.0, 10.0))),
        guarantee=draw(chips) if parent else {},
        borrow_max=draw(chips) if parent else {},
        lend_max=draw(chips) if parent else {},
        weight=draw(st.sampled_from((1.0, 2.0))),
        order=draw(st.sampled_from(list(TeamOrder))),
    )


@st.composite
def worlds(draw: st.DrawFn) -> World:
    names = ("alpha", "beta", "gamma")[: draw(st.integers(1, 3))]
    return World(
        inventories=tuple(draw(inventories(name)) for name in names),
        silent=names[:1] if draw(st.sampled_from((False, False, True))) else (),
        teams=(draw(teams("lab", None)), draw(teams("vision", "lab")), draw(teams("control", "lab"))),
        jobs=tuple(draw(st.lists(specs(), max_size=8))),
        live=tuple(draw(st.lists(st.integers(0, 2), max_size=6))),
    )


def option_of(world: World, job: str, part: Grant) -> Option:
    roles = {role.name: role for role in world.jobs[int(job.removeprefix("job-"))].roles}
    return roles[part.role].options[part.option]


def chips_by_team(world: World, answer: Plan) -> dict[str, Counter[str]]:
    """Whole numbers of milli held by team, teams below included, by chip, when all that starts runs."""
    above = {team.name: [team.name, *([team.parent] if team.parent else [])] for team in world.teams}
    chip_of = {(each.cluster, node.name): node.chip for each in world.inventories for node in each.nodes}
    used: dict[str, Counter[str]] = defaultdict(Counter)
    gone = {evict.attempt for evict in answer.evicts}
    lab = world.lab()
    live = lab.snapshot().live
    held = [
        (str(lab.specs[job].team), part)
        for attempt, job, grants in zip(live.attempts, live.jobs, live.grants, strict=True)
        for part in grants
        if attempt not in gone
    ]
    held += [
        (str(world.jobs[int(start.job.removeprefix("job-"))].team), part)
        for start in answer.starts
        for part in start.grants
    ]
    for team, part in held:
        for each in above.get(TeamName(team), [TeamName(team)]):
            for node, milli in zip(part.nodes, part.chip_milli, strict=True):
                used[each][chip_of[part.cluster, node]] += milli
    return used


@property_of
@given(worlds())
def test_placements_never_exceed_what_is_free_on_a_usable_node(world: World) -> None:
    snapshot = world.lab().snapshot()
    nodes = snapshot.nodes
    row_of = {(snapshot.clusters.names[nodes.cluster[row]], name): row for row, name in enumerate(nodes.names)}
    shares = {
        (int(node), int(chip)): int(milli)
        for node, chip, milli in zip(nodes.share_node, nodes.share_chip, nodes.share_milli, strict=True)
    }
    whole, cpu, memory = nodes.whole.tolist(), nodes.cpu_milli.tolist(), nodes.memory_mib.tolist()
    for start in world.lab().plan().starts:
        for part in start.grants:
            option = option_of(world, start.job, part)
            for place, (node, milli, ranks) in enumerate(zip(part.nodes, part.chip_milli, part.ranks, strict=True)):
                row = row_of[part.cluster, node]
                assert nodes.ready[row]
                assert part.cluster not in world.silent
                assert set(snapshot.taints[nodes.taint[row]]) <= set(option.tolerates)
                if option.chips < 1:
                    assert milli == ranks * option.chip_milli
                    for chip in part.shared[place]:
                        if (row, chip) not in shares:
                            shares[row, chip] = MILLI
                            whole[row] -= 1
                        shares[row, chip] -= option.chip_milli
                else:
                    whole[row] -= milli // MILLI
                cpu[row] -= round(option.cpu_milli * milli / option.chip_milli)
                memory[row] -= round(option.memory_mib * milli / option.chip_milli)
    assert min(whole + cpu + memory + list(shares.values())) >= 0


@property_of
@given(worlds())
def test_gangs_are_whole_on_one_cluster_with_the_right_chips_and_domains(world: World) -> None:
    nodes = {(inventory.cluster, node.name): node for inventory in world.inventories for node in inventory.nodes}
    for start in world.lab().plan().starts:
        job = world.jobs[int(start.job.removeprefix("job-"))]
        assert [part.role for part in start.grants] == [role.name for role in job.roles]
        assert len({part.cluster for part in start.grants}) == 1
        for part in start.grants:
            option = option_of(world, start.job, part)
            here = [nodes[part.cluster, node] for node in part.nodes]
            assert option.chip == "any" or {node.chip for node in here} == {option.chip}
            published = {"h100": 80.0, "b200": 180.0}
            memory_gib = [node.chip_memory_gib or published[node.chip] for node in here]
            assert min(memory_gib) >= option.chip_memory_gib
            assert len(set(part.nodes)) == len(part.nodes)
            if option.within == "rack":
                assert len({node.domains for node in here}) == 1
                assert here[0].domains
            if option.chips <= 8 and all(
                milli == ranks * option.chip_milli for milli, ranks in zip(part.chip_milli, part.ranks, strict=True)
            ):
                assert option.replicas_min <= sum(part.ranks) <= option.replicas
                if option.group:
                    racks: Counter[object] = Counter()
                    for node, ranks in zip(here, part.ranks, strict=True):
                        assert node.domains
                        racks[node.domains] += ranks
                    assert all(ranks % option.group == 0 for ranks in racks.values())
            else:
                assert {node.chips for node in here} == {here[0].chips}, "whole nodes of one size"
                assert set(part.chip_milli) == {here[0].chips * MILLI}
                assert set(part.ranks) == {1}
                per_replica = -(-option.chip_milli // (here[0].chips * MILLI))
                assert option.replicas_min <= len(here) / per_replica <= option.replicas


@property_of
@given(worlds())
def test_caps_and_borrow_limits_hold_after_every_plan(world: World) -> None:
    before = chips_by_team(world, Plan(number=1))
    answer = world.lab().plan()
    after = chips_by_team(world, answer)
    for team in world.teams:
        if team.chips_max is not None:
            most = max(round(team.chips_max * MILLI), sum(before[team.name].values()))
            assert sum(after[team.name].values()) <= most
        for chip, borrow in team.borrow_max.items():
            most = round((team.guarantee.get(chip, 0.0) + borrow) * MILLI)
            assert after[team.name][chip] <= max(most, before[team.name][chip])


@property_of
@given(worlds(), st.integers(0, 30))
def test_every_pending_job_starts_or_waits_for_exactly_one_reason(world: World, placements_max: int) -> None:
    answer = world.lab().plan(Budget(placements_max=placements_max))
    assert sorted(started(answer) + waiting(answer)) == [f"job-{index:02}" for index in range(len(world.jobs))]
    assert all(wait.reason for wait in answer.waits)
    ran_out = any(wait.limit is Limit.SEARCH for wait in answer.waits)
    assert not (ran_out and answer.complete), "a partial plan says so"


@property_of
@given(worlds())
def test_plan_does_not_depend_on_the_order_facts_came_in(world: World) -> None:
    assert encode(world.lab(backwards=True).plan()) == encode(world.lab().plan())


@property_of
@given(worlds())
def test_planning_twice_gives_the_same_plan_and_leaves_the_snapshot_alone(world: World) -> None:
    lab = world.lab()
    snapshot = lab.snapshot()
    first = encode(lab.plan())
    assert encode(lab.plan()) == first
    assert snapshot.nodes.whole.tolist() == lab.snapshot().nodes.whole.tolist()


@property_of
@given(worlds())
def test_applying_a_plan_and_planning_again_changes_nothing(world: World) -> None:
    lab = world.lab()
    for _ in range(4):  # What is evicted comes free after a plan, and those it was for start in the next.
        answer = lab.plan()
        if not (answer.starts or answer.evicts):
            break
        lab.act(answer)
    else:
        again = lab.plan()
        assert not again.evicts, [evict.reason for evict in again.evicts]
    settled = lab.plan()
    assert (settled.starts, settled.evicts, settled.resizes) == ((), (), ())


@property_of
@given(worlds())
def test_job_that_is_feasible_starts_alone_on_the_empty_healthy_fleet(world: World) -> None:
    healthy = Lab().clusters(
        *(
            replace(
                inventory,
                nodes=tuple(
                    replace(node, condition=NodeCondition.READY, foreign_chip_milli=0) for node in inventory.nodes
                ),
            )
            for inventory in world.inventories
        )
    )
    sick = world.lab().snapshot()
    for job in world.jobs:
        healthy.pend("job", job)
        assert bool(healthy.plan().starts) == (feasible(sick, job) is None)


@property_of
@given(st.lists(st.integers(0, 8), min_size=1, max_size=6), st.integers(1, 16), st.sampled_from((0.25, 0.5, 1.0, 4.0)))
def test_gang_starts_exactly_when_its_replicas_can_be_packed(free: list[int], replicas: int, chips: float) -> None:
    nodes = tuple(
        Node(name=NodeName(f"n{index}"), chip=H100, chips=8, foreign_chip_milli=(8 - chips_free) * MILLI)
        for index, chips_free in enumerate(free)
    )
    lab = Lab().clusters(Inventory(cluster=ClusterName("alpha"), engine="local", simulated=True, nodes=nodes))
    lab.pend("job", spec(Option(chip=H100, chips=chips, replicas=replicas)))
    packable = sum(int(chips_free // chips) if chips >= 1 else chips_free * int(1 / chips) for chips_free in free)
    assert bool(lab.plan().starts) == (packable >= replicas)


@property_of
@given(worlds())
def test_doing_what_explain_proposes_starts_the_job(world: World) -> None:
    lab = world.lab()
    answer = lab.plan()
    assume(answer.waits)
    job = answer.waits[0].jobs[0]
    for change in explain(lab.snapshot(), job, lab.policy, lab.now_s, Budget()):
        if change.kind in ("topology", "chip", "size"):
            of = lab.specs[job]
            roles = tuple(
                replace(role, options=shape.options) for role, shape in zip(of.roles, change.shape.roles, strict=True)
            )
            changed = world.lab().pend(job, replace(of, roles=roles), lab.submitted_s[job])
            assert job in started(changed.plan()), change.text


@property_of
@given(worlds())
def test_no_job_waits_for_ever(world: World) -> None:
    """Every job that fits its team's limits starts, when each runs an hour and no new ones come."""
    lab = world.lab()
    unlimited = tuple(replace(team, chips_max=None, borrow_max={}, guarantee={}, lend_max={}) for team in world.teams)
    lab.teams(*unlimited)
    lab.clusters(*world.inventories)
    open_nodes = lab.snapshot()
    had: dict[str, float] = {}
    began: dict[str, float] = {f"live-{index}": 0.0 for index in range(len(world.live))}
    for _ in range(400):
        idle = not lab.snapshot().live.attempts
        answer = lab.plan()
        for evict in answer.evicts:
            had[evict.job] = had.get(evict.job, 0.0) + lab.now_s - began[evict.job]
        lab.act(answer)
        began |= {start.job: lab.now_s for start in answer.starts}
        lab.now_s += 1_200.0
        for attempt, job in zip(lab.snapshot().live.attempts, lab.snapshot().live.jobs, strict=True):
            if had.get(job, 0.0) + lab.now_s - began[job] >= 3_600.0:
                lab.builder.remove_live(attempt)
        if idle and not answer.starts:
            break
    stuck = lab.plan()
    assert {wait.limit for wait in stuck.waits} <= {Limit.IMPOSSIBLE, Limit.HEALTH, Limit.CAPACITY, Limit.TOPOLOGY}
    for wait in stuck.waits:  # What is left could not stand on these nodes even when they are idle.
        if wait.limit in (Limit.CAPACITY, Limit.TOPOLOGY):
            assert not any(
                job in started(Lab().clusters(*world.inventories).pend(job, lab.specs[job]).plan()) for job in wait.jobs
            )
    assert open_nodes.number == 1


@property_of
@given(st.integers(1, 3), st.integers(1, 8), st.integers(0, 2))
def test_team_under_its_guarantee_waits_no_longer_than_runtime_and_cooldown(nodes: int, chips: int, tier: int) -> None:
    """Others hold everything; the owner gets its guarantee once the youngest of them has run its least time."""
    lab = Lab(policy=Policy(runtime_min_s=600.0, cooldown_s=1_800.0)).clusters(cluster("alpha", nodes=nodes))
    lab.teams(Team(name=TeamName("owner"), guarantee={H100: 8.0}), Team(name=TeamName("others")))
    for node in range(nodes):
        for chip in range(8):
            busy = spec(Option(chip=H100), team="others", tier=Tier.CRITICAL)
            lab.live(f"busy-{node}-{chip}", busy, grant("alpha", {f"n{node:03}": 1}), granted_s=NOW_S)
    lab.pend("asked", spec(Option(chip=H100, replicas=chips), team="owner", tier=list(Tier)[tier]), NOW_S)
    waited_s = 0.0
    while "asked" not in started(answer := lab.plan()):
        lab.act(answer)
        lab.now_s += 60.0
        waited_s += 60.0
        assert waited_s <= 600.0 + 1_800.0
    assert waited_s >= 600.0, "nobody is displaced before its least run time"


_PROGRAM = """
import json, sys
from benchmarks.planner_scale import FIRST_MIX, NOW_S, world, cycle
from mainspring.domain.codec import to_plain
made, _ = cycle(world(FIRST_MIX, nodes=60, jobs=300, teams=7, shape_count=50), number=1, now_s=NOW_S)
sys.stdout.write(json.dumps(to_plain(made)))
"""


def test_plan_is_the_same_bytes_under_two_hash_seeds() -> None:
    source = Path(mainspring.__file__).parent.parent
    answers = []
    for seed in ("1", "2"):
        environment = {**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": f"{source}:{source.parent}"}
        done = subprocess.run(
            [sys.executable, "-c", _PROGRAM], env=environment, capture_output=True, check=True, timeout=60
        )
        answers.append(done.stdout)
    assert answers[0] == answers[1]
    assert answers[0].count(b'"grants"') > 20


def test_world_without_anything_plans_nothing() -> None:
    answer = Lab().plan()
    assert encode(answer) == encode(Plan(number=1))
    assert inf > len(answer.waits) == 0
