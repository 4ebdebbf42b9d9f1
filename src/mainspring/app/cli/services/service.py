"""`ms serve` and `ms service`: policies that answer robots, on as many replicas as it takes."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import typer

from mainspring.app import render
from mainspring.app.base.home import PROXY_PORT
from mainspring.app.cli.arguments import Json, LabContext
from mainspring.domain import answers
from mainspring.domain.errors import InvalidInput
from mainspring.domain.ids import TeamName
from mainspring.domain.job import Tier

app = typer.Typer()
Name = Annotated[str, typer.Argument(help="A service.", metavar="SERVICE")]
Source = Annotated[
    str,
    typer.Argument(
        help="What answers: a job's checkpoint, a release, or a function.",
        metavar="JOB[@STEP] | release:NAME[@VERSION] | MODULE:FUNCTION",
    ),
]
Words = Annotated[
    list[str] | None,
    typer.Argument(help="After --: more for the policy server, such as --rate 20.", metavar="-- WORDS"),
]
Reason = Annotated[str, typer.Option(help="Why, for people.", metavar="WORDS")]
Chips = Annotated[list[str] | None, typer.Option("--on", help="Acceptable chips; repeat for alternatives.")]
Most = Annotated[int, typer.Option("--max", min=0, help="At most so many, as requests come; 0 for no more.")]
Each = Annotated[
    float, typer.Option(help="Requests under way at each replica, on average, above which there are more.")
]


def serve(
    context: LabContext,
    source: Source,
    words: Words = None,
    name: Annotated[str, typer.Option(help="Name of the service; the source's when left out.")] = "",
    replicas: Annotated[int, typer.Option(min=1, help="How many answer, at least.")] = 1,
    most: Most = 0,
    requests_each: Each = 2.0,
    on: Chips = None,
    cpus: Annotated[float, typer.Option(min=0, help="CPU cores of each.")] = 0.0,
    memory: Annotated[float, typer.Option(min=0, help="Host memory of each.", metavar="GIB")] = 0.0,
    team: Annotated[str, typer.Option(help="Team that is charged.")] = "lab",
    tier: Annotated[Tier, typer.Option(help="How urgent it is.")] = Tier.STANDARD,
    no_code: Annotated[bool, typer.Option("--no-code", help="Do not take the working tree along.")] = False,
    as_json: Json = False,
) -> None:
    """Serve a policy to robots, on replicas that are kept up, and grow with the requests."""
    from mainspring.app.sdk.policies.services import replica_spec  # With what finds checkpoints.

    lab = context.obj
    each = {"cpus": cpus, "memory_gib": memory}
    spec = replica_spec(
        lab,
        source,
        words or (),
        name=name,
        on=on or ["cpu"],
        each={field: value for field, value in each.items() if value},
        code=None if no_code else Path.cwd(),
        team=team,
        tier=tier.value,
    )
    view = lab.serve(
        answers.NewService(
            spec=spec, scale=answers.NewScale(replicas=replicas, replicas_max=most, requests_each=requests_each)
        )
    )
    look = f"Serving {source} as {view.name}.\nRobots call: {view.address}\nLook: ms service show {view.name}"
    render.show(view, as_json=as_json, look=lambda: look)


@app.command("ls")
def list_command(
    context: LabContext,
    team: Annotated[str, typer.Option(help="Only this team's.", metavar="TEAM")] = "",
    as_json: Json = False,
) -> None:
    """List services: how many of their replicas answer, and what they have to do."""
    found = context.obj.services(team=TeamName(team) if team else None)
    none = "No services yet. Try: ms serve JOB@STEP"
    render.show(found, as_json=as_json, look=lambda: render.services_table(found) if found else none)


@app.command("show")
def show_command(context: LabContext, service: Name, as_json: Json = False) -> None:
    """Show one service and its replicas."""
    _tell(context.obj.service(service), as_json=as_json)


@app.command()
def scale(
    context: LabContext,
    service: Name,
    replicas: Annotated[
        int | None, typer.Option(min=1, help="At least so many; as many as now, when left out.")
    ] = None,
    most: Annotated[
        int | None, typer.Option("--max", min=0, help="At most so many; 0 for no more than --replicas.")
    ] = None,
    requests_each: Annotated[
        float | None, typer.Option(help="Requests under way at each, above which there are more.")
    ] = None,
    reason: Reason = "",
    as_json: Json = False,
) -> None:
    """Give a service more or fewer replicas, or other bounds."""
    lab = context.obj
    if replicas is None and most is None and requests_each is None:
        raise InvalidInput("scale a service", on=service, got="nothing to change", wanted="--replicas, --max, or both")
    now = lab.service(service).scale
    said = answers.NewScale(
        replicas=now.replicas if replicas is None else replicas,
        replicas_max=(0 if replicas is not None and now.replicas_max < replicas else now.replicas_max)
        if most is None
        else most,
        requests_each=now.requests_each if requests_each is None else requests_each,
        reason=reason,
    )
    _tell(lab.scale_service(service, said), as_json=as_json)


@app.command()
def update(
    context: LabContext,
    service: Name,
    source: Source,
    words: Words = None,
    no_code: Annotated[bool, typer.Option("--no-code", help="Do not take the working tree along.")] = False,
    reason: Reason = "",
    as_json: Json = False,
) -> None:
    """Serve something else: replicas are replaced one by one, and it goes back by itself where the new ones fail."""
    from mainspring.app.sdk.policies.services import replica_spec  # With what finds checkpoints.

    lab = context.obj
    before = lab.service(service).spec
    spec = replica_spec(lab, source, words or (), like=before, code=None if no_code else Path.cwd())
    _tell(lab.update_service(service, answers.NewVersion(spec=spec, reason=reason)), as_json=as_json)


@app.command()
def stop(context: LabContext, service: Name, reason: Reason = "", as_json: Json = False) -> None:
    """End a service with all its replicas."""
    before = context.obj.stop_service(service, reason=reason)
    render.show(before, as_json=as_json, look=lambda: f"Service {service} and its {len(before.members)} replicas end.")


@app.command()
def proxy(
    context: LabContext,
    host: Annotated[str, typer.Option(help="Where to listen; else only on this machine.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65_535, help="0 for any that is free.")] = PROXY_PORT + 1,
    certificate: Annotated[Path | None, typer.Option(help="PEM file, to serve TLS.", metavar="FILE")] = None,
    key: Annotated[Path | None, typer.Option(help="PEM file of its key.", metavar="FILE")] = None,
    behind_proxy: Annotated[bool, typer.Option("--behind-proxy", help="Another in front speaks TLS for it.")] = False,
) -> None:
    """Be one more proxy of all services, until told to end: robots call ws://HOST:PORT/v1/services/SERVICE."""
    from mainspring.app.server.programs.robots.service_proxy import serve_proxy

    with context.obj.client() as client:
        servers = ",".join(client.servers.urls)
    render.ERRORS.print(
        f"Robots call ws://{host}:{port}/v1/services/SERVICE, with a token of `ms token new`.", style="dim"
    )
    serve_proxy(servers, host=host, port=port, certificate=certificate, key=key, behind_proxy=behind_proxy)


def _tell(view: answers.ServiceView, *, as_json: bool) -> None:
    render.show(view, as_json=as_json, look=lambda: render.service_panel(view, now_s=time.time()))
