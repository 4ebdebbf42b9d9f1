"""`ms data`: take recordings in, list and show datasets, make training views."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Group, RenderableType
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from mainspring import data  # Loads its names when they are used, so that other verbs start fast.
from mainspring.app.output import ERRORS, Listing, ago, facts_grid, framed, show
from mainspring.app.sdk import Lab
from mainspring.objects import ObjectStore

app = typer.Typer(help="Take recordings in, list and show datasets, make training views.", no_args_is_help=True)
Json = Annotated[bool, typer.Option("--json", help="Print JSON for machines.")]
_REASONS_SHOWN = 20


def progress_bar() -> Progress:
    """Returns a progress bar on standard error, which leaves standard output to the answer."""
    return Progress(
        TextColumn("{task.description:<10}"),
        BarColumn(bar_width=40),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.fields[note]}"),
        console=ERRORS,
    )


def ingest_with_progress(source: Path, store: ObjectStore, dataset: str) -> data.IngestReport:
    """Takes a source in, showing how far it is.

    Args:
        source: Recordings on disk.
        store: Where they go.
        dataset: Name of the dataset they join.
    """
    with progress_bar() as bar:
        task = bar.add_task("ingest", total=None, note="")

        def advanced(progress: data.IngestProgress) -> None:
            bar.update(task, completed=progress.done, total=progress.total)

        return data.ingest(source, store, dataset, progress=advanced)


def view_with_progress(
    store: ObjectStore, version: data.Version, recipe: data.ViewRecipe, scratch: Path
) -> data.ViewManifest:
    """Makes a training view, showing how far it is.

    Args:
        store: Where the version lies and the view goes.
        version: What it is a view of.
        recipe: What it is made like.
        scratch: Local folder for files on their way.
    """
    scratch.mkdir(parents=True, exist_ok=True)
    with progress_bar() as bar:
        task = bar.add_task("view", total=version.episodes, note="")

        def advanced(progress: data.ViewProgress) -> None:
            bar.update(task, completed=progress.done, total=progress.total)

        return data.build_view(store, version, recipe, scratch_dir=scratch, progress=advanced)


@app.command("ingest")
def ingest_command(
    context: typer.Context,
    source: Annotated[
        Path, typer.Argument(help="A folder of MCAP files, one such file, or a LeRobot dataset.", metavar="SOURCE")
    ],
    dataset: Annotated[str, typer.Option(help="Name of the dataset they join.")],
    as_json: Json = False,
) -> None:
    """Validate recordings, keep the sound ones as episodes, and freeze a version. Exit 1 when none was sound."""
    lab: Lab = context.obj
    report = ingest_with_progress(source, lab.objects(), dataset)
    show(report, as_json=as_json, look=lambda: report_panel(report))
    if report.version is None:
        raise typer.Exit(1)


def report_panel(report: data.IngestReport) -> RenderableType:
    """Returns what came of an ingest.

    Args:
        report: The report.
    """
    frozen = report.version.name if report.version else "nothing: no recording was sound"
    lines = [
        f"frozen    {frozen}",
        f"sound     {report.episodes} episodes, {report.frames} steps ({report.added} new)",
        f"left out  {len(report.left_out)}",
        *(f"  {left.source}: {left.reason}" for left in report.left_out[:_REASONS_SHOWN]),
    ]
    if len(report.left_out) > _REASONS_SHOWN:
        lines.append(f"  and {len(report.left_out) - _REASONS_SHOWN} more: --json lists them all")
    return framed("\n".join(lines), f"dataset {report.dataset}")


@app.command("ls")
def list_command(context: typer.Context, as_json: Json = False) -> None:
    """List datasets with their newest versions."""
    store = context.obj.objects()
    newest = tuple(data.resolve(store, name) for name in data.datasets(store))

    def look() -> RenderableType:
        if not newest:
            return "No datasets yet. Try: ms data ingest SOURCE --dataset NAME"
        made = Listing("DATASET", ">VERSION", ">EPISODES", ">STEPS", "?>TIME", "?>MIB", "~FEATURES")
        for each in newest:
            counts = (str(each.number), str(each.episodes), str(each.frames), ago(each.seconds))
            made.add_row(each.dataset, *counts, f"{each.size_bytes / 2**20:.1f}", str(each.features))
        return made

    show(newest, as_json=as_json, look=look)


@app.command("show")
def show_command(
    context: typer.Context,
    name: Annotated[str, typer.Argument(help="A dataset, or one version of it such as pick@3.", metavar="DATASET[@N]")],
    episodes: Annotated[int, typer.Option(min=0, max=10_000, help="How many episodes to list.")] = 10,
    as_json: Json = False,
) -> None:
    """Show one version: features, tasks, history and its first episodes."""
    store = context.obj.objects()
    version = data.resolve(store, name)
    rows = data.episode_rows(store, version)[:episodes]
    facts = {
        "version": version,
        "episodes": rows,
        "history": tuple(each.name for each in data.versions(store, version.dataset)),
    }
    show(facts, as_json=as_json, look=lambda: _version_look(version, rows))


def _version_look(version: data.Version, rows: tuple[data.EpisodeRow, ...]) -> RenderableType:
    facts = facts_grid(
        {
            "episodes": f"{version.episodes} ({version.frames} steps, {ago(version.seconds)})",
            "size": f"{version.size_bytes / 2**20:.1f} MiB",
            "features": str(version.features),
            "tasks": "; ".join(version.tasks),
            "id": version.id,
        }
    )
    listed = Listing("EPISODE", "SOURCE", "?>HZ", "?SUCCESS", ">STEPS", ">TIME", "~TASK")
    for row in rows:
        success = "-" if row.success is None else "yes" if row.success else "no"
        numbers = (f"{row.rate_hz:g}", success, str(row.frames), f"{row.seconds:.1f} s")
        listed.add_row(row.id[:12], row.source, *numbers, row.task)
    return Group(framed(facts, version.name), listed) if rows else framed(facts, version.name)


@app.command("view")
def view_command(
    context: typer.Context,
    name: Annotated[str, typer.Argument(help="A dataset, or one version of it.", metavar="DATASET[@N]")],
    image_size: Annotated[int, typer.Option(min=8, max=1_024, help="Height and width of images, in pixels.")] = 64,
    holdout: Annotated[float, typer.Option(min=0, max=0.9, help="Share of episodes kept apart for evaluation.")] = 0.1,
    as_json: Json = False,
) -> None:
    """Make the training view of a version: frames decoded once, statistics, a held-out share. Made once, then found."""
    lab: Lab = context.obj
    store = lab.objects()
    recipe = data.ViewRecipe(image_size=image_size, holdout_fraction=holdout)
    manifest = view_with_progress(store, data.resolve(store, name), recipe, lab.home.cache / "scratch")
    splits = {name: f"{split.episodes} episodes, {split.rows} steps" for name, split in sorted(manifest.splits.items())}
    show(manifest, as_json=as_json, look=lambda: facts_grid({"view": manifest.id, **splits}))
