"""Which layouts are worth having, and what the compiler has to say to them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from mainspring.domain.errors import InvalidInput, Unavailable
from mainspring.train.models.shapes import Signature
from mainspring.train.plan.analytic import analytic_figures
from mainspring.train.plan.choice import best_layouts, pareto_front
from mainspring.train.plan.figures import FiguresFrom, StepFigures
from mainspring.train.plan.targets import parsed_target
from mainspring.train.recipe import Recipe, changed, recipe_named

EYES = Signature(state_dim=14, action_dim=14, image_views=3, image_height=224, image_width=224)
TARGET = parsed_target("v5p:2x2x1")
SMALL = changed(recipe_named("vla_small"), {"batch_size": 64})


def _compiled(recipe: Recipe) -> StepFigures:
    return replace(analytic_figures(recipe, EYES, TARGET), said_by=FiguresFrom.COMPILED)


def test_choice_has_no_layout_that_another_beats() -> None:
    front = best_layouts(changed(recipe_named("pi0"), {"batch_size": 256}), EYES, parsed_target("v5p:4x4x4")).front
    assert len(front) > 1
    assert [each.step_s for each in front] == sorted(each.step_s for each in front)
    peaks = [each.figures.memory.peak for each in front]
    assert peaks == sorted(peaks, reverse=True)
    assert pareto_front(front) == front
    assert all(each.fits for each in front)


def test_choice_uses_all_devices_and_keeps_the_batch() -> None:
    for each in best_layouts(SMALL, EYES, TARGET).front:
        mesh = each.recipe.mesh
        assert mesh.replica * mesh.data * mesh.sequence * mesh.tensor == 4
        assert each.recipe.batch_size == 64


def test_choice_asks_the_compiler_three_times_and_believes_it() -> None:
    wide, target, asked = changed(recipe_named("pi0"), {"batch_size": 64}), parsed_target("h100:64"), list[Recipe]()
    formulas = best_layouts(wide, EYES, target).front

    def confirm(recipe: Recipe) -> StepFigures:
        asked.append(recipe)
        return replace(analytic_figures(recipe, EYES, target), said_by=FiguresFrom.COMPILED)

    front = best_layouts(wide, EYES, target, confirm=confirm).front
    assert asked == [each.recipe for each in formulas[:3]]
    assert len(front) == len(formulas) > 3
    assert [each.figures.said_by is FiguresFrom.COMPILED for each in front[:4]] == [True, True, True, False]


def test_choice_drops_what_the_compiler_finds_too_large() -> None:
    first = best_layouts(SMALL, EYES, TARGET).front[0]

    def confirm(recipe: Recipe) -> StepFigures:
        said = _compiled(recipe)
        large = replace(said.memory, temporaries=1 << 40) if recipe == first.recipe else said.memory
        return replace(said, memory=large)

    assert first.recipe not in [each.recipe for each in best_layouts(SMALL, EYES, TARGET, confirm=confirm).front]


def test_choice_drops_what_the_compiler_finds_worse_in_everything() -> None:
    wide, target = changed(recipe_named("pi0"), {"batch_size": 64}), parsed_target("v5p:4x4x4")
    second = best_layouts(wide, EYES, target).front[1].recipe

    def confirm(recipe: Recipe) -> StepFigures:
        said = replace(analytic_figures(recipe, EYES, target), said_by=FiguresFrom.COMPILED)
        return replace(said, memory=replace(said.memory, temporaries=80 << 30)) if recipe == second else said

    found = [each.recipe for each in best_layouts(wide, EYES, target, confirm=confirm).front]
    assert len(found) == 2
    assert second not in found


def test_choice_drops_what_the_compiler_refuses_and_asks_on() -> None:
    wide = changed(recipe_named("pi0"), {"batch_size": 256})
    target = parsed_target("v5p:4x4x4")
    front = best_layouts(wide, EYES, target).front

    def confirm(recipe: Recipe) -> StepFigures:
        if recipe == front[0].recipe:
            raise InvalidInput("compile a step", got="120 GiB of a device's memory")
        return replace(analytic_figures(recipe, EYES, target), said_by=FiguresFrom.COMPILED)

    choice = best_layouts(wide, EYES, target, confirm=confirm)
    assert front[0].recipe not in [each.recipe for each in choice.front]
    assert choice.front[0].figures.said_by is FiguresFrom.COMPILED
    assert "120 GiB" in choice.said


def test_choice_without_a_compiler_that_answers_keeps_the_formulas_and_says_why() -> None:
    def confirm(recipe: Recipe) -> StepFigures:
        raise Unavailable("compile", got="no libtpu")

    choice = best_layouts(SMALL, EYES, TARGET, confirm=confirm)
    assert choice.front == best_layouts(SMALL, EYES, TARGET).front
    assert "no libtpu" in choice.said


def test_choice_takes_parts_of_a_batch_only_where_it_must() -> None:
    large = changed(recipe_named("vla_small"), {"batch_size": 4096})
    one = parsed_target("v6e:1x1")
    front = best_layouts(large, EYES, one).front
    assert front
    assert min(each.recipe.accumulate for each in front) > 1
    assert {each.recipe.accumulate for each in best_layouts(SMALL, EYES, TARGET).front} == {1}


def test_choice_where_nothing_fits_is_empty() -> None:
    assert best_layouts(recipe_named("pi0"), EYES, parsed_target("v5e:1x1")).front == ()


@pytest.mark.parametrize("name", ["arm", "act", "pi05"])
def test_choice_of_every_kind_of_policy_finds_a_layout(name: str) -> None:
    recipe = changed(recipe_named(name), {"batch_size": 64})
    signature = Signature(state_dim=14, action_dim=14) if name == "arm" else EYES
    assert best_layouts(recipe, signature, TARGET).front
