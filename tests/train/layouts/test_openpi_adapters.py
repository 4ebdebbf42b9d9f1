"""Adapters that openpi trained: merged, they act as its own equations of them do."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mainspring.domain.errors import InvalidInput
from mainspring.train.layouts.openpi import openpi_arrays, openpi_layout
from mainspring.train.layouts.rows import weights_from
from mainspring.train.models.arrays import flattened
from mainspring.train.models.shapes import Signature
from mainspring.train.models.vla import fresh_vla
from mainspring.train.policy import unit_statistics
from mainspring.train.recipe import InitRecipe, LayoutName, recipe_named
from mainspring.train.state.sharding import make_mesh
from mainspring.train.steps.state import initial_state
from tests.train.models.plain import small_params
from tests.train.models.test_vla import small

LAYERS, RANK = "PaliGemma/llm/layers", 3
ADAPTED = {  # From a weight's name to where its adapters lie.
    "attn/q_einsum{}/w": "attn/q_einsum{}/lora_",
    "attn/kv_einsum{}/w": "attn/kv_einsum{}/lora_",
    "attn/attn_vec_einsum{}/w": "attn/attn_vec_einsum{}/lora_",
    "mlp{}/gating_einsum": "mlp{}/gating_einsum_lora_",
    "mlp{}/linear": "mlp{}/linear_lora_",
}


def checkpoint(*, kv_heads: int = 2) -> dict[str, Any]:
    """Returns a checkpoint of small weights with adapters beside all of both streams' products, as `lora.py` has it."""
    numbers, params = np.random.default_rng(3), small_params(kind="pi0", heads=4, kv_heads=kv_heads)
    found: dict[str, Any] = {f"params/{path}/value": array for path, array in params.items()}
    for stream in ("", "_1"):
        for name, thin in ADAPTED.items():
            *stack, inputs, outputs = params[f"{LAYERS}/{name.format(stream)}"].shape
            root = f"params/{LAYERS}/{thin.format(stream)}"
            found[f"{root}a/value"] = numbers.normal(size=(*stack, inputs, RANK))
            found[f"{root}b/value"] = numbers.normal(size=(*stack, RANK, outputs))
    return found


@pytest.mark.parametrize("stream", ["", "_1"])
@pytest.mark.parametrize(
    ("name", "whole", "first", "second"),
    [  # Equations as openpi's `Einsum` makes them of its own, and those of its `FeedForward`.
        ("attn/q_einsum{}/w", "TD,NDH->TNH", "TD,NDL->TNL", "TNL,NLH->TNH"),
        ("attn/kv_einsum{}/w", "SD,2KDH->2SKH", "SD,2KDL->2SKL", "2SKL,2KLH->2SKH"),
        ("attn/attn_vec_einsum{}/w", "TNH,NHD->TD", "TNH,NHL->TL", "TL,NLD->TD"),
        ("mlp{}/gating_einsum", "TD,2DF->2TF", "TD,2DL->2TL", "2TL,2LF->2TF"),
        ("mlp{}/linear", "TF,FD->TD", "TF,FL->TL", "TL,LD->TD"),
    ],
)
def test_merged_weight_acts_as_its_weight_and_its_adapters_do(
    name: str, whole: str, first: str, second: str, stream: str
) -> None:
    given, merged = checkpoint(), openpi_arrays(checkpoint())
    weight, root = name.format(stream), f"params/{LAYERS}/{ADAPTED[name].format(stream)}"
    base, a, b = (given[path][1] for path in (f"params/{LAYERS}/{weight}/value", f"{root}a/value", f"{root}b/value"))
    whole, first, second = (equation.replace("2", "P") for equation in (whole, first, second))
    sizes = dict(zip(whole.partition(",")[2].partition("->")[0], base.shape, strict=True)) | {"T": 5, "S": 5}
    x = np.random.default_rng(0).normal(size=[sizes[letter] for letter in whole.partition(",")[0]])
    expected = np.einsum(whole, x, base) + np.einsum(second, np.einsum(first, x, a), b)
    np.testing.assert_allclose(np.einsum(whole, x, merged[f"{LAYERS}/{weight}"][1]), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("kv_heads", [1, 2])
def test_checkpoint_with_adapters_fills_a_policy_of_its_shape(kv_heads: int) -> None:
    policy = small("pi0", kv_heads=kv_heads)
    plain = weights_from(openpi_layout(policy), small_params(kind="pi0", heads=4, kv_heads=kv_heads), fresh_vla(policy))
    found = weights_from(openpi_layout(policy), openpi_arrays(checkpoint(kv_heads=kv_heads)), fresh_vla(policy))
    moved = {path for path, array in flattened(found).items() if (array != flattened(plain)[path]).any()}
    names = ("query", "key", "value", "out", "gate", "up", "down")
    assert moved == {f"{stack}/blocks/{name}" for stack in ("language", "expert") for name in names}


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda given: given.pop(f"params/{LAYERS}/attn/q_einsum/lora_b/value"), "1 left over .*q_einsum/lora_a"),
        (lambda given: given.pop(f"params/{LAYERS}/mlp_1/linear/value"), "1 arrays missing .*2 left over"),
        (
            lambda given: given.update({f"params/{LAYERS}/mlp/linear_lora_b/value": np.zeros((2, RANK + 1, 16))}),
            r"merge an adapter; on .*mlp/linear; got shapes \(2, 24, 3\) and \(2, 4, 16\) beside \(2, 24, 16\)",
        ),
    ],
)
def test_adapter_that_is_not_whole_or_does_not_fit_is_refused(change: Any, said: str) -> None:
    given, policy = checkpoint(), small("pi0", kv_heads=2)
    change(given)
    with pytest.raises(InvalidInput, match=said):
        weights_from(openpi_layout(policy), openpi_arrays(given), fresh_vla(policy))


@pytest.mark.slow
def test_run_begins_with_what_adapters_made_of_their_weights(tmp_path: Path) -> None:
    policy, signature = small("pi0", kv_heads=2), Signature(state_dim=6, action_dim=6)
    init = InitRecipe(path=str(tmp_path / "pi0_lora.npz"), layout=LayoutName.OPENPI)
    recipe = replace(recipe_named("pi0"), policy=policy, init=init)
    arrays: Any = checkpoint()
    np.savez(tmp_path / "pi0_lora.npz", **arrays)
    weights = initial_state(recipe, signature, unit_statistics(policy, signature), make_mesh()).weights
    merged = flattened(weights_from(openpi_layout(policy), openpi_arrays(arrays), fresh_vla(policy)))
    assert all((array == merged[path]).all() for path, array in flattened(weights).items())
