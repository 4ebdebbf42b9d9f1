"""The fleet: every node on one map, how much of it does useful work, what is closed, and what is wrong with it."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from urllib.parse import quote, urlencode

from markupsafe import Markup

from mainspring.app.base.calls import PAGES
from mainspring.app.web import tables
from mainspring.app.web.charts import SCALE, Lane, Strip
from mainspring.app.web.look import Shown, text
from mainspring.app.web.tables import Cell, Grid, Heading
from mainspring.app.web.visit import Visit
from mainspring.control.service.nodes.maps import use_of
from mainspring.domain.answers import NODE_USES, ClusterMap, Incident, NodeClosure, RackView, TeamView
from mainspring.domain.ids import ClusterName
from mainspring.domain.job import Tier
from mainspring.domain.routes import LIST_MAX

DRAWN_MAX = 30_000  # Nodes of one map: what a screen has room for, and a browser draws in a moment.
TEAMS_SHOWN = 10
_DAY_S = 86_400.0
_GOODPUT_DAYS, _FAILURE_DAYS = 1, 28
_SIDE, _GAP = 7, 1  # Of a node on the map, in pixels.
RACKS_KEPT = 8_192  # Drawn before: of a large fleet all, and as many as change in a while.
_RACK = Markup(
    '<a href="{link}" tabindex="-1" title="{says}" aria-label="{says}">'
    '<svg width="{width}" height="{height}" aria-hidden="true">{paths}</svg></a>'
)
LOOKS = dict(zip("fpioacdn", ("full", "part", "free", "foreign", "avoided", "cordoned", "down", "coming"), strict=True))
assert LOOKS.keys() == NODE_USES.keys()  # How each use looks; `page.css` has their colours.


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """The racks of a block, each drawn."""

    name: str
    racks: tuple[Markup, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterDrawn:
    """A cluster on the map."""

    words: str
    cluster: ClusterMap
    blocks: tuple[Block, ...]
    left_out: int


def cluster_path(cluster: str, **asked: str) -> str:
    """Returns the address of a cluster's page."""
    return f"{PAGES}/clusters/{quote(cluster, safe='')}" + (f"?{urlencode(asked)}" if asked else "")


def node_path(cluster: str, node: str) -> str:
    """Returns the address of a node's page."""
    return f"{PAGES}/clusters/{quote(cluster, safe='')}/nodes/{quote(node, safe='')}"


