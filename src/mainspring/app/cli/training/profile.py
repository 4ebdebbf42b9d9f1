"""`ms profile`: where the time of a running job goes, and how two profiles differ."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from mainspring.app.cli.arguments import Json, LabContext
from mainspring.app.render.progress import progress_bar
from mainspring.app.render.tables import show
from mainspring.app.render.training import profiles as look
from mainspring.app.sdk.profiles import ProfileVerbs
from mainspring.domain.answers.jobs import PROFILE_STEPS_MAX

app = typer.Typer()
DEFAULT = "take"  # `ms profile JOB` is `ms profile take JOB`.

Out = Annotated[
    Path | None,
    typer.Option(help="Folder to write the traces to, as Perfetto and XProf open them.", show_default=False),
]
Reference = Annotated[str, typer.Argument(help="The newest profile without an id.", metavar="JOB[/ID[/RANK]]")]


@app.command("take")
def take_command(
    context: LabContext,
    job: Annotated[str, typer.Argument(help="A job that runs: its id or name.", metavar="JOB")],
    steps: Annotated[int, typer.Option(min=1, max=PROFILE_STEPS_MAX, help="So many steps.")] = 5,
    rank: Annotated[list[int] | None, typer.Option(help="Which rank; repeat.", show_default="0")] = None,
    out: Out = None,
    as_json: Json = False,
) -> None:
    """Profile a job that runs, without a restart: XLA's trace of some steps. The word `take` may be left out.

    The profile is kept with the job. Any program that uses JAX and `session.steps` gives one.

    Try it: ms profile JOB --steps 5 --rank 0
    """
    verbs, ranks = ProfileVerbs(context.obj), tuple(dict.fromkeys(rank or [0]))
    with progress_bar() as bar:
        task = bar.add_task("profile", total=len(ranks), note=f"{steps} steps")
        found = verbs.take(
            job, steps=steps, ranks=ranks, on_wait=lambda left: bar.update(task, completed=len(ranks) - left)
        )
    for each in found:
        if out is not None:
            verbs.write(each, out / f"rank-{each.rank}" if len(found) > 1 else out)
    show(found, as_json=as_json, look=lambda: look.profiles_group(found))


@app.command("ls")
def list_command(
    context: LabContext,
    job: Annotated[str, typer.Argument(help="Its id or name.", metavar="JOB")],
    as_json: Json = False,
) -> None:
    """List the profiles that are kept of a job, as ID/RANK."""
    found = ProfileVerbs(context.obj).ls(job)
    show(found, as_json=as_json, look=lambda: "\n".join(found) or f"No profiles yet. Try: ms profile {job}")


@app.command("show")
def show_command(context: LabContext, profile: Reference, out: Out = None, as_json: Json = False) -> None:
    """Show a profile that is kept; with --out, write its trace for Perfetto and XProf."""
    verbs = ProfileVerbs(context.obj)
    found = verbs.find(profile)
    if out is not None:
        verbs.write(found, out)
    show(found, as_json=as_json, look=lambda: look.profiles_group([found]))


@app.command("diff")
def diff_command(context: LabContext, before: Reference, after: Reference, as_json: Json = False) -> None:
    """Compare two profiles: where a step's time went before, and where it goes now."""
    found = ProfileVerbs(context.obj).difference(before, after)
    show(found, as_json=as_json, look=lambda: look.difference_group(found))
