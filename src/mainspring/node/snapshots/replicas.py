"""Checksums of what ranks have in common: replicas of state, which the same work must leave the same on all of them."""

from __future__ import annotations

from collections.abc import Iterable

import google_crc32c

from mainspring.domain.wire import Shard

SUMS = 64  # What differs for good reasons, such as statistics of each rank's own batches, spoils only its own sum.
_SUM_BYTES = 4


def replica_sums(shards: Iterable[Shard]) -> tuple[int, tuple[int, ...]]:
    """Returns what a rank has in common with others, as a checksum of its names, and checksums of its bytes.

    Args:
        shards: A rank's sealed shards, their paths as in the store.
    """
    sums, names = [0] * SUMS, 0
    for shard in sorted((one for one in shards if _replicated(one)), key=lambda one: (one.path, one.start)):
        name = f"{shard.path} {shard.start} {shard.shape}".encode()
        names = google_crc32c.extend(names, name)
        at = google_crc32c.value(shard.path.encode()) % SUMS
        sums[at] = google_crc32c.extend(sums[at], shard.crc32c.to_bytes(_SUM_BYTES, "little"))
    return names, tuple(sums) if names else ()


def _replicated(shard: Shard) -> bool:
    return shard.elsewhere or not shard.once
