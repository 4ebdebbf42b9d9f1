"""A policy drives the simulated arm in closed loop: it sees, sends a chunk, and sees again before the chunk is over."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from mainspring.domain.errors import InvalidInput
from mainspring.robots.arm import ACTION_DIM, STATE_DIM, Arm, ArmStart, FloatArray, Moment

LANES = 16  # Arms that live at once, and share a call of the policy: 300 MB, and calls are no longer what takes time.
STEPS_MAX = 150  # The expert needs 45 to 65 steps; a policy that needs twice that has lost its way.
Actor = Callable[[Mapping[str, FloatArray], int], FloatArray]
"""From `state` and `before`, that of a step earlier, each [lanes, S], and the number of the call to chunks of actions
[lanes, T, A]."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DriveResult:
    """How a policy did.

    Args:
        solved: Episodes that reached the goal within `STEPS_MAX` steps.
        steps: Control steps of all episodes.
    """

    starts: int
    solved: int
    steps: int

    @property
    def success_rate(self) -> float:
        """Returns the share of episodes solved, 0 to 1."""
        return self.solved / self.starts


class _Lane:
    """One arm and the episode it is in."""

    def __init__(self) -> None:
        self.arm = Arm()
        self.moment = Moment(state=np.zeros(STATE_DIM, np.float32), solved=False)
        self.before = self.moment.state
        self.steps = 0

    def begin(self, start: ArmStart) -> None:
        self.moment = self.arm.reset(start)
        self.before = self.moment.state  # It is at rest.
        self.steps = 0

    def follow(self, actions: FloatArray) -> bool:
        """Carries out actions; returns whether the episode is over."""
        for action in actions:
            self.before, self.moment = self.moment.state, self.arm.step(action)
            self.steps += 1
            if self.moment.solved or self.steps == STEPS_MAX:
                return True
        return False


def drive(actor: Actor, starts: Sequence[ArmStart], *, progress: Callable[[int], object]) -> DriveResult:
    """Returns how often a policy brings the puck to its goal. The first half of every chunk is carried out.

    Args:
        actor: The policy; called with `LANES` states, of which those of idle arms mean nothing.
        starts: Where the episodes start.
        progress: Called with the number of finished episodes, each time one finishes.

    Raises:
        InvalidInput: There are no starts, or the policy's chunks do not fit the arm.
    """
    if not starts:
        raise InvalidInput("drive the arm", got="no starts", wanted="at least one")
    waiting = deque(starts)
    lanes = [_Lane() for _ in range(min(LANES, len(starts)))]
    for lane in lanes:
        lane.begin(waiting.popleft())
    live = list(range(len(lanes)))
    calls = solved = steps = finished = 0
    seen = {name: np.zeros((LANES, STATE_DIM), np.float32) for name in ("state", "before")}
    while live:
        for index in live:
            seen["state"][index], seen["before"][index] = lanes[index].moment.state, lanes[index].before
        chunks = _checked(actor(seen, calls))
        calls += 1
        for index in tuple(live):
            lane = lanes[index]
            if lane.follow(chunks[index, : (chunks.shape[1] + 1) // 2]):
                finished += 1
                solved += lane.moment.solved
                steps += lane.steps
                progress(finished)
                if waiting:
                    lane.begin(waiting.popleft())
                else:
                    live.remove(index)
    return DriveResult(starts=len(starts), solved=solved, steps=steps)


def _checked(chunks: FloatArray) -> FloatArray:
    wanted = (LANES, ACTION_DIM)
    if chunks.ndim != 3 or (chunks.shape[0], chunks.shape[2]) != wanted or not chunks.shape[1]:
        raise InvalidInput(
            "drive the arm", got=f"chunks {chunks.shape}", wanted=f"{LANES} lanes of {ACTION_DIM} actions"
        )
    return chunks
