"""Streams of server-sent events: a job's output until it ends, and events of the lab or of one job."""

from __future__ import annotations

import codecs
from collections.abc import AsyncIterator
from functools import partial
from math import inf
from typing import final

import anyio
from anyio import to_thread
from fastapi import Request

from mainspring.control.control import Control
from mainspring.control.store.records import events_since, newest_event
from mainspring.control.store.tokens import Caller, Sight
from mainspring.domain.codec import encode
from mainspring.domain.errors import TooManyRequests, Unavailable
from mainspring.domain.ids import JobId
from mainspring.domain.routes import LIST_MAX

FOLLOWERS_MAX = 256  # Each holds a connection; one of output asks its engine twice a second.
PAGES_MAX = 16  # Of events, kept for those who ask for the same a moment later.
_POLL_S = 0.5
_LOOK_S = 0.2  # How soon an event is heard of.
QUIET_S = 15.0  # A comment this often keeps proxies from closing a quiet stream, and finds readers that left.
ASKED_S = 2.0  # How soon a stream ends whose reader may not read it any more.
_DIGITS_MAX = 19  # Of a sequence: what a database's whole numbers hold.
_QUIET = b": still here\n\n"


@final
class Followers:
    """Counts open streams, and looks for new events once for all of them. Used by the event loop's thread alone.

    Args:
        quiet_s: How long a stream may say nothing.
        asked_s: How long its reader is taken for one who may read it.
    """

    def __init__(self, *, quiet_s: float = QUIET_S, asked_s: float = ASKED_S) -> None:
        self.count = 0
        self.quiet_s = quiet_s
        self.asked_s = asked_s
        self._newest = 0
        self._looked_s = -inf
        self._looking = anyio.Lock()
        self._pages: dict[tuple[object, ...], tuple[tuple[int, bytes], ...]] = {}
        self._reading = anyio.Lock()

    def check(self, control: Control, attempted: str) -> None:
        """Returns if there is room for one more.

        Args:
            attempted: What it is for, as a clause.

        Raises:
            TooManyRequests: There is not.
            Busy: This server ends.
        """
        control.pulse.require_staying(attempted)
        if self.count >= FOLLOWERS_MAX:
            raise TooManyRequests(attempted, got=f"{self.count} open streams", next_step="ask now and then instead")

    async def newest(self, control: Control) -> int:
        """Returns the sequence of the newest event, as it was `_LOOK_S` ago at the earliest."""
        async with self._looking:
            if anyio.current_time() - self._looked_s >= _LOOK_S:
                self._newest = await to_thread.run_sync(_newest, control)
                self._looked_s = anyio.current_time()
        return self._newest

    async def page(
        self, control: Control, job: JobId | None, may: Sight, *, since: int, newest: int
    ) -> tuple[tuple[int, bytes], ...]:
        """Returns the next events as they are told, each with its sequence: read once for all who wait for the same.

        Args:
            job: Only of this job, unless None.
            may: What its reader may read.
            since: The last sequence that was told.
            newest: The newest event that is known of.
        """
        wanted = (job, may, since, newest)
        async with self._reading:
            if wanted not in self._pages:
                read = partial(_page, control, job, may, since)
                self._pages[wanted] = await to_thread.run_sync(read)
                if len(self._pages) > PAGES_MAX:
                    del self._pages[next(iter(self._pages))]
            return self._pages[wanted]


def _newest(control: Control) -> int:
    with control.store.read() as connection:
        return newest_event(connection)


def _page(control: Control, job: JobId | None, may: Sight, since: int) -> tuple[tuple[int, bytes], ...]:
    with control.store.read() as connection:
        seen = None if job else may.teams
        found = events_since(connection, since=since, limit=LIST_MAX, job=job, seen=seen)
    return tuple((one.sequence, b"id: %d\ndata: %s\n\n" % (one.sequence, encode(one))) for one in found)


@final
class _Reader:
    """Who reads a stream, and whether they still may, however much it says: a token is removed, an open team closed, or
    the server ends, so that they go on elsewhere.

    Args:
        job: What they read of, None for all that they may.
    """

    def __init__(self, control: Control, followers: Followers, caller: Caller, job: str | None) -> None:
        self._look = partial(control.may_follow, job, caller)
        self._pulse = control.pulse
        self._asked_s = followers.asked_s
        self._until_s = -inf
        self._may: Sight | None = None

    async def may(self) -> Sight | None:
        """Returns what they may read; None where they may not go on."""
        if self._pulse.ending:
            return None
        if anyio.current_time() >= self._until_s:
            self._may = await to_thread.run_sync(self._look)
            self._until_s = anyio.current_time() + self._asked_s
        return self._may


