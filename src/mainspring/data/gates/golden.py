"""The first batches of a view as one hash, so that a loader that gives other bytes is found before anybody trains."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import islice

from blake3 import blake3

from mainspring.data.loader.loader import Loader, Sampling
from mainspring.data.views.view import View
from mainspring.domain.codec import decode, encode
from mainspring.domain.errors import DamagedData, NotFound
from mainspring.objects import ObjectStore

BATCHES = 8
SAMPLING = Sampling(batch_size=64, seed=0, horizon=16, history=2, pixels="yuv")  # YUV: RGB depends on the processor.
_LETTERS = 32


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


def check_golden(store: ObjectStore, view: View) -> Golden:
    """Returns the hash of a view's first batches after comparing it with the one kept when it was first asked for.

    Args:
        store: Where the view lies; keeps the hash.
        view: An open view.

    Raises:
        DamagedData: The loader, the decoder or the bytes give something else than before.
    """
    found = golden_of(view)
    key = f"golden/{found.view}/{found.split}.json"
    if store.put_if_absent(key, encode(found)):
        return found
    try:
        kept = decode(Golden, store.get(key))
    except NotFound:
        kept = found  # Deleted in between, with its view.
    if kept != found:
        raise DamagedData(
            "check a view's first batches",
            on=f"{found.view} {found.split}",
            got=found.hash,
            wanted=f"{kept.hash}, as when it was made",
            next_step="find out what changed: Mainspring, NumPy, PyAV, or the view's files; do not train on it",
        )
    return found
