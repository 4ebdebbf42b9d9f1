"""Sharding: which device holds what, by rules over the named axes of a mesh, and the mean over ranks.

`replica` and `data` share the rows of a batch; `data` also shares every large array of the state (FSDP: XLA gathers a
block's weights where they are used, and scatters their gradients); `tensor` shares heads and hidden features, and
`sequence` the tokens between a block's inputs. Along `replica` the state is repeated, so that slices talk once a step.
Rules look at an array's path and shape alone, so that an optimizer's moments lie as their weights do.
Source: Xu et al., "GSPMD", 2021; Shoeybi et al., "Megatron-LM", 2019 (tensor); openpi, `sharding.py` (which axis).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.flatten_util import ravel_pytree
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from mainspring.train.models.arrays import flattened, with_given
from mainspring.train.models.shapes import BATCH_AXES, DATA, REPLICA
from mainspring.train.recipe import MeshRecipe
from mainspring.train.state.splitting import axes_of, sizes_of

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
    found = np.asarray(jax.devices() if devices is None else devices)
    axes = sizes_of(sizes or MeshRecipe(), found.size)
    return Mesh(found.reshape(list(axes.values())), tuple(axes))


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
    axes = axes_of(path, leaf.shape, leaf.dtype.itemsize, mesh.shape, sizes.whole_bytes_max)
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
