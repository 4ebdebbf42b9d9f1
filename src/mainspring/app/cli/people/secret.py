"""`ms secret`: what jobs are to know and nobody is to see."""

from __future__ import annotations

import sys
import time
from typing import Annotated

import typer

from mainspring.app import render
from mainspring.app.cli.arguments import Json, LabContext
from mainspring.domain.answers import NewSecret
from mainspring.domain.errors import InvalidInput
from mainspring.domain.ids import TeamName
from mainspring.domain.job import LAB

_READ_MAX = 1 << 20  # Sixteen times what a secret may be: what is longer is told by its length.
app = typer.Typer()
Name = Annotated[str, typer.Argument(help="Its name, which is that of the variable a job finds it in.", metavar="NAME")]
Whose = Annotated[str, typer.Option(help="Whose it is: that team's jobs may name it, and those of all below.")]


@app.command("set")
def set_command(context: LabContext, name: Name, team: Whose = LAB, as_json: Json = False) -> None:
    """Keep a secret: asked for, or read from standard input, never a word of the command line.

    One line comes without its line end, several as they are.
    """
    if sys.stdin.isatty():
        value = typer.prompt("Value", hide_input=True, err=True)
    else:
        try:
            value = sys.stdin.buffer.read(_READ_MAX).decode()
        except UnicodeDecodeError:
            raise InvalidInput("accept a secret", got="bytes", wanted="UTF-8 text; bytes as base64") from None
    line = value.rstrip("\r\n")
    kept = context.obj.set_secret(team, name, NewSecret(value=value if "\n" in line else line))
    told = f"{name} of team {team} is kept, version {kept.version}. Give it to a job: ms run --secret {name}"
    render.show(kept, as_json=as_json, look=lambda: told)


@app.command("ls")
def list_command(
    context: LabContext,
    team: Annotated[str, typer.Option(help="What jobs of this team may name; all you may see, when left out.")] = "",
    as_json: Json = False,
) -> None:
    """List secrets, never their values."""
    secrets = context.obj.secrets(team=TeamName(team) if team else None)
    none = "No secrets yet. Try: ms secret set NAME --team TEAM"
    render.show(
        secrets, as_json=as_json, look=lambda: render.secrets_table(secrets, now_s=time.time()) if secrets else none
    )


@app.command("rm")
def remove_command(context: LabContext, name: Name, team: Whose = LAB, as_json: Json = False) -> None:
    """Remove a secret. Jobs that run keep it; a job that waits and names it fails when it would start."""
    gone = context.obj.remove_secret(team, name)
    render.show(gone, as_json=as_json, look=lambda: f"{gone.name} of team {gone.team} is gone.")


@app.command("rotate")
def rotate_command(context: LabContext, as_json: Json = False) -> None:
    """Encrypt every secret of the lab under a new key, and forget the older keys; values stay."""
    done = context.obj.rotate_secrets()
    told = f"{done.count} secrets are kept under a new key now. Keep a copy of secrets.key of the server's home."
    render.show(done, as_json=as_json, look=lambda: told)
