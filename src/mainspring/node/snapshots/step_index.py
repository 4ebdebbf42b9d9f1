"""Index of one step: in this agent's memory, in other agents', in the object store.

Sources of a block stand in this order: snapshots here, copies here, peers' snapshots, peers' copies, the store. Two
sources count as holding the same block only when its checksum is the same, so that states never mix.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import final

from mainspring.checkpoint import Checkpoint
from mainspring.domain.errors import DamagedData, MainspringError, NotFound, Unavailable
from mainspring.domain.ids import RoleName
from mainspring.domain.wire import Detail, Holder, Holding, PrepareGeneration, RankPlace, Shard
from mainspring.node.snapshots.arena import Arena
from mainspring.node.snapshots.copies import Copies
from mainspring.node.snapshots.peers import Indexed, Peers
from mainspring.node.snapshots.sources import ByteSource, HereSource, PeerSource, StoredSource
from mainspring.node.snapshots.stores import Stores

PEERS_AT_ONCE = 16  # Asked for their lists at the same time.


@dataclass(slots=True, eq=False)
class Entry:
    """One block of a rank's list, and who has it (a source, and the block's number there), best first."""

    shard: Shard
    homes: list[tuple[ByteSource, int]]


@dataclass(slots=True, eq=False)
class Listing:
    """What one rank may ask for: the first `near` entries are near, the others with other agents or stored."""

    entries: list[Entry] = field(default_factory=list)
    state: Detail = field(default_factory=dict)
    near: int = 0
    everywhere: bool = False
    _numbers: dict[tuple[str, tuple[int, ...], tuple[int, ...]], int] = field(default_factory=dict)

    def add(self, source: ByteSource, *, only_known: bool = False) -> None:
        """Takes a source's facts and blocks; of blocks already listed, it becomes the last home.

        Args:
            only_known: Whether blocks that are not listed yet are passed over.
        """
        self.state = {**source.state, **self.state}
        for number, shard in source.shards.items():
            key = (shard.path, shard.start, shard.shape)
            known = self._numbers.get(key)
            if known is not None:
                entry = self.entries[known]
                if _same_bytes(entry.shard, shard) and all(home is not source for home, _ in entry.homes):
                    entry.homes.append((source, number))
            elif not only_known:
                self._numbers[key] = len(self.entries)
                self.entries.append(Entry(shard, [(source, number)]))


@final
class _StoredStep:
    """The step in the object store, opened once at the most."""

    def __init__(self, order: PrepareGeneration, stores: Stores, prefix: Callable[[RoleName], str]) -> None:
        self._order = order
        self._stores = stores
        self._prefix = prefix
        self.opened: Checkpoint | None = None
        self._looked = False
        self._sources: dict[RoleName, StoredSource] = {}

    async def open(self) -> None:
        self._looked = True
        begins_from = self._order.begins_from
        opening = self._stores.open_other(begins_from) if begins_from else self._stores.open(self._order.step)
        self.opened = await opening

    async def find(self) -> Checkpoint | None:
        """Returns the step where the store has it; as the last hope, it does not say why it has not."""
        if not self._looked:
            with contextlib.suppress(MainspringError):
                await self.open()
        return self.opened

    def source(self, checkpoint: Checkpoint, role: RoleName) -> StoredSource:
        if role not in self._sources:
            prefix = self._prefix(role)
            if self._order.begins_from and not any(shard.path.startswith(prefix) for shard in checkpoint.shards):
                prefix = ""  # It was not saved by roles of these names: every role is given all of it.
            self._sources[role] = StoredSource(self._stores, checkpoint, prefix)
        return self._sources[role]


@final
class _StepOfPeers:
    """The step in other agents' memory; each of them is asked once for its list."""

    def __init__(self, order: PrepareGeneration, agent: int, peers: Peers) -> None:
        self._order = order
        self._agent = agent
        self._peers = peers
        self._indices: dict[str, asyncio.Task[Indexed]] = {}
        self._sources: dict[tuple[str, int, bool], PeerSource] = {}
        self._turns = asyncio.Semaphore(PEERS_AT_ONCE)

    def cancel(self) -> None:
        for task in self._indices.values():
            task.cancel()

    @property
    def holders(self) -> list[Holder]:
        """Returns the other agents that hold part of the step; each agent begins at another one, to spread reads."""
        others = [holder for holder in self._order.holders if holder.agent != self._agent]
        return sorted(others, key=lambda holder: (holder.agent < self._agent, holder.agent))

    async def of(self, role: RoleName) -> list[PeerSource]:
        """Returns what other agents hold of a role, snapshots before copies; those that do not answer are left out."""
        others = [holder for holder in self.holders if any(holding.role == role for holding in holder.holdings)]
        indices = await asyncio.gather(*(self._index(holder.address) for holder in others))
        found = []
        for holder, indexed in zip(others, indices, strict=True):
            mine = [one for one in holder.holdings if one.role == role and _wanted(self._order, one)]
            for holding in mine if indexed is not None else []:
                assert indexed is not None
                source = self._source(holder.address, holding, indexed)
                found += [source] if source is not None else []
        return sorted(found, key=lambda source: source.holding.copied)

    def _source(self, address: str, holding: Holding, indexed: Indexed) -> PeerSource | None:
        key = (address, holding.rank, holding.copied)
        if key not in self._sources:
            if str(holding.rank) not in indexed.states:
                return None  # It had the snapshot when the lead last heard of it.
            mine = [entry.shard for entry in indexed.entries if (entry.rank, entry.copied) == key[1:]]
            shards = [replace(shard, file="") for shard in mine]
            state = indexed.states[str(holding.rank)]
            self._sources[key] = PeerSource(self._peers, address, holding, shards, state)
        return self._sources[key]

    async def _index(self, address: str) -> Indexed | None:
        if address not in self._indices:
            self._indices[address] = asyncio.create_task(self._ask(address))
        await asyncio.wait([self._indices[address]])
        task = self._indices[address]
        return None if task.cancelled() or isinstance(task.exception(), MainspringError) else task.result()

    async def _ask(self, address: str) -> Indexed:
        async with self._turns:
            return await self._peers.index(address, self._order.step, self._order.taken_in)


