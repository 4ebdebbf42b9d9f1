"""`ms data`, what robots cut out of their logs: clips that the lab knows of, asks for, and is sent."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import typer

from mainspring.app.base.system import SystemClock
from mainspring.app.base.uploads import ClientClips
from mainspring.app.cli.arguments import Json, LabContext
from mainspring.app.cli.data.catalog import BRING_IN, LOOK
from mainspring.app.render import data as look
from mainspring.app.render.tables import ERRORS, show
from mainspring.domain.answers import ClipsAsked, ClipView
from mainspring.domain.errors import InvalidInput, Unavailable

app = typer.Typer()


@app.command("clips", rich_help_panel=LOOK)
def clips_command(
    context: LabContext,
    dataset: Annotated[str, typer.Option(help="Only those for this dataset.", metavar="NAME")] = "",
    robot: Annotated[str, typer.Option(help="Only this robot's.", metavar="NAME")] = "",
    limit: Annotated[int, typer.Option(min=1, max=500, help="At most so many.")] = 50,
    as_json: Json = False,
) -> None:
    """List clips that robots told of, newest first: here, coming, or on the robot until somebody asks.

    Example: ms data clips --robot arm-7
    """
    with context.obj.client() as client:
        found: tuple[ClipView, ...] = client.clips(dataset=dataset or None, robot=robot or None, limit=limit)
    none = "No robot told of a clip yet. See: docs/robots.md"
    show(found, as_json=as_json, look=lambda: look.clips_table(found) if found else none)


@app.command("ask", rich_help_panel=BRING_IN)
def ask_command(
    context: LabContext,
    clips: Annotated[list[str], typer.Argument(help="Their ids, or how these begin.", metavar="CLIP")],
    as_json: Json = False,
) -> None:
    """Have robots send clips that they told of, before others of the same priority.

    Example: ms data ask 4c01ab
    """
    with context.obj.client() as client:
        asked = client.ask_clips(ClipsAsked(ids=tuple(clips)))
    show(asked, as_json=as_json, look=lambda: f"{len(asked.ids)} asked for: they come when their robots look.")


@app.command("send-clips", rich_help_panel=BRING_IN)
def send_command(
    context: LabContext,
    folder: Annotated[Path, typer.Argument(help="The recorder's, on the robot.", metavar="FOLDER")],
    rules: Annotated[Path, typer.Option(help="What the robot keeps and sends, in YAML.", metavar="FILE")],
    watch: Annotated[bool, typer.Option("--watch", help="Go on until interrupted.")] = False,
) -> None:
    """Tell the lab's server of a robot's clips, and send those that come by themselves or were asked for.

    Example: ms data send-clips /var/lib/robot/log --rules rules.yaml --watch
    """
    from mainspring.robots.logs.clips import Clips
    from mainspring.robots.logs.rules import rules_from_yaml
    from mainspring.robots.logs.sending import IDLE_S, Sender

    said = rules_from_yaml(rules)
    if not (folder / "clips").is_dir():
        raise InvalidInput("send clips", on=str(folder), got="no recorder's folder", wanted="the one that it writes to")
    clips = Clips(folder / "clips", said)
    with context.obj.client() as client:
        sender = Sender(folder, clips, ClientClips(client), said, SystemClock())
        while (wait_s := sender.step()) < IDLE_S or watch:
            if sender.problem and not watch:
                raise Unavailable("send clips", got=sender.problem, next_step="the same again goes on where it was")
            if sender.problem:
                ERRORS.print(sender.problem)
            if wait_s:
                time.sleep(wait_s)
    kept = clips.all()
    sent = sum(clip.sent for clip in kept)
    show(f"{len(kept)} clips told of, {sent} sent.")
