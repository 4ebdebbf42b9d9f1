"""`ms recipe`: what recipes hold, how two differ, and what they would need on chips that nobody has asked for yet."""

from __future__ import annotations

from typing import Annotated

import typer

from mainspring.app.cli.arguments import Json, LabContext
from mainspring.app.cli.training.planning import AUTO, OWN, PlanRequest, compiler_of, planned_on
from mainspring.app.render.tables import show
from mainspring.app.render.training import plans
from mainspring.app.render.training import recipes as look
from mainspring.app.sdk.recipes import SIGNATURE_FORM, fields_of, own_recipes, signature_for
from mainspring.train.naming import find_recipe
from mainspring.train.plan.analytic import analytic_figures
from mainspring.train.plan.targets import parsed_target

app = typer.Typer()

Name = Annotated[str, typer.Argument(help="One of `ms recipe ls`, or FILE.py:FUNCTION.", metavar="RECIPE")]
Settings = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="FIELD=VALUE", help="Another value, dotted: policy.compute.remat=dots; repeat."),
]


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
    asked = PlanRequest(
        recipe=recipe,
        signature=signature_for(recipe, signature),
        layout=layout,
        per_chip=per_chip,
        price=price,
        ask=analytic_figures if analytic else compiler_of(context.obj, deadline),
        analytic=analytic,
    )
    targets = [parsed_target(text, slices=slices) for text in on]
    planned = tuple(planned_on(context.obj, asked, target, alone=len(targets) == 1) for target in targets)
    show(tuple(map(plans.plain_plan, planned)), as_json=as_json, look=lambda: plans.plans_panel(planned))
    if not all(each.fits for each in planned):
        raise typer.Exit(1)
