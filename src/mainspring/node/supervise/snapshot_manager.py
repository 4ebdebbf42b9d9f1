"""Snapshots of one agent: kept beyond their ranks, copied to and from peers, stored, restored."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import final

from mainspring.checkpoint import Claim
from mainspring.domain import wire
from mainspring.domain.errors import DamagedData, MainspringError, NotFound
from mainspring.domain.ids import RoleName
from mainspring.node.snapshots.arena import Held
from mainspring.node.snapshots.copies import Copies
from mainspring.node.snapshots.peers import Peers
from mainspring.node.snapshots.restores import Restores
from mainspring.node.snapshots.stores import Share, Stores
from mainspring.node.snapshots.work import SnapshotWork
from mainspring.node.supervise.profiles import Profiles
from mainspring.node.supervise.rank_server import RankSlot
from mainspring.node.tasks import Tasks


@final
class SnapshotManager:
    """One agent's memory, and what is done with it."""

    def __init__(
        self,
        *,
        orders: wire.Orders,
        desks: dict[int, RankSlot],
        copies: Copies,
        peers: Peers,
        stores: Stores,
        work: SnapshotWork,
        tell_lead: Callable[[wire.AgentToLead], None],
    ) -> None:
        self.desks = desks
        self.work = work
        self.profiles = Profiles(orders.job, stores, tell_lead)
        self._orders = orders
        self._copies = copies
        self._peers = peers
        self._stores = stores
        self._restores = Restores(
            agent=orders.agent,
            peers=peers,
            stores=stores,
            arenas={rank: desk.arena for rank, desk in desks.items()},
            copies=copies,
            prefix=self.prefix,
        )
        self._tell_lead = tell_lead
        self._tasks = Tasks()
        self._order = wire.PrepareGeneration(generation=0, step=-1, source="")

    @property
    def holdings(self) -> tuple[wire.Holding, ...]:
        """Returns all that this agent's memory holds."""
        own = [holding for desk in self.desks.values() for holding in desk.arena.holdings]
        return (*own, *self._copies.holdings)

    def adopt(self, orders: wire.Orders) -> None:
        """Follows another lead from now on."""
        self._orders = orders

    def prefix(self, role: RoleName) -> str:
        """Returns what a role's paths and facts are prefixed with in the store, so that roles do not collide there."""
        return f"{role}/" if len(self._orders.roles) > 1 else ""

    async def prepare(self, order: wire.PrepareGeneration) -> None:
        """Gives up what is newer than the step a generation resumes from, and makes that ready.

        Raises:
            DamagedData: The step's bytes are not what they were.
            NotFound: The step is gone.
            Unavailable: It cannot be had now.
        """
        self._order = order
        for desk in self.desks.values():
            desk.arena.discard_after(order.step)
        self._copies.enter(order.generation, order.step)
        await self._restores.prepare(order)
        if not order.places:
            self._restores.release()  # Nobody here will say when ranks step, and peers' next copies need the room.

    def release(self) -> None:
        """Gives up what was staged for restores: every rank here steps."""
        self._restores.release()

    # ------------------------------------------------------------ snapshots

    async def store(self, order: wire.StoreStep) -> None:
        """Makes this agent's shares of a step durable, and tells the lead of each.

        Args:
            order: A step every rank's arena holds.
        """
        claim = Claim(number=self._orders.number, epoch=self._orders.epoch)
        for rank, desk in self.desks.items():
            held = desk.arena.hold(order.step, order.taken_in)
            if held is None:
                if order.taken_in in desk.served:
                    self._tell_lead(wire.StoreFailed(rank=rank, step=order.step, reason="no longer in the arena"))
                continue
            try:
                answer = await self._stores.keep(Share(claim=claim, prefix=self.prefix(held.holding.role), held=held))
                current = held.current
            finally:
                held.release()
            if current:
                self._tell_lead(answer)  # Else the attempt went on from before this step.

    def saved(self, desk: RankSlot, holding: wire.Holding) -> None:
        """Tells the lead of a snapshot, and has it sealed and copied to the peer; see `SnapshotService`."""
        self._tell_lead(wire.SnapshotTaken(holding=holding, cost_s=self.work.take()))
        self._copy(desk, holding.step, holding.generation)

    def copy_resumed(self, order: wire.PrepareGeneration) -> None:
        """Copies the snapshots a generation resumes from: its peer may be another one than theirs was."""
        if order.source == "arena":
            for desk in self.desks.values():
                self._copy(desk, order.step, order.taken_in)

    def _copy(self, desk: RankSlot, step: int, taken_in: int) -> None:
        held = desk.arena.hold(step, taken_in)
        if held is not None:
            self._tasks.spawn(self._seal_and_copy(held, self._order.peer))

    async def _seal_and_copy(self, held: Held, peer: str) -> None:
        try:
            if peer:
                await self._peers.push(peer, held)
            else:
                await asyncio.to_thread(
                    self.work.computed, held.sealed
                )  # While it is fresh: what changes after is damage.
        finally:
            held.release()

    # ------------------------------------------------------------ what ranks ask (see `SnapshotService`)

    async def plan(self, desk: RankSlot, request: wire.RestoreRequest) -> wire.RestorePlan | wire.FetchFailed:
        """Returns where the state lies that the generation resumes from; see `SnapshotService`."""
        generation = self._order.generation
        try:
            return await self._restores.plan(desk.rank, request)
        except MainspringError as error:
            corrupt = isinstance(error, DamagedData | NotFound)
            return self._failed(desk, generation, wire.FetchFailed(reason=str(error), corrupt=corrupt))

    async def fetch(self, desk: RankSlot, request: wire.FetchPieces) -> wire.PiecesFetched | wire.FetchFailed:
        """Returns bytes of it; see `SnapshotService`."""
        generation = self._order.generation
        answer = await self._restores.fetch(desk.rank, request)
        return self._failed(desk, generation, answer) if isinstance(answer, wire.FetchFailed) else answer

    def _failed(self, desk: RankSlot, generation: int, answer: wire.FetchFailed) -> wire.FetchFailed:
        self._tell_lead(
            wire.RestoreFailed(generation=generation, rank=desk.rank, reason=answer.reason, corrupt=answer.corrupt)
        )
        return answer

    async def close(self) -> None:
        """Ends what is under way."""
        self.profiles.close()
        tasks = self._tasks.cancel()
        if tasks:
            await asyncio.wait(tasks)
        self._restores.release()
        self._peers.close()
