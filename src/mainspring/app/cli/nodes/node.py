"""`ms node`: how nodes are, what closes them, and closing and opening them."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import Annotated

import typer

from mainspring.app.cli.arguments import Json, LabContext
from mainspring.app.render.nodes.tables import (
    closure_text,
    history_table,
    maintenance_table,
    node_panel,
    nodes_table,
)
from mainspring.app.render.tables import ERRORS, clock_text, show
from mainspring.app.sdk.lab import Lab
from mainspring.domain.answers import ClosureKind, NewClosure, NewMaintenance, NodeClosure, NodeView
from mainspring.domain.errors import InvalidInput, NotFound, nearest
from mainspring.domain.fleet import NodeCondition
from mainspring.domain.hardware.health import HealthState
from mainspring.domain.ids import ClusterName, NodeName
from mainspring.domain.routes import LIST_MAX

SHOWN = 20  # Events and changes of one node.
app = typer.Typer()
Node = Annotated[str, typer.Argument(help="A node.", metavar="NODE")]
Nodes = Annotated[list[str], typer.Argument(help="Nodes of one cluster.", metavar="NODE")]
Cluster = Annotated[str, typer.Option(help="Their cluster; found, where one alone has such a node.", metavar="CLUSTER")]
Reason = Annotated[str, typer.Option(help="Why, for people: in the audit log and wherever one looks.", metavar="WORDS")]
Hours = Annotated[float, typer.Option(min=0.0, help="For how long; 0 for good, and for a quarantine a day.")]


@app.command("ls")
def list_command(
    context: LabContext,
    cluster: Annotated[str, typer.Option(help="Of this cluster alone.", metavar="CLUSTER")] = "",
    wrong: Annotated[
        bool, typer.Option("--wrong", help="Those alone that are closed, or of which something is found.")
    ] = False,
    limit: Annotated[int, typer.Option(min=1, help="At most so many of each cluster.")] = 50,
    as_json: Json = False,
) -> None:
    """List nodes: their state, how they are, and why they are closed."""
    names = [ClusterName(cluster)] if cluster else [view.inventory.cluster for view in context.obj.fleet()]
    found = [(name, node) for name in names for node in _nodes(context.obj, name, limit, wrong=wrong)]
    none = "Nothing is wrong with any node." if wrong else "No nodes."
    show(
        tuple(node for _, node in found),
        as_json=as_json,
        look=lambda: nodes_table(found, now_s=time.time()) if found else none,
    )


@app.command("show")
def show_command(context: LabContext, node: Node, cluster: Cluster = "", as_json: Json = False) -> None:
    """Show one node: how it is, what closes it, what was seen of it lately, what changed."""
    lab, name = context.obj, _cluster_of(context.obj, [node], cluster)
    seen = lab.node(name, node)
    if as_json:
        show(seen, as_json=True)
        return
    events, history = lab.health_events(cluster=name, node=node, limit=SHOWN), lab.node_history(name, node, limit=SHOWN)
    show(seen, look=lambda: node_panel(name, seen, events, history, now_s=time.time()))


@app.command("history")
def history_command(
    context: LabContext,
    node: Node,
    cluster: Cluster = "",
    limit: Annotated[int, typer.Option(min=1, max=LIST_MAX, help="At most so many changes.")] = 100,
    as_json: Json = False,
) -> None:
    """List what changed of a node, newest first: its cluster's word, and who closed and opened it."""
    name = _cluster_of(context.obj, [node], cluster)
    found = context.obj.node_history(name, node, limit=limit)
    show(found, as_json=as_json, look=lambda: history_table(found, now_s=time.time()) if found else "Nothing is known.")


@app.command()
def cordon(
    context: LabContext, nodes: Nodes, reason: Reason, cluster: Cluster = "", hours: Hours = 0.0, as_json: Json = False
) -> None:
    """Start nothing more on nodes; what runs there goes on."""
    _close(context.obj, nodes, cluster, ClosureKind.CORDON, reason, hours, as_json=as_json)


