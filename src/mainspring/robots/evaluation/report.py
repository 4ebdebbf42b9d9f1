"""What an evaluation found, as values that are kept with its checkpoint; comparisons of two, and gates."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from mainspring.domain.errors import InvalidInput
from mainspring.domain.ids import JobId
from mainspring.robots.evaluation.statistics import (
    GateVerdict,
    Interval,
    Pairs,
    at_least,
    difference_interval,
    mcnemar,
    mean_interval,
    not_worse,
    pairs_of,
    starts_needed,
    wilson,
)

STARTS_MAX = 100_000  # Of one evaluation: its report is 10 MB then.


@dataclass(frozen=True, slots=True, kw_only=True)
class EpisodeOutcome:
    """What came of one start.

    Args:
        index: Its number in the series of the evaluation's seed.
        task: What the policy was told.
        steps: Control steps.
        score: How much of the task was done at best, 0 to 1; None where the environment does not tell.
    """

    index: int
    task: str
    solved: bool
    steps: int
    score: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskErrors:
    """Root mean square errors of actions on held-out episodes of one task, in the actions' own units.

    Args:
        states: Held-out states that chunks were predicted for.
        hold_last_state: Of keeping the current state for the whole chunk; None where that means nothing.
    """

    task: str
    states: int
    policy: float
    hold_last_state: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class SuccessRate:
    """How often something was solved: the share, 0 to 1, with its Wilson interval at 95 %."""

    starts: int
    solved: int
    rate: float
    interval: Interval


@dataclass(frozen=True, slots=True, kw_only=True)
class MeanScore:
    """How much of something was done: the mean over starts, 0 to 1, with Student's interval at 95 %."""

    starts: int
    mean: float
    interval: Interval


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationReport:
    """One evaluation of one checkpoint.

    Args:
        name: Under which it is kept: the same question about the same checkpoint has the same.
        environment: "" where no episode was played.
        seed: Of the starts, and of the policy's noise.
        by: The job that evaluated, "" for none.
        robot: As which of its robots the policy played; "" for one without a name, or none.
        success: Of all episodes; None where none was played.
        tasks: Of the episodes of each task, in order of name.
        score: Of all episodes; None where the environment tells none.
        task_scores: Of the episodes of each task, in order of name; empty without scores.
        held_out: By task, in order of name; empty without held-out episodes.
        left_out: Why held-out episodes were not looked at though there may be some, "" where they were.
        files: Names of what is kept beside it.
    """

    job: JobId
    step: int
    name: str
    created_s: float
    environment: str = ""
    seed: int = 0
    by: str = ""
    robot: str = ""
    success: SuccessRate | None = None
    tasks: Mapping[str, SuccessRate] = field(default_factory=dict)
    score: MeanScore | None = None
    task_scores: Mapping[str, MeanScore] = field(default_factory=dict)
    episodes: tuple[EpisodeOutcome, ...] = ()
    held_out: tuple[TaskErrors, ...] = ()
    left_out: str = ""
    files: tuple[str, ...] = ()

    @property
    def checkpoint(self) -> str:
        """Returns which checkpoint it is of, as people name it."""
        return f"{self.job}@{self.step}"


def rate_of(episodes: Sequence[EpisodeOutcome]) -> SuccessRate:
    """Returns how often episodes were solved; there is at least one."""
    solved, starts = sum(episode.solved for episode in episodes), len(episodes)
    return SuccessRate(starts=starts, solved=solved, rate=solved / starts, interval=wilson(solved, starts))


def rates_by_task(episodes: Sequence[EpisodeOutcome]) -> dict[str, SuccessRate]:
    """Returns how often episodes of each task were solved, in order of its name."""
    names = sorted({episode.task for episode in episodes})
    return {name: rate_of([episode for episode in episodes if episode.task == name]) for name in names}


def score_of(episodes: Sequence[EpisodeOutcome]) -> MeanScore | None:
    """Returns how much was done on average; None where there is no episode, or not each has a score."""
    scores = [episode.score for episode in episodes if episode.score is not None]
    if not scores or len(scores) < len(episodes):
        return None
    return MeanScore(starts=len(scores), mean=math.fsum(scores) / len(scores), interval=mean_interval(scores))


def scores_by_task(episodes: Sequence[EpisodeOutcome]) -> dict[str, MeanScore]:
    """Returns how much of each task was done on average, in order of its name; nothing without scores."""
    names = sorted({episode.task for episode in episodes}) if score_of(episodes) else ()
    found = {name: score_of([episode for episode in episodes if episode.task == name]) for name in names}
    return {name: score for name, score in found.items() if score is not None}


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoreComparison:
    """The scores of two policies, start by start: the first is the candidate.

    Args:
        difference: The first's mean less the second's.
        interval: Student's of the starts' differences, at 95 %.
    """

    first: MeanScore
    second: MeanScore
    difference: float
    interval: Interval


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparisonReport:
    """Two policies on the same starts: the first is the candidate.

    Args:
        first: "JOB@STEP".
        name: Of the evaluations compared.
        difference: The first's success rate less the second's; its interval is at 95 %.
        p_value: Exact, of "both are equally good".
        margin: By how much the first may be worse.
        verdict: Whether it is not worse than that, at 95 %.
        starts_needed: How many starts most likely decide the margin; None where it is 0.
        scores: How much of the task each did; None where the environment does not tell.
    """

    first: str
    second: str
    name: str
    created_s: float
    first_success: SuccessRate
    second_success: SuccessRate
    pairs: Pairs
    difference: float
    interval: Interval
    p_value: float
    margin: float
    verdict: GateVerdict
    starts_needed: int | None
    scores: ScoreComparison | None = None


