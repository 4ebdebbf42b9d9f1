"""What people say of jobs, teams, clusters and nodes that are there: pause, drain, requeue, rank, resize."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from mainspring.control import Caller, Step
from mainspring.domain.answers import JobView, NewHold, NewPriority, NewSize, QueuePlace
from mainspring.domain.errors import Conflict, ImpossibleJob, InvalidInput, NotFound
from mainspring.domain.fleet import NodeCondition
from mainspring.domain.ids import JobId, NodeName, RoleName, TeamName
from mainspring.domain.job import LAB, Tier
from mainspring.domain.life import AttemptState, JobState
from mainspring.domain.plan import Limit
from mainspring.domain.team import Team, TeamRole
from mainspring.domain.wire import EXIT_PREEMPTED
from mainspring.planner import Policy

if TYPE_CHECKING:
    from tests.control.conftest import World

OPS = Caller(role=TeamRole.OPERATOR, team=LAB, holder="olga")
WHY = NewHold(reason="new firmware")
ARMS = TeamName("arms")


@pytest.fixture
def arms(world: World) -> World:
    """A lab with a team in it."""
    for name, parent in ((LAB, None), (ARMS, LAB)):
        world.control.people.set_team(Team(name=name, parent=parent))
    return world


def _saved(world: World, job: JobId, step: int = 7) -> None:
    """Lets a run that was asked to end save, and end."""
    world.beat(job, step=step, outcome=AttemptState.CANCELLED, reason="told to end")
    world.end_agents(job, exit_code=EXIT_PREEMPTED)
    world.tick(3)


def _kinds(world: World, job: JobId | None = None) -> list[str]:
    return [event.kind for event in world.control.events(job)]


def _where(view: JobView) -> tuple[str, ...]:
    return view.attempts[-1].nodes


def test_job_paused_while_it_runs_ends_saved_and_goes_on_when_it_is_resumed(world: World) -> None:
    job, other = world.submit(), world.submit()
    world.run(job)
    view = world.control.steering.pause(job, WHY, OPS)
    assert view.state is JobState.RUNNING
    assert str(view.hold) == "paused by olga: new firmware"
    world.tick()
    assert world.job(job).attempts[-1].state is AttemptState.STOPPING
    _saved(world, job)
    view = world.job(job)
    assert (view.state, view.step, view.reason) == (JobState.QUEUED, 7, "paused by olga: new firmware")
    world.tick(5)
    assert len(world.job(job).attempts) == 1
    assert world.job(other).attempts, "others start"
    why = world.control.questions.why(job)
    assert (why.limit, why.summary) == (Limit.PAUSED, "paused by olga: new firmware")
    assert world.control.questions.plan().waits[0].limit is Limit.PAUSED
    world.control.steering.resume(job, OPS)
    world.tick(2)
    assert [one.number for one in world.job(job).attempts] == [1, 2]
    assert world.register(job)[0].furthest_step == 7
    assert _kinds(world, job).count("job_paused") == _kinds(world, job).count("job_resumed") == 1
    assert [(line.holder, line.action) for line in world.control.people.audit()][-2:] == [
        ("olga", "pause a job"),
        ("olga", "resume a job"),
    ]


def test_job_paused_while_it_waits_does_not_start_and_keeps_its_place_in_line(world: World) -> None:
    world.submit(world.spec("others", replicas=4))
    first, second = world.submit(world.spec(replicas=4)), world.submit(world.spec(replicas=4))
    world.control.steering.pause(first, NewHold())
    world.tick(3)
    assert [world.job(one).state for one in (first, second)] == [JobState.QUEUED, JobState.STARTING]
    third = world.submit(world.spec(replicas=4))
    world.tick()
    world.control.steering.resume(first)
    world.control.steering.stop(second)
    world.tick(4)
    assert [len(world.job(one).attempts) for one in (first, third)] == [1, 0]


def test_pause_said_again_changes_nothing_and_ended_jobs_are_refused(world: World) -> None:
    job = world.submit()
    for _ in range(2):
        world.control.steering.pause(job, WHY, OPS)
    for _ in range(2):
        world.control.steering.resume(job, OPS)
    assert _kinds(world, job) == ["job_submitted", "job_paused", "job_resumed"]
    world.control.steering.stop(job)
    with pytest.raises(Conflict, match="ms run --again"):
        world.control.steering.pause(job, WHY, OPS)


def test_jobs_of_an_array_are_paused_together(world: World) -> None:
    job = world.submit(count=3)
    world.control.steering.pause(job, NewHold(), array=True)
    world.tick(2)
    assert {view.state for view in world.control.jobs(array=job)} == {JobState.QUEUED}
    world.control.steering.resume(job, array=True)
    world.tick(2)
    assert {view.state for view in world.control.jobs(array=job)} == {JobState.STARTING}


def test_team_paused_starts_nothing_and_runs_on_until_it_is_drained(arms: World) -> None:
    world = arms
    runs, other = world.submit(world.spec(team=ARMS)), world.submit(world.spec("other"))
    world.run(runs)
    world.control.pauses.pause_team(ARMS, WHY, OPS)
    waits = world.submit(world.spec("late", team=ARMS))
    world.tick(3)
    assert world.job(runs).state is JobState.RUNNING
    assert world.job(other).attempts
    assert world.control.questions.why(waits).summary == "team arms is paused by olga: new firmware"
    assert world.job(waits).reason == "team arms is paused by olga: new firmware"
    world.control.pauses.pause_team(ARMS, NewHold(drain=True), OPS)
    world.tick()
    assert world.job(runs).attempts[-1].state is AttemptState.STOPPING
    _saved(world, runs)
    assert world.job(runs).state is JobState.QUEUED
    assert {view.team.name: view.hold is not None for view in world.control.people.teams()} == {
        "arms": True,
        "lab": False,
    }
    world.control.pauses.resume_team(ARMS, OPS)
    world.tick(2)
    assert {world.job(one).state for one in (runs, waits)} == {JobState.STARTING}


def test_team_is_paused_with_the_team_above_it(arms: World) -> None:
    job = arms.submit(arms.spec(team=ARMS))
    arms.control.pauses.pause_team(LAB, WHY, OPS)
    arms.tick(2)
    assert arms.job(job).state is JobState.QUEUED
    arms.restart()  # Another controller reads the same.
    arms.tick(8)
    assert arms.job(job).state is JobState.QUEUED


def test_cluster_drained_sends_what_runs_elsewhere_and_says_so_to_who_waits(world: World) -> None:
    job = world.submit()
    world.run(job)
    assert world.job(job).attempts[-1].cluster == "west"
    world.control.pauses.pause_cluster("west", NewHold(drain=True, reason="move"), OPS)
    world.tick()
    wide = world.submit(world.spec("wide", replicas=4))
    _saved(world, job)
    assert world.job(job).attempts[-1].cluster == "east"
    view = next(one for one in world.control.clusters() if one.inventory.cluster == "west")
    assert view.hold is not None
    assert {(node.condition, node.condition_owner) for node in view.inventory.nodes} == {
        (NodeCondition.CORDONED, "olga")
    }
    assert [str(hold) for hold in world.control.questions.why(wide).holds] == ["cluster west is paused by olga: move"]
    world.control.pauses.resume_cluster("west", OPS)
    world.tick(2)
    assert world.job(wide).attempts[-1].cluster == "west"


def test_node_drained_gets_nothing_until_it_is_released_and_others_go_on(world: World) -> None:
    jobs = [world.submit() for _ in range(2)]
    world.tick(2)
    for job in jobs:
        world.register(job)
        world.beat(job)
    node, other = (_where(world.job(job))[0] for job in jobs)
    world.control.pauses.drain("west", node, WHY, OPS)
    world.tick()
    assert [world.job(job).attempts[-1].state for job in jobs] == [AttemptState.STOPPING, AttemptState.RUNNING]
    _saved(world, jobs[0])
    assert _where(world.job(jobs[0]))[0] not in (node, other)
    many = [world.submit() for _ in range(8)]
    world.tick(3)
    assert node not in {name for job in many for one in world.job(job).attempts for name in one.nodes}
    world.control.pauses.undrain("west", node, OPS)
    world.tick(2)
    assert node in {name for job in many for one in world.job(job).attempts for name in one.nodes}
    assert [kind for kind in _kinds(world) if kind.startswith("hold")] == ["hold_placed", "hold_released"]


def test_what_is_not_there_cannot_be_held(world: World) -> None:
    world.tick()
    with pytest.raises(NotFound, match="west"):
        world.control.pauses.pause_cluster("wset", WHY, OPS)
    with pytest.raises(NotFound, match="did you mean"):
        world.control.pauses.drain("west", "west-9", WHY, OPS)
    with pytest.raises(NotFound):
        world.control.pauses.pause_team("nobody", WHY, OPS)
    assert world.control.pauses.undrain("west", "west-0", OPS).hold is None


def test_node_that_others_cordoned_stays_cordoned_when_it_is_undrained(world: World) -> None:
    world.west.inner.cordon(NodeName("west-0"), owner="night shift", reason="broken fan")
    world.tick()
    world.control.pauses.drain("west", "west-0", WHY, OPS)
    world.control.pauses.undrain("west", "west-0", OPS)
    view = next(one for one in world.control.clusters() if one.inventory.cluster == "west")
    assert view.inventory.nodes[0].condition_owner == "night shift"


def test_job_requeued_ends_saved_and_starts_anew_and_one_that_waits_goes_on_waiting(world: World) -> None:
    job = world.submit()
    world.control.steering.requeue(job, OPS)
    world.run(job)
    world.control.steering.requeue(job, OPS, reason="a new driver")
    world.tick()
    attempt = world.job(job).attempts[-1]
    assert (attempt.state, attempt.reason) == (AttemptState.STOPPING, "requeued by olga: a new driver")
    _saved(world, job)
    assert [one.number for one in world.job(job).attempts] == [1, 2]
    assert world.register(job)[0].furthest_step == 7
    world.beat(job)
    for _ in range(4):  # More than a job may lose: none of it counts.
        world.control.steering.requeue(job, OPS)
        world.tick()
        _saved(world, job)
        world.register(job)
        world.beat(job)
    assert world.job(job).state is JobState.RUNNING
    world.succeed(job)
    with pytest.raises(Conflict, match="ms run --again"):
        world.control.steering.requeue(job, OPS)


def _starts_after_room(world: World, jobs: list[JobId], running: JobId) -> JobId:
    """Which of some jobs starts when another makes room for one."""
    world.control.steering.stop(running)
    world.tick(4)
    (started,) = [job for job in jobs if world.job(job).attempts]
    return started


def _full(world: World) -> list[JobId]:
    """Fills the lab."""
    jobs = [world.submit(world.spec("fills", replicas=4)) for _ in range(2)]
    world.tick(2)
    return jobs


@pytest.mark.parametrize(
    ("said", "wanted"),
    [
        ({2: NewPriority(place=QueuePlace.FIRST)}, 2),
        ({0: NewPriority(place=QueuePlace.LAST)}, 1),
        ({2: NewPriority(tier=Tier.CRITICAL)}, 2),
        ({0: NewPriority(tier=Tier.OPPORTUNISTIC)}, 1),
        ({2: NewPriority(place=QueuePlace.FIRST), 1: NewPriority(place=QueuePlace.FIRST)}, 1),
    ],
)
def test_job_whose_priority_is_changed_starts_in_its_new_place(
    world: World, said: dict[int, NewPriority], wanted: int
) -> None:
    world.restart(policy=Policy(preempt=False))
    first, _ = _full(world)
    jobs = [world.submit(world.spec(f"waits-{index}", replicas=4)) for index in range(3)]
    world.tick()
    for index, asked in said.items():
        for _ in range(2):  # Said again it changes nothing.
            world.control.steering.rank(jobs[index], asked, OPS)
    assert sum(kind == "job_ranked" for kind in _kinds(world)) == len(said)
    assert _starts_after_room(world, jobs, first) == jobs[wanted]


def test_place_in_line_goes_back_to_when_a_job_was_submitted(world: World) -> None:
    first, _ = _full(world)
    jobs = [world.submit(world.spec("waits", replicas=4)) for _ in range(2)]
    world.control.steering.rank(jobs[1], NewPriority(place=QueuePlace.FIRST), OPS)
    view = world.control.steering.rank(jobs[1], NewPriority(place=QueuePlace.SUBMITTED), OPS)
    assert view.overrides is None
    assert _starts_after_room(world, jobs, first) == jobs[0]


def test_job_made_more_urgent_while_it_runs_is_no_longer_displaced(world: World) -> None:
    world.restart(policy=Policy(runtime_min_s=0.0, cooldown_s=0.0))
    jobs = _full(world)
    for job in jobs:
        world.register(job)
        world.beat(job)
        world.control.steering.rank(job, NewPriority(tier=Tier.CRITICAL), OPS)
    world.submit(world.spec("urgent", replicas=4, tier=Tier.CRITICAL))
    world.tick(3)
    assert {world.job(job).state for job in jobs} == {JobState.RUNNING}
    assert world.job(jobs[0]).spec.tier is Tier.STANDARD


ROLE = RoleName("role-0")


def _elastic(world: World, replicas: int = 4) -> JobId:
    job = world.submit(world.spec("elastic", replicas=replicas, replicas_min=1))
    world.run(job)
    return job


def test_elastic_job_that_runs_is_shrunk_and_grown_as_was_said_and_goes_on(world: World) -> None:
    job = _elastic(world)
    assert len(_where(world.job(job))) == 4
    world.control.steering.resize(job, NewSize(role=ROLE, least=2, most=2), OPS)
    world.tick(2)
    west = world.west.inner
    for name, order in world.orders_of(job).items():
        if name in world.west.stopped:
            for index in range(len(order.nodes)):
                west.end_agent(name, index, exit_code=0)
    world.tick(2)
    view = world.job(job)
    assert (view.state, len(view.attempts), len(_where(view))) == (JobState.RUNNING, 1, 2)
    world.tick(20)
    assert len(_where(world.job(job))) == 2, "nobody asked it to grow"
    world.control.steering.resize(job, NewSize(role=ROLE, least=3, most=3), OPS)
    world.tick(2)  # At once, though it was resized a moment ago.
    view = world.job(job)
    assert (len(view.attempts), len(_where(view))) == (1, 3)
    assert _kinds(world, job).count("attempt_resized") == 2
    assert view.spec.roles[0].options[0].replicas == 4, "what was submitted stays"


def test_attempt_grows_nowhere_that_was_closed_while_that_was_planned(world: World) -> None:
    world.tick()
    world.control.pauses.pause_cluster("east", NewHold())
    for index in (1, 2, 3):
        world.control.pauses.drain("west", f"west-{index}", NewHold())
    job = _elastic(world, replicas=2)
    assert len(_where(world.job(job))) == 1
    world.control.pauses.undrain("west", "west-1")
    world.control.steering.resize(job, NewSize(role=ROLE, least=2, most=2), OPS)
    for step in world.loop.steps():
        if step is Step.PLANNED:
            world.control.pauses.pause_cluster("west", NewHold())
    world.tick(2)
    assert len(_where(world.job(job))) == 1
    world.control.pauses.resume_cluster("west")
    world.tick(2)
    view = world.job(job)
    assert (len(view.attempts), len(_where(view))) == (1, 2)


def test_job_resized_while_it_waits_starts_with_the_new_size(world: World) -> None:
    job = world.submit(world.spec(replicas=2))
    for _ in range(2):
        world.control.steering.resize(job, NewSize(role=ROLE, least=1, most=1), OPS)
    world.tick(2)
    assert len(_where(world.job(job))) == 1
    assert _kinds(world, job).count("job_resized") == 1
    assert [role.ranks_min for role in world.register(job)[0].roles] == [1]


def test_job_of_a_fixed_size_takes_its_new_one_at_its_next_start(world: World) -> None:
    job = world.submit(world.spec(replicas=2))
    world.run(job)
    nodes = len(world.orders_of(job))
    world.control.steering.resize(job, NewSize(role=ROLE, least=3, most=3), OPS)
    world.tick(5)
    assert (len(world.job(job).attempts), len(world.orders_of(job))) == (1, nodes)
    world.control.steering.requeue(job, OPS)
    world.tick()
    _saved(world, job)
    assert sum(sum(order.chip_milli) for order in world.orders_of(job).values()) == 3_000


def test_size_that_cannot_be_is_refused_and_nothing_is_kept(world: World) -> None:
    world.tick()
    job = world.submit(world.spec(replicas=2, spares=1))
    for size, error in (
        (NewSize(role=ROLE, least=9, most=9), ImpossibleJob),
        (NewSize(role=ROLE, least=1, most=2), InvalidInput),  # A spare must be one of more than one.
        (NewSize(role=RoleName("other"), least=1, most=1), NotFound),
    ):
        with pytest.raises(error):
            world.control.steering.resize(job, size, OPS)
    assert world.job(job).overrides is None


def test_nothing_is_refused_as_impossible_while_a_cluster_has_never_answered(world: World) -> None:
    world.west.inner.answering = False
    world.tick()
    job = world.submit(world.spec("huge", replicas=5_000))
    world.control.steering.resize(job, NewSize(role=ROLE, least=9, most=9), OPS)
    world.west.inner.answering = True
    world.tick()
    with pytest.raises(ImpossibleJob):
        world.submit(world.spec("huge-too", replicas=5_000))
    world.west.inner.answering = False
    world.tick()
    with pytest.raises(ImpossibleJob):
        world.submit(world.spec("huge-again", replicas=5_000))


def test_loss_of_a_node_is_borne_by_a_job_that_is_to_be_larger_than_it_is(world: World) -> None:
    job = _elastic(world, replicas=3)
    world.submit(world.spec("fills", replicas=4))
    world.control.steering.resize(job, NewSize(role=ROLE, least=4, most=4), OPS)
    name, order = list(world.orders_of(job).items())[-1]
    world.clusters[world.job(job).attempts[-1].cluster].inner.end_agent(name, len(order.nodes) - 1, exit_code=1)
    world.tick()
    assert world.job(job).attempts[-1].state is AttemptState.RUNNING
