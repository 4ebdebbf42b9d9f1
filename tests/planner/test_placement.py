"""What starts where: gangs, packing, topology, price, health, and the reasons told."""

from __future__ import annotations

from dataclasses import replace

import pytest

from mainspring.domain.fleet import Inventory
from mainspring.domain.ids import ChipName, ClusterName, TeamName
from mainspring.domain.job import LAB, JobSpec, Option, Tier
from mainspring.domain.plan import Limit, Plan
from mainspring.domain.team import Team
from mainspring.planner import Policy

from .making import H100, ONE, Lab, cluster, grant, only_start, only_wait, spec, started, waiting, why


def made(*inventories: Inventory, jobs: tuple[JobSpec, ...], silent: tuple[str, ...] = ()) -> Plan:
    lab = Lab().clusters(*inventories, silent=silent)
    for index, job in enumerate(jobs):
        lab.pend(f"job-{index}", job, float(index))
    return lab.plan()


def test_gang_that_fits_starts_packed_on_fewest_nodes() -> None:
    start = only_start(made(cluster("alpha"), jobs=(spec(Option(chip=H100, replicas=12)),)))
    grant = start.grants[0]
    assert sorted(grant.ranks) == [4, 8]
    assert grant.chip_milli == tuple(1_000 * ranks for ranks in grant.ranks)


def test_gang_one_replica_too_large_waits_whole() -> None:
    busy = cluster("alpha", foreign={0: 1_000})
    wait = only_wait(made(busy, jobs=(spec(Option(chip=H100, replicas=32)),)))
    assert (wait.limit, wait.where, wait.short_by) == (Limit.CAPACITY, "alpha", 1.0)
    assert wait.reason == "alpha: needs 32 h100, 31 free of 32"


def test_small_job_goes_to_the_fullest_node_with_room() -> None:
    busy = cluster("alpha", foreign={1: 5_000, 2: 7_000})
    assert only_start(made(busy, jobs=(spec(Option(chip=H100, replicas=2)),))).grants[0].nodes == ("n001",)


def test_replica_larger_than_a_node_takes_whole_nodes_one_rank_each() -> None:
    start = only_start(made(cluster("alpha"), jobs=(spec(Option(chip=H100, chips=12, replicas=2)),)))
    assert start.grants[0].chip_milli == (8_000,) * 4
    assert start.grants[0].ranks == (1,) * 4
    busy = cluster("alpha", foreign={3: 1_000})
    wait = only_wait(made(busy, jobs=(spec(Option(chip=H100, chips=12, replicas=2)),)))
    assert (wait.limit, wait.short_by) == (Limit.CAPACITY, 8.0)


def test_replicas_that_share_a_chip_take_thousandths() -> None:
    tiny = cluster("alpha", nodes=1, chips=1)
    answer = made(tiny, jobs=(spec(Option(chip=H100, chips=0.3, replicas=2)), spec(Option(chip=H100, chips=0.5))))
    assert answer.starts[0].grants[0].chip_milli == (600,)
    assert answer.starts[0].grants[0].ranks == (2,)
    assert answer.waits[0].reason == "alpha: needs 1 x 0.5 h100, 0.4 free of 1"


def test_replicas_within_a_rack_stay_in_one_rack() -> None:
    busy = cluster("alpha", nodes=6, foreign={0: 4_000, 4: 1_000})
    start = only_start(made(busy, jobs=(spec(Option(chip=H100, replicas=15, within="rack")),)))
    assert set(start.grants[0].nodes) == {"n004", "n005"}, "the rack left with least room"


def test_replicas_within_a_rack_wait_for_topology_when_racks_are_broken_up() -> None:
    busy = cluster("alpha", foreign={0: 4_000, 2: 4_000})
    wait = only_wait(made(busy, jobs=(spec(Option(chip=H100, replicas=16, within="rack")),)))
    assert (wait.limit, wait.short_by) == (Limit.TOPOLOGY, 4.0)
    assert wait.reason == "alpha: needs 16 h100 in one rack; the roomiest rack has room for 12 of 16"


