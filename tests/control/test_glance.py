"""The lab at a glance: the same sums as longer lists have, of what the caller may see, however large the lab."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from mainspring.domain.answers import Glance, NewHold
from mainspring.domain.codec import decode
from mainspring.domain.errors import Unavailable
from mainspring.domain.ids import TeamName
from mainspring.domain.job import LAB, Tier
from mainspring.domain.life import AttemptState
from mainspring.domain.team import Team, TeamRole
from mainspring.planner import Policy

if TYPE_CHECKING:
    from tests.control.calling import Api
    from tests.control.conftest import World


def look(world: World, limit: int = 10) -> Glance:
    return world.control.questions.glance(limit=limit)


def test_glance_counts_chips_by_cluster_and_tier_and_who_waits_for_how_long(world: World) -> None:
    large = world.submit(world.spec("large", replicas=3, tier=Tier.CRITICAL))
    small = world.submit(world.spec("small"))
    world.run(large)
    world.register(small)
    world.beat(small, step=7)
    for _ in range(4):
        world.submit(world.spec("waits", replicas=4, tier=Tier.OPPORTUNISTIC))
    paused = world.submit(world.spec("paused", tier=Tier.OPPORTUNISTIC))
    world.control.steering.pause(paused, NewHold(reason="later"))
    world.clock.advance(600)
    world.tick(2)
    seen = look(world)
    clusters = world.control.clusters()
    for one in seen.clusters:
        (known,) = (each for each in clusters if each.inventory.cluster == one.cluster)
        assert one.chips == sum(node.chips for node in known.inventory.nodes)
        assert sum(one.chips_held.values()) == sum(known.used_chip_milli.values()) / 1_000
    held = {tier: sum(one.chips_held.get(tier.value, 0.0) for one in seen.clusters) for tier in Tier}
    assert (held[Tier.CRITICAL], held[Tier.STANDARD]) == (3, 1)
    waiting = {one.tier: one for one in seen.queue}
    assert [one.tier for one in seen.queue] == list(Tier)
    last = waiting[Tier.OPPORTUNISTIC]
    assert (last.jobs + int(held[Tier.OPPORTUNISTIC] > 0), last.kept) == (5, 1)
    assert last.oldest_s is not None
    assert 600 <= last.oldest_s < 610
    assert waiting[Tier.CRITICAL].oldest_s is None
    shown = [(job.job, job.chips, job.step) for job in seen.jobs]
    assert {(large, 3, 0), (small, 1, 7)} <= set(shown)
    assert [chips for _, chips, _ in shown] == sorted((chips for _, chips, _ in shown), reverse=True)
    assert seen.running == len(seen.jobs)


def test_glance_shows_the_largest_and_what_failed_lately_and_no_more_than_asked(world: World) -> None:
    jobs = [world.submit(world.spec(f"job-{size}", replicas=size, attempts_max=1)) for size in (1, 2)]
    for job in jobs:
        world.run(job)
    assert [job.job for job in look(world, limit=1).jobs] == [jobs[1]]
    assert look(world, limit=1).running == 2
    assert look(world, limit=0).jobs == ()
    for job in jobs:
        world.beat(job, outcome=AttemptState.FAILED, reason="x" * 2_000 + "no such gripper")
        world.tick(4)
    seen = look(world, limit=1)
    assert (seen.failed_count, [one.job for one in seen.failed]) == (2, [jobs[1]])
    assert seen.failed[0].reason.endswith("no such gripper")
    assert len(seen.failed[0].reason) <= 300
    world.clock.advance(3_601)
    world.tick()
    assert look(world).failed_count == 0


def test_nodes_that_are_held_down_or_silent_are_not_healthy(world: World) -> None:
    world.tick(2)
    before = {one.cluster: one for one in look(world).clusters}
    world.control.pauses.drain("east", "east-0", NewHold(reason="new fan"))
    world.west.answering = False
    world.tick(2, seconds=30)
    after = {one.cluster: one for one in look(world).clusters}
    east, west = (after[name] for name in before)
    assert (east.nodes_closed, east.chips, east.chips_healthy) == (1, 4, 2)
    assert (west.answering, west.chips) == (False, 4)
    assert west.silent_s >= 30
    world.control.pauses.pause_cluster("east", NewHold(reason="stock-taking"))
    paused = next(one for one in look(world).clusters if one.cluster == east.cluster)
    assert (paused.nodes_closed, paused.chips_healthy) == (2, 0)


def test_jobs_of_others_are_not_shown_to_who_may_not_read_them(api: Api) -> None:
    world = api.world
    world.control.people.set_team(Team(name=LAB))
    for team in ("arms", "vision"):
        world.control.people.set_team(Team(name=TeamName(team), parent=LAB))
        job = world.submit(world.spec(team, team=TeamName(team), attempts_max=1))
        world.run(job)
    gone = world.submit(world.spec("gone", team=TeamName("vision"), attempts_max=1))
    world.run(gone)
    world.beat(gone, outcome=AttemptState.FAILED, reason="boom")
    world.tick(4)
    token = world.token(TeamRole.MEMBER, team="arms", holder="bo")
    answer = api.http.get("/v1/glance", headers={"Authorization": f"Bearer {token}"})
    seen = decode(Glance, answer.content)
    assert ([job.name for job in seen.jobs], seen.running, seen.failed_count) == (["arms"], 1, 0)
    assert sum(sum(one.chips_held.values()) for one in seen.clusters) == 2
    whole = decode(Glance, api.get("/v1/glance?limit=5").content)
    assert ({job.name for job in whole.jobs}, whole.failed_count) == ({"arms", "vision"}, 1)
    assert api.http.get("/v1/glance").status_code == 401
    assert api.http.get("/v1/glance?limit=101", headers=api.viewer).status_code == 400


def test_controller_that_has_not_planned_says_so(world: World) -> None:
    world.restart(policy=Policy())
    with pytest.raises(Unavailable, match="no plan yet"):
        look(world)
