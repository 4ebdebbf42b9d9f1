"""The JAX coordination service, in a child process of the lead's agent, so that it outlives any rank.

As a program (`python -m mainspring.node.coordinator HOST PORT RANKS`) it hosts one service, says "ready", and serves
until it is killed or its parent dies. It imports jaxlib alone, which takes a third of the time of JAX. Private names
of jaxlib are used here only, and the version is checked first.
"""

from __future__ import annotations

import asyncio
import ctypes
import signal
import sys
from collections.abc import Mapping
from typing import final

from mainspring.node.links import free_port

VERSIONS = ("0.10.",)  # Releases whose private names were read and tried.
READY = b"ready\n"
START_LIMIT_S = 20.0  # Importing jaxlib takes 0.2 s on a quiet machine.
START_TRIES_MAX = 3  # Between choosing a port and using it, somebody else may take it.
_PR_SET_PDEATHSIG = 1


@final
class Coordinators:
    """The coordination services of one generation at a time.

    Args:
        host: The address ranks reach this machine under.
    """

    def __init__(self, host: str) -> None:
        self._host = host
        self._children: list[asyncio.subprocess.Process] = []

    async def start(self, ranks_by_role: Mapping[str, int]) -> Mapping[str, str]:
        """Ends the older generation's services; returns the new ones' addresses by role.

        A role of one rank has none; nor has any where jaxlib is missing or of an unknown release.

        Args:
            ranks_by_role: How many ranks each role has.
        """
        await self.stop()
        roles = [role for role, ranks in sorted(ranks_by_role.items()) if ranks > 1]
        found = await asyncio.gather(*(self._start_one(ranks_by_role[role]) for role in roles))
        return {role: address for role, address in zip(roles, found, strict=True) if address}

    async def stop(self) -> None:
        """Ends all services."""
        children, self._children = self._children, []
        for child in children:
            if child.returncode is None:
                child.kill()
            await child.wait()

    async def _start_one(self, ranks: int) -> str:
        for _ in range(START_TRIES_MAX):
            port = free_port(self._host)
            child = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "mainspring.node.coordinator", self._host, str(port), str(ranks)),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.DEVNULL,
            )
            self._children.append(child)
            assert child.stdout is not None
            try:
                async with asyncio.timeout(START_LIMIT_S):
                    said = await child.stdout.readline()
            except TimeoutError:
                return ""
            if said == READY:
                return f"[{self._host}]:{port}" if ":" in self._host else f"{self._host}:{port}"
            if await child.wait() == 0:
                return ""  # No usable jaxlib: plain programs run all the same.
        return ""


def serve(host: str, port: int, ranks: int) -> None:
    """Hosts one service until killed; returns at once where no usable jaxlib is.

    Args:
        host: The address to listen on.
        port: The port to listen on.
        ranks: How many processes will connect.
    """
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    try:
        from jaxlib import _jax, version  # type: ignore[attr-defined,unused-ignore]
    except ImportError:
        return
    if not version.__version__.startswith(VERSIONS):
        return
    address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    service = _jax.get_distributed_runtime_service(address, ranks)
    sys.stdout.buffer.write(READY)
    sys.stdout.buffer.flush()
    signal.pause()
    service.shutdown()


if __name__ == "__main__":
    serve(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
