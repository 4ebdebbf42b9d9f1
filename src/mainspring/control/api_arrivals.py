"""Recordings that are sent over HTTP, in any number of requests: each goes on where the one before it broke off.

And pictures of those that have become episodes.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from typing import Protocol, cast

from anyio import to_thread
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from mainspring.control.control import Control
from mainspring.control.store.tokens import Caller
from mainspring.domain.answers import ArrivalView, RecordingClaim
from mainspring.objects import Blob, Data

_PICTURES_S = 3_600  # How long a browser need not ask again: an episode never changes; who may look at it might.
PIECE_BYTES = 1 << 20  # What is handed on at once: bounds the memory of a connection, and what a broken one loses.


class Arrivals(Protocol):
    """Where recordings arrive, dataset by dataset. Calls come from many threads; all may be repeated."""

    def view(self, dataset: str, name: str, blob: Blob) -> ArrivalView:
        """Returns where a recording stands.

        Raises:
            InvalidInput: The dataset's or the recording's name cannot be one, or its size is out of bounds.
            Unavailable: This server takes no recordings.
        """

    def claim(
        self,
        dataset: str,
        name: str,
        blob: Blob,
        claim: RecordingClaim,
        admit: Callable[[Sequence[RecordingClaim], int], None],
    ) -> None:
        """Notes who sends a recording, before its first byte; one that was noted, or has arrived, changes nothing.

        Args:
            claim: Who; the recording counts as at least `RECORDING_BYTES_MIN`.
            admit: Told what waits already, and the bytes to come; raises where those are too many.

        Raises:
            InvalidInput: As for `view`.
        """

    def claimed(self) -> Sequence[RecordingClaim]:
        """Returns who has sent, or is sending, what is in no dataset yet."""

    def append(self, dataset: str, name: str, blob: Blob, offset: int, body: Data) -> ArrivalView:
        """Adds bytes to a recording; with the last of them it has arrived. Bytes that are here change nothing.

        Raises:
            InvalidInput: As for `view`, or the bytes go past the recording's end.
            Conflict: What is here ends elsewhere than `offset`, or somebody else is sending it now.
            DamagedData: It is whole, and not what its id says.
            StorageFull: There is no room for the rest of it.
            Unavailable: This server takes no recordings, or too many are on their way.
        """

    def set_recipe(self, dataset: str, text: bytes) -> None:
        """Keeps the recipe by which a dataset's recordings are read from now on.

        Raises:
            InvalidInput: It is no recipe, or the dataset's name cannot be one.
            Unavailable: This server takes no recordings.
        """


async def received(
    arrivals: Arrivals, parts: AsyncIterator[bytes], *, dataset: str, name: str, blob: Blob, offset: int
) -> ArrivalView:
    """Returns where a recording stands after a request's body was added to it; of a broken one, what came of it.

    Args:
        dataset: The dataset it is sent to.
        offset: Where in it the body begins.
    """
    held = bytearray()
    try:
        async for part in parts:
            held += part
            if len(held) >= PIECE_BYTES:
                await to_thread.run_sync(arrivals.append, dataset, name, blob, offset, held)
                offset += len(held)
                held = bytearray()  # Not emptied: whoever took it may look at it yet.
    except ClientDisconnect:  # Nobody reads the answer; what came is kept for the next request.
        pass
    return await to_thread.run_sync(arrivals.append, dataset, name, blob, offset, held)


def pictures(*, request: Request, caller: Caller, dataset: str, number: str, episode: str) -> Response:
    """Answers with pictures of an episode, to somebody who may see recordings."""
    made = cast(Control, request.app.state.control).datasets.pictures(dataset, number, episode)
    return Response(made, media_type="image/png", headers={"cache-control": f"private, max-age={_PICTURES_S}"})
