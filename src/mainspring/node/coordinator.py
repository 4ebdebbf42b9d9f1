"""JAX coordination service, in a child process of the lead's agent, so that it outlives any rank.

As a program (`python -m mainspring.node.coordinator`) it reads "HOST PORT RANKS", hosts one service, says "ready", and
serves until it is killed or its parent dies. It imports jaxlib alone, which takes a third of the time of JAX, and has
done so before it is needed: processes for the next generation are started ahead. Private names of jaxlib are used here
only, and the version is checked first.

A rank that reconnects may still hold a client of an older generation's service, and is aborted when that service goes
or reports an error. So a service never reports one (agents notice lost ranks, far sooner), and an older one stays
until nobody is connected to it. Their number is bounded: crews end a process that has reconnected often.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import select
import signal
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import final

from mainspring.node.net.connection import address_of, free_port

VERSIONS = ("0.10.",)  # Releases whose private names were read and tried.
READY = b"ready\n"
OLDER = b"older\n"
START_LIMIT_S = 20.0  # Importing jaxlib takes 0.2 s on a quiet machine.
START_TRIES_MAX = 3  # Between choosing a port and using it, somebody else may take it.
KEPT_MAX = 64  # Older services, each about 40 MB; a process reconnects 16 times at most, so few roles come near.
LOOK_S = 1.0
LOOKS_UNUSED = 5  # A client whose line broke is back within its first retries, a second or two.
AHEAD_AFTER_S = 2.0  # Ranks that go on at once step by then; before, they want the processor for themselves.
NEVER_S = 1_000_000  # The service's own limits on silent ranks: eleven days.
_PR_SET_PDEATHSIG = 1
_ESTABLISHED = "01"  # In /proc/net/tcp; see proc(5).


@final
class Coordinators:
    """The coordination services of an attempt: the newest generation's, and older ones somebody still holds.

    Args:
        host: The address ranks reach this machine under.
    """

    def __init__(self, host: str) -> None:
        self._host = host
        self._newest: list[asyncio.subprocess.Process] = []
        self._older: list[asyncio.subprocess.Process] = []
        self._ahead: list[asyncio.subprocess.Process] = []
        self._filling: asyncio.Task[None] | None = None

    async def start(self, ranks_by_role: Mapping[str, int]) -> Mapping[str, str]:
        """Starts a generation's services; returns their addresses by role. Older ones end once nobody uses them.

        A role of one rank has none; nor has any where jaxlib is missing or of an unknown release.
        """
        for child in self._newest:
            assert child.stdin is not None
            child.stdin.write(OLDER)
        self._older = [child for child in [*self._older, *self._newest] if child.returncode is None]
        self._newest = []
        excess, self._older = self._older[:-KEPT_MAX], self._older[-KEPT_MAX:]
        await _end(excess)
        roles = [role for role, ranks in sorted(ranks_by_role.items()) if ranks > 1]
        await self._stop_filling()
        found = await asyncio.gather(*(self._start_one(ranks_by_role[role]) for role in roles))
        self._filling = asyncio.create_task(self._fill(sum(map(bool, found))))
        return {role: address for role, address in zip(roles, found, strict=True) if address}

    @property
    def living(self) -> int:
        """Returns how many services run."""
        return sum(child.returncode is None for child in [*self._older, *self._newest])

    @property
    def ahead(self) -> int:
        """Returns how many processes stand ready for the next generation's services."""
        return len(self._ahead)

    async def stop(self) -> None:
        """Ends all services."""
        await self._stop_filling()
        children = [*self._older, *self._newest, *self._ahead]
        self._older, self._newest, self._ahead = [], [], []
        await _end(children)

    async def _fill(self, count: int) -> None:
        """Starts processes for the next generation's services."""
        await asyncio.sleep(AHEAD_AFTER_S)
        while len(self._ahead) < count:
            self._ahead.append(await _child())

    async def _stop_filling(self) -> None:
        if self._filling is not None:
            self._filling.cancel()
            await asyncio.wait([self._filling])

    async def _start_one(self, ranks: int) -> str:
        for _ in range(START_TRIES_MAX):
            port = free_port(self._host)
            child = self._ahead.pop() if self._ahead else await _child()
            self._newest.append(child)
            assert child.stdin is not None
            assert child.stdout is not None
            child.stdin.write(f"{self._host} {port} {ranks}\n".encode())
            try:
                async with asyncio.timeout(START_LIMIT_S):
                    said = await child.stdout.readline()
            except TimeoutError:
                return ""
            if said == READY:
                return address_of(self._host, port)
            if await child.wait() == 0:
                return ""  # No usable jaxlib: plain programs run all the same.
        return ""


async def _child() -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        *(sys.executable, *(("-I",) if sys.flags.isolated else ()), "-m", "mainspring.node.coordinator"),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
    )


async def _end(children: list[asyncio.subprocess.Process]) -> None:
    for child in children:
        if child.returncode is None:
            child.kill()
        await child.wait()


def serve() -> None:
    """Hosts one service until killed, or until it is an older one (so its input says) that nobody is connected to.

    Where it listens, and how many processes will connect, is the first line of its input. Returns at once where no
    usable jaxlib is.
    """
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    try:
        from jaxlib import _jax, version  # type: ignore[attr-defined,unused-ignore]
    except ImportError:
        return
    if not version.__version__.startswith(VERSIONS):
        return
    host, port, ranks = sys.stdin.buffer.readline().decode().split()
    service = _jax.get_distributed_runtime_service(
        address_of(host, int(port)), int(ranks), heartbeat_timeout=NEVER_S, cluster_register_timeout=NEVER_S
    )
    sys.stdout.buffer.write(READY)
    sys.stdout.buffer.flush()
    while sys.stdin.buffer.readline() != OLDER:
        signal.pause()  # Nobody tells us: the end of its input, where there is none.
    unused = 0
    while unused < LOOKS_UNUSED:
        select.select([], [], [], LOOK_S)
        unused = 0 if connections(int(port)) else unused + 1
    assert service is not None  # Held until here: a service that is collected ends.
    os._exit(0)  # A shutdown in good order would wait for ranks that are gone.


def connections(port: int) -> int:
    """Returns how many established TCP connections this machine's own end of which is `port` there are."""
    count = 0
    for table in ("/proc/self/net/tcp", "/proc/self/net/tcp6"):
        if Path(table).exists():
            for line in Path(table).read_text().splitlines()[1:]:
                _, local, _, state, *_ = line.split()
                count += state == _ESTABLISHED and int(local.rpartition(":")[2], 16) == port
    return count


if __name__ == "__main__":
    serve()
