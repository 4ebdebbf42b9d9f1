"""Traffic between agents: copies of snapshots pushed ahead of any failure, and bytes asked for after one.

A copy holds the blocks of a snapshot that no other node has. It goes from the arena's memory to the socket, and from
the socket to the peer's memory; the peer checks every byte against the sender's checksums before it counts.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate
from typing import final

from mainspring.checkpoint import page_bytes_of
from mainspring.domain.errors import InvalidMessage, MainspringError, Unavailable
from mainspring.domain.ports import Backoff
from mainspring.domain.release import Unknown
from mainspring.domain.wire import (
    AgentToLead,
    BytesFollow,
    BytesRequest,
    CopyBegin,
    Detail,
    Done,
    Index,
    IndexEntry,
    IndexRequest,
    LineUse,
    PeerRequest,
    Shard,
    SnapshotTaken,
)
from mainspring.node.net.handshake import Credentials, call
from mainspring.node.net.pipes import PART_BYTES, PART_LIMIT_S, Pipe
from mainspring.node.snapshots.arena import Arena, Held
from mainspring.node.snapshots.copies import Copies
from mainspring.node.snapshots.work import SnapshotWork

ALIGNMENT_BYTES = 64  # Where snapshots and their copies begin a block.
GAP_BYTES_MAX = 4096  # Bytes nobody needs that are sent along, so that a copy is few runs.
CONNECTIONS_MAX = 512  # Served at once: every other agent may restore from this one.
QUIET_LIMIT_S = 60.0  # A connection that asks for nothing for so long is closed; opening it again costs a round trip.
ANSWER_LIMIT_S = 10.0  # Finding a snapshot, making room of a few gigabytes (4 GB/s), listing 100,000 shards.
VERIFY_BYTES_PER_S = 1 << 30  # Far less than any core's crc32c, which is 6 GB/s for small pages.
AGAIN = Backoff(first_s=0.5, cap_s=5.0)  # While the newest snapshot's copy cannot be delivered.
SHARDS_MAX = 4_000  # In one message: about 100,000 items and 1.5 MB, well inside what it may hold.
PATH_CHARACTERS_MAX = 1 << 20  # In one message, where paths are long.
INDEX_MAX = 400_000  # In all: 16 ranks of 12,000 shards, copies included.
IDLE_PIPES_MAX = 4  # Kept to one peer between requests.


@dataclass(frozen=True, slots=True, kw_only=True)
class Runs:
    """What of a snapshot goes into its copy.

    Args:
        shards: The copy's shards, with offsets in it.
        runs: Where its bytes lie in the snapshot, as (offset, size), in order.
    """

    shards: tuple[Shard, ...]
    runs: tuple[tuple[int, int], ...]
    size_bytes: int


def copied_runs(shards: Sequence[Shard]) -> Runs:
    """Returns what of a snapshot goes into its copy: the blocks saved once that are on no other node."""
    runs: list[tuple[int, int]] = []
    found: list[Shard] = []
    sent = 0  # Bytes of all runs but the last.
    for shard in sorted((shard for shard in shards if shard.once and not shard.elsewhere), key=lambda one: one.offset):
        begin = shard.offset - shard.offset % ALIGNMENT_BYTES
        end = -(-(shard.offset + shard.size_bytes) // ALIGNMENT_BYTES) * ALIGNMENT_BYTES
        if runs and begin - sum(runs[-1]) <= GAP_BYTES_MAX:
            runs[-1] = (runs[-1][0], max(end, sum(runs[-1])) - runs[-1][0])
        else:
            sent += runs[-1][1] if runs else 0
            runs.append((begin, end - begin))
        found.append(replace(shard, offset=sent + shard.offset - runs[-1][0]))
    return Runs(shards=tuple(found), runs=tuple(runs), size_bytes=sum(size for _, size in runs))


def page_end(shards: Sequence[Shard]) -> int:
    """Returns how many of the shards fit in one message, at least one."""
    ends = accumulate(len(shard.path) for shard in shards[:SHARDS_MAX])
    return max(1, sum(end <= PATH_CHARACTERS_MAX for end in ends))


@dataclass(frozen=True, slots=True, kw_only=True)
class Indexed:
    """What a peer holds of a step.

    Args:
        states: The programs' facts, by place.
    """

    entries: tuple[IndexEntry, ...]
    states: Mapping[str, Detail]


@dataclass(slots=True, eq=False)
class _Outbox:
    """One place's snapshots on their way to a peer; `newest` counts them."""

    newest: int = 0
    sending: bool = False
    changed: asyncio.Condition = field(default_factory=asyncio.Condition)

    async def superseded(self, mine: int, limit_s: float) -> bool:
        """Returns whether a newer one comes, within the limit."""
        try:
            async with asyncio.timeout(limit_s), self.changed:
                await self.changed.wait_for(lambda: mine != self.newest)
        except TimeoutError:
            return False
        return True


