"""PushT, as its package has it: it tells how much of the target is covered."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("gym_pusht", reason="the sim extra is not installed")

from mainspring.robots.environments.port import EpisodeStart, Purpose
from mainspring.robots.environments.pusht import STEPS_MAX, TABLE, PushT, pusht_by_state
from mainspring.robots.environments.pusht_player import PushTPlayer

PLACE = np.asarray([256.0, 256.0, np.pi / 4])  # Source: gym-pusht's target.


@pytest.mark.slow
def test_score_of_pusht_is_nought_far_from_the_target_and_grows_as_the_block_covers_it() -> None:
    world = pusht_by_state()
    found = []
    for index in range(40):
        began = world.reset(EpisodeStart(seed=0, index=index))
        assert began.score is None
        seen = world.step(began.state[:2])  # The disc stays where it is, the block with it.
        assert seen.score is not None
        found.append((float(np.linalg.norm(seen.state[2:4] - PLACE[:2])), seen.score, seen.solved))
    far = [score for away, score, _ in found if away > 200]
    near = [score for away, score, _ in found if away < 80]
    assert far
    assert near
    assert max(far) < 0.1
    assert float(np.mean(near)) > 0.2
    assert all(0.0 <= score < 1.0 for _, score, solved in found if not solved)


@pytest.mark.slow
def test_player_brings_the_block_onto_its_target_from_wherever_it_begins() -> None:
    world, best, steps = pusht_by_state(), [], []
    for index in (
        0,
        2,
        15,
        31,
        41,
        45,
    ):  # Some of them with the block at a wall, where the short way around is cut off.
        moment = world.reset(EpisodeStart(seed=0, index=index, purpose=Purpose.TRAINING))
        player, scores = PushTPlayer(), [0.0]
        while not moment.solved and len(scores) <= STEPS_MAX:
            action = player.act(moment.state)
            assert action.shape == (2,)
            assert (action > -0.2 * TABLE).all()
            assert (action < 1.2 * TABLE).all()
            moment = world.step(action)
            assert moment.score is not None
            scores.append(moment.score)
        best.append(max(scores))
        steps.append(len(scores) - 1)
    assert sum(score == 1.0 for score in best) >= 5
    assert float(np.mean(best)) > 0.9
    assert float(np.median(steps)) < 150


@pytest.mark.slow
def test_pusht_from_pictures_goes_as_that_from_numbers_does() -> None:
    start = EpisodeStart(seed=0, index=3, purpose=Purpose.TRAINING)
    known, seen, player = pusht_by_state(), PushT(), PushTPlayer()
    told, moment = known.reset(start), seen.reset(start)
    for _ in range(30):
        action = player.act(told.state)
        told, moment = known.step(action), seen.step(action)
        assert np.array_equal(moment.state, told.state[:2])
        assert moment.score == told.score
    assert moment.images[0].shape == (96, 96, 3)
