"""The lab on one screen: chips by cluster, who waits, the largest jobs, what wants a look."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from mainspring.app.render.tables import Listing, ago, gist
from mainspring.domain.answers import ClusterGlance, Glance, Health, HealthStatus, Incident, JobGlance
from mainspring.domain.job import Tier

BAR_COLUMNS = 24
CONCERNS_SHOWN = 8
BARS_FROM = 80  # Columns.
_AROUND = 12  # Lines that are none of a list's: headings, and the empty ones before them.
_ATTEMPTS_MANY = 3  # A job on its third attempt has been lost twice.
_GOODPUT_POOR, _YOUNG_S = 0.5, 3_600.0  # Of a job that has had time to get under way.
_TIER_STYLES = {Tier.CRITICAL: "magenta", Tier.STANDARD: "cyan", Tier.OPPORTUNISTIC: "blue"}
_TIER_MARKS = {Tier.CRITICAL: "#", Tier.STANDARD: "=", Tier.OPPORTUNISTIC: "-"}  # Told apart without colours too.
_OTHERS_MARK, _SHUT_MARK, _FREE_MARK = "o", "x", "."


@dataclass(frozen=True, slots=True, kw_only=True)
class Concern:
    """Something that wants a look.

    Args:
        grave: Whether somebody should look now.
        look: The command that tells more, "" for none.
    """

    grave: bool
    words: str
    look: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Top:
    """What is shown.

    Args:
        server: Where it was asked.
        status: How the server is.
        concerns: The gravest first.
    """

    server: str
    status: HealthStatus
    glance: Glance
    concerns: tuple[Concern, ...]


def concerns_of(
    glance: Glance, health: Health, incidents: Iterable[Incident], alerts: Iterable[Concern]
) -> tuple[Concern, ...]:
    """Returns what wants a look, the gravest first.

    Args:
        alerts: Of Prometheus.
    """
    silent = {one.cluster for one in glance.clusters if not one.answering}
    found = [
        Concern(grave=check.status is HealthStatus.FAILING, words=f"{check.name}: {check.words}", look="ms status")
        for check in health.checks
        if check.words and not any(cluster in check.name for cluster in silent)
    ]
    found += alerts
    for one in glance.clusters:
        if not one.answering:
            words = f"cluster {one.cluster} has not answered for {ago(one.silent_s)}"
            found.append(Concern(grave=True, words=words, look=f"ms cluster check {one.cluster}"))
    for each in incidents:
        where = f"{each.nodes[0]} of {each.cluster}" if each.node_count == 1 else f"{each.node_count} of {each.cluster}"
        told = f"{where}: {each.words} ({each.done})"
        found.append(Concern(grave=each.node_count > 1, words=told, look="ms health incidents"))
    if glance.failed:
        last, count = glance.failed[0], glance.failed_count
        words = f"{count} {'job' if count == 1 else 'jobs'} failed within the hour; the last, {last.name}: "
        found.append(Concern(grave=False, words=words + gist(last.reason), look=f"ms status {last.job}"))
    for job in glance.jobs:
        if job.attempt_number >= _ATTEMPTS_MANY:
            words = f"{job.name}, of {job.chips:g} chips, is on attempt {job.attempt_number}"
            found.append(Concern(grave=False, words=words, look=f"ms events {job.job}"))
    return tuple(sorted(found, key=lambda one: not one.grave))


def top_screen(top: Top, *, height: int | None, width: int, trouble: str = "") -> RenderableType:
    """Returns the screen.

    Args:
        height: Lines there are; None for as many as it takes.
        width: Columns there are.
        trouble: Why this is not what is so now, "" if it is.
    """
    glance = top.glance
    concerns = top.concerns[:CONCERNS_SHOWN]
    left = None if height is None else height - _AROUND - len(glance.clusters) - len(glance.queue) - len(concerns)
    jobs = glance.jobs if left is None else glance.jobs[: max(1, left)]
    parts: list[RenderableType] = [_head(top, trouble)]
    if concerns:
        parts += [Text(), _concerns(concerns, len(top.concerns) - len(concerns), looks=width >= BARS_FROM)]
    parts += [Text(), _clusters(glance.clusters, bar=width >= BARS_FROM), _legend() if width >= BARS_FROM else Text()]
    parts += [_queue(glance), Text()]
    shown = "" if len(jobs) == glance.running else f"; the {len(jobs)} largest of {glance.running}"
    parts.append(Text(f"Jobs that hold chips{shown}" if jobs else "No job holds chips.", style="bold"))
    if jobs:
        parts.append(_jobs(jobs))
    return Group(*parts)


def _head(top: Top, trouble: str) -> Text:
    at = time.strftime("%H:%M:%S", time.localtime(top.glance.at_s))
    planned = f"planned {ago(max(0.0, top.glance.at_s - top.glance.planned_s))} ago"
    head = Text(f"{top.server}  {at}  {planned}  ")
    head.append(top.status.value, style={HealthStatus.OK: "green"}.get(top.status, "bold red"))
    if trouble:
        head.append(f"\n{trouble}", style="bold red")
    return head


def _concerns(concerns: Sequence[Concern], more: int, *, looks: bool) -> RenderableType:
    grid = Table.grid(padding=(0, 2, 0, 0))
    grid.add_column(no_wrap=True, min_width=1)
    grid.add_column(overflow="ellipsis", no_wrap=True)
    if looks:
        grid.add_column(no_wrap=True, min_width=max(len(one.look) for one in concerns))
    for one in concerns:
        mark = Text("!", style="bold red") if one.grave else Text("-", style="yellow")
        grid.add_row(mark, Text(" ".join(one.words.split())), *([Text(one.look, style="dim")] if looks else []))
    if more:
        grid.add_row("", f"and {more} more")
    return grid


def _clusters(clusters: Iterable[ClusterGlance], *, bar: bool) -> RenderableType:
    listing = Listing(
        "CLUSTER", *(["CHIPS IN USE"] if bar else []), ">CHIPS", ">HEALTHY", ">HELD", "?>OTHERS", "?>CLOSED"
    )
    for one in clusters:
        name = f"{one.cluster} (simulated)" if one.simulated else str(one.cluster)
        listing.add_row(
            Text(name, style="" if one.answering else "red"),
            *([_bar(one)] if bar else []),
            f"{one.chips:g}",
            f"{one.chips_healthy:g}",
            f"{sum(one.chips_held.values()):g}",
            f"{one.chips_foreign:g}" if one.chips_foreign else "-",
            f"{one.nodes_closed} of {one.nodes}" if one.nodes_closed else "-",
        )
    return listing


def _bar(one: ClusterGlance) -> Text:
    """Returns what a cluster's chips are used for, in as many letters as `BAR_COLUMNS`; what is used shows at least."""
    uses = [(_TIER_MARKS[tier], _TIER_STYLES[tier], one.chips_held.get(tier.value, 0.0)) for tier in Tier]
    uses.append((_OTHERS_MARK, "yellow", one.chips_foreign))
    used = sum(chips for _, _, chips in uses)
    uses.append((_SHUT_MARK, "red", max(0.0, one.chips - max(one.chips_healthy, used))))
    bar = Text()
    for mark, style, chips in uses:
        columns = max(1, round(BAR_COLUMNS * chips / one.chips)) if chips and one.chips else 0
        bar.append(mark * min(columns, BAR_COLUMNS - len(bar)), style=style)
    bar.append(_FREE_MARK * (BAR_COLUMNS - len(bar)), style="dim")
    return bar


