"""What a run tells of its steps, and its loss on what it does not learn from."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import jax
import numpy as np
import pytest

from mainspring.data import View, gather
from mainspring.data.views.manifest import Split
from mainspring.domain import wire
from mainspring.session import Session
from mainspring.train.feed import fitted
from mainspring.train.inputs.fitting import Fitting
from mainspring.train.inputs.sources import GivenView, Sources
from mainspring.train.models.shapes import Signature
from mainspring.train.plan.chips import CHIPS
from mainspring.train.plan.running import chip_of, share_of_peak
from mainspring.train.policy import policy_loss
from mainspring.train.recipe import changed, recipe_named
from mainspring.train.state.optimizers import learning_rate_at
from mainspring.train.state.sharding import Share, make_mesh
from mainspring.train.steps.held_out import HeldOut
from mainspring.train.steps.pace import Pace, tokens_of
from mainspring.train.trainer import train
from tests.train.making import Desk, small_recipe

RECIPE = small_recipe(steps=6)


@pytest.mark.slow
def test_every_step_is_told_with_its_norms_rate_pace_and_wait(
    views: dict[Split, View], compiled: Path, tmp_path: Path
) -> None:
    jax.config.update("jax_compilation_cache_dir", str(compiled))  # type: ignore[no-untyped-call]
    desk = Desk(tmp_path, every=50)
    seen: dict[int, dict[str, float]] = {}
    session = desk.join()
    report = session.report

    def noted(step: int, metrics: Mapping[str, float] | None = None) -> bool:
        seen.setdefault(step, {}).update(metrics or {})
        return report(step, metrics)

    session.report = noted  # type: ignore[method-assign]
    outcome = train(session, RECIPE, views["train"], facts={}, work=lambda recipe, signature: lambda step_s: 0.25)
    desk.close()
    assert sorted(seen) == [1, 2, 3, 4, 5, 6]
    rate = learning_rate_at(RECIPE.optimizer, RECIPE.steps)
    for step, metrics in seen.items():
        assert metrics["learning_rate"] == pytest.approx(float(rate(step - 1)), rel=1e-6)
        assert metrics["gradient_norm"] > 0
        assert metrics["parameter_norm"] > 1
        if step > 1:
            assert metrics["tokens_per_s"] == pytest.approx(64 / metrics["step_s"])
            assert 0 <= metrics["data_wait"] <= 1
            assert metrics["mfu"] == 0.25
    assert seen[6]["loss"] == outcome.loss


@pytest.mark.slow
def test_loss_on_held_out_rows_is_of_each_task_repeatable_and_changes_nothing(
    views: dict[Split, View], compiled: Path
) -> None:
    jax.config.update("jax_compilation_cache_dir", str(compiled))  # type: ignore[no-untyped-call]
    sources = [GivenView(view=views["train"], held_out=views["holdout"])]
    measured = changed(RECIPE, {"held_out": {"every": 2, "rows": 10}})
    alone = Session("", pid=1, stopwatch=lambda: 0.0)
    plain, held = (train(alone, recipe, sources, facts={}).state for recipe in (RECIPE, measured))
    assert all(jax.tree.leaves(jax.tree.map(lambda a, b: bool((a == b).all()), plain, held)))
    opened, mesh = Sources(measured, sources), make_mesh()
    found = HeldOut(opened, Fitting(opened), mesh, Share(0, 1))
    assert [step for step in range(1, 7) if found.due(step)] == [2, 4, 6]
    told = found.measures(held)
    assert told == found.measures(held)
    assert sorted(told) == ["held_out_loss"]  # There is one task.
    rows = np.linspace(0, views["holdout"].rows - 1, 10).astype(np.int64)
    batch = fitted(gather(views["holdout"], rows, horizon=4, history=2), RECIPE.policy)
    key = jax.random.key(RECIPE.seed)
    assert told["held_out_loss"] == pytest.approx(
        float(policy_loss(held.weights, held.statistics, RECIPE.policy, batch, key)), rel=1e-5
    )


def test_pace_counts_the_wait_of_each_step_and_leaves_out_the_first_and_what_was_in_between() -> None:
    now = iter([0.0, 1.0, 1.0, 1.0, 3.0, 5.0, 9.0, 9.0, 10.0, 11.0])
    pace = Pace(lambda: next(now), tokens=8, mfu=None)
    batches = pace.timed(iter("abc"))
    next(batches)  # 0 to 1.
    assert pace.measures() == {}  # At 1.
    next(batches)  # 1 to 3.
    assert pace.measures() == {"step_s": 4.0, "tokens_per_s": 2.0, "data_wait": 0.5}  # At 5.
    pace.rest()
    assert pace.measures() == {}  # At 9.
    next(batches)  # 9 to 10.
    assert pace.measures() == {"step_s": 2.0, "tokens_per_s": 4.0, "data_wait": 0.5}  # At 11.


def test_tokens_of_a_step_are_those_of_all_its_streams() -> None:
    signature = Signature(state_dim=14, action_dim=14, image_views=3, image_height=224, image_width=224)
    assert tokens_of(recipe_named("pi0"), signature) == 32 * (48 + 3 * 256 + 50 + 1)
    assert tokens_of(recipe_named("gemma_2b"), signature) == 256 * 1024
    assert tokens_of(recipe_named("act"), signature) == 64 * (2 + 3 * 49 + 100 + 102)


@pytest.mark.parametrize(
    ("kind", "chip"),
    [
        ("NVIDIA H100 80GB HBM3", "h100"),
        ("NVIDIA H200", "h200"),
        ("NVIDIA A100-SXM4-80GB", "a100-80gb"),
        ("NVIDIA A100-SXM4-40GB", "a100"),
        ("NVIDIA L4", "l4"),
        ("NVIDIA L40S", None),
        ("NVIDIA GeForce RTX 4090", "rtx4090"),
        ("TPU v5 lite", "v5e"),
        ("TPU v5p", "v5p"),
        ("TPU v5", "v5p"),
        ("TPU v6 lite", "v6e"),
        ("TPU7x", "tpu7x"),
        ("cpu", None),
    ],
)
def test_chip_of_a_device_is_the_one_whose_figures_are_published(kind: str, chip: str | None) -> None:
    assert chip_of(kind) == chip
    assert chip is None or chip in CHIPS


def test_share_of_the_peak_is_not_told_where_nobody_knows_it() -> None:
    assert share_of_peak(recipe_named("arm"), Signature(state_dim=3, action_dim=3)) is None


def test_word_of_a_step_that_went_wrong_reads_as_a_sentence() -> None:
    from mainspring.domain.wire.events.leads import StepUpsetEvent

    back = StepUpsetEvent(step=7, upset="spike", answer="roll_back", seen="loss 9", to_step=5)
    assert str(back) == "step 7 is a spike: loss 9; the state goes back to that of step 5"
    assert str(StepUpsetEvent(step=7, upset="not_finite", answer="skip")) == "step 7 is no number; it is passed over"
    assert wire.UpsetReport(step=1, upset="spike", answer="skip").to_step == -1
