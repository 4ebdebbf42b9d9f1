"""Work that shows whether a node's chips are right and fast, in a process of its own: CPUs, GPUs and TPUs, over JAX.

As a program it does one piece of it, and writes what came of it as its last line:
`python -m mainspring.node.probes.sweep.measures SECONDS` alone, or with COORDINATOR INDEX COUNT behind that in a group.

A product of matrices of small whole numbers is exact on every chip, however it is added up. So each of its rows is
checked against the truth by a vector of signs (Freivalds' check in integers: one wrong element is always found).
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from numpy.typing import NDArray

from mainspring.domain import codec
from mainspring.domain.ports import Clock
from mainspring.node.probes.sweep.verdicts import Measure

REPEATS_MIN, REPEATS_MAX = 3, 200
CONNECT_S = 60  # Of a group: the others may still be importing.
_LARGEST = 7  # Of an element: sums of 8,192 products are below 2^24, up to which float32 holds every whole number.
_BLOCK = 1_024


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """How large the work is.

    Args:
        side: Rows of the matrices.
        copy_bytes: What is moved at once.
        reduce_bytes: What each device gives to an all-reduce.
    """

    side: int
    copy_bytes: int
    reduce_bytes: int


ON_CPU = Sizes(side=512, copy_bytes=64 << 20, reduce_bytes=4 << 20)  # Tens of milliseconds of one core each.
ON_CHIP = Sizes(side=8_192, copy_bytes=1 << 30, reduce_bytes=256 << 20)  # Over a millisecond of today's fastest each.


def alone(clock: Clock, seconds: float, sizes: Sizes | None = None) -> Measure:
    """Returns how each of this node's devices did, one after the other, and all in one all-reduce.

    Args:
        seconds: How long to work at each of the three, about.
        sizes: None for those of the chip.
    """
    devices, sizes = jax.local_devices(), sizes or _sizes()
    one, other = _matrix(sizes.side, 7, 13), _matrix(sizes.side, 11, 5)
    wrong, flops, bytes_s = [], [], []
    for index, device in enumerate(devices):
        left, right = (jax.device_put(jnp.asarray(each, _kind()), device) for each in (one, other))
        product, each_s = _timed(lambda left=left, right=right: _multiply(left, right), clock, seconds)  # type: ignore[misc]
        flops.append(2.0 * sizes.side**3 / each_s)
        if not is_product(np.asarray(product), one, other):
            wrong.append(index)
        filled = jax.device_put(jnp.ones(sizes.copy_bytes // 4, jnp.float32), device)
        _, each_s = _timed(lambda filled=filled: _add_one(filled), clock, seconds)  # type: ignore[misc]
        bytes_s.append(2.0 * sizes.copy_bytes / each_s)
    reduced = _reduced(clock, seconds, sizes) if len(devices) > 1 else None
    if reduced is not None and not reduced.right:
        wrong = list(range(len(devices)))
    return Measure(
        chip=devices[0].device_kind,
        wrong=tuple(wrong),
        flops=tuple(flops),
        bytes_s=tuple(bytes_s),
        seconds=None if reduced is None else reduced.seconds,
    )


def in_group(
    clock: Clock, seconds: float, *, coordinator: str, index: int, count: int, sizes: Sizes | None = None
) -> Measure:
    """Returns how this node did in an all-reduce over all devices of a group of nodes.

    Args:
        coordinator: Where the first of them serves the others ("host:port").
        index: Which of them this one is.
        count: How many there are.
    """
    jax.config.update("jax_cpu_collectives_implementation", "gloo")  # type: ignore[no-untyped-call]
    jax.distributed.initialize(coordinator, count, index, initialization_timeout=CONNECT_S)
    reduced = _reduced(clock, seconds, sizes or _sizes())
    devices = jax.local_devices()
    wrong = () if reduced.right else tuple(range(len(devices)))
    return Measure(chip=devices[0].device_kind, wrong=wrong, seconds=reduced.seconds)


def is_product(product: NDArray[Any], one: NDArray[np.int8], other: NDArray[np.int8]) -> bool:
    """Returns whether a matrix is the product of two others of small whole numbers, exactly."""
    if not np.isfinite(product).all():
        return False
    signs = np.where(np.arange(other.shape[1]) * 2_654_435_761 % 97 < 48, -1, 1).astype(np.float64)
    true = _times(one, _times(other, signs))
    return bool((_times(product, signs) == true).all())


def _times(matrix: NDArray[Any], vector: NDArray[np.float64]) -> NDArray[np.float64]:
    """Returns a product that is exact in doubles, a block at a time: the matrix is large and of a small type."""
    blocks = [matrix[row : row + _BLOCK].astype(np.float64) @ vector for row in range(0, len(matrix), _BLOCK)]
    return np.concatenate(blocks)


def _matrix(side: int, down: int, across: int) -> NDArray[np.int8]:
    rows = np.arange(side, dtype=np.int32)
    mixed = (rows[:, None] * down + rows[None, :] * across + (rows[:, None] ^ rows[None, :])) % (2 * _LARGEST + 1)
    return (mixed - _LARGEST).astype(np.int8)


def _sizes() -> Sizes:
    return ON_CPU if jax.default_backend() == "cpu" else ON_CHIP


def _kind() -> Any:
    return jnp.float32 if jax.default_backend() == "cpu" else jnp.bfloat16


@jax.jit
def _multiply(left: jax.Array, right: jax.Array) -> jax.Array:
    return jnp.matmul(left, right, preferred_element_type=jnp.float32)


@jax.jit
def _add_one(filled: jax.Array) -> jax.Array:
    return filled + 1


def _timed(work: Callable[[], jax.Array], clock: Clock, seconds: float) -> tuple[jax.Array, float]:
    """Returns the last result, and the middle of the times that one piece of work took."""
    result = work().block_until_ready()  # Compiled now.
    times: list[float] = []
    began_s = clock.monotonic_s()
    while len(times) < REPEATS_MIN or (len(times) < REPEATS_MAX and clock.monotonic_s() - began_s < seconds):
        before_s = clock.monotonic_s()
        result = work().block_until_ready()
        times.append(clock.monotonic_s() - before_s)
    return result, median(times)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Reduced:
    seconds: float
    right: bool


def _reduced(clock: Clock, seconds: float, sizes: Sizes) -> _Reduced:
    """Returns how an all-reduce over all devices did: the sum of what each gives, which is its number and one."""
    devices = jax.devices()
    mesh = Mesh(np.array(devices), ("device",))
    width = sizes.reduce_bytes // 4
    split = NamedSharding(mesh, PartitionSpec("device"))  # type: ignore[no-untyped-call]
    whole = NamedSharding(mesh, PartitionSpec())  # type: ignore[no-untyped-call]

    def given(index: Any) -> NDArray[np.float32]:
        first, last, _ = index[0].indices(len(devices))
        numbers = np.arange(first + 1, last + 1, dtype=np.float32)[:, None]
        return np.broadcast_to(numbers, (last - first, width))

    filled = jax.make_array_from_callback((len(devices), width), split, given)
    total = jax.jit(lambda each: each.sum(axis=0), out_shardings=whole)
    repeats = REPEATS_MAX if jax.process_count() == 1 else REPEATS_MIN * 4  # Of a group all do it equally often.
    limit_s = seconds if jax.process_count() == 1 else float("inf")
    total(filled).block_until_ready()
    times: list[float] = []
    result, began_s = filled, clock.monotonic_s()
    while len(times) < repeats and (len(times) < REPEATS_MIN or clock.monotonic_s() - began_s < limit_s):
        before_s = clock.monotonic_s()
        result = total(filled).block_until_ready()
        times.append(clock.monotonic_s() - before_s)
    sum_of_all = len(devices) * (len(devices) + 1) / 2
    right = all(bool((np.asarray(shard.data) == sum_of_all).all()) for shard in result.addressable_shards)
    return _Reduced(seconds=median(times), right=right)


def main(words: Sequence[str], clock: Clock) -> None:
    """Does one piece of work, and writes what came of it."""
    seconds, *group = words
    if group:
        coordinator, index, count = group
        found = in_group(clock, float(seconds), coordinator=coordinator, index=int(index), count=int(count))
    else:
        found = alone(clock, float(seconds))
    sys.stdout.buffer.write(codec.encode(found) + b"\n")
    sys.stdout.buffer.flush()
