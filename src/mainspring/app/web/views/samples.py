"""What ranks of a job reported, as pictures: curves with what was lost, the time of steps, every rank over time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mainspring.app.render.events import event_words
from mainspring.app.sdk.samples import differences
from mainspring.app.web import tables
from mainspring.app.web.inside import NOT_FOUND, Refusal
from mainspring.app.web.tables import Grid, Heading
from mainspring.app.web.visit import Visit
from mainspring.domain.answers import Event, JobSamples, JobView, MetricSeries, RankTimes
from mainspring.domain.wire.events.jobs import StacksAskedEvent
from mainspring.domain.wire.events.leads import StacksSeenEvent
from mainspring.samples import TIME_PREFIX

CURVES_MAX = 12  # Drawn; the table below has all.
POINTS, STEP_POINTS = 400, 300  # A curve is that many pixels wide.
COLUMNS, ROWS = 96, 48
SLOW = 1.15  # Times the median of all: what people see on the map.
_STEP = f"{TIME_PREFIX}step"


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """What a page shows of a job's samples.

    Args:
        curves: For templates: a name, a title, what is drawn, a note.
        steps: Seconds a step over time, None before there are any.
        heat: Every rank over time, None likewise.
        grids: Of all metrics, and of how the job differs from the one beside it.
        wrong: Why there is nothing, "" where there is.
    """

    curves: Sequence[Mapping[str, Any]] = ()
    steps: Mapping[str, Any] | None = None
    heat: Mapping[str, Any] | None = None
    grids: Sequence[Grid] = ()
    wrong: str = ""


async def measured(visit: Visit, job: JobView) -> Measured:
    """Returns what ranks of a job reported, beside another's where the address names one."""
    if not job.attempts:
        return Measured()
    name = " ".join(visit.asked("beside").split())[:100]
    try:
        told = await visit.lab.job_samples(job.id, points=POINTS)
        ranks = await visit.lab.rank_times(job.id, columns=COLUMNS, rows=ROWS)
    except Refusal as refusal:  # What has left the store has left its samples behind.
        return Measured(wrong="" if refusal.status == NOT_FOUND else str(refusal.error))
    other, beside, wrong = None, None, ""
    if name:
        try:
            other = await visit.lab.status(name)
            beside = await visit.lab.job_samples(other.id, points=POINTS)
        except Refusal as refusal:
            wrong = str(refusal.error)
    return Measured(
        curves=_curves(told, beside, name),
        steps=_steps(told),
        heat=_heat(ranks),
        grids=[_metrics(told, beside, name), *([_differences(job, other)] if other is not None else [])],
        wrong=wrong,
    )


def stacks_of(events: Sequence[Event]) -> Sequence[Mapping[str, Any]] | None:
    """Returns where ranks stood when somebody asked last: nothing while their lead has not told; None before any did.

    Args:
        events: Oldest first.
    """
    asked = [number for number, event in enumerate(events) if event.kind == StacksAskedEvent.kind]
    if not asked:
        return None
    seen = [event for event in events[asked[-1] :] if event.kind == StacksSeenEvent.kind]
    return [
        {"at_s": event.time_s, "words": event_words(event), "stacks": str(event.detail.get("stacks", ""))}
        for event in seen
    ]


def _curves(told: JobSamples, beside: JobSamples | None, name: str) -> list[Mapping[str, Any]]:
    others = {one.name: one for one in beside.series} if beside is not None else {}
    own = [one for one in told.series if not one.name.startswith(TIME_PREFIX)]
    moving = [one for one in own if one.least != one.most or one.not_finite or one.name in others]
    moving.sort(key=lambda one: (one.name != "loss", "loss" not in one.name, one.name))
    made: list[Mapping[str, Any]] = []
    for number, one in enumerate(moving[:CURVES_MAX]):
        data: dict[str, Any] = {"kept": _points(one, lost=False), "lost": _points(one, lost=True), "back": _back(one)}
        data["broken"] = list(one.not_finite)
        if one.name in others:
            data["beside"], data["name"] = _points(others[one.name], lost=False), name
        notes = [f"last {_short(one.last)}"]
        notes += [f"no finite number at step {one.not_finite[0]:,}"] if one.not_finite else []
        notes += ["dashed: lost, and done again"] if any(one.lost) else []
        made.append({"name": f"curve-{number}", "title": one.name, "data": data, "note": ", ".join(notes)})
    return made


def _points(one: MetricSeries, *, lost: bool) -> list[list[float | None]]:
    """Returns steps and values of a curve, with a gap wherever another generation begins."""
    found: list[list[float | None]] = []
    before = None
    for attempt, generation, step, value, gone in zip(
        one.attempt, one.generation, one.step, one.value, one.lost, strict=True
    ):
        if gone != lost:
            continue
        if before not in (None, (attempt, generation)):
            found.append([step, None])
        before = (attempt, generation)
        found.append([step, value])
    return found


