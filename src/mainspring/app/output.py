"""How answers look: rich tables for people, JSON for machines. Wherever chips are pretended, it says so."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence

from rich.console import Console, Group, RenderableType
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from mainspring.domain.codec import to_plain
from mainspring.domain.job import JobSpec
from mainspring.domain.life import JobState
from mainspring.domain.wire import AttemptView, ClusterView, Event, EventKind, Goodput, JobView, Why

CONSOLE = Console(highlight=False)
ERRORS = Console(stderr=True, highlight=False)
_COLOURS = {
    JobState.QUEUED: "yellow",
    JobState.STARTING: "cyan",
    JobState.RUNNING: "cyan",
    JobState.STOPPING: "yellow",
    JobState.SUCCEEDED: "green",
    JobState.FAILED: "red",
    JobState.CANCELLED: "dim",
}


def show(value: object, *, as_json: bool, look: Callable[[], RenderableType]) -> None:
    """Prints a value: as JSON on standard output for machines, else as `look` draws it.

    Args:
        value: A wire value, or a tuple of them.
        as_json: Whether a machine reads.
        look: Draws it for people.
    """
    if as_json:
        sys.stdout.write(json.dumps(to_plain(value), indent=2, ensure_ascii=False) + "\n")
    else:
        CONSOLE.print(look())


def table(*columns: str, title: str = "") -> Table:
    """Returns an empty table in the house's style.

    Args:
        columns: Headings; one that starts with ">" is right-aligned.
        title: Shown above it.
    """
    made = Table(title=title or None, box=None, header_style="bold", title_justify="left", pad_edge=False)
    for column in columns:
        made.add_column(
            column.removeprefix(">"), justify="right" if column.startswith(">") else "left", overflow="fold"
        )
    return made


def ago(seconds: float) -> str:
    """Returns a duration as people say it.

    Args:
        seconds: Its length.
    """
    if seconds < 60:
        return f"{seconds:.0f} s"
    if seconds < 3_600:
        return f"{seconds / 60:.0f} min"
    if seconds < 172_800:
        return f"{seconds / 3_600:.1f} h"
    return f"{seconds / 86_400:.0f} d"


def asks(spec: JobSpec) -> str:
    """Returns what a job asks for, one clause a role.

    Args:
        spec: The job's spec.
    """
    return "; ".join(
        " or ".join(f"{option.replicas} x {option.chips:g} {option.chip}" for option in role.options)
        for role in spec.roles
    )


def where(attempt: AttemptView) -> str:
    """Returns the cluster of an attempt, marked when its chips are pretended.

    Args:
        attempt: The attempt.
    """
    return f"{attempt.cluster} (simulated)" if attempt.simulated else attempt.cluster


def state_text(state: JobState) -> Text:
    """Returns a job's state in its colour.

    Args:
        state: The state.
    """
    return Text(state.value, style=_COLOURS[state])


def jobs_table(jobs: Sequence[JobView], *, now_s: float) -> RenderableType:
    """Returns one row a job.

    Args:
        jobs: Newest first.
        now_s: For ages.
    """
    if not jobs:
        return Text("No jobs yet. Try: ms run --on cpu -- python -c 'print(42)'")
    made = table("JOB", "NAME", "TEAM", "STATE", "ASKS", "WHERE", ">STEP", ">AGE", "REASON")
    for job in jobs:
        place = where(job.attempts[-1]) if job.attempts else "-"
        step = str(job.step) if job.step >= 0 else "-"
        age = ago(now_s - job.submitted_s)
        made.add_row(
            job.id, job.spec.name, job.spec.team, state_text(job.state), asks(job.spec), place, step, age, job.reason
        )
    return made


def job_panel(job: JobView, events: Sequence[Event], *, now_s: float) -> RenderableType:
    """Returns everything about one job on a screen.

    Args:
        job: The job.
        events: Its events, oldest first.
        now_s: For ages.
    """
    facts = Table.grid(padding=(0, 2))
    facts.add_row("state", state_text(job.state) if not job.reason else Text(f"{job.state.value}: {job.reason}"))
    facts.add_row("asks", f"{asks(job.spec)}  ({job.spec.tier.value}, team {job.spec.team})")
    if job.step >= 0:
        metrics = ", ".join(f"{name} {value:.4g}" for name, value in sorted(job.metrics.items()))
        facts.add_row("step", f"{job.step}  {metrics}")
    if job.spec.code.tree:
        commit = job.spec.code.commit[:12] or "no commit"
        facts.add_row("code", f"{job.spec.code.tree[:19]}  ({commit}{', with changes' if job.spec.code.dirty else ''})")
    for name, value in sorted(job.result.items()):
        facts.add_row(f"result {name}", f"{value:.4g}" if isinstance(value, float) else str(value))
    if job.goodput is not None:
        facts.add_row("goodput", goodput_text(job.goodput))
    attempts = table("ATTEMPT", "WHERE", "NODES", "STATE", ">GENERATION", ">RAN", ">COST", "REASON")
    for attempt in job.attempts:
        ran = (attempt.ended_s if attempt.ended_s is not None else now_s) - attempt.granted_s
        nodes = ", ".join(attempt.nodes[:4]) + (f" and {len(attempt.nodes) - 4} more" if len(attempt.nodes) > 4 else "")
        made = (attempt.id, where(attempt), nodes, attempt.state.value, str(attempt.generation))
        attempts.add_row(*made, ago(ran), f"${attempt.dollars:.4f}", attempt.reason)
    return Group(
        Panel(facts, title=f"{job.spec.name}  {job.id}", title_align="left"), attempts, "", events_table(events)
    )


def goodput_text(goodput: Goodput) -> str:
    """Returns the share of allocated time that was productive, and where the rest went.

    Args:
        goodput: The ledger.
    """
    whole = goodput.allocated_s or 1.0
    parts = (
        ("start-up", goodput.startup_s),
        ("recovery", goodput.recovery_s),
        ("repeated", goodput.repeated_s),
        ("checkpoint", goodput.checkpoint_s),
        ("wind-down", goodput.wind_down_s),
    )
    rest = ", ".join(f"{name} {seconds:.1f} s" for name, seconds in parts if seconds > 0)
    return f"{goodput.productive_s / whole:.1%} of {goodput.allocated_s:.1f} s" + (f" ({rest})" if rest else "")


def events_table(events: Sequence[Event], *, most: int = 30) -> RenderableType:
    """Returns the newest events.

    Args:
        events: Oldest first.
        most: How many to show.
    """
    made = table(">AT", "EVENT", "DETAIL")
    start_s = events[0].time_s if events else 0.0
    counted = [event for event in events if event.kind is not EventKind.CHECKPOINT_DURABLE]
    durable = [event for event in events if event.kind is EventKind.CHECKPOINT_DURABLE]
    shown = sorted([*counted, *durable[-1:]], key=lambda event: event.sequence)[-most:]
    for event in shown:
        detail = ", ".join(f"{name}={value}" for name, value in event.detail.items() if value != "")
        made.add_row(f"+{event.time_s - start_s:.1f} s", event.kind.value, detail[:300])
    return made


def why_panel(why: Why) -> RenderableType:
    """Returns the planner's words and every candidate it weighed.

    Args:
        why: The answer.
    """
    weighed = table("CLUSTER", "OPTION", "FITS", ">$/HOUR", ">$/USEFUL CHIP-HOUR", "VERDICT")
    for candidate in why.candidates:
        name = f"{candidate.cluster} (simulated)" if candidate.simulated else candidate.cluster
        option = f"{candidate.role}[{candidate.option}]"
        fits = Text("yes", style="green") if candidate.fits else Text("no", style="yellow")
        hourly, work = f"{candidate.dollars_per_hour:.2f}", f"{candidate.dollars_per_work:.2f}"
        weighed.add_row(name, option, fits, hourly, work, candidate.verdict)
    limit = f" [limit: {why.limit.value}]" if why.limit else ""
    return Group(Text(f"{why.job} is {why.state.value}{limit}: {why.summary}"), "", weighed)


def fleet_table(clusters: Sequence[ClusterView]) -> RenderableType:
    """Returns one row a cluster and chip type.

    Args:
        clusters: In name order.
    """
    made = table("CLUSTER", "ENGINE", "CHIP", ">NODES", ">READY", ">CHIPS", ">IN USE", ">$/CHIP-HOUR", "ANSWERS")
    for view in clusters:
        inventory = view.inventory
        name = f"{inventory.cluster} (simulated)" if inventory.simulated else inventory.cluster
        for chip in sorted({node.chip for node in inventory.nodes}):
            nodes = [node for node in inventory.nodes if node.chip == chip]
            ready = sum(node.condition.value == "ready" for node in nodes)
            used = sum(view.used_chip_milli.get(node.name, 0) for node in nodes) / 1_000
            price = f"{inventory.dollars_per_chip_hour.get(chip, 0.0):.2f}"
            counts = (str(len(nodes)), str(ready), str(sum(node.chips for node in nodes)), f"{used:g}")
            made.add_row(name, inventory.engine, chip, *counts, price, "yes" if view.answering else "no")
    return made