def test_replicas_within_a_node_never_span_two() -> None:
    start = only_start(made(cluster("alpha"), jobs=(spec(Option(chip=H100, replicas=8, within="node")),)))
    assert start.grants[0].ranks == (8,)
    wait = only_wait(made(cluster("alpha"), jobs=(spec(Option(chip=H100, replicas=9, within="node")),)))
    assert wait.limit is Limit.IMPOSSIBLE


def test_roles_start_together_on_one_cluster_or_not_at_all() -> None:
    job = spec(Option(chip=H100, replicas=20), others={"sampler": Option(chip=H100, replicas=20)})
    wait = only_wait(made(cluster("alpha"), cluster("beta"), jobs=(job,)))
    assert wait.limit is Limit.CAPACITY
    assert "beside the job's other roles" in wait.reason
    start = only_start(made(cluster("alpha"), cluster("beta", nodes=5), jobs=(job,)))
    assert [grant.cluster for grant in start.grants] == ["beta", "beta"]
    assert [part.role for part in start.grants] == ["main", "sampler"]
    taken: dict[str, int] = {}
    for part in start.grants:
        for node, milli in zip(part.nodes, part.chip_milli, strict=True):
            taken[node] = taken.get(node, 0) + milli
    assert taken == {f"n{index:03}": 8_000 for index in range(5)}


def test_role_falls_back_to_another_option_when_its_first_leaves_no_room_for_the_rest() -> None:
    mixed = cluster("alpha", nodes=2)
    b200 = cluster("alpha", nodes=4, chip="b200", price=9.0).nodes[2:]
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


def test_job_goes_where_useful_work_is_cheapest_and_says_so() -> None:
    job = spec(Option(chip=H100, replicas=8), Option(chip=ChipName("b200"), replicas=4, speed=4.0))
    answer = made(cluster("alpha", price=2.1), cluster("beta", chip="b200", price=4.0), jobs=(job,))
    start = only_start(answer)
    assert (start.grants[0].cluster, start.grants[0].option) == ("beta", 1)
    chosen, dearer = start.considered[:2]
    assert (chosen.verdict, chosen.fits, chosen.dollars_per_hour) == ("chosen", True, 16.0)
    assert (dearer.verdict, dearer.fits) == ("dearer: $2.10 against $1.00 per useful chip-hour", True)
    assert {candidate.verdict for candidate in start.considered[2:]} == {"has no h100", "has no b200"}


def test_job_takes_the_dearer_cluster_when_the_cheap_one_is_full() -> None:
    full = cluster("alpha", price=1.0, foreign=dict.fromkeys(range(4), 8000))
    start = only_start(made(full, cluster("beta", price=2.0), jobs=(spec(Option(chip=H100, replicas=8)),)))
    assert start.grants[0].cluster == "beta"
    assert start.considered[1].verdict == "no room now"


def test_equal_prices_go_to_the_cluster_left_less_broken_up_then_first_by_name() -> None:
    job = spec(Option(chip=H100, replicas=2))
    snug = cluster("beta", foreign={0: 6_000})
    assert only_start(made(cluster("alpha"), snug, jobs=(job,))).grants[0].cluster == "beta"
    assert only_start(made(cluster("beta"), cluster("alpha"), jobs=(job,))).grants[0].cluster == "alpha"


def test_cluster_that_does_not_answer_gets_nothing() -> None:
    wait = only_wait(made(cluster("alpha"), jobs=(spec(Option(chip=H100)),), silent=("alpha",)))
    assert (wait.limit, wait.where, wait.reason) == (Limit.HEALTH, "alpha", "alpha: the cluster is not answering")


def test_nodes_that_are_not_ready_get_nothing() -> None:
    sick = cluster("alpha", unready=(1, 2))
    wait = only_wait(made(sick, jobs=(spec(Option(chip=H100, replicas=17)),)))
    assert (wait.limit, wait.short_by) == (Limit.HEALTH, 1.0)
    assert "2 of 4 nodes with h100 are not ready" in wait.reason
    assert set(only_start(made(sick, jobs=(spec(Option(chip=H100, replicas=16)),))).grants[0].nodes) == {"n000", "n003"}


def test_no_cluster_yet_waits_for_health() -> None:
    wait = only_wait(made(jobs=(spec(Option(chip=H100)),)))
    assert (wait.limit, wait.considered) == (Limit.HEALTH, ())


