"""Goodput bars: one a use, and the sum that says that nothing is missing."""

from __future__ import annotations

from collections.abc import Mapping

from rich.console import Group, RenderableType
from rich.text import Text

from mainspring.app.render.tables import Listing, ago
from mainspring.domain.answers import GoodputReport
from mainspring.domain.goodput import Goodput, TimeUse

BAR_COLUMNS = 30
_SECONDS_PER_HOUR = 3_600.0
USES: Mapping[TimeUse, tuple[str, str]] = {
    TimeUse.PRODUCTIVE: ("productive", "steps that nobody has to do again"),
    TimeUse.STARTUP: ("start-up", "from the grant until the first step"),
    TimeUse.COMPILE: ("compile", "the program compiles"),
    TimeUse.DATA: ("data", "a rank waits for its next batch"),
    TimeUse.SNAPSHOT: ("snapshot", "a rank is blocked by a snapshot"),
    TimeUse.RESTORE: ("restore", "a rank reads the state it resumes from"),
    TimeUse.REPEATED: ("repeated", "steps done before, and lost"),
    TimeUse.HANG: ("hang", "from the last step until the hang was seen"),
    TimeUse.STRAGGLER: ("straggler", "what slow ranks cost the others"),
    TimeUse.RESIZE: ("resize", "growing, shrinking, swapping a node"),
    TimeUse.RECOVERY: ("recovery", "idle after a failure"),
    TimeUse.WINDDOWN: ("wind-down", "last saves, until the nodes are free"),
}


def goodput_text(told: Goodput) -> str:
    """Returns the share of allocated time that was productive, and where the rest went, on one line."""
    if told.ratio is None:
        return "nothing allocated yet"
    rest = sorted(
        ((seconds, use) for use, seconds in _by_use(told).items() if use is not TimeUse.PRODUCTIVE), reverse=True
    )
    parts = [f"{USES[use][0]} {seconds / told.allocated_s:.1%}" for seconds, use in rest if seconds > 0]
    return f"{told.ratio:.1%} of {hours_text(told.allocated_s)}" + (f" ({', '.join(parts)})" if parts else "")


def goodput_table(told: Goodput, *, title: str) -> RenderableType:
    """Returns one row a use with its bar, the sum below, and what is counted beside."""
    made = Listing("USE", ">NODE-TIME", ">SHARE", "BAR", "?~WHAT IT IS")
    by_use = _by_use(told)
    whole_s = told.allocated_s or 1.0
    for use, (name, meaning) in USES.items():
        seconds = by_use[use]
        share = seconds / whole_s
        style = "green" if use is TimeUse.PRODUCTIVE else "yellow"
        made.add_row(name, hours_text(seconds), f"{share:.1%}", Text(_bar(share), style=style), meaning)
    sum_s = sum(by_use.values())
    law = (
        "= allocated"
        if abs(sum_s - told.allocated_s) <= 1e-6 * whole_s
        else f"of {hours_text(told.allocated_s)} allocated"
    )
    made.add_row("sum", hours_text(sum_s), f"{sum_s / whole_s:.1%}" if told.allocated_s else "-", law, "")
    ratio = "nothing allocated yet" if told.ratio is None else f"goodput {told.ratio:.1%}"
    beside = f"beside it: {ago(told.waited_s)} in the queue, preempted {_times(told.preemptions)}"
    return Group(Text(f"{title}: {ratio}", style="bold"), made, Text(beside))


def report_panel(report: GoodputReport, *, title: str) -> RenderableType:
    """Returns the ledger of many attempts, then one row a team and a cluster."""
    count = f"{report.attempts} attempt{'' if report.attempts == 1 else 's'}"
    if not report.complete:
        count = f"the newest {count}; older ones are left out"
    parts: list[RenderableType] = [goodput_table(report.whole, title=f"{title}, {count}")]
    for heading, ledgers in (("TEAM", report.teams), ("CLUSTER", report.clusters)):
        if ledgers:
            parts += ["", _rows(heading, ledgers)]
    return Group(*parts)


def _rows(heading: str, ledgers: Mapping[str, Goodput]) -> Listing:
    return Listing(heading, ">GOODPUT", ">NODE-TIME", "BAR", "?>QUEUED", "?>PREEMPTED").add_rows(
        (
            *(name, "-" if told.ratio is None else f"{told.ratio:.1%}", hours_text(told.allocated_s)),
            *(Text(_bar(told.ratio or 0.0), style="green"), ago(told.waited_s), str(told.preemptions)),
        )
        for name, told in ledgers.items()
    )


def _by_use(told: Goodput) -> dict[TimeUse, float]:
    return {use: told.seconds.get(use, 0.0) for use in USES}


def _bar(share: float) -> str:
    """Returns a bar of as many columns as the share, in eighths."""
    eighths = round(max(0.0, min(1.0, share)) * BAR_COLUMNS * 8)
    if eighths == 0:
        return "·" if share > 0 else ""
    return "█" * (eighths // 8) + ("", "▏", "▎", "▍", "▌", "▋", "▊", "▉")[eighths % 8]


def hours_text(node_s: float) -> str:
    """Returns an amount of node-time as people say it."""
    return f"{node_s:.1f} node-s" if node_s < _SECONDS_PER_HOUR else f"{node_s / _SECONDS_PER_HOUR:,.1f} node-h"


def _times(count: int) -> str:
    return {0: "never", 1: "once", 2: "twice"}.get(count, f"{count} times")
