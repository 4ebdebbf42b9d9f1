"""What starts where: gangs, packing, topology, price, health, and the reasons told."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from mainspring.domain.fleet import Inventory
from mainspring.domain.ids import AttemptId, ChipName, ClusterName, JobId, NodeName
from mainspring.domain.job import LAB, JobSpec, Option, Tier
from mainspring.domain.plan import Limit, Plan, Start, Wait
from mainspring.planner import Budget, Policy, SnapshotBuilder, plan

MakeInventory = Callable[..., Inventory]
MakeSpec = Callable[..., JobSpec]
H100 = ChipName("h100")


def made(*inventories: Inventory, jobs: tuple[JobSpec, ...], silent: tuple[str, ...] = ()) -> Plan:
    builder = SnapshotBuilder()
    for inventory in inventories:
        builder.set_inventory(inventory, answering=inventory.cluster not in silent)
    for index, job in enumerate(jobs):
        builder.add_pending(JobId(f"job-{index}"), job, float(index))
    return plan(builder.build(), Policy(), 1_000.0, Budget())


def only_start(answer: Plan) -> Start:
    assert not answer.waits, answer.waits[0].reason
    assert len(answer.starts) == 1
    return answer.starts[0]


def only_wait(answer: Plan) -> Wait:
    assert not answer.starts
    assert len(answer.waits) == 1
    return answer.waits[0]


def test_gang_that_fits_starts_packed_on_fewest_nodes(inventory: MakeInventory, spec: MakeSpec) -> None:
    start = only_start(made(inventory("alpha"), jobs=(spec(Option(chip=H100, replicas=12)),)))
    grant = start.grants[0]
    assert sorted(grant.ranks) == [4, 8]
    assert grant.chip_milli == tuple(1_000 * ranks for ranks in grant.ranks)


def test_gang_one_replica_too_large_waits_whole(inventory: MakeInventory, spec: MakeSpec) -> None:
    busy = inventory("alpha", foreign={0: 1_000})
    wait = only_wait(made(busy, jobs=(spec(Option(chip=H100, replicas=32)),)))
    assert (wait.limit, wait.where, wait.short_by) == (Limit.CAPACITY, "alpha", 1.0)
    assert wait.reason == "alpha: needs 32 h100, 31 free of 32"


def test_small_job_goes_to_the_fullest_node_with_room(inventory: MakeInventory, spec: MakeSpec) -> None:
    busy = inventory("alpha", foreign={1: 5_000, 2: 7_000})
    assert only_start(made(busy, jobs=(spec(Option(chip=H100, replicas=2)),))).grants[0].nodes == ("n001",)


def test_replica_larger_than_a_node_takes_whole_nodes_one_rank_each(inventory: MakeInventory, spec: MakeSpec) -> None:
    start = only_start(made(inventory("alpha"), jobs=(spec(Option(chip=H100, chips=12, replicas=2)),)))
    assert start.grants[0].chip_milli == (8_000,) * 4
    assert start.grants[0].ranks == (1,) * 4
    busy = inventory("alpha", foreign={3: 1_000})
    wait = only_wait(made(busy, jobs=(spec(Option(chip=H100, chips=12, replicas=2)),)))
    assert (wait.limit, wait.short_by) == (Limit.CAPACITY, 12.0)


def test_replicas_that_share_a_chip_take_thousandths(inventory: MakeInventory, spec: MakeSpec) -> None:
    tiny = inventory("alpha", nodes=1, chips=1)
    answer = made(tiny, jobs=(spec(Option(chip=H100, chips=0.3, replicas=2)), spec(Option(chip=H100, chips=0.5))))
    assert answer.starts[0].grants[0].chip_milli == (600,)
    assert answer.starts[0].grants[0].ranks == (2,)
    assert answer.waits[0].reason == "alpha: needs 1 x 0.5 h100, 0.4 free of 1"


def test_replicas_within_a_rack_stay_in_one_rack(inventory: MakeInventory, spec: MakeSpec) -> None:
    busy = inventory("alpha", nodes=6, foreign={0: 4_000, 4: 1_000})
    start = only_start(made(busy, jobs=(spec(Option(chip=H100, replicas=15, within="rack")),)))
    assert set(start.grants[0].nodes) == {"n004", "n005"}, "the rack left with least room"


def test_replicas_within_a_rack_wait_for_topology_when_racks_are_broken_up(
    inventory: MakeInventory, spec: MakeSpec
) -> None:
    busy = inventory("alpha", foreign={0: 4_000, 2: 4_000})
    wait = only_wait(made(busy, jobs=(spec(Option(chip=H100, replicas=16, within="rack")),)))
    assert (wait.limit, wait.short_by) == (Limit.TOPOLOGY, 4.0)
    assert wait.reason == "alpha: needs 16 h100 in one rack, the roomiest rack has room for 12 of 16"


def test_replicas_within_a_node_never_span_two(inventory: MakeInventory, spec: MakeSpec) -> None:
    start = only_start(made(inventory("alpha"), jobs=(spec(Option(chip=H100, replicas=8, within="node")),)))
    assert start.grants[0].ranks == (8,)
    wait = only_wait(made(inventory("alpha"), jobs=(spec(Option(chip=H100, replicas=9, within="node")),)))
    assert wait.limit is Limit.IMPOSSIBLE


def test_roles_start_together_on_one_cluster_or_not_at_all(inventory: MakeInventory, spec: MakeSpec) -> None:
    job = spec(Option(chip=H100, replicas=20), others={"sampler": Option(chip=H100, replicas=20)})
    wait = only_wait(made(inventory("alpha"), inventory("beta"), jobs=(job,)))
    assert wait.limit is Limit.CAPACITY
    assert "beside the job's other roles" in wait.reason
    start = only_start(made(inventory("alpha"), inventory("beta", nodes=5), jobs=(job,)))
    assert [grant.cluster for grant in start.grants] == ["beta", "beta"]
    assert [grant.role for grant in start.grants] == ["main", "sampler"]
    taken: dict[str, int] = {}
    for grant in start.grants:
        for node, milli in zip(grant.nodes, grant.chip_milli, strict=True):
            taken[node] = taken.get(node, 0) + milli
    assert taken == {f"n{index:03}": 8_000 for index in range(5)}


def test_role_falls_back_to_another_option_when_its_first_leaves_no_room_for_the_rest(
    inventory: MakeInventory, spec: MakeSpec
) -> None:
    mixed = inventory("alpha", nodes=2)
    b200 = inventory("alpha", nodes=4, chip="b200", price=9.0).nodes[2:]
    both = Inventory(
        cluster=mixed.cluster,
        engine="local",
        simulated=True,
        dollars_per_chip_hour={H100: 2.0, ChipName("b200"): 9.0},
        nodes=(*mixed.nodes, *b200),
    )
    job = spec(
        Option(chip=H100, replicas=16),
        Option(chip=ChipName("b200"), replicas=16),
        others={"sampler": Option(chip=H100, replicas=1)},
    )
    start = only_start(made(both, jobs=(job,)))
    assert [grant.option for grant in start.grants] == [1, 0]


def test_job_goes_where_useful_work_is_cheapest_and_says_so(inventory: MakeInventory, spec: MakeSpec) -> None:
    job = spec(Option(chip=H100, replicas=8), Option(chip=ChipName("b200"), replicas=4, speed=4.0))
    answer = made(inventory("alpha", price=2.1), inventory("beta", chip="b200", price=4.0), jobs=(job,))
    start = only_start(answer)
    assert (start.grants[0].cluster, start.grants[0].option) == ("beta", 1)
    chosen, dearer = start.considered[:2]
    assert (chosen.verdict, chosen.fits, chosen.dollars_per_hour) == ("chosen", True, 16.0)
    assert (dearer.verdict, dearer.fits) == ("dearer: $2.10 against $1.00 per useful chip-hour", True)
    assert {candidate.verdict for candidate in start.considered[2:]} == {"has no h100", "has no b200"}


def test_job_takes_the_dearer_cluster_when_the_cheap_one_is_full(inventory: MakeInventory, spec: MakeSpec) -> None:
    full = inventory("alpha", price=1.0, foreign=dict.fromkeys(range(4), 8000))
    start = only_start(made(full, inventory("beta", price=2.0), jobs=(spec(Option(chip=H100, replicas=8)),)))
    assert start.grants[0].cluster == "beta"
    assert start.considered[1].verdict == "needs 8 h100, 0 free of 32"


def test_equal_prices_go_to_the_cluster_left_less_broken_up_then_first_by_name(
    inventory: MakeInventory, spec: MakeSpec
) -> None:
    job = spec(Option(chip=H100, replicas=2))
    snug = inventory("beta", foreign={0: 6_000})
    assert only_start(made(inventory("alpha"), snug, jobs=(job,))).grants[0].cluster == "beta"
    assert only_start(made(inventory("beta"), inventory("alpha"), jobs=(job,))).grants[0].cluster == "alpha"


def test_cluster_that_does_not_answer_gets_nothing(inventory: MakeInventory, spec: MakeSpec) -> None:
    wait = only_wait(made(inventory("alpha"), jobs=(spec(Option(chip=H100)),), silent=("alpha",)))
    assert (wait.limit, wait.where, wait.reason) == (Limit.HEALTH, "alpha", "alpha: the cluster is not answering")


def test_nodes_that_are_not_ready_get_nothing(inventory: MakeInventory, spec: MakeSpec) -> None:
    sick = inventory("alpha", unready=(1, 2))
    wait = only_wait(made(sick, jobs=(spec(Option(chip=H100, replicas=17)),)))
    assert (wait.limit, wait.short_by) == (Limit.HEALTH, 1.0)
    assert "2 of 4 nodes with h100 are not ready" in wait.reason
    assert set(only_start(made(sick, jobs=(spec(Option(chip=H100, replicas=16)),))).grants[0].nodes) == {"n000", "n003"}


def test_no_cluster_yet_waits_for_health(spec: MakeSpec) -> None:
    wait = only_wait(made(jobs=(spec(Option(chip=H100)),)))
    assert (wait.limit, wait.considered) == (Limit.HEALTH, ())


def test_elastic_role_starts_at_full_size_or_at_what_the_fleet_could_hold(
    inventory: MakeInventory, spec: MakeSpec
) -> None:
    elastic = Option(chip=H100, replicas=64, replicas_min=4)
    start = only_start(made(inventory("alpha"), jobs=(spec(elastic),)))
    assert sum(start.grants[0].ranks) == 32
    together = made(inventory("alpha"), jobs=(spec(elastic, others={"sampler": elastic}),))
    assert [sum(grant.ranks) for grant in only_start(together).grants] == [4, 4]


@pytest.mark.parametrize("tier", [Tier.CRITICAL, Tier.STANDARD])
def test_waiting_gang_holds_the_nodes_it_needs_against_jobs_behind_it(
    inventory: MakeInventory, spec: MakeSpec, tier: Tier
) -> None:
    builder = SnapshotBuilder()
    builder.set_inventory(inventory("alpha", nodes=6), answering=True)
    builder.add_live(
        AttemptId("attempt-0"),
        JobId("job-live"),
        team=LAB,
        tier=Tier.STANDARD,
        submitted_s=0.0,
        cluster=ClusterName("alpha"),
        chip_milli={NodeName("n000"): 8_000},
    )
    # A gang of 5 nodes has them; one of 6 must wait, and holds all: small jobs behind it would starve it.
    builder.add_pending(JobId("gang"), spec(Option(chip=H100, replicas=48), tier=tier), 1.0)
    builder.add_pending(JobId("small"), spec(Option(chip=H100)), 2.0)
    answer = plan(builder.build(), Policy(), 10.0, Budget())
    assert [wait.job for wait in answer.waits] == ["gang", "small"]
    assert answer.waits[1].reason == "alpha: needs 1 h100, 0 free of 48 (40 held for gang)"
    # Without holds the small job starts, and so could the next one, for ever.
    assert [start.job for start in plan(builder.build(), Policy(holds_max=0), 10.0, Budget()).starts] == ["small"]


def test_jobs_behind_a_waiting_gang_backfill_the_nodes_it_does_not_need(
    inventory: MakeInventory, spec: MakeSpec
) -> None:
    busy = inventory("alpha", nodes=6, foreign={0: 4_000, 1: 4_000, 2: 4_000})
    answer = made(busy, jobs=(spec(Option(chip=H100, chips=8, replicas=4)), spec(Option(chip=H100, replicas=8))))
    assert [start.job for start in answer.starts] == ["job-1"]
    assert set(answer.starts[0].grants[0].nodes) == {"n001", "n002"}, "n000 and n003 to n005 are held"


def test_gang_that_waits_for_one_rack_holds_the_rack_with_most_room(inventory: MakeInventory, spec: MakeSpec) -> None:
    busy = inventory("alpha", nodes=6, foreign={0: 4_000, 1: 4_000, 2: 2_000, 4: 6_000, 5: 6_000})
    gang = spec(Option(chip=H100, replicas=16, within="rack"))
    answer = made(busy, jobs=(gang, *(spec(Option(chip=H100)) for _ in range(12))))
    places = {node for start in answer.starts for node in start.grants[0].nodes}
    assert places == {"n000", "n001", "n004", "n005"}, "the second rack is held"


def test_replica_of_whole_nodes_uses_one_size_the_one_that_holds_most(inventory: MakeInventory, spec: MakeSpec) -> None:
    small, large = inventory("alpha", nodes=4, chips=4), inventory("alpha", nodes=12, chips=8)
    mixed = Inventory(
        cluster=ClusterName("alpha"), engine="local", simulated=True, nodes=(*small.nodes, *large.nodes[4:])
    )
    start = only_start(made(mixed, jobs=(spec(Option(chip=H100, chips=16)),)))
    assert start.grants[0].chip_milli == (8_000, 8_000)
