"""A policy of states alone drives the simulated arm in closed loop: what the main job is judged by."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from mainspring.robots.environments.metaworld import MetaWorld
from mainspring.robots.environments.port import EpisodeStart, FloatArray
from mainspring.robots.evaluation.playing import play

ArmActor = Callable[[Mapping[str, FloatArray], int], FloatArray]
"""From `state` and `before`, that of a step earlier, each [lanes, S], and the number of the call to chunks of actions
[lanes, T, A]."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DriveResult:
    """How a policy did.

    Args:
        solved: Episodes that reached the goal in time.
        steps: Control steps of all episodes.
    """

    starts: int
    solved: int
    steps: int

    @property
    def success_rate(self) -> float:
        """Returns the share of episodes solved, 0 to 1."""
        return self.solved / self.starts


def drive(actor: ArmActor, starts: Sequence[EpisodeStart], *, progress: Callable[[int], object]) -> DriveResult:
    """Returns how often a policy brings the puck to its goal.

    Args:
        actor: The policy.
        starts: Where the episodes start.
        progress: Called with the number of finished episodes, each time one finishes.

    Raises:
        InvalidInput: There are no starts, or the policy's chunks do not fit the arm.
    """
    played = play(
        MetaWorld,
        lambda seen, call: actor({"state": seen.state, "before": seen.before}, call),
        starts,
        films=0,
        progress=progress,
    )
    solved, steps = sum(each.solved for each in played), sum(each.steps for each in played)
    return DriveResult(starts=len(played), solved=solved, steps=steps)
