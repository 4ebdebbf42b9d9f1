"""JAX state: a tree of arrays taken apart into blocks, and put together again on any sharding.

A program's next step usually takes its state for good, so by then a snapshot must be apart from it. On CPUs it is
copied into the arena. Other devices copy it in their own memory, which takes milliseconds, and a thread brings that to
the arena; where they have no room for a second state, it is brought to host memory before the program goes on.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import Any, Literal, TypeVar

import jax
import jax.extend.backend
import numpy as np
from jax.sharding import Sharding, SingleDeviceSharding
from numpy.typing import NDArray

from mainspring.domain.errors import InvalidInput, NotFound
from mainspring.domain.wire import Part
from mainspring.session.blocks import Block, OnDevice
from mainspring.session.restore import Region, Restored
from mainspring.session.session import Session

PINNED = "pinned_host"  # JAX's name for host memory that devices reach by themselves: 53 GB/s beside 1.3 on an H200.
SPARE = 0.02  # Of a device's memory, which copies leave free: what is free lies in pieces.
LAYOUTS_MAX = 8  # Trees saved in turns: a program has one or two, and each costs as much as its list of blocks.

Tree = TypeVar("Tree")
Index = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class _Leaf:
    """What decides where the parts of an array go. `sharding` is None for what every rank holds whole."""

    shape: tuple[int, ...]
    item_bytes: int
    sharding: Sharding | None


@dataclass(frozen=True, slots=True)
class _Share:
    """One part of an array on this rank: what `Block` says of it."""

    start: Index
    once: bool
    elsewhere: bool


def blocks_of(tree: object, session: Session, parts: Mapping[str, Part] | None = None) -> tuple[Block, ...]:
    """Returns this rank's blocks of every array in a tree, without copying where the arrays lie in host memory.

    Of what other devices hold they are copies (see `apart`), so the program may give its arrays away at once.

    Replicas are all included, and exactly one rank's copy of each is marked `once`: the rank with the fewest bytes so
    far. Every rank computes the same answer, because it rests only on what all ranks know of the shardings. An array
    that lives on one process's devices alone, and anything that is not a JAX array, counts as replicated on all ranks.

    Args:
        tree: Arrays in any nesting of containers; numbers are taken as arrays.
        session: The rank's session.
        parts: What arrays are for, by the first word of their paths (`{"weights": Part.WEIGHTS}`).

    Raises:
        InvalidInput: An array does not hold plain numbers (typed random keys: save `jax.random.key_data`).
    """
    paths: list[str] = []
    leaves: list[_Leaf] = []
    pieces: list[Mapping[Index, Any]] = []
    for key, array in jax.tree_util.tree_leaves_with_path(tree):
        paths.append(_path(key))
        leaves.append(_leaf(paths[-1], array))
        pieces.append(_pieces(array))
    layout = _layout(tuple(leaves), session.rank, session.world_size, tuple(session.local_ranks))
    held = [piece[share.start] for piece, shares in zip(pieces, layout, strict=True) for share in shares]
    data = iter(apart(held))
    return tuple(
        Block(
            path=path,
            data=next(data),
            global_shape=leaf.shape,
            start=share.start,
            once=share.once,
            elsewhere=share.elsewhere,
            part=(parts or {}).get(path.partition("/")[0], Part.OTHER),
        )
        for path, leaf, shares in zip(paths, leaves, layout, strict=True)
        for share in shares
    )


def apart(
    arrays: Sequence[Any], room_bytes: Callable[[jax.Device], int] | None = None
) -> list[NDArray[Any] | OnDevice]:
    """Returns arrays that stay as they are when those given are given away; in host memory these themselves.

    Args:
        arrays: Each on one device, or in host memory.
        room_bytes: How much of a device's memory copies may take; None for what the program left free so far, and for
            no copies on CPUs.
    """
    found: list[Any] = list(arrays)
    places: dict[Any, list[int]] = {}
    for number, array in enumerate(found):
        device = next(iter(array.devices())) if isinstance(array, jax.Array) else None
        if device is None or (device.platform == "cpu" and room_bytes is None):
            found[number] = np.asarray(array)
        else:
            places.setdefault(device, []).append(number)
    for device, numbers in places.items():
        held = [found[number] for number in numbers]
        if sum(array.nbytes for array in held) <= (room_bytes or _room_bytes)(device):
            copies: list[Any] = [_on_device(copy) for copy in _copied(held)]
        else:
            copies = [np.asarray(array) for array in [_to_host(array) for array in held]]  # All begin, then wait.
        for number, copy in zip(numbers, copies, strict=True):
            found[number] = copy
    return found


@cache
def _room_bytes(device: jax.Device) -> int:
    """Returns how much of a device's memory nothing had used before the first snapshot; 0 where it does not say."""
    stats = device.memory_stats() or {}
    limit_bytes = int(stats.get("bytes_limit", 0))
    return max(limit_bytes - int(stats.get("peak_bytes_in_use", limit_bytes)) - int(SPARE * limit_bytes), 0)


