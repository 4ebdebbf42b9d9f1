"""How arrays are split over the axes of a mesh: rules that look at an array's path and shape alone, without JAX.

Source: Shoeybi et al., "Megatron-LM", 2019 (tensor); openpi, `sharding.py` (which axis `data` splits).
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence

from mainspring.domain.errors import InvalidInput
from mainspring.train.models.shapes import DATA, REPLICA, SEQUENCE, TENSOR
from mainspring.train.recipe import MeshRecipe

TENSOR_AXES = (  # Of arrays whose path ends so: the axis that `tensor` splits, from the last.
    (r"(^|/)(query|key|value)(/kernel|/bias)?(/b)?", -2),  # [.., D, N, H], [.., N, H]; an adapter's [.., R, N, H]
    (r"(^|/)out(/kernel)?(/a)?", -3),  # [.., N, H, D]; an adapter's [.., N, H, R]
    (r"(^|/)(gate|up|widen/kernel|widen/bias)(/b)?", -1),  # [.., D, F], [.., F]; an adapter's [.., R, F]
    (r"(^|/)(down|narrow/kernel)(/a)?", -2),  # [.., F, D]; an adapter's [.., F, R]
    (r"(^|/)embedding", -2),  # [V, D]
)
FACTORED = r"(^|/)v_(row|col)/"  # Means over an axis of an array, by Adafactor: of other shapes, and small.


def sizes_of(mesh: MeshRecipe, devices: int) -> dict[str, int]:
    """Returns the size of each axis of a mesh, those that vary slowest over devices first.

    Args:
        mesh: Its axes as a recipe has them.
        devices: All that there are.

    Raises:
        InvalidInput: The axes do not multiply to the number of devices.
    """
    wanted = {REPLICA: mesh.replica, DATA: mesh.data, SEQUENCE: mesh.sequence, TENSOR: mesh.tensor}
    rest, left = divmod(devices, math.prod(size for size in wanted.values() if size))
    if left or (rest != 1 and 0 not in wanted.values()):
        raise InvalidInput(
            "lay out a mesh",
            got=f"{devices} devices for replica={mesh.replica} data={mesh.data} tensor={mesh.tensor} "
            f"sequence={mesh.sequence}",
            wanted="axes that multiply to the number of devices; 0 stands for what is left",
        )
    return {axis: size or rest for axis, size in wanted.items()}


def axes_of(
    path: str, shape: Sequence[int], itemsize: int, sizes: Mapping[str, int], whole_bytes_max: int
) -> list[str | None]:
    """Returns which axis of a mesh splits each axis of an array of the state, None for those that stay whole.

    Args:
        path: Where the array is in the state, segments joined by "/".
        itemsize: Bytes of a number.
        sizes: From `sizes_of`.
        whole_bytes_max: Smaller arrays are not split along `data`.

    Raises:
        InvalidInput: `tensor` divides an array's heads or hidden features no further.
    """
    axes: list[str | None] = [None] * len(shape)
    if re.search(FACTORED, path):
        return axes
    for pattern, axis in TENSOR_AXES:
        if len(shape) >= -axis and re.search(f"{pattern}$", path):
            size, parts = shape[axis], sizes[TENSOR]
            if size >= parts and size % parts:
                raise InvalidInput(
                    "split an array along tensor", on=path, got=f"axis {axis} of {shape}", wanted=f"{parts} parts"
                )
            axes[axis] = TENSOR if parts > 1 and size >= parts else None  # Fewer key heads than devices are whole.
    if math.prod(shape) * itemsize > whole_bytes_max and sizes[DATA] > 1:
        free = [axis for axis, size in enumerate(shape) if axes[axis] is None and size % sizes[DATA] == 0]
        if free:
            axes[max(free, key=lambda axis: shape[axis])] = DATA
    return axes
