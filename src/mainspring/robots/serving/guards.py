"""What is never sent to a robot: a chunk of the wrong shape, a number that is none, an action out of its limits."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

import numpy as np

from mainspring.domain.errors import InvalidInput
from mainspring.robots.serving.policy import STEPS_MAX, FloatArray, PolicyFacts

LIMITS_BYTES_MAX = 1 << 20
DIMENSIONS_MAX = 1_024


@final
class UnsafeChunk(InvalidInput):
    """A chunk that must not reach a robot."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ActionLimits:
    """The least and the greatest value of each number of an action, in the robot's units.

    Args:
        low: Each.
        high: Each, not below `low`.
    """

    low: tuple[float, ...]
    high: tuple[float, ...]

    def __post_init__(self) -> None:
        """Checks both.

        Raises:
            InvalidInput: They are not as many, or some low is above its high.
        """
        if not 0 < len(self.low) == len(self.high) <= DIMENSIONS_MAX:
            got = f"{len(self.low)} low and {len(self.high)} high ones"
            raise InvalidInput("bound a robot's actions", got=got, wanted="as many of each")
        for index, (low, high) in enumerate(zip(self.low, self.high, strict=True)):
            if not low <= high:  # Numbers that are none, too.
                raise InvalidInput("bound a robot's actions", on=f"number {index}", got=f"{low} to {high}")


def read_limits(path: Path) -> ActionLimits:
    """Returns the limits in a file: JSON with `low` and `high`, each a list of numbers.

    Raises:
        InvalidInput: There is no such file, or it holds something else.
    """
    try:
        if path.stat().st_size > LIMITS_BYTES_MAX:
            raise InvalidInput("read a robot's limits", on=str(path), got="a large file", wanted="two lists of numbers")
        plain = json.loads(path.read_bytes())
    except (OSError, ValueError) as error:
        raise InvalidInput("read a robot's limits", on=str(path), got=str(error), wanted="JSON") from error
    lists = [_numbers(plain, name, path) for name in ("low", "high")]
    return ActionLimits(low=lists[0], high=lists[1])


def _numbers(plain: Any, name: str, path: Path) -> tuple[float, ...]:
    found = plain.get(name) if isinstance(plain, dict) else None
    if not isinstance(found, list) or not all(type(each) in (int, float) for each in found):
        raise InvalidInput(
            "read a robot's limits",
            on=str(path),
            got=f"{name} is {str(found)[:80]}",
            wanted='{"low": [...], "high": [...]}, a number for each dimension of an action',
        )
    return tuple(float(each) for each in found)


def check_chunks(chunks: object, count: int, facts: PolicyFacts) -> FloatArray:
    """Returns what a policy gave for some requests, if it has the shape that it must have.

    Raises:
        UnsafeChunk: It has another, or holds no numbers.
    """
    chunk_BTA = np.asarray(chunks)
    horizon = facts.horizon or (chunk_BTA.shape[1] if chunk_BTA.ndim == 3 else 0)
    dims = facts.action_dim or (chunk_BTA.shape[2] if chunk_BTA.ndim == 3 else 0)
    wanted = (count, horizon, dims)
    if chunk_BTA.shape != wanted or not 0 < horizon <= STEPS_MAX or not 0 < dims <= DIMENSIONS_MAX:
        raise UnsafeChunk("send a chunk", got=f"shape {chunk_BTA.shape}", wanted=f"{wanted}, none of it empty")
    if chunk_BTA.dtype.kind not in "fiu":
        raise UnsafeChunk("send a chunk", got=f"{chunk_BTA.dtype}", wanted="numbers")
    return chunk_BTA.astype(np.float32, copy=False)


def check_chunk(chunk_TA: FloatArray, limits: ActionLimits | None) -> None:
    """Checks the numbers of one chunk.

    Raises:
        UnsafeChunk: One is none, or out of the robot's limits.
    """
    if not np.isfinite(chunk_TA).all():
        step, dim = np.argwhere(~np.isfinite(chunk_TA))[0].tolist()
        raise UnsafeChunk("send a chunk", on=f"step {step}, number {dim}", got=str(chunk_TA[step, dim]))
    if limits is None:
        return
    if chunk_TA.shape[1] != len(limits.low):
        got = f"actions of {chunk_TA.shape[1]} numbers"
        raise UnsafeChunk("send a chunk", got=got, wanted=f"{len(limits.low)}, as the robot's limits have")
    low_A, high_A = np.asarray(limits.low, np.float32), np.asarray(limits.high, np.float32)
    beyond = (chunk_TA < low_A) | (chunk_TA > high_A)
    if beyond.any():
        step, dim = np.argwhere(beyond)[0].tolist()
        raise UnsafeChunk(
            "send a chunk",
            on=f"step {step}, number {dim}",
            got=f"{chunk_TA[step, dim]:g}",
            wanted=f"{limits.low[dim]:g} to {limits.high[dim]:g}, the robot's limits",
        )
