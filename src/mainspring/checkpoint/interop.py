"""Array sources: what arrays are read from, by path, by region, never all of them at once, whatever the format.

An `ArraySource` is one checkpoint of any format. Exports are written from a source, an import makes one ours, and any
two can be compared. What a foreign format looks like is known to its own file alone: `orbax`, `safetensors`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from mainspring.checkpoint.format import dtype_named
from mainspring.domain import codec
from mainspring.domain.errors import DamagedData, InvalidInput, InvalidMessage, NotFound
from mainspring.domain.wire import Detail, Part
from mainspring.objects import aligned_buffer

REGION_BYTES = 32 << 20  # Large enough for a disk or store to run at its speed, small enough to hold a few of.
_BATCH_MAX = 1_000  # Small arrays that are read together.
_ALIGNMENT_BYTES = 64  # A cache line, as in the arena.
ARRAYS_MAX = 1_000_000  # Ten times the leaves of the largest published models.
PATH_LENGTH_MAX = 1_024  # Real trees nest some ten names of some twenty letters.
_PARTS_MAX = 10_000  # Real trees need two or three.
FACTS_KEY = "mainspring"  # What we leave in a foreign format's own metadata, so that coming back loses nothing.

# First segments that say what an array is for where nobody recorded it: the words of optax, Flax, Orbax, PyTorch and
# their users. Anything else is `Part.OTHER`, which only "weights alone" leaves out.
_WORDS = {
    **dict.fromkeys(("params", "weights", "model", "model_state_dict", "ema", "ema_params"), Part.WEIGHTS),
    **dict.fromkeys(("opt_state", "optimizer", "opt", "optimizer_state", "optimizer_state_dict"), Part.OPTIMIZER),
}

Progress = Callable[[int], None]  # Called with the bytes done since the last call.


@dataclass(frozen=True, slots=True, kw_only=True)
class ArraySpec:
    """One whole array of a checkpoint.

    Args:
        path: Its place in the tree, segments joined by "/".
        dtype: NumPy's or ml_dtypes' name of its type.
        shape: Its shape.
        part: What it is for.
    """

    path: str
    dtype: str
    shape: tuple[int, ...]
    part: Part = Part.OTHER

    @property
    def elements(self) -> int:
        """Returns how many there are."""
        return math.prod(self.shape)

    @property
    def size_bytes(self) -> int:
        """Returns the bytes of its elements."""
        return self.elements * dtype_named(self.dtype).itemsize


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What a checkpoint says of itself beside its arrays.

    Args:
        step: The step it was taken at, -1 when it does not say.
        state: The program's own small facts.
        origin: "<job>@<step>" of the checkpoint of ours it was made from, "" when there was none.
        parts: What arrays are for, by the beginnings of their paths.
    """

    step: int = -1
    state: Detail = field(default_factory=dict)
    origin: str = ""
    parts: Mapping[str, Part] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Region:
    """A run of an array's elements in C order.

    Args:
        start: Index of its first element, an entry an axis.
        shape: Its shape.
    """

    start: tuple[int, ...]
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Block:
    """A region of an array, with memory for its elements.

    Args:
        array: The array.
        region: As `regions` makes them.
        elements: Of the region's shape and the array's type, contiguous.
    """

    array: ArraySpec
    region: Region
    elements: NDArray[Any]

    @property
    def place(self) -> tuple[slice, ...]:
        """Returns the region as an index of the array."""
        return tuple(slice(low, low + size) for low, size in zip(self.region.start, self.region.shape, strict=True))


class ArraySource(Protocol):
    """One checkpoint of any format. Reading may be repeated, in any order, by one thread at a time."""

    @property
    def name(self) -> str:
        """What messages call it."""

    @property
    def facts(self) -> Facts:
        """What it says of itself."""

    @property
    def arrays(self) -> tuple[ArraySpec, ...]:
        """Every array, in order of path."""

    def read(self, blocks: Sequence[Block]) -> None:
        """Fills each block's elements; together, because many small arrays one by one would wait for each in turn.

        Raises:
            DamagedData: The bytes are missing, or not what they should be.
            Unavailable: The store or disk does not answer.
        """