def followed_output(
    control: Control, followers: Followers, job: str, caller: Caller, *, rank: int, since: int, attempt: int | None
) -> AsyncIterator[bytes]:
    """Yields server-sent events: `log` with the attempt's number and text, `end` with the job's last state.

    The id of each event is "attempt:offset", from which another stream may go on.

    Args:
        followers: What is open beside it.
        job: The job's id or name.
        caller: Who asks; the stream ends with their token, or when they may not read the job any more.
        since: Byte offset to start from, in the first attempt shown.
        attempt: Number of that attempt; the newest when None.

    Raises:
        NotFound: No such job, attempt or rank.
        TooManyRequests: Too many streams are open.
    """
    followers.check(control, "follow a job's output")
    # Asked once here, so that a wrong name is an error and not a stream that ends at once.
    control.logs(job, caller, rank=rank, since=since, attempt=attempt, limit=1)
    progress = control.progress(control.job(job, caller).id)
    first = attempt or max(1, len(progress.attempts))
    return _output(control, followers, progress.job, caller, rank=rank, since=since, attempt=first)


async def _output(
    control: Control, followers: Followers, job: str, caller: Caller, *, rank: int, since: int, attempt: int
) -> AsyncIterator[bytes]:
    followers.count += 1
    try:
        text = codecs.getincrementaldecoder("utf-8")("replace")
        told_s, reader = anyio.current_time(), _Reader(control, followers, caller, job)
        while await reader.may() is not None:
            progress = await to_thread.run_sync(control.progress, job)
            data, next_offset, answered = b"", since, True
            if attempt <= len(progress.attempts):
                try:
                    read = partial(control.logs, job, rank=rank, since=since, attempt=attempt)
                    chunk = await to_thread.run_sync(read)
                    data, next_offset = chunk.data, chunk.next_offset
                except Unavailable:
                    answered = False  # What is still to be read there must not be passed over.
            passed_over = next_offset - since - len(data)
            if data:
                since, told_s = next_offset, anyio.current_time()
                gap = f"[{passed_over} bytes of output are no longer kept]\n" if passed_over > 0 else ""
                told = {"attempt": attempt, "text": gap + text.decode(data)}
                yield b"event: log\nid: %d:%d\ndata: %s\n\n" % (attempt, since, encode(told))
                continue
            if answered and attempt < len(progress.attempts):
                attempt, since = attempt + 1, 0
                text.reset()
                continue
            if answered and progress.ended:
                yield _end(progress.state.value)
                return
            if anyio.current_time() - told_s >= followers.quiet_s:
                told_s = anyio.current_time()
                yield _QUIET
            await anyio.sleep(_POLL_S)
    finally:
        followers.count -= 1


def followed_events(
    control: Control, followers: Followers, job: str | None, caller: Caller, *, since: int
) -> AsyncIterator[bytes]:
    """Yields events as server-sent events, each with its sequence as id, from which another stream goes on.

    Those of a job end with `end` and its last state; those of the lab go on for as long as somebody listens.

    Args:
        followers: What is open beside it.
        job: The job's id or name, None for all that the caller may read.
        caller: Who asks; the stream ends with their token.
        since: The last sequence the caller has seen.

    Raises:
        NotFound: No such job.
        TooManyRequests: Too many streams are open.
    """
    followers.check(control, "follow events")
    return _events(control, followers, None if job is None else control.job(job, caller).id, caller, since=since)


async def _events(
    control: Control, followers: Followers, job: JobId | None, caller: Caller, *, since: int
) -> AsyncIterator[bytes]:
    followers.count += 1
    try:
        told_s, reader = anyio.current_time(), _Reader(control, followers, caller, job)
        seen = -1  # What has been looked through, this caller's events or not.
        while (may := await reader.may()) is not None:
            newest = await followers.newest(control)
            if newest > seen:
                ended = "" if job is None else await to_thread.run_sync(_ended, control, job)
                page = await followers.page(control, job, may, since=since, newest=newest)
                for sequence, told in page:
                    yield told
                    since, told_s = sequence, anyio.current_time()
                if len(page) == LIST_MAX:
                    continue
                since, seen = max(since, newest), newest
                if ended:
                    yield _end(ended)
                    return
            if anyio.current_time() - told_s >= followers.quiet_s:
                told_s = anyio.current_time()
                yield _QUIET
            await anyio.sleep(_LOOK_S)
    finally:
        followers.count -= 1


def _ended(control: Control, job: str) -> str:
    progress = control.progress(job)
    return progress.state.value if progress.ended else ""


def _end(state: str) -> bytes:
    return b"event: end\ndata: %s\n\n" % encode({"state": state})


def resumed(request: Request, since: int) -> int:
    """Returns the last event that a follower has seen: a browser that connects again says so by a header."""
    last = request.headers.get("last-event-id", "")
    return max(since, int(last)) if last.isascii() and last.isdigit() and len(last) < _DIGITS_MAX else since
