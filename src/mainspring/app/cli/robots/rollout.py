"""`ms rollout`: a release goes to robots, ring after ring."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Annotated, Any

import typer

from mainspring.app.cli.arguments import Json, LabContext
from mainspring.app.render.robots import fleet as look
from mainspring.app.render.tables import show
from mainspring.domain.answers import NewRollout, RobotStanding, RolloutRules, RolloutView, RolloutWord
from mainspring.domain.errors import InvalidInput

app = typer.Typer()

Rollout = Annotated[str, typer.Argument(help="Its number.", metavar="ROLLOUT")]
Reason = Annotated[str, typer.Option(help="Why.")]
_RULES = RolloutRules()


def _unhealthy(text: str) -> dict[str, Any]:
    """Returns a count of robots, or a share of a ring, as `RolloutRules` has it."""
    share = text.strip().removesuffix("%")
    try:
        return {"unhealthy": int(share)} if share == text.strip() else {"unhealthy_share": float(share) / 100}
    except ValueError as error:
        wanted = "so many robots, or a share of a ring such as 5%"
        raise InvalidInput("roll a release out", on="--unhealthy", got=repr(text[:80]), wanted=wanted) from error


@app.command("start")
def start_command(
    context: LabContext,
    release: Annotated[str, typer.Argument(help="The newest of a name without a version.", metavar="NAME[@VERSION]")],
    rings: Annotated[
        str, typer.Option(help="In order: GROUP, NAME:5%, 10% of all, all.", metavar="RING,...")
    ] = "sim,lab,canary:5%,10%,all",
    where: Annotated[str, typer.Option(metavar="NAME[=VALUE]", help="Only robots with this label.")] = "",
    loss: Annotated[float, typer.Option(help="Points of success, 0 to 100, that a ring may not have lost.")] = 5.0,
    hours: Annotated[float, typer.Option(help="After which a person's yes passes a ring instead.")] = _RULES.hours,
    timeout: Annotated[float, typer.Option(help="Seconds from a robot's start to its commit.")] = _RULES.timeout_s,
    offline: Annotated[float, typer.Option(help="Seconds after which a robot is not waited for.")] = _RULES.offline_s,
    errors: Annotated[float, typer.Option(help="Share of a ring, 0 to 1, whose errors pause it.")] = _RULES.errors,
    unhealthy: Annotated[
        str, typer.Option(metavar="COUNT|SHARE%", help="Robots not healthy, of all or of a ring, that take it back.")
    ] = str(_RULES.unhealthy),
    confirm: Annotated[bool, typer.Option("--confirm", help="Somebody at each robot is to confirm it.")] = False,
    note: Annotated[str, typer.Option(help="Why, for people.")] = "",
    as_json: Json = False,
) -> None:
    """Begin to roll a release out. It stops, or goes back from every robot, by itself where it does harm.

    Try it: ms rollout start arm --rings lab,canary:5%,10%,all
    """
    rules = RolloutRules(
        loss=loss / 100,
        hours=hours,
        timeout_s=timeout,
        offline_s=offline,
        errors=errors,
        confirm=confirm,
        **_unhealthy(unhealthy),
    )
    named = tuple(ring.strip() for ring in rings.split(","))
    made = context.obj.start_rollout(NewRollout(release=release, rings=named, where=where, rules=rules, note=note))
    show(made, as_json=as_json, look=lambda: look.rollout_panel(made, now_s=time.time()))


@app.command("ls")
def list_command(
    context: LabContext,
    limit: Annotated[int, typer.Option(min=1, max=1_000, help="At most so many.")] = 20,
    as_json: Json = False,
) -> None:
    """List rollouts, newest first."""
    found = context.obj.rollouts(limit=limit)
    none = "No rollouts yet. Try: ms rollout start NAME --rings lab,all"
    show(found, as_json=as_json, look=lambda: look.rollouts_table(found, now_s=time.time()) if found else none)


@app.command("show")
def show_command(context: LabContext, rollout: Rollout, as_json: Json = False) -> None:
    """Show one rollout: its rings, what each waits for, and what became of it."""
    found = context.obj.rollout(rollout)
    show(found, as_json=as_json, look=lambda: look.rollout_panel(found, now_s=time.time()))


@app.command("robots")
def robots_command(
    context: LabContext,
    rollout: Rollout,
    ring: Annotated[str, typer.Option(help="Only those of this ring.")] = "",
    standing: Annotated[
        RobotStanding | None, typer.Option(help="Only those that stand so.", show_default=False)
    ] = None,
    after: Annotated[str, typer.Option(metavar="ROBOT", help="Go on after this one.")] = "",
    limit: Annotated[int, typer.Option(min=1, max=1_000, help="At most so many.")] = 50,
    as_json: Json = False,
) -> None:
    """List robots of a rollout: their ring, where each stands, what it runs, and why it last failed.

    Try it: ms rollout robots 1 --standing failed
    """
    found = context.obj.rollout_robots(rollout, ring=ring or None, standing=standing, after=after or None, limit=limit)
    none = "No robot of it stands so."
    show(found, as_json=as_json, look=lambda: look.rollout_robots_table(found, now_s=time.time()) if found else none)


def _said(say: Callable[..., RolloutView], rollout: str, reason: str, *, as_json: bool) -> None:
    found = say(rollout, RolloutWord(reason=reason))
    show(found, as_json=as_json, look=lambda: look.rollout_panel(found, now_s=time.time()))


@app.command("pause")
def pause_command(context: LabContext, rollout: Rollout, reason: Reason = "", as_json: Json = False) -> None:
    """Let no robot begin until the rollout is resumed; those that install go on."""
    _said(context.obj.pause_rollout, rollout, reason, as_json=as_json)


@app.command("resume")
def resume_command(context: LabContext, rollout: Rollout, reason: Reason = "", as_json: Json = False) -> None:
    """Let a paused rollout go on."""
    _said(context.obj.resume_rollout, rollout, reason, as_json=as_json)


@app.command("abort")
def abort_command(context: LabContext, rollout: Rollout, reason: Reason = "", as_json: Json = False) -> None:
    """End a rollout where it is: robots keep what they run."""
    _said(context.obj.abort_rollout, rollout, reason, as_json=as_json)


@app.command("rollback")
def rollback_command(context: LabContext, rollout: Rollout, reason: Reason = "", as_json: Json = False) -> None:
    """Have every robot of a rollout run again what it ran before."""
    _said(context.obj.take_back_rollout, rollout, reason, as_json=as_json)


@app.command("approve")
def approve_command(context: LabContext, rollout: Rollout, reason: Reason = "", as_json: Json = False) -> None:
    """Say yes to the ring that is open: it passes after the stated hours, whatever was counted."""
    _said(context.obj.approve_rollout, rollout, reason, as_json=as_json)
