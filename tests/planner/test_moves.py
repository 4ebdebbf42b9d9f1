"""Moves: off nodes that leave and clusters that are silent, and together for a gang that waits for scattered room."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from tests.planner.making import H100, Lab, cluster, grant, spec

from mainspring.domain.fleet import Inventory, NodeCondition, Replica
from mainspring.domain.ids import ClusterName
from mainspring.domain.job import Option, Tier
from mainspring.domain.plan import Evict, Limit
from mainspring.planner import Policy
from mainspring.planner.displace.moves import consolidate, forced
from mainspring.planner.displace.preemption import Victims
from mainspring.planner.facts.snapshot import Snapshot
from mainspring.planner.place.candidates import menu
from mainspring.planner.place.free_capacity import FreeCapacity

NOW_S = 100_000.0
ONE = spec(Option(chip=H100))


def with_first_node(inventory: Inventory, **changes: object) -> Inventory:
    """Returns a cluster whose first node is different."""
    first, *others = inventory.nodes
    return replace(inventory, nodes=(replace(first, **changes), *others))  # type: ignore[arg-type]


def evicted(world: Lab) -> tuple[Evict, ...]:
    """Returns the forced moves."""
    return forced(world.snapshot(), world.policy, world.now_s)


def two(*inventories: Inventory) -> Lab:
    """Returns a fleet with a job on its first node and one on its second."""
    world = Lab(now_s=NOW_S).clusters(*inventories)
    world.live("first", ONE, grant("alpha", {"n000": 1}), granted_s=0.0, durable_s=NOW_S - 100.0)
    return world.live("second", ONE, grant("alpha", {"n001": 1}), granted_s=0.0)


def test_attempt_on_a_node_that_leaves_soon_is_moved() -> None:
    (evict,) = evicted(two(with_first_node(cluster("alpha"), leaves_s=NOW_S + 60.0)))
    assert evict.job == "first"
    assert evict.cause is Limit.HEALTH
    assert evict.reason == "node n000 of alpha leaves in 60 s"
    assert evict.for_job is None
    assert evict.price_chip_s == 100.0 + Policy().restart_s


def test_attempt_on_a_node_that_leaves_later_stays() -> None:
    assert evicted(two(with_first_node(cluster("alpha"), leaves_s=NOW_S + Policy().leave_s + 1.0))) == ()


def test_attempt_on_a_cordoned_or_down_node_is_left_to_its_engine() -> None:
    for condition in (NodeCondition.CORDONED, NodeCondition.DOWN):
        assert evicted(two(with_first_node(cluster("alpha"), condition=condition))) == ()


def test_attempts_of_a_cluster_long_silent_are_all_moved() -> None:
    world = two(cluster("alpha"))
    world.builder.set_inventory(cluster("alpha"), answering=False, silent_s=Policy().failover_s + 1.0)
    assert [evict.job for evict in evicted(world)] == ["first", "second"]
    world.builder.set_inventory(cluster("alpha"), answering=False, silent_s=Policy().failover_s - 1.0)
    assert evicted(world) == ()


def test_attempt_that_ends_already_is_not_moved_again() -> None:
    world = Lab(now_s=NOW_S).clusters(with_first_node(cluster("alpha"), leaves_s=NOW_S))
    world.live("going", ONE, grant("alpha", {"n000": 1}), stopping=True)
    assert evicted(world) == ()


def scattered(*, age_s: float = 0.0, busy: dict[str, int] | None = None) -> Lab:
    """Returns two nodes of 8 chips, each with 4 free; on each a job of 4, or those given."""
    world = Lab(now_s=NOW_S).clusters(cluster("alpha", nodes=2))
    four = spec(Option(chip=H100, chips=4), tier=Tier.CRITICAL)
    for node, chips in (busy or {"n000": 4, "n001": 4}).items():
        of = four if chips == 4 else spec(Option(chip=H100, chips=chips), tier=Tier.CRITICAL)
        held = replace(grant("alpha", {node: 1}), chip_milli=(chips * 1_000,))
        world.live(f"on-{node}", of, held, granted_s=0.0, durable_s=NOW_S - age_s * (1 + (node == "n001")))
    return world


def moved(world: Lab, *, evicts_max: int = 100) -> tuple[Snapshot, Victims | None]:
    """Returns what is moved so that a job of a whole node may start."""
    snapshot = world.pend("gang", spec(Option(chip=H100, chips=8))).snapshot()
    room = FreeCapacity(snapshot)
    (site,) = menu(room, world.policy, snapshot.shapes[int(snapshot.pending.shape[0])]).sites
    return snapshot, consolidate(
        room,
        site,
        candidates=np.ones(len(snapshot.live.attempts), dtype=np.bool_),
        policy=world.policy,
        now_s=NOW_S,
        evicts_max=evicts_max,
    )


def test_scattered_gang_gets_a_node_when_its_job_fits_elsewhere() -> None:
    snapshot, found = moved(scattered(age_s=100.0))
    assert found is not None
    assert [snapshot.live.jobs[row] for row in found.rows] == ["on-n000"]
    assert found.price_chip_s == 4 * (100.0 + Policy().restart_s)
    assert snapshot.nodes.names[int(found.picked[0].rows[0])] == "n000"


def test_scattered_gang_waits_when_the_moved_would_find_no_place() -> None:
    assert moved(scattered(busy={"n000": 4, "n001": 5}))[1] is None


def test_scattered_gang_waits_when_moving_costs_more_than_it_is_worth() -> None:
    assert moved(scattered(age_s=10_000.0))[1] is None


def test_scattered_gang_moves_nobody_who_is_not_settled_and_no_more_than_allowed() -> None:
    world = scattered()
    assert moved(world, evicts_max=0)[1] is None
    fresh = Lab(now_s=NOW_S).clusters(cluster("alpha", nodes=2))
    for node in ("n000", "n001"):
        held = replace(grant("alpha", {node: 1}), chip_milli=(4_000,))
        fresh.live(f"on-{node}", spec(Option(chip=H100, chips=4)), held, granted_s=NOW_S - 10.0)
    assert moved(fresh)[1] is None


def test_elastic_attempt_that_would_take_its_place_again_is_not_moved() -> None:
    for replicas, moves in ((16, False), (8, True)):
        world = Lab(now_s=NOW_S).clusters(cluster("alpha", nodes=2))
        eager = spec(Option(chip=H100, replicas=replicas, replicas_min=4), tier=Tier.CRITICAL)
        world.live("eager", eager, grant("alpha", {"n000": 2, "n001": 2}), granted_s=0.0, durable_s=NOW_S)
        assert (moved(world)[1] is not None) == moves


def test_attempt_outlives_the_only_cluster_when_nobody_lists_that() -> None:
    world = two()
    assert evicted(world) == ()


def test_nobody_ends_for_a_job_before_what_it_reads_is_there() -> None:
    world = Lab(now_s=NOW_S).clusters(
        cluster("alpha", nodes=1, chips=1), cluster("beta", nodes=1, chips=1, chip="a100")
    )
    world.live("running", spec(Option(chip=H100), tier=Tier.OPPORTUNISTIC), grant("alpha", {"n000": 1}))
    world.pend("urgent", spec(Option(chip=H100), tier=Tier.CRITICAL, inputs=("corpus",)))
    for there in ("beta", "alpha"):
        world.builder.set_replicas([Replica(name="corpus", cluster=ClusterName(there), size_bytes=10**9)])
        answer = world.plan()
        assert [move.target for move in answer.moves] == (["alpha"] if there == "beta" else [])
        assert [evict.job for evict in answer.evicts] == (["running"] if there == "alpha" else [])
