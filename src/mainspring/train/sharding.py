"""Sharding: which device holds what, by rules over the named axes of a mesh, and the mean over ranks.

`replica` and `data` share the rows of a batch; `data` also shares every large array of the state (FSDP: XLA gathers a
block's weights where they are used, and scatters their gradients); `tensor` shares heads and hidden features, and
`sequence` the tokens between a block's inputs. Along `replica` the state is repeated, so that slices talk once a step.
Rules look at an array's path and shape alone, so that an optimizer's moments lie as their weights do.
Source: Xu et al., "GSPMD", 2021; Shoeybi et al., "Megatron-LM", 2019 (tensor); openpi, `sharding.py` (which axis).
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.flatten_util import ravel_pytree
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from mainspring.domain.errors import InvalidInput
from mainspring.train.models.arrays import BATCH_AXES, DATA, REPLICA, SEQUENCE, TENSOR, flattened, with_given
from mainspring.train.recipe import MeshRecipe

TENSOR_AXES = (  # Of arrays whose path ends so: the axis that `tensor` splits, from the last.
    (r"(^|/)(query|key|value)(/kernel|/bias)?(/b)?", -2),  # [.., D, N, H], [.., N, H]; an adapter's [.., R, N, H]
    (r"(^|/)out(/kernel)?(/a)?", -3),  # [.., N, H, D]; an adapter's [.., N, H, R]
    (r"(^|/)(gate|up|widen/kernel|widen/bias)(/b)?", -1),  # [.., D, F], [.., F]; an adapter's [.., R, F]
    (r"(^|/)(down|narrow/kernel)(/a)?", -2),  # [.., F, D]; an adapter's [.., F, R]
    (r"(^|/)embedding", -2),  # [V, D]
)
FACTORED = r"(^|/)v_(row|col)/"  # Means over an axis of an array, by Adafactor: of other shapes, and small.
BATCH: PartitionSpec = PartitionSpec(BATCH_AXES)  # type: ignore[no-untyped-call]
WHOLE: PartitionSpec = PartitionSpec()  # type: ignore[no-untyped-call]


def make_mesh(sizes: MeshRecipe | None = None, devices: Sequence[jax.Device] | None = None) -> Mesh:
    """Returns a mesh of devices in rank order: those of a `tensor` group lie next to each other.

    Args:
        sizes: Of its axes; None for replicas alone.
        devices: Which; None for all of all ranks.

    Raises:
        InvalidInput: The axes do not multiply to the number of devices.
    """
    found, sizes = np.asarray(jax.devices() if devices is None else devices), sizes or MeshRecipe()
    wanted = [sizes.replica, sizes.data, sizes.sequence, sizes.tensor]
    rest, left = divmod(found.size, math.prod(size for size in wanted if size))
    if left or (rest != 1 and 0 not in wanted):
        raise InvalidInput(
            "lay out a mesh",
            got=f"{found.size} devices for replica={sizes.replica} data={sizes.data} tensor={sizes.tensor} "
            f"sequence={sizes.sequence}",
            wanted="axes that multiply to the number of devices; 0 stands for what is left",
        )
    return Mesh(found.reshape([size or rest for size in wanted]), (REPLICA, DATA, SEQUENCE, TENSOR))


def batch_shares(mesh: Mesh) -> int:
    """Returns in how many parts a batch is split."""
    return int(mesh.shape[REPLICA] * mesh.shape[DATA])


def is_whole(mesh: Mesh) -> bool:
    """Returns whether every device holds the whole state and works on its own rows alone."""
    return bool(mesh.shape[REPLICA] == mesh.size)


def batch_sharding(mesh: Mesh) -> NamedSharding:
    """Returns where a batch lives: its first axis is split."""
    return NamedSharding(mesh, BATCH)


def state_shardings(state: Any, mesh: Mesh, sizes: MeshRecipe) -> Any:
    """Returns where each array of a state lives, as a tree like it.

    Args:
        state: Arrays, or their shapes.
        mesh: From `make_mesh`.
        sizes: Says from which size on an array is split.

    Raises:
        InvalidInput: `tensor` divides an array's heads or hidden features no further.
    """
    specs = {path: NamedSharding(mesh, _spec(path, leaf, mesh, sizes)) for path, leaf in flattened(state).items()}
    return with_given(state, specs)


def _spec(path: str, leaf: Any, mesh: Mesh, sizes: MeshRecipe) -> PartitionSpec:
    if re.search(FACTORED, path):
        return WHOLE
    axes: list[str | None] = [None] * leaf.ndim
    for pattern, axis in TENSOR_AXES:
        if re.search(f"{pattern}$", path) and leaf.ndim >= -axis:
            size, parts = leaf.shape[axis], mesh.shape[TENSOR]
            if size >= parts and size % parts:
                raise InvalidInput(
                    "split an array along tensor", on=path, got=f"axis {axis} of {leaf.shape}", wanted=f"{parts} parts"
                )
            axes[axis] = TENSOR if parts > 1 and size >= parts else None  # Fewer key heads than devices are whole.
    if leaf.size * leaf.dtype.itemsize > sizes.whole_bytes_max and mesh.shape[DATA] > 1:
        free = [axis for axis in range(leaf.ndim) if axes[axis] is None and leaf.shape[axis] % mesh.shape[DATA] == 0]
        if free:
            axes[max(free, key=lambda axis: leaf.shape[axis])] = DATA
    return PartitionSpec(*axes)  # type: ignore[no-untyped-call]


class Share(NamedTuple):
    """Which part of every batch a process loads, and of how many."""

    rank: int
    world_size: int


def share_of(mesh: Mesh) -> Share:
    """Returns what this process is to load of every batch; processes that share rows load the same.

    Args:
        mesh: From `make_mesh`.
    """
    parts = mesh.devices.reshape(batch_shares(mesh), -1)
    mine = [n for n, part in enumerate(parts) if jax.process_index() in {device.process_index for device in part}]
    return Share(mine[0] // len(mine), len(parts) // len(mine))


def place_batch(mesh: Mesh, batch: Mapping[str, Any]) -> dict[str, jax.Array]:
    """Returns the global batch of which this rank holds a part.

    Args:
        mesh: From `make_mesh`.
        batch: This rank's numpy arrays, batch axis first.
    """
    place: Any = jax.make_array_from_process_local_data
    return {name: place(batch_sharding(mesh), array) for name, array in batch.items()}


def mean_over_ranks(tree: Any, mesh: Mesh) -> Any:
    """Returns the mean of a pytree over the replica axis, in one message; to be called inside `jax.shard_map`.

    On CPU, where gloo's own all-reduce costs 1.4 ms before it moves a byte (two ranks, two cores; an exchange of
    buffers costs 0.3 ms), a power of two of devices swaps partial sums pairwise instead: after round k every device
    holds the sum over its group of 2^(k+1). Addition commutes, so all devices hold the same bits.
    Source: Thakur, Rabenseifner and Gropp, "Optimization of Collective Communication Operations in MPICH", 2005.

    Args:
        tree: This device's arrays.
        mesh: From `make_mesh`.
    """
    flat, unravel = ravel_pytree(tree)
    size = mesh.shape[REPLICA]
    if mesh.devices.flat[0].platform != "cpu" or size & (size - 1):
        return unravel(jax.lax.pmean(flat, REPLICA))  # type: ignore[no-untyped-call]
    distance = 1
    while distance < size:
        pairs = [(device, device ^ distance) for device in range(size)]
        flat = flat + jax.lax.ppermute(flat, REPLICA, pairs)  # type: ignore[no-untyped-call]
        distance *= 2
    return unravel(flat / size)
