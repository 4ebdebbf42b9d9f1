"""`ms robot`: which robots there are, who is let in, and what one of them installs."""

from __future__ import annotations

import time
from typing import Annotated

import typer

from mainspring.app.cli.arguments import Json, LabContext
from mainspring.app.render.robots import fleet as look
from mainspring.app.render.tables import show
from mainspring.domain.answers import NewInstallation, NewRobot, RobotLabels
from mainspring.domain.errors import InvalidInput
from mainspring.domain.ids import TeamName
from mainspring.domain.job import LAB

app = typer.Typer()

Robot = Annotated[str, typer.Argument(help="Its name.", metavar="ROBOT")]
Labels = Annotated[
    list[str] | None, typer.Option("--label", metavar="NAME=VALUE", help="A label; repeat.", show_default=False)
]


def _labels(given: list[str]) -> dict[str, str]:
    labels = {}
    for each in given:
        name, equals, value = each.partition("=")
        if not equals:
            raise InvalidInput("label a robot", got=repr(each[:80]), wanted="NAME=VALUE")
        labels[name] = value
    return labels


@app.command("ls")
def list_command(
    context: LabContext,
    group: Annotated[str, typer.Option(help="Only those of this group.")] = "",
    label: Annotated[str, typer.Option(metavar="NAME[=VALUE]", help="Only those with this label.")] = "",
    limit: Annotated[int, typer.Option(min=1, max=1_000, help="At most so many.")] = 50,
    as_json: Json = False,
) -> None:
    """List robots: what each runs, and when it last called."""
    found = context.obj.robots(group=group or None, label=label or None, limit=limit)
    none = "No robots yet. Try: ms robot enrol arm-1"
    show(found, as_json=as_json, look=lambda: look.robots_table(found, now_s=time.time()) if found else none)


@app.command("show")
def show_command(context: LabContext, robot: Robot, as_json: Json = False) -> None:
    """Show one robot: what it is, runs and counted, and what was installed on it."""
    found = context.obj.robot(robot)
    actions = context.obj.robot_actions(robot, limit=10)
    show(found, as_json=as_json, look=lambda: look.robot_panel(found, actions, now_s=time.time()))


@app.command("enrol")
def enrol_command(
    context: LabContext,
    robot: Robot,
    group: Annotated[str, typer.Option(help="By which rollouts name rings.")] = "",
    label: Labels = None,
    team: Annotated[str, typer.Option(help="Whose it is.")] = LAB,
    hours: Annotated[float, typer.Option(help="How long its token is good.")] = 24.0,
    plain: Annotated[
        bool, typer.Option("--plain", help="A plain client of hawkBit's DDI, such as swupdate: its token at once.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Make a one-time token by which a robot is enrolled. Its key is made on it, and stays there.

    Try it: ms robot enrol arm-1 --group lab
    """
    asked = NewRobot(
        name=robot, group=group, labels=_labels(label or []), team=TeamName(team), plain=plain, hours=hours
    )
    with context.obj.client() as client:
        made, url = client.enrol_robot(asked), client.servers.url
    show(made, as_json=as_json, look=lambda: look.token_text(made, url=url, plain=plain))


@app.command("gateway")
def gateway_command(context: LabContext, as_json: Json = False) -> None:
    """Make the GatewayToken of the lab's gateways, in place of the one before."""
    made = context.obj.robot_gateway()
    show(made, as_json=as_json, look=lambda: f"Authorization: GatewayToken {made.secret}")


@app.command("label")
def label_command(
    context: LabContext,
    robot: Robot,
    group: Annotated[str | None, typer.Option(help="Another group.", show_default=False)] = None,
    label: Labels = None,
    as_json: Json = False,
) -> None:
    """Give a robot another group, other labels in place of those it had, or both."""
    asked = RobotLabels(group=group, labels=None if label is None else _labels(label))
    found = context.obj.label_robot(robot, asked)
    show(found, as_json=as_json, look=lambda: look.robots_table((found,), now_s=time.time()))


@app.command("revoke")
def revoke_command(
    context: LabContext,
    robot: Robot,
    reason: Annotated[str, typer.Option(help="Why.")] = "",
    as_json: Json = False,
) -> None:
    """Let a robot call no more. What it runs it goes on with."""
    found = context.obj.revoke_robot(robot, reason=reason)
    show(found, as_json=as_json, look=lambda: f"Revoked {found.name}.")


@app.command("install")
def install_command(
    context: LabContext,
    robot: Robot,
    release: Annotated[str, typer.Argument(help="The newest of a name without a version.", metavar="NAME[@VERSION]")],
    confirm: Annotated[bool, typer.Option("--confirm", help="Somebody at the robot is to confirm it.")] = False,
    as_json: Json = False,
) -> None:
    """Have one robot install a release, outside any rollout."""
    made = context.obj.install_release(robot, NewInstallation(release=release, confirm=confirm))
    show(made, as_json=as_json, look=lambda: f"{made.robot} is to install {made.release}: ms robot show {made.robot}")


@app.command("cancel")
def cancel_command(context: LabContext, robot: Robot, as_json: Json = False) -> None:
    """Ask a robot to give up what it installs."""
    made = context.obj.cancel_install(robot)
    show(made, as_json=as_json, look=lambda: f"{made.release} on {made.robot}: {made.state.value}")
