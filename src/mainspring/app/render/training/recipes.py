"""Recipes: a list, one of them, and how two differ."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rich.console import RenderableType

from mainspring.app.render.tables import Listing, facts_grid
from mainspring.train.models.shapes import PolicyRecipe, Signature
from mainspring.train.plan.formulas.anatomy import anatomy_of
from mainspring.train.recipe import Recipe


@dataclass(frozen=True, slots=True, kw_only=True)
class RecipeRow:
    """One recipe in a list.

    Args:
        policy: The kind of its policy.
        parameters: Of a robot of two arms and three cameras.
    """

    name: str
    policy: str
    parameters: int
    batch_size: int
    steps: int
    numbers: str
    remat: str


def row_of(recipe: Recipe, signature: Signature) -> RecipeRow:
    """Returns a recipe as a list shows it."""
    anatomy = anatomy_of(recipe.policy, signature)
    kind = type(recipe.policy).__name__.removesuffix("Recipe").lower()
    return RecipeRow(
        name=recipe.name,
        policy="flow" if isinstance(recipe.policy, PolicyRecipe) else kind,
        parameters=anatomy.parameters,
        batch_size=recipe.batch_size,
        steps=recipe.steps,
        numbers=anatomy.compute.numbers.value,
        remat=anatomy.compute.remat.value,
    )


def rows_table(rows: Sequence[RecipeRow]) -> RenderableType:
    """Returns one row a recipe."""
    return Listing("RECIPE", "POLICY", ">PARAMETERS", ">BATCH", ">STEPS", "NUMBERS", "REMAT").add_rows(
        (
            *(row.name, row.policy, f"{row.parameters:,}", f"{row.batch_size:,}", f"{row.steps:,}"),
            *(row.numbers, row.remat),
        )
        for row in rows
    )


def fields_grid(fields: Mapping[str, object]) -> RenderableType:
    """Returns every field beside its value, by the names that `--set` takes."""
    return facts_grid({name: str(value) for name, value in fields.items()})


def differences_table(found: Mapping[str, tuple[object, object]], left: str, right: str) -> RenderableType:
    """Returns the fields in which two recipes differ."""
    if not found:
        return f"{left} and {right} are the same."
    return Listing("FIELD", f"~{left}", f"~{right}").add_rows(
        (name, *("-" if value is None else str(value) for value in both)) for name, both in found.items()
    )
