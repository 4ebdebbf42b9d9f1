"""Adapters beside weights that stay as they are."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from mainspring.checkpoint.interop import ArraySpec, Block, Facts, Region
from mainspring.checkpoint.safetensors import SafetensorsSource, write_safetensors
from mainspring.domain.codec import encode
from mainspring.domain.errors import InvalidInput
from mainspring.domain.wire import Part
from mainspring.train.evaluate import policy_from
from mainspring.train.layouts.files import read_arrays
from mainspring.train.layouts.openpi import openpi_layout
from mainspring.train.layouts.rows import weights_to
from mainspring.train.models.arrays import flattened
from mainspring.train.models.shapes import VlaRecipe
from mainspring.train.policy import model_of, row_keys, sample_actions, unit_statistics
from mainspring.train.recipe import Recipe, changed, recipe_named
from mainspring.train.state.adapters import weights_in_use
from mainspring.train.state.merged import merged_source
from mainspring.train.state.sharding import make_mesh, place_batch
from mainspring.train.steps.state import TrainState, abstract_state, initial_state
from mainspring.train.steps.update import make_update

from .layouts_of_mesh import SIGNATURE, batch_of, recipe_with

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("compiled_at_once")]

LORA = {
    "adapters": [
        {"stack": "language/blocks", "rank": 4, "alpha": 4.0},
        {"stack": "expert/blocks", "rank": 8, "alpha": 2.0, "stabilised": True},
        {"stack": "image/blocks", "rank": 2, "alpha": 2.0, "targets": ["(query|out|narrow)/kernel"]},
    ]
}
RECIPE = recipe_with({"lora": LORA, "optimizer": {"warmup_steps": 0, "learning_rate": 1e-2}})


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns a file of weights whose velocity is not zero, as that of fresh ones is."""
    draw = jax.jit(lambda: model_of(RECIPE.policy).initial_weights(jax.random.key(5), SIGNATURE))
    weights = {f"weights/{path}": np.asarray(array) for path, array in flattened(draw()).items()}
    weights["weights/action_out/kernel"] = np.random.default_rng(0).normal(size=(64, 32)).astype(np.float32) / 8
    path = tmp_path_factory.mktemp("base") / "base.npz"
    arrays: Any = weights
    np.savez(path, **arrays)
    return path


def begun_with(base: Path, **changes: Any) -> Recipe:
    return changed(RECIPE, {"init": {"path": str(base), "layout": "mainspring"}, **changes})


def run(recipe: Recipe, *, steps: int) -> tuple[TrainState, TrainState]:
    """Returns the first and the last state."""
    mesh = make_mesh(recipe.mesh)
    state = initial_state(recipe, SIGNATURE, unit_statistics(recipe.policy, SIGNATURE), mesh)
    first, update = jax.tree.map(np.array, state), make_update(recipe, mesh)
    for step in range(steps):
        state, _ = update(state, place_batch(mesh, batch_of(step)), np.int32(step))
    return first, jax.tree.map(np.array, state)


@pytest.fixture(scope="module")
def moved(base: Path) -> Iterator[tuple[TrainState, TrainState]]:
    jax.config.update("jax_disable_most_optimizations", True)  # type: ignore[no-untyped-call]
    yield run(begun_with(base, ema_decay=0.5), steps=3)
    jax.config.update("jax_disable_most_optimizations", False)  # type: ignore[no-untyped-call]


@jax.jit
def sampled(weights: Any) -> jax.Array:
    statistics = unit_statistics(RECIPE.policy, SIGNATURE)
    return sample_actions(
        weights,
        statistics,
        RECIPE.policy,
        batch_of(1),
        row_keys(jax.random.key(1), jnp.arange(len(batch_of(1)["state"]))),
    )


def chunk_of(weights: Any) -> Any:
    return np.asarray(sampled(weights))


