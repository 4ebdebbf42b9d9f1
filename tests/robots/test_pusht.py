"""PushT, as its package has it: it tells how much of the target is covered."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("gym_pusht", reason="the sim extra is not installed")

from mainspring.robots.environments.port import EpisodeStart
from mainspring.robots.environments.pusht import pusht_by_state

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
