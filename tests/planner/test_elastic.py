"""Elastic roles: they grow into idle room where that soon pays, and never beyond what their team may hold."""

from __future__ import annotations

from dataclasses import replace
from math import inf

import pytest
from tests.planner.making import H100, Lab, cluster, grant, spec

from mainspring.domain.fleet import Inventory
from mainspring.domain.ids import ChipName
from mainspring.domain.job import ANY_CHIP, JobSpec, Option
from mainspring.domain.plan import Limit, Resize
from mainspring.domain.team import Team
from mainspring.planner import Policy
from mainspring.planner.displace.elastic import grow
from mainspring.planner.place.free_capacity import FreeCapacity
from mainspring.planner.quota.entitlement import Entitlement

NOW_S = 100_000.0


def elastic(replicas: int = 16, **more: object) -> JobSpec:
    """Returns the spec of a job that runs with 2 replicas or more."""
    return spec(replace(Option(chip=H100, replicas=replicas, replicas_min=2), **more))  # type: ignore[arg-type]


def running(of: JobSpec, nodes: dict[str, int], *, granted_s: float = 0.0, resized_s: float = -inf) -> Lab:
    """Returns a fleet of four nodes in two racks with one elastic job."""
    world = Lab(now_s=NOW_S).clusters(cluster("alpha"))
    return world.live("job", of, grant("alpha", nodes), granted_s=granted_s, resized_s=resized_s)


def grown(
    world: Lab, *, crowded: tuple[int, ...] = (), ending: tuple[str, ...] = (), policy: Policy | None = None
) -> tuple[Resize, ...]:
    """Returns what grows."""
    snapshot, policy = world.snapshot(), policy or Policy()
    return grow(
        FreeCapacity(snapshot),
        policy,
        NOW_S,
        crowded=crowded,
        ending=ending,  # type: ignore[arg-type]
        entitlement=Entitlement(snapshot, policy, NOW_S),
    )


def test_elastic_role_below_its_size_grows_into_idle_room_and_keeps_its_nodes() -> None:
    (resize,) = grown(running(elastic(), {"n000": 4}))
    assert resize.replicas == 16
    assert resize.grant.nodes[0] == "n000"
    assert sum(resize.grant.ranks) == 16
    assert sum(resize.grant.chip_milli) == 16_000
    assert resize.for_job is None


def test_elastic_role_grows_no_further_than_there_is_room() -> None:
    world = running(elastic(64), {"n000": 4}).live(
        "other", spec(Option(chip=H100, chips=8)), grant("alpha", {"n001": 8})
    )
    (resize,) = grown(world)
    assert resize.replicas == 24


def test_elastic_role_stays_in_the_domain_that_holds_it() -> None:
    (resize,) = grown(running(elastic(64, within="rack"), {"n002": 4}))
    assert resize.replicas == 16
    assert set(resize.grant.nodes) == {"n002", "n003"}


def test_elastic_role_in_groups_grows_by_whole_groups() -> None:
    world = running(elastic(24, chips=2, group=3, group_within="node", replicas_min=3), {"n000": 3})
    held = replace(grant("alpha", {"n000": 3}), chip_milli=(6_000,))
    world.live("job", elastic(24, chips=2, group=3, group_within="node", replicas_min=3), held, granted_s=0.0)
    (resize,) = grown(world)
    assert resize.replicas == 12
    assert resize.grant.ranks == (3, 3, 3, 3)


def test_elastic_role_does_not_grow_where_others_wait_or_it_ends_or_it_started_of_late() -> None:
    world = running(elastic(), {"n000": 4})
    assert grown(world, crowded=(0,)) == ()
    assert grown(world, ending=("attempt-job",)) == ()
    assert grown(running(elastic(), {"n000": 4}, granted_s=NOW_S - 60.0)) == ()


def test_elastic_role_that_changed_its_size_is_left_alone_as_long_as_one_that_started() -> None:
    assert grown(running(elastic(), {"n000": 4}, resized_s=NOW_S - 60.0)) == ()
    assert len(grown(running(elastic(), {"n000": 4}, resized_s=NOW_S - Policy().runtime_min_s))) == 1


