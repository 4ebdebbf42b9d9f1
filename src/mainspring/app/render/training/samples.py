"""What ranks reported, in a terminal: a row a metric, and curves drawn with dots of Braille."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import isfinite
from typing import TYPE_CHECKING

from rich.console import Group, RenderableType
from rich.text import Text

from mainspring.app.render.tables import Listing
from mainspring.domain.answers import Event, JobSamples, MetricSeries

if TYPE_CHECKING:
    from mainspring.app.sdk.samples import Differing

COLUMNS, ROWS = 72, 14  # Of a plot: half of what most terminals show.
STYLES = ("cyan", "magenta")  # Of the first and the second job; told apart without colours too, by the legend's ends.
_SPARK = "▁▂▃▄▅▆▇█"
_SPARK_COLUMNS = 24
_LOST = "yellow"
_DOTS = ((0x01, 0x08), (0x02, 0x10), (0x04, 0x20), (0x40, 0x80))  # Of one letter, by row and column (Unicode, U+2800).
_WORDS_MAX = 48


@dataclass(frozen=True, slots=True, kw_only=True)
class _Dot:
    x: float
    y: float
    style: str


def value_text(value: float | None) -> str:
    """Returns a metric's value as people read it, "-" for none."""
    return "-" if value is None else f"{value:.6g}"


def metrics_table(told: JobSamples) -> RenderableType:
    """Returns a row a metric: how many samples, its newest, least and greatest value, its course."""
    if not told.series:
        return Text("Nothing was reported yet: session.report(step, {...}) does, and is written within seconds.")
    made = Listing("METRIC", ">SAMPLES", ">LAST", ">LEAST", ">MOST", "?COURSE", "?~NOTE")
    for one in told.series:
        numbers = (f"{one.count:,}", *map(value_text, (one.last, one.least, one.most)))
        made.add_row(_words(one.name), *numbers, _spark(one), _note(one))
    return made


def _note(one: MetricSeries) -> str:
    again = sum(one.lost)
    notes = [f"no finite number at step {one.not_finite[0]:,}" if one.not_finite else ""]
    notes.append("went back, and did steps again" if again else "")
    return "; ".join(note for note in notes if note)


def _spark(one: MetricSeries) -> str:
    kept = [value for value, lost in zip(one.value, one.lost, strict=True) if not lost]
    if not kept:
        return ""
    width = min(_SPARK_COLUMNS, len(kept))
    means = []
    for column in range(width):
        piece = kept[column * len(kept) // width : (column + 1) * len(kept) // width]
        means.append(sum(piece) / len(piece))
    least, most = min(means), max(means)
    scale = (len(_SPARK) - 1) / (most - least) if most > least else 0.0
    return "".join(_SPARK[round((mean - least) * scale)] for mean in means)


def curves_plot(name: str, curves: Sequence[tuple[str, MetricSeries]]) -> RenderableType:
    """Returns the curves of one metric of one or two jobs over their steps; steps that were done again are yellow.

    Args:
        name: The metric.
        curves: What each is called, and its points.
    """
    dots = [
        _Dot(x=float(step), y=value, style=_LOST if lost else STYLES[number % len(STYLES)])
        for number, (_, one) in enumerate(curves)
        for step, value, lost in sorted(zip(one.step, one.value, one.lost, strict=True), key=lambda each: not each[2])
        if isfinite(value)
    ]
    parts: list[RenderableType] = [Text(name, style="bold")]
    for number, (label, one) in enumerate(curves):
        last = f"  {label}: last {value_text(one.last)}, least {value_text(one.least)}, {one.count:,} samples"
        parts.append(Text(last, style=STYLES[number % len(STYLES)]))
    return Group(*parts, *_plotted(dots)) if dots else Group(*parts, Text("  no finite value"))


def _plotted(dots: Sequence[_Dot]) -> list[Text]:
    left, right = min(dot.x for dot in dots), max(dot.x for dot in dots)
    low, high = min(dot.y for dot in dots), max(dot.y for dot in dots)
    wide, tall = COLUMNS * 2 - 1, ROWS * 4 - 1
    masks = [[0] * COLUMNS for _ in range(ROWS)]
    styles = [[""] * COLUMNS for _ in range(ROWS)]
    for dot in dots:
        x = round((dot.x - left) / (right - left) * wide) if right > left else 0
        y = round((high - dot.y) / (high - low) * tall) if high > low else tall
        masks[y // 4][x // 2] |= _DOTS[y % 4][x % 2]
        styles[y // 4][x // 2] = dot.style
    lines = []
    for row in range(ROWS):
        label = value_text(high) if row == 0 else value_text(low) if row == ROWS - 1 else ""
        line = Text(f"{label:>12} ┤")
        for mask, style in zip(masks[row], styles[row], strict=True):
            line.append(chr(0x2800 + mask) if mask else " ", style=style)
        lines.append(line)
    lines.append(Text(f"{'':>12} └{'─' * COLUMNS}"))
    ends = f"{int(left):,}", f"{int(right):,}"
    lines.append(Text(f"{'':>14}{ends[0]}{'step':^{COLUMNS - len(ends[0]) - len(ends[1])}}{ends[1]}"))
    return lines


def comparison(
    names: tuple[str, str], differ: Sequence[Differing], told: tuple[JobSamples, JobSamples]
) -> RenderableType:
    """Returns how two jobs differ: in their specs, then in what came out."""
    parts: list[RenderableType] = []
    if differ:
        fields = Listing("FIELD", f"~{names[0]}", f"~{names[1]}")
        for one in differ:
            fields.add_row(one.field, _words(one.one), _words(one.other))
        parts.append(fields)
    else:
        parts.append(Text("Their specs are equal, but for names."))
    mine, theirs = ({one.name: one for one in each.series} for each in told)
    metrics = Listing("METRIC", f">LAST OF {names[0]}", f">LAST OF {names[1]}", ">DIFFERENCE", "?>LEAST", "?>LEAST")
    for name in sorted({*mine, *theirs}):
        ends = [each[name].last if name in each else None for each in (mine, theirs)]
        least = [each[name].least if name in each else None for each in (mine, theirs)]
        between = value_text(ends[1] - ends[0]) if ends[0] is not None and ends[1] is not None else "-"
        metrics.add_row(_words(name), *map(value_text, ends), between, *map(value_text, least))
    if metrics.rows:
        parts += ["", metrics]
    return Group(*parts)


def _words(value: object) -> str:
    said = "-" if value is None else " ".join(map(str, value)) if isinstance(value, list) else str(value)
    return said if len(said) <= _WORDS_MAX else said[: _WORDS_MAX - 1] + "…"


def stacks_panel(found: Sequence[Event]) -> RenderableType:
    """Returns where ranks stand, those at one place together, the most first."""
    parts: list[RenderableType] = []
    for one in found:
        parts += [Text(str(one.told), style="bold"), Text(str(one.detail.get("stacks", ""))), ""]
    return Group(*parts)
