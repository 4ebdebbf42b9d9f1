"""Evaluations, comparisons and gates for people."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.text import Text

from mainspring.app.render.tables import Listing, ago, facts_grid, framed
from mainspring.domain.answers import EvaluationRuleView
from mainspring.robots.evaluation.report import (
    ComparisonReport,
    EvaluationReport,
    GateRecord,
    interval_text,
    points,
    rate_text,
    score_text,
)
from mainspring.robots.evaluation.statistics import GateVerdict

_COLOURS = {GateVerdict.PASSED: "green", GateVerdict.FAILED: "red", GateVerdict.UNDECIDED: "yellow"}
TASKS_SHOWN_MAX = 40  # Of a screen; the page that is kept has them all.


def verdict_text(verdict: GateVerdict) -> Text:
    """Returns a verdict in its colour."""
    return Text(verdict.value, style=_COLOURS.get(verdict, ""))


def report_panel(report: EvaluationReport, *, folder: str) -> RenderableType:
    """Returns one evaluation.

    Args:
        folder: Where its files are kept.
    """
    facts: dict[str, str | Text] = {}
    success = report.success
    if success is not None:
        facts["success"] = rate_text(success)
        if report.score is not None:
            facts["mean score"] = score_text(report.score)
        facts["environment"] = f"{report.environment}, seed {report.seed}"
        if report.robot:
            facts["as robot"] = report.robot
    if report.left_out:
        facts["left out"] = f"held-out episodes: {report.left_out}"
    facts["kept"] = f"{folder}: {', '.join(report.files)}"
    parts: list[RenderableType] = [facts_grid(facts)]
    tasks = list(report.tasks.items())[:TASKS_SHOWN_MAX]
    if len(tasks) > 1:
        scored = bool(report.task_scores)
        listing = Listing("~TASK", ">STARTS", ">SUCCESS", "INTERVAL", *[">SCORE", "SCORE'S INTERVAL"] * scored)
        for name, each in tasks:
            cells = [name, str(each.starts), f"{each.rate:.3f}", interval_text(each.interval)]
            if scored:
                score = report.task_scores[name]
                cells += [f"{score.mean:.3f}", interval_text(score.interval)]
            listing.add_row(*cells)
        parts += ["", listing]
    if report.held_out:
        errors = [
            (
                each.task,
                str(each.states),
                f"{each.policy:.4g}",
                "-" if each.hold_last_state is None else f"{each.hold_last_state:.4g}",
            )
            for each in report.held_out[:TASKS_SHOWN_MAX]
        ]
        parts += ["", Listing("~HELD-OUT TASK", ">STATES", ">ERROR", ">HOLDING STILL").add_rows(errors)]
    return framed(Group(*parts), report.checkpoint)


def reports_table(reports: Sequence[EvaluationReport], *, now_s: float) -> RenderableType:
    """Returns one row an evaluation."""
    rows = []
    scored = any(report.score is not None for report in reports)
    for report in reports:
        success, score = report.success, report.score
        error = max((each.policy for each in report.held_out), default=None)
        rows.append(
            (
                report.checkpoint,
                report.name,
                "-" if success is None else f"{success.rate:.3f}",
                "-" if success is None else interval_text(success.interval).removeprefix("95 % "),
                *["-" if score is None else f"{score.mean:.3f}"] * scored,
                "-" if error is None else f"{error:.4g}",
                ago(max(0.0, now_s - report.created_s)),
            )
        )
    headings = ("CHECKPOINT", "EVALUATION", ">SUCCESS", "95 % INTERVAL", *[">SCORE"] * scored, ">WORST ERROR", ">AGE")
    return Listing(*headings).add_rows(rows)


def comparison_panel(found: ComparisonReport) -> RenderableType:
    """Returns how two checkpoints compare."""
    pairs, margin = found.pairs, found.margin
    facts: dict[str, str | Text] = {
        "first": f"{found.first}: {rate_text(found.first_success)}",
        "second": f"{found.second}: {rate_text(found.second_success)}",
        "difference": f"{points(found.difference)} points, {interval_text(found.interval, of_points=True)}",
        "same starts": f"{pairs.starts}: the first alone solved {pairs.only_first}, the second {pairs.only_second}",
        "equally good": f"p = {found.p_value:.3g} (exact McNemar)",
        f"worse by {100 * margin:g} points at most": verdict_text(found.verdict),
    }
    if found.scores is not None:
        scores = found.scores
        facts["mean scores"] = f"{scores.first.mean:.3f} and {scores.second.mean:.3f}"
        told = f"{points(scores.difference)} points, {interval_text(scores.interval, of_points=True)}"
        facts["of the same starts"] = told
    if found.starts_needed is not None:
        facts["starts needed"] = f"about {found.starts_needed:,} for this margin, if they are equally good"
    return framed(facts_grid(facts), f"{found.first} and {found.second}")


def gates_table(found: Sequence[GateRecord], *, now_s: float) -> RenderableType:
    """Returns one row a gate."""
    return Listing("GATE", "CHECKPOINT", "VERDICT", "~WANTED", "~SEEN", ">AGE").add_rows(
        (
            *(each.name, each.checkpoint, verdict_text(each.verdict), each.wanted, each.seen),
            ago(max(0.0, now_s - each.decided_s)),
        )
        for each in found
    )


def rules_table(found: Sequence[EvaluationRuleView], *, now_s: float) -> RenderableType:
    """Returns one row a rule, with the newest of its evaluations."""
    rows = []
    for each in found:
        rule, newest = each.rule, each.runs[0] if each.runs else None
        rate = None if newest is None else newest.result.get("success_rate")
        last = "-" if newest is None else f"{newest.trained}@{newest.step} {newest.state.value}"
        score = None if newest is None else newest.result.get("score")
        last += f", success {rate:.3f}" if isinstance(rate, float) else ""
        last += f", score {score:.3f}" if isinstance(score, float) else ""
        rows.append(
            (
                each.name,
                rule.job,
                f"{rule.every} checkpoints" if rule.every else ago(rule.every_s),
                str(rule.chips_max),
                each.owner or "-",
                last,
                "-" if newest is None else ago(max(0.0, now_s - newest.submitted_s)),
            )
        )
    return Listing("RULE", "JOB", ">EVERY", ">CHIPS", "?OWNER", "NEWEST", ">AGE").add_rows(rows)
