"""How a plan of a recipe is made: who is asked, in which order, and what becomes of an answer that does not come."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from mainspring.app import sdk
from mainspring.app.render.progress import waiting_bar
from mainspring.app.render.training.plans import Planned
from mainspring.app.sdk.recipes import price_of, with_layout
from mainspring.domain.errors import InvalidInput, MainspringError
from mainspring.train.models.shapes import Signature
from mainspring.train.naming import with_setting
from mainspring.train.plan.analytic import analytic_figures
from mainspring.train.plan.chips import figures_of
from mainspring.train.plan.choice import best_layouts
from mainspring.train.plan.estimate import estimated, smallest_change
from mainspring.train.plan.figures import StepFigures
from mainspring.train.plan.targets import Target
from mainspring.train.recipe import Recipe

AUTO, OWN = "auto", "recipe"


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanRequest:
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


def compiler_of(lab: sdk.Lab, deadline: str) -> Callable[[Recipe, Signature, Target], StepFigures]:
    """Returns what asks the compiler of a target's chips, one question at a time, and formulas where it has none.

    Args:
        lab: Its home keeps what the compiler said.
        deadline: How long one compile may take: "30m".
    """
    from mainspring.app.base.specs import duration_from

    cache, deadline_s = lab.home.cache / "plans", duration_from(deadline)

    def ask(recipe: Recipe, signature: Signature, target: Target) -> StepFigures:
        if not figures_of(target.chip).is_tpu:
            return analytic_figures(recipe, signature, target)  # Without a GPU nobody compiles for it.
        from mainspring.train.plan.compiled import compiled_figures

        with waiting_bar() as bar:
            bar.add_task(f"compiling {recipe.name} for {target.name}", total=None)
            return compiled_figures(recipe, signature, target, cache=cache, deadline_s=deadline_s)

    return ask


def planned_on(lab: sdk.Lab, asked: PlanRequest, target: Target, *, alone: bool) -> Planned:
    """Returns the answer for one target.

    Args:
        lab: Its home may know prices.
        asked: What is to be planned.
        target: On what.
        alone: Whether it is the only target; of several, one that cannot be is told among the others.
    """
    try:
        price = price_of(lab.home, target.chip) if asked.price is None else asked.price
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
        return Planned(target=target, error=str(error))


def _answer(asked: PlanRequest, recipe: Recipe, target: Target, price: float | None) -> Planned:
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
    return Planned(target=target, estimates=(found,), change=change, said=said, refused=refused)


def _chosen(asked: PlanRequest, recipe: Recipe, target: Target, price: float | None) -> Planned:
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
    return Planned(target=target, estimates=choice.front, chosen=True, said=choice.said)
