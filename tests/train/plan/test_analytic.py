"""Formulas of a step, against numbers that were worked out by hand for the small policy of the simulated arm.

Its arrays, for states and actions of 14: enter 158 x 256 + 256, four of 256 x 256 + 256, leave 256 x 112 + 112.
"""

from dataclasses import replace
from typing import Any

import jax
import pytest

from mainspring.domain.errors import InvalidInput
from mainspring.train.models.shapes import Signature
from mainspring.train.plan.analytic import analytic_figures
from mainspring.train.plan.figures import FiguresFrom
from mainspring.train.plan.targets import parsed_target
from mainspring.train.recipe import MeshRecipe, OptimizerKind, Recipe, changed, recipe_named
from mainspring.train.state.sharding import make_mesh
from mainspring.train.steps.state import abstract_state

ARM = Signature(state_dim=14, action_dim=14)
EYES = Signature(state_dim=14, action_dim=14, image_views=3, image_height=224, image_width=224)
PARAMETERS = 332_656
GPUS = parsed_target("h100:8")
NO_REMAT = {"compute": {"remat": "none"}}
ADAPTERS: dict[str, Any] = {
    "adapters": [{"stack": f"{stack}/blocks", "rank": 8, "alpha": 8.0} for stack in ("language", "expert")],
    "whole": ["action_out/.*"],
}


def _arm(**mesh: int) -> Recipe:
    return replace(recipe_named("arm"), mesh=MeshRecipe(whole_bytes_max=0, **mesh))


def test_figures_of_replicas_hold_all_weights_and_two_moments_on_each_chip() -> None:
    found = analytic_figures(_arm(), ARM, GPUS)
    assert found.said_by is FiguresFrom.ANALYTIC
    assert found.memory.parameters == 4 * PARAMETERS
    assert found.memory.optimizer - found.memory.parameters * 2 == pytest.approx(0, abs=4096)
    assert found.memory.ema == 0


def test_figures_of_shared_state_hold_its_eighth() -> None:
    assert analytic_figures(_arm(replica=1, data=8), ARM, GPUS).memory.parameters == 4 * PARAMETERS // 8


def test_figures_of_a_batch_hold_the_chips_rows() -> None:
    # 32 rows of 14 states, 8 x 14 actions and 8 flags of a byte.
    found = analytic_figures(_arm(), ARM, GPUS).memory.batch
    assert found - (32 * 14 * 4 + 32 * 8 * 14 * 4 + 32 * 8) == pytest.approx(0, abs=4096)


def test_figures_of_frozen_weights_have_no_moments_of_them() -> None:
    learned = 4 * (256 * 112 + 112)
    frozen = replace(_arm(), frozen=("enter.*", "blocks.*"))
    assert analytic_figures(frozen, ARM, GPUS).memory.optimizer - 2 * learned == pytest.approx(0, abs=4096)


def test_figures_of_mean_weights_hold_them_once_more() -> None:
    assert analytic_figures(replace(_arm(), ema_decay=0.99), ARM, GPUS).memory.ema == 4 * PARAMETERS


def test_flops_of_a_step_are_six_a_weight_and_sample_shared_by_the_chips() -> None:
    matrices = 158 * 256 + 4 * 256 * 256 + 256 * 112
    assert analytic_figures(_arm(), ARM, GPUS).flops == 6 * matrices * 256 / 8


def test_flops_with_recomputation_are_a_third_more_but_for_what_a_block_ends_with() -> None:
    small = recipe_named("vla_small")
    full, none = (
        analytic_figures(changed(small, {"policy": {"compute": {"remat": remat}}}), EYES, GPUS).flops
        for remat in ("full", "none")
    )
    assert 1.2 < full / none < 1.3


def test_bytes_of_replicas_are_a_ring_of_all_gradients() -> None:
    assert analytic_figures(_arm(), ARM, GPUS).bytes_by_axis == {"replica": 2 * 7 / 8 * 4 * PARAMETERS}


def test_bytes_of_shared_state_are_two_gathers_and_a_scatter() -> None:
    sent = analytic_figures(_arm(replica=1, data=8), ARM, GPUS).bytes_by_axis
    assert sent == {"data": pytest.approx(3 * 7 / 8 * 4 * PARAMETERS)}


def deep(depth: int) -> Recipe:
    """A policy of so many blocks, whose arrays are all split eight ways."""
    mesh = {"replica": 1, "data": 8, "whole_bytes_max": 0}
    policy = {"language": {"depth": depth}}
    return changed(recipe_named("vla_small"), {"batch_size": 64, "mesh": mesh, "policy": policy})


def test_bytes_of_bfloat16_blocks_are_two_gathers_and_a_scatter_of_two_bytes_each() -> None:
    few, many = deep(6), deep(12)
    block = 3 * 512 * 2048 + 512 * (8 + 2 + 8) * 64 + 512 * 2 + 3 * 384 * 1536 + 384 * (8 + 2 + 8) * 64 + 384 * 2
    one, two = (analytic_figures(each, EYES, GPUS).bytes_by_axis["data"] for each in (few, many))
    assert two - one == pytest.approx(3 * 7 / 8 * 6 * block * 2)


def test_bytes_of_a_table_of_words_are_those_that_are_looked_up() -> None:
    small = changed(recipe_named("vla_small"), {"batch_size": 64, "mesh": {"replica": 1, "data": 8}})
    more = changed(small, {"policy": {"language": {"vocabulary": 65_536}}})
    longer = changed(small, {"policy": {"prompt_length": 96}})
    one, two, three = (analytic_figures(each, EYES, GPUS).bytes_by_axis["data"] for each in (small, more, longer))
    assert two == one
    assert three - one == pytest.approx(2 * 7 / 8 * 64 * 48 * 512 * 4)  # There, and their gradients back.


