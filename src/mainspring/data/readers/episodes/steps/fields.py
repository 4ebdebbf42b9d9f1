"""Opened recordings of any format: fields of one value a step, and what is said of the whole.

The formats' readers say what lies in their files; `choosing.py` decides what it becomes.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from mainspring.domain.errors import DamagedData, InvalidInput

DIMS_MAX = 4_096  # Numbers a step; a longer vector is a picture, a cloud or a map.
FIELDS_MAX = 10_000
VALUES_BYTES_MAX = 2 << 30  # Of one recording's numbers: 8 hours of 1,000 numbers at 100 Hz.
PIECE_BYTES_MAX = 1 << 30  # Of what a format reads at once: a chunk, a record.
FACTS_MAX, FACT_CHARS_MAX = 256, 16_384  # A simulator's settings take 2,000 characters, its model of the world 100,000.
_PICTURE_SIDE_MIN = 8  # A vector of 3 x 3 or 4 x 4 numbers is a pose.
_FLAT_SIDE_MIN = 16  # Of pictures without channels, whose shape says less.
_CHANNELS = (1, 3, 4)
_FLATTENED_DEPTH_MAX = 8
_WHOLE_MAX = 1 << 53  # Doubles hold every whole number up to it.

Array: TypeAlias = NDArray[Any]


class Kind(str, Enum):
    """What a field holds at each step."""

    NUMBERS = "numbers"
    PIXELS = "pixels"  # Of a picture.
    CODED = "coded"  # A picture as JPEG or PNG.
    TEXT = "text"


@dataclass(frozen=True, slots=True, kw_only=True)
class StepField:
    """One thing that a recording holds at every step.

    Args:
        name: Its path inside the recording, parts joined by "/".
        kind: What it holds.
        steps: How many.
        shape: Of one step's value; () for one number, and for what is no array.
        dtype: NumPy's name of the type of its values, for messages too.
        names: One for each number of a step, where the source says them.
    """

    name: str
    kind: Kind
    steps: int
    shape: tuple[int, ...] = ()
    dtype: str = ""
    names: tuple[str, ...] = ()

    @property
    def dims(self) -> int:
        """Returns how many numbers a step has."""
        return int(np.prod(self.shape, dtype=np.int64))

    def __str__(self) -> str:
        """Returns one clause for people."""
        shape = ",".join(map(str, (self.steps, *self.shape)))
        return f"{self.name} {self.dtype}[{shape}]"


class Opened(Protocol):
    """One recording, open."""

    @property
    def fields(self) -> tuple[StepField, ...]:
        """Returns what it holds at every step, in name order."""

    @property
    def facts(self) -> Mapping[str, str]:
        """Returns what it says of the whole of itself, path to text."""

    @property
    def passed_over(self) -> Sequence[str]:
        """Returns what lies in it and is not read, a clause each; complete once all that is wanted was read."""

    def numbers(self, field: StepField) -> Array:
        """Returns a field's numbers, [T, ...] in the field's own type.

        Args:
            field: Of numbers.

        Raises:
            DamagedData: Its bytes do not hold together.
        """

    def pictures(self, field: StepField) -> Iterator[Array | bytes]:
        """Yields a field's pictures in order: pixels, or the bytes of JPEG or PNG.

        Args:
            field: Of pixels or coded pictures.

        Raises:
            DamagedData: Its bytes do not hold together.
        """

    def texts(self, field: StepField) -> Iterator[str]:
        """Yields a field's texts in order.

        Args:
            field: Of text.

        Raises:
            DamagedData: Its bytes do not hold together.
        """


def kind_of(dtype: np.dtype[Any], shape: tuple[int, ...]) -> Kind | None:
    """Returns what arrays of a type and shape hold; None for what is neither numbers nor pictures.

    Args:
        dtype: Of the values.
        shape: Of one step's value.
    """
    if dtype.kind not in "biuf" or (dtype.kind == "f" and dtype.itemsize > 8):
        return None
    if is_picture(dtype, shape):
        return Kind.PIXELS
    return Kind.NUMBERS if 0 < int(np.prod(shape, dtype=np.float64)) <= DIMS_MAX else None


def is_picture(dtype: np.dtype[Any], shape: tuple[int, ...]) -> bool:
    """Returns whether a step's value is a picture, by its shape: with channels last or first, or none.

    Args:
        dtype: Of the values.
        shape: Of one step's value.
    """
    if len(shape) == 3:
        last = shape[2] in _CHANNELS and min(shape[:2]) >= _PICTURE_SIDE_MIN
        return last or (shape[0] in _CHANNELS and min(shape[1:]) >= _PICTURE_SIDE_MIN)
    if len(shape) != 2 or min(shape) < _FLAT_SIDE_MIN:
        return False
    return (dtype.kind == "u" and dtype.itemsize <= 2) or shape[0] * shape[1] > DIMS_MAX


def exact_pixels(image: Array, *, on: str) -> Array:
    """Returns a picture's pixels in a form that is kept without loss: [H, W, channels] of 8 bits, or one of 16.

    Args:
        image: [H, W], or with channels last or first; of any type.
        on: The camera.

    Raises:
        InvalidInput: Its values are no whole numbers, or too large.
    """
    if image.ndim == 3 and image.shape[2] not in _CHANNELS:
        image = np.moveaxis(image, 0, 2)
    single = image.ndim == 2 or image.shape[2] == 1
    if image.dtype == np.uint8 or (single and image.dtype == np.uint16):
        return image
    top, kind = (65_535, np.uint16) if single else (255, np.uint8)
    with np.errstate(invalid="ignore"):
        kept = np.clip(image, 0, top).astype(kind)
    if not np.array_equal(kept, image):
        raise InvalidInput(
            "keep a picture without loss",
            on=on,
            got=f"{image.dtype} values such as {image[kept != image].flat[0]:.6g}",
            wanted=f"whole numbers from 0 to {top}",
            next_step=f"--without-camera {on} leaves it out",
        )
    return kept


def as_doubles(values: Array, *, on: str) -> NDArray[np.float64]:
    """Returns a field's numbers as [T, D] doubles, each of exactly the value it had.

    Args:
        values: [T, ...].
        on: The field.

    Raises:
        InvalidInput: There are whole numbers that doubles do not hold.
    """
    flat = values.reshape(len(values), -1)
    if flat.dtype.kind in "iu" and flat.dtype.itemsize == 8 and flat.size:
        largest = max(abs(int(flat.min())), abs(int(flat.max())))
        if largest > _WHOLE_MAX:
            raise InvalidInput("keep a column", on=on, got=f"a whole number of {largest}", wanted="at most 2^53")
    return np.ascontiguousarray(flat, np.float64)


def checked_room(fields: list[StepField], *, on: str) -> None:
    """Checks that numbers may be taken into memory.

    Args:
        fields: All that will be.
        on: The recording.

    Raises:
        DamagedData: They would take more than `VALUES_BYTES_MAX`.
    """
    size_bytes = sum(field.steps * field.dims * 8 for field in fields)
    if size_bytes > VALUES_BYTES_MAX:
        raise DamagedData("read a recording", on=on, got=f"{size_bytes:,} bytes of numbers", wanted="at most 2 GiB")


def flattened(facts: Mapping[str, str]) -> dict[str, str]:
    """Returns facts and what is inside those that are JSON objects, path to text.

    Args:
        facts: Path to text.
    """
    found: dict[str, str] = {}
    for name, text in facts.items():
        found[name] = text
        if text[:1] in ("{", '"'):
            try:
                plain = json.loads(text)
            except (ValueError, RecursionError):
                continue
            _flatten(name, plain, found, _FLATTENED_DEPTH_MAX)
    return found


def _flatten(path: str, plain: object, found: dict[str, str], depth: int) -> None:
    if len(found) >= FIELDS_MAX or not depth:
        return
    if isinstance(plain, dict):
        for key, value in plain.items():
            _flatten(f"{path}/{key}", value, found, depth - 1)
    elif isinstance(plain, list) and all(isinstance(value, str) for value in plain):
        found[path] = ", ".join(plain)
    elif isinstance(plain, (str, int, float)):
        found[path] = plain if isinstance(plain, str) else json.dumps(plain)
