"""Outcomes as pictures: use over time, completion times, slowdowns by size, teams. One colour a replay."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from mainspring.domain.errors import Unavailable
from mainspring.planner.facts.snapshot import Floats
from mainspring.simulator.results.measures import SIZES, Measures
from mainspring.simulator.results.steps import means
from mainspring.simulator.virtual.outcome import Outcome

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLOURS = ("#1f6fb4", "#d9772b")
QUIET = "#8a8f98"
BINS = 240
TEAMS_SHOWN = 24
_DPI = 130
_LOOK: Mapping[Any, Any] = {
    "font.family": "DejaVu Sans",  # Comes with matplotlib: the same letters on every machine.
    "font.size": 9.0,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#e6e8eb",
    "axes.titlesize": 10.0,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "legend.frameon": False,
}


def check_installed() -> None:
    """Checks that there is something to draw with.

    Raises:
        Unavailable: The package for it is not installed.
    """
    try:
        import matplotlib  # noqa: F401
    except ModuleNotFoundError as error:
        raise Unavailable(
            "draw plots", got="no package 'matplotlib'", next_step="pip install 'mainspring[plot]'"
        ) from error


def draw(outcomes: Mapping[str, tuple[Outcome, Measures]], folder: Path) -> tuple[Path, ...]:
    """Draws replays of one workload and returns the PNG files. Equal outcomes give equal bytes.

    Args:
        outcomes: One or two, by name.
        folder: Where the files go; it exists.

    Raises:
        Unavailable: The package for it is not installed.
    """
    check_installed()
    made = []
    with _look():
        for name, figure in (
            ("utilization", _utilization(outcomes)),
            ("completion", _completion(outcomes)),
            ("slowdown", _slowdown(outcomes)),
            ("teams", _teams(outcomes)),
        ):
            path = folder / f"{name}.png"
            figure.savefig(path, dpi=_DPI, metadata={"Software": None})
            made.append(path)
    return tuple(made)


@contextmanager
def _look() -> Iterator[None]:
    import matplotlib

    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(_LOOK)
        yield


def _figure(width: float, height: float) -> Figure:
    from matplotlib.figure import Figure as Canvas

    return Canvas(figsize=(width, height), layout="constrained")


def _of(outcomes: Mapping[str, tuple[Outcome, Measures]], name: str, what: str) -> str:
    return f"{name}: {what}" if len(outcomes) > 1 else what


def _utilization(outcomes: Mapping[str, tuple[Outcome, Measures]]) -> Figure:
    figure = _figure(8.0, 4.6)
    used, waiting = figure.subplots(2, 1, sharex=True, height_ratios=(2, 1))
    span_s = max(outcome.end_s - outcome.start_s for outcome, _ in outcomes.values())
    scale, unit = (86_400.0, "days") if span_s > 3 * 86_400 else (3_600.0, "hours")
    for colour, (name, (outcome, _)) in zip(COLOURS, outcomes.items(), strict=False):
        edges_s = np.linspace(outcome.start_s, max(outcome.end_s, outcome.start_s + 1.0), BINS + 1)
        at = (edges_s[:-1] + edges_s[1:]) / 2 / scale - outcome.start_s / scale
        pools = [row for row, pool in enumerate(outcome.pools) if pool.counts_cores == (outcome.unit == "core")]
        rooms = np.isin(outcome.room.whole("pool"), pools)
        uses = np.isin(outcome.use.whole("pool"), pools)
        there = means(outcome.room.time_s[rooms], outcome.room["amount"][rooms], edges_s)
        held = means(outcome.use.time_s[uses], outcome.use["amount"][uses], edges_s)
        used.fill_between(at, held, color=colour, alpha=0.22, linewidth=0)
        used.plot(at, held, color=colour, linewidth=1.2, label=_of(outcomes, name, "used"))
        used.plot(at, there, color=colour, linewidth=1.0, linestyle=(0, (4, 2)), label=_of(outcomes, name, "there"))
        size = outcome.want["size"] * outcome.want["count"]
        waiting.plot(at, means(outcome.want.time_s, size, edges_s), color=colour, linewidth=1.2, label=name)
    outcome = next(iter(outcomes.values()))[0]
    used.set_title(f"{outcome.unit.capitalize()}s in use")
    used.set_ylabel(f"{outcome.unit}s")
    used.set_ylim(bottom=0)
    used.legend(loc="lower right", bbox_to_anchor=(1.0, 1.0), ncols=2 * len(outcomes), borderaxespad=0.1)
    waiting.set_ylabel(f"{outcome.unit}s\nwaited for")
    waiting.set_xlabel(f"{unit} since the first submission")
    waiting.set_ylim(bottom=0)
    return figure


def _completion(outcomes: Mapping[str, tuple[Outcome, Measures]]) -> Figure:
    figure = _figure(8.0, 3.4)
    axes = figure.subplots(1, 2, sharey=True)
    for colour, (name, (outcome, _)) in zip(COLOURS, outcomes.items(), strict=False):
        jobs = outcome.jobs
        done, started = jobs.succeeded, np.flatnonzero(jobs.start_s < inf)
        label = name if len(outcomes) > 1 else "as replayed"
        _rising(axes[0], jobs.start_s[started] - jobs.submit_s[started], colour, label)
        _rising(axes[1], jobs.end_s[done] - jobs.submit_s[done], colour, label)
        if len(outcomes) == 1:
            _rising(axes[1], jobs.duration_s[done], QUIET, "with no wait at all")
    axes[0].set_title("From submission to start")
    axes[1].set_title("From submission to end")
    axes[0].set_ylabel("part of jobs")
    for each in axes:
        each.legend(loc="lower right")
    return figure


def _rising(axes: Axes, values_s: Floats, colour: str, name: str) -> None:
    if not len(values_s):
        return
    ordered = np.sort(np.maximum(values_s, 1.0))
    places = np.unique(np.linspace(0, len(ordered) - 1, 2_000).astype(np.int64))
    axes.step(ordered[places], (places + 1) / len(ordered), where="post", color=colour, linewidth=1.4, label=name)
    axes.set_xscale("log")
    ticks = ((1, "1 s"), (60, "1 min"), (3_600, "1 h"), (86_400, "1 d"), (864_000, "10 d"))
    axes.set_xticks([second for second, _ in ticks], [word for _, word in ticks])
    axes.minorticks_off()
    axes.set_ylim(0, 1.02)


def _slowdown(outcomes: Mapping[str, tuple[Outcome, Measures]]) -> Figure:
    figure = _figure(8.0, 3.2)
    axes = figure.subplots()
    known = {each.size: each.jobs for _, measures in outcomes.values() for each in measures.sizes}
    sizes = [size for size, _ in SIZES if size in known]
    width = 0.7 / len(outcomes)
    for place, (colour, (name, (_, measures))) in enumerate(zip(COLOURS, outcomes.items(), strict=False)):
        by_size = {each.size: each.slowdown for each in measures.sizes}
        at = np.arange(len(sizes)) + (place - (len(outcomes) - 1) / 2) * width
        mean = [by_size[size].mean if size in by_size else 1.0 for size in sizes]
        most = [by_size[size].p95 if size in by_size else 1.0 for size in sizes]
        axes.bar(at, mean, width * 0.9, color=colour, label=_of(outcomes, name, "mean"))
        axes.scatter(at, most, color=colour, marker="_", s=160, linewidths=2, label=_of(outcomes, name, "95 %"))
        for x, value in zip(at, mean, strict=True):
            axes.annotate(f"{value:.3g}", (x, value), (0, 2), textcoords="offset points", ha="center", fontsize=7)
    unit = next(iter(outcomes.values()))[0].unit
    axes.set_yscale("log")
    axes.set_ylim(bottom=1.0)
    axes.yaxis.set_major_formatter("{x:g}")
    axes.set_xticks(range(len(sizes)), [f"{size}\n{known[size]:,} jobs" for size in sizes])
    axes.set_title("Slowdown: from submission to end, over the time without a break")
    axes.set_xlabel(f"{unit}s a job asks for")
    axes.grid(visible=False, axis="x")
    axes.legend(loc="best")
    return figure


def _teams(outcomes: Mapping[str, tuple[Outcome, Measures]]) -> Figure:
    first = next(iter(outcomes.values()))[1]
    names = [share.team for share in sorted(first.fairness.teams, key=lambda share: (-share.used_h, share.team))]
    names = names[:TEAMS_SHOWN]
    figure = _figure(8.0, 1.2 + 0.26 * len(names) * max(1.0, len(outcomes) * 0.7))
    axes = figure.subplots()
    height = 0.7 / len(outcomes)
    at = np.arange(len(names))
    for place, (colour, (name, (_, measures))) in enumerate(zip(COLOURS, outcomes.items(), strict=False)):
        shares = {share.team: share for share in measures.fairness.teams}
        axes.barh(
            at + (place - (len(outcomes) - 1) / 2) * height,
            [shares[team].used_h / max(measures.span_h, 1e-9) if team in shares else 0.0 for team in names],
            height * 0.9,
            color=colour,
            label=_of(outcomes, name, "used"),
        )
    due = [next(share.due for share in first.fairness.teams if share.team == team) for team in names]
    axes.scatter(due, at, color="#22262b", marker="|", s=120, linewidths=1.8, label="due", zorder=3)
    axes.set_yticks(at, names)
    axes.invert_yaxis()
    axes.set_title("What teams used on average, and what was due to them")
    axes.set_xlabel(f"{first.unit}s")
    axes.grid(visible=False, axis="y")
    axes.legend(loc="lower right")
    return figure
