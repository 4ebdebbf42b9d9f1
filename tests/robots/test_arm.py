from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("metaworld", reason="the sim extra is not installed")

from mainspring.domain.errors import InvalidInput
from mainspring.robots.arm import ACTION_DIM, STATE_DIM, STATE_NAMES, Arm, Purpose, draw_start
from mainspring.robots.environments.named import environment_named
from mainspring.robots.environments.port import EpisodeStart


@pytest.fixture(scope="module")
def arm() -> Arm:
    return Arm()


@pytest.mark.slow
@pytest.mark.parametrize("index", [0, 1])
def test_arm_driven_by_its_expert_solves_a_seeded_start(arm: Arm, index: int) -> None:
    arm.reset(draw_start(Purpose.EVALUATION, seed=3, index=index))
    assert any(arm.step(arm.expert_action()).solved for _ in range(100))


@pytest.mark.slow
def test_arm_left_alone_solves_nothing(arm: Arm) -> None:
    arm.reset(draw_start(Purpose.EVALUATION, seed=3, index=0))
    assert not any(arm.step(np.zeros(ACTION_DIM, np.float32)).solved for _ in range(100))


@pytest.mark.slow
def test_arm_reset_to_the_same_start_repeats_every_state_whatever_came_before(arm: Arm) -> None:
    start = draw_start(Purpose.TRAINING, seed=0, index=5)
    runs = []
    for before in range(2):
        arm.reset(draw_start(Purpose.TRAINING, seed=0, index=before))
        for _ in range(20 * before):
            arm.step(arm.expert_action())
        states = [arm.reset(start).state]
        states += [arm.step(arm.expert_action()).state for _ in range(20)]
        runs.append(np.stack(states))
    assert (runs[0] == runs[1]).all()


@pytest.mark.slow
def test_arm_state_shows_object_and_goal_of_the_start_by_name(arm: Arm) -> None:
    start = draw_start(Purpose.TRAINING, seed=0, index=0)
    state = dict(zip(STATE_NAMES, arm.reset(start).state.tolist(), strict=True))
    assert [state[f"goal_{axis}"] for axis in "xyz"] == pytest.approx(start.goal_m)
    assert [state[f"object_{axis}"] for axis in "xy"] == pytest.approx(start.object_m[:2], abs=1e-3)
    assert len(state) == STATE_DIM


@pytest.mark.slow
@pytest.mark.parametrize(("name", "heights_m"), [("metaworld-table", (0.05, 0.12)), ("metaworld-shelf", (0.2, 0.3))])
def test_goals_of_table_and_shelf_are_as_high_as_these(name: str, heights_m: tuple[float, float]) -> None:
    world = environment_named(name)()
    facts = world.facts()
    assert facts.name == name
    seen = [
        world.reset(EpisodeStart(seed=0, index=index)).state[facts.state_names.index("goal_z")] for index in range(8)
    ]
    assert heights_m[0] <= min(seen) < max(seen) <= heights_m[1]


@settings(max_examples=50)
@given(seed=st.integers(0, 2**31), index=st.integers(0, 10**6))
def test_start_is_repeatable_and_no_purpose_shares_one(seed: int, index: int) -> None:
    training, again, evaluation = (
        draw_start(purpose, seed=seed, index=index)
        for purpose in (Purpose.TRAINING, Purpose.TRAINING, Purpose.EVALUATION)
    )
    assert training == again
    assert training != evaluation
    assert np.hypot(*np.subtract(training.object_m, training.goal_m)[:2]) >= 0.15


def test_starts_of_training_and_evaluation_have_nothing_in_common() -> None:
    drawn = [{draw_start(purpose, seed=0, index=index) for index in range(300)} for purpose in Purpose]
    assert [len(starts) for starts in drawn] == [300, 300]
    assert not drawn[0] & drawn[1]


def test_start_with_a_negative_number_is_refused() -> None:
    with pytest.raises(InvalidInput, match="at least 0"):
        draw_start(Purpose.TRAINING, seed=-1, index=0)
