from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import jax
import numpy as np
import pytest

from mainspring.data import View
from mainspring.data.views.manifest import Split
from mainspring.domain.errors import DamagedData, InvalidInput
from mainspring.session import Restored, Session
from mainspring.train.evaluate import TrainedPolicy, held_out_error, make_actor, policy_from
from mainspring.train.feed import shapes_fed
from mainspring.train.inputs.fitting import Fitting
from mainspring.train.inputs.measured import statistics_of
from mainspring.train.inputs.sources import Sources
from mainspring.train.models.shapes import Signature
from mainspring.train.policy import model_of, unit_statistics
from mainspring.train.recipe import changed
from mainspring.train.state.sharding import make_mesh, place_batch
from mainspring.train.steps.state import initial_state
from mainspring.train.steps.stepping import before_shape
from mainspring.train.steps.update import make_update
from mainspring.train.trainer import Outcome, lowered_update, shapes_of, train

from .making import DIMS, Desk, small_recipe

pytestmark = pytest.mark.slow
Views = dict[Split, View]
RECIPE = small_recipe(steps=12)


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


def bits(outcome: Outcome) -> list[bytes]:
    return [np.asarray(leaf).tobytes() for leaf in jax.tree.leaves(outcome.state)]


def alone() -> Session:
    return Session("", pid=1, stopwatch=lambda: 0.0)


@pytest.fixture(scope="module")
def whole(views: Views, compiled: Path) -> Outcome:
    jax.config.update("jax_compilation_cache_dir", str(compiled))  # type: ignore[no-untyped-call]
    return train(alone(), RECIPE, views["train"], facts={})


@pytest.fixture(scope="module")
def trained(views: Views, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Restored]:
    desk = Desk(tmp_path_factory.mktemp("trained"), every=400)
    train(desk.join(), small_recipe(steps=400), views["train"], facts={"view": "swing"})
    restored = desk.join(resume_from=400).restore()
    assert restored is not None
    yield restored
    desk.close()


def policy_in(restored: Restored) -> TrainedPolicy:
    return policy_from(restored.state, {path: restored.array(path) for path in restored.paths})


@pytest.mark.parametrize("stop_at", [1, 4, 5, 8])
def test_training_asked_to_stop_anywhere_and_resumed_ends_with_the_same_bits(
    stop_at: int, views: Views, whole: Outcome, make_desk: Callable[..., Desk]
) -> None:
    desk = make_desk(stop_at=stop_at)
    first = train(desk.join(), RECIPE, views["train"], facts={})
    assert first.step == desk.snapshots[-1] == stop_at
    second = train(desk.join(resume_from=first.step), RECIPE, views["train"], facts={})
    assert second.step == RECIPE.steps
    assert bits(second) == bits(whole)


def test_training_resumed_from_an_older_snapshot_repeats_its_steps_bit_for_bit(
    views: Views, whole: Outcome, make_desk: Callable[..., Desk]
) -> None:
    desk = make_desk()
    train(desk.join(), RECIPE, views["train"], facts={})
    assert desk.snapshots == [5, 10, 12]
    again = train(desk.join(resume_from=10), RECIPE, views["train"], facts={})
    assert bits(again) == bits(whole)
    finished = train(desk.join(resume_from=12), RECIPE, views["train"], facts={})
    assert (finished.step, finished.loss) == (12, None)
    assert bits(finished) == bits(whole)


def test_program_lowered_from_shapes_alone_is_the_one_that_trains(views: Views) -> None:
    mesh, sources, signature = make_mesh(), Sources(RECIPE, views["train"]), Signature(state_dim=DIMS, action_dim=DIMS)
    with sources.loader(rank=0, world_size=1, fit=Fitting(sources)).stream(0) as stream:
        batch = place_batch(mesh, next(stream))
    state = initial_state(RECIPE, signature, statistics_of(sources), mesh)
    run = make_update(RECIPE, mesh).lower(state, batch, np.int32(7), *before_shape(RECIPE, mesh))
    ahead = lowered_update(RECIPE, signature, shapes_of(batch), jax.devices())
    assert ahead.as_text() == run.as_text()
    assert shapes_fed(RECIPE.policy, signature, RECIPE.batch_size) == shapes_of(batch)


