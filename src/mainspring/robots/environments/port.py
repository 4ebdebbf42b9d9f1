"""The port that every environment is behind: what whoever evaluates a policy may rely on."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Protocol

import numpy as np
import numpy.typing as npt

from mainspring.domain.errors import InvalidInput

FloatArray = npt.NDArray[np.float32]
Pixels = npt.NDArray[np.uint8]

STEPS_MAX = 100_000  # Of one episode: twenty minutes at 80 Hz, an hour and more of slower arms.
RATE_HZ_MAX = 10_000.0


class Purpose(str, Enum):
    """What a start is for. Each purpose draws from its own stream, so that no start serves two."""

    TRAINING = "training"
    EVALUATION = "evaluation"


@dataclass(frozen=True, slots=True, kw_only=True)
class EpisodeStart:
    """Where an episode starts, by number: the same start is the same place whenever and by whomever it is reset to.

    Args:
        seed: Of the whole series, not negative.
        index: Which one of it, not negative.
        purpose: Which stream it is drawn from.
    """

    seed: int
    index: int
    purpose: Purpose = Purpose.EVALUATION

    def __post_init__(self) -> None:
        """Checks the numbers.

        Raises:
            InvalidInput: One is negative.
        """
        if self.seed < 0 or self.index < 0:
            got = f"seed {self.seed}, index {self.index}"
            raise InvalidInput("draw a start", got=got, wanted="numbers of at least 0")

    def generator(self) -> np.random.Generator:
        """Returns the dice that this start, and no other, is drawn with."""
        return np.random.default_rng([self.seed, list(Purpose).index(self.purpose), self.index])


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """What a robot sees, and whether its task is done.

    Args:
        state: [S].
        task: What it is to do, in words.
        images: [H, W, 3] of each camera, in their order.
        score: How much of the task is done, 0 to 1. An environment tells it after every step, or never: None.
    """

    state: FloatArray
    solved: bool
    task: str = ""
    images: tuple[Pixels, ...] = ()
    score: float | None = None

    def __post_init__(self) -> None:
        """Checks the score.

        Raises:
            InvalidInput: It is out of its range, or no number.
        """
        if self.score is not None and not 0.0 <= self.score <= 1.0:
            raise InvalidInput("take a score of an environment", got=f"{self.score:g}", wanted="0 to 1, or None")


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvironmentFacts:
    """What holds for every episode.

    Args:
        name: Shown to people, and kept with results.
        state_names: One for each number of the state.
        action_names: One for each number of an action.
        cameras: Names of the cameras whose pictures a policy sees.
        rate_hz: Control steps a second, of the robot's own time.
        steps_max: Steps after which an episode that is not solved has failed.
    """

    name: str
    state_names: tuple[str, ...]
    action_names: tuple[str, ...]
    rate_hz: float
    steps_max: int
    cameras: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Checks every field.

        Raises:
            InvalidInput: A field is out of its range.
        """
        for field, value, most in (("steps_max", self.steps_max, STEPS_MAX), ("rate_hz", self.rate_hz, RATE_HZ_MAX)):
            if not 0 < value <= most:
                raise InvalidInput(
                    "take an environment", on=f"{self.name}, {field}", got=str(value), wanted=f"up to {most}"
                )
        if not self.action_names:
            raise InvalidInput("take an environment", on=self.name, got="no actions", wanted="at least one number")


class Environment(Protocol):
    """One robot in one world. Used by one thread; several live in one process.

    Two of one kind, reset to the same start and given the same actions, see the same.
    """

    def facts(self) -> EnvironmentFacts:
        """Returns what holds for every episode; always the same."""

    def reset(self, start: EpisodeStart) -> Moment:
        """Begins an episode at a start; what happened before leaves no trace. It is not solved there."""

    def step(self, action: FloatArray) -> Moment:
        """Does one control step and returns what is seen after it.

        Args:
            action: [A], finite; the environment clips it to what its robot can do.
        """

    def draw(self) -> Pixels:
        """Returns a picture of how it looks now, [H, W, 3], for people; of even height and width."""
