from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import jax
import numpy as np
import pytest

from mainspring.data import View
from mainspring.data.view import Split
from mainspring.domain.errors import DamagedData, InvalidInput
from mainspring.session import Session
from mainspring.train.evaluate import held_out_error, make_actor, policy_from
from mainspring.train.trainer import Outcome, connect, train

from .making import DIMS, Desk, small_recipe

pytestmark = pytest.mark.slow
Views = dict[Split, View]


@pytest.fixture
def make_desk(tmp_path: Path) -> Iterator[Callable[[int], Desk]]:
    desks = []

    def make(stop_at: int) -> Desk:
        folder = tmp_path / f"desk-{len(desks)}"
        folder.mkdir()
        desks.append(Desk(folder, stop_at=stop_at))
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
    connect(alone(), compiled)
    return train(alone(), small_recipe(steps=12), views["train"], snapshot_every=5, facts={})


@pytest.mark.parametrize("stop_at", [1, 4, 5, 9])
def test_training_asked_to_stop_anywhere_and_resumed_ends_with_the_same_bits(
    stop_at: int, views: Views, whole: Outcome, make_desk: Callable[[int], Desk]
) -> None:
    recipe, desk = small_recipe(steps=12), make_desk(stop_at)
    first = train(desk.join(), recipe, views["train"], snapshot_every=5, facts={})
    assert first.preempted
    assert stop_at < first.step < 12
    assert desk.snapshots[-1] == first.step
    second = train(desk.join(resume_from=first.step), recipe, views["train"], snapshot_every=5, facts={})
    assert (second.step, second.preempted) == (12, False)
    assert bits(second) == bits(whole)


def test_training_resumed_from_an_older_snapshot_repeats_its_steps_bit_for_bit(
    views: Views, whole: Outcome, make_desk: Callable[[int], Desk]
) -> None:
    recipe, desk = small_recipe(steps=12), make_desk(1 << 60)
    train(desk.join(), recipe, views["train"], snapshot_every=5, facts={})
    assert desk.snapshots == [5, 10, 12]
    again = train(desk.join(resume_from=10), recipe, views["train"], snapshot_every=5, facts={})
    assert bits(again) == bits(whole)


def test_training_of_a_finished_run_does_nothing_and_says_so(views: Views, make_desk: Callable[[int], Desk]) -> None:
    recipe, desk = small_recipe(steps=3), make_desk(1 << 60)
    first = train(desk.join(), recipe, views["train"], snapshot_every=5, facts={})
    again = train(desk.join(resume_from=3), recipe, views["train"], snapshot_every=5, facts={})
    assert (again.step, again.preempted) == (3, False)
    assert bits(again) == bits(first)


def test_training_from_a_snapshot_of_another_shape_is_refused(
    views: Views, make_desk: Callable[[int], Desk]
) -> None:
    desk = make_desk(1 << 60)
    train(desk.join(), small_recipe(steps=2), views["train"], snapshot_every=5, facts={})
    with pytest.raises(InvalidInput, match="restore an array"):
        train(desk.join(resume_from=2), small_recipe(steps=2, motion=False), views["train"], snapshot_every=5, facts={})


def test_snapshot_of_a_trained_policy_holds_all_that_is_needed_to_beat_holding_still(
    views: Views, make_desk: Callable[[int], Desk]
) -> None:
    desk = make_desk(1 << 60)
    train(desk.join(), small_recipe(steps=400), views["train"], snapshot_every=400, facts={"view": "swing"})
    restored = desk.join(resume_from=400).restore()
    assert restored is not None
    assert restored.state["view"] == "swing"
    policy = policy_from(restored.state, {path: restored.array(path) for path in restored.paths})
    error = held_out_error(policy, views["holdout"], seed=0)
    assert error.policy < 0.5 * error.hold_last_state
    assert held_out_error(policy.untrained(), views["holdout"], seed=0).policy > error.policy
    assert error.states == views["holdout"].rows


def test_held_out_error_of_holding_still_is_the_distance_between_states_and_actions(
    views: Views, whole: Outcome, make_desk: Callable[[int], Desk]
) -> None:
    desk = make_desk(1 << 60)
    train(desk.join(), small_recipe(steps=1), views["train"], snapshot_every=1, facts={})
    restored = desk.join(resume_from=1).restore()
    assert restored is not None
    policy = policy_from(restored.state, {path: restored.array(path) for path in restored.paths})
    view = views["holdout"]
    squares = []
    starts = [0, *view.episode_ends[:-1].tolist()]
    for first, end in zip(starts, view.episode_ends.tolist(), strict=True):
        states, actions = (view.take(name, np.arange(first, end)) for name in ("state", "action"))
        squares += [np.square(actions[row : row + 4] - states[row]).reshape(-1) for row in range(end - first)]
    expected = np.sqrt(np.concatenate(squares).mean())
    assert held_out_error(policy, view, seed=0).hold_last_state == pytest.approx(expected, rel=1e-5)


def test_actor_of_a_policy_that_sees_motion_is_refused(views: Views, make_desk: Callable[[int], Desk]) -> None:
    for motion in (True, False):
        desk = make_desk(1 << 60)
        train(desk.join(), small_recipe(steps=1, motion=motion), views["train"], snapshot_every=1, facts={})
        restored = desk.join(resume_from=1).restore()
        assert restored is not None
        policy = policy_from(restored.state, {path: restored.array(path) for path in restored.paths})
        if motion:
            with pytest.raises(InvalidInput, match="states alone"):
                make_actor(policy, seed=0)
        else:
            assert make_actor(policy, seed=0)(np.zeros((2, DIMS), np.float32), 0).shape == (2, 4, DIMS)


def test_policy_from_somebody_elses_checkpoint_is_refused() -> None:
    with pytest.raises(DamagedData, match="recipe and signature"):
        policy_from({"step": 1}, {})
