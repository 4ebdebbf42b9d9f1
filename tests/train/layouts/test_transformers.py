from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from mainspring.train.layouts.openpi import big_vision_layout, openpi_layout
from mainspring.train.layouts.rows import weights_from, weights_to
from mainspring.train.layouts.transformers import gemma_layout, lerobot_layout, paligemma_layout
from mainspring.train.models.arrays import flattened
from mainspring.train.models.gemma import fresh_gemma
from mainspring.train.models.vla import fresh_vla
from tests.train.models.plain import small_params
from tests.train.models.test_vla import small

KINDS = pytest.mark.parametrize("kind", ["pi0", "pi05"])
ROOT = "model.paligemma_with_expert"


def weights_of(kind: str) -> Any:
    params = small_params(kind=kind, heads=4, kv_heads=2)
    return weights_from(openpi_layout(small(kind, kv_heads=2)), params, fresh_vla(small(kind, kv_heads=2)))


def same(ours: Any, theirs: Any) -> bool:
    left, right = flattened(ours), flattened(theirs)
    return left.keys() == right.keys() and all((array == right[path]).all() for path, array in left.items())


@KINDS
def test_weights_go_to_lerobot_and_come_back_without_losing_a_bit(kind: str) -> None:
    layout, weights = lerobot_layout(small(kind, kv_heads=2)), weights_of(kind)
    assert same(weights_from(layout, weights_to(layout, weights), fresh_vla(small(kind, kv_heads=2))), weights)


def test_arrays_of_lerobot_act_on_columns_as_pytorch_has_it() -> None:
    """A linear layer of PyTorch is `x @ weight.T`; heads lie one after the other in its rows."""
    weights = weights_of("pi05")
    arrays = weights_to(lerobot_layout(small("pi05", kv_heads=2)), weights)
    x = np.random.default_rng(0).normal(size=16)
    layer, blocks = f"{ROOT}.paligemma.model.language_model.layers.1", weights["language"]["blocks"]
    for name, own in (("q_proj", "query"), ("k_proj", "key"), ("v_proj", "value")):
        expected = np.einsum("D,DNH->NH", x, blocks[own][1]).ravel()
        np.testing.assert_allclose(arrays[f"{layer}.self_attn.{name}.weight"] @ x, expected, rtol=1e-5)
    expected = np.einsum("NH,NHD->D", x.reshape(4, 4), blocks["out"][1])
    np.testing.assert_allclose(arrays[f"{layer}.self_attn.o_proj.weight"] @ x, expected, rtol=1e-5)
    np.testing.assert_allclose(arrays[f"{layer}.mlp.up_proj.weight"] @ x, x @ blocks["up"][1], rtol=1e-5)
    norm = f"{ROOT}.gemma_expert.model.layers.0.input_layernorm.dense"
    adaptive = weights["expert"]["blocks"]["attention_norm"]
    np.testing.assert_allclose(arrays[f"{norm}.weight"] @ x[:8], x[:8] @ adaptive["kernel"][0], rtol=1e-5)
    eyes = f"{ROOT}.paligemma.model.vision_tower.vision_model.embeddings.patch_embedding.weight"
    assert (arrays[eyes] == weights["image"]["patch"]["kernel"].transpose(3, 2, 0, 1)).all()


def test_lerobot_with_its_tied_and_its_idle_head_is_read() -> None:
    policy, weights = small("pi0", kv_heads=2), weights_of("pi0")
    arrays = weights_to(lerobot_layout(policy), weights)
    embedding = arrays.pop(f"{ROOT}.paligemma.model.language_model.embed_tokens.weight")
    arrays |= {f"{ROOT}.paligemma.lm_head.weight": embedding, f"{ROOT}.gemma_expert.lm_head.weight": np.zeros((32, 8))}
    assert same(weights_from(lerobot_layout(policy), arrays, fresh_vla(policy)), weights)


@pytest.mark.parametrize("layout_of", [big_vision_layout, paligemma_layout])
def test_policy_begins_from_a_paligemma_and_keeps_its_own_expert(layout_of: Any) -> None:
    policy, weights = small("pi0", kv_heads=2), weights_of("pi0")
    language = {name: weights[name] for name in ("language", "image")}
    arrays: dict[str, NDArray[Any]] = weights_to(layout_of(policy), language)
    fresh = {name: part if name not in language else fresh_vla(policy)[name] for name, part in weights.items()}
    assert same(weights_from(layout_of(policy), arrays, fresh, keep=("(expert|action|time|state).*",)), weights)


def test_gemma_alone_comes_and_goes() -> None:
    shape, weights = small("pi0", kv_heads=2).language, weights_of("pi0")["language"]
    arrays = weights_to(gemma_layout(), weights)
    assert "model.layers.1.post_attention_layernorm.weight" in arrays
    assert same(weights_from(gemma_layout(), arrays, fresh_gemma(shape)), weights)
