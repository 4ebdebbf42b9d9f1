"""The fleet: every node on one map, how much of it does useful work, what is closed, and what is wrong with it."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from urllib.parse import quote, urlencode

from mainspring.app.base.calls import PAGES
from mainspring.app.web import tables
from mainspring.app.web.charts import SCALE, Lane, Strip
from mainspring.app.web.look import Shown
from mainspring.app.web.tables import Cell, Grid, Heading
from mainspring.app.web.visit import Visit
from mainspring.domain.answers import ClusterView, Incident, NodeClosure, TeamView
from mainspring.domain.fleet import Node, NodeCondition
from mainspring.domain.ids import ClusterName
from mainspring.domain.routes import LIST_MAX

DRAWN_MAX = 30_000  # Nodes of one map: what a screen has room for, and a browser draws in a moment.
TEAMS_SHOWN = 10
_DAY_S = 86_400.0
_GOODPUT_DAYS, _FAILURE_DAYS = 1, 28
_SIDE, _GAP = 7, 1  # Of a node on the map, in pixels.
_ALONE = 64  # Nodes drawn together where a cluster tells no racks.
STATES = {
    "full": "all chips in use",
    "part": "some chips in use",
    "free": "free",
    "foreign": "in use by others",
    "avoided": "avoided for now",
    "cordoned": "closed",
    "down": "down",
    "coming": "ordered",
}  # What a node can be on the map.


@dataclass(frozen=True, slots=True, kw_only=True)
class Rack:
    """A rack on the map: the shape of its nodes in each state, and what it says."""

    says: str
    link: str
    width: int
    height: int
    paths: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """The racks of a block."""

    name: str
    racks: tuple[Rack, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterMap:
    """A cluster on the map."""

    name: str
    words: str
    answering: bool
    seen_s: float
    blocks: tuple[Block, ...]
    left_out: int = 0


def node_state(node: Node, used_milli: int, *, avoided: bool) -> str:
    """Returns what a node is on the map: one of `STATES`."""
    match node.condition:
        case NodeCondition.DOWN:
            return "down"
        case NodeCondition.CORDONED:
            return "cordoned"
        case NodeCondition.COMING:
            return "coming"
        case NodeCondition.READY:
            pass
    if used_milli >= node.chips * 1_000 > 0 or (not node.chips and used_milli):
        return "full"
    if used_milli:
        return "part"
    if node.foreign_chip_milli >= node.chips * 1_000 > 0:
        return "foreign"
    return "avoided" if avoided else "free"


def cluster_path(cluster: str, **asked: str) -> str:
    """Returns the address of a cluster's page."""
    return f"{PAGES}/clusters/{quote(cluster, safe='')}" + (f"?{urlencode(asked)}" if asked else "")


def node_path(cluster: str, node: str) -> str:
    """Returns the address of a node's page."""
    return f"{PAGES}/clusters/{quote(cluster, safe='')}/nodes/{quote(node, safe='')}"


async def view_fleet(visit: Visit) -> Shown:
    """Returns the map of the fleet, and what is the matter with it."""
    since = await visit.newest()
    clusters = await visit.lab.fleet()
    closures = await visit.lab.closures(past=True)
    incidents = await visit.lab.incidents()
    report = await visit.lab.goodput_report(since_s=visit.now_s - _GOODPUT_DAYS * _DAY_S)
    states = {view.inventory.cluster: _states(view) for view in clusters}
    counts = Counter(state for one in states.values() for state in one.values())
    capacity, healthy, allocated = _chips(clusters, states)
    ratio = report.whole.ratio
    funnel = _funnel(capacity, healthy, allocated, None if ratio is None else allocated * ratio)
    nodes = sum(len(view.inventory.nodes) for view in clusters)
    teams = await visit.lab.teams()
    grids = (
        _clusters(clusters, states),
        _incidents(incidents),
        _closed([one for one in closures if one.ended_s is None]),
        _causes(closures, visit.now_s, nodes),
        _unready(clusters, states),
    )
    words = {
        "nodes": nodes,
        "chips": capacity,
        "trouble": counts["down"] + counts["cordoned"],
        "incidents": len(incidents),
        "silent": [view.inventory.cluster for view in clusters if not view.answering],
        "funnel": funnel,
        "teams": _by_team(teams, capacity),
        "legend": [(state, meaning, counts[state]) for state, meaning in STATES.items() if counts[state]],
        "maps": _maps(clusters, states),
    }
    return Shown(
        template="fleet",
        title="Fleet",
        words=words,
        grids={grid.name: grid for grid in grids},
        follow="/v1/events",
        since=since,
        every_s=30,
    )


