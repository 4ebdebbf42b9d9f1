"""Which checkpoint a rule has evaluated next: a pure function of what is durable and of what it has started.

The newest checkpoint that the rule is about comes first. An older one whose evaluation has not begun is superseded by
it, and dropped.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from mainspring.domain.answers import EvaluationRun, NewEvaluationRule
from mainspring.domain.ids import JobId
from mainspring.domain.life import JobState, ended


@dataclass(frozen=True, slots=True, kw_only=True)
class DurableSteps:
    """What is durable of one job.

    Args:
        job: The job.
        count: How many checkpoints ever became durable.
        newest: Their newest steps in the order in which they became durable, newest last; at least as many as the rule
            counts, where there are.
    """

    job: JobId
    count: int
    newest: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationDecision:
    """What a rule wants done.

    Args:
        start: The step to evaluate, None for none.
        drop: Evaluations that wait and are superseded, oldest first.
    """

    start: int | None = None
    drop: tuple[EvaluationRun, ...] = ()


def decide(
    rule: NewEvaluationRule, durable: DurableSteps, runs: Sequence[EvaluationRun], now_s: float
) -> EvaluationDecision:
    """Returns what a rule wants done now.

    Args:
        runs: What it has started, of any job.
        now_s: In seconds since the Unix epoch.
    """
    own = [run for run in runs if run.trained == durable.job]
    wanted = _wanted(rule, durable)
    if wanted is None or any(run.step == wanted for run in own):
        return EvaluationDecision()
    if rule.every_s and any(now_s - run.submitted_s < rule.every_s for run in own):
        return EvaluationDecision()
    waiting = [run for run in runs if run.state is JobState.QUEUED]
    live = [run for run in runs if not ended(run.state) and run.state is not JobState.QUEUED]
    superseded = sorted((run for run in waiting if run.trained == durable.job), key=lambda run: run.submitted_s)
    kept = len(live) + len(waiting) - len(superseded)
    if (kept + 1) * rule.chips_each > rule.chips_max:
        return EvaluationDecision()  # What waits may still begin before there is room for this one.
    return EvaluationDecision(start=wanted, drop=tuple(superseded))


def _wanted(rule: NewEvaluationRule, durable: DurableSteps) -> int | None:
    """Returns the newest step that the rule is about."""
    beyond = durable.count % rule.every if rule.every else 0
    return durable.newest[-1 - beyond] if len(durable.newest) > beyond else None
