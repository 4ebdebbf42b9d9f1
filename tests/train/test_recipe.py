from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from mainspring.domain.codec import decode, encode, to_plain
from mainspring.domain.errors import InvalidInput, InvalidSpec, NotFound
from mainspring.train.models.shapes import PolicyRecipe
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
    arm = arm_recipe()
    assert isinstance(arm.policy, PolicyRecipe)
    recipe = changed(arm, {"steps": 10, "policy": {"width": 64}})
    assert recipe == replace(arm, steps=10, policy=replace(arm.policy, width=64))


@pytest.mark.parametrize(
    ("name", "changes", "named"),
    [
        ("arm", {"stepz": 10}, "steps"),
        ("arm", {"policy": {"widht": 64}}, "width"),
        ("arm", {"steps": "many"}, "steps"),
        ("vla_tiny", {"policy": {"language": {"widht": 64}}}, "width"),
    ],
)
def test_recipe_change_that_fits_no_field_names_the_field_meant(
    name: str, changes: Mapping[str, object], named: str
) -> None:
    with pytest.raises(InvalidSpec, match=named):
        changed(recipe_named(name), changes)


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("arm", {"steps": 0}),
        ("arm", {"batch_size": -1}),
        ("arm", {"policy": {"time_features": 3}}),
        ("arm", {"optimizer": {"weight_decay": -1}}),
        ("vla_tiny", {"policy": {"language": {"kv_heads": 3}}}),
        ("vla_tiny", {"policy": {"image": {"patch": 7}}}),
        ("vla_tiny", {"policy": {"prompt": [1, 2, 3, 4, 5]}}),
        ("vla_tiny", {"policy": {"prompt": [256]}}),
        ("vla_tiny", {"policy": {"expert_width": 31}}),
    ],
)
def test_recipe_with_a_value_out_of_range_is_refused(name: str, changes: Mapping[str, object]) -> None:
    with pytest.raises(InvalidInput):
        changed(recipe_named(name), changes)


def test_recipe_unknown_names_the_nearest() -> None:
    with pytest.raises(NotFound, match="video"):
        recipe_named("vidio")


def test_recipe_stored_before_runs_knew_their_data_reads_as_what_it_did() -> None:
    stored = to_plain(recipe_named("vla_tiny"))
    for later in ("data", "guard", "held_out"):
        del stored[later]
    assert decode(Recipe, json.dumps(stored).encode()) == recipe_named("vla_tiny")
