"""Runs that begin with weights from elsewhere."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from mainspring.data import View
from mainspring.data.views.manifest import Split
from mainspring.domain.codec import encode
from mainspring.domain.errors import InvalidInput, NotFound
from mainspring.session import Session
from mainspring.train.layouts.openpi import big_vision_layout
from mainspring.train.layouts.rows import weights_to
from mainspring.train.layouts.transformers import lerobot_layout
from mainspring.train.models.arrays import flattened
from mainspring.train.models.shapes import Signature, VlaRecipe
from mainspring.train.policy import model_of, unit_statistics
from mainspring.train.recipe import InitRecipe, LayoutName, Recipe, changed, recipe_named
from mainspring.train.state.begin import layout_of
from mainspring.train.state.sharding import make_mesh
from mainspring.train.steps.state import initial_state
from mainspring.train.trainer import own_state, train

from .making import DIMS

safetensors = pytest.importorskip("safetensors.numpy")
pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("compiled_at_once")]
SIGNATURE = Signature(state_dim=DIMS, action_dim=DIMS)


def tiny(**changes: Any) -> Recipe:
    return changed(recipe_named("vla_tiny"), {"batch_size": 4, "steps": 1, "policy": {"horizon": 4}, **changes})


def drawn_with(seed: int, recipe: Recipe) -> Any:
    return jax.jit(lambda key: model_of(recipe.policy).initial_weights(key, SIGNATURE))(jax.random.key(seed))


def begun(recipe: Recipe) -> Any:
    return initial_state(recipe, SIGNATURE, unit_statistics(recipe.policy, SIGNATURE), make_mesh()).weights


def stored(path: Path, arrays: dict[str, Any]) -> str:
    safetensors.save_file({name: np.ascontiguousarray(array) for name, array in arrays.items()}, path)
    return str(path)


def test_run_begins_with_the_weights_that_its_recipe_names(
    views: dict[Split, View], tmp_path: Path, compiled: Path
) -> None:
    jax.config.update("jax_compilation_cache_dir", str(compiled))  # type: ignore[no-untyped-call]
    recipe = tiny(policy={"horizon": 4, "image": None}, optimizer={"learning_rate": 0.0})
    assert isinstance(recipe.policy, VlaRecipe)
    given = drawn_with(5, recipe)
    arrays = weights_to(lerobot_layout(recipe.policy), given)
    arrays = {name.removeprefix("model."): array for name, array in arrays.items()}  # As LeRobot publishes them.
    path = stored(tmp_path / "pi0.safetensors", arrays)
    recipe = changed(recipe, {"init": {"path": path, "layout": "lerobot"}})
    state = train(Session("", pid=1, stopwatch=lambda: 0.0), recipe, views["train"], facts={}).state
    assert all(jax.tree.leaves(jax.tree.map(lambda a, b: (a == b).all(), state.weights, given)))


def test_parts_that_are_kept_are_those_of_a_fresh_run(tmp_path: Path) -> None:
    recipe = tiny()
    assert isinstance(recipe.policy, VlaRecipe)
    given, fresh = drawn_with(5, recipe), flattened(begun(recipe))
    arrays: Any = weights_to(big_vision_layout(recipe.policy), {name: given[name] for name in ("language", "image")})
    np.savez(tmp_path / "paligemma.npz", **arrays)  # As big_vision publishes it.
    keep = ("(expert|action|time|state).*",)
    init = InitRecipe(path=str(tmp_path / "paligemma.npz"), layout=LayoutName.BIG_VISION, keep=keep)
    for path, array in flattened(begun(replace(recipe, init=init))).items():
        expected = flattened(given) if path.startswith(("language", "image")) else fresh
        assert (array == expected[path]).all(), path


def test_any_policy_begins_with_what_a_run_exported(tmp_path: Path) -> None:
    recipe = recipe_named("arm")
    given = drawn_with(5, recipe)
    arrays = {f"weights/{path}": array for path, array in flattened(given).items()}
    path = stored(tmp_path / "model.safetensors", {**arrays, "optimizer/1/0/count": np.zeros(1)})
    init = InitRecipe(path=path, layout=LayoutName.MAINSPRING)
    assert all(jax.tree.leaves(jax.tree.map(lambda a, b: (a == b).all(), begun(replace(recipe, init=init)), given)))
    with pytest.raises(InvalidInput, match="layout openpi for a policy that is no VLA"):
        begun(replace(recipe, init=replace(init, layout=LayoutName.OPENPI)))


def test_weights_that_are_not_there_are_refused_by_their_path(tmp_path: Path) -> None:
    init = InitRecipe(path=str(tmp_path / "nothing"), layout=LayoutName.OPENPI)
    with pytest.raises(NotFound, match="nothing"):
        begun(replace(tiny(), init=init))


@pytest.mark.parametrize(
    ("paths", "layout"),
    [
        (["weights/enter/bias", "optimizer/1"], LayoutName.MAINSPRING),
        (["params/PaliGemma/llm/embedder/input_embedding/value"], LayoutName.OPENPI),
        (["PaliGemma/img/embedding/kernel"], LayoutName.OPENPI),
        (["model.paligemma_with_expert.gemma_expert.lm_head.weight"], LayoutName.LEROBOT),
        (["paligemma_with_expert.gemma_expert.lm_head.weight"], LayoutName.LEROBOT),
        (["params/llm/embedder/input_embedding"], LayoutName.BIG_VISION),
        (["language_model.model.embed_tokens.weight", "multi_modal_projector.linear.bias"], LayoutName.PALIGEMMA),
        (["model.embed_tokens.weight"], LayoutName.GEMMA),
    ],
)
def test_layout_of_weights_is_seen_by_their_names(paths: list[str], layout: LayoutName) -> None:
    assert layout_of(paths, "here") is layout


def test_weights_of_nobody_that_is_known_are_refused() -> None:
    with pytest.raises(InvalidInput, match=r"arrays such as layer1\.weight.*set init\.layout"):
        layout_of(["layer1.weight"], "here")


def test_run_begins_with_mean_weights_where_there_are_some_and_sees_whose_they_are(tmp_path: Path) -> None:
    recipe = recipe_named("arm")
    last, mean = (flattened(drawn_with(seed, recipe)) for seed in (5, 6))
    arrays = {f"weights/{path}": array for path, array in last.items()}
    arrays |= {f"ema/{path}": array for path, array in mean.items()}
    init = InitRecipe(path=stored(tmp_path / "model.safetensors", arrays))
    for path, array in flattened(begun(replace(recipe, init=init))).items():
        assert (array == mean[path]).all(), path


def test_snapshot_is_a_runs_own_when_it_began_with_the_same_weights() -> None:
    init = InitRecipe(path="job-1@400")
    recipe = replace(recipe_named("arm"), init=init)

    class Kept:
        def __init__(self, state: dict[str, str]) -> None:
            self.state = state

    def own(stored: Recipe | None, recipe: Recipe) -> bool:
        kept: Any = Kept({} if stored is None else {"recipe": encode(stored).decode()})
        return own_state(kept, recipe) is kept

    assert own(recipe, recipe)
    assert not own(replace(recipe, init=None), recipe)
    assert not own(None, recipe)
    assert own(None, replace(recipe, init=None))
    assert own_state(None, recipe) is None
