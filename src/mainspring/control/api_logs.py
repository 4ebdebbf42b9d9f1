"""Following one rank's output as server-sent events, across attempts, until the job ends."""

from __future__ import annotations

import codecs
from collections.abc import AsyncIterator
from functools import partial

import anyio
from anyio import to_thread

from mainspring.control.control import Control
from mainspring.control.store.tokens import Caller
from mainspring.domain.codec import encode
from mainspring.domain.errors import Unavailable

FOLLOWERS_MAX = 256  # Each holds a connection and asks its engine twice a second.
_POLL_S = 0.5
_QUIET_POLLS = 30  # A comment this often keeps proxies from closing a quiet stream, and finds readers that left.


class Followers:
    """Counts open streams. Used by the event loop's thread alone."""

    def __init__(self) -> None:
        self.count = 0


def followed(
    control: Control, followers: Followers, job: str, caller: Caller, *, rank: int, since: int, attempt: int | None
) -> AsyncIterator[bytes]:
    """Yields server-sent events: `log` with the attempt's number and text, `end` with the job's last state.

    The id of each event is "attempt:offset", from which another stream may go on.

    Args:
        followers: How many streams are open.
        job: The job's id or name.
        caller: Who asks.
        since: Byte offset to start from, in the first attempt shown.
        attempt: Number of that attempt; the newest when None.

    Raises:
        NotFound: No such job, attempt or rank.
        Unavailable: Too many streams are open.
    """
    if followers.count >= FOLLOWERS_MAX:
        raise Unavailable("follow a job's output", got=f"{followers.count} open streams", next_step="poll instead")
    # Asked once here, so that a wrong name is an error and not a stream that ends at once.
    control.logs(job, caller, rank=rank, since=since, attempt=attempt, limit=1)
    progress = control.progress(control.job(job, caller).id)
    first = attempt or max(1, len(progress.attempts))
    return _stream(control, followers, progress.job, rank=rank, since=since, attempt=first)


async def _stream(
    control: Control, followers: Followers, job: str, *, rank: int, since: int, attempt: int
) -> AsyncIterator[bytes]:
    followers.count += 1
    try:
        text = codecs.getincrementaldecoder("utf-8")("replace")
        quiet = 0
        while True:
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
                since, quiet = next_offset, 0
                gap = f"[{passed_over} bytes of output are no longer kept]\n" if passed_over > 0 else ""
                told = {"attempt": attempt, "text": gap + text.decode(data)}
                yield b"event: log\nid: %d:%d\ndata: %s\n\n" % (attempt, since, encode(told))
                continue
            if answered and attempt < len(progress.attempts):
                attempt, since = attempt + 1, 0
                text.reset()
                continue
            if answered and progress.ended:
                yield b"event: end\ndata: %s\n\n" % encode({"state": progress.state.value})
                return
            quiet += 1
            if quiet % _QUIET_POLLS == 0:
                yield b": still here\n\n"
            await anyio.sleep(_POLL_S)
    finally:
        followers.count -= 1
