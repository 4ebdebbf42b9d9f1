"""`ms data export`: versions in the formats of others."""

from __future__ import annotations

from typing import Annotated

import typer

from mainspring import data  # Loads its names when they are used, so that other verbs start fast.
from mainspring.app.cli.arguments import Json, LabContext
from mainspring.app.cli.data.catalog import MAKE, Name
from mainspring.app.render.progress import progress_bar
from mainspring.app.render.tables import ERRORS, facts_grid, show, size_text
from mainspring.domain.errors import InvalidInput

app = typer.Typer()
FORMATS = ("lerobot-v3", "lerobot-v2.1", "mcap", "rlds", "hdf5")
RERUN = "rerun"


@app.command("export", rich_help_panel=MAKE)
def export_command(
    context: LabContext,
    name: Name,
    dest: Annotated[
        str, typer.Argument(help="An empty folder, or s3://bucket/prefix, gs://.., az://..", metavar="DEST")
    ],
    to: Annotated[str, typer.Option("--to", help=f"The format: {', '.join(FORMATS)}.", metavar="FORMAT")] = "",
    rerun: Annotated[bool, typer.Option("--rerun", help="Write files that Rerun opens, instead of --to.")] = False,
    where: Annotated[
        str, typer.Option(help="Only episodes for which this holds, as in ms data select.", metavar="SQL")
    ] = "",
    layer: Annotated[
        list[str] | None, typer.Option(help="Columns of this layer go along; repeat for more.", metavar="ID")
    ] = None,
    camera: Annotated[
        list[str] | None, typer.Option(help="Only this camera goes along; repeat for more.", metavar="NAME")
    ] = None,
    without_camera: Annotated[
        list[str] | None, typer.Option(help="This camera stays; repeat for more.", metavar="NAME")
    ] = None,
    strict: Annotated[bool, typer.Option("--strict", help="Refuse when the format does not hold everything.")] = False,
    as_json: Json = False,
) -> None:
    """Write a version in another format. Videos are copied, not encoded again, wherever the format allows it.

    What the format cannot hold is listed before anything is written. The same again only does what is missing, after
    a kill too.

    Example: ms data export pick@3 out/pick --to lerobot-v3 --where "success and seconds > 2"
    """
    if bool(to) == rerun or (to and to not in FORMATS):
        raise InvalidInput(
            "export a version",
            got=f"--to {to}" + " and --rerun" * rerun if to else "neither --to nor --rerun",
            wanted=f"--to {', '.join(FORMATS)}; or --rerun",
        )
    prepared = context.obj.data.prepare_export(
        name,
        to or RERUN,
        where=where,
        layers=layer or (),
        cameras=camera or None,
        without_cameras=without_camera or (),
    )
    if prepared.lost and not strict and not as_json:
        ERRORS.print("\n".join([f"{to or 'Rerun'} does not hold:", *(f"  {one}" for one in prepared.lost)]))
    with progress_bar() as bar:
        task = bar.add_task("export", total=None, note="")

        def advanced(at: data.ExportProgress) -> None:
            bar.update(task, completed=at.done, total=at.total, note=f"{at.files} files, {size_text(at.size_bytes)}")

        try:
            report = context.obj.data.write_export(prepared, dest, strict=strict, progress=advanced)
        except KeyboardInterrupt:
            bar.console.print("What was written is kept: the same command does the rest.")
            raise
    facts = {
        "version": report.version,
        "format": report.format,
        "episodes": f"{report.episodes}, {report.frames} steps",
        "files": f"{report.files}, {size_text(report.size_bytes)}, in {dest}",
        "pictures": f"{report.copied} copied, {report.again} encoded again",
        "not held": "; ".join(report.lost) or "nothing",
    }
    show(report, as_json=as_json, look=lambda: facts_grid(facts))
