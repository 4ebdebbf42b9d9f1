from __future__ import annotations

import warnings
from collections.abc import Mapping

import numpy as np
import pytest

pytest.importorskip("metaworld", reason="the sim extra is not installed")

from metaworld.policies.sawyer_pick_place_v3_policy import SawyerPickPlaceV3Policy

from mainspring.domain.errors import InvalidInput
from mainspring.robots.arm import ACTION_DIM
from mainspring.robots.closed_loop import drive
from mainspring.robots.environments.metaworld import STEPS_MAX
from mainspring.robots.environments.port import EpisodeStart, FloatArray
from mainspring.robots.evaluation.playing import LANES

STARTS = [EpisodeStart(seed=1, index=index) for index in range(4)]


def expert(seen: Mapping[str, FloatArray], call: int) -> FloatArray:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        chunks = [[SawyerPickPlaceV3Policy().get_action(state.astype(np.float64))] * 2 for state in seen["state"]]
    return np.asarray(chunks, np.float32)


def idle(seen: Mapping[str, FloatArray], call: int) -> FloatArray:
    return np.zeros((LANES, 8, ACTION_DIM), np.float32)


@pytest.mark.slow
def test_drive_by_somebody_who_knows_how_solves_every_start() -> None:
    finished: list[int] = []
    result = drive(expert, STARTS, progress=finished.append)
    assert (result.starts, result.solved, result.success_rate) == (4, 4, 1.0)
    assert result.steps < 4 * 100
    assert finished == [1, 2, 3, 4]


@pytest.mark.slow
def test_drive_by_somebody_idle_ends_at_the_step_limit_without_success() -> None:
    result = drive(idle, STARTS[:2], progress=lambda _: None)
    assert (result.solved, result.steps) == (0, 2 * STEPS_MAX)


@pytest.mark.slow
def test_drive_with_more_starts_than_arms_gives_each_start_its_turn() -> None:
    starts = [EpisodeStart(seed=2, index=index) for index in range(LANES + 3)]
    finished: list[int] = []
    assert drive(expert, starts, progress=finished.append).solved == len(starts)
    assert finished == list(range(1, len(starts) + 1))


def test_drive_without_starts_is_refused() -> None:
    with pytest.raises(InvalidInput, match="no starts"):
        drive(idle, [], progress=lambda _: None)


@pytest.mark.slow
def test_drive_by_a_policy_of_another_robot_is_refused() -> None:
    with pytest.raises(InvalidInput, match="chunks"):
        drive(lambda seen, call: np.zeros((LANES, 8, 7), np.float32), STARTS[:1], progress=lambda _: None)
