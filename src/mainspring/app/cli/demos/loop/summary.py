"""The show's summary on one screen."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.table import Table

from mainspring.app.cli.demos.loop.outcome import LoopReport, PlaceResult
from mainspring.app.render.tables import facts_grid, framed

_MEASURED = ("place", "first release", "better release", "difference", "95 %")


def _row(place: str, seen: PlaceResult) -> tuple[str, ...]:
    points = (100 * seen.gain, 100 * seen.low, 100 * seen.high)
    difference, low, high = (f"{value:+.0f}" for value in points)
    return (place, f"{seen.before:.2f}", f"{seen.after:.2f}", f"{difference} points", f"{low} to {high}")


def summary(report: LoopReport) -> RenderableType:
    """Returns what came of the show.

    Args:
        report: What came of it.
    """
    table = Table(box=None, padding=(0, 2, 0, 0))
    for name in _MEASURED:
        table.add_column(name)
    table.add_row(*_row("shelf", report.shelf))
    table.add_row(*_row("table", report.table))
    walls = ", ".join(f"{name} {seconds:.0f} s" for name, seconds in report.wall_s.items())
    facts = {
        "arms": f"{report.arms}, each a real agent with a policy server of its own",
        "starts": f"{report.starts} at each place, the same for both releases",
        "came home": f"{report.clips} clips, {report.corrections} of them shown by a person and learned from",
        "failures": f"{report.failures} at the shelf before the better release",
        "fixed": f"{report.fixed_s:.0f} s from the first failure to the better release on every arm",
        "bad release": (
            f"on {report.bad_robots} of {report.arms} arms, back after {report.bad_s:.0f} s; "
            f"{report.lost_s:.0f} s of arms' time lost\n{report.bad_why}"
        ),
        "gates waived": "\n".join(f"{gate}: {why}" for gate, why in report.gates_waived.items()),
        "wall time": f"{walls}; together {sum(report.wall_s.values()):.0f} s",
    }
    return Group(framed(facts_grid(facts), "Mainspring demo: the loop"), table)
