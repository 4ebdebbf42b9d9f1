"""A cluster's nodes, and one node: how it is, what happened to it, and who closed it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from mainspring.app.web import tables
from mainspring.app.web.inside import Inside
from mainspring.app.web.look import Shown
from mainspring.app.web.tables import Cell, Grid, Heading
from mainspring.app.web.views.fleet import LOOKS, cluster_path, node_path
from mainspring.app.web.visit import Visit, reason_in
from mainspring.control.service.nodes.maps import use_of
from mainspring.domain.answers import NODE_USES, ClosureKind, NewClosure, NodeView
from mainspring.domain.errors import InvalidInput
from mainspring.domain.routes import LIST_MAX
from mainspring.domain.team import Right


async def view_cluster(visit: Visit) -> Shown:
    """Returns the nodes of a cluster, or of one of its racks."""
    cluster, rack = visit.request.path_params["cluster"], visit.asked("rack")
    found = await visit.lab.nodes(cluster, within=rack or None, after=visit.asked("after") or None)
    asked = {"after": found[-1].node.name, **({"rack": rack} if rack else {})} if len(found) == LIST_MAX else {}
    more = cluster_path(cluster, **asked) if asked else ""
    grid = _nodes(cluster, found, more)
    return Shown(
        template="cluster",
        title=f"{cluster} nodes",
        words={"cluster": cluster, "rack": rack},
        grids={"nodes": grid},
        every_s=30,
    )


def _nodes(cluster: str, found: Sequence[NodeView], more: str) -> Grid:
    rows = []
    for view in found:
        node = view.node
        use = use_of(node, view.used_chip_milli, avoided=view.avoided is not None)
        health = view.health
        rows.append(
            (
                tables.text(node.name, link=node_path(cluster, node.name)),
                tables.text(" ".join(name for _, name in node.domains) or "-"),
                tables.text(node.chip),
                tables.number(node.chips, "d"),
                tables.number(view.used_chip_milli / 1_000),
                Cell(text=NODE_USES[use], tone=LOOKS[use]),
                tables.text(health.state.value, tone=health.state.value) if health else tables.text("-"),
                tables.text(node.condition_reason or (view.avoided.reason if view.avoided else "") or "-"),
            )
        )
    headings = (
        Heading(key="node", title="Node"),
        Heading(key="place", title="Place", spare=True),
        Heading(key="chip", title="Chip"),
        Heading(key="chips", title="Chips", right=True),
        Heading(key="in_use", title="In use", right=True),
        Heading(key="state", title="State"),
        Heading(key="health", title="Health", spare=True),
        Heading(key="why", title="Why", wide=True),
    )
    return Grid(name="nodes", title="Nodes", headings=headings, rows=rows, empty="No node is there.", more=more)


async def view_node(visit: Visit) -> Shown:
    """Returns the page of a node."""
    cluster, name = visit.request.path_params["cluster"], visit.request.path_params["node"]
    view = await visit.lab.node(cluster, name)
    history = await visit.lab.node_history(cluster, name)
    seen = await visit.lab.health_events(cluster=cluster, node=name)
    closures = [one for one in await visit.lab.closures(cluster=cluster) if one.node == name]
    use = use_of(view.node, view.used_chip_milli, avoided=view.avoided is not None)
    changes = Grid(
        name="history",
        title="What happened to it",
        headings=(
            Heading(key="time", title="When"),
            Heading(key="what", title="What"),
            Heading(key="by", title="By"),
            Heading(key="words", title="Words", wide=True),
        ),
        rows=[
            (
                tables.moment(one.time_s),
                tables.text(one.what),
                tables.text(one.by or cluster),
                tables.text(one.words or "-"),
            )
            for one in history
        ],
    )
    told = Grid(
        name="seen",
        title="What was seen of it",
        headings=(
            Heading(key="time", title="When"),
            Heading(key="teller", title="Told by", spare=True),
            Heading(key="words", title="What", wide=True),
        ),
        rows=[(tables.moment(one.told_s), tables.text(one.teller), tables.text(str(one.event))) for one in seen],
        empty="Nothing was told of it.",
    )
    words = {
        "cluster": cluster,
        "view": view,
        "node": view.node,
        "look": LOOKS[use],
        "meaning": NODE_USES[use],
        "closures": closures,
        "kinds": [kind.value for kind in ClosureKind],
        "may_close": visit.may(Right.HOLD_FLEET),
    }
    return Shown(template="node", title=name, words=words, grids={"history": changes, "seen": told}, every_s=15)


async def act_on_node(lab: Inside, cluster: str, node: str, what: str, fields: Mapping[str, str]) -> None:
    """Closes a node, or opens it.

    Args:
        what: "close" or "open".
        fields: Of the form.

    Raises:
        InvalidInput: That is nothing one can do, no reason was given, or hours that are no number.
        Refusal: The API refused it.
    """
    reason = reason_in(fields)
    if what == "open":
        await lab.open_node(cluster, node, reason=reason)
        return
    if what != "close":
        raise InvalidInput("do something to a node", got=repr(what[:40]), wanted="close or open")
    try:
        kind, hours = ClosureKind(fields.get("kind", "")), fields.get("hours", "").strip()
        closure = NewClosure(kind=kind, reason=reason, hours=float(hours) if hours else None)
    except ValueError as error:
        raise InvalidInput("close a node", got=str(error)[:120]) from error
    await lab.close_node(cluster, node, closure)