def test_elastic_role_starts_at_full_size_or_at_what_the_fleet_could_hold() -> None:
    elastic = Option(chip=H100, replicas=64, replicas_min=4)
    start = only_start(made(cluster("alpha"), jobs=(spec(elastic),)))
    assert sum(start.grants[0].ranks) == 32
    together = made(cluster("alpha"), jobs=(spec(elastic, others={"sampler": elastic}),))
    assert [sum(grant.ranks) for grant in only_start(together).grants] == [4, 4]


@pytest.mark.parametrize("tier", [Tier.CRITICAL, Tier.STANDARD])
def test_waiting_gang_holds_the_nodes_it_needs_against_jobs_behind_it(tier: Tier) -> None:
    lab = Lab().clusters(cluster("alpha", nodes=6)).live("live", spec(ONE), grant("alpha", {"n000": 8}))
    # The gang must wait for all six nodes, and holds them: small jobs behind it would starve it.
    lab.pend("gang", spec(Option(chip=H100, replicas=48), tier=tier), 1.0).pend("small", spec(ONE), 2.0)
    answer = lab.plan()
    assert waiting(answer) == ["gang", "small"]
    assert why(answer, "small").reason == "alpha: needs 1 h100, 40 free of 48 (40 kept for jobs before it)"
    # Without holds the small job starts, and so could the next one, for ever.
    lab.policy = Policy(reservations_max=0, preempt=False)
    assert started(lab.plan()) == ["small"]


def test_jobs_behind_a_waiting_gang_backfill_the_nodes_it_does_not_need() -> None:
    lab = Lab().clusters(cluster("alpha", nodes=6))
    for node in ("n000", "n001", "n002"):
        lab.live(node, spec(Option(chip=H100, replicas=4)), grant("alpha", {node: 4}))
    lab.pend("gang", spec(Option(chip=H100, chips=8, replicas=4))).pend("job", spec(Option(chip=H100, replicas=8)), 1.0)
    answer = lab.plan()
    assert started(answer) == ["job"]
    assert answer.reservations[0].nodes == 4
    assert set(answer.starts[0].grants[0].nodes) <= {"n004", "n005"}, "one whole block is held for the gang"


def test_gang_that_waits_for_one_rack_holds_the_rack_with_most_room() -> None:
    busy = cluster("alpha", nodes=6, foreign={0: 4_000, 1: 4_000, 2: 2_000, 4: 6_000, 5: 6_000})
    gang = spec(Option(chip=H100, replicas=16, within="rack"))
    answer = made(busy, jobs=(gang, *(spec(Option(chip=H100)) for _ in range(12))))
    places = {node for start in answer.starts for node in start.grants[0].nodes}
    assert places == {"n000", "n001", "n004", "n005"}, "the second rack is held"


def test_replica_of_whole_nodes_uses_one_size_the_one_that_holds_most() -> None:
    small, large = cluster("alpha", nodes=4, chips=4), cluster("alpha", nodes=12, chips=8)
    mixed = Inventory(
        cluster=ClusterName("alpha"), engine="local", simulated=True, nodes=(*small.nodes, *large.nodes[4:])
    )
    start = only_start(made(mixed, jobs=(spec(Option(chip=H100, chips=16)),)))
    assert start.grants[0].chip_milli == (8_000, 8_000)


def test_job_starts_nowhere_on_chips_its_team_still_holds_though_they_are_being_taken_from_it() -> None:
    world = Lab(now_s=1e6).clusters(cluster("alpha", nodes=1), cluster("beta", nodes=1, chips=4))
    world.teams(Team(name=LAB), Team(name=TeamName("a"), parent=LAB, chips_max=8), Team(name=TeamName("b"), parent=LAB))
    world.live("held", spec(replace(ONE, replicas=8), team="a", tier=Tier.OPPORTUNISTIC), grant("alpha", {"n000": 8}))
    world.pend("urgent", spec(replace(ONE, chips=8), team="b", tier=Tier.CRITICAL))
    world.pend("next", spec(replace(ONE, replicas=4), team="a"), submitted_s=1.0)
    answer = world.plan()
    assert [evict.job for evict in answer.evicts] == ["held"]
    assert started(answer) == []
