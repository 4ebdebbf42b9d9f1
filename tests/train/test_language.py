"""Gemma as a plain language model: beside its equations, through the trainer, from published weights."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from mainspring.data import EpisodeWriter, View, ViewRecipe, build_view, ingest, open_view
from mainspring.domain.errors import InvalidInput
from mainspring.objects import open_store
from mainspring.session import Session
from mainspring.testing.time_and_chance import FakeClock
from mainspring.train.evaluate import TrainedPolicy, held_out_error, make_actor
from mainspring.train.feed import fitted, shapes_fed
from mainspring.train.layouts.openpi import openpi_layout
from mainspring.train.layouts.rows import weights_from, weights_to
from mainspring.train.layouts.transformers import gemma_layout
from mainspring.train.models.arrays import flattened
from mainspring.train.models.gemma import next_word_logits, surprises
from mainspring.train.models.shapes import WORDS_AT_ONCE, ComputeRecipe, FloatKind, Signature
from mainspring.train.models.vla import fresh_vla
from mainspring.train.policy import model_of, unit_statistics
from mainspring.train.recipe import InitRecipe, LayoutName, Recipe, changed, recipe_named
from mainspring.train.state.sharding import make_mesh
from mainspring.train.steps.state import initial_state
from mainspring.train.trainer import train

from .making import PERIOD_NS, RATE_HZ
from .models.plain import next_words, small_params
from .models.test_vla import small

pytestmark = pytest.mark.usefixtures("compiled_at_once")
WORDS = 32
PLAIN = ComputeRecipe(numbers=FloatKind.FLOAT32)
NOTHING = Signature(state_dim=0, action_dim=0)
SIZES = {"width": 16, "mlp": 24, "depth": 2, "heads": 4, "kv_heads": 2, "head_dim": 4, "vocabulary": WORDS}


def tiny(**changes: Any) -> Recipe:
    policy = {"language": SIZES, "horizon": 12, "compute": {"numbers": "float32"}}
    learning = {"learning_rate": 3e-2, "warmup_steps": 2}
    gemma = changed(recipe_named("gemma_2b"), {"batch_size": 16, "steps": 60, "policy": policy, "optimizer": learning})
    return changed(gemma, changes)


@pytest.fixture(scope="module")
def make_texts(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., View]:
    def make(*, step: int = 7, words: int = WORDS) -> View:
        """Returns a view of texts in which each word follows from the one before it."""
        folder = tmp_path_factory.mktemp("texts")
        for index in range(4):
            name = folder / "in" / f"{index}.mcap"
            with EpisodeWriter(name, task="count", robot="none", rate_hz=RATE_HZ) as writer:
                for place in range(40):
                    word = np.array([(index + step * place) % words], np.float64)
                    writer.write(place * PERIOD_NS, word, word)
                writer.finish(success=True)
        store = open_store(str(folder / "objects"))
        version = ingest(folder / "in", store, "count", clock=FakeClock()).version
        assert version is not None
        manifest = build_view(store, version, ViewRecipe(), scratch_dir=folder / "scratch")
        return open_view(store, manifest.id, folder / "cache", "train")

    return make


def alone() -> Session:
    return Session("", pid=1, stopwatch=lambda: 0.0)


@pytest.mark.slow
@pytest.mark.parametrize("kv_heads", [1, 2])
def test_surprise_at_each_word_is_that_of_the_equations_and_of_no_later_word(kv_heads: int) -> None:
    params = small_params(kind="pi0", heads=4, kv_heads=kv_heads)
    shape = small("pi0", kv_heads=kv_heads)
    weights = weights_from(openpi_layout(shape), params, fresh_vla(shape))["language"]
    compute, count = PLAIN, WORDS_AT_ONCE + 5  # Two parts, with a word that is in no sequence.
    words = np.random.default_rng(0).integers(0, WORDS, (2, count))
    plain = np.stack([next_words(params, row) for row in words])
    logits_of = jax.jit(lambda words: next_word_logits(weights, words, compute))
    logits = np.asarray(logits_of(words))
    np.testing.assert_allclose(logits, plain, atol=1e-4 * np.abs(plain).max())
    surprise = np.log(np.exp(plain).sum(axis=-1, keepdims=True)) - plain
    expected = np.take_along_axis(surprise[:, :-1], words[:, 1:, None], axis=-1)[..., 0]
    found = np.asarray(jax.jit(lambda words: surprises(weights, words, compute))(words))
    np.testing.assert_allclose(found[:, 1:], expected, rtol=1e-4, atol=1e-4)
    assert not found[:, 0].any()
    other = words.copy()
    other[:, 40] = (other[:, 40] + 1) % WORDS
    after = np.asarray(logits_of(other))
    assert (after[:, :40] == logits[:, :40]).all()
    assert (after[:, 40:] != logits[:, 40:]).any()


@pytest.mark.slow
def test_language_model_learns_which_word_follows_from_a_view_of_texts(make_texts: Callable[..., View]) -> None:
    first = train(alone(), tiny(steps=1, optimizer={"warmup_steps": 0}), make_texts(), facts={})
    last = train(alone(), tiny(), make_texts(), facts={})
    assert first.loss == pytest.approx(np.log(WORDS), abs=1.0)
    assert last.loss is not None
    assert last.loss < 0.2
    assert last.state.statistics == {}


def test_first_word_of_a_sequence_and_what_is_behind_a_text_are_not_learned(make_texts: Callable[..., View]) -> None:
    policy = tiny().policy
    batch = {"actions": np.arange(24, dtype=np.float32).reshape(2, 12, 1), "valid": np.arange(12) < [[12], [5]]}
    found = fitted(batch, policy)
    assert found["tokens"].dtype == np.int32
    assert found["valid"].sum(axis=1).tolist() == [11, 4]
    assert batch["valid"][:, 0].all()
    shapes = shapes_fed(policy, NOTHING, 2)
    assert {name: (like.shape, like.dtype) for name, like in shapes.items()} == {
        name: (array.shape, array.dtype) for name, array in found.items()
    }


@pytest.mark.parametrize(
    ("actions", "said"),
    [
        (np.zeros((1, 12, 3)), "a view of 3 action dimensions; wanted 1: the number of a word"),
        (np.full((1, 12, 1), 32.0), "a word 32; wanted whole numbers from 0 to 31"),
        (np.full((1, 12, 1), -1.0), "a word -1"),
        (np.full((1, 12, 1), 0.5), r"a word 0\.5"),
        (np.full((1, 12, 1), np.nan), "a word nan"),
    ],
)
def test_what_is_no_word_is_refused(actions: Any, said: str) -> None:
    with pytest.raises(InvalidInput, match=f"learn a language; got {said}"):
        fitted({"actions": actions.astype(np.float32), "valid": np.ones((1, 12), bool)}, tiny().policy)


@pytest.mark.slow
def test_language_model_begins_with_a_published_gemma(tmp_path: Path) -> None:
    safetensors = pytest.importorskip("safetensors.numpy")
    recipe, like = tiny(), small("pi0", kv_heads=2)
    params = small_params(kind="pi0", heads=4, kv_heads=2)
    given = weights_from(openpi_layout(like), params, fresh_vla(like))["language"]
    arrays = {name: np.ascontiguousarray(array) for name, array in weights_to(gemma_layout(), given).items()}
    safetensors.save_file(arrays, tmp_path / "gemma.safetensors")
    init = InitRecipe(path=str(tmp_path / "gemma.safetensors"), layout=LayoutName.GEMMA)
    weights = initial_state(replace(recipe, init=init), NOTHING, {}, make_mesh()).weights
    assert all((array == flattened(given)[path]).all() for path, array in flattened(weights).items())
    with pytest.raises(InvalidInput, match="layout openpi for a policy that is no VLA; wanted layout mainspring or ge"):
        initial_state(replace(recipe, init=replace(init, layout=LayoutName.OPENPI)), NOTHING, {}, make_mesh())
    with pytest.raises(InvalidInput, match="layout gemma for a policy that is no language model"):
        initial_state(replace(recipe_named("vla_tiny"), init=init), NOTHING, {}, make_mesh())


@pytest.mark.slow
def test_language_model_is_no_policy_to_act_by(make_texts: Callable[..., View]) -> None:
    recipe = tiny()
    weights = model_of(recipe.policy).initial_weights(jax.random.key(0), NOTHING)
    statistics = unit_statistics(recipe.policy, NOTHING)
    policy = TrainedPolicy(recipe=recipe, signature=NOTHING, weights=weights, statistics=statistics)
    with pytest.raises(InvalidInput, match="act; got a language model"):
        make_actor(policy, seed=0)
    with pytest.raises(InvalidInput, match="act; got a language model"):
        held_out_error(policy, make_texts(), seed=0)