@app.command()
def drain(
    context: LabContext, nodes: Nodes, reason: Reason, cluster: Cluster = "", hours: Hours = 0.0, as_json: Json = False
) -> None:
    """Start nothing more on nodes; what runs there ends, saved, and goes elsewhere."""
    _close(context.obj, nodes, cluster, ClosureKind.DRAIN, reason, hours, as_json=as_json)


@app.command()
def quarantine(
    context: LabContext, nodes: Nodes, reason: Reason, cluster: Cluster = "", hours: Hours = 0.0, as_json: Json = False
) -> None:
    """Drain nodes that are not to be trusted, for a while, until somebody releases them."""
    _close(context.obj, nodes, cluster, ClosureKind.QUARANTINE, reason, hours, as_json=as_json)


@app.command()
def uncordon(context: LabContext, nodes: Nodes, reason: Reason, cluster: Cluster = "", as_json: Json = False) -> None:
    """Take back cordons and drains of nodes, whoever of the lab's people placed them; quarantines stay."""
    name = _cluster_of(context.obj, nodes, cluster)
    opened: list[NodeClosure] = []
    for node in nodes:
        for kind in (ClosureKind.CORDON, ClosureKind.DRAIN):
            opened += context.obj.open_node(name, node, kind=kind, reason=reason)
        context.obj.undrain(name, node)
    _show_opened(context.obj, name, nodes, opened, as_json=as_json)


@app.command()
def release(context: LabContext, nodes: Nodes, reason: Reason, cluster: Cluster = "", as_json: Json = False) -> None:
    """End the quarantine of nodes: what was seen of them until now is held against them no more."""
    name = _cluster_of(context.obj, nodes, cluster)
    opened: list[NodeClosure] = []
    for node in nodes:
        opened += context.obj.open_node(name, node, kind=ClosureKind.QUARANTINE, reason=reason)
    _show_opened(context.obj, name, nodes, opened, as_json=as_json)


maintenance = typer.Typer(help="Announce maintenance of nodes: plans lead around it.")
app.add_typer(maintenance, name="maintenance")


@maintenance.command("new")
def new_maintenance(
    context: LabContext,
    cluster: Annotated[str, typer.Argument(help="Their cluster.", metavar="CLUSTER")],
    begins: Annotated[
        str, typer.Option("--from", help="When it begins: 2027-01-31T06:00, in UTC unless it says otherwise; or +12h.")
    ],
    hours: Annotated[float, typer.Option(min=0.0, help="How long it takes.")],
    reason: Reason,
    nodes: Annotated[list[str] | None, typer.Argument(help="Nodes; all where none is named.", metavar="NODE")] = None,
    as_json: Json = False,
) -> None:
    """Announce maintenance: nothing starts that it would end, and what runs moves, saved, before it begins."""
    names = tuple(NodeName(node) for node in nodes or ())
    asked = NewMaintenance(nodes=names, from_s=begin_s(begins, time.time()), hours=hours, reason=reason)
    made = context.obj.announce_maintenance(cluster, asked)
    told = f"Maintenance {made.number} of {cluster} begins {clock_text(made.from_s, now_s=time.time())}."
    show(made, as_json=as_json, look=lambda: told)


@maintenance.command("ls")
def list_maintenance(
    context: LabContext,
    cluster: Annotated[str, typer.Option(help="Of this cluster alone.", metavar="CLUSTER")] = "",
    past: Annotated[bool, typer.Option("--past", help="Also what is over.")] = False,
    as_json: Json = False,
) -> None:
    """List maintenance that is announced."""
    found = context.obj.maintenance(cluster=cluster or None, past=past)
    none = "No maintenance is announced."
    show(found, as_json=as_json, look=lambda: maintenance_table(found, now_s=time.time()) if found else none)


@maintenance.command("rm")
def remove_maintenance(
    context: LabContext,
    number: Annotated[int, typer.Argument(help="Its number: ms node maintenance ls", metavar="NUMBER")],
    reason: Reason,
    as_json: Json = False,
) -> None:
    """Withdraw maintenance that was announced, or end it before its time."""
    gone = context.obj.withdraw_maintenance(str(number), reason=reason)
    show(gone, as_json=as_json, look=lambda: f"Maintenance {number} of {gone.cluster} is withdrawn.")


