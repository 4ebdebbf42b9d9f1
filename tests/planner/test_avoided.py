"""Nodes where attempts were lost: their jobs go elsewhere while they can, and all jobs leave the worst alone."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.planner.making import H100, NOW_S, Lab, cluster, grant, spec, started

from mainspring.domain.answers import AddNodes, WhatIf
from mainspring.domain.fleet import AvoidedNode, NodeRef
from mainspring.domain.ids import ChipName, ClusterName, JobId, NodeName
from mainspring.domain.job import LAB, Option
from mainspring.domain.plan import Limit, Plan
from mainspring.domain.team import Team
from mainspring.planner.explain import explain
from mainspring.planner.facts.policy import Budget, Policy
from mainspring.planner.feasible import feasible
from mainspring.planner.place.avoided import GROUPS_MAX, AvoidedGroups
from mainspring.planner.whatif import changed

WHOLE = spec(Option(chip=H100, chips=8))
PAIR = spec(Option(chip=H100, chips=8, replicas=2))


def _at(node: int, name: str = "alpha") -> NodeRef:
    return NodeRef(cluster=ClusterName(name), node=NodeName(f"n{node:03}"))


def _avoided(*nodes: int, again_s: float = 10.0, until_s: float = 1_000.0) -> tuple[AvoidedNode, ...]:
    return tuple(
        AvoidedNode(at=_at(node), until_s=NOW_S + until_s, again_s=NOW_S + again_s, reason="lost") for node in nodes
    )


def _nodes(answer: Plan, job: str) -> tuple[str, ...]:
    (start,) = [start for start in answer.starts if start.job == job]
    return start.grants[0].nodes


def test_job_is_not_placed_where_it_was_lost_and_others_like_it_are() -> None:
    lab = Lab().clusters(cluster("alpha", nodes=2))
    lab.pend("lost", WHOLE, 1.0, avoid_nodes=_avoided(0)).pend("other", WHOLE, 2.0)
    answer = lab.plan()
    assert (_nodes(answer, "lost"), _nodes(answer, "other")) == (("n001",), ("n000",))


def test_job_waits_for_other_nodes_though_the_one_it_avoids_is_free_and_says_so() -> None:
    lab = Lab().clusters(cluster("alpha", nodes=2))
    lab.live("running", replace(WHOLE, duration_s=600.0), grant("alpha", {"n001": 8}), granted_s=NOW_S - 60.0)
    lab.pend("lost", WHOLE, avoid_nodes=_avoided(0, again_s=0.0))
    answer = lab.plan()
    assert started(answer) == []
    (wait,) = answer.waits
    assert "not on n000, where it was lost before" in wait.reason
    assert [(kept.job, kept.start_s) for kept in answer.reservations] == [("lost", NOW_S + 540.0)]
    lab.now_s += 1_000.0
    assert _nodes(lab.plan(), "lost") == ("n000",), "old losses say nothing"


@pytest.mark.parametrize("down", [(), (1,)])
def test_job_that_nothing_else_could_run_is_tried_there_again_after_its_pause(down: tuple[int, ...]) -> None:
    lab = Lab().clusters(cluster("alpha", nodes=1 + len(down), unready=down))
    lab.pend("lost", WHOLE, avoid_nodes=_avoided(0))
    (wait,) = lab.plan().waits
    assert (wait.limit, wait.where, wait.start_s) == (Limit.HEALTH, "alpha", (NOW_S + 10.0,))
    assert "was lost on n000, and nothing else could run it" in wait.reason
    lab.now_s += 10.0
    assert _nodes(lab.plan(), "lost") == ("n000",)


def test_job_whose_roles_fit_alone_but_not_together_is_tried_there_again_after_its_pause() -> None:
    lab = Lab().clusters(cluster("alpha", nodes=3))
    together = spec(Option(chip=H100, chips=8, replicas=2), others={"helper": Option(chip=H100, chips=8)})
    lab.pend("lost", together, avoid_nodes=(*_avoided(0, again_s=0.0), *_avoided(1)))
    (wait,) = lab.plan().waits
    assert (wait.limit, wait.where, wait.start_s) == (Limit.HEALTH, "alpha", (NOW_S + 10.0,))
    assert "was lost on n001, and nothing else could run it" in wait.reason
    lab.now_s += 10.0
    assert started(lab.plan()) == ["lost"]
    lab = Lab().clusters(cluster("alpha", nodes=4)).pend("lost", together, avoid_nodes=_avoided(0, again_s=0.0))
    lab.live("running", WHOLE, grant("alpha", {"n003": 8}), granted_s=NOW_S)
    (wait,) = lab.plan().waits
    assert wait.limit is Limit.CAPACITY, "others could run it, once what runs there ends"


def test_job_whose_roles_fit_alone_but_not_together_waits_for_room_where_it_avoids_nothing() -> None:
    together = spec(Option(chip=H100, chips=8, replicas=2), others={"helper": Option(chip=H100, chips=8)})
    avoided = AvoidedNode(at=_at(0, "silent"), until_s=NOW_S + 10.0, again_s=NOW_S + 10.0, reason="lost")
    lab = Lab().clusters(cluster("alpha", nodes=3, unready=(2,))).pend("lost", together, avoid_nodes=(avoided,))
    (wait,) = lab.plan().waits
    assert (wait.limit, wait.where) == (Limit.CAPACITY, "alpha")


def test_gang_takes_back_as_few_nodes_as_it_must_of_those_it_avoids() -> None:
    lab = Lab().clusters(cluster("alpha", nodes=3))
    once, lately = _avoided(0, again_s=0.0), _avoided(1)
    lab.pend("lost", PAIR, avoid_nodes=(*once, *lately))
    assert _nodes(lab.plan(), "lost") == ("n000", "n002")


def test_job_goes_to_another_cluster_before_it_goes_where_it_was_lost() -> None:
    lab = Lab().clusters(cluster("alpha", nodes=1, price=1.0), cluster("beta", nodes=1, price=3.0))
    lab.pend("lost", WHOLE, avoid_nodes=_avoided(0, again_s=0.0))
    assert [start.grants[0].cluster for start in lab.plan().starts] == ["beta"]


def test_job_whose_team_may_use_nothing_else_is_tried_there_again_after_its_pause() -> None:
    lab = Lab().clusters(cluster("alpha", nodes=1), cluster("beta", nodes=1, chip="a100"))
    lab.teams(Team(name=LAB, guarantee={H100: 8.0}, borrow_max={ChipName("a100"): 0.0}))
    either = spec(Option(chip=H100, chips=8), Option(chip=ChipName("a100"), chips=8))
    lab.pend("lost", either, avoid_nodes=_avoided(0))
    (wait,) = lab.plan().waits
    assert wait.start_s == (NOW_S + 10.0,)
    lab.now_s += 10.0
    assert _nodes(lab.plan(), "lost") == ("n000",)


def test_nodes_that_no_cluster_has_any_more_matter_to_nobody() -> None:
    lab = Lab().clusters(cluster("alpha", nodes=1))
    lab.pend("lost", WHOLE, avoid_nodes=_avoided(7))
    assert started(lab.plan()) == ["lost"]


def test_node_avoided_by_all_takes_nothing_new_until_its_time_is_over() -> None:
    lab = Lab().clusters(cluster("alpha", nodes=2))
    lab.builder.set_avoided({_at(0): NOW_S + 60.0, _at(0, "gone"): NOW_S + 60.0})
    lab.pend("one", WHOLE, 1.0).pend("two", WHOLE, 2.0).pend("pair", PAIR, 3.0)
    answer = lab.plan()
    assert [start.grants[0].nodes for start in answer.starts] == [("n001",)]
    reasons = {wait.jobs: wait.reason for wait in answer.waits}
    assert "1 of 2 nodes with h100 is not ready, about to leave or avoided" in reasons[(JobId("pair"),)]
    assert feasible(lab.snapshot(), PAIR) is None, "it could run once"
    lab.now_s += 60.0
    assert started(lab.plan()) == ["one", "two"]


def test_elastic_job_does_not_grow_onto_a_node_avoided_by_all() -> None:
    elastic = spec(Option(chip=H100, chips=1, replicas=16, replicas_min=8))
    lab = Lab().clusters(cluster("alpha", nodes=2))
    lab.live("running", elastic, grant("alpha", {"n000": 8}), granted_s=0.0)
    assert lab.plan().resizes
    lab.builder.set_avoided({_at(1): NOW_S + 60.0})
    assert lab.plan().resizes == ()


def test_nodes_tried_out_and_changes_looked_for_heed_what_a_job_avoids() -> None:
    lab = Lab().clusters(cluster("alpha", nodes=2))
    lab.live("running", WHOLE, grant("alpha", {"n001": 8}), granted_s=NOW_S - 60.0)
    lab.pend("lost", WHOLE, avoid_nodes=_avoided(0))
    lab.builder.set_avoided({_at(1): NOW_S + 60.0})
    snapshot = lab.snapshot()
    tried = changed(snapshot, WhatIf(add_nodes=(AddNodes(cluster=ClusterName("alpha"), nodes=1),)), NOW_S)
    assert np.isneginf(tried.nodes.avoided_s).tolist() == [True, False, True]
    lab = Lab().clusters(cluster("alpha", nodes=2))
    lab.live("running", WHOLE, grant("alpha", {"n001": 8}), granted_s=NOW_S - 60.0)
    lab.pend("lost", PAIR, avoid_nodes=_avoided(0))
    found = explain(lab.snapshot(), JobId("lost"), Policy(), NOW_S, Budget())
    assert all("n000" not in change.start.grants[0].nodes for change in found)


def test_shapes_of_jobs_that_avoid_nodes_come_and_go_and_weigh_nothing() -> None:
    lab = Lab().clusters(cluster("alpha", nodes=2)).pend("lost", WHOLE, avoid_nodes=_avoided(0))
    snapshot = lab.snapshot()
    shapes = [snapshot.shapes[row] for row in snapshot.pending.shape.tolist()]
    assert (shapes[0].avoids, shapes[0].shuns) == ((_at(0),), (_at(0),))
    assert snapshot.shape_weight[snapshot.pending.shape[0]] == 0.0
    lab.now_s += 2_000.0
    later = lab.snapshot()
    assert later.shapes[int(later.pending.shape[0])].avoids == ()
    assert later.avoid_nodes == {}


@given(
    st.integers(1, 6),
    st.lists(st.tuples(st.integers(1, 3), st.sets(st.integers(0, 5)), st.booleans()), min_size=1, max_size=6),
    st.sets(st.integers(0, 5), max_size=2),
)
def test_no_plan_places_a_job_where_it_must_not_go_and_avoiding_keeps_no_other_job_waiting(
    nodes: int, jobs: list[tuple[int, set[int], bool]], down: set[int]
) -> None:
    lab = Lab().clusters(cluster("alpha", nodes=nodes, unready=tuple(down)))
    for number, (replicas, avoided, lately) in enumerate(jobs):
        kept = _avoided(*sorted(avoided), again_s=10.0 if lately else 0.0)
        lab.pend(f"job-{number}", spec(Option(chip=H100, chips=8, replicas=replicas)), float(number), avoid_nodes=kept)
    answer = lab.plan()
    told = {job for wait in answer.waits for job in wait.jobs} | {start.job for start in answer.starts}
    assert len(told) == len(jobs)
    taken: set[str] = set()
    for start in answer.starts:
        replicas, avoided, lately = jobs[int(start.job[4:])]
        own = set(start.grants[0].nodes)
        assert not own & taken
        taken |= own
        others = set(range(nodes)) - avoided - down
        kept_from = {f"n{node:03}" for node in avoided}
        assert not own & kept_from or (not lately and len(others) < replicas)


def test_many_avoided_nodes_are_told_apart_in_a_few_groups() -> None:
    lab = Lab().clusters(cluster("alpha", nodes=120))
    for number in range(120):
        lab.pend(f"job-{number:03}", WHOLE, float(number), avoid_nodes=_avoided(number) if number < 60 else ())
    snapshot = lab.snapshot()
    groups = AvoidedGroups(snapshot).of
    assert groups.tolist() == [min(row + 1, GROUPS_MAX) for row in range(60)] + [0] * 60
    answer = lab.plan()
    assert len(answer.starts) + sum(len(wait.jobs) for wait in answer.waits) == 120
    assert all(_nodes(answer, f"job-{number:03}") != (f"n{number:03}",) for number in range(31))


def test_snapshot_in_which_nobody_avoids_anything_has_the_pools_it_ever_had() -> None:
    lab = Lab().clusters(cluster("alpha", nodes=4)).pend("one", WHOLE)
    assert not AvoidedGroups(lab.snapshot()).of.any()
    lab.pend("two", WHOLE, avoid_nodes=_avoided(0, until_s=0.0))
    assert not AvoidedGroups(lab.snapshot()).of.any()
