"""The agent: registers, brings the code, follows the lead (or is it), and leaves nothing behind."""

from __future__ import annotations

import asyncio
import shutil
import signal
from collections.abc import Coroutine, Mapping
from pathlib import Path
from typing import final
from urllib.parse import urlsplit

from mainspring.domain import wire
from mainspring.domain.errors import MainspringError, StorageFull, Unavailable
from mainspring.domain.fleet import AgentExit, AgentOrder
from mainspring.domain.life import AttemptState
from mainspring.domain.ports import Clock, Dice
from mainspring.node.code import unpack_code
from mainspring.node.controller import Controller
from mainspring.node.crew import STOP_GRACE_S, Crew
from mainspring.node.lead_host import LeadHost
from mainspring.node.links import Line, host_port, own_address
from mainspring.node.stores import Stores
from mainspring.objects import ObjectStore, open_store

REGISTER_WAIT_S = 0.1  # The first; orders are ready as soon as the attempt's last agent has registered.
REGISTER_WAIT_S_MAX = 10.0  # 12,000 agents of a controller that was away come back within seconds of it, spread out.
JOIN_LIMIT_S = 600.0  # As long as the lead waits for its agents.
CONNECT_LIMIT_S = 5.0
RECONNECT_WAIT_S = 0.2
FLUSH_LIMIT_S = 5.0
STOP_LINGER_S = 60.0  # Once its ranks have saved and gone, how long an agent waits for the lead to say good-bye.
ROOM_BYTES_MIN = 64 << 20  # Logs and sockets; less than this is a disk that is as good as full.


