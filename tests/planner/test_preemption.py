"""Victims: whose end really lets a job start, none of them needless, at a price near the least."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import combinations
from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.planner.making import H100, Lab, cluster, grant, spec

from mainspring.domain.ids import NodeName, RoleName
from mainspring.domain.job import MAIN, MILLI, JobSpec, Option, Tier
from mainspring.domain.plan import Grant
from mainspring.planner import Policy, Snapshot
from mainspring.planner.displace.preemption import Victims, prices, victims
from mainspring.planner.facts.snapshot import Flags
from mainspring.planner.place.candidates import CandidatePlacement, menu
from mainspring.planner.place.free_capacity import FreeCapacity

NOW_S = 100_000.0
EAGER = Policy(evicted_ratio_max=1_000.0)


def lower(chips: float = 1.0, replicas: int = 1, **more: object) -> JobSpec:
    """Returns the spec of a job that anything may displace."""
    return spec(replace(Option(chip=H100, chips=chips, replicas=replicas), **more), tier=Tier.OPPORTUNISTIC)  # type: ignore[arg-type]


def lab(nodes: int, *, chips: int = 8) -> Lab:
    """Returns a fleet in which whatever was granted at 0 has long been settled."""
    return Lab(now_s=NOW_S).clusters(cluster("alpha", nodes=nodes, chips=chips))


def hold(world: Lab, job: str, nodes: dict[str, int], *, age_s: float = 600.0, granted_s: float = 0.0) -> Lab:
    """Adds a job with one replica on each of some nodes, whose newest checkpoint is `age_s` old."""
    chips = next(iter(nodes.values()))
    held = Grant(
        role=MAIN,
        option=0,
        cluster=grant("alpha", nodes).cluster,
        nodes=tuple(NodeName(node) for node in nodes),
        chip_milli=tuple(chips * MILLI for _ in nodes),
        ranks=(1,) * len(nodes),
    )
    world.live(job, lower(chips, len(nodes)), held, granted_s=granted_s, durable_s=max(granted_s, NOW_S - age_s))
    return world


def asked(
    world: Lab, *options: Option, others: dict[str, Option] | None = None
) -> tuple[Snapshot, FreeCapacity, CandidatePlacement]:
    """Returns the fleet with a gang that comes before everybody."""
    snapshot = world.pend("gang", spec(*options, tier=Tier.CRITICAL, others=others)).snapshot()
    room = FreeCapacity(snapshot)
    return snapshot, room, menu(room, EAGER, snapshot.shapes[int(snapshot.pending.shape[0])]).sites[0]


def displaced(
    world: Lab,
    *options: Option,
    policy: Policy = EAGER,
    candidates: Flags | None = None,
    evicts_max: int = 1_000,
    others: dict[str, Option] | None = None,
) -> tuple[Snapshot, Victims | None]:
    """Returns who makes room for a gang."""
    snapshot, room, site = asked(world, *options, others=others)
    everybody = np.ones(len(snapshot.live.attempts), dtype=np.bool_) if candidates is None else candidates
    found = victims(room, site, candidates=everybody, policy=policy, now_s=world.now_s, evicts_max=evicts_max)
    return snapshot, found


def jobs(snapshot: Snapshot, found: Victims | None) -> list[str]:
    """Returns who ends."""
    assert found is not None
    return [str(snapshot.live.jobs[row]) for row in found.rows]


def test_victim_whose_checkpoint_is_newest_is_cheapest() -> None:
    world = lab(1, chips=3)
    for job, age_s in (("old", 3_000.0), ("new", 60.0), ("middle", 900.0)):
        hold(world, job, {"n000": 1}, age_s=age_s)
    snapshot, found = displaced(world, Option(chip=H100))
    assert jobs(snapshot, found) == ["new"]
    assert found is not None
    assert found.price_chip_s == pytest.approx(60.0 + EAGER.restart_s)
    assert snapshot.nodes.names[int(found.picked[0].rows[0])] == "n000"


def test_price_of_many_chips_counts_every_one_of_them() -> None:
    world = lab(2)
    hold(world, "large", {"n000": 8}, age_s=100.0)
    hold(world, "small", {"n001": 1}, age_s=1_000.0)
    snapshot = world.snapshot()
    assert prices(snapshot, EAGER, NOW_S).tolist() == pytest.approx([8 * 400.0, 1_300.0])


def test_price_of_an_attempt_without_a_checkpoint_counts_from_its_grant() -> None:
    world = lab(1)
    world.live("fresh", lower(), grant("alpha", {"n000": 1}), granted_s=NOW_S - 5_000.0)
    assert prices(world.snapshot(), EAGER, NOW_S).tolist() == pytest.approx([5_300.0])


def test_victims_too_young_or_evicted_of_late_are_spared() -> None:
    world = lab(1, chips=3)
    hold(world, "young", {"n000": 1}, age_s=10.0, granted_s=NOW_S - EAGER.runtime_min_s + 1.0)
    hold(world, "ripe", {"n000": 1}, age_s=900.0, granted_s=NOW_S - 2 * EAGER.runtime_min_s)
    hold(world, "settled", {"n000": 1}, age_s=3_000.0)
    assert jobs(*displaced(world, Option(chip=H100))) == ["ripe"]
    assert displaced(world, Option(chip=H100, chips=3))[1] is None


def test_victims_that_are_no_candidates_are_spared() -> None:
    world = lab(1, chips=2)
    hold(world, "a", {"n000": 1}, age_s=10.0)
    hold(world, "b", {"n000": 1}, age_s=5_000.0)
    assert jobs(*displaced(world, Option(chip=H100), candidates=np.array([False, True]))) == ["b"]
    assert displaced(world, Option(chip=H100, chips=2), candidates=np.array([False, True]))[1] is None


def test_room_of_attempts_that_end_already_counts_as_free() -> None:
    world = lab(1, chips=3)
    world.live("going", lower(), grant("alpha", {"n000": 1}), stopping=True)
    hold(world, "a", {"n000": 1}, age_s=10.0)
    hold(world, "b", {"n000": 1}, age_s=20.0)
    assert jobs(*displaced(world, Option(chip=H100, chips=2))) == ["a"]
    assert jobs(*displaced(world, Option(chip=H100))) == []


def test_nodes_kept_for_others_and_nodes_that_are_not_ready_make_no_room() -> None:
    world = Lab(now_s=NOW_S).clusters(cluster("alpha", nodes=3, chips=1, unready=(0,)))
    for row in range(3):
        hold(world, f"j{row}", {f"n00{row}": 1}, age_s=10.0 * (row + 1))
    snapshot, room, site = asked(world, Option(chip=H100))
    everybody = np.ones(3, dtype=np.bool_)
    room.keep(np.array([1]), 0)
    found = victims(room, site, candidates=everybody, policy=EAGER, now_s=NOW_S, evicts_max=9)
    assert jobs(snapshot, found) == ["j2"]


def test_blast_radius_bounds_attempts_and_chips() -> None:
    world = lab(1)
    hold(world, "large", {"n000": 8})
    assert displaced(world, Option(chip=H100), policy=Policy(evicted_ratio_max=7.0))[1] is None
    assert displaced(world, Option(chip=H100), policy=Policy(evicted_ratio_max=8.0))[1] is not None
    crowd = lab(1)
    for row in range(8):
        hold(crowd, f"j{row}", {"n000": 1})
    assert displaced(crowd, Option(chip=H100, chips=4), evicts_max=3)[1] is None
    assert displaced(crowd, Option(chip=H100, chips=4), evicts_max=4)[1] is not None


def test_gang_in_one_rack_takes_the_cheapest_rack() -> None:
    world = lab(8)
    for row in range(8):
        # Rack r001 has the cheapest two nodes together, though n000 is cheapest of all.
        hold(world, f"j{row}", {f"n00{row}": 8}, age_s=[0, 5_000, 500, 600, 700, 800, 900, 1_000][row])
    snapshot, found = displaced(world, Option(chip=H100, chips=8, replicas=2, within="rack"))
    assert jobs(snapshot, found) == ["j2", "j3"]


def test_gang_that_would_rather_stand_together_does_so_when_it_costs_little_more() -> None:
    near, far = lab(4), lab(4)
    for row, age_s in enumerate((100, 500, 300, 310)):
        hold(near, f"j{row}", {f"n00{row}": 8}, age_s=age_s)
    for row, age_s in enumerate((0, 9_000, 0, 9_000)):
        hold(far, f"j{row}", {f"n00{row}": 8}, age_s=age_s)
    wish = Option(chip=H100, chips=8, replicas=2, prefer="rack")
    assert jobs(*displaced(near, wish)) == ["j0", "j1"] or jobs(*displaced(near, wish)) == ["j2", "j3"]
    assert jobs(*displaced(far, wish)) == ["j0", "j2"]


def test_groups_each_find_room_in_one_rack() -> None:
    world = lab(6)
    for row, age_s in enumerate((0, 9_000, 500, 500, 600, 600)):
        hold(world, f"j{row}", {f"n00{row}": 8}, age_s=age_s)
    pairs = Option(chip=H100, chips=8, replicas=4, group=2, group_within="rack")
    assert jobs(*displaced(world, pairs)) == ["j2", "j3", "j4", "j5"]


def test_attempt_on_several_nodes_is_paid_for_once() -> None:
    world = lab(4)
    hold(world, "wide", {"n000": 8, "n001": 8}, age_s=1_000.0)
    hold(world, "a", {"n002": 8}, age_s=1_500.0)
    hold(world, "b", {"n003": 8}, age_s=1_500.0)
    assert jobs(*displaced(world, Option(chip=H100, chips=8, replicas=2))) == ["wide"]
    assert jobs(*displaced(world, Option(chip=H100, chips=8))) in (["a"], ["b"])


def test_roles_of_a_gang_all_find_room() -> None:
    world = lab(2)
    hold(world, "a", {"n000": 8}, age_s=100.0)
    hold(world, "b", {"n001": 4}, age_s=100.0)
    hold(world, "c", {"n001": 4}, age_s=900.0)
    snapshot, found = displaced(world, Option(chip=H100, chips=8), others={"side": Option(chip=H100, chips=4)})
    assert jobs(snapshot, found) == ["a", "b"]
    assert found is not None
    assert [len(picked.rows) for picked in found.picked] == [1, 1]


def test_shared_chip_is_freed_only_when_nobody_shares_it_any_more() -> None:
    world = lab(1, chips=1)
    for job in ("a", "b"):
        held = replace(grant("alpha", {"n000": 1}), chip_milli=(500,), shared=((0,),))
        world.live(job, lower(0.5), held, granted_s=0.0, durable_s=NOW_S - 60.0)
    assert jobs(*displaced(world, Option(chip=H100))) == ["a", "b"]
    assert displaced(world, Option(chip=H100), candidates=np.array([True, False]))[1] is None


def test_cores_are_made_room_for_like_chips() -> None:
    world = Lab(now_s=NOW_S).clusters(cluster("alpha", nodes=1, chips=8, cpus=32.0))
    for job, cpus in (("few", 8.0), ("many", 24.0)):
        world.live(job, lower(1, cpus=cpus), grant("alpha", {"n000": 1}), granted_s=0.0, durable_s=NOW_S - 60.0)
    assert jobs(*displaced(world, Option(chip=H100, cpus=16.0))) == ["many"]


def test_elastic_attempt_shrinks_before_anybody_ends() -> None:
    world = lab(2, chips=4)
    elastic = spec(Option(chip=H100, replicas=6, replicas_min=2), tier=Tier.OPPORTUNISTIC)
    world.live("elastic", elastic, grant("alpha", {"n000": 4, "n001": 2}), granted_s=0.0, durable_s=0.0)
    hold(world, "other", {"n001": 2}, age_s=0.0)
    snapshot, found = displaced(world, Option(chip=H100, chips=3))
    assert found is not None
    assert jobs(snapshot, found) == []
    (resize,) = found.resizes
    assert resize.job == "elastic"
    assert resize.replicas == 3
    assert resize.grant.ranks == (1, 2)
    assert resize.grant.chip_milli == (1_000, 2_000)
    assert found.price_chip_s == pytest.approx(6 * EAGER.restart_s)


def test_elastic_attempt_that_must_end_is_not_told_to_shrink_too() -> None:
    world = lab(1, chips=4)
    elastic = spec(Option(chip=H100, replicas=4, replicas_min=2), tier=Tier.OPPORTUNISTIC)
    world.live("elastic", elastic, grant("alpha", {"n000": 4}), granted_s=0.0, durable_s=0.0)
    snapshot, found = displaced(world, Option(chip=H100, chips=4))
    assert found is not None
    assert jobs(snapshot, found) == ["elastic"]
    assert found.resizes == ()


@dataclass(frozen=True, kw_only=True)
class Drawn:
    """A crowded fleet of nodes of 4 chips, two to a rack, and a gang: who holds what there, at what price."""

    world: Lab
    gang: Option
    nodes: int
    held: dict[str, dict[int, int]]
    prices: dict[str, float]

    def stands(self, ended: set[str]) -> bool:
        """Returns whether the gang stands once some have ended."""
        free = [4] * self.nodes
        for job, rows in self.held.items():
            for row, chips in rows.items():
                free[row] -= 0 if job in ended else chips
        units = [int(chips // self.gang.chips) for chips in free]
        racks = [units] if self.gang.within is None else [units[row : row + 2] for row in range(0, self.nodes, 2)]
        return max(map(sum, racks)) >= self.gang.replicas

    def least(self) -> float:
        """Returns the price of the cheapest set of all."""
        sets = (set(each) for size in range(len(self.held) + 1) for each in combinations(self.held, size))
        return min(sum(self.prices[job] for job in each) for each in sets if self.stands(each))


def draw(dice: Random) -> Drawn:
    """Returns a fleet crowded with up to 9 jobs, some on two nodes, and a gang it could hold."""
    nodes = dice.choice([2, 4])
    world = lab(nodes, chips=4)
    free = [4] * nodes
    held: dict[str, dict[int, int]] = {}
    prices: dict[str, float] = {}
    for number in range(dice.randint(1, 9)):
        size = dice.choice([1, 2, 4, 8])
        each, count = min(size, 4), max(1, size // 4)
        rows = [row for row in range(nodes) if free[row] >= each]
        if len(rows) < count:
            continue
        job, age_s = f"j{number}", float(dice.randint(0, 7_200))
        held[job] = dict.fromkeys(sorted(dice.sample(rows, count)), each)
        prices[job] = size * (age_s + EAGER.restart_s)
        for row in held[job]:
            free[row] -= each
        hold(world, job, {f"n{row:03}": each for row in held[job]}, age_s=age_s)
    within = dice.choice([None, "rack"])
    chips = dice.choice([1, 2, 4])
    replicas_max = (8 if within else 4 * nodes) // chips
    gang = Option(chip=H100, chips=chips, replicas=dice.randint(1, min(4, replicas_max)), within=within)
    return Drawn(world=world, gang=gang, nodes=nodes, held=held, prices=prices)


@pytest.mark.slow
@settings(max_examples=100)
@given(st.randoms(use_true_random=False))
def test_victims_make_room_and_none_of_them_is_needless(dice: Random) -> None:
    drawn = draw(dice)
    snapshot, found = displaced(drawn.world, drawn.gang)
    ended = set(jobs(snapshot, found))
    assert found is not None
    assert drawn.stands(ended)
    assert not any(drawn.stands(ended - {job}) for job in ended)
    assert found.price_chip_s == pytest.approx(sum(drawn.prices[job] for job in ended))


@pytest.mark.slow
def test_victims_of_many_crowded_fleets_cost_hardly_more_than_the_cheapest_sets_of_all() -> None:
    ratios = []
    for seed in range(60):
        drawn = draw(Random(seed))
        least = drawn.least()
        found = displaced(drawn.world, drawn.gang)[1]
        assert found is not None
        if least:
            ratios.append(found.price_chip_s / least)
    assert len(ratios) > 30
    assert sum(ratios) / len(ratios) < 1.02


def test_victim_whose_roles_share_a_node_gives_up_all_it_holds_there_and_none_is_thought_needless() -> None:
    world = Lab(now_s=NOW_S).clusters(cluster("alpha", nodes=1, chips=3))
    both = spec(Option(chip=H100), others={"helper": Option(chip=H100)}, tier=Tier.OPPORTUNISTIC)
    held = [replace(grant("alpha", {"n000": 1}), role=RoleName(role)) for role in ("main", "helper")]
    world.live("two", both, *held, durable_s=NOW_S - 600.0)
    world.live("one", lower(), grant("alpha", {"n000": 1}), durable_s=NOW_S - 60.0)
    world.pend("gang", spec(Option(chip=H100), others={"helper": Option(chip=H100)}, tier=Tier.CRITICAL))
    world.policy = EAGER
    assert [evict.job for evict in world.plan().evicts] == ["two"]
