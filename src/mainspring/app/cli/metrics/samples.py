"""`ms samples`, `ms compare`, `ms stacks`: what ranks reported step by step, how two jobs differ, where ranks stand."""

from __future__ import annotations

import csv
import sys
from typing import TYPE_CHECKING, Annotated

import typer

from mainspring.app import render
from mainspring.app.cli.arguments import Json, LabContext
from mainspring.app.cli.jobs import JobName
from mainspring.domain.answers import POINTS_MAX, JobSamples, MetricSeries
from mainspring.domain.errors import InvalidInput, NotFound

if TYPE_CHECKING:
    from mainspring.app.sdk.lab import Lab

Metrics = Annotated[list[str] | None, typer.Option("--metric", help="Draw this one; repeat for more.", metavar="NAME")]
Points = Annotated[int, typer.Option(min=2, max=POINTS_MAX, help="Of each curve, about so many.")]


def samples(
    context: LabContext,
    name: JobName,
    metric: Metrics = None,
    beside: Annotated[str, typer.Option("--compare", help="Draw this job's beside it.", metavar="JOB")] = "",
    attempt: Annotated[int | None, typer.Option(min=1, help="Only of this attempt.")] = None,
    points: Points = 1_000,
    as_csv: Annotated[bool, typer.Option("--csv", help="Print CSV for machines: a row a point.")] = False,
    as_json: Json = False,
) -> None:
    """Show what a job's ranks reported step by step, with steps that were done again.

    Names that begin with "time/" are measured for every program: seconds a step, and what they went into.
    """
    if as_csv and as_json:
        raise InvalidInput("show samples", got="--csv and --json", wanted="one of them")
    told = [_told(context.obj, job, metric, points, attempt) for job in (name, beside) if job]
    if as_json:
        render.show(told[0] if not beside else tuple(told), as_json=True)
    elif as_csv:
        _write_csv(told)
    elif not metric and not beside:
        render.show(told[0], look=lambda: render.metrics_table(told[0]))
    else:
        shown = metric or _common(told)
        if not shown:
            raise NotFound("compare samples", got="no metric that both have reported", next_step=f"ms samples {name}")
        names = (name, beside)
        for one in shown:
            curves = [(names[at], series) for at, each in enumerate(told) if (series := _named(each, one)) is not None]
            render.show(None, look=lambda one=one, curves=curves: render.curves_plot(one, curves))  # type: ignore[misc]


def compare(
    context: LabContext,
    name: JobName,
    other: Annotated[str, typer.Argument(help="Id or name of another.", metavar="JOB")],
    metric: Metrics = None,
    as_json: Json = False,
) -> None:
    """Show how two jobs differ: in what was asked for, in what came out, and in the course of their first metric."""
    from mainspring.app.sdk.samples import differences

    lab = context.obj
    differ = differences(lab.status(name), lab.status(other))
    told = (_told(lab, name, metric, 500, None), _told(lab, other, metric, 500, None))
    if as_json:
        render.show({"differences": tuple(differ), "samples": told}, as_json=True)
        return
    render.show(None, look=lambda: render.comparison((name, other), differ, told))
    for one in metric or _common(told)[:1]:
        curves = [(job, found) for job, each in zip((name, other), told, strict=True) if (found := _named(each, one))]
        render.show(None, look=lambda one=one, curves=curves: render.curves_plot(one, curves))  # type: ignore[misc]


def _told(lab: Lab, job: str, metric: list[str] | None, points: int, attempt: int | None) -> JobSamples:
    return lab.job_samples(job, metrics=",".join(metric or ()), points=points, attempt=attempt)


def _named(told: JobSamples, name: str) -> MetricSeries | None:
    return next((one for one in told.series if one.name == name), None)


def _common(told: list[JobSamples] | tuple[JobSamples, ...]) -> list[str]:
    """Returns the names of what all have reported themselves, a loss first; where there are none, of any."""
    from mainspring.samples import TIME_PREFIX

    shared = [name for name in told[0].names if all(name in each.names for each in told)]
    own = [name for name in shared if not name.startswith(TIME_PREFIX)] or shared
    return sorted(own, key=lambda name: (name != "loss", "loss" not in name, name))


def _write_csv(told: list[JobSamples]) -> None:
    written = csv.writer(sys.stdout)
    columns = ("attempt", "generation", "step", "time_s", "value", "lost")
    written.writerow(("job", "metric", *columns))
    for each in told:
        for one in each.series:
            points = zip(*(getattr(one, column) for column in columns), strict=True)
            written.writerows((each.job, _cell(one.name), *point) for point in points)


def _cell(name: str) -> str:
    """Returns a name that no spreadsheet takes for a formula."""
    return f"'{name}" if name[:1] in ("=", "+", "-", "@", "\t", "\r") else name


def stacks(
    context: LabContext,
    name: JobName,
    reason: Annotated[str, typer.Option(help="Why, for the audit log.", metavar="WORDS")] = "to see where it stands",
    as_json: Json = False,
) -> None:
    """Show where a job's ranks stand now: its lead asks each for its stacks, and puts equal ones together."""
    found = context.obj.stacks(name, reason=reason)
    render.show(found, as_json=as_json, look=lambda: render.stacks_panel(found))
