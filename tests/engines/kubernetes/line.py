"""A line to a server that can be cut and mended."""

from __future__ import annotations

import socket
from contextlib import suppress
from threading import Thread
from types import TracebackType


class Line:
    """Passes on what goes to and fro between callers and a server of this machine, until it is cut.

    Args:
        port: The server's.
    """

    def __init__(self, port: int) -> None:
        self._port = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._ends: list[socket.socket] = []
        self._whole = True
        self.port = int(self._listener.getsockname()[1])
        Thread(target=self._run, daemon=True).start()

    def __enter__(self) -> Line:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.cut()
        self._listener.close()

    def cut(self) -> None:
        """Ends every connection, and any that is made before it is mended."""
        self._whole = False
        for end in self._ends:
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
        self._ends.clear()

    def mend(self) -> None:
        """Lets callers through again."""
        self._whole = True

    def _run(self) -> None:
        with suppress(OSError):
            while True:
                caller = self._listener.accept()[0]
                if not self._whole:
                    caller.close()
                    continue
                with suppress(OSError):
                    server = socket.create_connection(("127.0.0.1", self._port))
                    self._ends += caller, server
                    for pair in ((caller, server), (server, caller)):
                        Thread(target=_pass_on, args=pair, daemon=True).start()


def _pass_on(sender: socket.socket, receiver: socket.socket) -> None:
    with suppress(OSError):
        while piece := sender.recv(65_536):
            receiver.sendall(piece)
    for end in (sender, receiver):
        with suppress(OSError):
            end.shutdown(socket.SHUT_RDWR)
