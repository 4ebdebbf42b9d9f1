"""Nodes that could be had, data that must be moved, clusters with a queue of their own."""

from __future__ import annotations

from dataclasses import replace

from mainspring.domain.fleet import Inventory, Node, NodeCondition, Offer, Replica
from mainspring.domain.ids import ClusterName, NodeName, TeamName
from mainspring.domain.job import Option
from mainspring.domain.plan import Limit, Move, Provision
from mainspring.domain.team import Team
from mainspring.planner import Policy

from .making import H100, NOW_S, Lab, cluster, only_start, only_wait, spec, started

OFFER = Offer(name="spot", chip=H100, chips=8, nodes_max=10, lead_time_s=120.0, dollars_per_chip_hour=3.0)


def offering(*offers: Offer, nodes: int = 1) -> Inventory:
    return replace(cluster("cloud", nodes=nodes), offers=offers)


def ordered(lab: Lab) -> list[tuple[str, str, int]]:
    return [(order.for_job, order.offer, order.nodes) for order in lab.plan().provisions]


def test_job_that_waited_long_enough_gets_nodes_ordered() -> None:
    lab = Lab().clusters(offering(OFFER)).pend("job", spec(Option(chip=H100, chips=8, replicas=4)))
    assert ordered(lab) == [("job", "spot", 4)]
    made: Provision = lab.plan().provisions[0]
    assert made.cluster == "cloud"
    lab.now_s = 500.0
    assert ordered(lab) == [], "it has not waited for ten minutes yet"


def test_cheapest_offer_that_has_enough_is_taken_first_jobs_first() -> None:
    cheap = replace(OFFER, name="cheap", nodes_max=3, dollars_per_chip_hour=1.0)
    lab = Lab().clusters(offering(cheap, OFFER))
    for index in range(3):
        lab.pend(f"job-{index}", spec(Option(chip=H100, chips=8, replicas=2)), float(index))
    assert ordered(lab) == [("job-0", "cheap", 2), ("job-1", "spot", 2), ("job-2", "spot", 2)]


def test_offer_that_is_withheld_gives_way_to_another() -> None:
    cheap = replace(OFFER, name="cheap", dollars_per_chip_hour=1.0, withheld="no such machines in this zone")
    lab = Lab().clusters(offering(cheap, OFFER)).pend("job", spec(Option(chip=H100, chips=8, replicas=2)))
    assert ordered(lab) == [("job", "spot", 2)]


def test_nodes_that_are_coming_are_not_ordered_again() -> None:
    inventory = offering(OFFER)
    coming = tuple(
        Node(name=NodeName(f"new-{index}"), chip=H100, chips=8, condition=NodeCondition.COMING) for index in range(4)
    )
    lab = Lab().clusters(replace(inventory, nodes=(*inventory.nodes, *coming)))
    lab.pend("job", spec(Option(chip=H100, chips=8, replicas=4)))
    assert ordered(lab) == []


def test_nothing_is_ordered_for_a_team_whose_budget_is_spent() -> None:
    lab = Lab().clusters(offering(OFFER)).teams(Team(name=TeamName("poor"), dollars_max=10.0))
    lab.pend("job", spec(Option(chip=H100, chips=8, replicas=4), team="poor"))
    assert ordered(lab) == []


def test_nothing_is_ordered_when_the_policy_forbids_it() -> None:
    lab = Lab(policy=Policy(provision_after_s=-1.0)).clusters(offering(OFFER))
    assert ordered(lab.pend("job", spec(Option(chip=H100, chips=8, replicas=4)))) == []


def test_job_starts_where_its_data_lie_when_prices_are_equal() -> None:
    lab = Lab().clusters(cluster("alpha"), cluster("beta"))
    lab.builder.set_replicas([Replica(name="robots", cluster=ClusterName("beta"), size_bytes=10**12)])
    start = only_start(lab.pend("job", spec(Option(chip=H100), inputs=("robots",))).plan())
    assert start.grants[0].cluster == "beta"


def test_job_whose_data_lie_elsewhere_waits_for_their_move() -> None:
    lab = Lab().clusters(cluster("alpha"), cluster("beta", foreign=dict.fromkeys(range(4), 8_000)))
    lab.builder.set_replicas([Replica(name="robots", cluster=ClusterName("beta"), size_bytes=125 * 10**9)])
    answer = lab.pend("job", spec(Option(chip=H100), inputs=("robots",))).plan()
    assert [(move.what, move.source, move.target, move.for_job) for move in answer.moves] == [
        ("robots", "beta", "alpha", "job")
    ]
    assert isinstance(answer.moves[0], Move)
    wait = only_wait(answer)
    assert (wait.limit, wait.where, wait.start_s) == (Limit.DATA, "alpha", (NOW_S + 1_000.0,))


def test_delegated_cluster_takes_several_replicas_in_one_bucket() -> None:
    bucket = Inventory(
        cluster=ClusterName("queue"),
        engine="kubernetes",
        simulated=True,
        delegated=True,
        nodes=(Node(name=NodeName("a3-pool"), chip=H100, chips=512),),
    )
    lab = Lab().clusters(bucket)
    lab.pend("gang", spec(Option(chip=H100, chips=8, replicas=32)), 1.0)
    lab.pend("large", spec(Option(chip=H100, chips=8, replicas=60)), 2.0)
    lab.pend("small", spec(Option(chip=H100, chips=8, replicas=8)), 3.0)
    answer = lab.plan()
    assert started(answer) == ["gang", "small"], "no room is held where nodes are not ours to choose"
    assert answer.starts[0].grants[0].nodes == ("a3-pool",)
    assert answer.starts[0].grants[0].ranks == (32,)
    assert answer.reservations == ()


def test_array_that_waits_for_data_has_them_moved_once() -> None:
    lab = Lab().clusters(cluster("alpha"), cluster("beta", foreign=dict.fromkeys(range(4), 8_000)))
    lab.builder.set_replicas([Replica(name="robots", cluster=ClusterName("beta"), size_bytes=10**9)])
    for index in range(5):
        lab.pend(f"job-{index}", spec(Option(chip=H100), inputs=("robots",)))
    assert [move.what for move in lab.plan().moves] == ["robots"]
