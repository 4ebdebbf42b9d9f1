"""Nodes on a screen: how they are, what closes them, what was seen of them, what rules and incidents there are."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.text import Text

from mainspring.app.render.tables import Listing, ago, clock_text, facts_grid, framed
from mainspring.domain.answers import (
    HealthEventView,
    HealthRuleView,
    Incident,
    MaintenanceWindow,
    NodeChange,
    NodeClosure,
    NodeView,
    SparesView,
)
from mainspring.domain.hardware.health import HealthEvent, HealthState, Strategy
from mainspring.domain.ids import ClusterName

STATES = {HealthState.SOUND.value: "green", HealthState.SUSPECT.value: "yellow", HealthState.FAILED.value: "red"}
_DONE = {"closed": "yellow", "held": "red", "shadow": "dim", "told": "dim"}
_NODES_SHOWN = 5


def nodes_table(nodes: Sequence[tuple[ClusterName, NodeView]], *, now_s: float) -> RenderableType:
    """Returns one row a node.

    Args:
        nodes: Each with its cluster.
    """
    made = Listing("NODE", "?CLUSTER", "?CHIPS", "STATE", "HEALTH", "?>LEMON", "~WHY")
    for cluster, seen in nodes:
        node, health = seen.node, seen.health
        score = f"{health.lemon_score:.3g}" if health is not None and health.lemon_score else ""
        made.add_row(
            node.name,
            cluster,
            f"{node.chips} {node.chip}",
            _state(seen),
            _health(seen),
            score,
            _why(seen, now_s),
        )
    return made


def node_panel(
    cluster: ClusterName,
    seen: NodeView,
    events: Sequence[HealthEventView],
    history: Sequence[NodeChange],
    *,
    now_s: float,
) -> RenderableType:
    """Returns one node with all that is told of it.

    Args:
        events: The newest, newest first.
        history: The newest, newest first.
    """
    node, health = seen.node, seen.health
    facts: dict[str, str | Text] = {"cluster": cluster, "chips": f"{node.chips} {node.chip}", "state": _state(seen)}
    if node.domains:
        facts["place"] = "/".join(name for _, name in node.domains)
    if node.condition_reason:
        facts["because"] = node.condition_reason
    facts["in use"] = f"{seen.used_chip_milli / 1_000:g} chips by us, {node.foreign_chip_milli / 1_000:g} by others"
    facts["health"] = _health(seen)
    if health is not None:
        facts["since"] = clock_text(health.since_s, now_s=now_s)
        facts["lemon score"] = f"{health.lemon_score:.3g}"
        for finding in health.findings:
            acts = "" if finding.strategy is Strategy.ACT else " (in shadow)"
            facts[f"rule {finding.rule}"] = f"{finding.words}; would help: {finding.repair.value}{acts}"
    for closure in seen.closures:
        facts[closure.kind.value] = closure_text(closure, now_s=now_s)
    if seen.avoided is not None:
        facts["avoided"] = f"until {clock_text(seen.avoided.until_s, now_s=now_s)}: {seen.avoided.reason}"
    parts: list[RenderableType] = [facts_grid(facts)]
    parts += ["", events_list(events, now_s=now_s)] if events else []
    parts += ["", history_table(history, now_s=now_s)] if history else []
    return framed(Group(*parts), node.name)


def closure_text(closure: NodeClosure, *, now_s: float) -> str:
    """Returns who closed a node, why, until when, and whether its cluster shows it."""
    until = "" if closure.until_s is None else f", until {clock_text(closure.until_s, now_s=now_s)}"
    told = f"by {closure.owner} {ago(max(0.0, now_s - closure.from_s))} ago{until}: {closure.reason}"
    if closure.refused:
        return f"{told} (its cluster does not show it: {closure.refused})"
    return told


def history_table(history: Sequence[NodeChange], *, now_s: float) -> RenderableType:
    """Returns one row a change of a node.

    Args:
        history: Newest first.
    """
    made = Listing("WHEN", "WHAT", "?BY", "~WHY")
    return made.add_rows(
        (clock_text(one.time_s, now_s=now_s), one.what, one.by or "its cluster", one.words) for one in history
    )


def maintenance_table(windows: Sequence[MaintenanceWindow], *, now_s: float) -> RenderableType:
    """Returns one row a window of maintenance.

    Args:
        windows: In order of when they begin.
    """
    made = Listing(">NUMBER", "CLUSTER", "NODES", "FROM", "UNTIL", "?BY", "~REASON")
    for one in windows:
        nodes = ", ".join(one.nodes[:3]) + (f" and {len(one.nodes) - 3} more" if len(one.nodes) > 3 else "")
        begins, ends = clock_text(one.from_s, now_s=now_s), clock_text(one.until_s, now_s=now_s)
        made.add_row(str(one.number), one.cluster, nodes or "all", begins, ends, one.by, one.reason)
    return made


def events_list(events: Sequence[HealthEventView], *, now_s: float) -> RenderableType:
    """Returns one row a health event.

    Args:
        events: Newest first.
    """
    made = Listing("WHEN", "WHERE", "CHECK", "?CODES", "IS", "?TOLD BY", "~WORDS")
    for one in events:
        event = one.event
        teller = f"{event.source.name}{f' of {one.teller}' if one.teller else ''}"
        made.add_row(
            clock_text(event.at_s, now_s=now_s),
            _where(event),
            event.check,
            " ".join(event.codes),
            _verdict(event),
            teller,
            event.message,
        )
    return made


def rules_table(rules: Sequence[HealthRuleView], *, now_s: float) -> RenderableType:
    """Returns one row a rule.

    Args:
        rules: In their order.
    """
    made = Listing("RULE", "DOES", "FINDS", "?LOOKS BACK", ">HOLDS FOR", "RIGHT", "?BY", "~WORDS")
    for rule in rules:
        acts = rule.strategy is Strategy.ACT
        does = Text("acts", style="yellow") if acts else Text("told alone" if _never(rule) else "shadow", style="dim")
        by = f"{rule.by}, {ago(max(0.0, now_s - rule.since_s))} ago: {rule.reason}" if acts else ""
        judged = rule.right + rule.wrong
        right = f"{rule.right} of {judged}" if judged else "not measured"
        words = f"{rule.words}{_named(rule)}"
        made.add_row(rule.name, does, rule.state.value, ago(rule.window_s), str(rule.found_count), right, by, words)
    return made


def incidents_table(incidents: Sequence[Incident], *, now_s: float) -> RenderableType:
    """Returns one row an incident.

    Args:
        incidents: In order.
    """
    made = Listing("WHAT", "CLUSTER", "WHERE", "?RULE", "IS", "?>SINCE", "~WORDS")
    for one in incidents:
        where = one.where or (one.nodes[0] if one.node_count == 1 else f"{one.node_count} nodes")
        since = f"{ago(max(0.0, now_s - one.since_s))} ago"
        is_ = Text(one.done, style=_DONE.get(one.done, ""))
        made.add_row(one.kind.value, one.cluster, where, one.rule, is_, since, one.words)
    return made


def spares_table(found: Sequence[SparesView], *, now_s: float) -> RenderableType:
    """Returns one row a cluster, and one for each of its blocks.

    Args:
        found: In order.
    """
    made = Listing("CLUSTER", "?BLOCK", ">NODES", ">LOST", ">IN", "?>REPAIR", ">SPARES", "?>PRICE")
    for one in found:
        took = "" if one.repair_median_s is None else f"{'> ' if one.repair_at_least else ''}{ago(one.repair_median_s)}"
        price = f"${one.dollars_per_hour:,.2f}/h" if one.dollars_per_hour else ""
        since = ago(max(0.0, now_s - one.since_s))
        made.add_row(one.cluster, one.block, str(one.nodes), str(one.lost), since, took, str(one.spares), price)
    return made


def _state(seen: NodeView) -> Text:
    from mainspring.app.render.clusters import CONDITIONS

    owner = f" by {seen.node.condition_owner}" if seen.node.condition_owner else ""
    kinds = "".join(f" ({each})" for each in sorted({one.kind.value for one in seen.closures}))
    return Text(f"{seen.node.condition.value}{owner}{kinds}", style=CONDITIONS[seen.node.condition])


def _health(seen: NodeView) -> Text:
    if seen.health is None:
        return Text("nothing told", style="dim")
    return Text(seen.health.state.value, style=STATES.get(seen.health.state.value, ""))


def _why(seen: NodeView, now_s: float) -> str:
    why = [closure_text(one, now_s=now_s) for one in seen.closures]
    if not why and seen.node.condition_reason:
        why.append(seen.node.condition_reason)
    if seen.health is not None:
        closed = {one.rule for one in seen.closures}
        why += [f"{one.rule}: {one.words}" for one in seen.health.findings if one.rule not in closed]
    return "; ".join(why)


def _where(event: HealthEvent) -> str:
    scope = event.scope
    place = scope.node or scope.kind.value
    return f"{place} {scope.part}" if scope.part else place


def _verdict(event: HealthEvent) -> Text:
    if event.healthy:
        return Text("well", style="green")
    shadow = " (shadow)" if event.strategy is Strategy.SHADOW else ""
    return Text(f"{'fatal' if event.fatal else 'wrong'}{shadow}", style="red" if event.fatal else "yellow")


def _never(rule: HealthRuleView) -> bool:
    return rule.state is not HealthState.FAILED


def _named(rule: HealthRuleView) -> str:
    if not rule.found:
        return ""
    more = f" and {rule.found_count - _NODES_SHOWN} more" if rule.found_count > _NODES_SHOWN else ""
    return f" ({', '.join(at.node for at in rule.found[:_NODES_SHOWN])}{more})"
