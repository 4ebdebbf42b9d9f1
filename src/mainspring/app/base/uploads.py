"""Sends recordings to a server, going on after every break where it left off."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import final

from mainspring.app.base.client import Client
from mainspring.app.base.system import looked
from mainspring.domain.answers import ArrivalView, ClipCatalog, ClipEntry, ClipsAsked, Standing
from mainspring.domain.errors import Conflict, Unavailable
from mainspring.domain.ports import Backoff
from mainspring.objects import Blob, reported

READ_BYTES = 1 << 20
TRIES_MAX = 8  # Without a byte of progress, with pauses that double: two minutes in all.
AGAIN = Backoff(first_s=0.5, cap_s=60.0)
LOOK_S = 0.5


def upload(
    client: Client, path: Path, blob: Blob, dataset: str, *, progress: Callable[[int], None] | None = None
) -> ArrivalView:
    """Returns where a recording stands once the server has all of it. May be repeated: only what is missing is sent.

    Args:
        client: Speaks with the server.
        dataset: The dataset it is sent to.
        progress: Called with how many of its bytes the server has, or is being sent.

    Raises:
        InvalidInput: The server takes no such file.
        DamagedData: What arrived is not what was said: the file changes while it is sent.
        Unavailable: The server did not answer `TRIES_MAX` times in a row.
        Conflict: Somebody else went on sending the same recording all that time.
    """
    tell = progress or (lambda _: None)
    tries, furthest = 0, -1
    while True:
        try:
            view = client.arrival(dataset, path.name, id=blob.id, size=blob.size_bytes)
            tries, furthest = (0, view.offset) if view.offset > furthest else (tries, furthest)
            tell(view.offset)
            if view.standing is Standing.ARRIVING:
                rest = _bytes_from(path, view.offset, tell)
                view = client.send(dataset, path.name, rest, id=blob.id, size=blob.size_bytes, offset=view.offset)
            if view.standing is not Standing.ARRIVING:
                tell(blob.size_bytes)
                return view
        except (Unavailable, Conflict):
            tries += 1
            if tries >= TRIES_MAX:
                raise
        time.sleep(AGAIN.wait_s(tries + 1))


def settled(client: Client, path: Path, blob: Blob, dataset: str, *, timeout_s: float) -> ArrivalView:
    """Returns what became of a recording that has arrived, once it was read.

    Args:
        client: Speaks with the server.
        dataset: The dataset it was sent to.
        timeout_s: How long to wait at most.

    Raises:
        Unavailable: It was not read in time.
    """
    seen = partial(client.arrival, dataset, path.name, id=blob.id, size=blob.size_bytes)
    view = looked(seen, _is_settled, every_s=LOOK_S, timeout_s=timeout_s)
    if not _is_settled(view):
        raise Unavailable(
            "wait for a recording to be read",
            on=path.name,
            got=f"nothing in {timeout_s:.0f} s",
            next_step="look into the server's log; it is read once it can be",
        )
    return view


def _is_settled(view: ArrivalView) -> bool:
    return view.standing in (Standing.TAKEN, Standing.REFUSED)


@final
class ClientClips:
    """A robot's clips on their way through a client: the port `ClipServer` of `robots.logs.sending`."""

    def __init__(self, client: Client) -> None:
        self._client = client

    def tell(self, dataset: str, catalog: ClipCatalog) -> ClipsAsked:
        """See `ClipServer.tell`."""
        return self._client.tell_clips(dataset, catalog)

    def look(self, dataset: str, clip: ClipEntry) -> ArrivalView:
        """See `ClipServer.look`."""
        return self._client.arrival(dataset, clip.name, id=clip.id, size=clip.size_bytes)

    def send(self, dataset: str, clip: ClipEntry, offset: int, piece: bytes) -> ArrivalView:
        """See `ClipServer.send`."""
        return self._client.send(dataset, clip.name, iter((piece,)), id=clip.id, size=clip.size_bytes, offset=offset)


def _bytes_from(path: Path, offset: int, tell: Callable[[int], None]) -> Iterator[bytes]:
    with reported("send a recording", str(path)), open(path, "rb") as file:
        file.seek(offset)
        while part := file.read(READ_BYTES):
            offset += len(part)
            tell(offset)
            yield part
