"""`ms store`, `ms backup`, `ms restore`: the database behind this home's server."""

from __future__ import annotations

import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mainspring.app import render
from mainspring.app.cli.arguments import Json, LabContext
from mainspring.domain import answers
from mainspring.domain.errors import InvalidInput
from mainspring.domain.ids import AllocationId

if TYPE_CHECKING:
    from mainspring.app.sdk.lab import Lab

app = typer.Typer(no_args_is_help=True, pretty_exceptions_enable=False, rich_markup_mode="rich")


@app.command()
def show(context: LabContext, as_json: Json = False) -> None:
    """Show where the store is, and of which revision its tables are."""
    from mainspring.control.store.store import look_at

    home = context.obj.home
    seen = look_at(home.database_url(home.config()))
    words = f"{seen.kind}, revision {seen.revision or 'none'}; this release reads {seen.newest}"
    render.show(seen, as_json=as_json, look=lambda: words)


@app.command()
def down(
    context: LabContext,
    revision: Annotated[str, typer.Argument(help="Of the tables that the older release reads.")],
    no_backup: Annotated[bool, typer.Option("--no-backup", help="Make no copy of the store before.")] = False,
    as_json: Json = False,
) -> None:
    """Bring the store's tables back for an older release; what only newer ones keep is lost but for the copy."""
    from mainspring.app.base.backups import backups_in
    from mainspring.control.store.store import bring_back, look_at

    home, now_s = context.obj.home, time.time()
    url = home.database_url(home.config())
    bring_back(url, revision, None if no_backup else backups_in(home, now_s), now_s=now_s)
    render.show(look_at(url), as_json=as_json, look=lambda: f"The store is of revision {revision}.")


def _tell(bar: Any, task: Any, done: int, total: int) -> None:
    bar.update(task, completed=done, total=total)


def backup(
    context: LabContext,
    file: Annotated[Path, typer.Argument(help="Where to; replaced once the copy is whole.")],
    as_json: Json = False,
) -> None:
    """Copy this home's store as it is at one instant, while its server works; SQLite or PostgreSQL."""
    from mainspring.app.base.backups import maker_in, note_backup
    from mainspring.control.store.databases.backups import back_up
    from mainspring.control.store.databases.opening import parsed_url

    home, now_s = context.obj.home, time.time()
    url = parsed_url(home.database_url(home.config()))
    with render.progress_bar() as bar:
        task = bar.add_task("back up", total=None, note="")
        made = back_up(
            url, file, maker_in(home, now_s), lambda done, total: bar.update(task, completed=done, total=total)
        )
    note_backup(home, made.made_s)
    words = f"{file} holds {made.jobs} jobs, and events up to {made.sequence}."
    keep = f"Keep `key` and `secrets.key` of {home.path} too, elsewhere."
    render.show(made, as_json=as_json, look=lambda: f"{words} {keep}")


def restore(
    context: LabContext,
    what: Annotated[
        list[str] | None,
        typer.Argument(
            help="A file that `ms backup` made, or one of `backups/`; with --adopt or --end, what is held.",
            metavar="[FILE | ALLOCATION... | JOB...]",
        ),
    ] = None,
    any_key: Annotated[
        bool, typer.Option("--any-key", help="Go on without the `key` of then: agents that still run are lost.")
    ] = False,
    end: Annotated[
        bool, typer.Option("--end", help="End what is held; a job of it that waits may start then.")
    ] = False,
    adopt: Annotated[
        bool, typer.Option("--adopt", help="Adopt what is held and runs: it goes on as its job's attempt.")
    ] = False,
    everything: Annotated[bool, typer.Option("--all", help="With --adopt or --end: all that is held.")] = False,
    as_json: Json = False,
) -> None:
    """Put a back-up in the place of this home's store, which is kept. Or list, adopt or end what is held since."""
    lab, named = context.obj, what or []
    if adopt and end:
        raise InvalidInput("settle what is held", got="--adopt and --end", wanted="one of them")
    if adopt or end:
        if bool(named) == everything:
            raise InvalidInput("settle what is held", got="nothing named" if not named else "names with --all")
        asked = answers.HeldOnes(allocations=tuple(map(AllocationId, named)), all=everything)
        if end:
            _show_held(lab.end_held(asked), as_json=as_json)
        else:
            _show_adopted(lab.adopt_held(asked), as_json=as_json)
    elif not named:
        _show_held(lab.held(), as_json=as_json)
    elif len(named) > 1 or everything:
        raise InvalidInput("restore the store", got=f"{len(named)} files", wanted="one", next_step="ms restore --help")
    else:
        _put_back(lab, Path(named[0]), any_key=any_key, as_json=as_json)


def _show_held(held: tuple[answers.HeldView, ...], *, as_json: bool) -> None:
    look = render.held_table(held, now_s=time.time()) if held else "Nothing is held: the store knows all that runs."
    render.show(held, as_json=as_json, look=lambda: look)


def _show_adopted(done: answers.Adopted, *, as_json: bool) -> None:
    words = [f"Adopted {len(done.adopted)} allocations."] if done.adopted or not done.refused else []
    words += [f"{one.allocation} stays held: {one.reason}" for one in done.refused]
    render.show(done, as_json=as_json, look=lambda: "\n".join(words))
    if done.refused:
        raise typer.Exit(1)


def _put_back(lab: Lab, file: Path, *, any_key: bool, as_json: bool) -> None:
    from mainspring.app.base.backups import maker_in
    from mainspring.control.store.restores.restoring import restore

    home, now_s = lab.home, time.time()
    url = home.database_url(home.config())
    with render.progress_bar() as bar:
        told = partial(_tell, bar, bar.add_task("restore", total=None, note=""))
        done = restore(url, file, maker_in(home, now_s), any_key=any_key, progress=told)
    made = done.backup
    ago = render.ago(now_s - made.made_s)
    words = f"The store is what it was {ago} ago: {made.jobs} jobs, events up to {made.sequence}."
    kept = f" The one that was there is kept: {done.kept}." if done.kept else ""
    then = "Next: ms up. What runs and is younger is held, not stopped: ms restore lists it."
    render.show(done, as_json=as_json, look=lambda: f"{words}{kept} {then}")
