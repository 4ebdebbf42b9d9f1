"""Meta-World's pick-place as an environment: with the goal's place among its numbers, or told in words alone.

Nothing is rendered: it is drawn as a plan from above beside one from the front, which takes a millisecond where MuJoCo
needs a hundred on a CPU.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import final

import numpy as np

from mainspring.robots.arm import (
    ACTION_NAMES,
    CONTROL_RATE_HZ,
    GOAL_HEIGHTS_M,
    STATE_NAMES,
    TASK_TEXT,
    Arm,
    ArmStart,
    draw_start,
)
from mainspring.robots.environments.drawing import BLUE, GREEN, GREY, RED, disc, ground
from mainspring.robots.environments.port import EnvironmentFacts, EpisodeStart, FloatArray, Moment, Pixels, Purpose

STEPS_MAX = 150  # The expert needs 45 to 65 steps; a policy that needs twice that has lost its way.
TOLD_STATE_NAMES = STATE_NAMES[:-3]  # Without the goal's three numbers.
TABLE, SHELF = "metaworld-table", "metaworld-shelf"
GOAL_RADIUS_M = 0.07  # Source: the task's own reward function.
TABLE_HEIGHTS_M = (GOAL_HEIGHTS_M[0], 0.12)
SHELF_HEIGHTS_M = (0.2, GOAL_HEIGHTS_M[1])  # Further above every goal at the table than what still counts as reached.
_PIXELS_A_METRE = 320
_HEIGHT, _WIDTH = 192, 224  # Of each plan: 0.7 m across, 0.6 m deep or high.
_LEFT_M, _FAR_M, _TOP_M = -0.35, 1.0, 0.5  # The arm's own frame: x to the right, y away from it, z up.


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """A place that the puck may be wanted at, and how people say so.

    Args:
        wordings: What is trained on.
        unseen: What is never trained on.
        goal_m: Where it is. Two places are more than twice as far apart as the 0.07 m within which the task is done.
    """

    name: str
    wordings: tuple[str, ...]
    unseen: tuple[str, ...]
    goal_m: tuple[float, float, float]


PLACES = (
    Place(
        name="left",
        goal_m=(-0.1, 0.88, 0.08),
        wordings=(
            "bring the puck to the left",
            "put the puck on the left side",
            "move the puck to the left",
            "the puck belongs on the left",
        ),
        unseen=("take the puck to the left side", "the left side is where the puck belongs"),
    ),
    Place(
        name="right",
        goal_m=(0.1, 0.88, 0.08),
        wordings=(
            "bring the puck to the right",
            "put the puck on the right side",
            "move the puck to the right",
            "the puck belongs on the right",
        ),
        unseen=("take the puck to the right side", "the right side is where the puck belongs"),
    ),
    Place(
        name="top",
        goal_m=(0.0, 0.88, 0.28),
        wordings=(
            "bring the puck up high",
            "put the puck high up in the air",
            "move the puck up to the top",
            "the puck belongs at the top",
        ),
        unseen=("take the puck high up to the top", "high up is where the puck belongs"),
    ),
)


@final
class MetaWorld:
    """Pick-place with the goal among the 39 numbers of its state.

    Args:
        name: As the environment is called.
        heights_m: How high goals may be.
    """

    def __init__(self, name: str = "metaworld", heights_m: tuple[float, float] = GOAL_HEIGHTS_M) -> None:
        self._scene = Scene()
        self._name = name
        self._heights_m = heights_m

    def facts(self) -> EnvironmentFacts:
        """See `Environment.facts`."""
        return _facts(self._name, STATE_NAMES)

    def reset(self, start: EpisodeStart) -> Moment:
        """See `Environment.reset`."""
        place = draw_start(start.purpose, seed=start.seed, index=start.index, heights_m=self._heights_m)
        return replace(self._scene.reset(place), task=TASK_TEXT)

    def step(self, action: FloatArray) -> Moment:
        """See `Environment.step`."""
        return replace(self._scene.step(action), task=TASK_TEXT)

    def expert_action(self) -> FloatArray:
        """Returns what the scripted expert does now."""
        return self._scene.arm.expert_action()

    def draw(self) -> Pixels:
        """See `Environment.draw`."""
        return self._scene.draw()


def metaworld_table() -> MetaWorld:
    """Returns pick-place with goals near the table."""
    return MetaWorld(TABLE, TABLE_HEIGHTS_M)


def metaworld_shelf() -> MetaWorld:
    """Returns pick-place with goals as high as on a shelf."""
    return MetaWorld(SHELF, SHELF_HEIGHTS_M)


@final
class MetaWorldPlaces:
    """Pick-place to one of `PLACES`, which only words tell: start number n is of place n modulo their number."""

    def __init__(self) -> None:
        self._scene = Scene()
        self._task = ""

    def facts(self) -> EnvironmentFacts:
        """See `Environment.facts`."""
        return _facts("metaworld-places", TOLD_STATE_NAMES)

    def reset(self, start: EpisodeStart) -> Moment:
        """See `Environment.reset`. Words that nobody trains on are those of evaluation."""
        place = PLACES[start.index % len(PLACES)]
        words = place.wordings if start.purpose is Purpose.TRAINING else place.unseen
        self._task = words[start.index // len(PLACES) % len(words)]
        drawn = draw_start(start.purpose, seed=start.seed, index=start.index)
        return self._told(self._scene.reset(replace(drawn, goal_m=place.goal_m)))

    def step(self, action: FloatArray) -> Moment:
        """See `Environment.step`."""
        return self._told(self._scene.step(action))

    def expert_action(self) -> FloatArray:
        """Returns what the scripted expert, who knows the goal, does now."""
        return self._scene.arm.expert_action()

    def draw(self) -> Pixels:
        """See `Environment.draw`."""
        return self._scene.draw()

    def _told(self, moment: Moment) -> Moment:
        return replace(moment, state=moment.state[: len(TOLD_STATE_NAMES)], task=self._task)


@final
class Scene:
    """The arm with what is drawn of it."""

    def __init__(self) -> None:
        self.arm = Arm()
        self._goal_m = (0.0, 0.0, 0.0)
        self._state = np.zeros(len(STATE_NAMES), np.float32)

    def reset(self, start: ArmStart) -> Moment:
        """Puts arm, puck and goal at a start."""
        self._goal_m = start.goal_m
        return self._seen(self.arm.reset(start))

    def step(self, action: FloatArray) -> Moment:
        """Does one control step."""
        return self._seen(self.arm.step(action))

    def draw(self) -> Pixels:
        """Returns both plans side by side: the goal's reach in grey, its middle green, the puck red, the hand blue."""
        picture = ground(_HEIGHT, 2 * _WIDTH)
        for left, part in enumerate((picture[:, :_WIDTH], picture[:, _WIDTH:])):
            things = (
                (self._goal_m, GOAL_RADIUS_M, GREY),
                (self._goal_m, 0.012, GREEN),
                (self._state[4:7].tolist(), 0.02, RED),
                (self._state[:3].tolist(), 0.015, BLUE),
            )
            for (x, y, z), radius_m, colour in things:
                down_m = _TOP_M - z if left else _FAR_M - y
                across_px, down_px = (x - _LEFT_M) * _PIXELS_A_METRE, down_m * _PIXELS_A_METRE
                disc(part, x=across_px, y=down_px, radius=radius_m * _PIXELS_A_METRE, colour=colour)
        picture[:, _WIDTH] = GREY
        return picture

    def _seen(self, moment: Moment) -> Moment:
        self._state = moment.state
        return moment


def _facts(name: str, state_names: tuple[str, ...]) -> EnvironmentFacts:
    return EnvironmentFacts(
        name=name,
        state_names=state_names,
        action_names=ACTION_NAMES,
        rate_hz=CONTROL_RATE_HZ,
        steps_max=STEPS_MAX,
    )
