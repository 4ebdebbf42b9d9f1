"""Streams of server-sent events: a job's output until it ends, and events of the lab or of one job.

Events are read once for all who follow them: one look at the store a fifth of a second, or a second where they are
many. Whoever is further behind than what is kept of them reads on from the store by themselves, and loses nothing.
"""

from __future__ import annotations

import asyncio
import codecs
import logging
from bisect import bisect_right
from collections.abc import AsyncIterator, Collection, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from math import inf
from typing import final

import anyio
import sqlalchemy as sa
from anyio import to_thread
from fastapi import Request

from mainspring.control.control import Control
from mainspring.control.store.records import events_of_teams, events_since, newest_event, teams_of_jobs
from mainspring.control.store.tokens import Caller, Sight, good_tokens, sight
from mainspring.domain.answers import Event
from mainspring.domain.codec import encode
from mainspring.domain.errors import MainspringError, TooManyRequests, Unavailable
from mainspring.domain.ids import JobId, TeamName
from mainspring.domain.routes import LIST_MAX

FOLLOWERS_MAX = 1_024  # Of events. Each holds a connection, and a task that sleeps until there is something for it.
OUTPUTS_MAX = 256  # Followers of output: each asks its engine twice a second.
KEPT_MAX = 4_096  # Events kept for those who follow: more than a minute of a large lab's.
KEPT_BYTES_MAX = 8 << 20  # Of them together: events are some 300 bytes, but stacks of ranks may be in them.
PIECE_BYTES_MAX = 1 << 18  # Told at once: what a reader who is slow has waiting in its connection.
_POLL_S = 0.5
_LOOK_S, _LOOK_S_MAX = 0.2, 1.0  # How soon an event is heard of.
_LOOK_S_EACH = 0.0025  # Per stream: to wake a thousand of them each fifth of a second takes a fifth of a core.
QUIET_S = 15.0  # A comment this often keeps proxies from closing a quiet stream, and finds readers that left.
ASKED_S = 2.0  # How soon a stream ends whose reader may not read it any more.
_DIGITS_MAX = 19  # Of a sequence: what a database's whole numbers hold.
_QUIET = b": still here\n\n"
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class ToldEvent:
    """An event as it is told, and whom it is for.

    Args:
        team: Whose job it is of; None for one that is of no job, or of a job that is gone.
        text: Of the stream.
    """

    sequence: int
    job: JobId | None
    team: TeamName | None
    text: bytes

    def is_for(self, job: JobId | None, may: Sight) -> bool:
        """Returns whether somebody is told it who follows a job, or all that they may read."""
        return self.job == job if job is not None else may.teams is None or self.team in may.teams


