"""What recipes would need on chips: tables, and a plot of layouts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from mainspring.app.render.tables import Listing, framed, size_text
from mainspring.domain.codec import to_plain
from mainspring.train.models.shapes import PolicyRecipe
from mainspring.train.plan.estimate import Change, Estimate
from mainspring.train.plan.figures import FiguresFrom, LargestTemporary
from mainspring.train.plan.targets import Target
from mainspring.train.recipe import Recipe
from mainspring.train.state.splitting import sizes_of

PLOT_COLUMNS, PLOT_ROWS = 60, 12
LARGEST_SHOWN = 10
_SAID_BY = {FiguresFrom.ANALYTIC: "formulas", FiguresFrom.COMPILED: "the compiler"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Planned:
    """The answer for one target.

    Args:
        estimates: Of the recipe as it was asked for; of several layouts the fastest first.
        change: The smallest change with which it would fit, None where it fits or none helps.
        chosen: Whether the layouts were chosen.
        said: Why the compiler did not confirm all of them.
        refused: Whether it refuses the recipe: what its program needs is more than the chip has.
        error: Why there is no answer.
    """

    target: Target
    estimates: tuple[Estimate, ...] = ()
    change: Change | None = None
    chosen: bool = False
    said: str = ""
    refused: bool = False
    error: str = ""

    @property
    def fits(self) -> bool:
        """Returns whether the recipe, or the best of its layouts, fits."""
        return bool(self.estimates) and self.estimates[0].fits and not self.refused


def plain_plan(planned: Planned) -> dict[str, object]:
    """Returns an answer for machines."""
    target = planned.target
    return {
        "target": target.name,
        "slices": target.slices,
        "devices": target.devices,
        "fits": planned.fits,
        "error": planned.error,
        "said": planned.said,
        "change": dict(planned.change.fields) if planned.change else None,
        "layouts": [_plain(each) for each in planned.estimates],
    }


def _plain(each: Estimate) -> dict[str, Any]:
    memory = each.figures.memory
    return {
        "layout": to_plain(each.recipe.mesh),
        "accumulate": each.recipe.accumulate,
        "batch_size": each.recipe.batch_size,
        "remat": _remat(each.recipe),
        "fits": each.fits,
        "usable": each.usable,
        "figures": to_plain(each.figures),
        "arguments": memory.arguments,
        "peak": memory.peak,
        "seconds": dict(each.seconds),
        "step_s": each.step_s,
        "binds": each.binds,
        "mfu": each.mfu,
        "samples_per_s": each.samples_per_s,
        "dollars_per_1000_steps": each.dollars_per_1000_steps,
    }


def _remat(recipe: Recipe) -> str:
    return "none" if isinstance(recipe.policy, PolicyRecipe) else recipe.policy.compute.remat.value


def plans_panel(planned: Sequence[Planned]) -> RenderableType:
    """Returns all answers: memory and speed of each target, what would make it fit, and the largest temporaries."""
    parts: list[RenderableType] = []
    if any(each.estimates for each in planned):
        parts += [_memory_table(planned), "", _speed_table(planned)]
    for each in planned:
        parts += _told(each)
    parts += ["", Text("Times are the least that the chips allow; nothing was started.", style="dim")]
    return Group(*parts)


def _name(planned: Planned, each: Estimate) -> tuple[str, str]:
    target = f"{planned.target.name} x {planned.target.slices}" if planned.target.slices > 1 else planned.target.name
    return target, layout_text(each.recipe, planned.target.devices)


def layout_text(recipe: Recipe, devices: int) -> str:
    """Returns a recipe's mesh, its parts and what it computes again, as short as it can be.

    Args:
        recipe: The recipe.
        devices: All that share it.
    """
    told = [f"{axis}={size}" for axis, size in sizes_of(recipe.mesh, devices).items() if size > 1] or ["one device"]
    told += [f"accumulate={recipe.accumulate}"] if recipe.accumulate > 1 else []
    return ",".join(told) + f" remat={_remat(recipe)}"


def _memory_table(planned: Sequence[Planned]) -> RenderableType:
    made = Listing(
        *("ON", "LAYOUT", "?>WEIGHTS", "?>MOMENTS", "?>MEAN", "?>BATCH", ">TEMPORARY", "?>PROGRAM", ">PEAK"),
        *(">USABLE", "FITS", "SAID BY"),
    )
    for one in planned:
        for each in one.estimates:
            need = each.figures.memory
            sizes = (need.parameters, need.optimizer, need.ema, need.batch, need.temporaries, need.code, need.peak)
            fits = Text("yes", style="green")
            if one.refused:
                fits = Text("refused", style="red")
            elif not each.fits:
                fits = Text(f"short by {size_text(need.peak - each.usable)}", style="red")
            texts = (size_text(size) if size else "-" for size in sizes)
            made.add_row(*_name(one, each), *texts, size_text(each.usable), fits, _SAID_BY[each.figures.said_by])
    return made


def _speed_table(planned: Sequence[Planned]) -> RenderableType:
    made = Listing(
        "ON", "LAYOUT", ">BATCH", ">BEST STEP", "BINDS", "?~TAKES", ">BEST MFU", ">SAMPLES/S", "?>$/1,000 STEPS"
    )
    for one in planned:
        for each in one.estimates:
            takes = ", ".join(f"{name} {_time_text(seconds)}" for name, seconds in each.seconds.items())
            dollars = "-" if each.dollars_per_1000_steps is None else f"{each.dollars_per_1000_steps:,.2f}"
            figures = (f"{each.recipe.batch_size:,}", _time_text(each.step_s), each.binds, takes, f"{each.mfu:.0%}")
            made.add_row(*_name(one, each), *figures, f"{each.samples_per_s:,.0f}", dollars)
    return made


def _time_text(seconds: float) -> str:
    return f"{seconds:.2f} s" if seconds >= 1 else f"{seconds * 1e3:.3g} ms"


def _told(planned: Planned) -> list[RenderableType]:
    """Returns what there is to say of a target beyond its rows."""
    parts: list[RenderableType] = []
    if planned.error:
        parts += ["", Text(f"{planned.target.name}: {planned.error}", style="red")]
    if planned.estimates and not planned.fits:
        told = "no sharing, recomputation or smaller batch makes it fit: it needs more or larger chips"
        if planned.change is not None:
            told = "it fits with " + " ".join(f"--set {name}={value}" for name, value in planned.change.fields.items())
        parts += ["", Text(f"{planned.target.name}: {told}", style="yellow")]
    if planned.said:
        parts += ["", Text(f"{planned.target.name}: the compiler did not confirm it: {planned.said}")]
    if planned.chosen and len(planned.estimates) > 1:
        parts += ["", layouts_plot(planned.estimates)]
    for each in planned.estimates[:1]:
        if each.figures.largest:
            parts += ["", _largest_table(each.figures.largest[:LARGEST_SHOWN])]
    return parts


def _largest_table(largest: Sequence[LargestTemporary]) -> RenderableType:
    return Listing(">TEMPORARY", "ARRAY", "MADE AT").add_rows(
        (size_text(each.size), each.shape, each.source or "-") for each in largest
    )


def layouts_plot(estimates: Sequence[Estimate]) -> RenderableType:
    """Returns the layouts as numbered points: step time to the right, memory upwards."""
    times = [each.step_s for each in estimates]
    peaks = [each.figures.memory.peak for each in estimates]
    cells = [[" "] * PLOT_COLUMNS for _ in range(PLOT_ROWS)]
    for number, (time, peak) in enumerate(zip(times, peaks, strict=True), 1):
        column = _place(time, times, PLOT_COLUMNS - 2)
        row = PLOT_ROWS - 1 - _place(peak, peaks, PLOT_ROWS - 1)
        for offset, letter in enumerate(str(number)):
            cells[row][min(column + offset, PLOT_COLUMNS - 1)] = letter
    most, least = size_text(max(peaks)), size_text(min(peaks))
    width = max(len(most), len(least))
    labels = [most.rjust(width), *[" " * width] * (PLOT_ROWS - 2), least.rjust(width)]
    lines = [f"{label} │{''.join(line)}" for label, line in zip(labels, cells, strict=True)]
    first, last = _time_text(min(times)), _time_text(max(times))
    lines += [f"{' ' * width} └{'─' * PLOT_COLUMNS}", f"{' ' * width}  {first}{last.rjust(PLOT_COLUMNS - len(first))}"]
    return framed(Text("\n".join(lines), no_wrap=True), "memory of a chip by step time, numbered as above")


def _place(value: float, among: Sequence[float], cells: int) -> int:
    low, high = min(among), max(among)
    return round((value - low) / (high - low) * cells) if high > low else 0
