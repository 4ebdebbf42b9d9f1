"""What plans bring to the loop: evictions, failover, dependencies, arrays, budgets, what is learned, what if."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.control.conftest import GPU

from mainspring.control.state.dependencies import verdict
from mainspring.control.state.latest_plan import LatestPlan
from mainspring.control.store.settings import Settings
from mainspring.domain.answers import AddNodes, Submit, WhatIf
from mainspring.domain.errors import Conflict, InvalidInput, NotFound
from mainspring.domain.fleet import Offer
from mainspring.domain.ids import ClusterName, JobId, TeamName
from mainspring.domain.job import LAB, Tier
from mainspring.domain.life import AttemptState, JobState, ended
from mainspring.domain.plan import Limit, Provision
from mainspring.domain.team import Team
from mainspring.domain.wire.events.jobs import (
    NodesOrderedEvent,
    NodesRefusedEvent,
    ProvisionWantedEvent,
    StopRequestedEvent,
)
from mainspring.domain.wire.events.leads import CheckpointDurableEvent
from mainspring.planner import Policy
from mainspring.testing import FakeEngine

if TYPE_CHECKING:
    from tests.control.conftest import World

VISION = TeamName("vision")
SWIFT = Policy(runtime_min_s=2.0, cooldown_s=5.0, restart_s=1.0, checkpoint_s=1.0)


def _picture(world: World) -> LatestPlan:
    picture = world.control.pictures.newest
    assert picture is not None
    return picture


# ---------------------------------------------------------------- evictions


def test_urgent_job_displaces_one_that_is_not_which_goes_back_to_the_queue(world: World) -> None:
    world.restart(policy=SWIFT)
    meek = world.submit(world.spec("meek", replicas=4, tier=Tier.OPPORTUNISTIC))
    other = world.submit(world.spec("other", replicas=4, tier=Tier.CRITICAL))
    world.run(meek)
    world.run(other)
    world.tick(8)
    urgent = world.submit(world.spec("urgent", replicas=4, tier=Tier.CRITICAL))
    world.tick()
    attempt = world.job(meek).attempts[0]
    assert attempt.state is AttemptState.STOPPING
    asked = [event for event in world.control.events(reference=meek) if event.kind == StopRequestedEvent.kind]
    assert asked[-1].detail["for_job"] == urgent
    assert asked[-1].detail["by"]
    world.beat(meek, outcome=AttemptState.CANCELLED)
    world.tick(3)
    assert world.job(urgent).state is JobState.STARTING
    view = world.job(meek)
    assert (view.state, view.attempts[0].state) == (JobState.QUEUED, AttemptState.CANCELLED)
    row = _picture(world).snapshot.pending.jobs.index(meek)
    assert _picture(world).snapshot.pending.evicted_s[row] > 0
    assert world.job(other).state is JobState.RUNNING


def test_nodes_that_a_plan_wants_ordered_are_told_once(world: World) -> None:
    offer = Offer(name="more", chip=GPU, chips=1, nodes_max=8, lead_time_s=60.0, dollars_per_chip_hour=2.0)
    west = world.west.inner.inventory()
    world.west.inner = FakeEngine(replace(west, offers=(offer,)), world.clock)
    world.restart(policy=Policy(provision_after_s=5.0))
    for name in ("first", "second"):
        world.submit(world.spec(name, replicas=4))
    job = world.submit(world.spec("third", replicas=4))
    world.tick(3)
    assert _wanted(world, job) == []
    world.clock.advance(Settings().plan_s)
    world.tick(30)
    assert _wanted(world, job) == [("west", "more", 4)]


def offered(world: World, kind: type[FakeEngine] = FakeEngine) -> JobId:
    """Lets a job wait on a cluster that offers nodes, until its plan wants some."""
    offer = Offer(name="more", chip=GPU, chips=1, nodes_max=8, lead_time_s=60.0, dollars_per_chip_hour=2.0)
    west = world.west.inner.inventory()
    world.west.inner = kind(replace(west, offers=(offer,)), world.clock)
    world.restart(policy=Policy(provision_after_s=5.0))
    world.submit(world.spec("first", replicas=4))
    world.submit(world.spec("second", replicas=4))
    job = world.submit(world.spec("third", replicas=4))
    world.tick(3)
    world.clock.advance(Settings().plan_s)
    return job


def said(world: World, job: JobId) -> list[str]:
    """What was said of orders of nodes for a job."""
    kinds = (NodesOrderedEvent.kind, NodesRefusedEvent.kind)
    return [str(event.told) for event in world.control.events(reference=job) if event.kind in kinds]


def test_nodes_that_a_plan_wants_are_ordered_once_and_their_job_starts_when_they_come(world: World) -> None:
    job = offered(world)
    world.tick(40)
    assert said(world, job) == ["4 nodes of more on west are ordered; they come in 60 s"]
    (order,) = world.control.questions.why(job).ordered
    assert (order.cluster, order.offer, order.nodes) == ("west", "more", 4)
    assert world.control.questions.plan().ordered == (order,)
    assert world.control.questions.plan().provisions == ()
    assert world.clock.now_s() < order.expected_s < world.clock.now_s() + 60.0
    world.clock.advance(60.0)
    world.tick(3)
    assert world.job(job).state is JobState.STARTING
    assert {node for one in world.orders_of(job).values() for node in one.nodes} == {f"more-00{n}" for n in range(4)}
    assert world.control.questions.why(job).ordered == ()


def test_order_whose_nodes_do_not_come_is_told_once_in_its_clusters_words(world: World) -> None:
    job = offered(world)
    world.tick(5)
    world.west.inner.withhold("more", "the zone has no such machines left")
    world.tick(120)
    assert said(world, job)[1:] == ["4 nodes of more on west do not come: the zone has no such machines left"]


def test_offer_that_is_refused_is_asked_for_again_later_each_time(world: World) -> None:
    class Refusing(FakeEngine):
        def provision(self, order: Provision) -> None:
            raise Conflict("order nodes", on=order.offer, got="pods are forbidden here")

    job = offered(world, Refusing)
    world.tick(10 * 60)
    words = said(world, job)
    assert len(words) == 4, "at once, and after 1, 2 and 4 minutes"
    assert all("pods are forbidden here" in one for one in words)


def test_cluster_that_does_not_answer_to_an_order_is_asked_again(world: World) -> None:
    job = offered(world)
    world.west.inner.fail_next("provision", 3)
    world.tick(8)
    assert len(said(world, job)) == 1


def _wanted(world: World, job: JobId) -> list[tuple[object, ...]]:
    return [
        tuple(event.detail[name] for name in ("cluster", "offer", "nodes"))
        for event in world.control.events(reference=job)
        if event.kind == ProvisionWantedEvent.kind
    ]


# ---------------------------------------------------------------- failover


def test_silent_cluster_with_silent_leads_is_given_up_and_its_job_starts_elsewhere(world: World) -> None:
    world.restart(policy=Policy(failover_s=30.0))
    job = world.submit(world.spec(attempts_max=1))
    world.run(job)
    (old,) = world.orders_of(job)
    order = world.west.orders[old]
    world.west.answering = False
    world.tick(29)
    assert world.job(job).state is JobState.RUNNING
    world.tick(5)
    view = world.job(job)
    assert [attempt.state for attempt in view.attempts] == [AttemptState.LOST, AttemptState.GRANTED]
    assert view.attempts[1].cluster == "east"
    assert "silent" in view.attempts[0].reason
    assert old in world.west.running(), "what runs there goes on unseen"
    world.run(job)
    late = replace(world.last_beat, attempt=view.attempts[0].id, epoch=1, step=99)
    assert world.control.heartbeat(late, world.control.people.caller(order.token)).fenced
    assert world.job(job).step != 99
    world.west.answering = True
    crowd = [world.submit(world.spec(f"crowd-{index}")) for index in range(4)]
    world.tick()
    assert old not in world.west.running()
    assert not any(set(order.nodes) & set(attempt.nodes) for one in crowd for attempt in world.job(one).attempts), (
        "placed beside what may still run there"
    )
    world.tick(3)
    assert all(world.job(one).state is JobState.STARTING for one in crowd)


def test_silent_cluster_whose_leads_speak_keeps_its_runs(world: World) -> None:
    world.restart(policy=Policy(failover_s=30.0))
    job = world.submit()
    world.run(job)
    world.west.answering = False
    for _ in range(20):
        world.beat(job, step=7)
        world.tick(seconds=5.0)
    view = world.job(job)
    assert (view.state, len(view.attempts), view.step) == (JobState.RUNNING, 1, 7)
    assert [one.answering for one in world.control.clusters()] == [True, False]


def test_silence_while_the_controller_itself_was_away_gives_nothing_up(world: World) -> None:
    world.restart(policy=Policy(failover_s=30.0))
    job = world.submit()
    world.run(job)
    world.west.answering = False
    world.tick(20)
    world.clock.advance(3_600.0)
    world.tick(5)
    assert world.job(job).state is JobState.RUNNING


def test_job_being_cancelled_on_a_cluster_that_is_given_up_ends(world: World) -> None:
    world.restart(policy=Policy(failover_s=30.0))
    job = world.submit()
    world.run(job)
    world.west.answering = False
    world.control.steering.stop(job, world.admin)
    world.tick(40)
    assert world.job(job).state is JobState.CANCELLED
    world.west.answering = True
    world.tick(2)
    assert not world.west.running()


# ---------------------------------------------------------------- dependencies

STATES = st.dictionaries(st.sampled_from([JobId(name) for name in "abcd"]), st.sampled_from(JobState))


@given(STATES)
def test_verdict_lets_a_job_start_only_when_every_job_before_it_succeeded(states: dict[JobId, JobState]) -> None:
    says = verdict(tuple(states), states)
    assert says.blocked is any(state is not JobState.SUCCEEDED for state in states.values())
    bad = [job for job, state in states.items() if ended(state) and state is not JobState.SUCCEEDED]
    assert bool(says.doomed) is bool(bad)
    assert not bad or bad[0] in says.doomed


def test_verdict_on_a_job_nobody_knows_is_doom() -> None:
    assert "not known" in verdict((JobId("gone"),), {}).doomed


def test_job_after_others_starts_once_all_have_succeeded(world: World) -> None:
    first, second = world.submit(world.spec("first")), world.submit(world.spec("second"))
    last = world.submit(world.spec("last", after=(first, second)))
    world.run(first)
    world.run(second)
    assert world.control.questions.why(last).limit is Limit.DEPENDENCY
    world.succeed(first)
    assert world.job(last).state is JobState.QUEUED
    world.restart()
    world.clock.advance(Settings().leader_lease_s)
    world.tick(2)
    assert world.job(last).state is JobState.QUEUED
    world.succeed(second)
    assert world.job(last).state is JobState.STARTING


def test_job_after_one_that_was_cancelled_fails_and_so_do_those_after_it(world: World) -> None:
    first = world.submit(world.spec("first", replicas=4))
    middle = world.submit(world.spec("middle", after=(first,)))
    last = world.submit(world.spec("last", after=(middle,)))
    world.tick()
    world.control.steering.stop(first, world.admin)
    world.tick(4)
    assert [world.job(job).state for job in (middle, last)] == [JobState.FAILED] * 2
    assert f"{first}, which it comes after, was cancelled" in world.job(middle).reason
    assert f"{middle}, which it comes after, failed" in world.job(last).reason
    assert not world.job(middle).attempts


def test_job_after_one_that_nobody_submitted_is_refused(world: World) -> None:
    with pytest.raises(NotFound, match="job-nobody"):
        world.submit(world.spec(after=(JobId("job-nobody"),)))


# ---------------------------------------------------------------- arrays


def test_array_is_one_request_of_many_jobs_each_told_its_place(world: World) -> None:
    first = world.submit(world.spec("sweep"), key="once", count=3)
    assert world.submit(world.spec("sweep"), key="once", count=3) == first
    with pytest.raises(Conflict, match="once"):
        world.submit(world.spec("sweep"), key="once", count=4)
    world.tick()
    members = world.control.jobs(array=first)
    assert [view.spec.name for view in members] == ["sweep-0", "sweep-1", "sweep-2"]
    assert members[0].id == first
    for index, view in enumerate(members):
        environment = world.register(view.id)[0].roles[0].environment
        assert environment["MAINSPRING_ARRAY_INDEX"] == str(index)
        assert environment["MAINSPRING_ARRAY_COUNT"] == "3"
    (line,) = world.control.jobs()
    assert line.array is not None
    assert (line.array.first, line.array.count, line.array.states) == (first, 3, {"starting": 3})
    assert world.control.job("sweep-1").id == members[1].id
    lone = world.submit()
    world.tick()
    assert "MAINSPRING_ARRAY_INDEX" not in world.register(lone)[0].roles[0].environment


def test_array_larger_than_the_room_goes_on_as_room_comes_and_is_stopped_whole(world: World) -> None:
    first = world.submit(world.spec("sweep"), count=12)
    world.tick()
    assert world.control.jobs()[0].array is not None
    members = world.control.jobs(array=first)
    assert [view.state for view in members].count(JobState.STARTING) == 8
    assert [view.id for view in world.control.jobs(array=first, state=JobState.QUEUED)] == [
        view.id for view in members[8:]
    ]
    world.control.steering.stop(first, world.admin, array=True)
    world.tick(3)
    assert {view.state for view in world.control.jobs(array=first)} == {JobState.CANCELLED}
    lone = world.submit()
    with pytest.raises(NotFound, match="none"):
        world.control.steering.stop(lone, world.admin, array=True)


@pytest.mark.parametrize("count", [0, 100_001])
def test_array_of_no_or_too_many_jobs_is_refused(world: World, count: int) -> None:
    with pytest.raises(InvalidInput, match="count"):
        Submit(spec=world.spec(), count=count)


def test_array_whose_last_name_would_be_too_long_is_refused(world: World) -> None:
    with pytest.raises(InvalidInput, match="array"):
        world.submit(world.spec("a" * 62), count=100)


# ---------------------------------------------------------------- what is learned and spent


def test_controller_that_comes_back_knows_what_teams_used_and_spent_and_how_long_jobs_run(world: World) -> None:
    world.control.people.set_team(Team(name=LAB), world.admin)
    world.control.people.set_team(Team(name=VISION, parent=LAB, dollars_max=1_000.0), world.admin)
    for _ in range(3):
        job = world.submit(world.spec("same", replicas=2, team=VISION))
        world.run(job)
        world.clock.advance(5_000.0)
        world.succeed(job)
    live = world.submit(world.spec("live", replicas=1, team=VISION))
    world.run(live)
    world.clock.advance(2_000.0)
    world.tick(2)
    crowd = [world.submit(world.spec("crowd", replicas=4, team=VISION)) for _ in range(3)]
    waits = world.submit(world.spec("same", replicas=4, team=VISION))
    world.tick()
    before = _picture(world).snapshot
    world.restart()
    world.clock.advance(Settings().leader_lease_s)
    world.tick()
    after = _picture(world).snapshot
    row = before.teams.names.index(VISION)
    hour_of_four_chips = 4 * 3_600.0  # The grain of what is read back.
    assert after.teams.usage[row] == pytest.approx(before.teams.usage[row], abs=hour_of_four_chips)
    assert before.teams.usage[row] > 2 * 3 * 5_000.0 * 0.9
    assert after.teams.dollars[row] == pytest.approx(before.teams.dollars[row], rel=0.1)
    assert after.teams.dollars[row] > 2 * 3 * 5_000.0 / 3_600.0 * 0.9
    assert after.teams.dollars[after.teams.names.index(LAB)] == pytest.approx(after.teams.dollars[row])
    for snapshot in (before, after):
        place = snapshot.pending.jobs.index(waits)
        assert 5_000.0 < snapshot.pending.duration_s[place] < 5_100.0
    assert world.job(crowd[0]).state is not JobState.QUEUED


def test_team_over_its_budget_waits_and_says_so(world: World) -> None:
    world.control.people.set_team(Team(name=LAB), world.admin)
    world.control.people.set_team(Team(name=VISION, parent=LAB, dollars_max=1.0), world.admin)
    job = world.submit(world.spec("dear", team=VISION))
    world.run(job)
    world.clock.advance(2 * 3_600.0)
    world.succeed(job)
    waits = world.submit(world.spec("next", team=VISION))
    world.tick(2)
    why = world.control.questions.why(waits)
    assert (why.limit, why.where) == (Limit.BUDGET, VISION)
    world.control.people.set_team(Team(name=VISION, parent=LAB, dollars_max=100.0), world.admin)
    world.tick()
    assert world.job(waits).state is JobState.STARTING


def test_durable_checkpoint_is_what_an_eviction_would_lose_no_more(world: World) -> None:
    job = world.submit()
    world.run(job)
    world.clock.advance(100.0)
    world.beat(job, (CheckpointDurableEvent.kind, {"step": 5, "size_bytes": 1}))
    told_s = world.clock.now_s()
    world.tick()
    for _ in range(2):
        live = _picture(world).snapshot.live
        assert live.durable_s[live.jobs.index(job)] == pytest.approx(told_s)
        world.restart()
        world.clock.advance(Settings().leader_lease_s)
        world.tick()


# ---------------------------------------------------------------- questions


def test_why_a_job_waits_tells_the_limit_and_what_would_start_it_now(world: World) -> None:
    world.control.people.set_team(Team(name=LAB, chips_max=4.0), world.admin)
    world.submit(world.spec("first", replicas=3, duration_s=600.0))
    world.tick()
    job = world.submit(world.spec("second", replicas=2, replicas_min=2))
    world.tick()
    plain = world.control.questions.why(job)
    assert (plain.limit, plain.where, plain.short_by) == (Limit.QUOTA, LAB, 1.0)
    assert plain.remedies == ()
    answer = world.control.questions.why(job, remedies=True)
    assert answer.remedies
    assert all(remedy.text and remedy.cluster in ("east", "west") for remedy in answer.remedies)
    assert world.control.job(job).state is JobState.QUEUED


def test_job_that_waits_for_one_that_ends_soon_is_told_when(world: World) -> None:
    for name in ("first", "second"):
        world.submit(world.spec(name, replicas=4, duration_s=600.0))
    world.tick()
    granted_s = world.control.jobs()[0].attempts[0].granted_s
    job = world.submit(world.spec("third", replicas=4))
    world.tick(2)
    view, why = world.job(job), world.control.questions.why(job)
    assert view.start_s == why.start_s == pytest.approx(granted_s + 600.0, abs=60.0)
    assert view.exact
    listed = {one.id: one for one in world.control.jobs()}
    assert listed[job].start_s == view.start_s


def test_plan_shows_who_waits_by_class_and_what_if_changes_nothing(world: World) -> None:
    for name in ("first", "second"):
        world.submit(world.spec(name, replicas=4))
    world.tick()
    job = world.submit(world.spec("third", replicas=4))
    world.tick(2)
    view = world.control.questions.plan()
    assert view.counts["waits"] == 1
    assert (view.waits[0].count, view.waits[0].jobs) == (1, (job,))
    before = _picture(world)
    answer = world.control.questions.what_if(WhatIf(add_nodes=(AddNodes(cluster=ClusterName("west"), nodes=4),)))
    assert answer.start == (job,)
    assert answer.after.starts[0].cluster == "west"
    gone = world.control.questions.what_if(WhatIf(remove_clusters=(ClusterName("west"),)))
    assert len(gone.stranded) == 1
    assert (gone.restart, gone.start) == ((), ())
    tried = world.control.questions.what_if(WhatIf(submits=(Submit(spec=world.spec("tried", replicas=1)),)))
    assert any("what-if" in wait.jobs[0] for wait in tried.after.waits)
    limited = world.control.questions.what_if(
        WhatIf(teams=(Team(name=LAB, chips_max=0.0),), add_nodes=(AddNodes(cluster=ClusterName("west"), nodes=4),))
    )
    assert limited.start == ()
    assert _picture(world) is before
    world.tick()
    assert world.job(job).state is JobState.QUEUED


def test_what_if_of_what_is_not_known_is_refused_by_name(world: World) -> None:
    world.tick()
    for changes, words in (
        (WhatIf(remove_clusters=(ClusterName("wets"),)), "west"),
        (WhatIf(add_nodes=(AddNodes(cluster=ClusterName("west"), nodes=1, chip="gpv"),)), GPU),
        (WhatIf(submits=(Submit(spec=world.spec(team=TeamName("labb"))),)), "lab"),
    ):
        with pytest.raises(NotFound, match=words):
            world.control.questions.what_if(changes)
    with pytest.raises(InvalidInput, match="0 changes"):
        WhatIf()


def test_teams_tell_what_they_and_those_below_them_hold(world: World) -> None:
    world.control.people.set_team(Team(name=LAB), world.admin)
    world.control.people.set_team(Team(name=VISION, parent=LAB, guarantee={GPU: 2.0}), world.admin)
    assert [view.use for view in world.control.people.teams()] == [None, None]
    world.submit(world.spec(replicas=3, team=VISION))
    world.tick(2)
    world.clock.advance(Settings().plan_s)
    world.tick()
    by_name = {view.team.name: view for view in world.control.people.teams()}
    for name in (LAB, VISION):
        use = by_name[name].use
        assert use is not None
        assert use.chips == {GPU: 3.0}
    assert by_name[VISION].team.guarantee == {GPU: 2.0}
