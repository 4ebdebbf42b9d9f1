"""A trained policy as the actor of an environment: refused where they do not fit, before the first step.

A policy of several robots acts as the first of its recipe that fits: as many numbers of state and action, and each of
the cameras that this robot has. Views of cameras that it lacks are black and masked, as they were in training.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import av
import numpy as np
from numpy.typing import NDArray

from mainspring.data.video.frames import SCALING
from mainspring.domain.errors import InvalidInput
from mainspring.robots.environments.port import EnvironmentFacts, FloatArray, Pixels
from mainspring.robots.evaluation.playing import Actor, Observations
from mainspring.train.evaluate import TrainedPolicy, make_actor, normalised_state, tokenizer_of
from mainspring.train.inputs.fitting import widened
from mainspring.train.models.shapes import LanguageRecipe
from mainspring.train.robots import KnownRobot

ROBOTS_TOLD_MAX = 5  # Of those that do not fit.
_PARTS = re.compile(r"[./]")


@dataclass(frozen=True, slots=True, kw_only=True)
class ChosenRobot:
    """The robot that a policy is in an environment.

    Args:
        shown: For each of the policy's views the environment's camera that it shows, by number; None for a camera that
            the robot lacks.
    """

    robot: KnownRobot
    shown: tuple[int | None, ...]


def chosen_robot(policy: TrainedPolicy, facts: EnvironmentFacts) -> ChosenRobot:
    """Returns the first robot of a policy that fits an environment.

    Raises:
        InvalidInput: None does, or it is a language model.
    """
    if isinstance(policy.recipe.policy, LanguageRecipe):
        raise InvalidInput("evaluate a policy", got="a language model", wanted="a policy")
    views = policy.signature.image_views
    have = (len(facts.state_names), len(facts.action_names))
    for robot in policy.known_robots:
        shown = _shown(robot, facts.cameras, views)
        if (robot.state_dim, robot.action_dim) == have and shown is not None:
            return ChosenRobot(robot=robot, shown=shown)
    state, action = _named("state", facts.state_names), _named("action", facts.action_names)
    wanted = [_asked(robot, views) for robot in policy.known_robots[:ROBOTS_TOLD_MAX]]
    more = len(policy.known_robots) - len(wanted)
    raise InvalidInput(
        "evaluate a policy",
        on=facts.name,
        got=f"a robot of {state}, {action}, {_cameras(facts.cameras)}",
        wanted=", or ".join([*wanted, *[f"one of {more} others"] * bool(more)]) + ": as it was trained",
    )


def actor_of(policy: TrainedPolicy, facts: EnvironmentFacts, *, seed: int) -> Actor:
    """Returns the actor that a policy is in an environment.

    Args:
        seed: Of the policy's noise.

    Raises:
        InvalidInput: The policy is of another robot, or of none.
    """
    chosen = chosen_robot(policy, facts)
    robot, shape, signature, data = chosen.robot, policy.recipe.policy, policy.signature, policy.recipe.data
    player, tokenizer = make_actor(policy, seed=seed), tokenizer_of(policy)
    size = (signature.image_height, signature.image_width)

    def act(seen: Observations, call: int) -> FloatArray:
        lanes = len(seen.state)
        batch: dict[str, NDArray[Any]] = {"state": widened(seen.state, signature.state_dim)}
        if shape.motion:
            batch["before"] = widened(seen.before, signature.state_dim)
        if len(data.robots) > 1:
            batch["robot"] = np.full(lanes, robot.number, np.int32)
        if signature.image_views:
            assert seen.images is not None
            batch["images"] = resized(_views(seen.images, chosen.shown), size)
            if data.masked:
                batch["image_valid"] = np.tile([number is not None for number in chosen.shown], (lanes, 1))
        if tokenizer is not None:
            prompt = tokenizer.prompts(seen.tasks, normalised_state(policy, seen.state, robot=robot.number))
            batch |= {"prompt": prompt.tokens, "prompt_valid": prompt.valid}
        return player(batch, call)[..., : robot.action_dim]

    return act


def _shown(robot: KnownRobot, cameras: Sequence[str], views: int) -> tuple[int | None, ...] | None:
    """Returns the camera at each view, each once; None where the robot has one that the environment lacks."""
    if robot.cameras is None or not views:
        return tuple(range(views)) if len(cameras) >= views else None
    shown = tuple(_place(name, cameras) if name else None for name in robot.cameras)
    found = [number for number in shown if number is not None]
    return shown if len(set(found)) == len([name for name in robot.cameras if name]) else None


def _place(name: str, cameras: Sequence[str]) -> int | None:
    """Returns which camera a name means: `observation.images.top` of the data is `top` of an environment."""
    if name in cameras:
        return cameras.index(name)
    last = [_PARTS.split(camera)[-1] for camera in cameras]
    wanted = _PARTS.split(name)[-1]
    return last.index(wanted) if last.count(wanted) == 1 else None


def _views(images: Pixels, shown: Sequence[int | None]) -> Pixels:
    """Returns what the policy's views show, [lanes, V, H, W, 3]: black where the robot has no camera."""
    lanes, _, *edges = images.shape
    views = np.zeros((lanes, len(shown), *edges), np.uint8)
    for view, number in enumerate(shown):
        if number is not None:
            views[:, view] = images[:, number]
    return views


def _named(what: str, names: Sequence[str]) -> str:
    return f"{len(names)} numbers of {what} ({', '.join(names[:6])}{', ...' if len(names) > 6 else ''})"


def _cameras(names: Sequence[str]) -> str:
    return f"cameras {', '.join(names)}" if names else "no camera"


def _asked(robot: KnownRobot, views: int) -> str:
    numbers = f"{robot.state_dim} of state, {robot.action_dim} of action"
    seen = f"{views} cameras" if robot.cameras is None else _cameras([name for name in robot.cameras if name])
    return (f"{robot.name!r}: " if robot.name else "") + f"{numbers}, {seen if views else 'no camera'}"


def resized(images: Pixels, size: tuple[int, int]) -> Pixels:
    """Returns pictures [lanes, V, H, W, 3] at another height and width, scaled as views are built."""
    if images.shape[2:4] == size:
        return images
    height, width = size
    made = np.empty((*images.shape[:2], height, width, 3), np.uint8)
    for lane, views in enumerate(images):
        for view, pixels in enumerate(views):
            frame = av.VideoFrame.from_ndarray(np.ascontiguousarray(pixels), format="rgb24")
            made[lane, view] = frame.reformat(width=width, height=height, interpolation=SCALING).to_ndarray()
    return made
