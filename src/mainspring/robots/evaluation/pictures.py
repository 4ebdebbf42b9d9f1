"""What people look at of an evaluation: a page of tables, plots, and films of failures."""

from __future__ import annotations

import io
from collections.abc import Iterable, Sequence

import av
import numpy as np

from mainspring.robots.environments.port import Pixels
from mainspring.robots.evaluation.playing import FILM_RATE_HZ, Played
from mainspring.robots.evaluation.report import EvaluationReport, interval_text, rate_text, score_text

PAGE, SUCCESS, ERRORS = "report.md", "success.png", "errors.png"
TASKS_DRAWN_MAX = 30  # Bars that a plot can name; all are in the tables.


def film(frames: Sequence[Pixels], *, rate_hz: float = FILM_RATE_HZ) -> bytes:
    """Returns pictures as an MP4 that browsers play.

    Args:
        frames: Of one size; an odd row or column is left out, as H.264 halves colours.
    """
    out = io.BytesIO()
    height, width = (edge - edge % 2 for edge in frames[0].shape[:2])
    with av.open(out, "w", format="mp4") as container:
        stream = container.add_stream("libx264", rate=round(rate_hz))
        stream.width, stream.height, stream.pix_fmt = width, height, "yuv420p"
        for pixels in frames:
            picture = av.VideoFrame.from_ndarray(np.ascontiguousarray(pixels[:height, :width]), format="rgb24")
            container.mux(stream.encode(picture))
        container.mux(stream.encode(None))
    return out.getvalue()


def files_of(report: EvaluationReport, played: Iterable[Played]) -> dict[str, bytes]:
    """Returns what is kept beside a report: its page, its plots where they can be drawn, its films."""
    films = {f"failure_{each.start.index:06d}.mp4": film(each.film) for each in played if each.film}
    plots = _plots(report)
    return {PAGE: page(report, [*plots, *films]).encode(), **plots, **films}


def page(report: EvaluationReport, shown: Sequence[str]) -> str:
    """Returns the report as Markdown.

    Args:
        shown: Names of the files it links to.
    """
    lines = [f"# {report.checkpoint}: {report.name}", ""]
    if report.success is not None:
        lines += [f"Success in `{report.environment}`, seed {report.seed}: **{rate_text(report.success)}**", ""]
        if report.score is not None:
            lines += [f"Mean score, the best of each episode: **{score_text(report.score)}**", ""]
        if report.robot:
            lines += [f"It played as robot `{report.robot}`.", ""]
        scored = bool(report.task_scores)
        lines.append("| task | starts | success | interval |" + " score | interval |" * scored)
        lines.append("|---|---|---|---|" + "---|---|" * scored)
        for name, each in report.tasks.items():
            row = f"| {_cell(name)} | {each.starts} | {each.rate:.3f} | {interval_text(each.interval)} |"
            if scored:
                score = report.task_scores[name]
                row += f" {score.mean:.3f} | {interval_text(score.interval)} |"
            lines.append(row)
        lines.append("")
    if report.left_out:
        lines += [f"Held-out episodes were left out: {_cell(report.left_out)}", ""]
    if report.held_out:
        lines += ["Error of actions on held-out episodes, root mean square, in their own units:", ""]
        lines += ["| task | states | policy | holding the last state |", "|---|---|---|---|"]
        for error in report.held_out:
            held = "" if error.hold_last_state is None else f"{error.hold_last_state:.4g}"
            lines.append(f"| {_cell(error.task)} | {error.states} | {error.policy:.4g} | {held} |")
        lines.append("")
    lines += [f"![{name}]({name})" if name.endswith(".png") else f"[{name}]({name})" for name in shown]
    return "\n".join(lines) + "\n"


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


def _plots(report: EvaluationReport) -> dict[str, bytes]:
    try:
        from matplotlib.figure import Figure
    except ImportError:  # Tables say the same.
        return {}
    drawn = {}
    tasks = dict(list(report.tasks.items())[:TASKS_DRAWN_MAX])
    if tasks:
        figure = Figure(figsize=(8, 1.2 + 0.4 * len(tasks)), layout="constrained")
        axes = figure.subplots()
        rates = [each.rate for each in tasks.values()]
        off = [[each.rate - each.interval.low, each.interval.high - each.rate] for each in tasks.values()]
        axes.errorbar(rates, range(len(tasks)), xerr=np.maximum(np.transpose(off), 0.0), fmt="o", capsize=3)
        axes.set(xlim=(-0.02, 1.02), xlabel="success rate, 95 % interval", ylim=(len(tasks) - 0.5, -0.5))
        axes.set_yticks(range(len(tasks)), [name[:60] for name in tasks])
        drawn[SUCCESS] = _png(figure)
    if report.held_out:
        shown = report.held_out[:TASKS_DRAWN_MAX]
        figure = Figure(figsize=(8, 1.2 + 0.4 * len(shown)), layout="constrained")
        axes = figure.subplots()
        axes.barh([each.task[:60] for each in shown], [each.policy for each in shown], label="policy")
        if shown[0].hold_last_state is not None:
            held = [each.hold_last_state or 0.0 for each in shown]
            axes.plot(held, range(len(shown)), "k|", markersize=14, label="holding the last state")
        axes.set(xlabel="error of actions on held-out episodes")
        axes.invert_yaxis()
        axes.legend()
        drawn[ERRORS] = _png(figure)
    return drawn


def _png(figure: object) -> bytes:
    out = io.BytesIO()
    figure.savefig(out, format="png", dpi=100)  # type: ignore[attr-defined]
    return out.getvalue()
