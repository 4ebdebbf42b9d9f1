"""The evaluation verbs of the SDK, `lab.evaluations`: the same as `ms eval`."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import final

from mainspring.app.sdk.checkpoints import CheckpointFinder
from mainspring.app.sdk.lab import Lab
from mainspring.app.sdk.lab import job as job_spec
from mainspring.domain.answers import EvaluationRuleView, JobView, NewEvaluationRule
from mainspring.domain.answers.jobs import CHECKPOINT
from mainspring.domain.errors import InvalidInput, NotFound, Unavailable
from mainspring.domain.ids import JobId, TeamName
from mainspring.domain.job import LAB, JobKind, JobSpec, Tier
from mainspring.domain.life import JobState
from mainspring.robots.evaluation.keeping import (
    comparisons,
    evaluation_folder,
    evaluation_name,
    evaluations,
    find_evaluation,
    gates,
    keep_comparison,
    keep_evaluation,
    keep_gate,
)
from mainspring.robots.evaluation.report import (
    ComparisonReport,
    EvaluationReport,
    GateRecord,
    compared,
    comparison_gate,
    rate_gate,
)

WAIT_S_MAX = 24 * 3600.0
STARTS = 100  # The usual number: a rate of 0.9 is known to 6 points either way.


@final
class EvaluationVerbs:
    """What can be done to know what a lab's policies are worth. CHECKPOINT is "JOB" or "JOB@STEP".

    Args:
        lab: The lab.
    """

    def __init__(self, lab: Lab) -> None:
        self._lab = lab
        self._finder = CheckpointFinder(lab)

    def run(
        self,
        checkpoint: str,
        *,
        environment: str = "",
        starts: int = STARTS,
        seed: int = 0,
        again: bool = False,
        progress: Callable[[int], object] = lambda done: None,
    ) -> EvaluationReport:
        """Evaluates a checkpoint here and now, keeps the report with it, and returns it.

        Args:
            checkpoint: CHECKPOINT; the newest step without one.
            environment: One of `ms eval environments`, or FILE.py:CLASS; "" for held-out episodes alone.
            starts: How many episodes.
            seed: Of the starts, and of the policy's noise.
            again: Whether to evaluate anew what was evaluated before.
            progress: Called with the number of finished episodes.

        Raises:
            NotFound: There is no such checkpoint or environment.
            InvalidInput: The policy does not fit the environment, or there is nothing to evaluate it on.
        """
        from mainspring.robots.evaluation.run import EvaluationRequest, evaluate  # JAX, and perhaps a physics engine.

        job, step = self._newest(checkpoint)
        asked = EvaluationRequest(job=job, step=step, environment=environment, starts=starts, seed=seed)
        known = None if again else find_evaluation(self._finder.store, job, step, asked.name)
        if known is not None and known.environment == environment:
            return known
        cache = self._lab.home.cache / "views"
        made = evaluate(self._finder.store, asked, cache=cache, now_s=time.time(), progress=progress)
        keep_evaluation(self._finder.store, made.report, made.files)
        return made.report

    def run_on(
        self,
        checkpoint: str,
        on: str | Sequence[str],
        *,
        environment: str = "",
        starts: int = STARTS,
        seed: int = 0,
        team: TeamName = LAB,
        code: Path | None = None,
        timeout_s: float = WAIT_S_MAX,
        progress: Callable[[int], object] = lambda done: None,
    ) -> EvaluationReport:
        """Evaluates a checkpoint by a `batch` job of the lowest tier, and returns its report once it is kept.

        Args:
            checkpoint: As for `run`.
            on: As for `ms.job`: what it may run on.
            environment: As for `run`.
            starts: As for `run`.
            seed: As for `run`.
            team: Who is charged.
            code: Folder of the environment's code, for one of your own; None without.
            timeout_s: How long to wait; the job goes on.
            progress: As for `run`.

        Raises:
            NotFound: There is no such checkpoint or team.
            ImpossibleJob: No cluster could ever run it.
            Unavailable: It did not succeed, or not in time.
        """
        _check_own_file(environment, code)
        job, step = self._newest(checkpoint)
        words = [f"{job}@{step}", "--env", environment, "--starts", str(starts), "--seed", str(seed)]
        spec = replace(self._spec(f"evaluate-{job}", words, on, team), evaluates=f"{job}@{step}")
        made = self._lab.run(spec, code=code)

        def look(seen: JobView) -> None:
            progress(max(seen.step, 0))

        over = self._lab.wait(made.id, timeout_s=timeout_s, on_look=look)
        name = evaluation_name(environment, seed=seed, starts=starts)
        kept = over.result.get("kept", True)
        found = find_evaluation(self._finder.store, job, step, name) if kept else None
        if over.state is not JobState.SUCCEEDED or found is None:
            got = f"{over.state.value} {over.reason}".strip() if kept else "a report that could be kept nowhere"
            raise Unavailable("evaluate a checkpoint", on=f"{job}@{step}", got=got, next_step=f"ms logs {over.id}")
        return found

    def _spec(self, name: str, words: Sequence[str], on: str | Sequence[str], team: TeamName) -> JobSpec:
        """Returns what evaluates a checkpoint, the first of some words, as a job that gives way to all others."""
        command = ["python", "-m", "mainspring", "evaluate"]
        command += ["--objects", self._lab.home.objects_url(self._lab.home.config()), "--checkpoint", *words]
        return job_spec(name, command, on=on, kind=JobKind.BATCH.value, tier=Tier.OPPORTUNISTIC.value, team=team)

    def compare(
        self,
        first: str,
        second: str,
        *,
        environment: str,
        starts: int = STARTS,
        seed: int = 0,
        margin: float = 0.0,
        gate: str = "",
        progress: Callable[[int], object] = lambda done: None,
    ) -> ComparisonReport:
        """Compares two checkpoints on the same starts, keeps what came of it with the first, and returns it.

        Args:
            first: CHECKPOINT, the candidate.
            second: CHECKPOINT, what it is held against.
            environment: As for `run`.
            starts: As for `run`.
            seed: As for `run`.
            margin: By how much the first may be worse, 0 to 1: 0.02 is two points.
            gate: Name of a gate to keep it as; "" for none.
            progress: Called with the number of finished episodes of both.

        Raises:
            NotFound: See `run`.
            InvalidInput: See `run`; or the margin is out of its range.
        """
        if not environment:
            raise InvalidInput("compare two policies", got="no environment", wanted="one to play the same starts in")
        if not 0 <= margin < 1:
            got = f"a margin of {margin:g}"
            raise InvalidInput("compare two policies", got=got, wanted="0 to 1: 0.02 is two points")
        job, step = self._newest(first)
        pair = (f"{job}@{step}", "{}@{}".format(*self._newest(second)))
        if pair[0] == pair[1]:
            raise InvalidInput("compare two policies", got=f"{pair[0]} twice", wanted="two checkpoints")
        done = 0
        reports = []
        for each in pair:
            report = self.run(
                each,
                environment=environment,
                starts=starts,
                seed=seed,
                progress=lambda finished, before=done: progress(before + finished),  # type: ignore[misc]
            )
            reports.append(report)
            done += starts
            progress(done)
        found = compared(*reports, margin=margin, created_s=time.time())
        keep_comparison(self._finder.store, job, step, found)
        if gate:
            keep_gate(self._finder.store, job, step, comparison_gate(found, name=gate))
        return found

    def gate(
        self, checkpoint: str, *, name: str, at_least: float, environment: str, starts: int = STARTS, seed: int = 0
    ) -> GateRecord:
        """Judges a checkpoint by an evaluation that was made of it, keeps the verdict with it, and returns it.

        Args:
            checkpoint: CHECKPOINT; the newest step without one.
            name: The gate's.
            at_least: The success rate wanted, at 95 %.
            environment: Of the evaluation.
            starts: Of the evaluation.
            seed: Of the evaluation.

        Raises:
            NotFound: There is no such checkpoint, or no such evaluation of it.
            InvalidInput: The rate or the name is out of its range.
        """
        job, step = self._newest(checkpoint)
        wanted = evaluation_name(environment, seed=seed, starts=starts)
        report = find_evaluation(self._finder.store, job, step, wanted)
        if report is None:
            known = [each.name for each in evaluations(self._finder.store, job) if each.step == step]
            raise NotFound(
                "judge a checkpoint",
                on=f"{job}@{step}",
                got=f"no evaluation {wanted}",
                wanted=f"one of {', '.join(known[:10])}" if known else "one",
                next_step=f"ms eval {job}@{step} --env {environment or 'ENV'} --starts {starts} --seed {seed}",
            )
        found = rate_gate(report, at_least, name=name, decided_s=time.time())
        keep_gate(self._finder.store, job, step, found)
        return found

    def gates(self, checkpoint: str) -> tuple[GateRecord, ...]:
        """Returns what every gate says of a checkpoint, in order of name.

        Args:
            checkpoint: CHECKPOINT; the newest step without one.
        """
        return gates(self._finder.store, *self._newest(checkpoint))

    def ls(self, job: str = "") -> tuple[EvaluationReport, ...]:
        """Returns the evaluations of a job's checkpoints, newest step first; of all jobs without one.

        Args:
            job: A job's id or name, or an import's name.
        """
        wanted: Sequence[JobId] = (self._finder.job(job),) if job else self._finder.jobs()
        return tuple(report for each in wanted for report in evaluations(self._finder.store, each))

    def comparisons(self, job: str) -> tuple[ComparisonReport, ...]:
        """Returns the comparisons of a job's checkpoints with others, newest step first.

        Args:
            job: A job's id or name, or an import's name.
        """
        return comparisons(self._finder.store, self._finder.job(job))

    def fetch(self, report: EvaluationReport, name: str) -> bytes:
        """Returns a file that is kept beside a report.

        Args:
            report: The report.
            name: One of its `files`.

        Raises:
            NotFound: There is no such file.
        """
        if name not in report.files:
            raise NotFound("fetch a file of an evaluation", on=name, wanted=f"one of {', '.join(report.files)}")
        return self._finder.store.get(f"{evaluation_folder(report.job, report.step, report.name)}/{name}")

    def rule(
        self,
        name: str,
        job: str,
        *,
        environment: str = "",
        every: int = 0,
        every_s: float = 0.0,
        chips_max: int = 1,
        on: str | Sequence[str] = "cpu",
        starts: int = STARTS,
        seed: int = 0,
        team: TeamName = LAB,
        code: Path | None = None,
    ) -> EvaluationRuleView:
        """Has checkpoints of a job evaluated by themselves, in place of an earlier rule of that name.

        Each evaluation is a `batch` job of the lowest tier; the newest checkpoint comes first, and what waits for an
        older one is dropped.

        Args:
            name: The rule's.
            job: A job's id, or a name: then always its newest job.
            environment: As for `run`.
            every: Each so many of its durable checkpoints; 0 for by time.
            every_s: At most one in so many seconds; 0 for by number, and each one where that is 0 too.
            chips_max: All that wait or run together ask for no more.
            on: As for `ms.job`: what one may run on.
            starts: As for `run`.
            seed: As for `run`.
            team: Who is charged.
            code: Folder of the environment's code, for one of your own; None without.

        Raises:
            NotFound: There is no such job, team or environment.
            InvalidInput: A field is out of its range.
        """
        _check_own_file(environment, code)
        lab = self._lab
        words = [CHECKPOINT, "--env", environment, "--starts", str(starts), "--seed", str(seed)]
        spec = replace(self._spec(name, words, on, team), code=lab.take_code(code))
        each = every if every or every_s else 1
        asked = NewEvaluationRule(job=job, every=each, every_s=every_s, chips_max=chips_max, spec=spec)
        return lab.set_evaluation_rule(name, asked)

    def rules(self) -> tuple[EvaluationRuleView, ...]:
        """Returns the rules, in order of name, each with its newest evaluations."""
        return self._lab.evaluation_rules()

    def remove_rule(self, name: str) -> EvaluationRuleView:
        """Ends a rule and returns it; evaluations that it started go on.

        Args:
            name: The rule's.

        Raises:
            NotFound: There is no such rule.
        """
        return self._lab.remove_evaluation_rule(name)

    def _newest(self, checkpoint: str) -> tuple[JobId, int]:
        found = self._finder.steps(checkpoint)
        return found.job, found.steps[0]


def _check_own_file(environment: str, code: Path | None) -> None:
    """Checks that a job finds an environment of one's own: its file comes along with a folder, or has a whole path."""
    place = Path(environment.rpartition(":")[0])
    if code is None and place.suffix == ".py" and not place.is_absolute():
        raise InvalidInput(
            "evaluate by a job",
            on=environment,
            got=f"no folder of code, which would leave {place} behind",
            wanted="the file where the job runs",
            next_step="name its folder with --code",
        )
