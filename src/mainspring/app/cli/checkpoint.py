"""`ms checkpoint`: look at the checkpoints of jobs, compare them, and exchange them with other programs."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import Enum
from pathlib import Path
from typing import Annotated

import typer

from mainspring.app.cli.arguments import Json, LabContext
from mainspring.app.render import checkpoints as look
from mainspring.app.render.progress import bytes_bar
from mainspring.app.render.tables import show, size_text
from mainspring.app.sdk.checkpoints import CheckpointFinder
from mainspring.checkpoint import (
    KEEP_STEPS,
    collect,
    durable_steps,
    read_manifest,
    verify,
)
from mainspring.checkpoint.difference import differences
from mainspring.checkpoint.exchange import StoredSource, import_source
from mainspring.checkpoint.interop import ArraySource, weights_of, with_prefix, without_prefix
from mainspring.checkpoint.orbax import OrbaxSource, write_orbax
from mainspring.checkpoint.safetensors import SafetensorsSource, is_safetensors, write_safetensors
from mainspring.domain.errors import DamagedData
from mainspring.train.state.merged import ADAPTERS, merged_source

app = typer.Typer()


class Format(str, Enum):
    """A format of other programs."""

    ORBAX = "orbax"
    SAFETENSORS = "safetensors"


Objects = Annotated[
    str, typer.Option(help="Object store they lie in; this lab's own when left out.", metavar="URL", show_default=False)
]
Reference = Annotated[str, typer.Argument(help="A job's id or name, or an import's name.", metavar="JOB[@STEP]")]
Weights = Annotated[bool, typer.Option("--weights-only", help="Leave optimizer state and everything else out.")]


@contextmanager
def _progress(doing: str, size_bytes: int) -> Iterator[Callable[[int], None]]:
    """Shows on standard error how far some bytes are; gives what is to be told of them."""
    with bytes_bar() as bar:
        task = bar.add_task(doing, total=size_bytes)
        yield lambda done: bar.update(task, advance=done)


@app.command("ls")
def list_command(
    context: LabContext,
    job: Annotated[str, typer.Argument(help="Its steps; every job and import when left out.", metavar="JOB")] = "",
    objects: Objects = "",
    as_json: Json = False,
) -> None:
    """List what has checkpoints, or the steps of one job."""
    shelf = CheckpointFinder(context.obj, objects)
    wanted = (shelf.job(job),) if job else shelf.jobs()
    rows: list[look.Row] = []
    for each in wanted:
        for step in durable_steps(shelf.store, each)[: None if job else 1]:
            try:
                rows.append(look.row_of(read_manifest(shelf.store, each, step)))
            except DamagedData as error:
                rows.append(look.Row(job=each, step=step, damage=str(error)))
    none = "No checkpoints yet. A job saves them by session.snapshot; others come by ms checkpoint import."
    show(tuple(rows), as_json=as_json, look=lambda: look.rows_table(rows, now_s=time.time()) if rows else none)


@app.command("show")
def show_command(context: LabContext, reference: Reference, objects: Objects = "", as_json: Json = False) -> None:
    """Show one checkpoint: what it holds, part by part and as a tree, and what it came from."""
    checkpoint = CheckpointFinder(context.obj, objects).open(reference)
    arrays = StoredSource(checkpoint).arrays
    manifest = checkpoint.manifest
    facts = {"checkpoint": look.row_of(manifest), "lineage": manifest.lineage, "state": manifest.state}
    facts |= {"parts": look.parts_of(arrays), "arrays": arrays}
    show(facts, as_json=as_json, look=lambda: look.checkpoint_panel(manifest, arrays, now_s=time.time()))


@app.command("verify")
def verify_command(context: LabContext, reference: Reference, objects: Objects = "", as_json: Json = False) -> None:
    """Read every byte and check it: of one step, or of every step of a job. Exit 1 when any is damaged."""
    shelf = CheckpointFinder(context.obj, objects)
    wanted = shelf.steps(reference)
    verdicts: list[look.Agreement] = []
    for step in wanted.steps:
        try:
            verdicts.append(
                look.Agreement(job=wanted.job, step=step, size_bytes=verify(shelf.store, wanted.job, step).size_bytes)
            )
        except DamagedData as error:
            verdicts.append(look.Agreement(job=wanted.job, step=step, damage=str(error)))
    show(tuple(verdicts), as_json=as_json, look=lambda: look.verdicts_table(verdicts))
    if any(verdict.damage for verdict in verdicts):
        raise typer.Exit(1)


@app.command("diff")
def diff_command(
    context: LabContext,
    left: Annotated[str, typer.Argument(help="One checkpoint.", metavar="JOB[@STEP]")],
    right: Annotated[str, typer.Argument(help="Another.", metavar="JOB[@STEP]")],
    limit: Annotated[int, typer.Option(min=1, max=10_000, help="Show so many arrays, the most different first.")] = 40,
    objects: Objects = "",
    as_json: Json = False,
) -> None:
    """Compare two checkpoints array by array. Exit 1 when they differ."""
    shelf = CheckpointFinder(context.obj, objects)
    one, other = StoredSource(shelf.open(left)), StoredSource(shelf.open(right))
    with _progress("compare", sum(array.size_bytes for array in one.arrays)) as progress:
        found = differences(one, other, progress=progress)
    changed = tuple(each for each in found if not each.same)
    facts = {"left": one.name, "right": other.name, "same": len(found) - len(changed), "differences": changed}
    show(facts, as_json=as_json, look=lambda: look.differences_table(one, other, found, limit=limit))
    if changed:
        raise typer.Exit(1)


@app.command("export")
def export_command(
    context: LabContext,
    reference: Reference,
    path: Annotated[Path, typer.Argument(help="Folder to write; it must not exist.", metavar="PATH")],
    form: Annotated[Format, typer.Option("--format", help="What it shall be.")],
    weights_only: Weights = False,
    under: Annotated[str, typer.Option(help="Only what lies below this path, named from there.", metavar="PATH")] = "",
    objects: Objects = "",
    as_json: Json = False,
) -> None:
    """Write a checkpoint as Orbax or safetensors. It appears whole or not at all.

    Adapters of LoRA are merged into the weights; `--under adapters` writes them alone.
    """
    source: ArraySource = StoredSource(CheckpointFinder(context.obj, objects).open(reference))
    source = source if under.strip("/").partition("/")[0] == ADAPTERS else merged_source(source)
    source = weights_of(source) if weights_only else source
    source = without_prefix(source, under) if under else source
    size_bytes = sum(array.size_bytes for array in source.arrays)
    write = write_orbax if form is Format.ORBAX else write_safetensors
    with _progress("export", size_bytes) as progress:
        write(source, path, progress=progress)
    facts = {"checkpoint": source.name, "path": str(path), "format": form.value, "arrays": len(source.arrays)}
    told = f"Wrote {source.name} to {path}: {len(source.arrays)} arrays, {size_text(size_bytes)}, {form.value}."
    show({**facts, "size_bytes": size_bytes}, as_json=as_json, look=lambda: told)


@app.command("import")
def import_command(
    context: LabContext,
    path: Annotated[Path, typer.Argument(help="An Orbax checkpoint, or safetensors: a folder or file.")],
    job: Annotated[str, typer.Option(help="Name it gets, where others have a job's id.", metavar="NAME")],
    form: Annotated[Format | None, typer.Option("--format", help="What it is.", show_default="as it looks")] = None,
    step: Annotated[int | None, typer.Option(min=0, help="Step it counts as.", show_default="its own, else 0")] = None,
    weights_only: Weights = False,
    under: Annotated[str, typer.Option(help="Put its arrays below this path of the tree.", metavar="PATH")] = "",
    objects: Objects = "",
    as_json: Json = False,
) -> None:
    """Take in an Orbax or safetensors checkpoint, so that jobs can begin from it."""
    shelf = CheckpointFinder(context.obj, objects)
    job = shelf.unused(job)
    form = form or (Format.SAFETENSORS if is_safetensors(path) else Format.ORBAX)
    source: ArraySource = OrbaxSource(path) if form is Format.ORBAX else SafetensorsSource(path)
    source = with_prefix(source, under) if under else source
    source = weights_of(source) if weights_only else source
    at = max(source.facts.step, 0) if step is None else step
    with _progress("import", sum(array.size_bytes for array in source.arrays)) as progress:
        manifest = import_source(shelf.store, source, job=job, step=at, now_s=time.time(), progress=progress)
    told = f"Took in {path} as {job}@{at}: {len(source.arrays)} arrays, {size_text(manifest.size_bytes)}."
    show(look.row_of(manifest), as_json=as_json, look=lambda: f"{told}\nLook: ms checkpoint show {job}@{at}")


@app.command("gc")
def gc_command(
    context: LabContext,
    job: Annotated[str, typer.Argument(help="A job's id or name, or an import's name.", metavar="JOB")],
    keep: Annotated[int, typer.Option(min=1, max=1_000_000, help="So many of its newest steps stay.")] = KEEP_STEPS,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only tell what would go.")] = False,
    objects: Objects = "",
    as_json: Json = False,
) -> None:
    """Delete all but the newest steps of a job, and what broken saves left behind."""
    shelf = CheckpointFinder(context.obj, objects)
    found = collect(shelf.store, shelf.job(job), keep=keep, dry_run=dry_run)
    told = "Would delete" if dry_run else "Deleted"
    steps = ", ".join(map(str, found.steps[:20])) or "none"
    show(
        found,
        as_json=as_json,
        look=lambda: f"{told} {len(found.keys)} objects, {size_text(found.size_bytes)}; whole steps: {steps}.",
    )
