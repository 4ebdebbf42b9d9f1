"""Services: replicas start one by one, on nodes of their own, and make no room for what comes after them."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st
from tests.planner.making import H100, NOW_S, Lab, cluster, grant, spec, started

from mainspring.domain.fleet import AvoidedNode, NodeRef
from mainspring.domain.ids import AttemptId, ClusterName, JobId, NodeName, TeamName
from mainspring.domain.job import JobKind, JobSpec, Option, Tier
from mainspring.domain.plan import Limit, Plan
from mainspring.domain.team import Team, TeamOrder
from mainspring.planner import PendingJob, Policy

AGES_S = 5_000.0  # Long enough for anything to be preempted or moved.


def _replica(chips: int = 1, *, name: str = "pick", tier: Tier = Tier.STANDARD, team: str = "lab") -> JobSpec:
    made = spec(Option(chip=H100, chips=chips), tier=tier, team=team)
    return replace(made, name=name, kind=JobKind.SERVICE)


def _nodes(answer: Plan) -> list[str]:
    return [start.grants[0].nodes[0] for start in answer.starts]


def test_replicas_start_one_by_one_each_on_a_node_of_its_own() -> None:
    lab = Lab().clusters(cluster("alpha", nodes=3))
    for number in range(3):
        lab.pend(f"r{number}", _replica(), float(number))
    nodes: list[str] = []
    for number in range(3):
        answer = lab.plan()
        assert started(answer) == [f"r{number}"]
        assert all(wait.limit is Limit.DEPENDENCY and "one by one" in wait.reason for wait in answer.waits)
        nodes += _nodes(answer)
        lab.act(answer)
    assert sorted(nodes) == ["n000", "n001", "n002"]


def test_a_paused_replica_holds_up_no_other_and_other_services_start_beside_it() -> None:
    lab = Lab().clusters(cluster("alpha", nodes=3))
    lab.builder.add_pending(PendingJob(job=JobId("first"), spec=_replica(), submitted_s=1.0, paused=True))
    lab.pend("second", _replica(), 2.0)
    lab.pend("other", _replica(name="place"), 3.0)
    assert sorted(started(lab.plan())) == ["other", "second"]


def test_a_replica_rather_stands_beside_another_than_waits_or_displaces() -> None:
    lab = Lab().clusters(cluster("alpha", nodes=2))
    lab.live("pick", _replica(), grant("alpha", {"n000": 1}), granted_s=NOW_S - AGES_S)
    training = spec(Option(chip=H100, chips=8), tier=Tier.OPPORTUNISTIC)
    lab.live("training", training, grant("alpha", {"n001": 8}), granted_s=NOW_S - AGES_S)
    lab.pend("second", _replica())
    answer = lab.plan()
    assert (started(answer), _nodes(answer), answer.evicts) == (["second"], ["n000"], ())


def test_a_replica_goes_where_it_was_lost_only_when_its_pause_is_over() -> None:
    lab = Lab().clusters(cluster("alpha", nodes=2))
    lab.live("pick", _replica(8), grant("alpha", {"n000": 8}), granted_s=NOW_S - AGES_S)
    at = NodeRef(cluster=ClusterName("alpha"), node=NodeName("n001"))
    lost = AvoidedNode(at=at, until_s=NOW_S + 1_000.0, again_s=NOW_S + 10.0, reason="lost")
    lab.pend("second", _replica(8), avoid_nodes=(lost,))
    assert started(lab.plan()) == []
    lab.now_s += 10.0
    assert _nodes(lab.plan()) == ["n001"]


def test_a_replica_whose_neighbour_has_ended_may_stand_there_again() -> None:
    lab = Lab().clusters(cluster("alpha", nodes=1))
    lab.live("pick", _replica(), grant("alpha", {"n000": 1}), granted_s=NOW_S - AGES_S)
    lab.pend("second", _replica())
    lab.plan()
    lab.builder.remove_live(AttemptId("attempt-pick"))
    snapshot = lab.builder.build(now_s=lab.now_s)
    assert not any(snapshot.shapes[row].avoids for row in snapshot.pending.shape.tolist())


def test_a_service_is_not_moved_so_that_a_scattered_gang_finds_room_and_training_is() -> None:
    for kind, moved in ((JobKind.TRAIN, True), (JobKind.SERVICE, False)):
        lab = Lab().clusters(cluster("alpha", nodes=4))
        for number in range(2):
            small = replace(spec(Option(chip=H100, chips=1)), kind=kind, name=f"small{number}")
            lab.live(f"small{number}", small, grant("alpha", {f"n00{number}": 1}), granted_s=NOW_S - AGES_S)
        lab.pend("gang", spec(Option(chip=H100, chips=8, replicas=3)))
        assert bool(lab.plan().evicts) is moved


def test_a_service_does_not_fall_behind_younger_jobs_of_its_team_for_having_run_long() -> None:
    for kind, displaced in ((JobKind.TRAIN, True), (JobKind.SERVICE, False)):
        lab = Lab(policy=Policy(attained_levels_chip_s=(1_000.0,))).clusters(cluster("alpha", nodes=1))
        lab.teams(Team(name=TeamName("lab"), order=TeamOrder.ATTAINED))
        old = replace(spec(Option(chip=H100, chips=8)), kind=kind, name="old")
        lab.live("old", old, grant("alpha", {"n000": 8}), granted_s=NOW_S - AGES_S)
        lab.pend("young", spec(Option(chip=H100, chips=8)))
        assert bool(lab.plan().evicts) is displaced


@given(
    guarantees=st.tuples(st.integers(0, 10), st.integers(0, 10)),
    sizes=st.lists(st.integers(1, 4), min_size=1, max_size=3),
    others=st.lists(st.tuples(st.integers(1, 4), st.sampled_from(["top", "low", "side"])), max_size=3),
    asked=st.integers(1, 8),
)
def test_no_service_ends_for_training_of_the_same_team_and_a_lower_tier(
    guarantees: tuple[int, int], sizes: list[int], others: list[tuple[int, str]], asked: int
) -> None:
    top, low = ({H100: float(each)} if each else {} for each in guarantees)
    lab = Lab().clusters(cluster("alpha", nodes=2))
    lab.teams(
        Team(name=TeamName("top"), guarantee={H100: sum(guarantees)} if sum(guarantees) else {}),
        Team(name=TeamName("low"), parent=TeamName("top"), guarantee=low),
        Team(name=TeamName("side"), parent=TeamName("top"), guarantee=top if sum(guarantees) else {}),
    )
    free = [8, 8]
    for number, (chips, team) in enumerate([*((size, "low") for size in sizes), *others]):
        node = max((0, 1), key=lambda each: free[each])
        if free[node] < chips:
            continue
        free[node] -= chips
        own = _replica(chips, team=team, name=f"s{number}")
        lab.live(f"s{number}", own, grant("alpha", {f"n00{node}": chips}), granted_s=NOW_S - AGES_S)
    lab.pend("training", spec(Option(chip=H100, chips=asked), team="low", tier=Tier.OPPORTUNISTIC))
    mine = {JobId(f"s{number}") for number in range(len(sizes))}
    assert not mine & {evict.job for evict in lab.plan().evicts}
