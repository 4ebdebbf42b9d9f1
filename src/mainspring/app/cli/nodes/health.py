"""`ms health`: what was seen of machines, what rules make of it, and what they may do."""

from __future__ import annotations

import secrets
import time
from typing import Annotated

import typer

from mainspring.app.cli.arguments import Json, LabContext
from mainspring.app.render.nodes.tables import events_list, incidents_table, rules_table, spares_table
from mainspring.app.render.tables import show
from mainspring.domain.answers import NewVerdict
from mainspring.domain.answers import Reason as Words
from mainspring.domain.hardware.health import HealthEvent, HealthSource, Repair, Scope, ScopeKind, Strategy
from mainspring.domain.ids import ClusterName, NodeName
from mainspring.domain.routes import LIST_MAX
from mainspring.domain.wire import HealthBatch

app = typer.Typer()
Rule = Annotated[str, typer.Argument(help="A rule: ms health rules lists them.", metavar="RULE")]
Reason = Annotated[str, typer.Option(help="Why, for people: in the audit log and wherever one looks.", metavar="WORDS")]
Cluster = Annotated[str, typer.Option(help="Of this cluster alone.", metavar="CLUSTER")]


@app.command()
def rules(context: LabContext, as_json: Json = False) -> None:
    """List rules in their order: whether they act, what they find, and for which nodes they hold now."""
    found = context.obj.health_rules()
    show(found, as_json=as_json, look=lambda: rules_table(found, now_s=time.time()))


@app.command()
def incidents(context: LabContext, cluster: Cluster = "", as_json: Json = False) -> None:
    """List what is wrong with nodes now, what is wrong with many for one reason once."""
    found = context.obj.incidents(cluster=cluster or None)
    none = "Nothing is wrong with any node."
    show(found, as_json=as_json, look=lambda: incidents_table(found, now_s=time.time()) if found else none)


@app.command()
def spares(context: LabContext, cluster: Cluster = "", as_json: Json = False) -> None:
    """List how many spare nodes each cluster and block wants, by what it lost in the last weeks, and their price."""
    found = context.obj.health_spares(cluster=cluster or None)
    none = "No cluster here has nodes that are chosen one by one."
    show(found, as_json=as_json, look=lambda: spares_table(found, now_s=time.time()) if found else none)


@app.command()
def events(
    context: LabContext,
    cluster: Cluster = "",
    node: Annotated[str, typer.Option(help="Of this node of the cluster.", metavar="NODE")] = "",
    before: Annotated[int, typer.Option(min=0, help="Go on after this number of the list; 0 to begin.")] = 0,
    limit: Annotated[int, typer.Option(min=1, max=LIST_MAX, help="At most so many, newest first.")] = 50,
    as_json: Json = False,
) -> None:
    """List what was seen of machines, newest first."""
    found = context.obj.health_events(cluster=cluster or None, node=node or None, before=before or None, limit=limit)
    none = "Nothing was told of any machine."
    show(found, as_json=as_json, look=lambda: events_list(found, now_s=time.time()) if found else none)


@app.command()
def promote(context: LabContext, rule: Rule, reason: Reason, as_json: Json = False) -> None:
    """Let a rule act: nodes that it finds to have failed are closed from now on."""
    made = context.obj.promote_rule(rule, Words(reason=reason))
    show(made, as_json=as_json, look=lambda: f"Rule {rule} acts. Nodes for which it holds now: {made.found_count}.")


@app.command()
def demote(context: LabContext, rule: Rule, reason: Reason, as_json: Json = False) -> None:
    """Put a rule back into shadow: what it finds is told alone, and what was closed for it is opened."""
    made = context.obj.demote_rule(rule, reason=reason)
    show(made, as_json=as_json, look=lambda: f"Rule {rule} is in shadow.")


@app.command()
def judge(
    context: LabContext,
    rule: Rule,
    node: Annotated[str, typer.Argument(help="A node for which it held.", metavar="NODE")],
    cluster: Annotated[str, typer.Option(help="Its cluster.", metavar="CLUSTER")],
    reason: Reason,
    right: Annotated[bool, typer.Option("--right/--wrong", help="Whether anything of the node had failed.")],
    as_json: Json = False,
) -> None:
    """Say whether a rule was right of a node, the last time it held: by that its precision is measured."""
    made = context.obj.judge_rule(rule, cluster, node, NewVerdict(right=right, reason=reason))
    told = f"Rule {rule} was right {made.right} of {made.right + made.wrong} times."
    show(made, as_json=as_json, look=lambda: told)


@app.command("reset-breaker")
def reset_breaker(
    context: LabContext,
    cluster: Annotated[str, typer.Argument(help="A cluster.", metavar="CLUSTER")],
    reason: Reason,
    as_json: Json = False,
) -> None:
    """Let rules close and open nodes of a cluster again, after too much was to be closed at once."""
    left = context.obj.reset_breaker(cluster, reason=reason)
    told = f"The breaker of {cluster} is shut."
    show(left, as_json=as_json, look=lambda: f"{told} Incidents that are left: {len(left)}." if left else told)


@app.command()
def tell(
    context: LabContext,
    node: Annotated[str, typer.Argument(help="A node.", metavar="NODE")],
    cluster: Annotated[str, typer.Option(help="Its cluster.", metavar="CLUSTER")],
    check: Annotated[str, typer.Option(help="What was looked at: fan, disk, cable.", metavar="CHECK")],
    message: Annotated[str, typer.Option(help="What was seen, for people.", metavar="WORDS")] = "",
    code: Annotated[list[str] | None, typer.Option(help="The maker's words for it.", metavar="CODE")] = None,
    fatal: Annotated[bool, typer.Option("--fatal", help="The node is of no use until something is done.")] = False,
    well: Annotated[
        bool, typer.Option("--well", help="It is well again: what was told of the same check is over.")
    ] = False,
    repair: Annotated[Repair, typer.Option(help="What would help.")] = Repair.NONE,
    as_json: Json = False,
) -> None:
    """Tell what you saw of a node, as a program that watches it would."""
    event = HealthEvent(
        source=HealthSource(name="person", session=f"s{secrets.token_hex(8)}", sequence=0),
        at_s=time.time(),
        scope=Scope(kind=ScopeKind.NODE, cluster=ClusterName(cluster), node=NodeName(node)),
        check=check,
        healthy=well,
        codes=tuple(code or ()),
        fatal=fatal,
        message=message,
        repair=repair,
        strategy=Strategy.ACT,
    )
    taken = context.obj.tell_health(HealthBatch(events=(event,)))
    show(taken, as_json=as_json, look=lambda: f"Told of {node} of {cluster}. See: ms node show {node}")