@final
class Agent:
    """One agent's life, from its order file to its exit.

    Args:
        order: What the engine gave it.
        environment: The variables ranks start from.
        clock: Time.
        dice: Spreads waits, so that many agents do not call at once.
    """

    def __init__(self, order: AgentOrder, *, environment: Mapping[str, str], clock: Clock, dice: Dice) -> None:
        self._order = order
        self._environment = environment
        self._clock = clock
        self._dice = dice
        self._work = Path(order.work_dir)
        self._address = own_address(urlsplit(order.controller).hostname or "127.0.0.1")
        self._controller = Controller(order.controller, order.token)
        self._stopping = asyncio.Event()
        self._hosting = asyncio.Event()
        self._host: LeadHost | None = None
        self._line: Line | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    async def run(self) -> AgentExit:
        """Returns how it ended. SIGTERM and SIGINT make it stop in good order.

        Raises:
            MainspringError: It could not do its work, through nobody's fault but the world's.
        """
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._stopping.set)
        server = await asyncio.start_server(self._accept, self._address, 0)
        port = server.sockets[0].getsockname()[1]
        try:
            registering = asyncio.create_task(self._register(f"{self._address}:{port}"))
            if not await self._first(registering):
                return AgentExit(exit_code=0, reason="stopped before it had orders")
            return await self._serve(registering.result())
        finally:
            server.close()
            await self._controller.close()

    async def _first(self, task: asyncio.Task[wire.Orders]) -> bool:
        """Returns whether the task ends before a stop is asked for; cancels it if not."""
        stopping = asyncio.create_task(self._stopping.wait())
        await asyncio.wait([task, stopping], return_when=asyncio.FIRST_COMPLETED)
        stopping.cancel()
        if not task.done():
            task.cancel()
        return task.done()

    async def _register(self, address: str) -> wire.Orders:
        message = wire.Register(allocation=self._order.allocation, node=self._order.node, address=address)
        wait_s = REGISTER_WAIT_S
        while True:
            try:
                orders = await self._controller.register(message)
                if orders.ready:
                    return orders
            except Unavailable:
                pass  # However long the controller is away: the work it granted is still wanted.
            await asyncio.sleep(wait_s * (0.5 + self._dice.bits(16) / 65_536))
            wait_s = min(wait_s * 1.5, REGISTER_WAIT_S_MAX)

    # ------------------------------------------------------------ service

    async def _serve(self, orders: wire.Orders) -> AgentExit:
        if shutil.disk_usage(self._work).free < ROOM_BYTES_MIN:
            raise StorageFull("start an agent", on=str(self._work), wanted=f"{ROOM_BYTES_MIN} bytes free")
        store = await asyncio.to_thread(open_store, orders.objects_url)
        stores = Stores(store, orders.job)
        try:
            async with asyncio.TaskGroup() as group:
                leading = self._lead(orders, stores, group) if orders.lead else None
                crew = await self._muster(orders, store, stores)
                try:
                    return await self._follow_to_the_end(orders, crew, leading, group)
                finally:
                    await crew.close()
                    for task in self._tasks:
                        task.cancel()
        finally:
            stores.close()

    def _lead(self, orders: wire.Orders, stores: Stores, group: asyncio.TaskGroup) -> asyncio.Task[None]:
        self._host = LeadHost(
            orders=orders,
            token=self._order.token,
            host=self._address,
            controller=self._controller,
            stores=stores,
            clock=self._clock,
            group=group,
        )
        self._hosting.set()
        return group.create_task(self._host.run())

    async def _muster(self, orders: wire.Orders, store: ObjectStore, stores: Stores) -> Crew:
        code = await asyncio.to_thread(unpack_code, store, orders.code, self._work)
        crew = Crew(
            orders=orders,
            host=self._address,
            code=code,
            work=self._work,
            environment=self._environment,
            stores=stores,
            tell_lead=self._tell_lead,
            clock=self._clock,
        )
        await crew.listen()
        return crew

    async def _follow_to_the_end(
        self, orders: wire.Orders, crew: Crew, leading: asyncio.Task[None] | None, group: asyncio.TaskGroup
    ) -> AgentExit:
        following = group.create_task(self._follow(orders, crew, group))
        stopping = group.create_task(self._stop(crew, leads=leading is not None))
        ends = [following, stopping] if leading is None else [leading]
        await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        stopping.cancel()
        if self._host is not None:
            following.cancel()
            well = self._host.outcome in (AttemptState.SUCCEEDED, AttemptState.CANCELLED)
            return AgentExit(exit_code=0 if well else 1, reason=self._host.reason)
        if following.done():
            return following.result()
        following.cancel()
        await self._say_goodbye(orders)
        return AgentExit(exit_code=0, reason="stopped by its engine")

    async def _follow(self, orders: wire.Orders, crew: Crew, group: asyncio.TaskGroup) -> AgentExit:
        """Does what the lead says, over as many connections as it takes, until told to end or the lead is lost."""
        host, port = host_port(orders.lead_address)
        heard_s, patience_s = self._clock.monotonic_s(), JOIN_LIMIT_S
        while True:
            try:
                async with asyncio.timeout(CONNECT_LIMIT_S):
                    line = Line(*await asyncio.open_connection(host, port))
            except (OSError, TimeoutError):
                line = None
            if line is not None:
                self._join(line, orders, crew)
                alive = asyncio.create_task(line.keep_alive(orders.lease_s))
                async for message in line.messages(orders.lease_s):
                    heard_s, patience_s = self._clock.monotonic_s(), orders.lease_s
                    ended = await self._obey(message, orders, crew, group)
                    if ended is not None:
                        alive.cancel()
                        return ended
                alive.cancel()
                self._line = None
            if self._clock.monotonic_s() - heard_s >= patience_s:
                await crew.end_ranks(grace_s=0.0)
                return AgentExit(exit_code=1, reason=f"did not hear from the lead for {patience_s:g} s")
            await asyncio.sleep(RECONNECT_WAIT_S)

    def _join(self, line: Line, orders: wire.Orders, crew: Crew) -> None:
        line.send(
            wire.AgentJoin(
                attempt=orders.attempt,
                epoch=orders.epoch,
                agent=orders.agent,
                node=self._order.node,
                token=self._order.token,
                arena_steps=crew.arena_steps,
            )
        )
        self._line = line
        crew.retell()

    async def _obey(
        self, message: object, orders: wire.Orders, crew: Crew, group: asyncio.TaskGroup
    ) -> AgentExit | None:
        match message:
            case wire.PrepareGeneration():
                if self._stopping.is_set():
                    await self._say_goodbye(orders)  # This node is going away: no generation may count on it.
                    return AgentExit(exit_code=0, reason="stopped by its engine") if self._host is None else None
                self._spawn(group, crew.prepare(message))
            case wire.StartRanks():
                await crew.start(message)
            case wire.StoreStep():
                self._spawn(group, crew.store(message.step))
            case wire.EndAgent():
                await crew.end_ranks(grace_s=message.grace_s)
                await self._say_goodbye(orders)
                return AgentExit(exit_code=0, reason=message.reason)
            case _:
                pass
        return None

    async def _say_goodbye(self, orders: wire.Orders) -> None:
        if self._line is not None:
            self._line.send(wire.AgentDrained(agent=orders.agent))
            await self._line.flush(FLUSH_LIMIT_S)

    async def _stop(self, crew: Crew, *, leads: bool) -> None:
        await self._stopping.wait()
        if self._host is not None:
            self._host.stop(STOP_GRACE_S)
        await crew.stop()
        if leads:
            await asyncio.Event().wait()  # The lead goes when the attempt is over.
        await asyncio.sleep(STOP_LINGER_S)

    def _tell_lead(self, message: object) -> None:
        if self._line is not None:
            self._line.send(message)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(JOIN_LIMIT_S):
                await self._hosting.wait()  # Another agent may have had its orders before this one.
        except TimeoutError:
            writer.close()
            return
        assert self._host is not None
        await self._host.serve(reader, writer)

    def _spawn(self, group: asyncio.TaskGroup, work: Coroutine[None, None, None]) -> None:
        task = group.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


async def run_agent(order: AgentOrder, *, environment: Mapping[str, str], clock: Clock, dice: Dice) -> AgentExit:
    """Returns how an agent ended; what the world did to it is told in the reason.

    Args:
        order: What the engine gave it.
        environment: The variables ranks start from.
        clock: Time.
        dice: Spreads waits.
    """
    try:
        return await Agent(order, environment=environment, clock=clock, dice=dice).run()
    except MainspringError as error:
        return AgentExit(exit_code=1, reason=str(error))
    except BaseExceptionGroup as errors:
        known, other = errors.split(MainspringError)
        if other is not None or known is None:
            raise
        return AgentExit(exit_code=1, reason="; ".join(str(error) for error in known.exceptions))
