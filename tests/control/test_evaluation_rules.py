"""Rules of evaluations: the newest checkpoint first, what is superseded dropped, never more chips than said."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mainspring.control import LAB_ITSELF
from mainspring.control.service.evaluations.carrying import EvaluationStarter
from mainspring.control.service.evaluations.deciding import DurableSteps, decide
from mainspring.control.store.tokens import Caller
from mainspring.domain.answers import EvaluationRun, NewEvaluationRule
from mainspring.domain.errors import InvalidInput, NotAllowed, NotFound
from mainspring.domain.ids import ChipName, JobId, TeamName
from mainspring.domain.job import LAB, MAIN, JobKind, JobSpec, Option, Role, Tier
from mainspring.domain.life import JobState
from mainspring.domain.team import Team, TeamRole
from mainspring.domain.wire.events.jobs import (
    EvaluationDroppedEvent,
    EvaluationRefusedEvent,
    EvaluationStartedEvent,
)
from mainspring.domain.wire.events.leads import CheckpointDurableEvent

if TYPE_CHECKING:
    from tests.control.conftest import World

TRAINED = JobId("job-a")
GPU = ChipName("gpu")


def spec(*, chips: float = 1.0, team: TeamName = LAB) -> JobSpec:
    role = Role(name=MAIN, command=("evaluate", "{checkpoint}"), options=(Option(chip=GPU, chips=chips),))
    return JobSpec(name="eval", kind=JobKind.BATCH, tier=Tier.OPPORTUNISTIC, roles=(role,), team=team)


def rule(*, every: int = 1, every_s: float = 0.0, chips_max: int = 1, job: str = TRAINED) -> NewEvaluationRule:
    return NewEvaluationRule(job=job, every=every, every_s=every_s, chips_max=chips_max, spec=spec())


def durable(*steps: int) -> DurableSteps:
    return DurableSteps(job=TRAINED, count=len(steps), newest=steps)


def run_of(step: int, state: JobState, *, at_s: float = 0.0, trained: JobId = TRAINED) -> EvaluationRun:
    name = JobId(f"job-of-{step}")
    return EvaluationRun(job=name, trained=trained, step=step, state=state, submitted_s=at_s, result={})


def test_newest_checkpoint_is_evaluated_first_and_older_ones_never() -> None:
    assert decide(rule(), durable(10, 20, 30), (), 0.0).start == 30
    assert decide(rule(), durable(10, 20, 30), [run_of(30, JobState.SUCCEEDED)], 0.0).start is None
    assert decide(rule(), durable(), (), 0.0).start is None


def test_each_third_checkpoint_is_counted_from_the_first() -> None:
    third = rule(every=3)
    assert [decide(third, durable(*range(1, n + 1)), (), 0.0).start for n in range(1, 8)] == [
        *(None, None, 3),
        *(3, 3, 6, 6),
    ]


def test_what_waits_for_an_older_checkpoint_is_dropped_for_a_newer() -> None:
    waiting = run_of(10, JobState.QUEUED)
    assert decide(rule(), durable(10, 20), [waiting], 0.0).drop == (waiting,)
    assert decide(rule(), durable(10, 20), [waiting], 0.0).start == 20


def test_what_runs_goes_on_and_a_newer_one_waits_for_its_chips() -> None:
    running = run_of(10, JobState.RUNNING)
    assert decide(rule(), durable(10, 20), [running], 0.0).start is None
    assert decide(rule(chips_max=2), durable(10, 20), [running], 0.0).start == 20


def test_one_in_an_hour_is_the_newest_there_is_then() -> None:
    hourly = rule(every=0, every_s=3_600.0)
    before = run_of(10, JobState.SUCCEEDED, at_s=100.0)
    assert decide(hourly, durable(10, 20), [before], 3_000.0).start is None
    assert decide(hourly, durable(10, 20, 30), [before], 3_700.0).start == 30


@given(
    st.lists(st.integers(1, 60), unique=True, max_size=12).map(sorted),
    st.dictionaries(st.integers(1, 60), st.sampled_from(JobState), max_size=8),
    st.integers(1, 4),
    st.integers(1, 4),
)
def test_waiting_and_running_evaluations_never_ask_for_more_chips_than_the_rule_has(
    steps: list[int], runs: dict[int, JobState], every: int, chips_max: int
) -> None:
    known = [run_of(step, state) for step, state in runs.items()]
    live = (JobState.QUEUED, JobState.STARTING, JobState.RUNNING, JobState.STOPPING)
    held = [run for run in known if run.state in live]
    found = decide(rule(every=every, chips_max=chips_max), durable(*steps), known, 0.0)
    if found.start is not None:
        assert len(held) - len(found.drop) + 1 <= chips_max
        assert found.start in steps
        assert found.start not in runs
    assert all(run.state is JobState.QUEUED for run in found.drop)


@pytest.mark.parametrize(
    "fields", [{"every": 0}, {"every": 1, "every_s": 5.0}, {"chips_max": 0}, {"job": ""}, {"every_s": -1.0}]
)
def test_rule_out_of_range_is_refused(fields: dict[str, object]) -> None:
    with pytest.raises(InvalidInput):
        NewEvaluationRule(**{"job": TRAINED, "spec": spec(), **fields})  # type: ignore[arg-type]


def test_rule_whose_evaluation_could_never_have_its_chips_is_refused() -> None:
    with pytest.raises(InvalidInput, match="at most 4"):
        NewEvaluationRule(job=TRAINED, chips_max=4, spec=spec(chips=8))


# ---------------------------------------------------------------- on a controller


def starter(world: World) -> EvaluationStarter:
    control = world.control

    def stop(job: str, caller: Caller, reason: str) -> None:
        control.steering.stop(job, caller, reason=reason)

    return EvaluationStarter(control.store, world.clock, control.submit, stop, world.loop.write)


def saved(world: World, job: JobId, *steps: int) -> None:
    for step in steps:
        world.beat(job, (CheckpointDurableEvent.kind, {"step": step, "size_bytes": 1}))


def training(world: World) -> JobId:
    job = world.submit(world.spec("pick"))
    world.run(job)
    return job


def told(world: World, job: JobId, kind: type) -> list[object]:
    return [event.told for event in world.control.events(job) if isinstance(event.told, kind)]


def test_rule_submits_a_batch_job_that_begins_from_the_checkpoint_once(world: World) -> None:
    job = training(world)
    world.control.evaluations.put("nightly", rule(job="pick", chips_max=2))
    saved(world, job, 10)
    ours = starter(world)
    ours.step()
    ours.step()
    starter(world).step()  # Another leader.
    (shown,) = world.control.evaluations.rules()
    (run,) = shown.runs
    made = world.job(run.job).spec
    assert (run.trained, run.step, made.begins_from, made.tier) == (job, 10, f"{job}@10", Tier.OPPORTUNISTIC)
    assert made.roles[0].command == ("evaluate", f"{job}@10")
    assert told(world, job, EvaluationStartedEvent) == [EvaluationStartedEvent(rule="nightly", step=10, by=run.job)]


def test_jobs_under_keys_like_those_of_evaluations_are_none_of_a_rule(world: World) -> None:
    job = training(world)
    world.control.evaluations.put("nightly", rule(job=job))
    for key in (f"evaluation:nightly:{job}:last", "evaluation:nightly:", f"evaluation:nightly:{job}:{'9' * 30}"):
        world.submit(world.spec("mine"), key=key)  # As releases before let people.
    saved(world, job, 10)
    starter(world).step()
    (shown,) = world.control.evaluations.rules()
    assert [run.step for run in shown.runs] == [10]


def test_evaluation_that_waits_gives_way_to_a_newer_checkpoint(world: World) -> None:
    job = training(world)
    world.control.evaluations.put("nightly", rule(job=job))
    ours = starter(world)
    saved(world, job, 10)
    ours.step()
    saved(world, job, 20)
    ours.step()
    (shown,) = world.control.evaluations.rules()
    assert [(run.step, run.state) for run in shown.runs] == [(20, JobState.QUEUED), (10, JobState.CANCELLED)]
    (dropped,) = told(world, job, EvaluationDroppedEvent)
    assert (dropped.step, dropped.newer) == (10, 20)  # type: ignore[attr-defined]


def test_evaluation_that_nobody_may_submit_is_told_of_once(world: World) -> None:
    world.control.people.set_team(Team(name=TeamName(LAB)))
    world.control.people.set_team(Team(name=TeamName("arms"), parent=TeamName(LAB)))
    job = world.submit(world.spec("pick", team=TeamName("arms")))
    world.run(job)
    impossible = NewEvaluationRule(job=job, chips_max=64, spec=spec(chips=64, team=TeamName("arms")))
    world.control.evaluations.put("large", impossible)
    saved(world, job, 10)
    ours = starter(world)
    ours.step()
    ours.step()
    (refused,) = told(world, job, EvaluationRefusedEvent)
    assert refused.step == 10  # type: ignore[attr-defined]
    assert world.control.evaluations.rules()[0].runs == ()


def test_rule_is_its_teams_and_about_jobs_that_it_may_read(world: World) -> None:
    for name in ("arms", "legs"):
        world.control.people.set_team(Team(name=TeamName(LAB)))
        world.control.people.set_team(Team(name=TeamName(name), parent=TeamName(LAB)))
    arms = Caller(role=TeamRole.MEMBER, team=TeamName("arms"), holder="ada")
    legs = Caller(role=TeamRole.MEMBER, team=TeamName("legs"), holder="ben")
    job = world.submit(world.spec("pick", team=TeamName("arms")))
    asked = NewEvaluationRule(job=job, spec=spec(team=TeamName("arms")))
    with pytest.raises(NotAllowed):
        world.control.evaluations.put("mine", asked, legs)
    with pytest.raises(NotFound):
        world.control.evaluations.put("mine", NewEvaluationRule(job=job, spec=spec(team=TeamName("legs"))), legs)
    world.control.evaluations.put("mine", asked, arms)
    assert world.control.evaluations.rules(legs) == ()
    with pytest.raises(NotAllowed):
        world.control.evaluations.remove("mine", legs)
    assert world.control.evaluations.remove("mine", arms).name == "mine"
    assert world.control.evaluations.rules(LAB_ITSELF) == ()
    with pytest.raises(NotFound, match="mine"):
        world.control.evaluations.remove("mine", arms)