@final
class Peers:
    """This agent's dealings with others of its attempt.

    Args:
        credentials: What others know this agent by.
        arenas: This agent's own snapshots, by place; places may be added.
        work: Where what copies cost this agent's node is counted.
        tell_lead: Sends a message to the lead.
    """

    def __init__(
        self,
        *,
        credentials: Credentials,
        arenas: Mapping[int, Arena],
        copies: Copies,
        work: SnapshotWork,
        tell_lead: Callable[[AgentToLead], None],
    ) -> None:
        self._credentials = credentials
        self._arenas = arenas
        self._copies = copies
        self._work = work
        self._tell_lead = tell_lead
        self._outboxes: dict[int, _Outbox] = {}
        self._served: set[Pipe] = set()
        self._idle: dict[str, list[Pipe]] = {}

    # ------------------------------------------------------------ copies that leave

    async def push(self, address: str, held: Held) -> None:
        """Seals a snapshot and copies it to a peer; returns when that is done, or given up.

        One of a place's snapshots travels at a time and only the newest waits. One that cannot be delivered is tried
        again while it is the newest; one whose slot training wants is given up.

        Args:
            held: The snapshot; released by the caller.
        """
        box = self._outboxes.setdefault(held.holding.rank, _Outbox())
        box.newest = mine = box.newest + 1
        await asyncio.to_thread(self._work.computed, held.sealed)
        async with box.changed:
            box.changed.notify_all()
            await box.changed.wait_for(lambda: mine != box.newest or not box.sending)
            if mine != box.newest:
                return
            box.sending = True
        try:
            tries = 0
            while held.current and not held.wanted and not await self._delivered(address, held):
                tries += 1
                if await box.superseded(mine, AGAIN.wait_s(tries)):
                    return
        finally:
            async with box.changed:
                box.sending = False
                box.changed.notify_all()

    async def _delivered(self, address: str, held: Held) -> bool:
        try:
            pipe = await self._connect(address)
        except MainspringError:
            return False
        try:
            return await self._send_copy(pipe, held)
        except MainspringError:
            return False
        finally:
            pipe.close()

    async def _send_copy(self, pipe: Pipe, held: Held) -> bool:
        shards = (await asyncio.to_thread(held.sealed)).shards
        copy = self._work.computed(lambda: copied_runs(shards))
        offer = CopyBegin(holding=held.holding, shards=copy.shards, size_bytes=copy.size_bytes, state=held.state)
        self._work.computed(lambda: pipe.send(offer))
        await pipe.receive(Done, ANSWER_LIMIT_S)
        with self._work.travelling():
            for offset, size_bytes in copy.runs:
                for start in range(offset, offset + size_bytes, PART_BYTES):
                    if held.wanted or not held.current:
                        return False
                    await pipe.send_part(held.file, held.offset + start, min(PART_BYTES, offset + size_bytes - start))
        await pipe.receive(Done, ANSWER_LIMIT_S + copy.size_bytes / VERIFY_BYTES_PER_S)
        return True

    # ------------------------------------------------------------ what others ask

    async def serve(self, pipe: Pipe) -> None:
        """Serves the connection of another agent, which has proved itself, until it ends."""
        if len(self._served) >= CONNECTIONS_MAX:
            pipe.close()
            return
        pipe.unframe = self._work.read
        self._served.add(pipe)
        try:
            while await self._answered(pipe, await pipe.receive(PeerRequest, QUIET_LIMIT_S)):
                pass
        except MainspringError:
            pass  # It hung up, was too slow, or broke the rules: it may call again.
        finally:
            self._served.discard(pipe)
            pipe.close()

    async def _answered(self, pipe: Pipe, request: PeerRequest) -> bool:
        match request:
            case CopyBegin():
                return await self._take_copy(pipe, request)
            case IndexRequest():
                pipe.send(await self._index(request))
                return True
            case BytesRequest():
                await self._send_bytes(pipe, request)
                return True
            case Unknown():
                pipe.send(Done())  # It learns that this agent, older than itself, cannot do that.
                return True

    async def _take_copy(self, pipe: Pipe, offered: CopyBegin) -> bool:
        slot = await self._copies.begin(offered)
        if slot is None:
            return False
        try:
            pipe.send(Done())
            await pipe.receive_into(slot.front(offered.size_bytes))
            holding = await self._copies.keep(slot, offered, self._work)
        finally:
            self._copies.drop(slot)
        if holding is None:
            return False
        self._tell_lead(SnapshotTaken(holding=holding, cost_s=self._work.take()))
        pipe.send(Done())
        return True

    async def _index(self, request: IndexRequest) -> Index:
        held = self._all_held(request.step, request.taken_in)
        try:
            entries = [
                IndexEntry(rank=one.holding.rank, copied=one.holding.copied, shard=shard)
                for one in held
                for shard in (await asyncio.to_thread(one.sealed)).shards
            ]
            states = {str(one.holding.rank): one.state for one in held}
        finally:
            for one in held:
                one.release()
        page = entries[max(0, request.since) :]
        return Index(
            entries=tuple(page[: page_end([entry.shard for entry in page])]), total=len(entries), states=states
        )

    def _all_held(self, step: int, taken_in: int) -> list[Held]:
        own = [arena.hold(step, taken_in) for arena in self._arenas.values()]
        ranks = sorted({holding.rank for holding in self._copies.holdings})
        copies = [self._copies.hold(step, taken_in, rank) for rank in ranks]
        return [held for held in [*own, *copies] if held is not None]

    async def _send_bytes(self, pipe: Pipe, request: BytesRequest) -> None:
        held = self._held(request)
        if held is None:
            pipe.send(BytesFollow(size_bytes=0))
            return
        try:
            if request.checksums:
                table = (await asyncio.to_thread(held.sealed)).pages.astype("<u4").tobytes()
                wanted = table[request.offset : request.offset + request.size_bytes] if request.offset >= 0 else b""
                pipe.send(BytesFollow(size_bytes=len(wanted)))
                pipe.send_bytes(wanted)
                return
            end = request.offset + request.size_bytes
            if not 0 <= request.offset <= end <= len(held.data):
                pipe.send(BytesFollow(size_bytes=0))
                return
            pipe.send(BytesFollow(size_bytes=request.size_bytes))
            for start in range(request.offset, end, PART_BYTES):
                if held.wanted or not held.current:
                    raise Unavailable("send a snapshot", got="its slot is wanted")
                await pipe.send_part(held.file, held.offset + start, min(PART_BYTES, end - start))
        finally:
            held.release()

    def _held(self, request: BytesRequest) -> Held | None:
        if request.copied:
            return self._copies.hold(request.step, request.taken_in, request.rank)
        arena = self._arenas.get(request.rank)
        return arena.hold(request.step, request.taken_in) if arena is not None else None

    # ------------------------------------------------------------ what we ask others

    async def index(self, address: str, step: int, taken_in: int) -> Indexed:
        """Returns what a peer holds of a step.

        Raises:
            Unavailable: It does not answer.
            InvalidMessage: It does not keep to the rules.
        """
        pipe = await self._pipe(address)
        try:
            entries: list[IndexEntry] = []
            states: dict[str, Detail] = {}
            while True:
                pipe.send(IndexRequest(step=step, taken_in=taken_in, since=len(entries)))
                answer = await pipe.receive(Index, ANSWER_LIMIT_S)
                if not 0 <= answer.total <= INDEX_MAX:
                    raise InvalidMessage("list a peer's shards", on=address, got=f"{answer.total} in all")
                entries += answer.entries
                states.update(answer.states)
                if len(entries) >= answer.total:
                    break
                if not answer.entries:
                    raise InvalidMessage("list a peer's shards", on=address, got=f"{len(entries)} of {answer.total}")
        except BaseException:
            pipe.close()
            raise
        self._keep(address, pipe)
        for entry in entries:
            _check(entry.shard, address)
        return Indexed(entries=tuple(entries), states=states)

    async def read(self, address: str, request: BytesRequest, into: memoryview) -> None:
        """Fills `into` with bytes of a peer's snapshot, as the peer has them: not verified.

        Args:
            request: Which bytes.
            into: Where they go, as many as are asked for.

        Raises:
            Unavailable: The peer does not answer, or has them no longer.
            InvalidMessage: It does not keep to the rules.
        """
        pipe = await self._pipe(address)
        try:
            pipe.send(request)
            answer = await pipe.receive(BytesFollow, PART_LIMIT_S)
            if answer.size_bytes != len(into):
                raise Unavailable("read a peer's snapshot", on=address, got=f"{answer.size_bytes} of {len(into)} bytes")
            await pipe.receive_into(into)
        except BaseException:
            pipe.close()
            raise
        self._keep(address, pipe)

    def hang_up(self) -> None:
        """Closes the connections that were kept for the next request."""
        for pipes in self._idle.values():
            for pipe in pipes:
                pipe.close()
        self._idle = {}

    def close(self) -> None:
        """Hangs up on everybody."""
        self.hang_up()
        for pipe in list(self._served):
            pipe.close()

    async def _pipe(self, address: str) -> Pipe:
        idle = self._idle.get(address, [])
        while idle:
            pipe = idle.pop()
            if pipe.is_open:
                return pipe
        return await self._connect(address)

    def _keep(self, address: str, pipe: Pipe) -> None:
        idle = self._idle.setdefault(address, [])
        if len(idle) < IDLE_PIPES_MAX:
            idle.append(pipe)
        else:
            pipe.close()

    async def _connect(self, address: str) -> Pipe:
        return await call(address, LineUse.PEER, self._credentials)


def _check(shard: Shard, address: str) -> None:
    """Refuses a shard that cannot be: what a peer says decides how much memory is made and what is read."""
    axes = zip(shard.start, shard.shape, shard.global_shape, strict=False)
    inside = len(shard.start) == len(shard.shape) == len(shard.global_shape) and all(
        low >= 0 and size >= 0 and low + size <= whole for low, size, whole in axes
    )
    items = math.prod(shard.shape) if inside else 0
    sized = shard.size_bytes % items == 0 if items else shard.size_bytes == 0
    sealed = shard.page_bytes == page_bytes_of(shard.size_bytes) and 0 <= shard.crc32c <= 0xFFFFFFFF
    if not inside or not sized or shard.size_bytes < 0 or shard.offset < 0 or not sealed:
        raise InvalidMessage("list a peer's shards", on=address, got=f"a block of {shard.path[:200]} that cannot be")
