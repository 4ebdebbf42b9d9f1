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
from mainspring.robots.arm import (
    ACTION_NAMES,
    CONTROL_PERIOD_NS,
    CONTROL_RATE_HZ,
    ROBOT_NAME,
    STATE_NAMES,
    TASK_TEXT,
    Arm,
    Purpose,
    draw_start,
)

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


def record_episodes(folder: Path, *, count: int, seed: int, progress: Callable[[int], object]) -> tuple[Recorded, ...]:
    """Records episodes of the expert on training starts, and returns them in order.

    Args:
        folder: Where the files go, `episode_000000.mcap` and so on; made when missing.
        count: How many, 1 to `EPISODES_MAX`.
        progress: Called with the number of finished episodes, in order.

    Raises:
        InvalidInput: The count is out of range.
    """
    if not 1 <= count <= EPISODES_MAX:
        raise InvalidInput("record episodes", got=str(count), wanted=f"1 to {EPISODES_MAX}")
    spawn = multiprocessing.get_context("spawn")  # A fork would copy the locks of the caller's threads.
    recorded = []
    with ProcessPoolExecutor(min(PROCESSES, count), mp_context=spawn) as pool:
        for episode in pool.map(partial(record_episode, folder, seed), range(count), chunksize=EPISODES_A_TURN):
            recorded.append(episode)
            progress(len(recorded))
    return tuple(recorded)


def record_episode(folder: Path, seed: int, index: int) -> Recorded:
    """Records one episode of the expert and returns what came of it.

    Args:
        folder: Where the file goes.
        seed: Of the series of starts.
        index: Which start of the series.
    """
    arm = _arm()
    moment = arm.reset(draw_start(Purpose.TRAINING, seed=seed, index=index))
    path = folder / f"episode_{index:06d}.mcap"
    first_ns = index * EPISODE_GAP_NS
    solved_steps = 0
    step = 0
    writer = EpisodeWriter(
        path,
        task=TASK_TEXT,
        robot=ROBOT_NAME,
        rate_hz=CONTROL_RATE_HZ,
        state_names=STATE_NAMES,
        action_names=ACTION_NAMES,
    )
    with writer:
        for step in range(1, STEPS_MAX + 1):
            action = arm.expert_action()
            writer.write(first_ns + step * CONTROL_PERIOD_NS, moment.state, action)
            moment = arm.step(action)
            solved_steps += moment.solved
            if solved_steps > STEPS_AFTER_SUCCESS:
                break
        writer.finish(success=solved_steps > 0)
    return Recorded(path=path, steps=step, success=solved_steps > 0)


@cache
def _arm() -> Arm:
    """Returns this process's arm: making one takes longer than an episode."""
    return Arm()
