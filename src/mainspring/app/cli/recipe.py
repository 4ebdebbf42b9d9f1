"""`ms recipe`: what recipes hold, how two differ, and what they would need on chips that nobody has asked for yet."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated

import typer

from mainspring.app.cli.arguments import Json, LabContext
from mainspring.app.render import recipes as look
from mainspring.app.render.progress import progress_bar
from mainspring.app.render.tables import show
from mainspring.app.sdk.recipes import (
    SIGNATURE_FORM,
    fields_of,
    find_recipe,
    own_recipes,
    price_of,
    signature_for,
    with_layout,
    with_setting,
)
from mainspring.domain.errors import InvalidInput, MainspringError
from mainspring.train.models.shapes import Signature
from mainspring.train.plan.analytic import analytic_figures
from mainspring.train.plan.chips import figures_of
from mainspring.train.plan.choice import best_layouts
from mainspring.train.plan.estimate import estimated, smallest_change
from mainspring.train.plan.figures import StepFigures
from mainspring.train.plan.targets import Target, parsed_target
from mainspring.train.recipe import Recipe

app = typer.Typer()

AUTO, OWN = "auto", "recipe"

Name = Annotated[str, typer.Argument(help="One of `ms recipe ls`, or FILE.py:FUNCTION.", metavar="RECIPE")]
Settings = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="FIELD=VALUE", help="Another value, dotted: policy.compute.remat=dots; repeat."),
]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Asked:
    """What is to be planned.

    Args:
        layout: `AUTO`, `OWN`, or axes and sizes.
        per_chip: Samples of a batch for each chip, None for the recipe's batch.
        ask: Gives the figures of a recipe on a target.
    """

    recipe: Recipe
    signature: Signature
    layout: str
    per_chip: int | None
    price: float | None
    ask: Callable[[Recipe, Signature, Target], StepFigures]
    analytic: bool


@app.command("ls")
def list_command(as_json: Json = False) -> None:
    """List the recipes that Mainspring brings."""
    rows = tuple(look.row_of(recipe, signature_for(recipe)) for recipe in own_recipes().values())
    show(rows, as_json=as_json, look=lambda: look.rows_table(rows))


@app.command("show")
def show_command(name: Name, settings: Settings = None, as_json: Json = False) -> None:
    """Show every field of a recipe."""
    recipe = find_recipe(name, settings or ())
    show(recipe, as_json=as_json, look=lambda: look.fields_grid(fields_of(recipe)))


@app.command("diff")
def diff_command(left: Name, right: Name, as_json: Json = False) -> None:
    """Show the fields in which two recipes differ."""
    ours, theirs = fields_of(find_recipe(left)), fields_of(find_recipe(right))
    names = sorted({*ours, *theirs})
    found = {name: (ours.get(name), theirs.get(name)) for name in names if ours.get(name) != theirs.get(name)}
    plain = {name: {"left": both[0], "right": both[1]} for name, both in found.items()}
    show(plain, as_json=as_json, look=lambda: look.differences_table(found, left, right))


@app.command("plan")
def plan_command(
    context: LabContext,
    name: Name,
    on: Annotated[
        list[str], typer.Option("--on", metavar="CHIP:TOPOLOGY", help="v5p:8x8x4, v6e:16x16, h100:64; repeat.")
    ],
    slices: Annotated[int, typer.Option(min=1, help="Slices of TPUs, over the data centre's network.")] = 1,
    layout: Annotated[
        str, typer.Option(help=f"{OWN}: its own mesh; {AUTO}: the best; or data=64,tensor=2.", metavar="LAYOUT")
    ] = OWN,
    per_chip: Annotated[
        int | None, typer.Option("--batch-per-chip", min=1, help="Samples for each chip.", show_default="the recipe's")
    ] = None,
    settings: Settings = None,
    signature: Annotated[
        str, typer.Option(metavar=SIGNATURE_FORM, help="What the data decides; some or all.", show_default=False)
    ] = "",
    price: Annotated[
        float | None,
        typer.Option("--dollars-per-chip-hour", min=0, help="For dollars.", show_default="as a cluster is configured"),
    ] = None,
    deadline: Annotated[str, typer.Option(help="How long one compile may take.")] = "30m",
    analytic: Annotated[bool, typer.Option("--analytic", help="Formulas alone: no compiler, no JAX.")] = False,
    as_json: Json = False,
) -> None:
    """Tell what a recipe needs on chips, whether it fits, and how fast it is at best, before anybody asks for them.

    Try it: ms recipe plan pi0 --on v5p:4x4x4 --layout data=64 --batch-per-chip 8 --analytic
    """
    recipe = find_recipe(name, settings or ())
    asked = _Asked(
        recipe=recipe,
        signature=signature_for(recipe, signature),
        layout=layout,
        per_chip=per_chip,
        price=price,
        ask=analytic_figures if analytic else _compiler(context, deadline),
        analytic=analytic,
    )
    targets = [parsed_target(text, slices=slices) for text in on]
    planned = tuple(_planned(context, asked, target, alone=len(targets) == 1) for target in targets)
    show(tuple(map(look.plain_plan, planned)), as_json=as_json, look=lambda: look.plans_panel(planned))
    if not all(each.fits for each in planned):
        raise typer.Exit(1)


def _compiler(context: LabContext, deadline: str) -> Callable[[Recipe, Signature, Target], StepFigures]:
    """Returns what asks the compiler of a target's chips, one question at a time, and formulas where it has none."""
    from mainspring.app.base.specs import duration_from

    cache, deadline_s = context.obj.home.cache / "plans", duration_from(deadline)

    def ask(recipe: Recipe, signature: Signature, target: Target) -> StepFigures:
        if not figures_of(target.chip).is_tpu:
            return analytic_figures(recipe, signature, target)  # Without a GPU nobody compiles for it.
        from mainspring.train.plan.compiled import compiled_figures

        with progress_bar() as bar:
            task = bar.add_task("compile", note=f"s: {recipe.name} for {target.name}")
            return compiled_figures(
                recipe,
                signature,
                target,
                cache=cache,
                progress=lambda passed_s: bar.update(task, completed=round(passed_s)),
                deadline_s=deadline_s,
            )

    return ask


