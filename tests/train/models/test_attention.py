"""Attention by the TPU's own kernel, beside the plain one."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from mainspring.domain.errors import InvalidInput
from mainspring.train.evaluate import at_home
from mainspring.train.models.attention import Sight, attention, block_causal, splash
from mainspring.train.models.shapes import AttentionKind, VlaRecipe
from mainspring.train.plan.compiled import ENVIRONMENT
from mainspring.train.recipe import changed, recipe_named
from mainspring.train.state.sharding import make_mesh
from mainspring.train.trainer import check_shares

ROOT = Path(__file__).parents[3]
COMMAND = "pip install libtpu==0.0.52"


def drawn(*shape: int) -> Any:
    return jnp.asarray(np.random.default_rng(len(shape) * shape[1]).normal(size=shape), jnp.float32)


def sights() -> dict[str, Sight | None]:
    """Returns who sees whom among 140 tokens: two kernel blocks, with padding in both and a mask between."""
    valid = np.ones((2, 140), bool)
    valid[0, 100:120] = valid[1, :7] = False
    causal = block_causal(jnp.asarray(valid), [False] * 120 + [True, True] + [False] * 18)
    return {"all": None, "block-causal": causal, "cached": causal.of_queries(120)}


@pytest.mark.slow
@pytest.mark.parametrize(("heads", "kv_heads"), [(2, 1), (4, 2), (2, 2)])
@pytest.mark.parametrize("name", ["all", "block-causal", "cached"])
def test_splash_gives_what_the_plain_one_gives_to_all_but_padding_and_its_gradient(
    name: str, heads: int, kv_heads: int
) -> None:
    sight = sights()[name]
    queries = 20 if name == "cached" else 140
    arrays = drawn(2, queries, heads, 16), drawn(2, 140, kv_heads, 16), 2 * drawn(2, 140, kv_heads, 16)
    valid = np.ones((2, queries), bool) if sight is None else sight.query_valid_BT
    weight = drawn(2, queries, heads, 16) * valid[:, :, None, None]

    def found(attend: Any) -> Any:
        def total(*arrays: Any) -> Any:
            attended = jnp.where(valid[:, :, None, None], attend(*arrays), 0.0)
            return (attended * weight).sum(), attended

        return jax.jit(jax.grad(total, argnums=(0, 1, 2), has_aux=True))(*arrays)

    plain = found(attention(sight, AttentionKind.XLA))
    kernel = found(lambda query, key, value: splash(query, key, value, sight, interpret=True))
    for one, other in zip(jax.tree.leaves(plain), jax.tree.leaves(kernel), strict=True):
        assert abs(one).max() > 0.1
        np.testing.assert_allclose(other, one, rtol=1e-5, atol=5e-5)  # Of sums of up to 10, by float32 logarithms.


def test_attention_of_other_devices_is_refused_before_anything_is_made() -> None:
    recipe = changed(recipe_named("vla_tiny"), {"policy": {"compute": {"attention": "splash"}}})
    with pytest.raises(InvalidInput, match=r"kind cpu; got .*splash; wanted splash on tpu alone.*attention to xla"):
        check_shares(recipe, make_mesh(recipe.mesh))


def test_policy_trained_with_another_devices_attention_is_evaluated_with_xlas() -> None:
    policy = changed(recipe_named("vla_tiny"), {"policy": {"compute": {"attention": "splash"}}}).policy
    assert isinstance(policy, VlaRecipe)
    assert at_home(policy, "tpu") == policy
    here = at_home(policy, "cpu")
    assert isinstance(here, VlaRecipe)
    assert (here.compute.attention, here.compute.numbers) == (AttentionKind.XLA, policy.compute.numbers)


@pytest.mark.soak
@pytest.mark.timeout(600)
@pytest.mark.skipif(importlib.util.find_spec("libtpu") is None, reason=f"no compiler for TPUs: {COMMAND}")
def test_step_with_splash_compiles_for_tpus_with_the_kernel_in_every_stack() -> None:
    environment = {**os.environ, **ENVIRONMENT, "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}"}
    command = [sys.executable, "-m", "tests.train.models.compiled_for_tpu", "splash"]
    done = subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True, timeout=500, check=True)
    # Of eyes and of the decoder: forward, forward again, and both kernels of the backward pass.
    assert json.loads(done.stdout)["calls"] == 8
