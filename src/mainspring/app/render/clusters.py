"""Cluster tables, and the findings of set-up checks."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from datetime import datetime

from rich.console import Group, RenderableType
from rich.text import Text

from mainspring.app.render.tables import Listing, ago, clock_text, facts_grid, framed, hold_text
from mainspring.app.sdk.clusters import ClusterShown
from mainspring.domain.answers import ClusterView, HeldView, NodeView, PastCluster, PastFleet
from mainspring.domain.fleet import Inventory, Node, NodeCondition, Offer
from mainspring.engines.common.hostlist import compress_hosts
from mainspring.engines.common.kind import CheckResult, Finding
from mainspring.engines.registry import ENGINES, kind_named

MARKS = {
    CheckResult.OK: Text("ok", style="green"),
    CheckResult.WARNING: Text("warning", style="yellow"),
    CheckResult.FAILED: Text("failed", style="bold red"),
    CheckResult.SKIPPED: Text("skipped", style="dim"),
}
CONDITIONS = {
    NodeCondition.READY: "green",
    NodeCondition.CORDONED: "yellow",
    NodeCondition.DOWN: "red",
    NodeCondition.COMING: "cyan",
}
_MARK_COLUMNS, _NAME_COLUMNS = 9, 22
_HEADINGS = (
    "EACH",
    ">FREE",
    "STATE",
    "?>CPUS",
    "?>GIB",
    "?PLACE",
    "?FEATURES",
    "~NOTE",
)  # Of nodes, beside their names.


def finding_lines(finding: Finding) -> Text:
    """Returns one finding on a line, and on the next what to do about it."""
    mark = MARKS[finding.standing].copy()
    mark.align("left", _MARK_COLUMNS)
    said = Text.assemble(mark, finding.name.ljust(_NAME_COLUMNS), finding.found)
    if finding.fix:
        said.append("\n" + " " * _MARK_COLUMNS + "-> ", style="dim").append(finding.fix, style="bold")
    return said


def held_table(held: Sequence[HeldView], *, now_s: float) -> RenderableType:
    """Returns one row for each allocation that is held.

    Args:
        held: By cluster.
        now_s: For how long ago.
    """
    made = Listing("ALLOCATION", "CLUSTER", "JOB", "STATE", "NODES", ">SEEN", "?ENDED BY")
    for one in held:
        state, seen = "over" if one.over else "runs", ago(max(0.0, now_s - one.since_s))
        made.add_row(
            one.allocation, one.cluster, one.job or "-", state, compress_hosts(one.nodes), seen, one.settled_by
        )
    return made


def past_fleet_panel(past: PastFleet) -> RenderableType:
    """Returns the fleet at a time: one row a cluster, and one an attempt that held nodes of it."""
    facts = {"jobs": f"{past.running} on nodes, {past.waiting} waiting"}
    if past.unread:
        facts["not read"] = f"{past.unread} more jobs of the archive, which had not ended"
    at = datetime.fromtimestamp(past.at_s).astimezone()
    said: list[RenderableType] = [framed(facts_grid(facts), f"The fleet at {at.isoformat(' ', timespec='seconds')}")]
    clusters = Listing("CLUSTER", ">NODES", ">IN USE", ">CLOSED", "~NOTE")
    for one in past.clusters:
        nodes = "not known" if one.nodes is None else str(one.nodes)
        clusters.add_row(one.cluster, nodes, str(one.used), str(one.closed), "; ".join(_closed(one)))
    attempts = Listing("JOB", "NAME", "?TEAM", "?>ATTEMPT", "CLUSTER", "?>SINCE", "~NODES")
    for each in past.attempts:
        where = (each.cluster, ago(past.at_s - each.granted_s), compress_hosts(each.nodes))
        attempts.add_row(each.job, each.name, each.team, str(each.number), *where)
    return Group(*said, *(table for table in (clusters, attempts) if table.rows))


def _closed(cluster: PastCluster) -> Iterator[str]:
    """Yields what kept work from a cluster, and from its nodes, those closed for one reason together."""
    if cluster.hold is not None:
        yield f"{'draining' if cluster.hold.drain else 'paused'} by {cluster.hold.by or 'somebody'}"
    alike: dict[tuple[str, str, str], list[str]] = {}
    for node in cluster.closed_nodes:
        alike.setdefault((node.condition.value, node.by, node.reason), []).append(node.node)
    for (condition, by, reason), nodes in alike.items():
        yield f"{compress_hosts(nodes)} {condition}{f' by {by}' if by else ''}{f': {reason}' if reason else ''}"


def clusters_table(clusters: Sequence[ClusterShown], *, now_s: float) -> RenderableType:
    """Returns one row a cluster.

    Args:
        clusters: In name order.
        now_s: For how long a cluster has been silent.
    """
    made = Listing("CLUSTER", "ENGINE", "?PLACES", "?>NODES", "?>READY", "CHIPS", ">FREE", "?~$/CHIP-HOUR", "ANSWERS")
    for shown in clusters:
        view = shown.view
        if view is None:
            made.add_row(_name(shown), shown.engine, _places(shown), "-", "-", "-", "-", "-", _silence(shown))
            continue
        nodes = view.inventory.nodes
        ready = sum(node.condition is NodeCondition.READY for node in nodes)
        chips: dict[str, int] = defaultdict(int)
        for node in nodes:
            chips[node.chip] += node.chips
        counts = ", ".join(f"{count} {chip}" for chip, count in sorted(chips.items()))
        free = sum(_free_milli(view, node) for node in nodes) / 1_000
        made.add_row(
            *(_name(shown), shown.engine, _places(shown), str(len(nodes)), str(ready), counts or "none", f"{free:g}"),
            _prices(view.inventory) or "-",
            _answers(view, now_s),
        )
    return made


def cluster_panel(shown: ClusterShown, *, now_s: float) -> RenderableType:
    """Returns one cluster in full: how it is set up, what it costs, and its nodes, equal ones on one row."""
    facts: dict[str, str | Text] = {"engine": shown.engine, "places": _places(shown)}
    if shown.settings is not None:
        told = kind_named(shown.engine).facts(shown.settings, ago)
        facts |= {label: value for label, value in told.items() if value}
    if shown.view is not None:
        facts["prices"] = f"{_prices(shown.view.inventory) or 'none'} a chip-hour"
        facts |= {f"offer {offer.name}": _offer(offer) for offer in shown.view.inventory.offers}
        facts["answers"] = _answers(shown.view, now_s)
        if shown.view.hold is not None:
            facts["held"] = hold_text(shown.view.hold, now_s=now_s)
    else:
        facts["answers"] = _silence(shown) + (f"; ms cluster check {shown.name} tells why" if shown.asked else "")
    panel = framed(facts_grid(facts), _name(shown))
    if shown.view is None or not shown.view.inventory.nodes:
        return panel
    return Group(panel, nodes_table(shown.view, now_s=now_s))


def _offer(offer: Offer) -> str:
    each = f"{offer.chips} {offer.chip} each, ${offer.dollars_per_chip_hour:g} a chip-hour{', spot' * offer.spot}"
    left = f"none for now: {offer.withheld}" if offer.withheld else f"up to {offer.nodes_max} more"
    return f"{left}; {each}, there in {ago(offer.lead_time_s)}"


def nodes_table(view: ClusterView, *, now_s: float) -> RenderableType:
    """Returns the nodes of a cluster, or its slots, those that are alike on one row.

    Args:
        view: What the server last saw.
    """
    alike: dict[tuple[str, ...], list[Node]] = defaultdict(list)
    avoided = {one.at.node: one for one in view.avoided}
    for node in view.inventory.nodes:
        used_milli = view.used_chip_milli.get(node.name, 0)
        seen = NodeView(node=node, used_chip_milli=used_milli, avoided=avoided.get(node.name))
        alike[_row(seen, now_s)].append(node)
    headings = ("SLOTS" if view.inventory.delegated else "NODES", ">COUNT", *_HEADINGS)
    rows: list[tuple[str | Text, ...]] = []
    for (chips, state, *rest), nodes in alike.items():
        free = sum(_free_milli(view, node) for node in nodes) / 1_000
        counts = (str(len(nodes)), chips, f"{free:g} of {sum(node.chips for node in nodes)}")
        drawn = Text(state, style=CONDITIONS[nodes[0].condition])
        rows.append((compress_hosts(node.name for node in nodes), *counts, drawn, *rest))
    return _told(headings, rows)


def node_list(nodes: Sequence[NodeView], *, now_s: float) -> RenderableType:
    """Returns one row a node.

    Args:
        nodes: In order of name.
    """
    rows: list[tuple[str | Text, ...]] = []
    for seen in nodes:
        chips, state, *rest = _row(seen, now_s)
        ready = seen.node.condition is NodeCondition.READY
        used = seen.node.foreign_chip_milli + seen.used_chip_milli
        free = max(0, seen.node.chips * 1_000 - used) / 1_000 if ready else 0
        rows.append((seen.node.name, chips, f"{free:g}", Text(state, style=CONDITIONS[seen.node.condition]), *rest))
    return _told(("NODE", *_HEADINGS), rows)


def _told(headings: Sequence[str], rows: Sequence[tuple[str | Text, ...]]) -> RenderableType:
    """Returns rows without the columns in which nothing is told."""
    told = [column for column in range(len(headings)) if any(str(row[column]) for row in rows)]
    return Listing(*(headings[column] for column in told)).add_rows([row[column] for column in told] for row in rows)


def _row(seen: NodeView, now_s: float) -> tuple[str, ...]:
    """Returns what is told of a node beside its name and what is free."""
    node, avoided = seen.node, seen.avoided
    state = node.condition.value
    if node.condition_owner:
        state += f" by {node.condition_owner}"
    why = [node.condition_reason] if node.condition_reason else []
    ours, others = seen.used_chip_milli, node.foreign_chip_milli
    if ours:
        why.append(f"{ours / 1_000:g} ours")
    if others:
        why.append(f"{others / 1_000:g} of others")
    if avoided is not None:
        why.append(f"avoided until {clock_text(avoided.until_s, now_s=now_s)}: {avoided.reason}")
    if node.leaves_s is not None and node.leaves_s > now_s:
        why.append(f"leaves {clock_text(node.leaves_s, now_s=now_s)}")
    each = "" if node.chip_memory_gib is None else f" of {node.chip_memory_gib:.4g} GiB"
    return (
        f"{node.chips} {node.chip}{each}",
        state,
        "" if node.cpus is None else f"{node.cpus:g}",
        "" if node.memory_gib is None else f"{node.memory_gib:.0f}",
        "/".join(name for _, name in node.domains),
        ", ".join(node.features),
        "; ".join(why),
    )


def _name(shown: ClusterShown) -> str:
    pretended = (
        shown.settings.simulated if shown.settings else shown.view is not None and shown.view.inventory.simulated
    )
    return f"{shown.name} (simulated)" if pretended else shown.name


def _places(shown: ClusterShown) -> str:
    if shown.engine in ENGINES and kind_named(shown.engine).here:
        return "this machine"
    delegated = (
        shown.settings.delegated if shown.settings else shown.view is not None and shown.view.inventory.delegated
    )
    return "delegated" if delegated else "pinned"


def _prices(inventory: Inventory) -> str:
    chips = sorted({node.chip for node in inventory.nodes})
    return ", ".join(f"{chip} ${inventory.dollars_per_chip_hour.get(chip, 0.0):.2f}" for chip in chips)


def _silence(shown: ClusterShown) -> str:
    return "not yet" if shown.asked else "no server runs: ms up"


def _answers(view: ClusterView, now_s: float) -> str:
    held = "" if view.hold is None else f"; {'draining' if view.hold.drain else 'paused'} by {view.hold.by}"
    return ("yes" if view.answering else f"no, for {ago(now_s - view.seen_s)}") + held


def _free_milli(view: ClusterView, node: Node) -> int:
    if node.condition is not NodeCondition.READY:
        return 0
    return max(0, node.chips * 1_000 - node.foreign_chip_milli - view.used_chip_milli.get(node.name, 0))