def begin_s(text: str, now_s: float) -> float:
    """Returns when something begins, in seconds since the Unix epoch.

    Args:
        text: As ISO 8601 has it, in UTC unless it says otherwise; or "+12h", "+30m", "+2d" from now.

    Raises:
        InvalidInput: It is neither.
    """
    units = {"m": 60.0, "h": 3_600.0, "d": 86_400.0}
    try:
        if text.startswith("+"):
            return now_s + float(text[1:-1]) * units[text[-1]]
        told = datetime.fromisoformat(text)
        return (told if told.tzinfo is not None else told.replace(tzinfo=UTC)).timestamp()
    except (ValueError, KeyError, IndexError, OverflowError) as error:
        wanted = "2027-01-31T06:00, or +12h from now"
        raise InvalidInput("read a time", on="--from", got=repr(text)[:80], wanted=wanted) from error


def _close(
    lab: Lab, nodes: list[str], cluster: str, kind: ClosureKind, reason: str, hours: float, *, as_json: bool
) -> None:
    name, asked = _cluster_of(lab, nodes, cluster), NewClosure(kind=kind, reason=reason, hours=hours or None)
    made = tuple(lab.close_node(name, node, asked) for node in nodes)
    told = "\n".join(f"{one.node}: {one.kind.value} {closure_text(one, now_s=time.time())}" for one in made)
    show(made, as_json=as_json, look=lambda: told)


def _show_opened(lab: Lab, cluster: str, nodes: list[str], opened: list[NodeClosure], *, as_json: bool) -> None:
    def look() -> str:
        ended = [f"{one.node}: {one.kind.value} by {one.owner} is over." for one in opened]
        for node in nodes:
            left = lab.node(cluster, node).closures
            ended += [f"{node}: {one.kind.value} {closure_text(one, now_s=time.time())}" for one in left]
            if not left and node not in {one.node for one in opened}:
                ended.append(f"{node}: nobody here keeps it closed.")
        return "\n".join(ended)

    show(tuple(opened), as_json=as_json, look=look)


def _nodes(lab: Lab, cluster: ClusterName, limit: int, *, wrong: bool) -> list[NodeView]:
    """Returns the first nodes of a cluster, or the first of those with which something is wrong."""
    found: list[NodeView] = []
    after: str | None = None
    while len(found) < limit:
        page = lab.nodes(cluster, after=after, limit=LIST_MAX if wrong else min(LIST_MAX, limit - len(found)))
        found += [node for node in page if not wrong or _is_wrong(node)]
        if not page:
            return found
        after = page[-1].node.name
    if not wrong:
        ERRORS.print(
            f"There may be more in {cluster}: --limit, or --wrong for those with something wrong.", style="dim"
        )
    return found[:limit]


def _is_wrong(seen: NodeView) -> bool:
    sick = seen.health is not None and seen.health.state is not HealthState.SOUND
    return sick or bool(seen.closures) or seen.node.condition is not NodeCondition.READY


def _cluster_of(lab: Lab, nodes: list[str], cluster: str) -> ClusterName:
    """Returns the cluster that has some nodes, where it was not named.

    Raises:
        NotFound: None has the first of them.
        InvalidInput: Several have.
    """
    if cluster:
        return ClusterName(cluster)
    known = {view.inventory.cluster: {node.name for node in view.inventory.nodes} for view in lab.fleet()}
    having = [name for name, own in known.items() if nodes[0] in own]
    if not having:
        every = sorted({node for own in known.values() for node in own})
        raise NotFound("find a node", on=nodes[0], wanted=nearest(nodes[0], every), next_step="ms node ls")
    if len(having) > 1:
        got, wanted = f"a node of {', '.join(having)}", "one of them: --cluster CLUSTER"
        raise InvalidInput("find a node", on=nodes[0], got=got, wanted=wanted)
    return having[0]
