"""Handing ranks the files of their snapshots, where they run under another account than their agent.

Those files have no name but the agent's descriptor, and that way into them is for the agent's own account. So a second
socket beside each rank's own takes the path a rank was told, and answers with the open file.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from collections.abc import Awaitable, Callable
from typing import final

from mainspring.domain.wire import FILES_SUFFIX
from mainspring.node.process.account import Account
from mainspring.node.snapshots.arena import file_of

ASK_LIMIT_S = 10.0  # The session asks as it connects.
ASKED_BYTES_MAX = 256  # Of a path such as /proc/4194304/fd/1048576.
_PRIVATE = 0o600

Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@final
class RankSockets:
    """The Unix sockets of one rank process.

    Args:
        path: Of its own socket, at most 107 bytes with `FILES_SUFFIX`.
        account: Whose they are, so that nobody else connects; None for the agent's own, which needs no second one.
    """

    def __init__(self, path: str, account: Account | None) -> None:
        self._path = path
        self._account = account
        self._servers: list[asyncio.Server] = []

    async def listen(self, serve: Serve) -> None:
        """Opens them.

        Args:
            serve: Speaks with whoever connects to the rank's own.

        Raises:
            OSError: Their folder cannot be written.
        """
        await self._open(self._path, serve)
        if self._account is not None:
            await self._open(self._path + FILES_SUFFIX, _hand)

    def close(self) -> None:
        """Closes them, and removes their names."""
        for server in self._servers:
            server.close()
        for path in (self._path, self._path + FILES_SUFFIX):
            with contextlib.suppress(OSError):
                os.unlink(path)

    async def _open(self, path: str, serve: Serve) -> None:
        server = await asyncio.start_unix_server(serve, path, start_serving=False)
        self._servers.append(server)
        if self._account is not None:  # Before anybody can connect.
            os.chmod(path, _PRIVATE)
            os.chown(path, self._account.uid, self._account.gid)
        await server.start_serving()


async def _hand(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Answers one path with its file; anything else with nothing."""
    with contextlib.closing(writer), contextlib.suppress(OSError, ValueError, TimeoutError):
        async with asyncio.timeout(ASK_LIMIT_S):
            asked = await reader.readline()
        file = file_of(asked[:ASKED_BYTES_MAX].decode().rstrip("\n"))
        if file is not None:
            with socket.socket(fileno=os.dup(writer.get_extra_info("socket").fileno())) as line:
                socket.send_fds(line, [b"\n"], [file])