def _states(view: ClusterView) -> dict[str, str]:
    avoided = {one.at.node for one in view.avoided}
    return {
        node.name: node_state(node, view.used_chip_milli.get(node.name, 0), avoided=node.name in avoided)
        for node in view.inventory.nodes
    }


def _chips(
    clusters: Sequence[ClusterView], states: Mapping[ClusterName, Mapping[str, str]]
) -> tuple[float, float, float]:
    """Returns how many chips there are, how many of them could work, and how many jobs hold."""
    capacity = healthy = allocated = 0.0
    for view in clusters:
        own = states[view.inventory.cluster]
        for node in view.inventory.nodes:
            if own[node.name] == "coming":
                continue
            used = view.used_chip_milli.get(node.name, 0) / 1_000
            capacity += node.chips
            healthy += node.chips if own[node.name] not in ("down", "cordoned") else used
            allocated += used
    return capacity, healthy, allocated


def _funnel(capacity: float, healthy: float, allocated: float, productive: float | None) -> tuple[Lane, ...]:
    steps = (
        ("capacity", capacity, "whole", "chips of all clusters"),
        ("healthy", healthy, "use-data", "on nodes that are ready, or in use all the same"),
        ("allocated", allocated, "use-startup", "held by jobs of ours"),
        (
            "productive",
            productive,
            "use-productive",
            "steps that nobody has to do again, by the goodput of the last day",
        ),
    )
    return tuple(
        Lane(
            label=label,
            value="-" if chips is None else f"{chips:,.0f} ({chips / capacity:.0%})" if capacity else f"{chips:,.0f}",
            strips=()
            if not chips or not capacity
            else (Strip(x=0, width=round(SCALE * chips / capacity, 2), tone=tone, says=note),),
            note=note,
        )
        for label, chips, tone, note in steps
    )


def _by_team(teams: Sequence[TeamView], capacity: float) -> tuple[Lane, ...]:
    """Returns how many chips each team holds itself, those that hold most first."""
    held = {view.team.name: sum(view.use.chips.values()) for view in teams if view.use}
    own = dict(held)
    for view in teams:
        if view.team.parent in own:
            own[view.team.parent] -= held.get(view.team.name, 0.0)
    most = sorted(((chips, name) for name, chips in own.items() if chips > 0), reverse=True)
    rest = sum(chips for chips, _ in most[TEAMS_SHOWN:])
    shown = [*most[:TEAMS_SHOWN], *([(rest, f"{len(most) - TEAMS_SHOWN} others")] if rest else [])]
    scale = SCALE / max(1.0, capacity, sum(own.values()))
    return tuple(
        Lane(
            label=name,
            value=f"{chips:,.0f}",
            strips=(Strip(x=0, width=round(chips * scale, 2), tone="use-data", says=f"{name}: {chips:,.0f} chips"),),
        )
        for chips, name in shown
    )


# ---------------------------------------------------------------- the map


def _maps(clusters: Sequence[ClusterView], states: Mapping[ClusterName, Mapping[str, str]]) -> tuple[ClusterMap, ...]:
    left = DRAWN_MAX
    made = []
    for view in clusters:
        inventory = view.inventory
        drawn = inventory.nodes[:left]
        left -= len(drawn)
        kinds = Counter(node.chip for node in inventory.nodes)
        chips = ", ".join(f"{count:,} nodes of {chip}" for chip, count in sorted(kinds.items()))
        words = f"{inventory.engine}{', simulated' if inventory.simulated else ''}: {chips or 'no nodes'}"
        made.append(
            ClusterMap(
                name=inventory.cluster,
                words=words,
                answering=view.answering,
                seen_s=view.seen_s,
                blocks=_blocks(inventory.cluster, drawn, states[inventory.cluster]),
                left_out=len(inventory.nodes) - len(drawn),
            )
        )
    return tuple(made)


