"""`ms token`: who may enter, as what, and until when."""

from __future__ import annotations

import time
from typing import Annotated

import typer

from mainspring.app import render
from mainspring.app.cli.arguments import Json, LabContext
from mainspring.domain.answers import NewToken
from mainspring.domain.errors import InvalidInput, NotFound
from mainspring.domain.ids import TeamName
from mainspring.domain.job import LAB
from mainspring.domain.team import TeamRole

Holder = Annotated[str, typer.Argument(help="Who.", metavar="HOLDER")]
OutOf = Annotated[str, typer.Option(help="Of which team, and all below it.")]

app = typer.Typer()


@app.command("new")
def new_command(
    context: LabContext,
    holder: Annotated[str, typer.Argument(help="Who it is for: a person, or a machine account.", metavar="HOLDER")],
    team: Annotated[str, typer.Option(help="Where its role counts, there and below.")] = LAB,
    role: Annotated[
        TeamRole, typer.Option(help="viewer, member or admin of a team; operator, auditor or watcher of the whole lab.")
    ] = TeamRole.MEMBER,
    days: Annotated[float | None, typer.Option(help="How long it is good for; for ever, when left out.")] = None,
    as_json: Json = False,
) -> None:
    """Make a token for somebody. It is shown once; its holder enters with it: ms login URL."""
    made = context.obj.new_token(NewToken(holder=holder, team=TeamName(team), role=role, days=days))
    if not as_json:
        render.ERRORS.print(
            f"{made.token.id}: {role.value} {holder} of team {team}. It is shown this once:", style="dim"
        )
    render.show(made, as_json=as_json, look=lambda: made.secret)


@app.command("ls")
def list_command(context: LabContext, as_json: Json = False) -> None:
    """List your tokens, and those of the teams you administer, newest first."""
    tokens = context.obj.tokens()
    render.show(tokens, as_json=as_json, look=lambda: render.tokens_table(tokens, now_s=time.time()))


@app.command("rm")
def remove_command(
    context: LabContext,
    token: Annotated[str, typer.Argument(help="What it is called: ms token ls.", metavar="TOKEN")] = "",
    holder: Annotated[str, typer.Option(help="All of this one's that you may remove.", metavar="HOLDER")] = "",
    as_json: Json = False,
) -> None:
    """Remove a token, or all that somebody has; they let nobody in from then on. Jobs go on.

    Who may log in by a provider of identities gets another: ms token block keeps them out.
    """
    lab = context.obj
    if bool(token) is bool(holder):
        raise InvalidInput("remove a token", got="both" if token else "neither", wanted="a TOKEN, or --holder")
    wanted = [one.id for one in lab.tokens() if one.holder == holder] if holder else [token]
    if not wanted:
        raise NotFound("remove tokens", on=f"holder {holder!r}", next_step="ms token ls")
    gone = tuple(lab.remove_token(each) for each in wanted)
    render.show(gone, as_json=as_json, look=lambda: "\n".join(f"{one.id} of {one.holder} is gone." for one in gone))


@app.command("block")
def block_command(context: LabContext, holder: Holder, team: OutOf = LAB, as_json: Json = False) -> None:
    """Keep somebody out: their tokens end at once, and they can log in no more. Jobs go on."""
    made = context.obj.block(team, holder)
    render.show(made, as_json=as_json, look=lambda: f"{made.holder} is kept out of team {made.team}.")


@app.command("unblock")
def unblock_command(context: LabContext, holder: Holder, team: OutOf = LAB, as_json: Json = False) -> None:
    """Let somebody log in again, or be given a token, who was kept out."""
    gone = context.obj.unblock(team, holder)
    render.show(gone, as_json=as_json, look=lambda: f"{gone.holder} is kept out of team {gone.team} no longer.")


@app.command("blocked")
def blocked_command(context: LabContext, as_json: Json = False) -> None:
    """List who is kept out of the teams you administer."""
    found = context.obj.blocked()
    none = "Nobody is kept out."
    render.show(found, as_json=as_json, look=lambda: render.blocks_table(found, now_s=time.time()) if found else none)
