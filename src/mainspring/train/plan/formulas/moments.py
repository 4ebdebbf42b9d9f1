"""What each optimizer keeps of an array that is learned."""

from __future__ import annotations

import math

from mainspring.train.lora import in_hidden_layer
from mainspring.train.plan.formulas.sharing import FLOAT32, ArrayShare, DeviceShare
from mainspring.train.recipe import OptimizerKind

FACTORED_LEAST = 128  # Of the smaller of an array's two largest sides. Source: optax, `scale_by_factored_rms`.


def moment_bytes(share: DeviceShare, array: ArrayShare) -> int:
    """Returns the bytes that the optimizer keeps of an array on a device, besides some numbers for all."""
    kind = share.recipe.optimizer.kind
    match kind:
        case OptimizerKind.ADAMW:
            return 2 * share.size(array, FLOAT32)
        case OptimizerKind.LION | OptimizerKind.SGD:
            return share.size(array, FLOAT32)
        case OptimizerKind.MUON:
            return (1 if in_hidden_layer(array.path, len(array.shape)) else 2) * share.size(array, FLOAT32)
        case OptimizerKind.ADAFACTOR:
            return _factored_bytes(share, array)


def _factored_bytes(share: DeviceShare, array: ArrayShare) -> int:
    """Returns the bytes of means over rows and over columns, which every device holds whole, or of all squares."""
    sides = sorted(array.shape)
    if len(sides) < 2 or sides[-2] < FACTORED_LEAST:
        return share.size(array, FLOAT32)
    count = math.prod(array.shape)
    return FLOAT32 * (count // sides[-1] + count // sides[-2])
