"""`ms train`: a recipe, data and perhaps weights to begin with, as a job; what does not fit is told first."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mainspring.app import sdk
from mainspring.app.base.specs import DURATION_FORM
from mainspring.app.cli.arguments import Json, LabContext
from mainspring.app.cli.jobs import Chips, run
from mainspring.domain.codec import to_plain
from mainspring.domain.errors import InvalidInput, NotFound
from mainspring.domain.job import Tier

if TYPE_CHECKING:
    from mainspring.data import View
    from mainspring.data.views.manifest import Split
    from mainspring.train.recipe import Recipe


def train(
    context: LabContext,
    name: Annotated[str, typer.Argument(help="One of `ms recipe ls`, or FILE.py:FUNCTION.", metavar="RECIPE")],
    view: Annotated[
        list[str],
        typer.Option(help="Training view to learn from; one for each of data.sources.", metavar="[SOURCE=]ID"),
    ],
    begin: Annotated[
        str,
        typer.Option(
            "--from",
            help="Weights to begin with: a file or folder of openpi's, LeRobot's or ours; or a checkpoint.",
            metavar="PATH|JOB[@STEP]",
        ),
    ] = "",
    statistics: Annotated[
        Path | None, typer.Option(help="What these weights' data was normalised by: norm_stats.json.", metavar="PATH")
    ] = None,
    lora: Annotated[bool, typer.Option("--lora", help="Learn adapters beside the weights of a VLA.")] = False,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="FIELD=VALUE", help="Another value of a field of the recipe; repeat."),
    ] = None,
    on: Chips = None,
    replicas: Annotated[int | None, typer.Option(min=1, help="Replicas that start together.", show_default="1")] = None,
    spares: Annotated[int, typer.Option(min=0, help="How many of them stand by, to take the place of lost ones.")] = 0,
    job_name: Annotated[str, typer.Option("--name", help="Name of the job.", show_default="the recipe's")] = "",
    duration: Annotated[str, typer.Option(help=f"How long it will run, as you expect: {DURATION_FORM}.")] = "",
    team: Annotated[str, typer.Option(help="Team that is charged.", show_default="lab")] = "",
    tier: Annotated[Tier | None, typer.Option(help="How urgent it is.", show_default="standard")] = None,
    no_code: Annotated[bool, typer.Option("--no-code", help="Do not take the working tree along.")] = False,
    no_plan: Annotated[bool, typer.Option("--no-plan", help="Do not look whether its recipe fits the chips.")] = False,
    wait: Annotated[bool, typer.Option("--wait", help="Wait until it has ended; exit 1 unless it succeeded.")] = False,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Show rank 0's output while waiting.")] = False,
    as_json: Json = False,
) -> None:
    """Train a recipe on data, from nothing or from given weights, whole or with adapters.

    Try it: ms train pi0 --lora --from pi0_base/params --view $VIEW --on rtx4090
    """
    lab, checkpoint = context.obj, ""
    if begin and not Path(begin).exists():
        from mainspring.app.sdk.checkpoints import CheckpointFinder

        found = CheckpointFinder(lab).steps(begin)
        begin = checkpoint = f"{found.job}@{found.steps[0]}"
    from mainspring.train.naming import find_recipe

    recipe = _begun(find_recipe(name, settings or ()), begin, statistics=statistics, lora=lora)
    if no_code:
        _check_own_files(name, recipe)
    _check(lab, recipe, view)
    run(
        context,
        _command(lab, name, recipe, view),
        name=job_name or recipe.name,
        on=on,
        replicas=replicas,
        spares=spares,
        duration=duration,
        team=team,
        tier=tier,
        views=[each.rpartition("=")[2] for each in view],
        begins_from=checkpoint,
        no_code=no_code,
        no_plan=no_plan,
        wait=wait,
        follow=follow,
        as_json=as_json,
    )


def _begun(recipe: Recipe, begin: str, *, statistics: Path | None, lora: bool) -> Recipe:
    """Returns a recipe that begins with given weights."""
    from mainspring.train.models.shapes import VlaRecipe
    from mainspring.train.recipe import VLA_LORA, changed

    if lora and not isinstance(recipe.policy, VlaRecipe):
        raise InvalidInput(
            "learn adapters", on=recipe.name, got="a policy that is no VLA", wanted="a VLA", next_step="set lora itself"
        )
    if lora and recipe.lora is None:
        recipe = changed(recipe, {"lora": to_plain(VLA_LORA)})
    if statistics is not None and not begin:
        raise InvalidInput("train", got="--statistics alone", wanted="--from beside it: they are those of its weights")
    if begin:
        path = str(Path(begin).resolve()) if Path(begin).exists() else begin
        given = {"path": path, **({"statistics": str(statistics.resolve())} if statistics is not None else {})}
        recipe = changed(recipe, {"init": given})
    return recipe


def _check_own_files(name: str, recipe: Recipe) -> None:
    """Checks that a job without the working tree needs no file of it: what is named from here is not there."""
    from mainspring.train.robots import BYTES, WORDS

    init = recipe.init
    path, colon, _ = name.rpartition(":")
    named = [path if colon else "", recipe.data.tokenizer]
    named += [] if init is None else [init.path, init.statistics or ""]
    named = [each for each in named if each not in ("", BYTES, WORDS)]
    left = [each for each in named if not Path(each).is_absolute() and Path(each).exists()]
    if left:
        raise InvalidInput(
            "train without the working tree",
            on=recipe.name,
            got=f"--no-code, which would leave {' and '.join(left)} behind",
            wanted="the files that the job reads",
            next_step="leave --no-code out; or name a file by its whole path, where that is the same on every node",
        )


def _command(lab: sdk.Lab, name: str, recipe: Recipe, views: list[str]) -> list[str]:
    """Returns the program and its arguments: the recipe by its name, and what of it is another."""
    from mainspring.train.naming import find_recipe

    command = ["python", "-m", "mainspring", "train", "--objects", lab.home.objects_url(lab.home.config())]
    command += ["--cache", str(lab.home.cache), "--recipe", name]
    command += [word for view in views for word in ("--view", view)]
    changes = differing(to_plain(find_recipe(name)), to_plain(recipe))
    return [*command, "--changes", json.dumps(changes)] if changes else command


def _check(lab: sdk.Lab, recipe: Recipe, views: list[str]) -> None:
    """Checks a recipe against its data, on both sides, of which only tables of episodes are brought here."""
    from mainspring.data import open_view
    from mainspring.objects import Blob, fetch_blob
    from mainspring.train.inputs.fitting import Fitting
    from mainspring.train.inputs.sources import GivenView, Sources

    store, cache = lab.objects(), lab.home.cache / "views"

    def files(blob: Blob) -> Path:
        return fetch_blob(store, blob, cache)

    def ranges(blob: Blob, offset: int, size_bytes: int) -> memoryview:
        raise AssertionError("nothing is decoded here")

    def side(given: str, split: Split) -> View:
        return open_view(store, given.rpartition("=")[2], cache, split, files=files, ranges=ranges)

    def held_out(given: str) -> View | None:
        if recipe.held_out is not None:
            with suppress(NotFound):  # A view may have nothing on that side.
                return side(given, "holdout")
        return None

    sources = [
        GivenView(name=each.rpartition("=")[0], view=side(each, "train"), held_out=held_out(each)) for each in views
    ]
    opened = Sources(recipe, sources)
    fitting = Fitting(opened)
    fitting.check_tasks()
    opened.loader(rank=0, world_size=1, fit=fitting)


def differing(base: Mapping[str, Any], wanted: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the fields of a recipe that differ from another's, nested like it: what `changed` takes.

    Args:
        base: The other, as JSON has it.
        wanted: The recipe, likewise.
    """
    found: dict[str, Any] = {}
    for name, value in wanted.items():
        theirs = base.get(name)
        if isinstance(value, Mapping) and isinstance(theirs, Mapping):
            if inner := differing(theirs, value):
                found[name] = inner
        elif value != theirs:
            found[name] = value
    return found
