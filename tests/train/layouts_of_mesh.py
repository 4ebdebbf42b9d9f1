"""Trains the smallest VLA, or Gemma, on a layout of devices, as a program: XLA counts its devices once a process."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from mainspring.train.models.arrays import over_devices
from mainspring.train.models.shapes import LanguageRecipe, Policy, Signature
from mainspring.train.policy import unit_statistics
from mainspring.train.recipe import Recipe, changed, recipe_named
from mainspring.train.state.sharding import is_whole, make_mesh, place_batch
from mainspring.train.steps.state import initial_state
from mainspring.train.steps.update import make_update

STEPS, ROWS, DIMS = 20, 16, 5
SIGNATURE = Signature(state_dim=DIMS, action_dim=DIMS, image_views=1, image_height=32, image_width=32)
LORA: dict[str, Any] = {  # A fresh policy's adapters learn nothing as long as what leaves it is zero.
    "adapters": [{"stack": f"{stack}/blocks", "rank": 8, "alpha": 8.0} for stack in ("language", "expert")],
    "whole": ["action_out/.*"],
}
LAYOUTS: Mapping[str, dict[str, Any]] = {
    "one device": {"mesh": {"replica": 1}},
    "fsdp": {"mesh": {"replica": 1, "data": 8}},
    "tensor": {"mesh": {"replica": 1, "data": 4, "tensor": 2}},
    "sequence": {"mesh": {"replica": 1, "data": 4, "sequence": 2}},
    "padded": {"mesh": {"replica": 1, "data": 2, "sequence": 4}},  # The expert's 5 tokens lie 2, 2, 1, 0.
    "replica": {"mesh": {"replica": 2, "data": 4}},
    "replicas alone": {},
    "accumulated": {"mesh": {"data": 4}, "accumulate": 2, "policy": {"compute": {"remat": "none"}}},
    "one device, lora": {"mesh": {"replica": 1}, "lora": LORA},
    "fsdp, lora": {"mesh": {"replica": 1, "data": 8}, "lora": LORA},
    "tensor, lora": {"mesh": {"replica": 1, "data": 4, "tensor": 2}, "lora": LORA},
    "one device, words": {"mesh": {"replica": 1}},
    "fsdp, words": {"mesh": {"replica": 1, "data": 8}},
    "tensor, words": {"mesh": {"replica": 1, "data": 4, "tensor": 2}},
    "sequence, words": {"mesh": {"replica": 2, "data": 2, "sequence": 2}},
    "accumulated, words": {"mesh": {"data": 4}, "accumulate": 2, "policy": {"compute": {"remat": "none"}}},
}
WORDS: dict[str, Any] = {  # Looked at in two parts of a sequence, with one in no sequence.
    "horizon": 95,
    "language": {"width": 64, "mlp": 128, "depth": 2, "heads": 4, "kv_heads": 1, "head_dim": 16, "vocabulary": 256},
    "compute": {"numbers": "float32"},
}


def recipe_with(changes: Mapping[str, Any]) -> Recipe:
    small = {"batch_size": ROWS, "steps": STEPS, "mesh": {"whole_bytes_max": 0}, "policy": {"horizon": 4}}
    return changed(changed(recipe_named("vla_tiny"), small), changes)


def recipe_of(layout: str) -> Recipe:
    changes = LAYOUTS[layout]
    if not layout.endswith("words"):
        return recipe_with(changes)
    learning = {"learning_rate": 1e-3, "warmup_steps": 2}
    small = {"batch_size": ROWS, "steps": STEPS, "mesh": {"whole_bytes_max": 0}, "policy": WORDS, "optimizer": learning}
    return changed(changed(recipe_named("gemma_2b"), small), changes)


def batch_of(step: int, policy: Policy | None = None) -> dict[str, Any]:
    numbers = np.random.default_rng(step)
    if isinstance(policy, LanguageRecipe):
        valid = np.arange(policy.horizon) < numbers.integers(2, policy.horizon + 1, (ROWS, 1))
        valid[:, 0] = False
        return {"tokens": np.int32(numbers.integers(0, 256, (ROWS, policy.horizon))), "valid": valid}
    return {
        "state": np.float32(numbers.normal(size=(ROWS, DIMS))),
        "actions": np.float32(numbers.normal(size=(ROWS, 4, DIMS))),
        "valid": np.arange(4) < numbers.integers(1, 5, (ROWS, 1)),
        "images": numbers.integers(0, 256, (ROWS, 1, 32, 32, 3)).astype(np.uint8),
    }


def trained(recipe: Recipe) -> dict[str, Any]:
    mesh = make_mesh(recipe.mesh)
    state = initial_state(recipe, SIGNATURE, unit_statistics(recipe.policy, SIGNATURE), mesh)
    update, losses = make_update(recipe, mesh), []
    for step in range(STEPS):
        state, loss = update(state, place_batch(mesh, batch_of(step, recipe.policy)), np.int32(step))
        losses.append(float(loss[0]))
    path = "blocks/gate" if isinstance(recipe.policy, LanguageRecipe) else "language/blocks/gate"
    path += "" if recipe.lora is None else "/b"
    parts = {"weights": state.learned(recipe)[path], "moments": state.optimizer[1][0].mu[path]}
    return {
        "losses": losses,
        "tokens": tokens_a_device(recipe, 5) if not is_whole(mesh) else 5,
        "specs": {name: str(array.sharding.spec) for name, array in parts.items()},
        "shares": {name: array.size / array.addressable_shards[0].data.size for name, array in parts.items()},
    }


def tokens_a_device(recipe: Recipe, tokens: int) -> int:
    """Returns on how many tokens of a stream a device works: of an array of 8 features, which nothing else has."""
    mesh = make_mesh(recipe.mesh)

    def moved(x: Any) -> Any:
        with jax.sharding.use_abstract_mesh(mesh.abstract_mesh):
            return over_devices(jnp.tanh(over_devices(x))).sum()

    rows = place_batch(mesh, {"tokens": np.zeros((ROWS, tokens, 8), np.float32)})
    text = jax.jit(moved).lower(rows["tokens"]).compile().as_text()
    found = re.search(r"f32\[\d+,(\d+),8\]\S* tanh", text or "")
    assert found is not None
    return int(found[1])


if __name__ == "__main__":
    sys.stdout.write(json.dumps(trained(recipe_of(sys.argv[1]))))
