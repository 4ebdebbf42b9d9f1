"""The simulated arm: Meta-World's pick-place task on MuJoCo, with its scripted expert, without rendering.

Decides where episodes start, and gives the arm as a controller sees it: a state in, an action out, 80 times a second.
What drives it (the expert, a policy) is the caller's.
Source: Yu et al., "Meta-World", 2019; the `metaworld` package 3.0.0, task `pick-place-v3`.
"""

from __future__ import annotations

import pickle
import warnings
from dataclasses import dataclass

import numpy as np
from metaworld.envs.sawyer_pick_place_v3 import SawyerPickPlaceEnvV3
from metaworld.policies.sawyer_pick_place_v3_policy import SawyerPickPlaceV3Policy
from metaworld.types import Task

from mainspring.robots.environments.port import EpisodeStart, FloatArray, Moment
from mainspring.robots.environments.port import Purpose as Purpose

CONTROL_PERIOD_NS = 12_500_000  # 5 simulation steps of 2.5 ms: 80 Hz, as the task defines it.
CONTROL_RATE_HZ = 80.0
_SEEN = (
    *("hand_x", "hand_y", "hand_z", "gripper", "object_x", "object_y", "object_z"),
    *("object_qx", "object_qy", "object_qz", "object_qw"),
    *(f"second_object_{number}" for number in range(7)),  # This task has none: always zero.
)
STATE_NAMES = (*_SEEN, *(f"before_{name}" for name in _SEEN), "goal_x", "goal_y", "goal_z")
ACTION_NAMES = ("hand_velocity_x", "hand_velocity_y", "hand_velocity_z", "gripper_effort")  # Each -1 to 1.
STATE_DIM = len(STATE_NAMES)
ACTION_DIM = len(ACTION_NAMES)
ROBOT_NAME = "metaworld-sawyer"
TASK_TEXT = "Pick up the puck and bring it to the goal."
_OBJECT_TO_GOAL_MIN_M = 0.15  # The task redraws nearer goals without end when its start is fixed, so none is drawn.
_OBJECT_LOW_M, _OBJECT_HIGH_M = (-0.1, 0.6, 0.02), (0.1, 0.7, 0.02)  # Source: the task's own reset space.
_GOAL_LOW_M, _GOAL_HIGH_M = (-0.1, 0.8), (0.1, 0.9)
GOAL_HEIGHTS_M = (0.05, 0.3)
_DRAWS_MAX = 1_000  # A draw is refused with odds below one in five: 1,000 refusals in a row do not happen.


@dataclass(frozen=True, slots=True, kw_only=True)
class ArmStart:
    """Where an episode starts: the puck on the table and the goal above it, in metres."""

    object_m: tuple[float, float, float]
    goal_m: tuple[float, float, float]


def draw_start(purpose: Purpose, *, seed: int, index: int, heights_m: tuple[float, float] = GOAL_HEIGHTS_M) -> ArmStart:
    """Returns the start number `index` of a purpose; the same arguments always give the same start.

    Args:
        seed: Of the whole series, not negative.
        index: Which one, not negative.
        heights_m: How high the goal may be above the table, from and to.

    Raises:
        InvalidInput: A number is negative.
    """
    generator = EpisodeStart(purpose=purpose, seed=seed, index=index).generator()
    for _ in range(_DRAWS_MAX):
        lows, highs = (*_OBJECT_LOW_M, *_GOAL_LOW_M, heights_m[0]), (*_OBJECT_HIGH_M, *_GOAL_HIGH_M, heights_m[1])
        place = generator.uniform(lows, highs).tolist()
        start = ArmStart(object_m=(place[0], place[1], place[2]), goal_m=(place[3], place[4], place[5]))
        if np.hypot(place[0] - place[3], place[1] - place[4]) >= _OBJECT_TO_GOAL_MIN_M:
            return start
    raise AssertionError("no start was far enough from its goal")


class Arm:
    """One simulated arm; about 0.1 s and 20 MB to make, 1,500 and more steps a second and core."""

    def __init__(self) -> None:
        self._environment = SawyerPickPlaceEnvV3()
        self._expert = SawyerPickPlaceV3Policy()
        self._observation = np.zeros(STATE_DIM)

    def reset(self, start: ArmStart) -> Moment:
        """Puts arm, puck and goal at a start; what happened before leaves no trace.

        Args:
            start: From `draw_start`.
        """
        place = {
            "env_cls": SawyerPickPlaceEnvV3,
            "rand_vec": np.array((*start.object_m, *start.goal_m)),
            "partially_observable": False,  # Otherwise the goal would read as zeros.
        }
        self._environment.set_task(Task(env_name="pick-place-v3", data=pickle.dumps(place)))
        self._observation, _ = self._environment.reset()
        return Moment(state=self._observation.astype(np.float32), solved=False)

    def step(self, action: FloatArray) -> Moment:
        """Applies an action for one control period; the task allows 500 of them between resets.

        Args:
            action: `ACTION_DIM` numbers, clipped to -1 .. 1.
        """
        self._observation, _, _, _, facts = self._environment.step(np.clip(action, -1.0, 1.0).astype(np.float32))
        return Moment(state=self._observation.astype(np.float32), solved=bool(facts["success"]))

    def expert_action(self) -> FloatArray:
        """Returns what the scripted expert does now, within -1 .. 1."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # The expert warns of every action that it leaves to the arm to clip.
            action = self._expert.get_action(self._observation)
        return np.clip(action, -1.0, 1.0).astype(np.float32)
