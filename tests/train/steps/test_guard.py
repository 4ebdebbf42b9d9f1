"""Steps that go wrong: the state is spared, the answer is the recipe's, and each is told."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from numpy.typing import NDArray

from mainspring.data import View
from mainspring.data.views.manifest import Split
from mainspring.domain import wire
from mainspring.domain.errors import InvalidInput
from mainspring.train.inputs.fitting import Fitting
from mainspring.train.inputs.measured import statistics_of
from mainspring.train.inputs.sources import Sources
from mainspring.train.models.shapes import Signature
from mainspring.train.recipe import Recipe, changed
from mainspring.train.state.sharding import make_mesh, place_batch
from mainspring.train.steps.state import initial_state
from mainspring.train.steps.update import SPIKE, Measures, make_update
from mainspring.train.trainer import Outcome, train
from tests.train.making import DIMS, Desk, small_recipe

pytestmark = pytest.mark.slow
BAD = 7  # The step whose batch is damaged.


class Damaged(View):
    """A view one of whose batches is no numbers, on its way to the trainer."""

    def __init__(self, view: View, recipe: Recipe) -> None:
        super().__init__(view.manifest, view.split, view._files, view._ranges, view.episodes)
        self._bad = Sources(recipe, view).loader(rank=0, world_size=1).rows(BAD - 1)

    def take(self, column: str, rows: NDArray[np.int64]) -> NDArray[Any]:
        values = super().take(column, rows)
        streams = threading.current_thread().name == "batches"
        if streams and column == "state" and len(rows) == len(self._bad) and (rows.max(axis=1) == self._bad).all():
            return np.full_like(values, np.nan)
        return values


@pytest.fixture
def make_desk(tmp_path: Path) -> Iterator[Callable[..., Desk]]:
    desks: list[Desk] = []

    def make(*, every: int = 5, stop_at: int = -1) -> Desk:
        folder = tmp_path / f"desk-{len(desks)}"
        folder.mkdir()
        desks.append(Desk(folder, every=every, stop_at=stop_at))
        return desks[-1]

    yield make
    for desk in desks:
        desk.close()


def guarded(answer: str, **guard: Any) -> Recipe:
    return changed(small_recipe(steps=12), {"guard": {"not_finite": answer, **guard}})


def bits(outcome: Outcome) -> list[bytes]:
    return [np.asarray(leaf).tobytes() for leaf in jax.tree.leaves(outcome.state)]


def told(desk: Desk) -> list[tuple[int, str, str, int]]:
    return [(one.step, one.upset, one.answer, one.to_step) for one in desk.said(wire.UpsetReport)]


@pytest.mark.parametrize("answer", ["skip", "roll_back"])
def test_run_that_passes_over_a_step_goes_on_and_resumes_around_it_with_the_same_bits(
    answer: str, views: dict[Split, View], compiled: Path, make_desk: Callable[..., Desk]
) -> None:
    jax.config.update("jax_compilation_cache_dir", str(compiled))  # type: ignore[no-untyped-call]
    recipe = guarded(answer)
    view = Damaged(views["train"], recipe)
    desk = make_desk()
    whole = train(desk.join(), recipe, view, facts={})
    assert told(desk) == [(BAD, "not_finite", answer, 5 if answer == "roll_back" else -1)]
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(whole.state))
    assert bits(train(desk.join(resume_from=10), recipe, view, facts={})) == bits(whole)
    desk = make_desk(stop_at=5)
    train(desk.join(), recipe, view, facts={})
    assert bits(train(desk.join(resume_from=5), recipe, view, facts={})) == bits(whole)
    spared = train(make_desk().join(), recipe, views["train"], facts={})
    assert bits(spared) != bits(whole)


def test_run_that_is_to_stop_ends_with_what_was_seen_and_saves_nothing_of_it(
    views: dict[Split, View], make_desk: Callable[..., Desk]
) -> None:
    recipe = guarded("stop")
    desk = make_desk()
    with pytest.raises(InvalidInput, match=r"step 7.*loss nan.*set guard\.not_finite to skip"):
        train(desk.join(), recipe, Damaged(views["train"], recipe), facts={})
    assert told(desk) == [(BAD, "not_finite", "stop", -1)]
    assert desk.snapshots == [5]


@pytest.mark.parametrize(
    ("answer", "guard", "every", "said"),
    [("skip", {"most": 1}, 5, "the 1th such step in a row"), ("roll_back", {}, 50, "no snapshot to go back to")],
)
def test_run_ends_where_nothing_else_can_be_done(
    answer: str,
    guard: dict[str, Any],
    every: int,
    said: str,
    views: dict[Split, View],
    make_desk: Callable[..., Desk],
) -> None:
    recipe = guarded(answer, **guard)
    with pytest.raises(InvalidInput, match=said):
        train(make_desk(every=every).join(), recipe, Damaged(views["train"], recipe), facts={})


def test_values_that_are_no_numbers_in_the_sample_are_refused_before_the_first_step(views: dict[Split, View]) -> None:
    class Odd(Damaged):
        def take(self, column: str, rows: NDArray[np.int64]) -> NDArray[Any]:
            return np.where(rows[..., None] == 5, np.nan, super().take(column, rows))

    recipe = guarded("skip")
    with pytest.raises(InvalidInput, match="values that are no numbers"):
        statistics_of(Sources(recipe, Odd(views["train"], recipe)))


def stepped(recipe: Recipe, view: View, *, usual: tuple[float, int] | None, damaged: bool) -> tuple[Any, Any, Measures]:
    """Returns the state before and after one step, and its measures."""
    mesh, sources = make_mesh(), Sources(recipe, view)
    with sources.loader(rank=0, world_size=1, fit=Fitting(sources)).stream(0) as stream:
        rows = {name: array.copy() for name, array in next(stream).items()}
    if damaged:
        rows["state"][3] = np.nan
    state = initial_state(recipe, Signature(state_dim=DIMS, action_dim=DIMS), statistics_of(sources), mesh)
    if usual is not None:
        state = replace(state, usual=jax.numpy.asarray(usual))
    before = jax.tree.map(np.array, state)
    after, array = make_update(recipe, mesh)(state, place_batch(mesh, rows), np.int32(1))
    return before, after, Measures.of(np.asarray(array))


def unmoved(before: Any, after: Any) -> bool:
    """Returns whether nothing of a state has moved but what counts steps, which must."""
    same: list[bool] = []
    counts: list[bool] = []
    for one, other in zip(*map(jax.tree.leaves, (before, after)), strict=True):
        (counts if one.dtype.kind == "i" else same).append(np.array_equal(one, other))
    assert not any(counts)
    return all(same)


@pytest.mark.parametrize("damaged", [False, True])
def test_state_after_a_step_that_is_no_number_is_the_one_before_but_for_counts(
    damaged: bool, views: dict[Split, View]
) -> None:
    before, after, measures = stepped(guarded("skip"), views["train"], usual=None, damaged=damaged)
    assert bool(measures.upset) == damaged
    assert unmoved(before, after) == damaged


@pytest.mark.parametrize(("steps", "upset"), [(99, 0), (100, SPIKE)])
def test_gradient_ten_times_as_long_as_usual_is_held_once_enough_steps_were_seen(
    steps: int, upset: int, views: dict[Split, View]
) -> None:
    recipe = guarded("ignore", spike="skip")
    norm = stepped(recipe, views["train"], usual=(1e9, 200), damaged=False)[2].gradient_norm
    before, after, measures = stepped(recipe, views["train"], usual=(norm / 11, steps), damaged=False)
    assert measures.upset == upset
    assert unmoved(before, after) == (upset == SPIKE)
    expected = (norm / 11, steps) if upset else (norm / 11 + (norm - norm / 11) / 100, steps + 1)
    assert after.usual.tolist() == pytest.approx(expected, rel=1e-4)