def test_run_begins_with_exactly_the_output_of_its_base(moved: tuple[TrainState, TrainState], base: Path) -> None:
    first, last = moved
    assert first.adapters is not None
    with np.load(base) as given:
        assert all((given[f"weights/{path}"] == array).all() for path, array in flattened(first.weights).items())
    expected = chunk_of(first.weights)
    assert (chunk_of(weights_in_use(first.weights, first.adapters, RECIPE.lora)) == expected).all()
    assert last.adapters is not None
    assert abs(chunk_of(weights_in_use(last.weights, last.adapters, RECIPE.lora)) - expected).max() > 1e-3


def test_adapters_alone_move_and_alone_have_moments_and_a_mean(moved: tuple[TrainState, TrainState]) -> None:
    first, last = moved
    assert first.adapters is not None
    assert last.adapters is not None
    assert all(jax.tree.leaves(jax.tree.map(lambda a, b: (a == b).all(), first.weights, last.weights)))
    # In its first step an A has no gradient: its B is zero. In the third all have moved.
    assert [path for path in first.adapters if (first.adapters[path] == last.adapters[path]).all()] == []
    # A [2, D, R] and B [2, R, ..] of seven arrays, four heads of 16, one of keys; MLP of 128.
    language = 2 * 4 * ((64 + 64) + 2 * (64 + 16) + (64 + 64) + 3 * (64 + 128))
    image = 2 * 2 * ((48 + 48) + (48 + 48) + (96 + 48))
    assert sum(array.size for array in last.adapters.values()) == language + 2 * language + image
    moments = sum(array.size for array in jax.tree.leaves(last.optimizer) if array.ndim)
    assert moments == 2 * (3 * language + image)
    assert last.ema is not None
    assert {path: array.shape for path, array in last.ema.items()} == {
        path: array.shape for path, array in last.adapters.items()
    }


def facts_of(recipe: Recipe) -> dict[str, Any]:
    return {"recipe": encode(recipe).decode(), "signature": encode(SIGNATURE).decode()}


class TrainersSource:
    """A trainer's state as a checkpoint."""

    name = "run"

    def __init__(self, state: TrainState, recipe: Recipe) -> None:
        self._arrays = flattened(state)
        self.facts = Facts(step=3, state=facts_of(recipe))
        self.arrays = tuple(
            ArraySpec(path=path, dtype=array.dtype.name, shape=array.shape, part=Part.WEIGHTS)
            for path, array in sorted(self._arrays.items())
        )

    def read(self, blocks: Any) -> None:
        for block in blocks:
            block.elements[...] = self._arrays[block.array.path][block.place]


@pytest.mark.parametrize("mean", [True, pytest.param(False, marks=pytest.mark.soak)])
def test_export_is_merged_and_gives_the_samples_of_the_run(
    mean: bool, moved: tuple[TrainState, TrainState], tmp_path: Path
) -> None:
    last, recipe = moved[1], changed(RECIPE, {"ema_decay": 0.5 if mean else None})
    used = last.ema if mean else last.adapters
    assert used is not None
    expected = chunk_of(weights_in_use(last.weights, used, RECIPE.lora))
    source = TrainersSource(last if mean else replace(last, ema=None), recipe)
    write_safetensors(merged_source(source), tmp_path / "merged")
    merged = SafetensorsSource(tmp_path / "merged")
    assert {array.path.partition("/")[0] for array in merged.arrays} == {"weights", "statistics"} | {
        *(["ema"] if mean else [])
    }
    exported = policy_from(merged.facts.state, read_arrays(merged))
    assert exported.recipe.lora is None
    np.testing.assert_allclose(chunk_of(exported.weights), expected, rtol=1e-5, atol=1e-5)
    served = policy_from(facts_of(recipe), flattened(last))
    np.testing.assert_allclose(chunk_of(served.weights), expected, rtol=1e-5, atol=1e-5)
    assert abs(chunk_of(last.weights) - expected).max() > 1e-3


