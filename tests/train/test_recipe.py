from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import pytest

from mainspring.domain.codec import decode, encode, to_plain
from mainspring.domain.errors import InvalidInput, InvalidSpec, NotFound
from mainspring.train.recipe import RECIPES, Recipe, arm_recipe, changed, recipe_named

GOLDEN = Path(__file__).parent / "golden"


@pytest.mark.parametrize("name", sorted(RECIPES))
def test_recipe_serialised_equals_its_stored_text(name: str) -> None:
    text = json.dumps(to_plain(recipe_named(name)), indent=2) + "\n"
    assert text == (GOLDEN / f"{name}.json").read_text(), f"if this change is meant, store this in golden:\n{text}"


@pytest.mark.parametrize("name", sorted(RECIPES))
def test_recipe_stored_with_a_checkpoint_reads_back_equal(name: str) -> None:
    assert decode(Recipe, encode(recipe_named(name))) == recipe_named(name)


def test_recipe_changed_replaces_nested_fields_and_keeps_the_rest() -> None:
    recipe = changed(arm_recipe(), {"steps": 10, "policy": {"width": 64}})
    assert (recipe.steps, recipe.policy.width, recipe.policy.horizon) == (10, 64, arm_recipe().policy.horizon)


@pytest.mark.parametrize(
    ("changes", "named"),
    [({"stepz": 10}, "steps"), ({"policy": {"widht": 64}}, "width"), ({"steps": "many"}, "steps")],
)
def test_recipe_change_that_fits_no_field_names_the_field_meant(changes: Mapping[str, object], named: str) -> None:
    with pytest.raises(InvalidSpec, match=named):
        changed(arm_recipe(), changes)


@pytest.mark.parametrize(
    "changes", [{"steps": 0}, {"batch_size": -1}, {"policy": {"time_features": 3}}, {"optimizer": {"weight_decay": -1}}]
)
def test_recipe_with_a_value_out_of_range_is_refused(changes: Mapping[str, object]) -> None:
    with pytest.raises(InvalidInput):
        changed(arm_recipe(), changes)


def test_recipe_unknown_names_the_nearest() -> None:
    with pytest.raises(NotFound, match="video"):
        recipe_named("vidio")
