"""Recordings that are sent over HTTP, in any number of requests: each goes on where the one before it broke off.

And pictures of those that have become episodes.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from contextlib import aclosing, suppress
from functools import partial
from typing import Any, Protocol, cast

from anyio import to_thread
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from mainspring.control.api_releases import answered
from mainspring.control.connections import CONNECTION_KEY, BoundedConnection
from mainspring.control.control import Control
from mainspring.control.store.tokens import Caller
from mainspring.domain.answers import ArrivalView, DatasetOwner, RecordingClaim, Standing
from mainspring.domain.errors import NotFound
from mainspring.domain.routes import Calls, Route
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

    def has(self, dataset: str) -> bool:
        """Returns whether anything was ever sent to a dataset here."""

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
    arrivals: Arrivals, pieces: AsyncIterator[Data], *, dataset: str, name: str, blob: Blob, offset: int
) -> ArrivalView:
    """Returns where a recording stands after a request's body was added to it; of a broken one, what came of it.

    Args:
        pieces: Of the body; see `body_pieces`.
        dataset: The dataset it is sent to.
        offset: Where in it the body begins.
    """
    view: ArrivalView | None = None
    async for piece in pieces:
        view = await to_thread.run_sync(arrivals.append, dataset, name, blob, offset, piece)
        offset += memoryview(piece).nbytes
    if view is None:
        view = await to_thread.run_sync(arrivals.append, dataset, name, blob, offset, b"")
    return view


async def body_pieces(request: Request) -> AsyncGenerator[Data, None]:
    """Yields a request's body in pieces of `PIECE_BYTES`, the last shorter; each is good until the next is asked for.

    It ends where the caller hangs up: nobody reads the answer, and what came is kept for the next request.
    """
    connection = request.scope.get(CONNECTION_KEY)
    reader = connection.take_body(request.scope) if isinstance(connection, BoundedConnection) else None
    if reader is not None:
        buffer = memoryview(bytearray(PIECE_BYTES))
        try:
            while count := await reader.fill(buffer):
                yield buffer[:count]
        finally:
            reader.close()
        return
    held = bytearray()
    with suppress(ClientDisconnect):
        async for part in request.stream():
            held += part
            if len(held) >= PIECE_BYTES:
                yield held
                held = bytearray()  # Not emptied: whoever took it may look at it yet.
    if held:
        yield held


def claimed(request: Request) -> Sequence[RecordingClaim]:
    """Returns who has sent, or is sending, what is in no dataset yet."""
    arrivals = cast("Arrivals | None", request.app.state.arrivals)
    return () if arrivals is None else arrivals.claimed()


def _arrival(*, request: Request, caller: Caller, dataset: str, name: str, id: str, size: int) -> Response:
    arrivals = _arrivals(request)
    _control(request).datasets.owners.require_readable(dataset, caller)
    return answered(arrivals.view(dataset, name, Blob(id=id, size_bytes=size)))


async def _receive(
    *, request: Request, caller: Caller, dataset: str, name: str, id: str, size: int, offset: int
) -> Response:
    blob, arrivals, control = Blob(id=id, size_bytes=size), _arrivals(request), _control(request)
    claim = RecordingClaim(holder=caller.holder, team=caller.team, size_bytes=size)

    def begin() -> None:
        arrivals.view(dataset, name, blob)  # What cannot be a recording begins no dataset.
        _begin(request, dataset, caller)
        arrivals.claim(dataset, name, blob, claim, partial(control.people.admit, caller))

    await to_thread.run_sync(begin)
    async with aclosing(body_pieces(request)) as pieces:
        view = await received(arrivals, pieces, dataset=dataset, name=name, blob=blob, offset=offset)
    if view.standing is not Standing.ARRIVING:
        await to_thread.run_sync(control.people.did, caller, "send a recording", f"{name} to {dataset}")
    return answered(view)


def _begin_dataset(*, request: Request, caller: Caller, dataset: str) -> Response:
    return answered(_begin(request, dataset, caller))


def _set_recipe(*, request: Request, caller: Caller, dataset: str, body: bytes) -> Response:
    arrivals = _arrivals(request)
    _begin(request, dataset, caller)
    arrivals.set_recipe(dataset, body)
    _control(request).people.did(caller, "set a recipe", dataset)
    return Response(status_code=204)


def _begin(request: Request, dataset: str, caller: Caller) -> DatasetOwner:
    """Refuses what is sent to a dataset of others; one that begins with it is the caller's team's. One of which only
    recordings are here is there already.
    """
    arrivals = cast("Arrivals | None", request.app.state.arrivals)
    there = arrivals is not None and arrivals.has(dataset)
    return _control(request).datasets.owners.begin(dataset, caller, there=there)


def _pictures(*, request: Request, caller: Caller, dataset: str, number: str, episode: str) -> Response:
    made = _control(request).datasets.pictures(dataset, number, episode, caller)
    return Response(made, media_type="image/png", headers={"cache-control": f"private, max-age={_PICTURES_S}"})


ARRIVAL_ENDPOINTS: Mapping[Route[..., Any], Callable[..., Any]] = {
    Calls.arrival: _arrival,
    Calls.begin_dataset: _begin_dataset,
    Calls.send: _receive,
    Calls.set_recipe: _set_recipe,
    Calls.pictures: _pictures,
}


def _control(request: Request) -> Control:
    return cast(Control, request.app.state.control)


def _arrivals(request: Request) -> Arrivals:
    arrivals = cast("Arrivals | None", request.app.state.arrivals)
    if arrivals is None:
        raise NotFound("receive recordings", got="a server that takes none", wanted="one started by ms up")
    return arrivals
