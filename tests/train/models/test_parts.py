from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from mainspring.train.models.arrays import Fresh, drawn, fresh_dense
from mainspring.train.models.attention import block_causal
from mainspring.train.models.gemma import fresh_gemma, next_word_logits, surprises
from mainspring.train.models.images import varied_images
from mainspring.train.models.shapes import ComputeRecipe, ConvolutionRecipe, FloatKind, GemmaRecipe, Remat, SiglipRecipe
from mainspring.train.models.siglip import scaled

pytestmark = pytest.mark.usefixtures("compiled_at_once")
pytestmark = pytest.mark.usefixtures("compiled_at_once")
GEMMA = GemmaRecipe(width=16, mlp=24, depth=2, heads=4, kv_heads=2, head_dim=4, vocabulary=32)
WORDS = jnp.asarray(np.random.default_rng(0).integers(0, 32, (2, 6)))


def computed(remat: Remat = Remat.FULL) -> ComputeRecipe:
    return ComputeRecipe(numbers=FloatKind.FLOAT32, remat=remat)


@pytest.fixture(scope="module")
def weights() -> Any:
    return jax.jit(lambda: drawn(jax.random.key(0), fresh_gemma(GEMMA)))()


def test_fresh_arrays_without_deviation_are_their_mean_to_the_bit_and_others_are_drawn() -> None:
    plan = {"zero": Fresh(shape=(9,)), "one": Fresh(shape=(9,), mean=1.0), "normal": fresh_dense(4, 9, inputs=4)}
    fresh = drawn(jax.random.key(0), plan)
    assert not np.signbit(fresh["zero"]).any()
    assert (fresh["one"] == 1.0).all()
    assert len(np.unique(fresh["normal"])) == 36
    assert not any(leaf.weak_type for leaf in fresh.values())  # Or a step is compiled again once it changed them.
    assert drawn(jax.random.key(0), {"zero": plan["zero"]})["zero"].shape == (9,)


def test_tokens_of_a_block_see_each_other_and_all_before_and_no_padding() -> None:
    valid = jnp.asarray([[True, True, True, True], [True, False, True, True]])
    mask = np.asarray(block_causal(valid, [False, False, True, False]).mask_BTS)
    whole = [[1, 1, 0, 0], [1, 1, 0, 0], [1, 1, 1, 1], [1, 1, 1, 1]]
    padded = [[1, 0, 0, 0], [0, 0, 0, 0], [1, 0, 1, 1], [1, 0, 1, 1]]
    assert mask.astype(int).tolist() == [whole, padded]


@pytest.mark.slow
def test_next_word_is_told_from_those_before_it_alone(weights: Any) -> None:
    logits = jax.jit(lambda words: next_word_logits(weights, words, computed()))
    before, after = (np.asarray(logits(words)) for words in (WORDS, WORDS.at[:, 4].set(WORDS[:, 4] ^ 1)))
    assert before.shape == (2, 6, 32)
    assert (before[:, :4] == after[:, :4]).all()
    assert (before[:, 4:] != after[:, 4:]).any()


@pytest.mark.slow
def test_what_is_kept_for_the_backward_pass_changes_no_gradient(weights: Any) -> None:
    def gradient(remat: Remat) -> np.ndarray[Any, Any]:
        found = jax.jit(jax.grad(lambda weights: surprises(weights, WORDS, computed(remat)).mean()))(weights)
        return np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(found)])

    kept = gradient(Remat.NONE)
    for remat in (Remat.DOTS, Remat.FULL):
        np.testing.assert_allclose(gradient(remat), kept, atol=1e-6 * np.abs(kept).max())


@pytest.mark.slow
def test_images_keep_their_proportions_and_are_padded_with_black() -> None:
    wide = np.asarray(scaled(jnp.full((1, 6, 12, 3), 200.0), 8))[0, :, :, 0]
    np.testing.assert_allclose(wide[2:6], 200.0, rtol=1e-6)
    assert not wide[:2].any()
    assert not wide[6:].any()
    square = jnp.asarray(np.random.default_rng(0).normal(size=(1, 8, 8, 3)))
    assert (scaled(square, 8) == square).all()


@pytest.mark.slow
def test_images_that_are_moved_and_scaled_at_once_are_what_both_give_one_after_the_other() -> None:
    images = jnp.asarray(np.random.default_rng(0).integers(0, 256, (2, 3, 18, 24, 3)), jnp.uint8)
    keys = jax.random.split(jax.random.key(1), 2)
    read = SiglipRecipe(size=8, patch=4, width=8, mlp=8, depth=1, heads=1, shift_pixels=3)
    whole = ConvolutionRecipe(channels=(4,), shift_pixels=3)
    at_once = np.asarray(varied_images(images, read, keys)).reshape(6, 8, 8, 3)
    after = np.asarray(scaled(varied_images(images, whole, keys).reshape(6, 18, 24, 3), 8))
    np.testing.assert_allclose(at_once, after, atol=1e-3)