@final
class Tail:
    """The newest events, in their order: all of them after `floor`, up to `newest`.

    Args:
        newest: Where it begins.
        kept_max: How many it keeps, the newest.
        bytes_max: How long their texts may be together.
    """

    def __init__(self, newest: int, *, kept_max: int = KEPT_MAX, bytes_max: int = KEPT_BYTES_MAX) -> None:
        self.floor = self.newest = newest
        self._kept: list[ToldEvent] = []
        self._bytes = 0
        self._kept_max, self._bytes_max = kept_max, bytes_max

    def add(self, told: Iterable[ToldEvent]) -> None:
        """Adds events that come after all there are, and forgets the oldest beyond what it keeps."""
        for one in told:
            assert one.sequence > self.newest, "events are told in their order"
            self._kept.append(one)
            self._bytes += len(one.text)
            self.newest = one.sequence
        gone = 0
        while gone < len(self._kept) and (len(self._kept) - gone > self._kept_max or self._bytes > self._bytes_max):
            self._bytes -= len(self._kept[gone].text)
            self.floor = self._kept[gone].sequence
            gone += 1
        del self._kept[:gone]

    def after(self, since: int, job: JobId | None, may: Sight) -> TailPiece:
        """Returns what somebody is told next.

        Args:
            since: The last event that they were told, or that was looked through for them; not below `floor`.
            job: Only of this job, unless None.
            may: What they may read.
        """
        assert since >= self.floor, "what is not kept is read from the store"
        texts, size = [], 0
        for place in range(bisect_right(self._kept, since, key=lambda one: one.sequence), len(self._kept)):
            one = self._kept[place]
            if one.is_for(job, may):
                texts.append(one.text)
                size += len(one.text)
                if size >= PIECE_BYTES_MAX:
                    return TailPiece(text=b"".join(texts), until=one.sequence, whole=False)
        return TailPiece(text=b"".join(texts), until=max(since, self.newest), whole=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class TailPiece:
    """What somebody is told next.

    Args:
        text: Of the stream, b"" for nothing.
        until: The last event that it says, or leaves out because it is not for them.
        whole: Whether there was no more.
    """

    text: bytes
    until: int
    whole: bool


@final
class _Follower:
    """One stream of events.

    Args:
        job: What they follow, None for all that they may read.
    """

    def __init__(self, caller: Caller, job: JobId | None) -> None:
        self.caller, self.job = caller, job
        self.may: Sight | None = Sight(frozenset())  # What they may read; None once their stream is to end.
        self.woken = asyncio.Event()

    def end(self) -> None:
        self.may = None
        self.woken.set()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Look:
    """What one look at the store found.

    Args:
        newest: The newest event that there is.
        told: Those after the last that were known, as many as are read at once.
        rights: What each of those may read who were asked about, None for nothing any more.
    """

    newest: int
    told: tuple[ToldEvent, ...]
    rights: Sequence[Sight | None]


@final
class Followers:
    """The open streams, and one look at the store for all of them. Used by the event loop's thread alone.

    Args:
        quiet_s: How long a stream may say nothing.
        asked_s: How long its reader is taken for one who may read it.
        kept_max: How many events are kept.
    """

    def __init__(self, *, quiet_s: float = QUIET_S, asked_s: float = ASKED_S, kept_max: int = KEPT_MAX) -> None:
        self.outputs = 0
        self.quiet_s = quiet_s
        self.asked_s = asked_s
        self.tail: Tail | None = None  # None while nobody follows, or nothing was looked at yet.
        self._kept_max = kept_max
        self._open: dict[_Follower, None] = {}
        self._looking: asyncio.Task[None] | None = None

    @property
    def count(self) -> int:
        """Returns how many streams of events there are."""
        return len(self._open)

    def check(self, control: Control, attempted: str, *, output: bool = False) -> None:
        """Returns if there is room for one more.

        Args:
            attempted: What it is for, as a clause.
            output: Whether it is one of output.

        Raises:
            TooManyRequests: There is not.
            Busy: This server ends.
        """
        control.pulse.require_staying(attempted)
        count, most = (self.outputs, OUTPUTS_MAX) if output else (self.count, FOLLOWERS_MAX)
        if count >= most:
            raise TooManyRequests(attempted, got=f"{count} open streams", next_step="ask now and then instead")

    def join(self, control: Control, follower: _Follower) -> None:
        """Has a stream woken when there is something for it, or when it is to end."""
        self._open[follower] = None
        if self._looking is None:
            self._looking = asyncio.get_running_loop().create_task(self._look_on(control))

    def leave(self, follower: _Follower) -> None:
        """Forgets a stream; nothing is looked at for nobody."""
        self._open.pop(follower, None)
        if not self._open and self._looking is not None:
            self._looking.cancel()
            self._looking = self.tail = None

    async def _look_on(self, control: Control) -> None:
        """Looks for new events, and whether those who follow still may, until nobody does."""
        asked_s = anyio.current_time()
        try:
            while not control.pulse.ending:
                asked = [*self._open] if anyio.current_time() - asked_s >= self.asked_s else []
                look = await to_thread.run_sync(_look, control, None if self.tail is None else self.tail.newest, asked)
                if asked:
                    asked_s = anyio.current_time()
                for follower, may in zip(asked, look.rights, strict=True):
                    if may is None:
                        follower.end()
                    elif follower.may is not None:
                        follower.may = may
                self._take(look)
                if len(look.told) < LIST_MAX:
                    await anyio.sleep(min(_LOOK_S_MAX, max(_LOOK_S, _LOOK_S_EACH * self.count)))
        except MainspringError as error:
            _log.warning("streams of events are cut short: %s", error)
        except Exception:  # noqa: BLE001  Whatever it is, nobody waits for what does not come.
            _log.exception("streams of events are cut short")
        self._looking = self.tail = None
        for follower in [*self._open]:  # They are asked for again, of a server that can.
            follower.end()

    def _take(self, look: _Look) -> None:
        if self.tail is None or look.newest < self.tail.newest:  # The first look; or a store that went back in time.
            begin = look.told[0].sequence - 1 if look.told else look.newest
            self.tail = Tail(begin, kept_max=self._kept_max)
        self.tail.add(look.told)
        news = {one.job for one in look.told}
        for follower in self._open:
            if news and (follower.job is None or follower.job in news):
                follower.woken.set()


def _look(control: Control, since: int | None, asked: Sequence[_Follower]) -> _Look:
    """Returns what came after an event; or where there is none yet, the newest that there are.

    Args:
        asked: Of whom it is looked up what they may read.
    """
    with control.store.read() as connection:
        newest = newest_event(connection)
        found = events_of_teams(connection, since=since, limit=LIST_MAX) if newest != since else ()
        told = tuple(
            ToldEvent(sequence=one.event.sequence, job=one.event.job, team=one.team, text=_text(one.event))
            for one in found
        )
        return _Look(newest=newest, told=told, rights=_rights(connection, asked, control.clock.now_s()))


def _rights(connection: sa.Connection, asked: Collection[_Follower], now_s: float) -> Sequence[Sight | None]:
    """Returns what each of those who follow may read, None for nothing any more."""
    if not asked:
        return ()
    good = good_tokens(connection, {one.caller.token for one in asked}, now_s)
    whose = teams_of_jobs(connection, {one.job for one in asked if one.job is not None})
    seen = {(one.caller.role, one.caller.team): one.caller for one in asked}
    sights = {at: Sight(sight(connection, caller)) for at, caller in seen.items()}

    def right(one: _Follower) -> Sight | None:
        may = sights[one.caller.role, one.caller.team]
        if one.caller.token not in good or (one.job is not None and one.job not in whose):
            return None
        return may if one.job is None or may.teams is None or whose[one.job] in may.teams else None

    return [right(one) for one in asked]


def _text(event: Event) -> bytes:
    return b"id: %d\ndata: %s\n\n" % (event.sequence, encode(event))


def _read(control: Control, job: JobId | None, may: Sight, since: int) -> TailPiece:
    """Returns the next events from the store, for somebody who is far behind."""
    with control.store.read() as connection:
        newest = newest_event(connection)
        seen = None if job else may.teams
        found = events_since(connection, since=since, limit=LIST_MAX, job=job, seen=seen)
    texts, size = [], 0
    for event in found:
        texts.append(_text(event))
        size += len(texts[-1])
        if size >= PIECE_BYTES_MAX:
            return TailPiece(text=b"".join(texts), until=event.sequence, whole=False)
    whole = len(found) < LIST_MAX
    until = max(since, newest) if whole else found[-1].sequence
    return TailPiece(text=b"".join(texts), until=until, whole=whole)


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
    followers.check(control, "follow a job's output", output=True)
    # Asked once here, so that a wrong name is an error and not a stream that ends at once.
    control.logs(job, caller, rank=rank, since=since, attempt=attempt, limit=1)
    progress = control.progress(control.job(job, caller).id)
    first = attempt or max(1, len(progress.attempts))
    return _output(control, followers, progress.job, caller, rank=rank, since=since, attempt=first)


async def _output(
    control: Control, followers: Followers, job: str, caller: Caller, *, rank: int, since: int, attempt: int
) -> AsyncIterator[bytes]:
    followers.outputs += 1
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
    except MainspringError as error:  # It is asked for again, and who asks is told why it cannot be had.
        _log.info("a stream of output ends: %s", error)
    finally:
        followers.outputs -= 1


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
    follower = _Follower(caller, job)
    followers.join(control, follower)
    try:
        may = await to_thread.run_sync(control.may_follow, job, caller)
        if follower.may is not None:  # Their stream may have been ended meanwhile.
            follower.may = may
        told_s, ends = anyio.current_time(), job is not None  # Whether its job may have ended since that was looked up.
        while (may := follower.may) is not None and not control.pulse.ending:
            follower.woken.clear()
            ended = await to_thread.run_sync(_ended, control, job) if ends and job is not None else ""
            tail = followers.tail
            if ended or tail is None or since < tail.floor:
                piece = await to_thread.run_sync(_read, control, job, may, since)
            else:
                piece = tail.after(since, job, may)
            since, ends = piece.until, False
            if piece.text:
                yield piece.text
                told_s, ends = anyio.current_time(), True
            if ended and piece.whole:
                yield _end(ended)
                return
            if ended or not piece.whole or piece.text:
                continue
            with anyio.move_on_after(max(0.0, told_s + followers.quiet_s - anyio.current_time())):
                await follower.woken.wait()
                continue
            yield _QUIET
            told_s, ends = anyio.current_time(), True
    except MainspringError as error:  # It is asked for again, and who asks is told why it cannot be had.
        _log.info("a stream of events ends: %s", error)
    finally:
        followers.leave(follower)


def _ended(control: Control, job: str) -> str:
    progress = control.progress(job)
    return progress.state.value if progress.ended else ""


def _end(state: str) -> bytes:
    return b"event: end\ndata: %s\n\n" % encode({"state": state})


def resumed(request: Request, since: int) -> int:
    """Returns the last event that a follower has seen: a browser that connects again says so by a header."""
    last = request.headers.get("last-event-id", "")
    return max(since, int(last)) if last.isascii() and last.isdigit() and len(last) < _DIGITS_MAX else since
