"""What figures come to on a chip: whether they fit, what binds, and the smallest change that would make them fit."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest

from mainspring.train.models.shapes import Signature
from mainspring.train.plan.analytic import analytic_figures
from mainspring.train.plan.chips import CHIPS, figures_of
from mainspring.train.plan.estimate import Estimate, estimated, smallest_change
from mainspring.train.plan.figures import FiguresFrom, MemoryNeed, StepFigures
from mainspring.train.plan.targets import CHIPS as FORMS
from mainspring.train.plan.targets import parsed_target
from mainspring.train.recipe import MeshRecipe, Recipe, changed, recipe_named

ARM = Signature(state_dim=14, action_dim=14)
EYES = Signature(state_dim=32, action_dim=32, image_views=3, image_height=224, image_width=224)


def _figures(
    *,
    memory: int = 0,
    flops: float = 0.0,
    traffic: float = 0.0,
    sent: Mapping[str, float] | None = None,
) -> StepFigures:
    need = MemoryNeed(parameters=memory, optimizer=0, ema=0, batch=0, outputs=0, aliased=0, temporaries=0)
    return StepFigures(
        said_by=FiguresFrom.COMPILED, memory=need, flops=flops, bytes_by_axis=sent or {}, memory_traffic=traffic
    )


def _estimate(figures: StepFigures, *, on: str = "v5p:2x2x1", slices: int = 1, **mesh: int) -> Estimate:
    recipe = replace(recipe_named("arm"), mesh=MeshRecipe(**mesh))
    return estimated(recipe, ARM, parsed_target(on, slices=slices), figures, dollars_per_chip_hour=3.6)


def test_chips_that_can_be_named_all_have_figures() -> None:
    assert {*FORMS} == {*CHIPS} & {*FORMS}


def test_estimate_fits_up_to_the_last_usable_byte() -> None:
    usable = figures_of("v5p").usable
    assert _estimate(_figures(memory=usable, flops=1.0)).fits
    assert not _estimate(_figures(memory=usable + 1, flops=1.0)).fits


@pytest.mark.parametrize(
    ("flops", "traffic", "data", "binds", "seconds"),
    [
        (459e12 * 3, 2765e9 * 2, 600e9, "compute", 3.0),
        (459e12, 2765e9 * 2, 600e9, "memory", 2.0),
        (459e12, 2765e9, 600e9 * 4, "data", 4.0),
    ],
)
def test_estimate_takes_as_long_as_what_takes_longest(
    flops: float, traffic: float, data: float, binds: str, seconds: float
) -> None:
    found = _estimate(_figures(flops=flops, traffic=traffic, sent={"data": data}), replica=1, data=4)
    assert found.binds == binds
    assert found.step_s == pytest.approx(seconds)
    assert found.samples_per_s == pytest.approx(256 / seconds)


def test_axes_on_the_same_links_take_their_times_together() -> None:
    found = _estimate(_figures(flops=1.0, sent={"data": 600e9, "tensor": 1200e9}), replica=1, data=2, tensor=2)
    assert found.binds == "tensor"
    assert found.step_s == pytest.approx(3.0)


def test_replicas_on_two_slices_talk_over_the_data_centre() -> None:
    sent = _figures(flops=1.0, sent={"replica": 6.25e9})
    assert _estimate(sent, slices=2, replica=2, data=4).step_s == pytest.approx(1.0)
    assert _estimate(sent, on="v5p:2x2x2", replica=2, data=4).step_s == pytest.approx(6.25 / 600)


def test_gpus_of_a_node_share_its_adapters() -> None:
    sent = _figures(flops=1.0, sent={"data": 50e9 * 8})
    assert _estimate(sent, on="h100:16", replica=1, data=16).step_s == pytest.approx(1.0)


def test_dollars_are_those_of_all_chips_for_a_thousand_steps() -> None:
    # Four chips at 3.6 an hour are 0.004 a second.
    assert _estimate(_figures(flops=459e12)).dollars_per_1000_steps == pytest.approx(4.0)


def test_mfu_counts_what_learning_needs_and_nothing_twice() -> None:
    needed = 6 * (158 * 256 + 4 * 256 * 256 + 256 * 112) * 256 / 4
    assert _estimate(_figures(flops=2 * needed)).mfu == pytest.approx(0.5)


def _change(recipe: Recipe, on: str) -> dict[str, object] | None:
    found = smallest_change(recipe, EYES, parsed_target(on))
    return None if found is None else dict(found.fields)


def test_smallest_change_first_shares_the_state() -> None:
    assert _change(recipe_named("pi0"), "v6e:4x4") == {"mesh.replica": 8, "mesh.data": 2}


def test_smallest_change_computes_again_where_there_is_nothing_to_share() -> None:
    small = changed(recipe_named("vla_small"), {"policy": {"compute": {"remat": "none"}}, "batch_size": 32})
    assert _change(small, "v6e:1x1") == {"policy.compute.remat": "dots"}


def test_smallest_change_works_in_parts_where_everything_is_computed_again() -> None:
    small = changed(recipe_named("vla_small"), {"batch_size": 1024})
    change = smallest_change(small, EYES, parsed_target("v6e:1x1"))
    assert change is not None
    assert [*change.fields] == ["accumulate"]
    parts = change.recipe.accumulate
    usable = figures_of("v6e").usable
    assert analytic_figures(change.recipe, EYES, parsed_target("v6e:1x1")).memory.peak <= usable
    less = replace(change.recipe, accumulate=parts // 2)
    assert analytic_figures(less, EYES, parsed_target("v6e:1x1")).memory.peak > usable


def test_smallest_change_is_none_where_no_change_helps() -> None:
    assert _change(recipe_named("pi0"), "v5e:1x1") is None


def test_smallest_change_believes_the_compiler_about_what_formulas_miss() -> None:
    small = changed(recipe_named("vla_small"), {"batch_size": 64})
    target = parsed_target("v5p:2x2x1")
    said = _figures(memory=figures_of("v5p").usable * 3)
    assert smallest_change(small, EYES, target) is not None
    assert smallest_change(small, EYES, target, figures=said) is None