async def view_fleet(visit: Visit) -> Shown:
    """Returns the map of the fleet, and what is the matter with it."""
    since = await visit.newest()
    maps = await visit.lab.fleet_map()
    closures = await visit.lab.closures(past=True)
    incidents = await visit.lab.incidents()
    report = await visit.lab.goodput_report(since_s=visit.ago_s(_GOODPUT_DAYS * _DAY_S))
    teams = await visit.lab.teams()
    counts = {one.cluster: Counter(use for rack in one.racks for use in rack.uses) for one in maps}
    total = sum(counts.values(), Counter[str]())
    chips, held = sum(one.chips for one in maps), sum(one.held for one in maps)
    ratio = report.whole.ratio
    funnel = _funnel(chips, sum(one.healthy for one in maps), held, None if ratio is None else held * ratio)
    grids = (
        _clusters(maps, counts),
        _incidents(incidents),
        _closed([one for one in closures if one.ended_s is None]),
        _causes(closures, visit.now_s, total.total()),
        _unready(maps),
    )
    words = {
        "nodes": total.total(),
        "chips": chips,
        "trouble": total["d"] + total["c"],
        "incidents": len(incidents),
        "silent": [one.cluster for one in maps if not one.answering],
        "funnel": funnel,
        "teams": _by_team(teams),
        "legend": [(LOOKS[use], meaning, total[use]) for use, meaning in NODE_USES.items() if total[use]],
        "maps": _drawn(maps),
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


def _by_team(teams: Sequence[TeamView]) -> tuple[Lane, ...]:
    """Returns how many chips each team holds itself, tier by tier, those that hold most first."""
    held = {view.team.name: Counter(view.use.tiers) for view in teams if view.use}
    own = {name: Counter(tiers) for name, tiers in held.items()}
    for view in teams:
        if view.team.parent in own:
            own[view.team.parent].subtract(held.get(view.team.name, Counter()))
    most = sorted(((sum(tiers.values()), name) for name, tiers in own.items()), reverse=True)
    most = [(chips, name) for chips, name in most if chips > 0]
    scale = SCALE / max((chips for chips, _ in most), default=1.0)
    lanes = [
        Lane(label=name, value=f"{chips:,.0f}", strips=tuple(_tiers(name, own[name], scale)))
        for chips, name in most[:TEAMS_SHOWN]
    ]
    if rest := most[TEAMS_SHOWN:]:
        lanes.append(Lane(label=f"{len(rest)} others", value=f"{sum(chips for chips, _ in rest):,.0f}", strips=()))
    return tuple(lanes)


def _tiers(team: str, held: Mapping[str, float], scale: float) -> Iterator[Strip]:
    """Yields a bar for each tier, one after the other, the most urgent first."""
    at = 0.0
    for tier in Tier:
        chips = held.get(tier.value, 0.0)
        if chips > 0:
            says = f"{team}, {tier.value}: {chips:,.0f} chips"
            yield Strip(x=round(at, 2), width=round(chips * scale, 2), tone=f"tier-{tier.value}", says=says)
            at += chips * scale


# ---------------------------------------------------------------- the map


def _drawn(maps: Sequence[ClusterMap]) -> tuple[ClusterDrawn, ...]:
    left = DRAWN_MAX
    made = []
    for one in maps:
        blocks: dict[str, list[Markup]] = defaultdict(list)
        left_out = 0
        for rack in one.racks:
            if len(rack.uses) > left:
                left_out += len(rack.uses)
                continue
            left -= len(rack.uses)
            blocks[rack.block].append(_rack(one.cluster, rack))
        kinds = ", ".join(f"{count:,} nodes of {chip}" for chip, count in one.nodes.items())
        words = f"{one.engine}{', simulated' if one.simulated else ''}: {kinds or 'no nodes'}"
        drawn = tuple(Block(name=name, racks=tuple(racks)) for name, racks in blocks.items())
        made.append(ClusterDrawn(words=words, cluster=one, blocks=drawn, left_out=left_out))
    return tuple(made)


@lru_cache(maxsize=RACKS_KEPT)
def _rack(cluster: str, rack: RackView) -> Markup:
    """Returns a rack on the map: the shape of its nodes in each state, and what it says. Most are as they were."""
    count = len(rack.uses)
    columns = 4 if count <= 16 else 8 if count <= 64 else 16
    shapes: dict[str, list[str]] = defaultdict(list)
    for number, use in enumerate(rack.uses):
        x, y = number % columns * (_SIDE + _GAP), number // columns * (_SIDE + _GAP)
        shapes[use].append(f"M{x} {y}h{_SIDE}v{_SIDE}h-{_SIDE}z")
    said = ", ".join(f"{len(shapes[use])} {meaning}" for use, meaning in NODE_USES.items() if use in shapes)
    paths = (f'<path class="n-{LOOKS.get(use, "coming")}" d="{"".join(some)}"/>' for use, some in shapes.items())
    return _RACK.format(
        link=cluster_path(cluster, rack=rack.rack) if rack.rack else cluster_path(cluster),
        says=text(f"{rack.rack}: {said}" if rack.rack else said),
        width=min(columns, count) * (_SIDE + _GAP),
        height=(count + columns - 1) // columns * (_SIDE + _GAP),
        paths=Markup("".join(paths)),
    )


# ---------------------------------------------------------------- tables


def _clusters(maps: Sequence[ClusterMap], counts: Mapping[ClusterName, Counter[str]]) -> Grid:
    rows = []
    for one in maps:
        prices = ", ".join(f"{chip} ${price:.2f}" for chip, price in sorted(one.dollars_per_chip_hour.items()))
        rows.append(
            (
                tables.text(one.cluster, link=cluster_path(one.cluster)),
                tables.text(f"{one.engine}{' (simulated)' if one.simulated else ''}"),
                tables.text("answers", tone="good") if one.answering else tables.text("silent", tone="bad"),
                tables.number(sum(one.nodes.values()), ",d"),
                tables.number(counts[one.cluster]["d"] + counts[one.cluster]["c"], ",d"),
                tables.number(one.chips, ",.0f"),
                tables.percent(one.held / one.healthy if one.healthy else None),
                tables.text(prices or "-"),
                tables.text(str(one.hold) if one.hold else "-"),
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


def _unready(maps: Sequence[ClusterMap]) -> Grid:
    rows: list[tuple[Cell, ...]] = []
    for one in maps:
        for view in one.closed[: LIST_MAX - len(rows)]:
            node, use = view.node, use_of(view.node, view.used_chip_milli, avoided=view.avoided is not None)
            rows.append(
                (
                    tables.text(node.name, link=node_path(one.cluster, node.name)),
                    tables.text(one.cluster),
                    tables.text(" ".join(name for _, name in node.domains) or "-"),
                    Cell(text=NODE_USES[use], value=NODE_USES[use], tone=LOOKS[use]),
                    tables.text(node.condition_owner or "-"),
                    tables.text(node.condition_reason or (view.avoided.reason if view.avoided else "") or "-"),
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
