"""Services: what answers robots, where they call it, and each replica."""

from __future__ import annotations

from urllib.parse import quote

from mainspring.app.base.calls import PAGES
from mainspring.app.web import tables
from mainspring.app.web.look import Shown
from mainspring.app.web.tables import Cell, Grid, Heading
from mainspring.app.web.views.fleet import node_path
from mainspring.app.web.visit import Visit
from mainspring.domain.answers import ReplicaView, ServicePhase, ServiceView

_EVERY_S = 5  # Replicas tell of themselves once a second; most of what they tell is no event.
_TONES = {ServicePhase.SERVING: "good", ServicePhase.STARTING: "warn", ServicePhase.UPDATING: "warn"}


async def view_services(visit: Visit) -> Shown:
    """Returns all services that one may see."""
    since = await visit.newest()
    services = await visit.lab.services()
    headings = (
        Heading(key="service", title="Service"),
        Heading(key="state", title="State"),
        Heading(key="ready", title="Ready", right=True),
        Heading(key="wanted", title="Wanted", right=True),
        Heading(key="version", title="Version", right=True, spare=True),
        Heading(key="under_way", title="Under way", right=True),
        Heading(key="missed", title="Missed", right=True),
        Heading(key="team", title="Team", spare=True),
        Heading(key="last", title="What became of it last", wide=True, spare=True),
    )
    rows = [_row(one) for one in services]
    grid = Grid(name="services", title="Services", headings=headings, rows=rows, empty="None yet: ms serve JOB@STEP.")
    return Shown(
        template="services",
        title="Services",
        words={"count": len(services), "ready": sum(one.ready > 0 for one in services)},
        grids={grid.name: grid},
        follow="/v1/events",
        since=since,
        every_s=_EVERY_S,
    )


def _row(one: ServiceView) -> tuple[Cell, ...]:
    return (
        tables.text(one.name, link=service_path(one.name)),
        tables.text(one.phase.value, tone=_TONES[one.phase]),
        tables.number(one.ready, ",d"),
        tables.number(one.wanted, ",d"),
        tables.number(one.version, ",d"),
        tables.number(sum(member.in_flight for member in one.members), ",d"),
        tables.number(sum(member.missed for member in one.members), ",d"),
        tables.text(one.team),
        tables.text(one.reason or "-"),
    )


async def view_service(visit: Visit) -> Shown:
    """Returns one service with its replicas."""
    since = await visit.newest()
    service = await visit.lab.service(visit.request.path_params["service"])
    headings = (
        Heading(key="replica", title="Replica"),
        Heading(key="state", title="State"),
        Heading(key="version", title="Version", right=True),
        Heading(key="node", title="Node"),
        Heading(key="under_way", title="Under way", right=True),
        Heading(key="answered", title="Answered", right=True),
        Heading(key="missed", title="Missed", right=True),
        Heading(key="heard", title="Last heard", right=True, spare=True),
        Heading(key="why", title="Why", wide=True, spare=True),
    )
    rows = [_replica(one) for one in service.members]
    grid = Grid(name="replicas", title="Replicas", headings=headings, rows=rows, empty="The first one starts soon.")
    return Shown(
        template="service",
        title=f"Service {service.name}",
        words={"service": service, "tone": _TONES[service.phase], "command": " ".join(service.spec.roles[0].command)},
        grids={grid.name: grid},
        follow="/v1/events",
        since=since,
        every_s=_EVERY_S,
    )


def _replica(one: ReplicaView) -> tuple[Cell, ...]:
    placed = one.node is not None and one.cluster is not None
    return (
        tables.job_link(one.job, one.job),
        tables.text("ready" if one.ready else one.state.value, tone="good" if one.ready else ""),
        tables.number(one.version, ",d"),
        tables.text(str(one.node), link=node_path(str(one.cluster), str(one.node))) if placed else tables.text("-"),
        tables.number(one.in_flight, ",d"),
        tables.number(one.answered, ",d"),
        tables.number(one.missed, ",d"),
        tables.span(one.silent_s),
        tables.text("-" if one.ready else one.reason or "-"),
    )


def service_path(name: str) -> str:
    """Returns the address of a service's page."""
    return f"{PAGES}/services/{quote(name, safe='')}"