@jax.jit
def _copied(arrays: list[jax.Array]) -> list[jax.Array]:
    return [jax.numpy.copy(array) for array in arrays]


def _on_device(array: jax.Array) -> OnDevice:
    held = [array]  # Let go as soon as it is on its way: the device's memory is wanted.

    def bring() -> Callable[[], NDArray[Any]]:
        brought = [_to_host(held.pop())]
        return lambda: np.asarray(brought.pop())

    return OnDevice(shape=array.shape, dtype=array.dtype, bring=bring)


def _to_host(array: jax.Array) -> jax.Array:
    """Returns an array that is on its way to host memory."""
    device = next(iter(array.devices()))
    if PINNED in {memory.kind for memory in device.addressable_memories()}:
        pinned: jax.Array = jax.device_put(array, SingleDeviceSharding(device, memory_kind=PINNED))
        return pinned
    array.copy_to_host_async()
    return array


def tree_from(
    restored: Restored, like: Tree, *, missing: Literal["error", "keep"] = "error", cast: bool = False
) -> Tree:
    """Returns a tree of `like`'s structure and shardings, filled with restored state.

    Only what this rank's devices need is read, all in one turn. What `like` does not name is left where it is: a tree
    of weights alone drops the optimizer's state.

    Args:
        restored: What `Session.restore` gave.
        like: Arrays, `jax.ShapeDtypeStruct`s (with a sharding, or for the default device) or numbers.
        missing: What to do about an array that was not saved: "error", or "keep" the one in `like`.
        cast: Whether an array saved with another dtype is converted to the one in `like`.

    Raises:
        InvalidInput: An array was saved with another shape or dtype, or one to keep is only described.
        NotFound: An array was not saved.
        DamagedData: What was saved does not cover an array, or is not what it was.
        Unavailable: What was saved cannot be reached.
    """
    leaves, structure = jax.tree_util.tree_flatten_with_path(like)
    wanted = [_wanted(restored, _path(key), leaf, keep=missing == "keep", cast=cast) for key, leaf in leaves]
    given = iter(restored.arrays([region for want in wanted for region in want.regions], copy=False))
    hosts: list[NDArray[Any]] = []
    targets: list[SingleDeviceSharding] = []
    for want in wanted:
        found = {region.start: next(given).astype(want.dtype, copy=False) for region in want.regions}
        if want.places:
            hosts += [found[start] for start, _ in want.places]
            targets += [target for _, target in want.places]
        else:
            want.found = next(iter(found.values()), None)
    placed = iter(_placed(hosts, targets, shared=restored.source == "arena"))
    filled: Tree = jax.tree_util.tree_unflatten(
        structure, [want.made([next(placed) for _ in want.places]) for want in wanted]
    )
    return filled


def _placed(hosts: list[NDArray[Any]], targets: list[SingleDeviceSharding], *, shared: bool) -> list[jax.Array]:
    """Returns arrays on their devices.

    JAX on CPUs takes aligned host memory for its own, without a copy. What came from the store is this program's for
    good; a view of the arena (`shared`) is written again by later snapshots. So of that JAX makes a copy of its own, in
    which a step that is given the array for good works in place: for memory not JAX's own it would make room anew.
    """
    placed: list[jax.Array] = jax.device_put(hosts, targets)
    views = [number for number, host in enumerate(hosts) if shared and not host.flags.writeable]
    devices: list[Any] = [next(iter(target.device_set)) for target in targets]  # Untyped in JAX.
    here = [number for number in views if devices[number].platform == "cpu"]
    own = jax.device_put([placed[number] for number in here], [targets[number] for number in here], may_alias=False)
    for number, array in zip(here, own, strict=True):
        placed[number] = array
    jax.block_until_ready([placed[number] for number in views])  # type: ignore[no-untyped-call]
    return placed


@dataclass(slots=True, kw_only=True, eq=False)
class _Wanted:
    """A leaf to restore: the regions to read, and the devices to put each on; none for what stays in host memory."""

    like: Any
    dtype: np.dtype[Any]
    regions: tuple[Region, ...] = ()
    places: tuple[tuple[Index, SingleDeviceSharding], ...] = ()
    found: NDArray[Any] | None = None

    def made(self, placed: list[jax.Array]) -> Any:
        if not self.regions:
            return self.like
        if self.found is not None:
            number = isinstance(self.like, (bool, int, float, np.generic))
            return type(self.like)(self.found.item()) if number else np.array(self.found)
        sharding = self.like.sharding
        if sharding is None:
            return placed[0]
        return jax.make_array_from_single_device_arrays(self.like.shape, sharding, placed)


