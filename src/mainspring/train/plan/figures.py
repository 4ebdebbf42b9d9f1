"""What one step of a recipe takes of each chip, whoever says so: the analytic model or the compiler."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum


class FiguresFrom(str, Enum):
    """Who says so: formulas, or the compiler of the chip."""

    ANALYTIC = "analytic"
    COMPILED = "compiled"


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryNeed:
    """Bytes that one step takes of a chip; arguments are the first four.

    Args:
        parameters: The state's weights, as the chip's share of them lies.
        optimizer: What the optimizer keeps beside them.
        ema: Mean weights, 0 where none are kept.
        batch: The chip's rows of a batch, and all small arguments.
        outputs: What the step returns.
        aliased: Of the outputs, what takes the place of a donated argument.
        temporaries: What lives only during the step, at its largest.
        code: The program itself.
    """

    parameters: int
    optimizer: int
    ema: int
    batch: int
    outputs: int
    aliased: int
    temporaries: int
    code: int = 0

    @property
    def arguments(self) -> int:
        """Returns the bytes of all arguments."""
        return self.parameters + self.optimizer + self.ema + self.batch

    @property
    def peak(self) -> int:
        """Returns the most that is held at once."""
        return self.arguments + self.outputs - self.aliased + self.temporaries + self.code


@dataclass(frozen=True, slots=True, kw_only=True)
class LargestTemporary:
    """An array that lives during the step alone.

    Args:
        source: The line of the model that makes it, "file.py:12", "" where nobody knows.
    """

    size: int
    shape: str
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StepFigures:
    """One step, for each chip.

    Args:
        said_by: Whose figures they are.
        memory: Its bytes.
        flops: Floating-point operations that are done, those that are done again among them.
        bytes_by_axis: Bytes that the chip sends over each axis of the mesh; axes without traffic are absent.
        memory_traffic: Bytes between the chip and its memory.
        largest: The largest temporaries, the first the largest; only the compiler knows them.
    """

    said_by: FiguresFrom
    memory: MemoryNeed
    flops: float
    bytes_by_axis: Mapping[str, float]
    memory_traffic: float
    largest: tuple[LargestTemporary, ...] = ()
