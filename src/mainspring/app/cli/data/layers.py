"""`ms data`, what is computed of episodes, and what is checked: layers, first batches, freshness."""

from __future__ import annotations

import time
from typing import Annotated

import typer

from mainspring import data  # Loads its names when they are used, so that other verbs start fast.
from mainspring.app.cli.arguments import Json, LabContext
from mainspring.app.cli.data.catalog import LOOK, MAKE, Name
from mainspring.app.render.progress import progress_bar
from mainspring.app.render.tables import Listing, facts_grid, show
from mainspring.domain.errors import InvalidInput

app = typer.Typer()
_REASONS_SHOWN = 10


@app.command("layer", rich_help_panel=MAKE)
def layer_command(
    context: LabContext,
    name: Name,
    producer: Annotated[
        str, typer.Argument(help="path/file.py:name or package.module:name, a function with @producer.")
    ],
    told: Annotated[list[str] | None, typer.Option("--set", help="A parameter; again for more.", metavar="N=V")] = None,
    read: Annotated[list[str] | None, typer.Option("--read", help="A layer whose columns it sees.")] = None,
    processes: Annotated[int, typer.Option(min=0, max=1_024, help="On this machine; 0 for this one.")] = 0,
    ray: Annotated[str, typer.Option(help="A Ray cluster to run on: its address, auto or local.")] = "",
    as_json: Json = False,
) -> None:
    """Compute columns and facts of every episode that lacks them: a backfill. Runs the producer's code.

    What is there is never made again; changed code or parameters make another layer. Exit 1 when some episodes failed.

    Example: ms data layer pick quality.py:motion --set window=5 --processes 4
    """
    lab = context.obj
    parameters = dict(_parameter(word) for word in told or ())
    pool: data.Pool = data.RayPool(address=ray) if ray else data.LocalPool(processes=processes)
    with progress_bar() as bar:
        task = bar.add_task("layer", total=None, note="")
        report = data.backfill(
            lab.home.objects_url(lab.home.config()),
            data.resolve(lab.objects(), name),
            data.load_producer(producer),
            pool=pool,
            elapsed_s=time.monotonic,
            parameters=parameters,
            inputs=[data.find_layer(lab.objects(), id).id for id in read or ()],
            progress=lambda at: bar.update(task, completed=at.done, total=at.total),
        )
    reasons = {f"  {failure.episode[:12]}": failure.reason for failure in report.failures[:_REASONS_SHOWN]}
    counts = {"made": str(report.made), "held": str(report.held), "failed": str(report.failed)}
    show(report, as_json=as_json, look=lambda: facts_grid({"layer": report.layer.id, **counts, **reasons}))
    if report.failed:
        raise typer.Exit(1)


def _parameter(word: str) -> tuple[str, bool | int | float | str]:
    name, equals, text = word.partition("=")
    if not equals or not name.isidentifier():
        raise InvalidInput("read a parameter", got=repr(word[:80]), wanted="NAME=VALUE")
    if text in ("true", "false"):
        return name, text == "true"
    for kind in (int, float):
        try:
            return name, kind(text)
        except ValueError:
            continue
    return name, text


@app.command("layers", rich_help_panel=LOOK)
def layers_command(context: LabContext, as_json: Json = False) -> None:
    """List layers: what made them, and what they hold."""
    found = data.known_layers(context.obj.objects())

    def look() -> Listing | str:
        if not found:
            return "No layers yet. Try: ms data layer --help"
        return Listing("LAYER", "PRODUCER", "CODE", "~PARAMETERS", "~COLUMNS", "~FACTS").add_rows(
            (
                *(spec.id[:12], spec.producer, spec.code[:8]),
                " ".join(f"{key}={value}" for key, value in spec.parameters.items()),
                ", ".join(f"{column} {len(dims)}" for column, dims in spec.columns.items()),
                ", ".join(spec.facts),
            )
            for spec in found
        )

    show(found, as_json=as_json, look=look)


@app.command("check", rich_help_panel=LOOK)
def check_command(
    context: LabContext,
    view: Annotated[
        str | None, typer.Argument(help="A view's id, as ms data view prints it.", metavar="VIEW", show_default="all")
    ] = None,
    as_json: Json = False,
) -> None:
    """Check that a view's first batches are what they were; name what was made of pictures that may be wrong.

    Without a view, only the latter: views and layers that an earlier version made from videos that it could decode
    wrongly, with the commands that make them again. Exit 2 if a batch changed, or anything is named.
    """
    lab = context.obj
    found = [each for each in data.suspects(lab.objects()) if view is None or each.id == view]
    if view is not None:
        golden = data.check_golden(
            lab.objects(), data.open_view(lab.objects(), view, lab.home.cache / "views", "train")
        )
        facts = {"view": golden.view, "first batches": str(golden.batches), "hash": golden.hash}
        show(golden, as_json=as_json, look=lambda: facts_grid(facts))
    if view is None or found:
        show(found, as_json=as_json and view is None, look=lambda: _suspects_look(found))
    if found:
        raise typer.Exit(2)


def _suspects_look(found: list[data.Suspect]) -> Listing | str:
    if not found:
        return "Nothing here was made by a decoding path that could show wrong pictures."
    return Listing("SUSPECT", "ID", "OF", "VIDEOS", "MAKE IT AGAIN").add_rows(
        (
            *(each.kind, each.id[:12], each.version or "a deleted version", ", ".join(each.codecs)),
            each.command or "not possible: its version is deleted",
        )
        for each in found
    )


@app.command("fresh", rich_help_panel=LOOK)
def fresh_command(context: LabContext, name: Name, as_json: Json = False) -> None:
    """Show how long a version's new episodes took from their arrival until they could be trained on."""
    fresh = data.freshness(context.obj.objects(), data.resolve(context.obj.objects(), name))
    facts = {
        "version": fresh.version,
        "new episodes": str(fresh.episodes),
        "half within": f"{fresh.median_s:.1f} s",
        "95 of 100 within": f"{fresh.late_s:.1f} s",
        "all within": f"{fresh.max_s:.1f} s",
    }
    show(fresh, as_json=as_json, look=lambda: facts_grid(facts))
