"""Replay tables: figures, sizes, pools and teams, and two replays side by side."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.text import Text

from mainspring.app.render.tables import Listing, ago, facts_grid, framed
from mainspring.simulator.results.comparison import Comparison, Difference
from mainspring.simulator.results.measures import Measures, Spread

TEAMS_SHOWN = 30


def replay_panel(measures: Measures, files: Sequence[str]) -> RenderableType:
    """Returns everything measured in a replay."""
    parts: list[RenderableType] = [framed(_facts(measures), f"{measures.workload} on {measures.fleet}")]
    if measures.sizes:
        parts += ["", _sizes(measures)]
    parts += ["", _pools(measures)]
    if len(measures.fairness.teams) > 1:
        parts += ["", _teams(measures)]
    if files:
        parts += ["", Text(f"Wrote {', '.join(files)}.")]
    return Group(*parts)


def _facts(measures: Measures) -> RenderableType:
    counts = measures.counts
    jobs = ", ".join(f"{count:,} {state}" for state, count in measures.jobs.items() if count)
    left = "; ".join(f"{count:,} {reason}" for reason, count in measures.left_out.items())
    causes = ", ".join(f"{count:,} for {limit}" for limit, count in counts.evicts.items())
    fair = measures.fairness
    none = "no job succeeded"
    facts = {
        "jobs": jobs + (f"; left out: {left}" if left else "") + (f"; {counts.refused} refused" * bool(counts.refused)),
        "time": f"{ago(measures.span_h * 3_600)} from the first submission to the end, {counts.plans:,} plans",
        "wait": _spread(measures.wait_s) if measures.sizes else none,
        "JCT": _spread(measures.jct_s) if measures.sizes else none,
        "slowdown": f"mean {measures.slowdown.mean:.2f}, median {measures.slowdown.median:.2f}, "
        f"95 % {measures.slowdown.p95:.2f}"
        if measures.sizes
        else none,
        "utilization": f"{measures.utilization:.1%}",
        "goodput": f"{measures.goodput:.1%} of allocated {measures.unit}-time",
        "preemptions": f"{measures.preemptions:,}" + (f" ({causes})" if causes else ""),
        "fairness": f"Jain's index {fair.jain:.3f}, deficit {fair.deficit_h:,.0f} {measures.unit}-hours",
        "dollars": f"{measures.dollars:,.0f} used, {measures.idle_dollars:,.0f} idle",
    }
    rare = {
        "lost": f"{counts.lost:,} attempts in {counts.outages:,} outages" if counts.outages else "",
        "resizes": f"{counts.resizes:,}" if counts.resizes else "",
        "moves": f"{counts.moves:,}, {counts.moved_gib:,.0f} GiB" if counts.moves else "",
        "ordered": f"{counts.nodes_bought:,} nodes" if counts.nodes_bought else "",
        "incomplete": f"{counts.plans_incomplete:,} plans ran out of work budget" if counts.plans_incomplete else "",
    }
    return facts_grid({**facts, **{label: text for label, text in rare.items() if text}})


def _spread(seconds: Spread) -> str:
    return f"mean {ago(seconds.mean)}, median {ago(seconds.median)}, 95 % {ago(seconds.p95)}, most {ago(seconds.max)}"


def _sizes(measures: Measures) -> RenderableType:
    made = Listing(f"{measures.unit.upper()}S", ">JOBS", ">MEAN WAIT", ">MEAN JCT", ">MEAN SLOWDOWN", "?>95 % SLOWDOWN")
    return made.add_rows(
        (
            *(each.size, f"{each.jobs:,}", ago(each.wait_s.mean), ago(each.jct_s.mean)),
            *(f"{each.slowdown.mean:.2f}", f"{each.slowdown.p95:.2f}"),
        )
        for each in measures.sizes
    )


def _pools(measures: Measures) -> RenderableType:
    made = Listing("CLUSTER", "CHIP", ">UNIT-HOURS", ">USED", ">UTILIZATION", "?>UNTIL LAST SUBMISSION", ">IDLE $")
    return made.add_rows(
        (
            *(pool.cluster, f"{pool.chip} ({pool.unit}s)", f"{pool.there_h:,.0f}", f"{pool.used_h:,.0f}"),
            *(f"{pool.utilization:.1%}", f"{pool.utilization_loaded:.1%}", f"{pool.idle_dollars:,.0f}"),
        )
        for pool in measures.pools
    )


def _teams(measures: Measures) -> RenderableType:
    made = Listing("TEAM", ">JOBS", ">SLOWDOWN", ">DUE", ">USED", ">HAD OF ITS DUE", "?>DEFICIT HOURS", "?>$")
    ranked = sorted(measures.fairness.teams, key=lambda share: (-share.used_h, share.team))
    for share in ranked[:TEAMS_SHOWN]:
        used = share.used_h / measures.span_h if measures.span_h else 0.0
        numbers = (f"{share.jobs:,}", f"{share.slowdown:.2f}", f"{share.due:,.1f}", f"{used:,.1f}")
        had = f"{share.had:.1%}" if share.due_h else "-"
        made.add_row(share.team, *numbers, had, f"{share.deficit_h:,.0f}", f"{share.dollars:,.0f}")
    left = len(ranked) - TEAMS_SHOWN
    return Group(made, f"and {left} more: --json lists them all") if left > 0 else made


def comparison_panel(comparison: Comparison, base: Measures, other: Measures, files: Sequence[str]) -> RenderableType:
    """Returns two replays side by side.

    Args:
        base: The first.
        other: The second.
    """
    made = Listing("FIGURE", f">{comparison.base}", f">{comparison.other}", ">CHANGE").add_rows(
        (each.name, _figure(each, each.base), _figure(each, each.other), _change(each))
        for each in comparison.differences
    )
    after = {each.size: each for each in other.sizes}
    sizes = Listing(f"{base.unit.upper()}S", ">JOBS", f">JCT {comparison.base}", f">JCT {comparison.other}").add_rows(
        (size.size, f"{size.jobs:,}", ago(size.jct_s.mean), ago(after[size.size].jct_s.mean))
        for size in base.sizes
        if size.size in after
    )
    pools = Listing(
        "CLUSTER", "CHIP", f">USED {comparison.base}", f">USED {comparison.other}", ">IDLE HOURS", ">IDLE $"
    )
    before = {(pool.cluster, pool.chip): pool for pool in base.pools}
    for pool in other.pools:
        known = before.get((pool.cluster, pool.chip))
        used = f"{known.utilization:.1%}" if known else "-"
        idle = (f"{pool.there_h - pool.used_h:,.0f}", f"{pool.idle_dollars:,.0f}")
        pools.add_row(pool.cluster, pool.chip, used, f"{pool.utilization:.1%}", *idle)
    return Group(made, "", sizes, "", pools, Text(f"\nWrote {', '.join(files)}." if files else ""))


def _figure(each: Difference, value: float) -> str:
    match each.unit:
        case "s":
            return ago(value)
        case "h":
            return f"{value:,.1f} h"
        case "$":
            return f"{value:,.0f}"
        case "%":
            return f"{value:.1f} %"
        case _:
            return f"{value:,.0f}" if value == int(value) or abs(value) >= 100 else f"{value:.3f}"


def _change(each: Difference) -> Text:
    change = each.change
    if change is None or abs(change) < 5e-4:
        return Text("-")
    better = each.less_is_better is not None and (change < 0) == each.less_is_better
    return Text(f"{change:+.1%}", style="" if each.less_is_better is None else "green" if better else "red")
