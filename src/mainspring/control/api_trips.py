"""Trips to other threads: small calls that come at one time are answered in one, for a trip costs as much as a call."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Generic, TypeVar, final

from anyio import to_thread
from fastapi import Request

from mainspring.control.service.evaluations.rules import RUN_KEYS
from mainspring.control.service.steering.repeats import bare_key
from mainspring.control.store.store import PIECES_MAX
from mainspring.domain import answers
from mainspring.domain.errors import InvalidInput
from mainspring.domain.routes import KEY_HEADER
from mainspring.domain.wire.telemetry import TRACEPARENT_HEADER, place_from

Item = TypeVar("Item")
Value = TypeVar("Value")


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """A call that waits for its trip.

    Args:
        secret: What its caller showed.
    """

    request: Request
    secret: str
    body: bytes


@final
class Trips(Generic[Item, Value]):
    """Has one other thread at a time answer what many ask for; what comes meanwhile waits, and goes together.

    Used by the event loop's thread alone; what waits is bounded by `REQUESTS_MAX` for each caller.

    Args:
        act: Called in some thread with several items; it returns an answer or an error for each.
    """

    def __init__(self, act: Callable[[Sequence[Item]], Sequence[Value | Exception]]) -> None:
        self._act = act
        self._waiting: deque[tuple[Item, asyncio.Future[Value]]] = deque()
        self._under_way: asyncio.Task[None] | None = None

    async def ask(self, item: Item) -> Value:
        """Returns the answer for one item.

        Raises:
            Exception: The error that was returned in place of one.
        """
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[Value] = loop.create_future()
        self._waiting.append((item, answer))
        if len(self._waiting) == 1:
            loop.call_soon(self._set_out)  # Once all is read that has come by now.
        return await answer

    def _set_out(self) -> None:
        if self._waiting and self._under_way is None:
            some = [self._waiting.popleft() for _ in range(min(len(self._waiting), PIECES_MAX))]
            self._under_way = asyncio.get_running_loop().create_task(self._travel(some))
            self._under_way.add_done_callback(self._return)

    def _return(self, _: object) -> None:
        self._under_way = None
        self._set_out()

    async def _travel(self, some: Sequence[tuple[Item, asyncio.Future[Value]]]) -> None:
        try:
            answers = await to_thread.run_sync(self._act, [item for item, _ in some])
        except Exception as error:  # noqa: BLE001  Whatever it is, it is told to everybody who waits.
            answers = [error] * len(some)
        for (_, future), answer in zip(some, answers, strict=True):
            if future.done():  # Its caller waits no longer.
                continue
            if isinstance(answer, Exception):
                future.set_exception(answer)
            else:
                future.set_result(answer)


def keyed(request: Request, submits: Sequence[answers.Submit]) -> tuple[answers.Submit, ...]:
    """Returns submits of which each that names no key, or no span above it, has one where the headers give it.

    Raises:
        InvalidInput: A key is of those that rules of evaluations submit under.
    """
    if place_from(above := request.headers.get(TRACEPARENT_HEADER, "")) is not None:
        submits = [replace(submit, traceparent=submit.traceparent or above.strip()) for submit in submits]
    header = request.headers.get(KEY_HEADER)
    if header is not None:
        keys = [bare_key(header), *(f"{bare_key(header)}.{at}" for at in range(1, len(submits)))]
        submits = [replace(submit, key=submit.key or key) for submit, key in zip(submits, keys, strict=True)]
    for key in (submit.key for submit in submits if submit.key.startswith(RUN_KEYS)):
        kept = f"one that does not begin with {RUN_KEYS!r}, as those of evaluations do that rules start"
        raise InvalidInput("submit a job", on="field 'key'", got=repr(key[:80]), wanted=kept)
    return tuple(submits)
