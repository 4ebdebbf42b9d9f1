"""Recordings as a robot makes them: the expert drives the arm, and every episode becomes one MCAP file.

Times are those of the arm's own clock, which starts at zero and advances by whole control periods: the same seed gives
the same recordings, and none claims to have been made at a time of day.
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path

from mainspring.data.recording import EpisodeWriter
from mainspring.domain.errors import InvalidInput
from mainspring.robots.arm import CONTROL_PERIOD_NS, GOAL_HEIGHTS_M, ROBOT_NAME
from mainspring.robots.environments.metaworld import MetaWorld, MetaWorldPlaces
from mainspring.robots.environments.port import EpisodeStart, Purpose

EPISODES_MAX = 1_000_000
PROCESSES = 2
EPISODES_A_TURN = 4  # Handed to a process at once: enough to hide the handing, and progress still moves.
STEPS_MAX = 200  # The expert needs 45 to 65 steps; one that needs three times that has failed.
STEPS_AFTER_SUCCESS = 10  # Shows the policy that it is to stay at the goal.
EPISODE_GAP_NS = 10_000_000_000  # Episodes of a series start ten seconds apart on the arm's clock.


@dataclass(frozen=True, slots=True, kw_only=True)
class Recorded:
    """One recorded episode."""

    path: Path
    steps: int
    success: bool


def record_episodes(
    folder: Path,
    *,
    count: int,
    seed: int,
    told: bool = False,
    heights_m: tuple[float, float] = GOAL_HEIGHTS_M,
    progress: Callable[[int], object],
) -> tuple[Recorded, ...]:
    """Records episodes of the expert on training starts, and returns them in order.

    Args:
        folder: Where the files go, `episode_000000.mcap` and so on; made when missing.
        count: How many, 1 to `EPISODES_MAX`.
        told: Whether words alone tell the goal: then it is each of `PLACES` in turn.
        heights_m: How high goals may be, where numbers tell them.
        progress: Called with the number of finished episodes, in order.

    Raises:
        InvalidInput: The count is out of range.
    """
    if not 1 <= count <= EPISODES_MAX:
        raise InvalidInput("record episodes", got=str(count), wanted=f"1 to {EPISODES_MAX}")
    spawn = multiprocessing.get_context("spawn")  # A fork would copy the locks of the caller's threads.
    recorded = []
    with ProcessPoolExecutor(min(PROCESSES, count), mp_context=spawn) as pool:
        one = partial(record_episode, folder, seed, told=told, heights_m=heights_m)
        for episode in pool.map(one, range(count), chunksize=EPISODES_A_TURN):
            recorded.append(episode)
            progress(len(recorded))
    return tuple(recorded)


def record_episode(
    folder: Path,
    seed: int,
    index: int,
    *,
    told: bool = False,
    heights_m: tuple[float, float] = GOAL_HEIGHTS_M,
) -> Recorded:
    """Records one episode of the expert and returns what came of it.

    Args:
        folder: Where the file goes.
        seed: Of the series of starts.
        index: Which start of the series.
        told: See `record_episodes`.
        heights_m: See `record_episodes`.
    """
    world = _places() if told else _world(heights_m)
    facts = world.facts()
    moment = world.reset(EpisodeStart(purpose=Purpose.TRAINING, seed=seed, index=index))
    path = folder / f"episode_{index:06d}.mcap"
    first_ns = index * EPISODE_GAP_NS
    solved_steps = 0
    step = 0
    writer = EpisodeWriter(
        path,
        task=moment.task,
        robot=ROBOT_NAME,
        rate_hz=facts.rate_hz,
        state_names=facts.state_names,
        action_names=facts.action_names,
    )
    with writer:
        for step in range(1, STEPS_MAX + 1):
            action = world.expert_action()
            writer.write(first_ns + step * CONTROL_PERIOD_NS, moment.state, action)
            moment = world.step(action)
            solved_steps += moment.solved
            if solved_steps > STEPS_AFTER_SUCCESS:
                break
        writer.finish(success=solved_steps > 0)
    return Recorded(path=path, steps=step, success=solved_steps > 0)


@cache
def _world(heights_m: tuple[float, float]) -> MetaWorld:
    """Returns this process's arm: making one takes longer than an episode."""
    return MetaWorld(heights_m=heights_m)


@cache
def _places() -> MetaWorldPlaces:
    return MetaWorldPlaces()