def test_merged_source_reads_any_region(moved: tuple[TrainState, TrainState]) -> None:
    merged = merged_source(TrainersSource(moved[1], RECIPE))
    whole = read_arrays(merged)
    array = next(array for array in merged.arrays if array.path == "weights/expert/blocks/query")
    region = Region(start=(1, 3, 1, 0), shape=(1, 5, 2, 16))
    block = Block(array=array, region=region, elements=np.empty(region.shape, np.float32))
    merged.read([block])
    np.testing.assert_allclose(block.elements, whole[array.path][1:2, 3:8, 1:3], rtol=1e-6)


@pytest.mark.soak
def test_base_in_bfloat16_takes_half_the_memory_and_merges_the_same(base: Path) -> None:
    recipe = begun_with(base, lora={**LORA, "numbers": "bfloat16", "whole": ["action_(in|out)/.*"]})
    first, last = run(recipe, steps=3)
    arrays = flattened(last.weights)
    whole = {path for path, array in arrays.items() if array.dtype == np.float32}
    assert whole == {"action_in/kernel", "action_in/bias", "action_out/kernel", "action_out/bias"}
    assert {path for path, array in arrays.items() if (array != flattened(first.weights)[path]).any()} == whole
    assert last.adapters is not None
    assert {array.dtype.name for array in last.adapters.values()} == {"float32"}
    expected = chunk_of(weights_in_use(last.weights, last.adapters, recipe.lora))
    served = policy_from(facts_of(recipe), flattened(last))
    np.testing.assert_allclose(chunk_of(served.weights), expected, rtol=1e-5, atol=1e-5)


def test_run_with_adapters_begins_with_the_weights_of_others(tmp_path: Path) -> None:
    recipe = changed(RECIPE, {"lora": {**LORA, "numbers": "bfloat16"}})
    assert isinstance(recipe.policy, VlaRecipe)
    weights = jax.jit(lambda: model_of(recipe.policy).initial_weights(jax.random.key(5), SIGNATURE))()
    arrays: Any = weights_to(openpi_layout(recipe.policy), weights)
    np.savez(tmp_path / "pi0.npz", **arrays)
    recipe = changed(recipe, {"init": {"path": str(tmp_path / "pi0.npz"), "layout": "openpi"}})
    begun = initial_state(recipe, SIGNATURE, unit_statistics(recipe.policy, SIGNATURE), make_mesh())
    for path, array in flattened(begun.weights).items():
        assert (array == flattened(weights)[path].astype("bfloat16")).all(), path
    assert begun.adapters is not None
    assert {path for path, array in begun.adapters.items() if not array.any()} == {
        path for path in begun.adapters if path.endswith("/b")
    }


@pytest.mark.parametrize(
    ("lora", "named"),
    [
        ({"adapters": [{"stack": "brain", "rank": 4, "alpha": 4.0}]}, "brain"),
        ({"adapters": [{"stack": "image/blocks", "rank": 4, "alpha": 4.0, "targets": ["widen/bias"]}]}, "widen/bias"),
        ({"adapters": [{"stack": "image", "rank": 4, "alpha": 4.0, "targets": ["patch/kernel"]}]}, "patch/kernel"),
        ({**LORA, "whole": ["language/.*"]}, "learned whole"),
    ],
)
def test_adapters_that_fit_no_weight_are_refused_by_its_path(lora: Any, named: str) -> None:
    recipe = changed(RECIPE, {"lora": lora})
    with pytest.raises(InvalidInput, match=named):
        abstract_state(recipe, SIGNATURE, make_mesh())


def test_pi0_with_adapters_keeps_less_than_a_third_of_what_pi0_keeps() -> None:
    def bytes_of(name: str) -> int:
        state = abstract_state(recipe_named(name), SIGNATURE, make_mesh())
        return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(state))

    assert (bytes_of("pi0_lora"), bytes_of("pi0")) == (11_058_287_808, 38_856_584_384)
