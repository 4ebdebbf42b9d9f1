"""The verbs that steer what is there: pause and resume, drain, requeue, priority, resize."""

from __future__ import annotations

import time
from typing import Annotated

import typer

from mainspring.app import render
from mainspring.app.cli.arguments import Json, LabContext
from mainspring.domain import answers
from mainspring.domain.errors import InvalidInput
from mainspring.domain.ids import RoleName
from mainspring.domain.job import MAIN, Hold, Tier

JobName = Annotated[str, typer.Argument(help="Id or name of a job.", metavar="JOB")]
SomeJob = Annotated[str, typer.Argument(help="Id or name of a job.", metavar="[JOB]")]
Array = Annotated[bool, typer.Option("--array", help="All jobs of its array.")]
Team = Annotated[str, typer.Option(help="A team, and those below it.", metavar="TEAM")]
Cluster = Annotated[str, typer.Option(help="A cluster.", metavar="CLUSTER")]
Reason = Annotated[str, typer.Option(help="Why: `ms why` tells it to whoever waits.", metavar="WORDS")]
Nodes = Annotated[
    list[str] | None, typer.Argument(help="Nodes of the cluster; all of it when left out.", metavar="NODE")
]
OfCluster = Annotated[str, typer.Option(help="The cluster.", metavar="CLUSTER")]


def pause(
    context: LabContext,
    name: SomeJob = "",
    array: Array = False,
    team: Team = "",
    cluster: Cluster = "",
    drain: Annotated[bool, typer.Option("--drain", help="Of a team or cluster: end what runs too, saved.")] = False,
    reason: Reason = "",
    as_json: Json = False,
) -> None:
    """Keep a job from running: it ends, saved, and waits. Or keep a team or a cluster from starting anything."""
    _require_one("pause", name, team, cluster)
    lab, asked = context.obj, answers.NewHold(reason=reason, drain=drain)
    if name:
        _show_job(lab.pause(name, asked, array=array), as_json=as_json)
    else:
        view = lab.pause_team(team, asked) if team else lab.pause_cluster(cluster, asked)
        _show_hold(view, f"team {team}" if team else f"cluster {cluster}", as_json=as_json)


def resume(
    context: LabContext,
    name: SomeJob = "",
    array: Array = False,
    team: Team = "",
    cluster: Cluster = "",
    as_json: Json = False,
) -> None:
    """Let a paused job run again, from its newest saved step; or a team or a cluster start jobs again."""
    _require_one("resume", name, team, cluster)
    lab = context.obj
    if name:
        _show_job(lab.resume(name, array=array), as_json=as_json)
    else:
        view = lab.resume_team(team) if team else lab.resume_cluster(cluster)
        _show_hold(view, f"team {team}" if team else f"cluster {cluster}", as_json=as_json)


def requeue(
    context: LabContext, name: JobName, array: Array = False, reason: Reason = "", as_json: Json = False
) -> None:
    """End a job's attempt, saved, and queue the job again: it starts anew, perhaps elsewhere."""
    _show_job(context.obj.requeue(name, array=array, reason=reason), as_json=as_json)


def priority(
    context: LabContext,
    name: JobName,
    tier: Annotated[Tier | None, typer.Option(help="How urgent it is.")] = None,
    place: Annotated[
        answers.QueuePlace | None, typer.Option(help="Its place among jobs of its team and tier that wait.")
    ] = None,
    array: Array = False,
    reason: Reason = "",
    as_json: Json = False,
) -> None:
    """Change how urgent a job is, or its place in its team's line."""
    asked = answers.NewPriority(tier=tier, place=place, reason=reason)
    _show_job(context.obj.priority(name, asked, array=array), as_json=as_json)


def resize(
    context: LabContext,
    name: JobName,
    size: Annotated[str, typer.Argument(help="How many replicas: 4, or 2..8.", metavar="COUNT")],
    role: Annotated[str, typer.Option(help="Which role of the job.")] = MAIN,
    array: Array = False,
    reason: Reason = "",
    as_json: Json = False,
) -> None:
    """Give a job more or fewer replicas: an elastic one that runs at once, any other from its next start on."""
    least, between, most = size.partition("..")
    if not least.isdecimal() or not (most.isdecimal() if between else not most):
        raise InvalidInput("resize a job", on="COUNT", got=repr(size), wanted="4, or 2..8")
    asked = answers.NewSize(role=RoleName(role), least=int(least), most=int(most or least), reason=reason)
    _show_job(context.obj.resize(name, asked, array=array), as_json=as_json)


def drain(
    context: LabContext, cluster: OfCluster, nodes: Nodes = None, reason: Reason = "", as_json: Json = False
) -> None:
    """Start nothing more on nodes, or on a whole cluster; what runs there ends, saved, and goes elsewhere."""
    lab, asked = context.obj, answers.NewHold(reason=reason, drain=True)
    for node in nodes or ():
        _show_hold(lab.drain(cluster, node, asked), node, as_json=as_json)
    if not nodes:
        _show_hold(lab.pause_cluster(cluster, asked), f"cluster {cluster}", as_json=as_json)


def undrain(context: LabContext, cluster: OfCluster, nodes: Nodes = None, as_json: Json = False) -> None:
    """Let jobs start again on nodes that were drained, or on a whole cluster."""
    for node in nodes or ():
        _show_hold(context.obj.undrain(cluster, node), f"node {node} of {cluster}", as_json=as_json)
    if not nodes:
        _show_hold(context.obj.resume_cluster(cluster), f"cluster {cluster}", as_json=as_json)


def _require_one(verb: str, *given: str) -> None:
    if sum(map(bool, given)) != 1:
        got = "several" if any(given) else "nothing"
        raise InvalidInput(verb, got=got, wanted="one of JOB, --team TEAM, --cluster CLUSTER")


def _show_job(view: answers.JobView, *, as_json: bool) -> None:
    told = f"{view.id} is {view.state.value}."
    if view.hold is not None:
        told = f"{view.id} is {view.state.value}; {render.hold_text(view.hold, now_s=time.time())}."
    if view.array is not None:
        states = ", ".join(f"{count} {state}" for state, count in view.array.states.items())
        told += f" Its array from {view.array.first} on: {states}."
    render.show(view, as_json=as_json, look=lambda: told)


def _show_hold(view: answers.HoldView, target: str, *, as_json: bool) -> None:
    hold: Hold | None = view.hold
    held = f"{target[:1].upper()}{target[1:]} may start jobs again."
    told = held if hold is None else f"{str(hold)[:1].upper()}{str(hold)[1:]}."
    render.show(view, as_json=as_json, look=lambda: told)
