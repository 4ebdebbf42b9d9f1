"""A whole VLA by the trainer and evaluation that the small policy has."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from mainspring.data import View, ViewRecipe, build_view, gather, open_view
from mainspring.data.views.manifest import Split
from mainspring.domain.errors import InvalidInput
from mainspring.objects import open_store
from mainspring.session import Restored, Session
from mainspring.train.evaluate import held_out_error, policy_from
from mainspring.train.feed import fitted, shapes_fed
from mainspring.train.policy import model_of, policy_loss, signature_of
from mainspring.train.recipe import Recipe, changed, recipe_named
from mainspring.train.trainer import train
from tests.data.making import version_of, write_lerobot_v2

from .making import Desk

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("compiled_at_once")]
SMALL = {"batch_size": 16, "policy": {"horizon": 4, "flow_steps": 4}}


def tiny(**changes: Any) -> Recipe:
    recipe = changed(changed(recipe_named("vla_tiny"), SMALL), {"steps": 60, "optimizer": {"warmup_steps": 5}})
    return changed(recipe, changes)


@pytest.fixture(scope="module")
def trained(views: dict[Split, View], compiled: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Restored]:
    jax.config.update("jax_compilation_cache_dir", str(compiled))  # type: ignore[no-untyped-call]
    desk = Desk(tmp_path_factory.mktemp("trained"), every=400)
    train(desk.join(), tiny(policy={"image": None}), views["train"], facts={})
    restored = desk.join(resume_from=60).restore()
    assert restored is not None
    yield restored
    desk.close()


def test_vla_without_eyes_learns_a_swing_well_enough_to_beat_holding_still(
    views: dict[Split, View], trained: Restored
) -> None:
    policy = policy_from(trained.state, {path: trained.array(path) for path in trained.paths})
    error = held_out_error(policy, views["holdout"], seed=0)
    assert error.hold_last_state is not None
    assert error.policy < 0.8 * error.hold_last_state
    assert error.policy < 0.8 * held_out_error(policy.untrained(), views["holdout"], seed=0).policy


def test_pi05_is_not_trained_from_a_view_which_tells_it_no_state(views: dict[Split, View]) -> None:
    recipe = tiny(policy={"image": None, "kind": "pi05"})
    with pytest.raises(InvalidInput, match=r"pi05.*prompts\.Tokenizer"):
        train(Session("", pid=1, stopwatch=lambda: 0.0), recipe, views["train"], facts={})


@pytest.mark.soak
def test_vla_learns_from_camera_images_of_another_size(tmp_path: Path, compiled: Path) -> None:
    jax.config.update("jax_compilation_cache_dir", str(compiled))  # type: ignore[no-untyped-call]
    store = open_store(str(tmp_path / "objects"))
    version = version_of(store, write_lerobot_v2(tmp_path / "lerobot", [12, 12], video=True), "stack")
    manifest = build_view(store, version, ViewRecipe(), scratch_dir=tmp_path / "scratch")
    view = open_view(store, manifest.id, tmp_path / "cache", "train")
    learning = {"learning_rate": 3e-3, "warmup_steps": 5}
    recipe = tiny(policy={"relative_actions": False, "action_dim": 3}, optimizer=learning)
    state = train(Session("", pid=1, stopwatch=lambda: 0.0), recipe, view, facts={}).state
    batch = fitted(gather(view, np.arange(view.rows), horizon=4), recipe.policy)
    signature = signature_of(batch, recipe.policy)
    assert (signature.image_height, signature.image_width) != (32, 32)
    planned = {name: (like.shape, like.dtype) for name, like in shapes_fed(recipe.policy, signature, view.rows).items()}
    assert planned == {name: (array.shape, array.dtype) for name, array in batch.items()}
    loss = jax.jit(lambda weights: policy_loss(weights, state.statistics, recipe.policy, batch, jax.random.key(1)))
    fresh = model_of(recipe.policy).initial_weights(jax.random.key(0), signature)
    assert float(loss(state.weights)) < 0.85 * float(loss(fresh))
