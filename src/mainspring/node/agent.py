"""Node agent: registers, probes its node, brings the code, follows the lead (or is it), leaves nothing behind."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import time
from collections.abc import Mapping
from pathlib import Path
from typing import final
from urllib.parse import urlsplit

from mainspring.domain import wire
from mainspring.domain.errors import InvalidMessage, MainspringError, OtherRelease, StorageFull, Unavailable
from mainspring.domain.fleet import AgentExit, AgentOrder
from mainspring.domain.life import AttemptState
from mainspring.domain.ports import Backoff, Clock, Dice
from mainspring.node.code import unpack_code
from mainspring.node.lead_host import LeadHost
from mainspring.node.net.connection import QUIET_PARTS, Connection, own_address
from mainspring.node.net.controller import ControllerClient
from mainspring.node.net.handshake import Credentials, Listener, call
from mainspring.node.net.pipes import Pipe
from mainspring.node.net.store_access import StoreAccess
from mainspring.node.notice import StopNotice
from mainspring.node.probes.preflight import probe
from mainspring.node.process.account import Account
from mainspring.node.process.environment import HOST_VARIABLE, NODE_VARIABLE, rank_environment
from mainspring.node.process.limits import MemoryLimits, find_limits
from mainspring.node.process.users import opened_account
from mainspring.node.snapshots.arena import Arena
from mainspring.node.snapshots.copies import Copies
from mainspring.node.snapshots.peers import Peers
from mainspring.node.snapshots.stores import Stores
from mainspring.node.snapshots.work import SnapshotWork
from mainspring.node.supervise.processes import RankProcesses
from mainspring.node.supervise.rank_server import RankSlot
from mainspring.node.supervise.rank_supervisor import RankSupervisor
from mainspring.node.supervise.snapshot_manager import SnapshotManager
from mainspring.node.tasks import Tasks
from mainspring.objects import ObjectStore, open_store

# Orders are ready as soon as the attempt's last agent has registered; 12,000 agents of a controller that was away come
# back within seconds of it, spread out.
REGISTER_AGAIN = Backoff(first_s=0.1, factor=1.5, cap_s=10.0)
JOIN_LIMIT_S = 600.0  # As long as the lead waits for its agents.
LEAD_UP_LEASES = 2.0  # A lead just named learns of it within one lease; no rank runs meanwhile.
ASK_AGAIN_LEASES = 1 / QUIET_PARTS  # So much later than us, at most, the controller last heard of a lead that is gone.
FIRST_MESSAGE_LIMIT_S = 10.0
RECONNECT_WAIT_S = 0.2
FLUSH_LIMIT_S = 5.0
BRING_TRIES_MAX = 8  # Of the probe and the code; with the waits between, four minutes of a store that is away.
BRING_AGAIN = Backoff(first_s=2.0)
STOP_PATIENCE = 0.25  # Of the grace; without a word from the lead by then, ranks are told to save what they have.
STOP_LINGER_S = 60.0  # Once the grace is over, how long an agent waits for the lead to say good-bye.


@final
class Agent:
    """One agent's life, from its order file to its exit.

    Args:
        environment: The agent's variables, of which ranks get what is listed and what its orders name.
        dice: Spreads waits, so that many agents do not call at once.
        certificate: The controller's, as PEM text, where the system's authorities do not vouch for it.
    """

    def __init__(
        self, order: AgentOrder, *, environment: Mapping[str, str], clock: Clock, dice: Dice, certificate: str = ""
    ) -> None:
        self._order = order
        self._environment = environment
        self._clock = clock
        self._dice = dice
        self._notice = StopNotice(Path(order.report_dir or order.work_dir), clock)
        self._host = own_address(urlsplit(order.controller).hostname or "127.0.0.1")
        servers = (order.controller, *order.controllers_beside)
        self._controller = ControllerClient(servers, order.token, clock, attempt=order.attempt, certificate=certificate)
        self._listener = Listener(self._serve_caller)
        self._leading = asyncio.Event()
        self._lead: LeadHost | None = None
        self._peers: Peers | None = None
        self._store_access: StoreAccess | None = None
        self._line: Connection | None = None
        self._ended: asyncio.Future[AgentExit] = asyncio.get_running_loop().create_future()

    async def run(self) -> AgentExit:
        """Returns how it ended. SIGTERM and SIGINT make it stop in good order.

        Raises:
            MainspringError: It could not do its work, through nobody's fault but the world's.
        """
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._notice.given.set)
        await self._listener.listen(self._host)
        try:
            registering = asyncio.create_task(self._enlist())
            if not await self._first(registering):
                return AgentExit(exit_code=0, reason="stopped before it had orders")
            return await self._serve(registering.result())
        finally:
            self._listener.close()
            await self._controller.close()

    async def _first(self, task: asyncio.Task[wire.Orders]) -> bool:
        """Returns whether the task ends before a stop is asked for; cancels it if not."""
        stopping = asyncio.create_task(self._notice.given.wait())
        await asyncio.wait([task, stopping], return_when=asyncio.FIRST_COMPLETED)
        stopping.cancel()
        if not task.done():
            task.cancel()
        return task.done()

    async def _enlist(self) -> wire.Orders:
        """Returns orders that are ready, once what they take to reach the object store is here too."""
        orders = await self._register()
        if orders.store_credentials:
            self._store_access = StoreAccess(self._controller, self._order.allocation, self._dice)
            await self._store_access.ask()
        return orders

    async def _register(self, lost_epoch: int = 0) -> wire.Orders:
        message = wire.Register(
            allocation=self._order.allocation,
            node=self._order.node,
            address=self._listener.address,
            lost_epoch=lost_epoch,
        )
        tries = 0
        while True:
            try:
                orders = await self._controller.register(message)
                self._listener.credentials = self._credentials(orders)  # Others may know us before all have come.
                if orders.ready:
                    return orders
            except Unavailable:
                pass  # However long it is away: the work it granted is still wanted.
            tries += 1
            await asyncio.sleep(REGISTER_AGAIN.wait_s(tries, self._dice))

    def _credentials(self, orders: wire.Orders) -> Credentials:
        if not orders.peers_secret:
            raise InvalidMessage(
                "join the attempt",
                on=orders.attempt,
                got="orders without a secret to know other agents by",
                wanted="a controller at least as new as its agents",
            )
        return Credentials(secret=orders.peers_secret, dice=self._dice)

    # ------------------------------------------------------------ service

    async def _serve(self, orders: wire.Orders) -> AgentExit:
        access = self._store_access
        store = await asyncio.to_thread(access.open if access is not None else open_store, orders.objects_url)
        stores = Stores(store, orders.job)
        try:
            async with asyncio.TaskGroup() as group:
                tasks = Tasks(group.create_task)
                if access is not None:
                    tasks.spawn(access.renew())
                if orders.lead:
                    self._begin_to_lead(orders, stores, tasks)
                crew, keeper = await self._muster(orders, store, stores)
                try:
                    following = group.create_task(self._follow_to_the_end(orders, crew, keeper, stores, tasks))
                    stopping = group.create_task(self._stop(crew))
                    ended = await self._ended
                    following.cancel()
                    stopping.cancel()
                    return ended
                finally:
                    tasks.cancel()
                    await crew.close()
                    await keeper.close()
        finally:
            stores.close()

    async def _muster(
        self, orders: wire.Orders, store: ObjectStore, stores: Stores
    ) -> tuple[RankSupervisor, SnapshotManager]:
        mine = [place for place in orders.ranks if place.agent == orders.agent]
        work = Path(self._order.work_dir)
        arenas = {place.rank: Arena(work) for place in mine}
        copies = Copies()
        snapshot_work = SnapshotWork(cores=len(os.sched_getaffinity(0)), cpu_s=time.thread_time, clock=self._clock)
        self._peers = peers = Peers(
            credentials=self._credentials(orders),
            arenas=arenas,
            copies=copies,
            work=snapshot_work,
            tell_lead=self._tell_lead,
        )
        keeper = SnapshotManager(
            orders=orders,
            desks={rank: RankSlot(rank=rank, arena=arena) for rank, arena in sorted(arenas.items())},
            copies=copies,
            peers=peers,
            stores=stores,
            work=snapshot_work,
            tell_lead=self._tell_lead,
        )
        account = await opened_account(self._order.run_as, self._order.shared_dir, work)
        processes = RankProcesses(
            code=await self._bring(orders, mine, store, work, account),
            reports=Path(self._order.report_dir or work),
            environment=rank_environment(self._environment, orders.environment_passed)
            | {NODE_VARIABLE: self._order.node, HOST_VARIABLE: self._host},
            limits=find_limits() if any(role.memory_mib for role in orders.roles) else MemoryLimits(None),
            secrets=orders.secrets,
            account=account,
        )
        crew = RankSupervisor(
            orders=orders,
            host=self._host,
            processes=processes,
            keeper=keeper,
            tell_lead=self._tell_lead,
            clock=self._clock,
            views=self._store_access,
        )
        return crew, keeper

    async def _bring(
        self,
        orders: wire.Orders,
        mine: list[wire.RankPlace],
        store: ObjectStore,
        folder: Path,
        account: Account,
    ) -> Path:
        """Returns the folder of the job's code, once the node has proved fit; a store that is away is waited for."""

        def look() -> None:
            ahead_s = self._controller.clock_ahead_s
            probe(folder, store, job=orders.job, roles=orders.roles, places=mine, clock_ahead_s=ahead_s)

        async def work() -> Path:
            await asyncio.to_thread(look)
            return await unpack_code(store, orders.code, folder, account)

        for tries in range(1, BRING_TRIES_MAX):
            try:
                return await work()
            except StorageFull:
                raise  # Room does not come back by waiting.
            except Unavailable:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(BRING_AGAIN.wait_s(tries)):
                        await self._notice.given.wait()
        return await work()

    # ------------------------------------------------------------ leading

    def _begin_to_lead(self, orders: wire.Orders, stores: Stores, tasks: Tasks) -> None:
        self._lead = LeadHost(
            orders=orders,
            host=self._host,
            controller=self._controller,
            stores=stores,
            clock=self._clock,
            tasks=tasks.of_another(),
        )
        self._leading.set()
        tasks.spawn(self._lead_to_the_end(self._lead))

    async def _lead_to_the_end(self, lead: LeadHost) -> None:
        await lead.run()
        well = lead.outcome in (AttemptState.SUCCEEDED, AttemptState.CANCELLED)
        self._end(0 if well else 1, lead.reason)

    async def _serve_caller(self, pipe: Pipe, use: wire.LineUse) -> None:
        """Serves an agent that has proved itself: it reports for duty, or wants or brings snapshots."""
        match use:
            case wire.LineUse.PEER:
                if self._peers is None:
                    pipe.close()  # It calls again.
                else:
                    await self._peers.serve(pipe)
            case wire.LineUse.JOIN:
                await self._serve_follower(Connection.over(pipe.release()))

    async def _serve_follower(self, line: Connection) -> None:
        join = await line.receive(wire.AgentJoin, FIRST_MESSAGE_LIMIT_S)
        if join is not None and await self._leads_soon():
            assert self._lead is not None
            await self._lead.serve(line, join)
        else:
            line.close()

    async def _leads_soon(self) -> bool:
        """Returns whether this agent leads, or is told to before long: another may have had its orders before us."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(JOIN_LIMIT_S):
                await self._leading.wait()
        return self._leading.is_set()

    # ------------------------------------------------------------ following

    async def _follow_to_the_end(
        self,
        orders: wire.Orders,
        crew: RankSupervisor,
        keeper: SnapshotManager,
        stores: Stores,
        tasks: Tasks,
    ) -> None:
        """Follows one lead after another, until told to end."""
        patience_s = LEAD_UP_LEASES * orders.lease_s
        while await self._follow(orders, crew, keeper, patience_s, tasks):
            await crew.end_running()
            if self._notice.given.is_set():
                self._end(0, "stopped by its engine")
                return
            lost_epoch = orders.epoch
            orders = await self._register(lost_epoch)
            crew.adopt(orders)
            keeper.adopt(orders)
            if orders.lead and self._lead is None:
                self._begin_to_lead(orders, stores, tasks)
            leases = LEAD_UP_LEASES if orders.epoch > lost_epoch else ASK_AGAIN_LEASES
            patience_s = leases * orders.lease_s

    async def _follow(
        self,
        orders: wire.Orders,
        crew: RankSupervisor,
        keeper: SnapshotManager,
        patience_s: float,
        tasks: Tasks,
    ) -> bool:
        """Does what the lead says, over as many connections as it takes; returns whether the lead is lost."""
        heard_s = self._clock.monotonic_s()
        while True:
            try:
                pipe = await call(orders.lead_address, wire.LineUse.JOIN, self._credentials(orders))
                line = Connection.over(pipe.release())
            except OtherRelease:
                raise  # It will not get nearer.
            except MainspringError:
                line = None  # Not there, or not itself: it may be before long.
            if line is not None:
                self._join(line, orders, crew, keeper)
                alive = asyncio.create_task(line.keep_alive(orders.lease_s))
                try:
                    async for message in line.messages(wire.LeadToAgent, orders.lease_s):
                        heard_s, patience_s = self._clock.monotonic_s(), orders.lease_s
                        if isinstance(message, wire.EndAgent) and message.fenced and self._lead is None:
                            return True
                        if await self._obey(message, crew, keeper, tasks):
                            return False
                finally:
                    alive.cancel()
                    line.close()
                    self._line = None
            if self._clock.monotonic_s() - heard_s >= patience_s and self._lead is None:
                return True
            await asyncio.sleep(RECONNECT_WAIT_S)

    def _join(self, line: Connection, orders: wire.Orders, crew: RankSupervisor, keeper: SnapshotManager) -> None:
        line.send(
            wire.AgentJoin(
                attempt=orders.attempt,
                epoch=orders.epoch,
                agent=orders.agent,
                node=self._order.node,
                address=self._listener.address,
                generation=crew.generation,
                places=tuple(place for place in orders.ranks if place.agent == orders.agent),
                holdings=keeper.holdings,
            )
        )
        self._line = line
        crew.retell()
        if self._notice.given.is_set():
            self._tell_leaving(orders.agent)

    async def _obey(
        self, message: wire.LeadToAgent, crew: RankSupervisor, keeper: SnapshotManager, tasks: Tasks
    ) -> bool:
        """Returns whether this was the last message."""
        match message:
            case wire.PrepareGeneration():
                tasks.spawn(crew.prepare(message))
            case wire.StartRanks():
                tasks.spawn(crew.start(message))
            case wire.LeaveAt():
                tasks.spawn(crew.leave(message))
            case wire.DumpStacks():
                tasks.spawn(crew.dump(message))
            case wire.TakeProfile():
                crew.profile(message)
            case wire.StoreStep():
                tasks.spawn(keeper.store(message))
            case wire.SnapshotPace():
                crew.pace(message)
            case wire.StandbyAllowed():
                tasks.spawn(crew.stand_by(message))
            case wire.EndAgent():
                await crew.end_ranks(grace_s=message.grace_s)
                await self._say_goodbye(crew.agent)
                if self._lead is None:  # Else this agent ends when the attempt's outcome is known.
                    self._end(0, message.reason)
                    return True
            case wire.Done() | wire.Unknown():
                pass  # The lead lives, or is newer and says what the agent before it did not need.
        return False

    # ------------------------------------------------------------ ends

    async def _stop(self, crew: RankSupervisor) -> None:
        """Leaves as the engine wants it: the lead decides how; without its word ranks save what they have."""
        await self._notice.given.wait()
        grace_s = await self._notice.grace_s()
        if self._lead is not None:
            self._lead.stop(grace_s)
        else:
            self._tell_leaving(crew.agent)
        await asyncio.sleep(grace_s * STOP_PATIENCE)
        if not crew.told_to_leave:
            left_s = self._notice.left_s
            await crew.leave(wire.LeaveAt(generation=crew.generation, step=-1, grace_s=left_s, then=wire.Then.EXIT))
        await asyncio.sleep(self._notice.left_s)
        await crew.end_ranks(grace_s=0.0)
        if self._lead is None:
            await asyncio.sleep(STOP_LINGER_S)
            await self._say_goodbye(crew.agent)
            self._end(0, "stopped by its engine")

    def _tell_leaving(self, agent: int) -> None:
        self._tell_lead(wire.AgentLeaving(agent=agent, grace_s=self._notice.left_s))

    def _end(self, exit_code: int, reason: str) -> None:
        if not self._ended.done():
            self._ended.set_result(AgentExit(exit_code=exit_code, reason=reason))

    async def _say_goodbye(self, agent: int) -> None:
        if self._line is not None:
            self._line.send(wire.AgentDrained(agent=agent))
            await self._line.flush(FLUSH_LIMIT_S)

    def _tell_lead(self, message: wire.AgentToLead) -> None:
        if self._line is not None:
            self._line.send(message)


async def run_agent(
    order: AgentOrder, *, environment: Mapping[str, str], clock: Clock, dice: Dice, certificate: str = ""
) -> AgentExit:
    """Returns how an agent ended; what the world did to it is told in the reason.

    Args:
        order: What the engine gave it.
        environment: The agent's variables, of which ranks get what is listed and what its orders name.
        certificate: See `Agent`.
    """
    try:
        agent = Agent(order, environment=environment, clock=clock, dice=dice, certificate=certificate)
        return await agent.run()
    except MainspringError as error:
        return AgentExit(exit_code=1, reason=str(error))
    except BaseExceptionGroup as errors:
        known, other = errors.split(MainspringError)
        if other is not None or known is None:
            raise
        return AgentExit(exit_code=1, reason="; ".join(str(error) for error in known.exceptions))
