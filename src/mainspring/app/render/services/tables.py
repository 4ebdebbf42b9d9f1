"""Services on a screen: how many of their replicas answer, and each replica."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.text import Text

from mainspring.app.render.tables import Listing, ago, facts_grid, framed
from mainspring.domain.answers import ReplicaView, ServicePhase, ServiceView
from mainspring.domain.life import JobState

_PHASES = {ServicePhase.SERVING: "green", ServicePhase.STARTING: "yellow", ServicePhase.UPDATING: "cyan"}


def services_table(services: Sequence[ServiceView]) -> RenderableType:
    """Returns one row a service."""
    made = Listing("SERVICE", "?TEAM", "STATE", ">READY", ">WANTED", "?>VERSION", ">UNDER WAY", "~LAST")
    for one in services:
        made.add_row(
            one.name,
            one.team,
            _phase(one),
            str(one.ready),
            _wanted(one),
            _version(one),
            str(sum(member.in_flight for member in one.members)),
            one.reason,
        )
    return made


def service_panel(service: ServiceView, *, now_s: float) -> RenderableType:
    """Returns everything about one service."""
    scale = service.scale
    facts: dict[str, str | Text] = {
        "state": _phase(service),
        "address": service.address,
        "team": service.team,
        "made": f"{ago(max(0.0, now_s - service.made_s))}{f' by {service.owner}' if service.owner else ''}",
        "replicas": f"{service.ready} of {_wanted(service)} answer",
        "version": _version(service),
        "last": service.reason,
    }
    if scale.most > scale.replicas:
        facts["grows"] = f"above {scale.requests_each:g} requests under way at each, to {scale.most}"
    made = Listing("REPLICA", "?>VERSION", "STATE", "?NODE", "?ADDRESS", ">UNDER WAY", ">ANSWERED", ">MISSED", "~WHY")
    made.add_rows(_row(one) for one in service.members)
    return framed(Group(facts_grid(facts), "", made), f"Service {service.name}")


def _phase(service: ServiceView) -> Text:
    return Text(service.phase.value, style=_PHASES[service.phase])


def _wanted(service: ServiceView) -> str:
    scale = service.scale
    return (
        f"{service.wanted} ({scale.replicas} to {scale.most})" if scale.most > scale.replicas else str(service.wanted)
    )


def _version(service: ServiceView) -> str:
    before = "" if service.version_before is None else f", replaces {service.version_before}"
    return f"{service.version}{before}"


def _row(one: ReplicaView) -> tuple[str | Text, ...]:
    state = Text("ready", style="green") if one.ready else Text(one.state.value)
    silent = one.silent_s is not None and one.silent_s > 5.0 and one.state is JobState.RUNNING
    why = f"silent for {one.silent_s:.0f} s" if silent else "" if one.ready else one.reason
    counts = (str(one.in_flight), str(one.answered), str(one.missed))
    node = "-" if one.node is None else f"{one.node} of {one.cluster}"
    return (one.job, str(one.version), state, node, one.address or "-", *counts, why)
