"""One evaluation: a checkpoint in an environment, and on the held-out episodes of the view it learned from."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from mainspring.checkpoint import load
from mainspring.data import View, open_view
from mainspring.domain.errors import InvalidInput, NotAllowed, NotFound
from mainspring.domain.ids import JobId
from mainspring.domain.wire import Detail, Part
from mainspring.objects import ObjectStore
from mainspring.robots.environments.named import environment_named
from mainspring.robots.environments.port import EpisodeStart
from mainspring.robots.evaluation.acting import actor_of, chosen_robot
from mainspring.robots.evaluation.keeping import evaluation_name
from mainspring.robots.evaluation.pictures import files_of
from mainspring.robots.evaluation.playing import Played, play
from mainspring.robots.evaluation.report import (
    STARTS_MAX,
    EpisodeOutcome,
    EvaluationReport,
    TaskErrors,
    rate_of,
    rates_by_task,
    score_of,
    scores_by_task,
)
from mainspring.train.evaluate import TrainedPolicy, check_held_out, held_out_error, policy_from

USED = (Part.WEIGHTS, Part.OTHER)  # Of a checkpoint: an optimizer's state, the larger part, is not read.


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationRequest:
    """What is asked of a checkpoint.

    Args:
        job: Whose it is.
        step: Which of its steps.
        environment: One of `ENVIRONMENTS`, or a class of one's own; "" for held-out episodes alone.
        starts: How many episodes, 1 to `STARTS_MAX`.
        seed: Of the starts, and of the policy's noise.
        by: The job that evaluates, "" for none.
    """

    job: JobId
    step: int
    environment: str = ""
    starts: int = 100
    seed: int = 0
    by: str = ""

    def __post_init__(self) -> None:
        """Checks the numbers.

        Raises:
            InvalidInput: One is out of its range.
        """
        if not 1 <= self.starts <= STARTS_MAX or self.seed < 0:
            got = f"{self.starts} starts, seed {self.seed}"
            raise InvalidInput("evaluate a policy", got=got, wanted=f"1 to {STARTS_MAX} starts, a seed of at least 0")

    @property
    def name(self) -> str:
        """Returns the name that the evaluation is kept under."""
        return evaluation_name(self.environment, seed=self.seed, starts=self.starts)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Evaluated:
    """An evaluation before it is kept: its report, and the files beside it by name."""

    report: EvaluationReport
    files: dict[str, bytes]


def evaluate(
    store: ObjectStore,
    asked: EvaluationRequest,
    *,
    cache: Path,
    now_s: float,
    progress: Callable[[int], object],
) -> Evaluated:
    """Returns what a checkpoint is worth.

    Args:
        store: Where it lies, and the view that it learned from.
        cache: Folder for the view's bytes.
        now_s: When, in seconds since the Unix epoch.
        progress: Called with the number of finished episodes.

    Raises:
        NotFound: There is no such checkpoint or environment.
        InvalidInput: The policy does not fit the environment, a held-out task is longer than its prompts, or there is
            nothing to evaluate it on.
        DamagedData: The checkpoint does not hold together.
    """
    make = environment_named(asked.environment) if asked.environment else None  # Before gigabytes are read.
    checkpoint = load(store, asked.job, asked.step, USED)
    policy = policy_from(checkpoint.state, checkpoint.arrays)
    side = _held_out_side(store, checkpoint.state, cache)
    if side.view is not None:
        check_held_out(policy, side.view)  # Before episodes are played for hours.
    played: tuple[Played, ...] = ()
    robot = ""
    if make is not None:
        facts = make().facts()
        actor, robot = actor_of(policy, facts, seed=asked.seed), chosen_robot(policy, facts).robot.name
        starts = [EpisodeStart(seed=asked.seed, index=index) for index in range(asked.starts)]
        played = play(make, actor, starts, progress=progress)
    held_out = () if side.view is None else _errors_by_task(policy, side.view, seed=asked.seed)
    if not played and not held_out:
        step = "ask for a role that may read it" if side.left_out else "build the view with a hold-out"
        raise InvalidInput(
            "evaluate a policy",
            on=f"{asked.job}@{asked.step}",
            got=f"no environment, and {side.left_out or 'a view without held-out episodes'}",
            next_step=f"name one with --env, or {step}",
        )
    episodes = outcomes_of(played)
    report = EvaluationReport(
        job=asked.job,
        step=asked.step,
        name=asked.name,
        created_s=now_s,
        environment=asked.environment,
        seed=asked.seed,
        by=asked.by,
        robot=robot,
        success=rate_of(episodes) if episodes else None,
        tasks=rates_by_task(episodes),
        score=score_of(episodes),
        task_scores=scores_by_task(episodes),
        episodes=episodes,
        held_out=held_out,
        left_out=side.left_out,
    )
    files = files_of(report, played)
    return Evaluated(report=replace(report, files=tuple(sorted(files))), files=files)


def outcomes_of(played: Sequence[Played]) -> tuple[EpisodeOutcome, ...]:
    """Returns what is kept of episodes."""
    return tuple(
        EpisodeOutcome(index=each.start.index, task=each.task, solved=each.solved, steps=each.steps, score=each.score)
        for each in played
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _HeldOutSide:
    """What a view holds out.

    Args:
        view: None where that is nothing, or is left out.
        left_out: Why.
    """

    view: View | None = None
    left_out: str = ""


def _held_out_side(store: ObjectStore, facts: Detail, cache: Path) -> _HeldOutSide:
    """Returns what the view that a policy learned from holds out."""
    view_id = facts.get("view")
    if not isinstance(view_id, str) or " " in view_id:  # Of several sources the trainer itself tells held-out losses.
        return _HeldOutSide()
    try:
        return _HeldOutSide(view=open_view(store, view_id, cache, "holdout"))
    except NotFound:  # It holds nothing out, or was deleted.
        return _HeldOutSide()
    except NotAllowed as error:
        return _HeldOutSide(left_out=f"a view that may not be read: {error}")


def _errors_by_task(policy: TrainedPolicy, view: View, *, seed: int) -> tuple[TaskErrors, ...]:
    found = held_out_error(policy, view, seed=seed)
    return tuple(
        TaskErrors(task=task, states=error.states, policy=error.policy, hold_last_state=error.hold_last_state)
        for task, error in found.tasks.items()
    )
