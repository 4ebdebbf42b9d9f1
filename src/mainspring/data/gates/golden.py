"""The first batches of a view as one hash, so that a loader that gives other bytes is found before anybody trains.

The hash is kept when a view is made, or first trained on, and compared each time a training begins, as long as that is
cheap; asked for by name, it is made whatever it costs.
"""

from __future__ import annotations

import math
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from blake3 import blake3

from mainspring.data.loader.decoding import frame_shape
from mainspring.data.loader.loader import Loader, Sampling
from mainspring.data.views.manifest import ViewManifest
from mainspring.data.views.places import golden_folder
from mainspring.data.views.shards import shard_blobs
from mainspring.data.views.view import View, open_view
from mainspring.domain.codec import decode, encode
from mainspring.domain.errors import DamagedData, NotAllowed, NotFound
from mainspring.objects import ObjectStore

BATCHES = 8
SAMPLING = Sampling(batch_size=64, seed=0, horizon=16, history=2, pixels="yuv")  # YUV: RGB depends on the processor.
_LETTERS = 32
CHEAP_BYTES = 256 << 20  # Of images a first round: two cameras of 224x224 are 138 MiB, and take one core 0.3 s.

COPIED_BYTES_MAX = 1 << 30  # Opening copies a view to the cache, which any disk does with so much in seconds.


@dataclass(frozen=True, slots=True, kw_only=True)
class Golden:
    """The hash of a split's first batches, by `SAMPLING`."""

    view: str
    split: str
    batches: int
    hash: str


def golden_of(view: View) -> Golden:
    """Returns the hash of a view's first batches, made now.

    Args:
        view: An open view.
    """
    hasher = blake3()
    with Loader(view, SAMPLING).stream(0) as stream:
        for batch in islice(stream, BATCHES):
            for name, array in sorted(batch.items()):
                hasher.update(f"{name} {array.dtype.str} {array.shape}\n".encode())
                hasher.update(array.tobytes())
    return Golden(view=view.manifest.id, split=view.split, batches=BATCHES, hash=hasher.hexdigest()[:_LETTERS])


def guard(store: ObjectStore, view: View) -> Golden | None:
    """Does `check_golden`, unless the view's images are so large that it would take much over half a second.

    Args:
        store: See `check_golden`.
        view: See `check_golden`.

    Raises:
        DamagedData: See `check_golden`.
    """
    rows = max(SAMPLING.lanes * view.gop, SAMPLING.batch_size * BATCHES)
    images = len(view.cameras) * math.prod(frame_shape(view.manifest.recipe.image_size, SAMPLING.pixels))
    return check_golden(store, view) if rows * images <= CHEAP_BYTES else None


def guard_made(store: ObjectStore, manifest: ViewManifest, cache_dir: Path) -> Golden | None:
    """Does `guard` for a view just made or found, if it is small; a larger one is guarded from its first training on.

    Args:
        store: Where the view lies.
        manifest: The view's.
        cache_dir: Where views are opened.

    Raises:
        DamagedData: See `check_golden`.
    """
    blobs = (blob for shard in manifest.splits["train"].shards for blob in shard_blobs(shard))
    if sum(blob.size_bytes for blob in blobs) > COPIED_BYTES_MAX:
        return None
    return guard(store, open_view(store, manifest.id, cache_dir, "train"))


def check_golden(store: ObjectStore, view: View) -> Golden:
    """Returns the hash of a view's first batches after comparing it with the one kept when it was first asked for.

    Args:
        store: Where the view lies; keeps the hash, unless it can only be read.
        view: An open view.

    Raises:
        DamagedData: The loader, the decoder or the bytes give something else than before.
    """
    found = golden_of(view)
    key = f"{golden_folder(found.view)}/{found.split}.json"
    with suppress(NotAllowed):  # A job that may only read the view compares all the same.
        if store.put_if_absent(key, encode(found)):
            return found
    try:
        kept = decode(Golden, store.get(key))
    except NotFound:
        kept = found  # Not kept, or deleted in between, with its view.
    if kept != found:
        raise DamagedData(
            "check a view's first batches",
            on=f"{found.view} {found.split}",
            got=found.hash,
            wanted=f"{kept.hash}, as when it was made",
            next_step="find out what changed: Mainspring, NumPy, PyAV, or the view's files; do not train on it",
        )
    return found
