"""The port of a policy that is served: some observations in, as many chunks of actions out.

Legend of shape suffixes:
    B batch   T step in the chunk   A action
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from mainspring.domain.errors import InvalidInput
from mainspring.robots.serving.wire import OURS

FloatArray = NDArray[np.float32]
STEPS_MAX = 1_024  # Of a chunk: as long as a recipe's may be.
SEED_MAX = 2**31 - 1


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Guide:
    """What is left of the chunk that a robot carries out while it asks for the next: real-time chunking.

    Args:
        left_over_TA: `prev_chunk_left_over`: what the robot would do from this observation on, in its own units.
        delay: `inference_delay`: so many steps of it are done before the new chunk comes, and are to stay as they are.
        horizon: `execution_horizon`: from that step on the new chunk is free; in between the old one counts less and
            less.
    """

    left_over_TA: FloatArray
    delay: int
    horizon: int


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Asked:
    """One request as a policy sees it. The same one gives the same chunk.

    Args:
        observation: What the robot sees, by name; without what is ours.
        seed: Of all noise that its chunk is drawn from.
        guide: None to draw a chunk that follows no other.
    """

    observation: Mapping[str, Any]
    seed: int
    guide: Guide | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyFacts:
    """What there is to know of a policy before it is asked.

    Args:
        name: Which policy with which weights, for people and logs.
        guided: Whether it heeds a `Guide`.
        batch_max: Observations that it takes at once.
        horizon: Actions in a chunk, 0 where only its chunks say so.
        action_dim: Numbers in an action, 0 where only its chunks say so.
        metadata: What else a robot is told when it connects.
        examples: Observations such as it will be asked for, each of a shape of its own, to warm up with.
    """

    name: str
    guided: bool = False
    batch_max: int = 1
    horizon: int = 0
    action_dim: int = 0
    metadata: Mapping[str, Any] = field(default_factory=dict)
    examples: tuple[Mapping[str, Any], ...] = ()


class ServedPolicy(Protocol):
    """A policy. Called from one thread at a time, never from the one that speaks to robots."""

    @property
    def facts(self) -> PolicyFacts:
        """Returns what never changes while it is served."""

    def infer(self, asked: Sequence[Asked]) -> FloatArray:
        """Returns a chunk for each request, [B,T,A] in the robot's units. Pure; blocks while it computes.

        Args:
            asked: 1 to `batch_max` requests of one shape, all with a guide or all without.

        Raises:
            InvalidInput: An observation is not what the policy sees.
        """


def warm(policy: ServedPolicy) -> None:
    """Lets a policy compile and allocate what it needs, for every size of batch and with and without a guide.

    Raises:
        InvalidInput: It does not take its own examples.
    """
    facts = policy.facts
    sizes = sorted({min(1 << power, facts.batch_max) for power in range(facts.batch_max.bit_length() + 1)})
    guides: list[Guide | None] = [None]
    if facts.guided:
        nothing = np.zeros((facts.horizon, facts.action_dim), np.float32)
        guides.append(Guide(left_over_TA=nothing, delay=1, horizon=facts.horizon))
    for example, size, guide in product(facts.examples, sizes, guides):
        policy.infer([Asked(observation=example, seed=0, guide=guide)] * size)


def asked_from(message: Any, *, seed: int) -> Asked:
    """Returns a request from what a robot sent.

    Args:
        seed: Where the robot names none.

    Raises:
        InvalidInput: It is no observation, or something of ours in it is not what it should be.
    """
    if not isinstance(message, dict) or not all(isinstance(name, str) for name in message):
        raise InvalidInput("read an observation", got=type(message).__name__, wanted="a map of named values")
    ours = message.get(OURS, {})
    if not isinstance(ours, dict):
        raise InvalidInput("read an observation", on=OURS, got=type(ours).__name__, wanted="a map")
    observation = {name: value for name, value in message.items() if name != OURS}
    seed = whole(ours, "seed", SEED_MAX, seed)
    return Asked(observation=observation, seed=seed, guide=_guide(ours))


def _guide(ours: Mapping[str, Any]) -> Guide | None:
    left_over = ours.get("prev_chunk_left_over")
    if left_over is None:
        return None
    array = left_over if isinstance(left_over, np.ndarray) else np.zeros(())
    if array.ndim != 2 or not 1 <= len(array) <= STEPS_MAX or array.dtype.kind not in "fiu":
        raise InvalidInput(
            "read an observation", on="prev_chunk_left_over", got=str(array.shape), wanted="an array of actions [T,A]"
        )
    if not np.isfinite(array).all():
        raise InvalidInput("read an observation", on="prev_chunk_left_over", got="a number that is not finite")
    delay = whole(ours, "inference_delay", STEPS_MAX, 0)
    horizon = whole(ours, "execution_horizon", STEPS_MAX, len(array))
    return Guide(left_over_TA=array.astype(np.float32), delay=delay, horizon=min(horizon, len(array)))


def whole(ours: Mapping[str, Any], name: str, most: int, otherwise: int) -> int:
    """Returns a whole number that a robot sent, or what stands for none.

    Raises:
        InvalidInput: It is no whole number, or out of its range.
    """
    value = ours.get(name)
    if value is None:
        return otherwise
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or not 0 <= value <= most:
        raise InvalidInput("read an observation", on=name, got=str(value)[:80], wanted=f"a whole number, 0 to {most}")
    return int(value)


def shape_of(observation: Mapping[str, Any]) -> tuple[Any, ...]:
    """Returns what must be equal for two observations to be looked at together: names, types and shapes."""
    return tuple(sorted((str(name), _shape(value)) for name, value in observation.items()))


def _shape(value: Any) -> tuple[Any, ...]:
    if isinstance(value, np.ndarray):
        return (value.dtype.str, *map(str, value.shape))
    if isinstance(value, Mapping):
        return ("map", *map(str, shape_of(value)))
    return (type(value).__name__,)