def _wanted(restored: Restored, path: str, like: Any, *, keep: bool, cast: bool) -> _Wanted:
    number = isinstance(like, (bool, int, float))
    dtype = np.asarray(like).dtype if number else np.dtype(like.dtype)
    try:
        spec = restored.spec(path)
    except NotFound:
        if not keep:
            raise
        if isinstance(like, jax.ShapeDtypeStruct):
            raise InvalidInput(
                "keep what was not saved", on=path, got="a description", wanted="an array in the tree to fill"
            ) from None
        return _Wanted(like=like, dtype=dtype)
    shape = np.shape(like)
    if spec.global_shape != shape or not (cast or number or spec.dtype == dtype):
        raise InvalidInput(
            "restore an array",
            on=path,
            got=f"{spec.dtype} {spec.global_shape}",
            wanted=f"{dtype} {shape}",
            next_step="" if spec.global_shape != shape else "pass cast=True to convert it",
        )
    if number or isinstance(like, (np.ndarray, np.generic)):
        return _Wanted(like=like, dtype=spec.dtype if number else dtype, regions=(Region(path=path),))
    if like.sharding is None:
        here = SingleDeviceSharding(jax.local_devices()[0])
        start = (0,) * len(shape)
        return _Wanted(
            like=like, dtype=dtype, regions=(Region(path=path, start=start, shape=shape),), places=((start, here),)
        )
    regions: dict[Index, Region] = {}
    places = []
    kind = like.sharding.memory_kind
    for device, index in like.sharding.addressable_devices_indices_map(shape).items():
        bounds = [part.indices(size) for part, size in zip(index, shape, strict=True)]
        start = tuple(low for low, _, _ in bounds)
        regions[start] = Region(path=path, start=start, shape=tuple(high - low for low, high, _ in bounds))
        places.append((start, SingleDeviceSharding(device, memory_kind=kind)))
    return _Wanted(like=like, dtype=dtype, regions=tuple(regions.values()), places=tuple(places))


def _path(key: Any) -> str:
    return jax.tree_util.keystr(key, simple=True, separator="/")


def _leaf(path: str, array: Any) -> _Leaf:
    if not isinstance(array, jax.Array):
        data = np.asarray(array)
        return _Leaf(data.shape, data.dtype.itemsize, None)
    if jax.numpy.issubdtype(array.dtype, jax.dtypes.extended):
        raise InvalidInput("save an array", on=path, got=str(array.dtype), wanted="plain numbers: jax.random.key_data")
    return _Leaf(array.shape, array.dtype.itemsize, array.sharding)


def _pieces(array: Any) -> Mapping[Index, Any]:
    """Returns what of an array lies on this rank's devices, by the index of its first element."""
    if not isinstance(array, jax.Array):
        return {(0,) * np.ndim(array): array}
    return {_start(shard.index): shard.data for shard in array.addressable_shards}


@lru_cache(maxsize=LAYOUTS_MAX)
def _layout(
    leaves: tuple[_Leaf, ...], rank: int, world_size: int, local_ranks: tuple[int, ...]
) -> tuple[tuple[_Share, ...], ...]:
    """Returns this rank's parts of each array; the same for every snapshot of a run, so it is kept."""
    everywhere = tuple(range(world_size))
    holders_of: dict[tuple[tuple[int, ...], Sharding], Mapping[Index, tuple[int, ...]]] = {}
    local = frozenset(local_ranks)
    stored_bytes = [0] * world_size
    shares: list[tuple[_Share, ...]] = []
    for leaf in leaves:
        if leaf.sharding is None:
            holders: Mapping[Index, tuple[int, ...]] = {(0,) * len(leaf.shape): everywhere}
            part_bytes = leaf.item_bytes * math.prod(leaf.shape)
        else:
            if (leaf.shape, leaf.sharding) not in holders_of:
                holders_of[leaf.shape, leaf.sharding] = _holders(leaf.shape, leaf.sharding, everywhere)
            holders = holders_of[leaf.shape, leaf.sharding]
            part_bytes = leaf.item_bytes * math.prod(leaf.sharding.shard_shape(leaf.shape))
        own = []
        for start, ranks in holders.items():
            saver = ranks[0] if len(ranks) == 1 else min(ranks, key=stored_bytes.__getitem__)
            stored_bytes[saver] += part_bytes
            if rank in ranks:
                own.append(_Share(start, saver == rank, not local.issuperset(ranks)))
        shares.append(tuple(own))
    return tuple(shares)


jax.extend.backend.register_backend_cache(_layout, "mainspring layouts")  # Else it would keep an old backend alive.
jax.extend.backend.register_backend_cache(_room_bytes, "mainspring room")  # So would this.


def _holders(
    shape: tuple[int, ...], sharding: Sharding, everywhere: tuple[int, ...]
) -> Mapping[Index, tuple[int, ...]]:
    """Returns which ranks hold each part of an array, in one order for all ranks."""
    found: dict[Index, set[int]] = {}
    devices: Mapping[Any, Any] = sharding.devices_indices_map(shape)
    for device, index in devices.items():
        found.setdefault(_start(index), set()).add(device.process_index)
    alone = len(set().union(*found.values())) == 1  # Each rank has one of its own.
    return {start: everywhere if alone else tuple(sorted(found[start])) for start in sorted(found)}


def _start(index: Any) -> Index:
    return tuple(part.start or 0 for part in index)
