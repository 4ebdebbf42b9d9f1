"""What of a run lies on one device, by the rules alone: its share of the state, of a batch and of a block."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property

from mainspring.domain.errors import InvalidInput
from mainspring.train.lora import thin_shapes
from mainspring.train.models.shapes import (
    DATA,
    REPLICA,
    SEQUENCE,
    TENSOR,
    FloatKind,
    LanguageRecipe,
    Signature,
    VlaKind,
    VlaRecipe,
)
from mainspring.train.plan.chips import ChipFigures
from mainspring.train.plan.formulas.anatomy import Anatomy, Shape, Stack, Stream, anatomy_of
from mainspring.train.plan.formulas.tiles import array_bytes, token_bytes
from mainspring.train.recipe import Recipe
from mainspring.train.state.splitting import axes_of, sizes_of

FLOAT32 = 4
ITEMSIZES = {FloatKind.FLOAT32: FLOAT32, FloatKind.BFLOAT16: 2}


@dataclass(frozen=True, kw_only=True)
class ArrayShare:
    """An array of the weights, and what of it lies on one device.

    Args:
        shape: Of the whole array.
        mine: Of the device's share.
        over: Axes of the mesh that split it.
        learned: Whether it has a gradient and moments.
        itemsize: Bytes of a number as it is kept.
    """

    path: str
    shape: Shape
    mine: Shape
    over: tuple[str, ...]
    learned: bool
    itemsize: int

    @property
    def count(self) -> int:
        """Returns how many numbers of it lie on the device."""
        return math.prod(self.mine)


@dataclass(frozen=True, kw_only=True)
class DeviceShare:
    """One device's part of a run; the first device's, but all have the same."""

    recipe: Recipe
    signature: Signature
    chip: ChipFigures
    devices: int

    def __post_init__(self) -> None:
        """Checks that the devices can share the batch.

        Raises:
            InvalidInput: They cannot, or the mesh has other devices, or does not divide an array.
        """
        parts = self.rows_shared * self.recipe.accumulate
        if self.recipe.batch_size % parts:
            raise InvalidInput(
                "share a batch",
                on=self.recipe.name,
                got=f"{self.recipe.batch_size} chunks for {parts} parts on {self.devices} devices",
                wanted="a multiple",
                next_step="change batch_size, accumulate or mesh",
            )

    @cached_property
    def anatomy(self) -> Anatomy:
        """Returns what the policy is made of."""
        return anatomy_of(self.recipe.policy, self.signature)

    @cached_property
    def sizes(self) -> dict[str, int]:
        """Returns the sizes of the mesh's axes."""
        return sizes_of(self.recipe.mesh, self.devices)

    @property
    def rows_shared(self) -> int:
        """Returns in how many parts devices share a batch."""
        return self.sizes[REPLICA] * self.sizes[DATA]

    @property
    def rows(self) -> int:
        """Returns the device's rows of a batch."""
        return self.recipe.batch_size // self.rows_shared

    @property
    def rows_at_once(self) -> int:
        """Returns the rows that it works on at one time."""
        return self.rows // self.recipe.accumulate

    @property
    def whole(self) -> bool:
        """Returns whether each device holds the whole state."""
        return self.sizes[REPLICA] == self.devices

    @property
    def itemsize(self) -> int:
        """Returns the bytes of a number that is computed."""
        return ITEMSIZES[self.anatomy.compute.numbers]

    @property
    def kept_itemsize(self) -> int:
        """Returns the bytes of a number that a product will take: a TPU's own take bfloat16, whatever is computed."""
        return ITEMSIZES[FloatKind.BFLOAT16] if self.chip.is_tpu else self.itemsize

    @cached_property
    def arrays(self) -> tuple[ArrayShare, ...]:
        """Returns all arrays of the weights, and the adapters beside them."""
        lora, found = self.recipe.lora, list[ArrayShare]()
        for path, shape in self.anatomy.weights.items():
            learned = not _named(self.recipe.frozen, path) and (lora is None or _named(lora.whole, path))
            kept = FLOAT32 if learned or lora is None else ITEMSIZES[lora.numbers]
            found.append(self._array(path, shape, learned=learned, itemsize=kept))
            if lora is not None and (adapter := lora.adapter_of(path)) is not None:
                thin = thin_shapes(path, shape, adapter.rank)
                found += [
                    self._array(f"{path}/{end}", each, learned=True, itemsize=FLOAT32)
                    for end, each in (("a", thin.a), ("b", thin.b))
                ]
        return tuple(found)

    def _array(self, path: str, shape: Shape, *, learned: bool, itemsize: int) -> ArrayShare:
        axes = axes_of(path, shape, itemsize, self.sizes, self.recipe.mesh.whole_bytes_max)
        mine = tuple(size // (self.sizes[axis] if axis else 1) for size, axis in zip(shape, axes, strict=True))
        over = tuple(axis for axis in axes if axis)
        return ArrayShare(path=path, shape=shape, mine=mine, over=over, learned=learned, itemsize=itemsize)

    def of_stack(self, stack: Stack) -> Iterator[ArrayShare]:
        """Yields the arrays of a stack's blocks."""
        return (array for array in self.arrays if array.path.startswith(stack.where))

    def of_none(self) -> Iterator[ArrayShare]:
        """Yields the arrays that no stack holds."""
        return (array for array in self.arrays if not self.is_stacked(array))

    def is_stacked(self, array: ArrayShare) -> bool:
        """Returns whether a stack's blocks hold an array."""
        return array.path.startswith(self._stacked)

    @cached_property
    def _stacked(self) -> tuple[str, ...]:
        return tuple(where for stack in self.anatomy.stacks for where in stack.where)

    def size(self, array: ArrayShare, itemsize: int) -> int:
        """Returns the bytes of the device's share of an array in numbers of a size."""
        return array_bytes(array.mine, itemsize, tiled=self.chip.is_tpu)

    def batch_bytes(self) -> int:
        """Returns the bytes of the device's rows of a batch, as they arrive."""
        policy, rows, tiled = self.recipe.policy, self.rows, self.chip.is_tpu
        if isinstance(policy, LanguageRecipe):
            return sum(array_bytes((rows, policy.horizon), itemsize, tiled=tiled) for itemsize in (4, 1))
        state, action = self.signature.state_dim, self.signature.action_dim
        shapes = [((rows, state), 4), ((rows, policy.horizon, action), 4), ((rows, policy.horizon), 1)]
        if policy.motion:
            shapes.append(((rows, state), 4))
        if isinstance(policy, VlaRecipe) and policy.kind is VlaKind.PI05:
            shapes += [((rows, policy.prompt_length), 4), ((rows, policy.prompt_length), 1)]
        return sum(array_bytes(shape, itemsize, tiled=tiled) for shape, itemsize in shapes) + self.image_bytes(1)

    def image_bytes(self, itemsize: int, rows: int | None = None) -> int:
        """Returns the bytes of the device's images in numbers of a size.

        Args:
            rows: How many; all of the device's when left out.
        """
        pixels = self.anatomy.pixels
        if pixels is None:
            return 0
        count = self.rows if rows is None else rows
        return array_bytes((count, pixels.views, 3, pixels.height, pixels.width), itemsize, tiled=self.chip.is_tpu)

    def tokens(self, stack: Stack, stream: Stream) -> int:
        """Returns the device's tokens of a stream, in what it works on at one time."""
        return self.rows_at_once * stack.copies * -(-stream.tokens // self.sizes[SEQUENCE])

    def features(self, size: int) -> int:
        """Returns the device's part of heads, or of hidden features."""
        return size // self.sizes[TENSOR] if size >= self.sizes[TENSOR] else size

    def token_bytes(self, count: float, features: int, itemsize: int | None = None) -> float:
        """Returns the bytes of tokens that are computed.

        Args:
            itemsize: Bytes of a number; as the recipe computes when left out.
        """
        return token_bytes(count, features, itemsize or self.itemsize, tiled=self.chip.is_tpu)


def _named(patterns: Iterable[str], path: str) -> bool:
    return any(re.fullmatch(pattern, path) for pattern in patterns)