def compared(first: EvaluationReport, second: EvaluationReport, *, margin: float, created_s: float) -> ComparisonReport:
    """Returns what two evaluations on the same starts say of each other.

    Args:
        first: Of the candidate.
        margin: By how much it may be worse, 0 to 1.

    Raises:
        InvalidInput: They are not of the same starts, or the margin is out of its range.
    """
    if not 0 <= margin < 1:
        raise InvalidInput("compare two policies", on="margin", got=f"{margin:g}", wanted="0 to 1: 0.02 is two points")
    same = [(one.environment, one.seed, [each.index for each in one.episodes]) for one in (first, second)]
    if same[0] != same[1]:
        got = f"{first.name} and {second.name}"
        raise InvalidInput("compare two policies", got=got, wanted="the same environment, seed and starts")
    pairs = pairs_of([each.solved for each in first.episodes], [each.solved for each in second.episodes])
    return ComparisonReport(
        first=first.checkpoint,
        second=second.checkpoint,
        name=first.name,
        created_s=created_s,
        first_success=rate_of(first.episodes),
        second_success=rate_of(second.episodes),
        pairs=pairs,
        difference=pairs.difference,
        interval=difference_interval(pairs),
        p_value=mcnemar(pairs),
        margin=margin,
        verdict=not_worse(pairs, margin),
        starts_needed=starts_needed(pairs, margin) if margin else None,
        scores=_scores_compared(first.episodes, second.episodes),
    )


def _scores_compared(first: Sequence[EpisodeOutcome], second: Sequence[EpisodeOutcome]) -> ScoreComparison | None:
    """Returns how the scores of the same starts compare; None where one evaluation has none."""
    scores = (score_of(first), score_of(second))
    if scores[0] is None or scores[1] is None:
        return None
    off = [(one.score or 0.0) - (other.score or 0.0) for one, other in zip(first, second, strict=True)]
    return ScoreComparison(
        first=scores[0], second=scores[1], difference=math.fsum(off) / len(off), interval=mean_interval(off, least=-1.0)
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class GateRecord:
    """Whether a checkpoint may go on: what was wanted of it, what was seen, and what follows. A release asks for it.

    Args:
        name: Which gate; a checkpoint has one record of each, the newest.
        wanted: In words.
        seen: In words.
        evaluation: The name of the evaluation that it stands on.
    """

    checkpoint: str
    name: str
    verdict: GateVerdict
    wanted: str
    seen: str
    evaluation: str
    decided_s: float


def rate_gate(report: EvaluationReport, rate: float, *, name: str, decided_s: float) -> GateRecord:
    """Returns whether a checkpoint's success rate is, at 95 %, at least so much.

    Args:
        rate: Over 0, up to 1.

    Raises:
        InvalidInput: The rate is out of its range, or the evaluation played nothing.
    """
    success = report.success
    if not 0 < rate <= 1 or success is None:
        got = f"{rate:g}" if success is not None else "an evaluation without episodes"
        raise InvalidInput("judge a success rate", got=got, wanted="over 0, up to 1, of at least one start")
    return GateRecord(
        checkpoint=report.checkpoint,
        name=name,
        verdict=at_least(success.solved, success.starts, rate),
        wanted=f"a success rate of at least {rate:g} in {report.environment}",
        seen=rate_text(success),
        evaluation=report.name,
        decided_s=decided_s,
    )


def comparison_gate(found: ComparisonReport, *, name: str) -> GateRecord:
    """Returns whether a comparison lets its first checkpoint go on."""
    return GateRecord(
        checkpoint=found.first,
        name=name,
        verdict=found.verdict,
        wanted=f"not worse than {found.second} by more than {100 * found.margin:g} points",
        seen=f"{points(found.difference)} points, {interval_text(found.interval, of_points=True)}",
        evaluation=found.name,
        decided_s=found.created_s,
    )


def rate_text(success: SuccessRate) -> str:
    """Returns a success rate for people, with its interval."""
    return f"{success.rate:.3f} ({success.solved} of {success.starts}), {interval_text(success.interval)}"


def score_text(score: MeanScore) -> str:
    """Returns a mean score for people, with its interval."""
    return f"{score.mean:.3f} of 1, {interval_text(score.interval)}"


def interval_text(interval: Interval, *, of_points: bool = False) -> str:
    """Returns an interval for people.

    Args:
        of_points: Whether it is of a difference, in points of a hundred.
    """
    low, high = interval.low, interval.high
    return f"95 % {points(low)} to {points(high)}" if of_points else f"95 % {low:.3f} to {high:.3f}"


def points(difference: float) -> str:
    """Returns a difference of rates in points of a hundred, with its sign."""
    return f"{100 * difference:+.1f}"
