"""`ms data`, what people say of episodes: annotations, one by one and from files, and layers of them."""

from __future__ import annotations

from enum import Enum
from pathlib import Path
from typing import Annotated

import typer

from mainspring import data  # Loads its names when they are used, so that other verbs start fast.
from mainspring.app.base.specs import duration_from
from mainspring.app.cli.arguments import Json, LabContext
from mainspring.app.cli.data.catalog import LOOK, MAKE, By, Name
from mainspring.app.render import data as look
from mainspring.app.render.tables import facts_grid, show
from mainspring.app.sdk.annotations import Said
from mainspring.domain.errors import InvalidInput

app = typer.Typer()


class YesOrNo(str, Enum):
    """Whether a task was done."""

    YES = "yes"
    NO = "no"


@app.command("annotate", rich_help_panel=MAKE)
def annotate_command(
    context: LabContext,
    name: Name,
    episode: Annotated[str, typer.Argument(help="Its id, or how it begins.", metavar="EPISODE")] = "",
    success: Annotated[YesOrNo | None, typer.Option(help="Whether its task was done.")] = None,
    label: Annotated[str, typer.Option(help="A few words.", metavar="TEXT")] = "",
    begin: Annotated[str, typer.Option("--from", help="Where it begins, such as 3.2s.", metavar="TIME")] = "",
    end: Annotated[str, typer.Option("--to", help="Where it ends.", metavar="TIME")] = "",
    withdraw: Annotated[
        bool, typer.Option("--withdraw", help="Take back what was said: of this label and stretch, if given.")
    ] = False,
    table: Annotated[
        Path | None,
        typer.Option("--csv", help="Read lines: episode or source, success, label, from, to.", metavar="FILE"),
    ] = None,
    by: By = "",
    as_json: Json = False,
) -> None:
    """Say whether an episode succeeded, and what happened in it, or in a stretch of it; or read that from a file.

    Nothing is overwritten: what is said is kept with who said it and when. Of a file with a wrong line nothing is kept.

    Example: ms data annotate pick 3f2a --success no --from 3.2s --to 5.0s --label "slipped"
    """
    verbs = context.obj.data
    if (table is None) == (not episode):
        raise InvalidInput(
            "annotate episodes", got="both" if episode else "neither", wanted="an EPISODE, or --csv FILE"
        )
    if table is not None:
        if success or label or begin or end or withdraw:
            raise InvalidInput("annotate episodes", on=str(table), got="more beside --csv", wanted="it in the file")
        made = verbs.annotate_csv(name, table, by=by)
    else:
        said = Said(
            episode=episode,
            success=None if success is None else success is YesOrNo.YES,
            label=label,
            begin_s=duration_from(begin) if begin else None,
            end_s=duration_from(end) if end else None,
            withdraws=withdraw,
        )
        made = verbs.annotate(name, said, by=by)
    show(made, as_json=as_json, look=lambda: f"{len(made)} kept, by {made[0].author}. Look: ms data annotations {name}")


@app.command("annotations", rich_help_panel=LOOK)
def annotations_command(
    context: LabContext,
    name: Name,
    episode: Annotated[str, typer.Argument(help="One episode: its id, or how it begins.", metavar="EPISODE")] = "",
    as_json: Json = False,
) -> None:
    """List what was said of episodes, by whom and when.

    Example: ms data annotations pick 3f2a
    """
    found = context.obj.data.annotations(name, episode)
    none = f"Nothing was said of {name} yet. Try: ms data annotate --help"
    show(found, as_json=as_json, look=lambda: look.annotations_table(found) if found else none)


@app.command("labels", rich_help_panel=MAKE)
def labels_command(
    context: LabContext,
    name: Name,
    label: Annotated[list[str], typer.Option(help="Repeat for more.", metavar="TEXT")],
    as_json: Json = False,
) -> None:
    """Freeze labels into a layer: a column for each, 1 at the steps it covers, for views; facts for conditions.

    Example: ms data labels pick --label slipped --label intervention
    """
    spec: data.LayerSpec = context.obj.data.freeze_labels(name, *label)
    facts = {"layer": spec.id, "columns": ", ".join(spec.columns)}
    show(spec, as_json=as_json, look=lambda: facts_grid(facts))
