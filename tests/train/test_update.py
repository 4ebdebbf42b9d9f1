"""One step of a run: its parts, what it leaves alone, and the mean of weights."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import pytest

from mainspring.domain.codec import encode
from mainspring.domain.errors import InvalidInput
from mainspring.train.evaluate import policy_from
from mainspring.train.models.arrays import flattened
from mainspring.train.models.shapes import Signature
from mainspring.train.policy import unit_statistics
from mainspring.train.recipe import MeshRecipe, Recipe, changed
from mainspring.train.state.sharding import make_mesh, place_batch, state_shardings
from mainspring.train.steps.state import TrainState, initial_state
from mainspring.train.steps.update import make_update
from mainspring.train.trainer import check_shares, lowered_update

from .making import DIMS, small_recipe

SIGNATURE = Signature(state_dim=DIMS, action_dim=DIMS)
RECIPE = changed(small_recipe(steps=6), {"policy": {"motion": False}, "optimizer": {"warmup_steps": 0}})


def batch_of(step: int) -> dict[str, Any]:
    numbers = np.random.default_rng(step)
    return {
        "state": np.float32(numbers.normal(size=(16, DIMS))),
        "actions": np.float32(numbers.normal(size=(16, 4, DIMS))),
        "valid": np.arange(4) < numbers.integers(1, 5, (16, 1)),
    }


def run(recipe: Recipe, *, steps: int = 6) -> tuple[list[TrainState], list[float]]:
    """Returns all states, from the first on, in host memory, and the loss of each step."""
    mesh = make_mesh(recipe.mesh)
    state, update = initial_state(recipe, SIGNATURE, unit_statistics(recipe.policy, SIGNATURE), mesh), None
    states, losses = [jax.device_get(state)], []
    update = make_update(recipe, mesh)
    for step in range(steps):
        state, loss = update(state, place_batch(mesh, batch_of(step)), np.int32(step))
        states.append(jax.tree.map(np.array, state))
        losses.append(float(loss[0]))
    return states, losses


@pytest.mark.slow
def test_batch_in_parts_gives_the_loss_of_the_whole_though_their_valid_steps_differ() -> None:
    _, whole = run(RECIPE)
    _, parts = run(changed(RECIPE, {"accumulate": 4}))
    assert parts == pytest.approx(whole, rel=1e-5)


@pytest.mark.slow
def test_frozen_weights_stay_and_have_no_moments() -> None:
    states, losses = run(changed(RECIPE, {"frozen": ["enter/.*", "blocks/0/widen/bias"]}))
    before, after = flattened(states[0].weights), flattened(states[-1].weights)
    same = {path for path in before if (before[path] == after[path]).all()}
    assert same == {"enter/kernel", "enter/bias", "blocks/0/widen/bias"}
    moments = {path.partition("/mu/")[2] for path in flattened(states[0].optimizer) if "/mu/" in path}
    assert moments == set(before) - same
    assert np.isfinite(losses).all()


def test_batch_that_devices_and_parts_do_not_share_out_evenly_is_refused() -> None:
    recipe = changed(RECIPE, {"batch_size": 16, "accumulate": 3})
    with pytest.raises(InvalidInput, match=r"share a batch.*16 chunks for 3 parts on 1 devices"):
        lowered_update(recipe, SIGNATURE, {}, jax.devices())


def test_tokens_that_are_fewer_than_their_devices_are_refused() -> None:
    recipe = changed(RECIPE, {"mesh": {"replica": 1, "sequence": 2}})
    mesh: Any = jax.sharding.AbstractMesh((1, 1, 2, 1), ("replica", "data", "sequence", "tensor"))
    with pytest.raises(InvalidInput, match=r"share tokens.*1 in the longest stream for 2 devices.*mesh\.sequence to 1"):
        check_shares(recipe, mesh)


def test_pattern_that_freezes_nothing_is_named() -> None:
    with pytest.raises(InvalidInput, match=r"freeze weights.*'eyes'"):
        run(changed(RECIPE, {"frozen": ["eyes"]}))


@pytest.mark.slow
def test_policy_in_use_is_that_of_the_mean_weights_where_the_recipe_has_them() -> None:
    recipe = changed(RECIPE, {"ema_decay": 0.75})
    states, _ = run(recipe)
    mean = flattened(states[0].weights)
    for state in states[1:]:
        mean = {path: 0.75 * mean[path] + 0.25 * array for path, array in flattened(state.weights).items()}
    arrays = flattened({"ema": states[-1].ema, "weights": states[-1].weights, "statistics": states[-1].statistics})
    facts = {"recipe": encode(recipe).decode(), "signature": encode(SIGNATURE).decode()}
    for path, array in flattened(policy_from(facts, arrays).weights).items():
        np.testing.assert_allclose(array, mean[path], rtol=1e-5, atol=1e-7)


def test_heads_that_tensor_does_not_divide_are_refused_unless_they_are_fewer() -> None:
    mesh: Any = jax.sharding.AbstractMesh((1, 1, 1, 3), ("replica", "data", "sequence", "tensor"))
    struct: Any = jax.ShapeDtypeStruct
    with pytest.raises(InvalidInput, match=r"blocks/query.*wanted 3 parts"):
        state_shardings({"blocks": {"query": struct((2, 8, 4, 6), np.float32)}}, mesh, MeshRecipe(tensor=3))
    few = state_shardings({"blocks": {"key": struct((2, 8, 1, 6), np.float32)}}, mesh, MeshRecipe(tensor=3))
    assert few["blocks"]["key"].is_fully_replicated  # One head of keys serves all devices.
