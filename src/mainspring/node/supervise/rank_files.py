"""The sockets of one rank: its own, one that hands it the files of its snapshots, and perhaps one for views.

Those files have no name but the agent's descriptor, and that way into them is for the agent's own account, on its own
machine's list of processes. So the second socket takes the path a rank was told, and answers with the open file.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import struct
from collections.abc import Awaitable, Callable, Mapping
from typing import final

from mainspring.domain.wire import FILES_SUFFIX
from mainspring.node.process.account import Account
from mainspring.node.snapshots.arena import file_of

ASK_LIMIT_S = 10.0  # The session asks as it connects.
ASKED_BYTES_MAX = 256  # Of a path such as /proc/4194304/fd/1048576.
_PEER = struct.Struct("iII")  # `struct ucred` of unix(7): process, user, group.

Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@final
class RankSockets:
    """The Unix sockets of one rank process.

    Args:
        account: Whose they are: nobody else connects, and nobody else is spoken with.
        path: Of its own socket, at most 107 bytes with the longest suffix.
    """

    def __init__(self, account: Account, path: str) -> None:
        self._account = account
        self._path = path
        self._servers: dict[str, asyncio.Server] = {}

    async def listen(self, serve: Mapping[str, Serve]) -> None:
        """Opens them.

        Args:
            serve: By the suffix of a socket, what speaks with whoever connects to it: "" is the rank's own.

        Raises:
            OSError: Their folder cannot be written.
            Unavailable: The account cannot be used any more.
        """
        for suffix, with_whom in {**serve, FILES_SUFFIX: _hand}.items():
            path = self._path + suffix
            bound = await self._account.bind(path)
            self._servers[path] = await asyncio.start_unix_server(self._to_its_own(with_whom), sock=bound)

    def close(self) -> None:
        """Closes them, and removes their names."""
        for path, server in self._servers.items():
            server.close()
            self._account.remove(path)

    def _to_its_own(self, serve: Serve) -> Serve:
        """Returns what serves the account, and root, which may be anybody; others that found a way are hung up on."""

        async def admit(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            line = writer.get_extra_info("socket")
            _, uid, _ = _PEER.unpack(line.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size))
            if uid in (0, self._account.uid):
                await serve(reader, writer)
            else:
                writer.close()

        return admit


async def _hand(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Answers one path with its file; anything else with nothing."""
    with contextlib.closing(writer), contextlib.suppress(OSError, ValueError, TimeoutError):
        async with asyncio.timeout(ASK_LIMIT_S):
            asked = await reader.readline()
        file = file_of(asked[:ASKED_BYTES_MAX].decode().rstrip("\n"))
        if file is not None:
            with socket.socket(fileno=os.dup(writer.get_extra_info("socket").fileno())) as line:
                socket.send_fds(line, [b"\n"], [file])
