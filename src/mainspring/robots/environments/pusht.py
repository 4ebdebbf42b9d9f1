"""PushT as an environment: a disc pushes a block shaped as a T onto its place on a table, seen from above.

Source: Chi et al., "Diffusion Policy", 2023; the `gym-pusht` package 0.1, which draws it with pygame on any CPU in
under two milliseconds, so that a policy can see it.
"""

from __future__ import annotations

from typing import Any, final

import numpy as np

from mainspring.robots.environments.port import EnvironmentFacts, EpisodeStart, FloatArray, Moment, Pixels

TASK_TEXT = "Push the T-shaped block onto the T-shaped target."  # As the published demonstrations have it.
TABLE = 512.0  # The table's edge, in its own units.
STEPS_MAX = 300  # Source: gym-pusht's registration.
_STATE_NAMES = ("agent_x", "agent_y")
_BLOCK_NAMES = ("block_x", "block_y", "block_angle")
_DRAWN = 256  # Pixels of what people are shown.


@final
class PushT:
    """PushT from its picture and the disc's place, as the published demonstrations have it.

    Its score is how much of the target the block covers, over the 95 % with which it is solved, as the paper has it.

    Args:
        pictures: Whether a policy sees a picture; else it is told the block's place and angle.
    """

    def __init__(self, *, pictures: bool = True) -> None:
        from gym_pusht.envs import PushTEnv  # It takes long to import.

        self._pictures = pictures
        kind = "pixels_agent_pos" if pictures else "state"
        self._world: Any = PushTEnv(obs_type=kind, visualization_width=_DRAWN, visualization_height=_DRAWN)

    def facts(self) -> EnvironmentFacts:
        """See `Environment.facts`."""
        return EnvironmentFacts(
            name="pusht" if self._pictures else "pusht-state",
            state_names=_STATE_NAMES if self._pictures else _STATE_NAMES + _BLOCK_NAMES,
            action_names=("target_x", "target_y"),
            rate_hz=10.0,
            steps_max=STEPS_MAX,
            cameras=("image",) if self._pictures else (),
        )

    def reset(self, start: EpisodeStart) -> Moment:
        """See `Environment.reset`."""
        low, high = (50, 50, 100, 100, -np.pi), (450, 450, 400, 400, np.pi)  # Source: the environment's own reset.
        seen, _ = self._world.reset(options={"reset_to_state": start.generator().uniform(low, high)})
        return self._moment(seen, solved=False)

    def step(self, action: FloatArray) -> Moment:
        """See `Environment.step`."""
        target = np.clip(action, 0.0, TABLE).astype(np.float64)
        seen, covered, _, _, facts = self._world.step(target)  # Its place's covered part, over what is asked of it.
        return self._moment(seen, solved=bool(facts["is_success"]), score=float(covered))

    def draw(self) -> Pixels:
        """See `Environment.draw`."""
        picture: Pixels = self._world.render()
        return picture

    def _moment(self, seen: Any, *, solved: bool, score: float | None = None) -> Moment:
        state = seen["agent_pos"] if self._pictures else seen
        images = (seen["pixels"],) if self._pictures else ()
        seen_state = np.asarray(state, np.float32)
        return Moment(state=seen_state, solved=solved, task=TASK_TEXT, images=images, score=score)


def pusht_by_state() -> PushT:
    """Returns PushT for policies that see the block's place and angle as numbers."""
    return PushT(pictures=False)