def _planned(context: LabContext, asked: _Asked, target: Target, *, alone: bool) -> look.Planned:
    """Returns the answer for one target; of several, one that cannot be is told among the others."""
    try:
        price = price_of(context.obj.home, target.chip) if asked.price is None else asked.price
        recipe = asked.recipe
        if asked.per_chip is not None:
            chips = target.devices // figures_of(target.chip).devices
            recipe = with_setting(recipe, f"batch_size={asked.per_chip * chips}")
        if asked.layout == AUTO:
            return _chosen(asked, recipe, target, price)
        recipe = recipe if asked.layout == OWN else with_layout(recipe, asked.layout)
        return _answer(asked, recipe, target, price)
    except MainspringError as error:
        if alone:
            raise
        return look.Planned(target=target, error=str(error))


def _answer(asked: _Asked, recipe: Recipe, target: Target, price: float | None) -> look.Planned:
    """Returns the answer for one layout: the compiler's, and the formulas' where it has none to give."""
    figures = analytic_figures(recipe, asked.signature, target)  # Refuses what cannot be before anything compiles.
    said, refused, known = "", False, None
    if not asked.analytic:
        try:
            figures = known = asked.ask(recipe, asked.signature, target)
        except MainspringError as error:
            said, refused = str(error), isinstance(error, InvalidInput)
    found = estimated(recipe, asked.signature, target, figures, dollars_per_chip_hour=price)
    fits = found.fits and not refused
    change = None if fits else smallest_change(recipe, asked.signature, target, figures=known)
    return look.Planned(target=target, estimates=(found,), change=change, said=said, refused=refused)


def _chosen(asked: _Asked, recipe: Recipe, target: Target, price: float | None) -> look.Planned:
    choice = best_layouts(
        recipe,
        asked.signature,
        target,
        confirm=None if asked.analytic else lambda one: asked.ask(one, asked.signature, target),
        dollars_per_chip_hour=price,
    )
    if not choice.front:
        raise InvalidInput(
            "lay out a recipe",
            on=f"{recipe.name} on {target.name}",
            got=f"{choice.tried} layouts of which none fits",
            wanted="one that fits",
            next_step="ask for more chips, or set a smaller batch_size",
        )
    return look.Planned(target=target, estimates=choice.front, chosen=True, said=choice.said)