def region_shape(array: ArraySpec, bytes_max: int = REGION_BYTES) -> tuple[int, ...]:
    """Returns the shape of the largest regions an array is read in: some whole trailing axes, and part of one.

    Args:
        array: The array.
        bytes_max: A region holds no more, unless one element does.
    """
    room = max(1, bytes_max // dtype_named(array.dtype).itemsize)
    shape: list[int] = []
    for size in reversed(array.shape):
        step = max(1, min(size, room))
        shape.insert(0, step)
        room //= step
    return tuple(shape)


def regions(array: ArraySpec, bytes_max: int = REGION_BYTES) -> Iterator[Region]:
    """Yields regions that cover an array, in C order; none for an array without elements.

    Args:
        array: The array.
        bytes_max: A region holds no more, unless one element does.
    """
    largest = region_shape(array, bytes_max)
    for index in np.ndindex(*[-(-size // step) for size, step in zip(array.shape, largest, strict=True)]):
        start = tuple(place * step for place, step in zip(index, largest, strict=True))
        shape = (min(step, size - low) for step, size, low in zip(largest, array.shape, start, strict=True))
        yield Region(start=start, shape=tuple(shape))


def block(array: ArraySpec, region: Region, room: NDArray[np.uint8]) -> Block:
    """Returns a block whose elements lie at the front of some memory.

    Args:
        array: The array.
        region: The region.
        room: The memory, at least as long as the region.
    """
    dtype = dtype_named(array.dtype)
    return Block(
        array=array,
        region=region,
        elements=room[: math.prod(region.shape) * dtype.itemsize].view(dtype).reshape(region.shape),
    )


def batches(
    source: ArraySource, arrays: Sequence[ArraySpec], *, like: Sequence[ArraySpec] | None = None
) -> Iterator[tuple[Block, ...]]:
    """Yields arrays' regions with their elements, some `REGION_BYTES` at a time; the next are read meanwhile.

    Args:
        source: What is read.
        arrays: Some of its arrays; their regions come in their order. Blocks hold until the next ones are asked for.
        like: Arrays of the same shapes, and of types at least as wide, whose regions are taken: so that two sources
            come in step.

    Raises:
        DamagedData: See `ArraySource.read`.
        Unavailable: See `ArraySource.read`.
    """
    rooms = [np.frombuffer(aligned_buffer(REGION_BYTES), dtype=np.uint8) for _ in range(2)]

    def read(number: int, some: list[tuple[ArraySpec, Region]]) -> tuple[Block, ...]:
        blocks: list[Block] = []
        used = 0
        for array, region in some:
            blocks.append(block(array, region, rooms[number % 2][used:]))
            used += _rounded(blocks[-1].elements.nbytes)
        source.read(blocks)
        return tuple(blocks)

    with ThreadPoolExecutor(1, "mainspring-read") as pool:
        ahead: Future[tuple[Block, ...]] | None = None
        for number, some in enumerate(_grouped(arrays, arrays if like is None else like)):
            ready = ahead.result() if ahead else ()
            ahead = pool.submit(read, number, some)  # Into the memory that came back with the batch before.
            if ready:
                yield ready
        if ahead:
            yield ahead.result()


def _grouped(arrays: Sequence[ArraySpec], like: Sequence[ArraySpec]) -> Iterator[list[tuple[ArraySpec, Region]]]:
    some: list[tuple[ArraySpec, Region]] = []
    used = 0
    for array, other in zip(arrays, like, strict=True):
        item_bytes = dtype_named(other.dtype).itemsize
        for region in regions(other):
            size_bytes = _rounded(math.prod(region.shape) * item_bytes)
            if some and (used + size_bytes > REGION_BYTES or len(some) == _BATCH_MAX):
                yield some
                some, used = [], 0
            some.append((array, region))
            used += size_bytes
    if some:
        yield some


def _rounded(size_bytes: int) -> int:
    """Returns a length after which elements of any type may begin."""
    return -(-size_bytes // _ALIGNMENT_BYTES) * _ALIGNMENT_BYTES


@dataclass(frozen=True, slots=True)
class Selected:
    """Some of a source's arrays, perhaps under other paths.

    Args:
        source: What they are of.
        chosen: The source's own array for each of ours, in order of path.
    """

    source: ArraySource
    chosen: Mapping[ArraySpec, ArraySpec]

    @property
    def name(self) -> str:
        """See `ArraySource.name`."""
        return self.source.name

    @property
    def facts(self) -> Facts:
        """See `ArraySource.facts`."""
        return self.source.facts

    @property
    def arrays(self) -> tuple[ArraySpec, ...]:
        """See `ArraySource.arrays`."""
        return tuple(self.chosen)

    def read(self, blocks: Sequence[Block]) -> None:
        """See `ArraySource.read`."""
        self.source.read([replace(each, array=self.chosen[each.array]) for each in blocks])


def weights_of(source: ArraySource) -> ArraySource:
    """Returns a source's weights alone.

    Args:
        source: A checkpoint.

    Raises:
        NotFound: It holds none that are known as such.
    """
    chosen = {array: array for array in source.arrays if array.part is Part.WEIGHTS}
    if not chosen:
        firsts = sorted({array.path.partition("/")[0] for array in source.arrays})
        raise NotFound("find weights", on=source.name, got=", ".join(firsts)[:200], wanted="arrays known as weights")
    return Selected(source, chosen)


def without_prefix(source: ArraySource, prefix: str) -> ArraySource:
    """Returns the arrays below a path, named from there.

    Args:
        source: A checkpoint.
        prefix: Path of a subtree, "" for the whole.

    Raises:
        NotFound: No array lies there.
    """
    inside = prefix.strip("/") + "/" if prefix.strip("/") else ""
    chosen = {
        replace(array, path=array.path.removeprefix(inside)): array
        for array in source.arrays
        if array.path.startswith(inside)
    }
    if not chosen:
        firsts = sorted({array.path.partition("/")[0] for array in source.arrays})
        raise NotFound("find arrays", on=f"{prefix} of {source.name}", got=", ".join(firsts)[:200])
    return Selected(source, chosen)


def with_prefix(source: ArraySource, prefix: str) -> ArraySource:
    """Returns a source's arrays below another path, which then says what they are for unless the source did.

    Args:
        source: A checkpoint.
        prefix: The path, "" for none.
    """
    above = prefix.strip("/") + "/" if prefix.strip("/") else ""
    chosen: dict[ArraySpec, ArraySpec] = {}
    for array in source.arrays:
        path = checked_path(above + array.path, source.name)
        chosen[replace(array, path=path, part=part_of(path, {}) if array.part is Part.OTHER else array.part)] = array
    return Selected(source, chosen)


def part_of(path: str, parts: Mapping[str, Part]) -> Part:
    """Returns what an array is for: as was recorded, else as the first segment of its path says.

    Args:
        path: The array's.
        parts: What was recorded, by beginnings of paths.
    """
    segments = path.split("/")
    for count in range(len(segments), -1, -1):
        part = parts.get("/".join(segments[:count]))
        if part is not None:
            return part
    return _WORDS.get(segments[0], Part.OTHER)


def parts_of(arrays: tuple[ArraySpec, ...]) -> dict[str, Part]:
    """Returns what arrays are for, by the shortest beginnings of their paths that tell it.

    Args:
        arrays: Every array.
    """
    below: dict[str, set[Part]] = {}
    for array in arrays:
        segments = array.path.split("/")
        for count in range(len(segments) + 1):
            below.setdefault("/".join(segments[:count]), set()).add(array.part)
    told: dict[str, Part] = {}
    for array in arrays:
        segments = array.path.split("/")
        beginnings = ["/".join(segments[:count]) for count in range(len(segments) + 1)]
        told[next((each for each in beginnings if len(below[each]) == 1), array.path)] = array.part
    return told


def noted(source: ArraySource) -> Any:
    """Returns what we leave in a foreign format's metadata, as JSON's own types.

    Args:
        source: What is exported.
    """
    parts = parts_of(source.arrays)
    return codec.to_plain(replace(source.facts, parts=parts if len(parts) <= _PARTS_MAX else {}))


def facts_from(plain: object, on: str) -> Facts:
    """Returns what `noted` left, or nothing where nobody left anything.

    Args:
        plain: JSON's own types, None for nothing.
        on: Where it was, for messages.

    Raises:
        DamagedData: It is not what we write.
    """
    if plain is None:
        return Facts()
    try:
        return codec.from_plain(Facts, plain)
    except InvalidMessage as error:
        raise DamagedData("read what an export of ours noted", on=on, got=str(error)) from error


def checked_path(path: str, on: str) -> str:
    """Returns a path that messages, tables and files can carry.

    Args:
        path: What a foreign checkpoint calls an array.
        on: The checkpoint, for messages.

    Raises:
        InvalidInput: It is empty, too long, or not printable.
    """
    if not path or len(path) > PATH_LENGTH_MAX or not path.isprintable():
        raise InvalidInput(
            "accept an array's name",
            on=on,
            got=ascii(path[:200]),
            wanted=f"1 to {PATH_LENGTH_MAX} printable characters",
        )
    return path


def checked_arrays(arrays: list[ArraySpec], on: str) -> tuple[ArraySpec, ...]:
    """Returns a checkpoint's arrays in order of path.

    Args:
        arrays: All it holds.
        on: The checkpoint, for messages.

    Raises:
        InvalidInput: There are none, too many, or two of the same path.
    """
    if not 0 < len(arrays) <= ARRAYS_MAX:
        raise InvalidInput("read a checkpoint", on=on, got=f"{len(arrays)} arrays", wanted=f"1 to {ARRAYS_MAX}")
    paths: set[str] = set()
    for array in arrays:
        if array.path in paths:
            raise InvalidInput("read a checkpoint", on=on, got=f"{array.path!r} twice", wanted="paths that differ")
        paths.add(array.path)
    return tuple(sorted(arrays, key=lambda array: array.path))
