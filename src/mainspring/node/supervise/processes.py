"""Rank processes of one agent: started with their socket, log and memory bound, and ended."""

from __future__ import annotations

import signal
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import final

from mainspring.domain.errors import Unavailable
from mainspring.domain.ids import SecretName
from mainspring.domain.wire import RoleOrders
from mainspring.node.process.account import Account
from mainspring.node.process.guard import SOCKET_VARIABLE
from mainspring.node.process.limits import MemoryLimits
from mainspring.node.process.ranks import LOG_BYTES_MAX, RankLog, RankProcess
from mainspring.node.supervise.rank_server import RankConnection, SnapshotService, Supervisor, ended_all, signal_all
from mainspring.node.supervise.secrets import RankSecrets

KILL_LIMIT_S = 30.0  # A process the kernel does not let go within this (a dead disk, a driver) makes the node unfit.


@final
class RankProcesses:
    """All processes of one agent's ranks, those that stand by among them.

    Args:
        code: Folder the commands run in.
        reports: Where ranks' output goes.
        environment: The variables ranks start from.
        secrets: Values by name, given to the roles that name them; none when left out.
        account: What they run under; closed with this.
    """

    def __init__(
        self,
        *,
        code: Path,
        reports: Path,
        environment: Mapping[str, str],
        limits: MemoryLimits,
        account: Account,
        secrets: Mapping[SecretName, str] | None = None,
    ) -> None:
        self._code = code
        self._reports = reports
        self._environment = environment
        self._limits = limits
        self._account = account
        self.secrets = RankSecrets(secrets or {}, account)
        self._lives: list[RankConnection] = []
        self._count = 0

    async def start(
        self,
        orders: RoleOrders,
        variables: Mapping[str, str],
        supervisor: Supervisor,
        snapshots: SnapshotService,
        *,
        rank: int | None,
    ) -> RankConnection:
        """Returns a new process of a role's program.

        Args:
            orders: The role's.
            variables: What its environment has besides.
            supervisor: Whom its program talks to,
            snapshots: and about what outlives it.
            rank: The place it is for, None for one that stands by.
        """
        self._count += 1
        socket = f"{self._account.mark}{self._count}.sock"
        limit = self._limits.limit(orders.memory_mib)
        path = self._reports / f"standby-{self._count}.log" if rank is None else self._log(rank)
        log = RankLog(path, bytes_max=LOG_BYTES_MAX, masks=self.secrets.masks)
        process = RankProcess(self._account, log, socket, limit)
        life = RankConnection(orders.role, process, supervisor, snapshots)
        self._lives.append(life)
        await life.listen(socket)
        environment = {
            "PYTHONUNBUFFERED": "1",  # So that a rank's last words are in its log when it is killed.
            **self._environment,
            **self._account.variables,
            **orders.environment,
            **await self.secrets.given(orders, life),
            **variables,
            SOCKET_VARIABLE: socket,
        }
        await life.process.start(orders.command, environment=environment, folder=self._code)
        return life

    def adopt(self, life: RankConnection, rank: int) -> None:
        """Lets a process that stood by write on as a place's."""
        life.process.log.move(self._log(rank))

    def ended(self, life: RankConnection) -> None:
        """Takes note that a process has ended."""
        life.close()
        self.secrets.forget(life)
        self._lives.remove(life)

    async def end(self, *, grace_s: float) -> None:
        """Ends every process: asked first when there is a grace, then by force.

        Args:
            grace_s: How long they may take by themselves.

        Raises:
            Unavailable: A process cannot be ended.
        """
        if grace_s > 0:
            lives = [life for life in self._lives if not life.idle]  # Those that are idle have nothing left to do.
            signal_all(lives, signal.SIGTERM)
            await ended_all(lives, grace_s)
        await self.kill(self._lives)

    async def end_running(self) -> None:
        """Ends by force every process that is a rank now; those that wait for a generation can do no harm and stay.

        Raises:
            Unavailable: A process cannot be ended.
        """
        await self.kill(life for life in self._lives if not life.idle)

    async def kill(self, lives: Iterable[RankConnection]) -> None:
        """Ends processes by force.

        Raises:
            Unavailable: One of them cannot be ended.
        """
        mortal = list(lives)
        signal_all(mortal, signal.SIGKILL)
        await ended_all(mortal, KILL_LIMIT_S)
        alive = [life.process.pid for life in mortal if not life.over]
        if alive:
            raise Unavailable("end ranks", on=f"processes {alive[:20]}", got="the kernel does not let them go")

    async def close(self) -> None:
        """Ends what is left: ranks, and all that was made for them."""
        try:
            await self.end(grace_s=0.0)
        finally:
            await self._account.close()

    def _log(self, rank: int) -> Path:
        return self._reports / f"rank-{rank}.log"