def test_training_from_a_snapshot_of_another_shape_is_refused(views: Views, make_desk: Callable[..., Desk]) -> None:
    desk = make_desk()
    train(desk.join(), RECIPE, views["train"], facts={})
    other = changed(RECIPE, {"policy": {"motion": False}})
    with pytest.raises(InvalidInput, match="restore an array"):
        train(desk.join(resume_from=12), other, views["train"], facts={})


def test_training_on_images_from_a_view_without_any_is_refused(views: Views) -> None:
    recipe = changed(RECIPE, {"policy": {"image": {"channels": [4], "features": 4}}})
    with pytest.raises(InvalidInput, match="without images"):
        train(alone(), recipe, views["train"], facts={})


def test_snapshot_of_a_trained_policy_holds_all_that_is_needed_to_beat_holding_still(
    views: Views, trained: Restored
) -> None:
    policy = policy_in(trained)
    error = held_out_error(policy, views["holdout"], seed=0)
    assert trained.state["view"] == "swing"
    assert error.hold_last_state is not None
    assert error.policy < 0.5 * error.hold_last_state
    assert error.policy < held_out_error(policy.untrained(), views["holdout"], seed=0).policy
    assert (error.states, error.episodes) == (views["holdout"].rows, len(views["holdout"].episode_ids))


def test_held_out_error_of_holding_still_is_the_distance_from_the_state_to_the_actions_of_the_chunk(
    views: Views, trained: Restored
) -> None:
    view = views["holdout"]
    squares = []
    for first, end in zip([0, *view.episode_ends[:-1].tolist()], view.episode_ends.tolist(), strict=True):
        states, actions = (view.take(name, np.arange(first, end)) for name in ("state", "action"))
        squares += [np.square(actions[row : row + 4] - states[row]).reshape(-1) for row in range(end - first)]
    expected = np.sqrt(np.concatenate(squares).mean())
    assert held_out_error(policy_in(trained), view, seed=0).hold_last_state == pytest.approx(expected, rel=1e-5)


def test_actor_of_a_policy_that_sees_motion_wants_the_state_before_and_follows_it(trained: Restored) -> None:
    policy = policy_in(trained)
    actor, states = make_actor(policy, seed=0), np.zeros((2, DIMS), np.float32)
    with pytest.raises(InvalidInput, match="on before; got nothing"):
        actor({"state": states}, 0)
    with pytest.raises(InvalidInput, match="on before; got shape"):
        actor({"state": states, "before": states[:1]}, 0)
    still, moving = (actor({"state": states, "before": states - by}, 0) for by in (0.0, 0.1))
    assert still.shape == (2, policy.recipe.policy.horizon, DIMS)
    assert np.abs(moving - still).max() > 0.01


def test_actor_of_a_policy_that_sees_states_gives_a_chunk_for_each() -> None:
    recipe = changed(RECIPE, {"policy": {"motion": False}})
    signature = Signature(state_dim=DIMS, action_dim=DIMS)
    policy = TrainedPolicy(
        recipe=recipe,
        signature=signature,
        weights=model_of(recipe.policy).initial_weights(jax.random.key(0), signature),
        statistics=unit_statistics(recipe.policy, signature),
    )
    actor = make_actor(policy, seed=0)
    states = {"state": np.zeros((2, DIMS), np.float32)}
    assert actor(states, 0).shape == (2, recipe.policy.horizon, DIMS)
    assert (actor(states, 0) == actor(states, 0)).all()
    assert (actor(states, 0) != actor(states, 1)).any()


def test_policy_from_somebody_elses_checkpoint_is_refused() -> None:
    with pytest.raises(DamagedData, match="recipe and signature"):
        policy_from({"step": 1}, {})
