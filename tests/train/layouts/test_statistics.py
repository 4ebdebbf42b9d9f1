"""What others normalised by, as a run's statistics."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mainspring.data import View
from mainspring.data.views.manifest import Split
from mainspring.domain.errors import DamagedData, InvalidInput, NotFound
from mainspring.session import Session
from mainspring.train.layouts.statistics import read_statistics
from mainspring.train.models.arrays import flattened
from mainspring.train.models.shapes import PolicyRecipe, Signature, VlaRecipe
from mainspring.train.policy import Statistics, statistics_from
from mainspring.train.recipe import changed, recipe_named
from mainspring.train.trainer import train
from tests.train.making import DIMS, small_recipe

SIGNATURE = Signature(state_dim=3, action_dim=2)
STATE = {"mean": [1.0, 2.0, 3.0], "std": [0.5, 0.25, 0.0], "q01": [-1.0, 0.0, 3.0], "q99": [3.0, 1.0, 3.0]}
ACTIONS = {"mean": [0.0, 5.0], "std": [2.0, 1.0], "q01": [-4.0, 4.0], "q99": [4.0, 8.0]}
PLAIN = PolicyRecipe(width=8, blocks=1, horizon=4)


def quantiles() -> VlaRecipe:
    policy = recipe_named("pi05").policy
    assert isinstance(policy, VlaRecipe)
    return replace(policy, horizon=4)


def stored(folder: Path, **measured: Any) -> Path:
    path = folder / "norm_stats.json"
    path.write_text(json.dumps({"norm_stats": measured}))
    return path


def found(path: Path, policy: Any = PLAIN) -> Statistics:
    return statistics_from(read_statistics(path), policy, SIGNATURE)


def test_openpis_statistics_are_those_of_every_step_of_a_chunk(tmp_path: Path) -> None:
    stored(tmp_path, state=STATE, actions=ACTIONS)
    statistics = found(tmp_path)
    np.testing.assert_allclose(statistics["state_mean"], [1, 2, 3])
    np.testing.assert_allclose(statistics["state_deviation"], [0.500001, 0.250001, 1e-3], rtol=1e-6)
    np.testing.assert_allclose(statistics["target_mean"], [[0, 5]] * 4)
    np.testing.assert_allclose(statistics["target_deviation"], [[2.000001, 1.000001]] * 4, rtol=1e-6)


def test_policy_of_quantiles_sees_what_openpi_makes_of_a_number(tmp_path: Path) -> None:
    statistics = found(stored(tmp_path, state=STATE, actions=ACTIONS), quantiles())
    state, action = np.array([2.0, 0.25]), np.array([2.0, 5.0])
    normalised = (state - statistics["state_mean"][:2]) / statistics["state_deviation"][:2]
    np.testing.assert_allclose(normalised, [0.5, -0.5], atol=1e-5)  # Of -1 to 3, and of 0 to 1.
    normalised = (action - statistics["target_mean"]) / statistics["target_deviation"]
    np.testing.assert_allclose(normalised, [[0.5, -0.5]] * 4, atol=1e-5)


def test_dimensions_that_others_padded_with_zeros_are_left_out(tmp_path: Path) -> None:
    padded = {name: [*numbers, 0.0, 0.0] for name, numbers in ACTIONS.items()}
    statistics = found(stored(tmp_path, state=STATE, actions=padded))
    np.testing.assert_allclose(statistics["target_mean"], [[0, 5]] * 4)


@pytest.mark.parametrize(
    ("actions", "policy", "named"),
    [
        ({"mean": [0.0], "std": [1.0]}, PLAIN, r"mean of actions.*got 1 dimensions; wanted 2"),
        ({"mean": [0.0, 1.0, 2.0], "std": [1.0] * 3}, PLAIN, r"got 3 dimensions; wanted 2"),
        ({"mean": [0.0, 1.0], "std": [1.0, 1.0], "q01": None}, quantiles(), r"wanted q01 and q99.*quantiles to false"),
        ({"mean": [0.0, 1.0]}, PLAIN, r"wanted mean and std"),
        ({"mean": [[0.0, 1.0]], "std": [1.0, 1.0]}, PLAIN, r"shape \(1, 2\)"),
        ({"mean": "much", "std": [1.0, 1.0]}, PLAIN, r"list of numbers"),
        ({"mean": [float("inf"), 0.0], "std": [1.0, 1.0]}, PLAIN, r"finite"),
        ({}, PLAIN, r"none of actions"),
        ({"mean": [0.0, 1.0], "std": [1.0, 1.0]}, replace(PLAIN, motion=True), r"policy\.motion to false"),
    ],
)
def test_statistics_that_do_not_fit_are_refused(actions: Any, policy: Any, named: str, tmp_path: Path) -> None:
    path = stored(tmp_path, state=STATE, actions=actions)
    with pytest.raises(InvalidInput, match=named):
        found(path, policy)


def test_statistics_that_are_not_there_or_no_json_are_refused_by_their_path(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="nothing"):
        read_statistics(tmp_path / "nothing")
    (tmp_path / "norm_stats.json").write_text("{")
    with pytest.raises(DamagedData, match=r"norm_stats\.json"):
        read_statistics(tmp_path)


@pytest.mark.parametrize(
    ("state", "actions"),
    [
        ("observation.state.{}", "action.{}"),
        ("normalize_inputs.buffer_observation_state.{}", "normalize_targets.buffer_action.{}"),
    ],
)
def test_lerobots_statistics_are_read_from_its_normaliser_or_from_among_its_weights(
    state: str, actions: str, tmp_path: Path
) -> None:
    safetensors = pytest.importorskip("safetensors.numpy")
    arrays = {state.format(name): np.asarray(numbers, np.float32) for name, numbers in STATE.items()}
    arrays |= {actions.format(name): np.asarray(numbers, np.float32) for name, numbers in ACTIONS.items()}
    arrays["model.weight"] = np.ones((2, 2), np.float32)
    safetensors.save_file(arrays, tmp_path / "model.safetensors")
    np.testing.assert_allclose(found(tmp_path / "model.safetensors")["target_mean"], [[0, 5]] * 4)


def test_lerobots_dataset_tells_its_statistics(tmp_path: Path) -> None:
    path = tmp_path / "stats.json"
    path.write_text(json.dumps({"observation.state": STATE, "action": ACTIONS, "timestamp": {"mean": [0.0]}}))
    np.testing.assert_allclose(found(path)["state_mean"], [1, 2, 3])


@pytest.mark.slow
def test_run_that_begins_with_weights_of_others_normalises_as_they_did(
    views: dict[Split, View], tmp_path: Path
) -> None:
    recipe = changed(small_recipe(steps=1), {"policy": {"motion": False}})
    alone = Session("", pid=1, stopwatch=lambda: 0.0)
    begun = train(alone, recipe, views["train"], facts={}).state
    arrays: Any = {f"weights/{path}": np.asarray(array) for path, array in flattened(begun.weights).items()}
    np.savez(tmp_path / "begun.npz", **arrays)
    numbers = {"mean": [0.25] * DIMS, "std": [0.5] * DIMS}
    path = stored(tmp_path, state=numbers, actions=numbers)
    init = {"path": str(tmp_path / "begun.npz"), "layout": "mainspring", "statistics": str(path)}
    state = train(alone, changed(recipe, {"init": init}), views["train"], facts={}).state
    np.testing.assert_allclose(state.statistics["state_mean"], [0.25] * DIMS)
    np.testing.assert_allclose(state.statistics["target_deviation"], np.full((4, DIMS), 0.500001), rtol=1e-6)