def test_elastic_role_does_not_grow_for_less_than_the_restart_costs() -> None:
    assert grown(running(elastic(17), {"n000": 8, "n001": 8})) == ()
    assert len(grown(running(elastic(17), {"n000": 8, "n001": 8}), policy=Policy(restart_s=100.0))) == 1


def test_elastic_role_grows_only_as_far_as_its_team_may_hold() -> None:
    world = running(elastic(), {"n000": 4}).teams(Team(name=elastic().team, chips_max=11.0))
    assert [resize.replicas for resize in grown(world)] == [11]
    assert grown(running(elastic(), {"n000": 4}).teams(Team(name=elastic().team, chips_max=4.0))) == ()
    of_three = elastic(24, group=3, group_within="node", replicas_min=3)
    (resize,) = grown(running(of_three, {"n000": 3}).teams(Team(name=of_three.team, chips_max=11.0)))
    assert resize.replicas == 9


@pytest.mark.parametrize(("chips_max", "starts"), [(11.0, 11), (2.0, 2), (1.0, 0), (64.0, 16)])
def test_elastic_role_starts_with_as_many_as_its_team_may_hold(chips_max: float, starts: int) -> None:
    world = Lab(now_s=NOW_S).clusters(cluster("alpha")).teams(Team(name=elastic().team, chips_max=chips_max))
    world.pend("job", elastic())
    answer = world.plan()
    assert sum(sum(grant.ranks) for start in answer.starts for grant in start.grants) == starts
    told = [(wait.limit, wait.short_by) for wait in answer.waits]
    assert told == ([] if starts else [(Limit.QUOTA, 1.0)])  # Short of the fewest it can run with.


def test_elastic_roles_of_one_job_start_with_as_many_as_their_team_may_hold_together() -> None:
    helpers = Option(chip=H100, chips=2, replicas=4, replicas_min=1)
    job = spec(Option(chip=H100, replicas=8, replicas_min=2), others={"helper": helpers})
    world = Lab(now_s=NOW_S).clusters(cluster("alpha")).teams(Team(name=job.team, chips_max=9.0))
    world.pend("job", job)
    (start,) = world.plan().starts
    assert [sum(grant.ranks) for grant in start.grants] == [7, 1]


def test_two_elastic_roles_share_the_idle_room_without_overlap() -> None:
    world = running(elastic(32), {"n000": 4}).live("second", elastic(32), grant("alpha", {"n001": 4}), granted_s=0.0)
    resizes = grown(world)
    used: dict[str, int] = {}
    for resize in resizes:
        for node, milli in zip(resize.grant.nodes, resize.grant.chip_milli, strict=True):
            used[node] = used.get(node, 0) + milli
    assert resizes
    assert all(milli <= 8_000 for milli in used.values())


def test_rigid_role_never_grows() -> None:
    assert grown(running(spec(Option(chip=H100, replicas=4)), {"n000": 4})) == ()


def test_role_that_runs_on_any_chip_grows_on_the_chips_it_has() -> None:
    world = Lab(now_s=NOW_S).clusters(_two_chips())
    world.live("job", elastic(chip=ANY_CHIP), grant("alpha", {"n000": 4}), granted_s=0.0)
    (resize,) = grown(world)
    assert (resize.grant.nodes, resize.replicas) == (("n000",), 8)


def _two_chips() -> Inventory:
    known = cluster("alpha", nodes=2)
    return replace(known, nodes=(known.nodes[0], replace(known.nodes[1], chip=ChipName("a100"))))


def test_elastic_role_leaves_the_cores_that_another_role_of_its_job_needs() -> None:
    world = Lab(now_s=NOW_S).clusters(cluster("alpha", nodes=1, cpus=8.0))
    greedy = Option(chip=H100, chips=2, cpus=2.0, replicas=4, replicas_min=1)
    helper = Option(chip=ANY_CHIP, chips=0, cpus=1.0, replicas=3)
    (start,) = world.pend("job", spec(greedy, others={"helper": helper})).plan().starts
    assert [sum(part.ranks) for part in start.grants] == [1, 3]