def _blocks(cluster: str, nodes: Sequence[Node], states: Mapping[str, str]) -> tuple[Block, ...]:
    placed: dict[str, dict[str, list[Node]]] = defaultdict(lambda: defaultdict(list))
    for number, node in enumerate(nodes):
        domains = dict(node.domains)
        narrow = node.domains[-1][1] if node.domains else ""
        wide = node.domains[0][1] if len(domains) > 1 else ""
        placed[wide][narrow or f"{number // _ALONE + 1}"].append(node)
    return tuple(
        Block(name=wide, racks=tuple(_rack(cluster, narrow, some, states) for narrow, some in racks.items()))
        for wide, racks in placed.items()
    )


def _rack(cluster: str, name: str, nodes: Sequence[Node], states: Mapping[str, str]) -> Rack:
    columns = 4 if len(nodes) <= 16 else 8 if len(nodes) <= _ALONE else 16
    shapes: dict[str, list[str]] = defaultdict(list)
    for number, node in enumerate(nodes):
        x, y = number % columns * (_SIDE + _GAP), number // columns * (_SIDE + _GAP)
        shapes[states[node.name]].append(f"M{x} {y}h{_SIDE}v{_SIDE}h-{_SIDE}z")
    said = ", ".join(f"{len(shapes[state])} {meaning}" for state, meaning in STATES.items() if state in shapes)
    rows = (len(nodes) + columns - 1) // columns
    return Rack(
        says=f"{name}: {said}",
        link=cluster_path(cluster, rack=name) if nodes[0].domains else cluster_path(cluster),
        width=min(columns, len(nodes)) * (_SIDE + _GAP),
        height=rows * (_SIDE + _GAP),
        paths=tuple((state, "".join(some)) for state, some in shapes.items()),
    )


# ---------------------------------------------------------------- tables


def _clusters(clusters: Sequence[ClusterView], states: Mapping[ClusterName, Mapping[str, str]]) -> Grid:
    rows = []
    for view in clusters:
        inventory, counts = view.inventory, Counter(states[view.inventory.cluster].values())
        capacity, healthy, allocated = _chips([view], states)
        prices = ", ".join(f"{chip} ${price:.2f}" for chip, price in sorted(inventory.dollars_per_chip_hour.items()))
        answers = tables.text("answers", tone="good") if view.answering else tables.text("silent", tone="bad")
        rows.append(
            (
                tables.text(inventory.cluster, link=cluster_path(inventory.cluster)),
                tables.text(f"{inventory.engine}{' (simulated)' if inventory.simulated else ''}"),
                answers,
                tables.number(len(inventory.nodes), ",d"),
                tables.number(counts["down"] + counts["cordoned"], ",d"),
                tables.number(capacity, ",.0f"),
                tables.percent(allocated / healthy if healthy else None),
                tables.text(prices or "-"),
                tables.text(str(view.hold) if view.hold else "-"),
            )
        )
    headings = (
        Heading(key="cluster", title="Cluster"),
        Heading(key="engine", title="Engine", spare=True),
        Heading(key="answers", title="Answers"),
        Heading(key="nodes", title="Nodes", right=True),
        Heading(key="closed", title="Down or closed", right=True),
        Heading(key="chips", title="Chips", right=True, spare=True),
        Heading(key="in_use", title="In use"),
        Heading(key="price", title="A chip-hour", spare=True),
        Heading(key="hold", title="Held", wide=True, spare=True),
    )
    empty = "No cluster has answered yet: ms cluster add."
    return Grid(name="clusters", title="Clusters", headings=headings, rows=rows, empty=empty)


def _incidents(incidents: Sequence[Incident]) -> Grid:
    rows = [
        (
            tables.text(one.kind.value, tone="bad" if one.kind.value != "node" else "warn"),
            tables.text(one.cluster, link=cluster_path(one.cluster)),
            _nodes_cell(one),
            tables.moment(one.since_s),
            tables.text(one.done),
            tables.text(one.words),
        )
        for one in incidents
    ]
    headings = (
        Heading(key="kind", title="Of"),
        Heading(key="cluster", title="Cluster"),
        Heading(key="nodes", title="Nodes"),
        Heading(key="since", title="Since"),
        Heading(key="done", title="What follows", spare=True),
        Heading(key="words", title="What is so", wide=True),
    )
    return Grid(
        name="incidents", title="Incidents", headings=headings, rows=rows, empty="Nothing is wrong with any node."
    )


def _nodes_cell(one: Incident) -> Cell:
    if one.node_count == 1 and one.nodes:
        return tables.text(one.nodes[0], link=node_path(one.cluster, one.nodes[0]))
    return Cell(text=f"{one.node_count}{f' of {one.where}' if one.where else ''}", value=one.node_count)


