"""What the fleet was at a time is told alike whenever one asks: from the store, and later from the archive."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from mainspring.control import LAB_ITSELF, Settings
from mainspring.control.store.tokens import Caller
from mainspring.domain.answers import ClosedNode, NewHold, NewSize, PastCluster, PastFleet
from mainspring.domain.errors import NotFound
from mainspring.domain.fleet import NodeCondition
from mainspring.domain.ids import ClusterName, JobId, NodeName, RoleName, TeamName
from mainspring.domain.job import LAB, Hold
from mainspring.domain.life import Retention
from mainspring.domain.routes import LIST_MAX
from mainspring.domain.team import Team, TeamRole

if TYPE_CHECKING:
    from tests.control.conftest import World

DAY_S = 86_400.0
EAST, WEST = ClusterName("east"), ClusterName("west")


@pytest.fixture
def lab(world: World) -> World:
    world.restart(settings=Settings(keep=Retention(days=7)))
    world.control.people.set_team(Team(name=LAB))
    world.tick()
    return world


def _at(world: World, at_s: float, caller: Caller = LAB_ITSELF, *, limit: int = LIST_MAX) -> PastFleet:
    return world.control.retention.fleet_at(caller, at_s=at_s, limit=limit)


def _finish(world: World, job: JobId) -> None:
    world.run(job)
    world.succeed(job)


def test_fleet_at_a_time_is_told_alike_then_later_and_from_the_archive(lab: World) -> None:
    """One job is over, one runs, one waits; a cluster is paused, and nodes of it are down and drained."""
    first_s = lab.clock.now_s() - 0.5
    _finish(lab, lab.submit(lab.spec("early")))
    long = lab.submit(lab.spec("long", replicas=3))
    lab.run(long)
    lab.east.inner.node_down(NodeName("east-0"), "no power")
    lab.control.pauses.drain(EAST, "east-1", NewHold(reason="fan"))
    held_s = lab.clock.now_s()
    lab.control.pauses.pause_cluster(EAST, NewHold(reason="cables"))
    wide = lab.submit(lab.spec("wide", replicas=4))
    lab.tick(2)
    then_s = lab.clock.now_s() - 0.5
    told = _at(lab, then_s)
    by = str(LAB_ITSELF)
    down = ClosedNode(node=NodeName("east-0"), condition=NodeCondition.DOWN, since_s=held_s + 0.01, reason="no power")
    drained = ClosedNode(node=NodeName("east-1"), condition=NodeCondition.CORDONED, since_s=held_s, by=by, reason="fan")
    assert told.clusters == (
        PastCluster(
            cluster=EAST,
            nodes=2,
            used=0,
            closed=2,
            closed_nodes=(down, drained),
            hold=Hold(by=by, since_s=held_s, reason="cables", cluster=EAST),
        ),
        PastCluster(cluster=WEST, nodes=4, used=3, closed=0, closed_nodes=()),
    )
    assert ([(one.job, one.cluster, len(one.nodes)) for one in told.attempts], told.running) == ([(long, WEST, 3)], 1)
    assert told.waiting == 1
    assert _at(lab, then_s, limit=1).clusters[0].closed_nodes == (down,)

    lab.east.inner.node_up(NodeName("east-0"))
    lab.control.pauses.resume_cluster(EAST)
    lab.control.pauses.undrain(EAST, "east-1")
    lab.succeed(long)
    _finish(lab, wide)
    assert _at(lab, then_s) == told
    assert [one.closed for one in _at(lab, lab.clock.now_s()).clusters] == [0, 0]
    lab.loop.resign()
    lab.restart(settings=Settings(keep=Retention(days=7)))
    lab.tick(2)
    assert _at(lab, then_s) == told, "whoever leads next goes on with what was noted"

    lab.clock.advance(8 * DAY_S)
    lab.tick(2)
    assert lab.control.retention.collect().jobs == 3
    past = _at(lab, then_s)
    archived = tuple(replace(one, archived=True) for one in told.attempts)
    assert (past.attempts, past.running, past.waiting, past.unread) == (archived, 1, 1, 0)
    assert past.clusters == (PastCluster(cluster=WEST, nodes=None, used=3, closed=0, closed_nodes=()),)
    assert _at(lab, first_s) == PastFleet(at_s=first_s, clusters=(), running=0, waiting=0, attempts=())
    (lab.objects / "history" / "000000000001.jsonl.zst").unlink()
    assert _at(lab, then_s).unread == 2


def test_fleet_at_a_time_of_which_nothing_is_known_names_the_earliest(lab: World) -> None:
    now_s = lab.clock.now_s()
    with pytest.raises(NotFound, match="the first of which anything is known"):
        _at(lab, now_s - 3_600.0)
    with pytest.raises(NotFound, match="until now"):
        _at(lab, now_s + 1.0)
    assert _at(lab, now_s).running == 0


def test_fleet_at_a_time_names_jobs_to_those_alone_who_may_read_them(lab: World) -> None:
    for name in ("arms", "legs"):
        lab.control.people.set_team(Team(name=TeamName(name), parent=LAB))
    lab.run(lab.submit(lab.spec("ours", team=TeamName("arms"))))
    people = {team: lab.control.people.caller(lab.token(TeamRole.VIEWER, team=team)) for team in ("arms", "legs")}
    seen = {team: _at(lab, lab.clock.now_s(), caller) for team, caller in people.items()}
    assert {team: ([one.name for one in past.attempts], past.running) for team, past in seen.items()} == {
        "arms": (["ours"], 1),
        "legs": ([], 1),
    }


def test_attempt_that_shrank_held_at_a_time_what_it_held_then(lab: World) -> None:
    job = lab.submit(lab.spec("elastic", replicas=3, replicas_min=1))
    lab.run(job)
    large_s = lab.clock.now_s()
    lab.control.steering.resize(job, NewSize(role=RoleName("role-0"), least=1, most=1))
    lab.tick(4)
    nodes = [len(_at(lab, at_s).attempts[0].nodes) for at_s in (large_s, lab.clock.now_s())]
    assert nodes == [3, len(lab.job(job).attempts[-1].nodes)] == [3, 1]


def test_slots_of_a_cluster_with_a_queue_of_its_own_are_not_nodes(
    tmp_path_factory: pytest.TempPathFactory, world_type: type[World]
) -> None:
    world = world_type(tmp_path_factory.mktemp("delegated"), delegated=True)
    world.tick(2)
    assert [(one.cluster, one.nodes) for one in _at(world, world.clock.now_s()).clusters] == [(EAST, 2)]
    world.control.store.close()