def _back(one: MetricSeries) -> list[list[float]]:
    """Returns where the curve went on after it went back."""
    turns = zip(one.attempt, one.generation, strict=True)
    before: tuple[int, int] | None = None
    furthest, found = -1, []
    for (attempt, generation), step, value in zip(turns, one.step, one.value, strict=True):
        if before not in (None, (attempt, generation)) and step <= furthest:
            found.append([float(step), value])
        before, furthest = (attempt, generation), max(furthest, step)
    return found


def _steps(told: JobSamples) -> Mapping[str, Any] | None:
    every = {one.name: one for one in told.series}
    one = every.get(_STEP)
    if one is None or len(one.step) < 2:
        return None
    waits = every.get(f"{TIME_PREFIX}data")
    data: dict[str, Any] = {"steps": _over_time(one), "ideal": told.ideal_step_s}
    if waits is not None and waits.most:
        data["data"] = _over_time(waits)
    ideal = f"as fast as its fastest tenth: {_short(told.ideal_step_s)} s" if told.ideal_step_s else ""
    return {"data": data, "note": f"last {_short(one.last)} s; dashed: {ideal}"}


def _over_time(one: MetricSeries) -> list[list[float]]:
    return [[round(at * 1_000), value] for at, value in zip(one.time_s, one.value, strict=True)]


def _heat(told: RankTimes) -> Mapping[str, Any] | None:
    cells: list[tuple[int, int, float]] = [
        (column, row, value)
        for column, values in enumerate(told.step_s)
        for row, value in enumerate(values)
        if value is not None
    ]
    if len(told.from_s) < 2 or not cells:
        return None
    ends = [*(first - 1 for first in told.first[1:]), told.first[-1]]
    if told.ranks > len(told.first):
        ends[-1] = told.ranks - 1
    names = [f"{first}" if first >= end else f"{first}-{end}" for first, end in zip(told.first, ends, strict=True)]
    values = sorted(value for _, _, value in cells)
    middle = values[len(values) // 2]
    worst = max(cells, key=lambda one: one[2])
    note = f"{told.ranks:,} ranks; {_short(middle)} s a step in the middle"
    if worst[2] > SLOW * middle:
        note += f", {_short(worst[2])} s at worst, by rank {names[worst[1]]}"
    data = {
        "cells": cells,
        "ranks": names,
        "times": [round(at * 1_000) for at in told.from_s],
        "least": values[0],
        "most": max(values[min(len(values) - 1, int(0.99 * len(values)))], SLOW * middle),
    }
    return {"data": data, "note": note}


def _metrics(told: JobSamples, beside: JobSamples | None, name: str) -> Grid:
    others = {one.name: one for one in beside.series} if beside is not None else {}
    rows = []
    for one in told.series:
        row = [tables.text(one.name), tables.number(one.count, ",d")]
        row += [tables.number(value, ".6g") for value in (one.last, one.least, one.most)]
        if beside is not None:
            row.append(tables.number(others[one.name].last if one.name in others else None, ".6g"))
        row.append(tables.text(f"no finite number at step {one.not_finite[0]:,}" if one.not_finite else ""))
        rows.append(tuple(row))
    headings = [
        Heading(key="metric", title="Metric"),
        Heading(key="samples", title="Samples", right=True, spare=True),
        Heading(key="last", title="Last", right=True),
        Heading(key="least", title="Least", right=True, spare=True),
        Heading(key="most", title="Most", right=True, spare=True),
    ]
    headings += [Heading(key="beside", title=f"Last of {name}", right=True)] if beside is not None else []
    headings.append(Heading(key="note", title="Note", wide=True))
    empty = "Nothing was reported yet: session.report(step, {...}) does, and is shown within seconds."
    return Grid(name="metrics", title="Metrics", headings=tuple(headings), rows=rows, empty=empty)


def _differences(job: JobView, other: JobView) -> Grid:
    rows = [
        (tables.text(one.field), tables.text(_words(one.one)), tables.text(_words(one.other)))
        for one in differences(job, other)
    ]
    headings = (
        Heading(key="field", title="Field"),
        Heading(key="this", title="Here", wide=True),
        Heading(key="other", title=f"There ({other.spec.name})", wide=True),
    )
    empty = "Their specs are equal, but for names."
    return Grid(name="differences", title="How they differ", headings=headings, rows=rows, empty=empty)


def _short(value: float | None) -> str:
    return "-" if value is None else f"{value:.4g}"


def _words(value: object) -> str:
    return "-" if value is None else " ".join(map(str, value)) if isinstance(value, list) else str(value)