def _closed(closures: Sequence[NodeClosure]) -> Grid:
    rows = [
        (
            tables.text(one.node, link=node_path(one.cluster, one.node)),
            tables.text(one.cluster),
            tables.text(one.kind.value, tone="cordoned"),
            tables.text(one.owner),
            tables.moment(one.from_s),
            tables.moment(one.until_s, none="somebody opens it"),
            tables.text(one.repair.value),
            tables.text(one.reason),
        )
        for one in closures
    ]
    headings = (
        Heading(key="node", title="Node"),
        Heading(key="cluster", title="Cluster", spare=True),
        Heading(key="kind", title="As"),
        Heading(key="owner", title="By"),
        Heading(key="since", title="Since", spare=True),
        Heading(key="until", title="Until"),
        Heading(key="repair", title="Repair", spare=True),
        Heading(key="reason", title="Why", wide=True),
    )
    return Grid(name="closed", title="Closed nodes", headings=headings, rows=rows, empty="Nobody keeps a node closed.")


def _causes(closures: Sequence[NodeClosure], now_s: float, nodes: int) -> Grid:
    """Returns, of each cause, how often nodes were closed for it, how far apart, and how long until they were back."""
    begin_s = max(now_s - _FAILURE_DAYS * _DAY_S, min((one.from_s for one in closures), default=now_s))
    causes: dict[str, list[NodeClosure]] = defaultdict(list)
    for one in closures:
        if one.from_s >= begin_s:
            causes[one.rule or f"closed by {one.owner}"].append(one)
    rows = []
    for cause, some in sorted(causes.items(), key=lambda one: -len(one[1])):
        back = [one.ended_s - one.from_s for one in some if one.ended_s is not None]
        again = Counter(f"{one.cluster}/{one.node}" for one in some).most_common(1)[0]
        cluster, _, node = again[0].partition("/")
        rows.append(
            (
                tables.text(cause),
                tables.number(len(some), ",d"),
                tables.span((now_s - begin_s) / len(some)),
                tables.span(nodes * (now_s - begin_s) / len(some) if nodes else None),
                tables.span(sum(back) / len(back) if back else None),
                tables.text(f"{node}, {again[1]} times", link=node_path(cluster, node))
                if again[1] > 1
                else tables.text("-"),
            )
        )
    headings = (
        Heading(key="cause", title="Cause"),
        Heading(key="failures", title="Times", right=True),
        Heading(key="mtbi_s", title="Between two", right=True),
        Heading(key="mtbi_node_s", title="Between two, a node", right=True, spare=True),
        Heading(key="mttr_s", title="Until it is back", right=True),
        Heading(key="most", title="Most often"),
    )
    title = f"Why nodes were closed, in {_FAILURE_DAYS} days"
    return Grid(name="causes", title=title, headings=headings, rows=rows, empty="No node was closed in that time.")


def _unready(clusters: Sequence[ClusterView], states: Mapping[ClusterName, Mapping[str, str]]) -> Grid:
    rows: list[tuple[Cell, ...]] = []
    for view in clusters:
        avoided = {one.at.node: one for one in view.avoided}
        for node in view.inventory.nodes:
            state = states[view.inventory.cluster][node.name]
            if state not in ("down", "cordoned", "coming", "avoided") or len(rows) >= LIST_MAX:
                continue
            kept = avoided.get(node.name)
            rows.append(
                (
                    tables.text(node.name, link=node_path(view.inventory.cluster, node.name)),
                    tables.text(view.inventory.cluster),
                    tables.text(" ".join(name for _, name in node.domains) or "-"),
                    Cell(text=STATES[state], value=state, tone=state),
                    tables.text(node.condition_owner or "-"),
                    tables.text(node.condition_reason or (kept.reason if kept else "") or "-"),
                )
            )
    headings = (
        Heading(key="node", title="Node"),
        Heading(key="cluster", title="Cluster", spare=True),
        Heading(key="place", title="Place", spare=True),
        Heading(key="state", title="State"),
        Heading(key="by", title="By", spare=True),
        Heading(key="why", title="Why", wide=True),
    )
    return Grid(
        name="unready", title="Nodes that take no work", headings=headings, rows=rows, empty="Every node is ready."
    )
