"""Clusters we do not own: chips that do not divide, slots of a queue, and jobs that a cluster took back."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.planner.making import H100, NOW_S, Lab, cluster, grant, spec, started

from mainspring.domain.answers import AddNodes, WhatIf
from mainspring.domain.fleet import NodeCondition
from mainspring.domain.ids import ClusterName
from mainspring.domain.job import ANY_CHIP, Option, Tier
from mainspring.domain.plan import Limit
from mainspring.planner.whatif import changed

ALPHA, BETA = ClusterName("alpha"), ClusterName("beta")
HALF = spec(Option(chip=H100, chips=0.5))
WHOLE = spec(Option(chip=H100, chips=8))


# ---------------------------------------------------------------- chips that do not divide


@pytest.mark.parametrize("chip", [H100, ANY_CHIP])
def test_part_of_a_chip_goes_only_where_chips_divide(chip: str) -> None:
    part = spec(Option(chip=type(H100)(chip), chips=0.5))
    lab = Lab().clusters(cluster("alpha", divides=False, price=1.0), cluster("beta", price=3.0)).pend("part", part)
    (start,) = lab.plan().starts
    assert start.grants[0].cluster == "beta"


def test_part_of_a_chip_waits_for_ever_where_no_chip_divides_and_whole_ones_start() -> None:
    lab = Lab().clusters(cluster("alpha", divides=False)).pend("part", HALF).pend("whole", WHOLE)
    answer = lab.plan()
    assert started(answer) == ["whole"]
    (wait,) = answer.waits
    assert wait.limit is Limit.IMPOSSIBLE
    assert "alpha: shares no chip between replicas" in wait.reason


def test_nodes_that_divide_stand_beside_those_that_do_not_in_one_cluster() -> None:
    inventory = cluster("alpha", nodes=3, chips=2)
    nodes = tuple(replace(node, divides=index == 1) for index, node in enumerate(inventory.nodes))
    lab = Lab().clusters(replace(inventory, nodes=nodes))
    lab.pend("parts", spec(Option(chip=H100, chips=0.5, replicas=4)), 1.0)
    lab.pend("wide", spec(Option(chip=H100, chips=2, replicas=2)), 2.0)
    by_job = {start.job: start.grants[0].nodes for start in lab.plan().starts}
    assert by_job == {"parts": ("n001",), "wide": ("n000", "n002")}


def test_nodes_tried_out_divide_as_those_they_are_like() -> None:
    lab = Lab().clusters(cluster("alpha", nodes=1, divides=False)).pend("part", HALF)
    tried = changed(lab.snapshot(), WhatIf(add_nodes=(AddNodes(cluster=ALPHA, nodes=2),)), NOW_S)
    assert tried.nodes.divides.tolist() == [False] * 3


# ---------------------------------------------------------------- slots of a queue


def test_slots_are_taken_like_nodes_and_no_room_is_held_among_them() -> None:
    lab = Lab().clusters(cluster("queue", nodes=4, delegated=True))
    lab.pend("wide", spec(Option(chip=H100, chips=8, replicas=3)), 1.0)
    lab.pend("two", spec(Option(chip=H100, chips=16)), 2.0)
    lab.pend("one", WHOLE, 3.0)
    answer = lab.plan()
    assert started(answer) == ["wide", "one"]
    assert [len(start.grants[0].nodes) for start in answer.starts] == [3, 1]
    assert answer.reservations == ()


def test_elastic_job_starts_on_as_many_slots_as_are_free_and_is_left_as_it_is() -> None:
    lab = Lab().clusters(cluster("queue", nodes=3, delegated=True))
    elastic = spec(Option(chip=H100, chips=8, replicas=4, replicas_min=2))
    lab.pend("elastic", elastic)
    (start,) = lab.plan().starts
    assert len(start.grants[0].nodes) == 3
    more = Lab().clusters(cluster("queue", nodes=6, delegated=True))
    more.live("running", elastic, grant("queue", {"n000": 8, "n001": 8}), granted_s=0.0)
    assert more.plan().resizes == (), "what it grew by would wait in that queue, and hold room nobody could take"


def test_nobody_is_evicted_from_slots_for_a_more_urgent_job() -> None:
    lab = Lab().clusters(cluster("queue", nodes=1, delegated=True))
    lab.live("low", replace(WHOLE, tier=Tier.OPPORTUNISTIC), grant("queue", {"n000": 8}), granted_s=0.0)
    lab.pend("urgent", replace(WHOLE, tier=Tier.CRITICAL))
    answer = lab.plan()
    assert (answer.starts, answer.evicts, answer.reservations) == ((), (), ())


# ---------------------------------------------------------------- taken back


def test_job_taken_back_goes_to_a_dearer_cluster_until_its_pause_is_over() -> None:
    lab = Lab().clusters(cluster("alpha", price=1.0), cluster("beta", price=3.0))
    lab.pend("job", WHOLE, avoid={ALPHA: NOW_S + 10.0})
    assert [start.grants[0].cluster for start in lab.plan().starts] == ["beta"]
    lab.now_s += 10.0
    assert [start.grants[0].cluster for start in lab.plan().starts] == ["alpha"]


def test_job_taken_back_waits_where_nothing_else_is_and_others_like_it_do_not() -> None:
    lab = Lab().clusters(cluster("alpha", nodes=2, delegated=True))
    lab.pend("first", WHOLE, 1.0, avoid={ALPHA: NOW_S + 90.0}).pend("second", WHOLE, 2.0)
    answer = lab.plan()
    assert started(answer) == ["second"]
    (wait,) = answer.waits
    assert (wait.limit, wait.where, wait.start_s) == (Limit.HEALTH, "alpha", (NOW_S + 90.0,))
    assert "alpha: took it back" in wait.reason


def test_job_taken_back_reserves_room_elsewhere_when_that_is_full() -> None:
    lab = Lab().clusters(cluster("alpha", nodes=1, price=1.0), cluster("beta", nodes=1, price=3.0))
    lab.live("running", replace(WHOLE, duration_s=600.0), grant("beta", {"n000": 8}), granted_s=NOW_S - 60.0)
    lab.pend("job", WHOLE, avoid={ALPHA: NOW_S + 3_600.0})
    answer = lab.plan()
    assert started(answer) == []
    assert [reservation.cluster for reservation in answer.reservations] == ["beta"]


# ---------------------------------------------------------------- drained


def test_attempt_on_a_drained_node_is_moved_at_once_in_the_operators_words() -> None:
    inventory = cluster("alpha", nodes=3)
    drained = replace(
        inventory.nodes[1],
        condition=NodeCondition.CORDONED,
        condition_owner="slurm",
        condition_reason="bad DIMM",
        leaves_s=NOW_S - 5.0,
    )
    lab = Lab().clusters(replace(inventory, nodes=(inventory.nodes[0], drained, inventory.nodes[2])))
    lab.live("job", WHOLE, grant("alpha", {"n001": 8}), granted_s=NOW_S - 60.0)
    lab.pend("other", WHOLE)
    answer = lab.plan()
    (evict,) = answer.evicts
    assert (evict.cause, evict.for_job) == (Limit.HEALTH, None)
    assert evict.reason == "node n001 of alpha is taken away: bad DIMM"
    assert answer.starts[0].grants[0].nodes != ("n001",)
