"""`ms fleet`, `ms history` and `ms gc`: what is, what was, and what leaves the store for the archive."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Annotated, Any

import typer

from mainspring.app import render
from mainspring.app.base.specs import TIME_FORM, time_from
from mainspring.app.cli.arguments import Json, LabContext
from mainspring.app.cli.jobs import JobName
from mainspring.domain import answers


def fleet(
    context: LabContext,
    at: Annotated[str, typer.Option(metavar="TIME", help=f"As it was then: {TIME_FORM}.")] = "",
    as_json: Json = False,
) -> None:
    """List clusters, chips and prices, and what is in use; or, at a time, what ran where, waited, and was closed.

    Jobs are known for good. Nodes, what was wrong with them, and who had paused or drained what are known for as long
    as events are kept (`keep` in config.yaml). Prices, and what slots a cluster with a queue of its own offered, are
    known of now alone; so is what others ran. Of archived jobs only the nodes that an attempt held last are.
    """
    if at:
        past = context.obj.fleet_at(at_s=time_from(at, now_s=time.time()))
        render.show(past, as_json=as_json, look=lambda: render.past_fleet_panel(past))
        return
    clusters = context.obj.fleet()
    render.show(clusters, as_json=as_json, look=lambda: render.fleet_table(clusters, now_s=time.time()))


def history(context: LabContext, name: JobName, as_json: Json = False) -> None:
    """Show a job's whole life, also long after: every attempt, where it ran, what it cost, and all that happened."""
    told = context.obj.history(name)
    render.show(told, as_json=as_json, look=lambda: render.job_panel(told.job, told.events, now_s=time.time()))
    if told.archived and not as_json:
        render.ERRORS.print("It is in the archive alone: its logs are gone.", style="dim")


def gc(
    context: LabContext,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would go.")] = False,
    as_json: Json = False,
) -> None:
    """Archive and remove now what is older than it is kept (`keep` in config.yaml); the server does so by itself.

    Jobs that have ended go to the archive first. Snapshots of code that no job names are listed with --dry-run.
    """
    done = context.obj.sweep(dry_run=dry_run)
    more = done
    while not dry_run and any(_counts(more).values()):
        more = context.obj.sweep()
        done = replace(done, **{name: count + _counts(more)[name] for name, count in _counts(done).items()})
    counts = ", ".join(f"{count} {_WORDS[name]}" for name, count in _counts(done).items() if count)
    told = f"{'Would go' if dry_run else 'Gone'}: {counts}." if counts else "Nothing is older than it is kept."
    told += "".join(f"\n  {key}" for key in done.snapshot_keys)
    told += f"\nNot asked for folders, as they did not answer: {', '.join(done.silent)}" if done.silent else ""
    render.show(done, as_json=as_json, look=lambda: told)


_WORDS = {
    "archived": "jobs into the archive",
    "jobs": "jobs out of the store",
    "events": "events of no job",
    "node_states": "states of nodes",
    "health_events": "health events",
    "closures": "closures of nodes",
    "node_repairs": "steps of repairs",
    "maintenance": "windows of maintenance",
    "rule_cases": "times that rules held",
    "plans": "plans",
    "tokens": "tokens that had ended",
    "allocations": "folders of allocations, with output of ranks",
    "samples": "files of samples",
    "snapshots": "snapshots of code",
}


def _counts(sweep: answers.Sweep) -> dict[str, Any]:
    return {name: getattr(sweep, name) for name in _WORDS}
