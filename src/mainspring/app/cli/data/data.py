"""`ms data`: recordings come in, datasets and their versions are looked at, training views are made.

What is done with versions is in `catalog`, what is computed in `layers`, what goes out in
`export`; their verbs join this group.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from enum import Enum
from pathlib import Path
from typing import Annotated, Any

import typer

from mainspring import data  # Loads its names when they are used, so that other verbs start fast.
from mainspring.app.cli.arguments import Json, LabContext
from mainspring.app.cli.data import annotate, catalog, clips, export, layers
from mainspring.app.cli.data import ingest as said
from mainspring.app.cli.data.catalog import BRING_IN, LOOK, MAKE, Name
from mainspring.app.render import data as look
from mainspring.app.render.progress import bytes_bar, progress_bar
from mainspring.app.render.tables import ERRORS, show, size_text
from mainspring.app.sdk.lab import Lab
from mainspring.domain.answers import ArrivalView, Standing
from mainspring.domain.codec import to_plain
from mainspring.domain.errors import Conflict, InvalidInput

app = typer.Typer()
Dataset = Annotated[str, typer.Option(help="Name of the dataset they join.", metavar="NAME")]
Recipe = Annotated[
    Path | None, typer.Option(help="How the topics of logs become episodes; see ms data inspect.", metavar="FILE")
]
_UPLOAD_WAIT_S = 3_600.0


class ViewCodec(str, Enum):
    """How a view keeps frames: the codecs of `ViewRecipe`, listed here too so that other verbs need not load them."""

    RAW = "raw"
    H264 = "h264"
    JPEG = "jpeg"


def ingest_with_progress(
    lab: Lab,
    sources: Sequence[Path | str],
    dataset: str,
    recipe: Path | None = None,
    options: data.IngestOptions | None = None,
) -> data.IngestReport:
    """Takes sources in, showing how far it is.

    Args:
        lab: Where they go.
        sources: Recordings, wherever they lie.
        dataset: Name of the dataset they join.
        recipe: How the topics of logs become episodes.
        options: What is said of the sources.
    """
    begun_s, refused = time.monotonic(), 0
    with progress_bar() as bar:
        task = bar.add_task("ingest", total=None, note="")

        def advanced(progress: data.IngestProgress) -> None:
            nonlocal refused
            refused += bool(progress.reason)
            seconds = time.monotonic() - begun_s
            left_out = f", {refused} left out" if refused else ""
            bar.update(
                task,
                completed=progress.done,
                total=progress.total,
                note=f"{progress.done / seconds:.3g}/s, {size_text(progress.done_bytes / seconds)}/s{left_out}",
            )

        try:
            return lab.data.ingest(*sources, dataset=dataset, recipe=recipe, options=options, progress=advanced)
        except KeyboardInterrupt:
            bar.console.print("What was read is kept: the same command does the rest.")
            raise


def view_with_progress(lab: Lab, name: str, recipe: data.ViewRecipe) -> data.ViewManifest:
    """Makes a training view, showing how far it is.

    Args:
        lab: Where the version lies and the view goes.
        name: What it is a view of.
        recipe: What it is made like.
    """
    begun_s = time.monotonic()
    with progress_bar() as bar:
        task = bar.add_task("view", total=None, note="")

        def advanced(progress: data.ViewProgress) -> None:
            made = progress.done - progress.reused
            reused = f", {progress.reused} made before" if progress.reused else ""
            reused += f", {progress.refused} shards of other pictures made again" if progress.refused else ""
            bar.update(
                task,
                completed=progress.done,
                total=progress.total,
                note=f"{made / (time.monotonic() - begun_s):.3g}/s{reused}",
            )

        return lab.data.view(name, recipe, progress=advanced)


@app.command("ingest", rich_help_panel=BRING_IN)
@said.with_options
def ingest_command(
    context: LabContext,
    sources: Annotated[
        list[str],
        typer.Argument(
            help="Recordings and datasets, folders of them, zip and tar archives, s3:// gs:// az:// prefixes, https://.",
            metavar="SOURCE",
        ),
    ],
    dataset: Dataset,
    recipe: Recipe = None,
    *,
    options: data.IngestOptions,
    as_json: Json = False,
) -> None:
    """Take recordings in: keep the sound ones as episodes, say what is wrong with the rest, freeze a version.

    The same again only does what is missing, after a kill too. Exit 1 when nothing was sound.

    Example: ms data ingest recordings/ more.mcap --dataset pick --recipe pick.yaml
    """
    report = ingest_with_progress(context.obj, sources, dataset, recipe, options)
    show(report, as_json=as_json, look=lambda: look.report_panel(report))
    if report.version is None:
        raise typer.Exit(1)


@app.command("watch", rich_help_panel=BRING_IN)
@said.with_options
def watch_command(
    context: LabContext,
    folder: Annotated[Path, typer.Argument(help="What to watch, at any depth.", metavar="FOLDER")],
    dataset: Dataset,
    recipe: Recipe = None,
    moved: Annotated[
        Path | None, typer.Option(help="Move recordings here once they are read.", metavar="FOLDER")
    ] = None,
    settle: Annotated[
        float, typer.Option(min=0.1, help="Read files that have not changed for so long.", metavar="SECONDS")
    ] = 10.0,
    *,
    options: data.IngestOptions,
    as_json: Json = False,
) -> None:
    """Take in whatever arrives in a folder, until interrupted; a report for each round.

    Example: ms data watch /data/robot-7 --dataset pick --moved /data/robot-7-done
    """
    rounds = context.obj.data.watch(
        folder, dataset, recipe=recipe, options=options, moved=moved, settle_s=settle, kept_back=ERRORS.print
    )
    ERRORS.print(f"Watching {folder} for {dataset}; end with Ctrl-C.")
    for report in rounds:
        if as_json:
            sys.stdout.write(json.dumps(to_plain(report)) + "\n")
            sys.stdout.flush()
        else:
            show(look.round_line(report))


@app.command("inspect", rich_help_panel=BRING_IN)
def inspect_command(
    context: LabContext,
    path: Annotated[
        str, typer.Argument(help="MCAP, ROS bag or ULog; a LeRobot dataset; or a folder of tables.", metavar="FILE")
    ],
    write: Annotated[Path | None, typer.Option(help="Write the recipe to this file.", metavar="RECIPE.yaml")] = None,
    msgs: said.Definitions = None,
    as_json: Json = False,
) -> None:
    """Show a log's topics, rates and gaps, and a recipe by which it could be taken in; of a dataset, its options.

    Example: ms data inspect run.bag --write pick.yaml
    """
    proposal = context.obj.data.inspect(path, msgs)
    if isinstance(proposal, data.SetProposal):
        if write is not None:
            raise InvalidInput(
                "write a recipe",
                on=str(path),
                got="a dataset, which needs none",
                wanted="no --write; its options are shown",
            )
        show(proposal, as_json=as_json, look=lambda: look.set_proposal_look(proposal, Path(path)))
        return
    if write is not None:
        try:
            with open(write, "x", encoding="utf-8") as file:
                file.write(proposal.text)
        except FileExistsError as error:
            raise Conflict("write a recipe", on=str(write), got="a file", wanted="a new name") from error
        ERRORS.print(f"Wrote {write}. Read it through, then: ms data ingest {path} --dataset NAME --recipe {write}")
    show(proposal, as_json=as_json, look=lambda: look.proposal_look(proposal))


@app.command("upload", rich_help_panel=BRING_IN)
def upload_command(
    context: LabContext,
    files: Annotated[list[Path], typer.Argument(help="Recordings: .mcap, .bag, .db3, .ulg.", metavar="FILE")],
    dataset: Dataset,
    recipe: Recipe = None,
    wait: Annotated[bool, typer.Option("--wait", help="Wait until each was read; exit 1 when any is refused.")] = False,
    as_json: Json = False,
) -> None:
    """Send recordings to the server, which takes them in. After a break, the same command goes on where it was.

    Example: ms data upload run-0412.mcap --dataset pick --wait
    """
    lab = context.obj
    if recipe is not None:
        lab.data.send_recipe(recipe, dataset)
    sizes = {path: path.stat().st_size for path in files}
    found: dict[str, ArrivalView] = {}
    with bytes_bar() as bar:
        task, done = bar.add_task("upload", total=sum(sizes.values())), 0
        for path in files:

            def advanced(here: int, before: int = done) -> None:
                bar.update(task, completed=before + here)

            found[str(path)] = lab.data.upload(path, dataset, progress=advanced)
            done += sizes[path]
    if wait:
        found = {str(path): lab.data.upload(path, dataset, wait_s=_UPLOAD_WAIT_S) for path in files}
    show(found, as_json=as_json, look=lambda: look.arrivals_table(found))
    if any(view.standing is Standing.REFUSED for view in found.values()):
        raise typer.Exit(1)


@app.command("ls", rich_help_panel=LOOK)
def list_command(context: LabContext, as_json: Json = False) -> None:
    """List datasets with their newest versions."""
    newest = context.obj.data.datasets()
    none = "No datasets yet. Try: ms data ingest SOURCE --dataset NAME"
    show(newest, as_json=as_json, look=lambda: look.versions_table(newest) if newest else none)


@app.command("show", rich_help_panel=LOOK)
def show_command(
    context: LabContext,
    name: Name,
    episode: Annotated[str, typer.Argument(help="One episode: its id, or how it begins.", metavar="EPISODE")] = "",
    png: Annotated[
        Path | None, typer.Option(help="Draw the episode's pictures and curves into this file.", metavar="FILE")
    ] = None,
    episodes: Annotated[int, typer.Option(min=0, max=10_000, help="How many episodes to list.")] = 10,
    as_json: Json = False,
) -> None:
    """Show a version and its first episodes; or one episode, and its contact sheet.

    Example: ms data show pick 3f2a --png episode.png
    """
    lab = context.obj
    version = lab.data.version(name)
    if png is not None and not episode:
        episode = lab.data.episodes(version.name, limit=1)[0].id
    if episode:
        row = lab.data.sheet(version.name, episode, png) if png else lab.data.episode(version.name, episode)
        if png:
            ERRORS.print(f"Drew {png}")
        said = lab.data.annotations(version.name, row.id)
        facts = {**to_plain(row), "annotations": to_plain(said)}
        show(facts, as_json=as_json, look=lambda: look.episode_panel(row, version.features, said))
        return
    rows = lab.data.episodes(version.name, limit=episodes)
    fresh, pins = data.freshness(lab.data.store, version), data.pins(lab.data.store, version.name)
    facts = {"version": version, "episodes": rows, "freshness": fresh, "pins": pins}
    show(facts, as_json=as_json, look=lambda: look.version_panel(version, rows, fresh, pins))


@app.command("view", rich_help_panel=MAKE)
def view_command(
    context: LabContext,
    name: Name,
    image_size: Annotated[
        int | None, typer.Option(help="Height and width of images, in pixels, even.", show_default="64")
    ] = None,
    codec: Annotated[
        ViewCodec | None,
        typer.Option(
            help="raw keeps pixels; h264 video and jpeg pictures are smaller, and decoded when read.",
            show_default="raw",
        ),
    ] = None,
    gop: Annotated[int | None, typer.Option(help="h264: frames that are decoded together.", show_default="10")] = None,
    quality: Annotated[
        int | None,
        typer.Option(
            help="h264: 0 is lossless, 51 the worst. jpeg: 1 the best, 31 the worst.",
            show_default="h264 14 at 64 pixels to 26 at 224, jpeg 3",
        ),
    ] = None,
    rate: Annotated[
        float | None, typer.Option("--rate", help="Rows a second.", metavar="HZ", show_default="every step")
    ] = None,
    camera: Annotated[
        list[str] | None, typer.Option(help="Repeat for more.", metavar="NAME", show_default="all")
    ] = None,
    column: Annotated[
        list[str] | None, typer.Option(help="Repeat for more.", metavar="NAME", show_default="action, state")
    ] = None,
    layer: Annotated[
        list[str] | None, typer.Option(help="A layer that columns come from; repeat for more.", metavar="ID")
    ] = None,
    holdout: Annotated[
        float | None, typer.Option(help="Share of episodes kept apart for evaluation.", show_default="0.1")
    ] = None,
    holdout_by: Annotated[
        str | None, typer.Option(help="SQL for what episodes share that must stay on one side.", show_default="id")
    ] = None,
    shard_mib: Annotated[int | None, typer.Option(help="Size of its files.", show_default="128")] = None,
    as_json: Json = False,
) -> None:
    """Make the training view of a version: frames resized, statistics, a held-out share. Made once, then found.

    A version that has grown takes over what was made for the one before.

    Example: ms data view pick --image-size 224 --codec h264 --holdout-by "metadata['session']"
    """
    given: dict[str, Any] = {
        "image_size": image_size,
        "codec": codec and codec.value,
        "gop": gop,
        "quality": quality,
        "rate_hz": rate,
        "cameras": tuple(sorted(camera)) if camera else None,
        "columns": tuple(sorted(column)) if column else None,
        "layers": tuple(data.find_layer(context.obj.objects(), id).id for id in layer) if layer else None,
        "holdout_fraction": holdout,
        "holdout_group": holdout_by,
        "shard_bytes": shard_mib and shard_mib << 20,
    }
    recipe = replace(data.ViewRecipe(), **{field: value for field, value in given.items() if value is not None})
    manifest = view_with_progress(context.obj, name, recipe)
    show(manifest, as_json=as_json, look=lambda: look.view_look(manifest))


app.add_typer(catalog.app)  # Without a name: its verbs are verbs of this group.
app.add_typer(annotate.app)
app.add_typer(clips.app)
app.add_typer(layers.app)
app.add_typer(export.app)