def _legend() -> Text:
    legend = Text()
    for tier in Tier:
        legend.append(f"{_TIER_MARKS[tier]} {tier.value}  ", style=_TIER_STYLES[tier])
    legend.append(f"{_OTHERS_MARK} others  ", style="yellow")
    legend.append(f"{_SHUT_MARK} closed  ", style="red")
    legend.append(f"{_FREE_MARK} free\n", style="dim")
    return legend


def _queue(glance: Glance) -> RenderableType:
    listing = Listing("QUEUE", ">JOBS", ">OLDEST", "?>KEPT")
    for one in glance.queue:
        oldest = "-" if one.oldest_s is None else ago(one.oldest_s)
        listing.add_row(one.tier.value, str(one.jobs), oldest, str(one.kept) if one.kept else "-")
    return listing


def _jobs(jobs: Iterable[JobGlance]) -> RenderableType:
    listing = Listing("?JOB", "NAME", "?TEAM", "?OWNER", "?TIER", "?CLUSTER", ">CHIPS", "?>FOR", ">STEP", ">GOODPUT")
    for one in jobs:
        poor = one.goodput is not None and one.goodput < _GOODPUT_POOR and one.held_s > _YOUNG_S
        listing.add_row(
            one.job,
            one.name + (" (stopping)" if one.stopping else ""),
            one.team,
            one.owner or "-",
            one.tier.value,
            one.cluster,
            f"{one.chips:g}",
            ago(one.held_s),
            str(one.step) if one.step >= 0 else "-",
            Text("-" if one.goodput is None or one.step < 0 else f"{one.goodput:.0%}", style="red" if poor else ""),
        )
    return listing