def test_flops_of_scaled_images_are_done_by_each_device_of_a_row() -> None:
    tiny = changed(recipe_named("vla_tiny"), {"batch_size": 64, "mesh": {"replica": 1, "data": 4, "tensor": 2}})
    read = replace(EYES, image_height=32, image_width=32)
    large, small = (analytic_figures(tiny, each, GPUS).flops for each in (EYES, read))
    rows = 64 // 4
    assert large - small == 2 * rows * (3 * 3 * 32 * 224 * (224 + 32) + 32 * 2 * 224**2)


def test_temporaries_without_recomputation_keep_scores_in_both_numbers() -> None:
    few, many = (
        changed(
            recipe_named("vla_small"),
            {"batch_size": 64, "policy": {"language": {"depth": depth}, "compute": {"remat": "none"}}},
        )
        for depth in (6, 12)
    )
    scores = 8 * 8 * 669 * 669 * (4 + 2)
    hidden = 8 * (8 * 636 * 2048 + 8 * 33 * 1536) * 2
    one, two = (analytic_figures(each, EYES, GPUS).memory.temporaries for each in (few, many))
    assert two - one > 6 * (scores + hidden)


def test_bytes_over_tensor_grow_with_tokens_and_not_with_weights() -> None:
    vla = changed(recipe_named("vla_small"), {"batch_size": 16, "mesh": {"tensor": 2}})
    more = changed(vla, {"batch_size": 32})
    wider = changed(vla, {"policy": {"language": {"vocabulary": 65_536}}})
    one, two, three = (analytic_figures(each, EYES, GPUS).bytes_by_axis["tensor"] for each in (vla, more, wider))
    assert two == pytest.approx(2 * one)
    assert three == one


def test_memory_falls_with_each_kind_of_recomputation() -> None:
    small = changed(recipe_named("vla_small"), {"batch_size": 64})
    peaks = [
        analytic_figures(changed(small, {"policy": {"compute": {"remat": remat}}}), EYES, GPUS).memory.peak
        for remat in ("none", "dots", "full")
    ]
    assert peaks == sorted(peaks, reverse=True)
    assert peaks[0] > 2 * peaks[2]


def test_temporaries_of_more_blocks_hold_their_inputs_and_gradients() -> None:
    few, many = deep(6), deep(12)
    inputs = 8 * (636 * 512 + 33 * 384) * 2
    gradients = (3 * 512 * 2048 + 512 * (8 + 2 + 8) * 64 + 3 * 384 * 1536 + 384 * (8 + 2 + 8) * 64) * 4 // 8
    one, two = (analytic_figures(each, EYES, GPUS).memory.temporaries for each in (few, many))
    assert two - one >= 6 * (inputs + gradients)


def test_temporaries_hold_no_gradients_of_frozen_weights() -> None:
    small = changed(recipe_named("vla_small"), {"batch_size": 64})
    frozen = replace(small, frozen=("language/.*",))
    learned, kept = (analytic_figures(each, EYES, GPUS).memory.temporaries for each in (small, frozen))
    assert learned - kept >= 4 * 12 * 3 * 512 * 2048


def test_parts_of_a_batch_take_less_memory_where_activations_count() -> None:
    small = changed(recipe_named("vla_small"), {"batch_size": 512})
    parts = changed(small, {"accumulate": 8})
    whole, part = (analytic_figures(each, EYES, GPUS).memory.temporaries for each in (small, parts))
    assert part < whole / 3


def test_batch_that_chips_cannot_share_is_refused() -> None:
    with pytest.raises(InvalidInput) as caught:
        analytic_figures(changed(_arm(), {"batch_size": 12}), ARM, GPUS)
    assert caught.value.got == "12 chunks for 8 parts on 8 devices"


def test_mesh_of_other_devices_is_refused() -> None:
    with pytest.raises(InvalidInput, match="lay out a mesh"):
        analytic_figures(_arm(replica=1, data=3), ARM, GPUS)


@pytest.mark.parametrize(
    "changes",
    [
        *({"optimizer": {"kind": kind.value}, "ema_decay": 0.99} for kind in OptimizerKind),
        {"lora": ADAPTERS, "ema_decay": 0.99},
        {"lora": {**ADAPTERS, "numbers": "bfloat16"}, "optimizer": {"kind": "muon"}},
    ],
)
def test_figures_between_steps_are_those_of_the_state_whatever_learns(changes: dict[str, Any]) -> None:
    recipe = changed(recipe_named("vla_tiny"), {"policy": {"language": {"width": 256}}, **changes})
    state = abstract_state(recipe, EYES, make_mesh(recipe.mesh, jax.devices()[:1]))
    found = analytic_figures(recipe, EYES, parsed_target("h100:1")).memory
    assert found.parameters == held(state.weights) + held(state.adapters)
    assert found.ema == held(state.ema)
    assert found.optimizer == pytest.approx(held(state.optimizer), abs=4096)


def held(tree: Any) -> int:
    return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(tree))


def test_flops_of_weights_that_stay_are_a_third_less() -> None:
    matrices = 158 * 256 + 4 * 256 * 256 + 256 * 112
    frozen = analytic_figures(replace(_arm(), frozen=("enter.*", "blocks.*")), ARM, GPUS).flops
    assert frozen == (6 * matrices - 2 * (158 * 256 + 4 * 256 * 256)) * 256 / 8


def test_flops_of_adapters_are_those_of_the_base_but_for_its_weights_gradients() -> None:
    base, thin = (
        analytic_figures(changed(recipe_named("vla_small"), {"policy": NO_REMAT, **changes}), EYES, GPUS).flops
        for changes in ({}, {"lora": ADAPTERS})
    )
    assert 0.66 < thin / base < 0.8