@final
class StepIndexer:
    """One generation's sources.

    Args:
        order: The generation, and the step it resumes from.
        peers: The way to other agents.
        arenas: This agent's own snapshots, by place.
        prefix: What a role's paths and facts are prefixed with in the store.
    """

    def __init__(
        self,
        order: PrepareGeneration,
        *,
        agent: int,
        peers: Peers,
        stores: Stores,
        arenas: Mapping[int, Arena],
        copies: Copies,
        prefix: Callable[[RoleName], str],
    ) -> None:
        self.order = order
        self._arenas = arenas
        self._copies = copies
        self._here: list[HereSource] = []
        self._there = _StepOfPeers(order, agent, peers)
        self._stored = _StoredStep(order, stores, prefix)
        self._damaged = False
        self._listings: dict[int, Listing] = {}
        self._busy = asyncio.Lock()

    async def make_ready(self) -> None:
        """Holds what is here of the step, verifies what ranks resume from, opens what is stored.

        Raises:
            DamagedData: The step's bytes are not what they were, and nobody else has them.
            NotFound: The step is gone from the store.
            Unavailable: It cannot be had now.
        """
        self._hold()
        if self.order.source == "store":
            if self.order.places:
                await self._stored.open()
            return
        exact = [self._exact(place) for place in self.order.places]
        await asyncio.gather(*(self._usable(source) for source in exact if source is not None))
        others = [holding for holder in self._there.holders for holding in holder.holdings]
        known = [*(source.holding for source in self._here), *others]
        for place in self.order.places:
            mine = [holding for holding in known if holding.role == place.role]
            same_world = {holding.role_size for holding in mine} <= {place.role_size}
            if same_world and not any(holding.role_rank == place.role_rank for holding in mine):
                raise self._missing(place.role, place.role_rank)

    @property
    def step(self) -> int:
        """Returns the step that ranks are told their state is of, -1 when there is none."""
        checkpoint = self._stored.opened
        return checkpoint.manifest.step if self.order.begins_from and checkpoint else self.order.step

    def let_go(self) -> None:
        """Releases what is held here, and asks nobody any more."""
        for source in self._here:
            source.held.release()
        self._here = []
        self._there.cancel()

    async def listing(self, rank: int, *, everywhere: bool) -> Listing:
        """Returns what a rank may ask for.

        Near are the snapshots in this agent's memory, and wherever it is that of the rank which was then what this one
        is now: with the same number of ranks, it is all that the rank needs.

        Args:
            everywhere: Whether what others hold is wanted too.

        Raises:
            NotFound: The rank has no part in this generation.
            DamagedData: Nobody has some of it as it was.
            Unavailable: Some of it cannot be had.
        """
        place = next((place for place in self.order.places if place.rank == rank), None)
        if place is None:
            raise NotFound("restore a rank", on=str(rank), got="no such rank here in this generation")
        async with self._busy:
            if rank not in self._listings:
                self._listings[rank] = await self._near(place)
            if everywhere and not self._listings[rank].everywhere:
                await self._widen(place, self._listings[rank])
            return self._listings[rank]

    async def add_stored(self) -> bool:
        """Adds the store as the last home of what is listed; returns whether it has the step."""
        async with self._busy:
            checkpoint = await self._stored.find()
            for place in self.order.places:
                if checkpoint is not None and place.rank in self._listings:
                    self._listings[place.rank].add(self._stored.source(checkpoint, place.role), only_known=True)
            return checkpoint is not None

    # ------------------------------------------------------------ here

    def _hold(self) -> None:
        """Holds what is here of the step, snapshots before copies."""
        for place in sorted(self._arenas):
            for holding in self._arenas[place].holdings:
                held = (
                    self._arenas[place].hold(holding.step, holding.generation) if _wanted(self.order, holding) else None
                )
                self._here += [HereSource(held)] if held is not None else []
        for holding in self._copies.holdings:
            if _wanted(self.order, holding):
                held = self._copies.hold(holding.step, holding.generation, holding.rank)
                self._here += [HereSource(held)] if held is not None else []

    def _exact(self, place: RankPlace) -> HereSource | None:
        """Returns the snapshot here of the rank that was then what this one is now."""
        found = [source for source in self._here if not source.holding.copied and _is_at(source.holding, place)]
        return min(found, key=lambda source: source.holding.rank != place.rank, default=None)

    async def _usable(self, source: HereSource) -> bool:
        """Returns whether a source is intact; one that is not is given up for good."""
        if await source.verified():
            return True
        self._damaged = True
        if source in self._here:
            self._here.remove(source)
            owner = self._copies if source.holding.copied else self._arenas[source.holding.rank]
            owner.discard(source.held)
            source.held.release()
        return False

    async def _usable_here(self, place: RankPlace) -> list[HereSource]:
        mine = [source for source in self._here if source.holding.role == place.role]
        usable = await asyncio.gather(*(self._usable(source) for source in mine))
        found = [source for source, intact in zip(mine, usable, strict=True) if intact]
        return sorted(found, key=lambda source: (source.holding.copied, source.holding.rank != place.rank))

    # ------------------------------------------------------------ lists

    async def _near(self, place: RankPlace) -> Listing:
        listing = Listing()
        exact = self._exact(place)
        checkpoint = self._stored.opened
        if checkpoint is not None and self.order.source == "store":
            listing.add(self._stored.source(checkpoint, place.role))
            for source in await self._usable_here(place):
                listing.add(source, only_known=True)
            for entry in listing.entries:
                entry.homes.sort(key=lambda home: isinstance(home[0], StoredSource))
            listing.everywhere = True
        elif exact is not None and await self._usable(exact):
            listing.add(exact)
        else:
            there = [peer for peer in await self._there.of(place.role) if _is_at(peer.holding, place)]
            sources: list[HereSource | PeerSource] = [*await self._usable_here(place), *there]
            for one in sources:
                if _is_at(one.holding, place):
                    listing.state = {**one.state, **listing.state}  # Its own facts count before anybody else's.
            for one in sources:
                listing.add(one)
        listing.near = len(listing.entries)
        return listing

    async def _widen(self, place: RankPlace, listing: Listing) -> None:
        sources: list[HereSource | PeerSource] = [*await self._usable_here(place), *await self._there.of(place.role)]
        for source in sources:
            listing.add(source)
        told = {
            holding.role_rank
            for holder in self.order.holders
            for holding in holder.holdings
            if holding.role == place.role
        }
        lost = sorted(told - {source.holding.role_rank for source in sources})
        if lost:
            checkpoint = await self._stored.find()
            if checkpoint is None or checkpoint.manifest.lineage.generation != self.order.taken_in:
                raise self._missing(place.role, lost[0])
            listing.add(self._stored.source(checkpoint, place.role))
        listing.everywhere = True

    def _missing(self, role: RoleName, role_rank: int) -> MainspringError:
        on = f"step {self.order.step} of {role} rank {role_rank}"
        if self._damaged:
            return DamagedData("restore the state", on=on, got="bytes that differ from their checksums")
        return Unavailable("restore the state", on=on, got="nobody who still has it")


def _wanted(order: PrepareGeneration, holding: Holding) -> bool:
    return holding.step == order.step and (holding.generation == order.taken_in or order.source == "store")


def _is_at(holding: Holding, place: RankPlace) -> bool:
    then = (holding.role, holding.role_rank, holding.role_size)
    return then == (place.role, place.role_rank, place.role_size)


def _same_bytes(first: Shard, second: Shard) -> bool:
    return (first.dtype, first.size_bytes, first.page_bytes, first.crc32c) == (
        second.dtype,
        second.size_bytes,
        second.page_bytes,
        second.crc32c,
    )
