from __future__ import annotations

from functools import cache
from typing import Any

import jax
import numpy as np
import pytest

from mainspring.domain.errors import InvalidInput
from mainspring.train.evaluate import in_numbers_used
from mainspring.train.layouts.openpi import openpi_layout
from mainspring.train.layouts.rows import weights_from, weights_to
from mainspring.train.models.shapes import (
    ComputeRecipe,
    FloatKind,
    GemmaRecipe,
    SiglipRecipe,
    Signature,
    VlaKind,
    VlaRecipe,
)
from mainspring.train.models.vla import (
    draw_time,
    embed_prefix,
    flow_error,
    flow_from,
    fresh_vla,
    read_prefix,
    velocity,
    vla_model,
)
from mainspring.train.policy import model_of
from mainspring.train.recipe import recipe_named

from . import plain

HORIZON, DIM = 3, 6
KINDS = pytest.mark.parametrize("kind", ["pi0", "pi05"])
pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("compiled_at_once")]


def small(kind: str, *, heads: int = 4, kv_heads: int = 1, **compute: Any) -> VlaRecipe:
    """Returns the shape of the weights that `plain.small_params` gives."""
    return VlaRecipe(
        kind=VlaKind(kind),
        language=GemmaRecipe(width=16, mlp=24, depth=2, heads=heads, kv_heads=kv_heads, head_dim=4, vocabulary=32),
        expert_width=8,
        expert_mlp=20,
        horizon=HORIZON,
        action_dim=DIM,
        prompt=(1, 2),
        prompt_length=5,
        image=SiglipRecipe(size=6, patch=3, width=12, mlp=18, depth=2, heads=3, shift_pixels=1),
        compute=ComputeRecipe(**{"numbers": FloatKind.FLOAT32, **compute}),
    )


@cache
def batch() -> dict[str, Any]:
    """Returns two rows: one that misses a camera, one of a short prompt."""
    numbers = np.random.default_rng(1)
    return {
        "images": numbers.integers(0, 256, (2, 2, 6, 6, 3)).astype(np.uint8),
        "image_valid": np.array([[True, False], [True, True]]),
        "prompt": numbers.integers(0, 32, (2, 5)),
        "prompt_valid": np.arange(5) < np.array([[5], [2]]),
        "state": np.float32(numbers.normal(size=(2, DIM))),
        "actions": np.float32(numbers.normal(size=(2, HORIZON, DIM))),
        "valid": np.ones((2, HORIZON), bool),
        "noise": np.float32(numbers.normal(size=(2, HORIZON, DIM))),
        "time": np.asarray([0.3, 0.9], np.float32),
    }


def given(kind: str, *, heads: int = 4, kv_heads: int = 1) -> Any:
    params = plain.small_params(kind=kind, heads=heads, kv_heads=kv_heads)
    policy = small(kind, heads=heads, kv_heads=kv_heads)
    return weights_from(openpi_layout(policy), params, fresh_vla(policy))


def close(ours: Any, theirs: Any, largest: float = 1e-4) -> bool:
    """Returns whether two agree to a share of the largest of all numbers."""
    return bool(np.abs(np.asarray(ours) - theirs).max() <= largest * np.abs(theirs).max())


@pytest.mark.parametrize(("kind", "heads", "kv_heads"), [("pi0", 4, 1), ("pi0", 2, 2), ("pi05", 4, 2)])
def test_error_and_samples_of_given_noise_are_those_of_the_plain_model(kind: str, heads: int, kv_heads: int) -> None:
    params = plain.small_params(kind=kind, heads=heads, kv_heads=kv_heads)
    weights, policy, rows = (
        given(kind, heads=heads, kv_heads=kv_heads),
        small(kind, heads=heads, kv_heads=kv_heads),
        batch(),
    )
    time = rows["time"][:, None, None].astype(np.float64)
    moved = plain.velocity(params, kind, rows, time * rows["noise"] + (1 - time) * rows["actions"], rows["time"])
    expected = np.square(moved - (rows["noise"] - rows["actions"])).mean(axis=-1)
    error = jax.jit(lambda weights: flow_error(weights, policy, rows, rows["noise"], 1 - rows["time"]))(weights)
    assert close(error, expected)
    chunk = rows["noise"].astype(np.float64)
    for step in range(policy.flow_steps):
        chunk = chunk - plain.velocity(params, kind, rows, chunk, np.full(2, 1 - step / 10)) / 10
    assert close(jax.jit(lambda weights: flow_from(weights, policy, rows, rows["noise"]))(weights), chunk)


@KINDS
def test_velocity_after_a_prefix_read_before_is_that_of_one_pass_over_all_tokens(kind: str) -> None:
    weights, policy, rows = given(kind), small(kind), batch()

    def moved(read: Any) -> Any:
        def of(weights: Any) -> jax.Array:
            seen = read(weights, policy, rows)
            return velocity(weights, policy, seen, rows["state"], rows["noise"], rows["time"])

        return np.asarray(jax.jit(of)(weights))

    assert close(moved(read_prefix), moved(embed_prefix))


