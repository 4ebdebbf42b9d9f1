"""Optimizers that a recipe may choose."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import pytest

from mainspring.train.models.arrays import flattened
from mainspring.train.models.shapes import PolicyRecipe, Signature
from mainspring.train.policy import model_of
from mainspring.train.recipe import MeshRecipe, OptimizerKind, OptimizerRecipe, changed, recipe_named
from mainspring.train.state.optimizers import make_optimizer
from mainspring.train.state.sharding import state_shardings

from .making import DIMS, error_left_by_heart

pytestmark = pytest.mark.slow
RATES = {"adamw": 1e-2, "adafactor": 3e-2, "lion": 3e-3, "sgd": 3e-2, "muon": 1e-2}
WIDE = {"language": {"width": 256, "mlp": 256, "head_dim": 128}, "image": None}


def recipe_of(kind: str) -> OptimizerRecipe:
    return OptimizerRecipe(
        kind=OptimizerKind(kind), learning_rate=RATES[kind], warmup_steps=10, weight_decay=0.0, second_beta=0.99
    )


@pytest.mark.parametrize("kind", [kind.value for kind in OptimizerKind])
def test_policy_learns_a_few_rows_by_heart_with_every_optimizer(kind: str) -> None:
    numbers = np.random.default_rng(0)
    state, actions = numbers.normal(size=(4, DIMS)), numbers.normal(size=(4, 4, DIMS))
    batch = {"state": np.float32(state), "actions": np.float32(actions), "valid": np.ones((4, 4), bool)}
    policy = PolicyRecipe(width=32, blocks=1, horizon=4, flow_steps=4)
    assert error_left_by_heart(policy, batch, steps=300, optimizer=recipe_of(kind)) < 0.5


def kept_by(kind: str) -> dict[str, tuple[Any, Any]]:
    """Returns shape and place of all arrays that an optimizer keeps of a small VLA, on 4 devices by 2."""
    recipe = changed(recipe_named("vla_tiny"), {"policy": WIDE})
    signature = Signature(state_dim=DIMS, action_dim=DIMS)
    weights = jax.eval_shape(lambda: model_of(recipe.policy).initial_weights(jax.random.key(0), signature))
    learned = flattened(weights)
    state = jax.eval_shape(make_optimizer(recipe_of(kind), 100).init, learned)
    mesh: Any = jax.sharding.AbstractMesh((1, 4, 1, 2), ("replica", "data", "sequence", "tensor"))
    sizes = MeshRecipe(replica=1, data=4, tensor=2, whole_bytes_max=1 << 16)
    places = flattened(state_shardings({"weights": weights, "optimizer": state}, mesh, sizes))
    arrays = flattened({"weights": weights, "optimizer": state})
    return {path: (array.shape, tuple(places[path].spec)) for path, array in arrays.items()}


@pytest.mark.parametrize(
    ("kind", "moments"),
    [("adamw", ["mu", "nu"]), ("lion", ["mu"]), ("sgd", ["trace"]), ("muon", ["mu"]), ("adafactor", [])],
)
def test_moments_lie_as_their_weights_do(kind: str, moments: list[str]) -> None:
    arrays = kept_by(kind)
    for weight in ("language/blocks/gate", "language/blocks/query", "language/blocks/out"):
        own = arrays[f"weights/{weight}"]
        assert own[1] == {"gate": (None, "data", "tensor"), "query": (None, "data", "tensor", None)}.get(
            weight.rpartition("/")[2], (None, "tensor", None, "data")
        )
        kept = {path for path, found in arrays.items() if path.endswith(f"/{weight}") and found == own}
        assert {path.removesuffix(f"/{weight}").rpartition("/")[2] for path in kept} == {"weights", *moments}


def test_adafactor_keeps_large_weights_by_rows_and_columns_whole_on_every_device() -> None:
    arrays = {path: found for path, found in kept_by("adafactor").items() if path.endswith("language/blocks/gate")}
    assert {path.rpartition("/language")[0].rpartition("/")[2]: found for path, found in arrays.items()} == {
        "weights": ((2, 256, 256), (None, "data", "tensor")),
        "v_row": ((2, 256), (None, None)),
        "v_col": ((2, 256), (None, None)),
        "v": ((1,), (None,)),
    }


def test_muon_moves_products_in_hidden_layers_and_adam_all_else() -> None:
    muon = {path.partition("/mu/")[2] for path in kept_by("muon") if "/muon/" in path and "/mu/" in path}
    stacks = {f"{stack}/blocks/" for stack in ("language", "expert")}
    names = ("query", "key", "value", "out", "gate", "up", "down")
    assert muon == {stack + name for stack in stacks for name in names}