def test_error_in_bfloat16_is_near_that_in_float32_and_the_weights_stay_float32() -> None:
    weights, rows = given("pi05"), batch()

    def error(policy: VlaRecipe) -> Any:
        return np.asarray(jax.jit(lambda w: flow_error(w, policy, rows, rows["noise"], rows["time"]))(weights))

    half, whole = error(small("pi05", numbers=FloatKind.BFLOAT16)), error(small("pi05"))
    assert half.dtype == np.float32
    assert close(half, whole, 0.05)
    assert (half != whole).any()


@KINDS
def test_weights_in_the_numbers_they_are_used_in_give_the_same_bits(kind: str) -> None:
    weights, policy, rows = given(kind), small(kind, numbers=FloatKind.BFLOAT16), batch()
    sample = jax.jit(lambda weights: flow_from(weights, policy, rows, rows["noise"]))
    used = in_numbers_used(weights, policy)
    changed = [each.dtype for each in jax.tree.leaves(used) if each.dtype != np.float32]
    assert len(changed) > 20
    np.testing.assert_array_equal(sample(used), sample(weights))


def test_prompt_of_the_recipe_serves_a_batch_without_one() -> None:
    policy, weights, rows = small("pi0"), given("pi0"), batch()
    seen = {name: rows[name] for name in ("images", "state")}
    own = {**seen, "prompt": np.tile([1, 2, 7, 7, 7], (2, 1)), "prompt_valid": np.tile(np.arange(5) < 2, (2, 1))}
    sample = jax.jit(lambda batch: flow_from(weights, policy, batch, rows["noise"]))
    assert close(sample(seen), np.asarray(sample(own)))


def test_times_to_learn_at_are_mostly_near_noise_and_never_the_action_itself() -> None:
    times = np.asarray(draw_time(jax.random.split(jax.random.key(0), 20_000)))
    assert times.min() >= 0.0
    assert times.max() <= 0.999
    assert 1 - times.mean() == pytest.approx(0.6 * 0.999 + 0.001, abs=0.01)  # The mean of Beta(1.5, 1) is 0.6.


@KINDS
@pytest.mark.parametrize("lacking", ["prompt", "prompt_valid"])
def test_prompt_without_its_validity_and_the_reverse_are_refused(kind: str, lacking: str) -> None:
    rows = {name: array for name, array in batch().items() if name != lacking}
    with pytest.raises(InvalidInput, match=r"alone.*both prompt"):
        embed_prefix(given(kind), small(kind), rows)


def test_policy_that_knows_its_state_from_the_prompt_alone_is_refused_a_batch_without() -> None:
    rows = {name: array for name, array in batch().items() if "prompt" not in name}
    with pytest.raises(InvalidInput, match=r"without prompts.*prompts\.Tokenizer"):
        embed_prefix(given("pi05"), small("pi05"), rows)
    assert embed_prefix(given("pi0"), small("pi0"), rows).valid_BP[:, -5:].sum() == 4  # The recipe's two tokens.


def test_robot_of_more_dimensions_than_the_policy_is_refused_before_anything_is_made() -> None:
    signature = Signature(state_dim=DIM, action_dim=DIM + 1)
    with pytest.raises(InvalidInput, match=r"set policy\.action_dim to 7"):
        vla_model(small("pi0")).initial_weights(jax.random.key(0), signature)


@pytest.mark.parametrize(("name", "count"), [("pi0", 3_238_048_528), ("pi05", 3_353_433_872)])
def test_policies_of_openpi_have_as_many_parameters_as_theirs(name: str, count: int) -> None:
    assert parameters_of(name) == count


@pytest.mark.parametrize(("name", "count"), [("vla_small", 110e6), ("vla_tiny", 0.23e6)])
def test_policies_of_our_own_have_as_many_parameters_as_they_say(name: str, count: float) -> None:
    assert parameters_of(name) == pytest.approx(count, rel=0.05)


def parameters_of(name: str) -> int:
    policy, signature = recipe_named(name).policy, Signature(state_dim=8, action_dim=8)
    weights = jax.eval_shape(lambda: model_of(policy).initial_weights(jax.random.key(0), signature))
    return sum(leaf.size for leaf in jax.tree.leaves(weights))


@KINDS
@pytest.mark.parametrize(("heads", "kv_heads"), [(4, 1), (2, 2)])
def test_weights_of_openpi_come_and_go_without_losing_a_bit(kind: str, heads: int, kv_heads: int) -> None:
    params = plain.small_params(kind=kind, heads=heads, kv_heads=kv_heads)
    layout = openpi_layout(small(kind, heads=heads, kv_heads=kv_heads))
    back = weights_to(layout, given(kind, heads=heads, kv_heads=kv_heads))
    assert sorted(back) == sorted(params)
    assert all((back[name] == array).all() for name, array in params.items())
