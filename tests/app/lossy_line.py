"""A line between a client and its server that loses answers."""

from __future__ import annotations

import socket
from contextlib import suppress
from threading import Thread
from urllib.parse import urlsplit

from mainspring.domain.answers import problem_of
from mainspring.domain.codec import encode
from mainspring.domain.errors import MainspringError, TooManyRequests


class LossyLine:
    """Passes requests on to a server, one a connection; on request it keeps answers to itself, cuts or refuses them."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        self._server = (str(parts.hostname), int(parts.port or 0))
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self.lose = 0
        self.refuse = 0
        self.refusal: tuple[int, MainspringError | None] = (429, TooManyRequests("serve a request"))  # None: a proxy's.
        self.stop_after = 0  # Events of a stream; then it stops as if it were whole, without its end.
        self.seen: list[str] = []
        Thread(target=self._run, daemon=True).start()

    def __enter__(self) -> LossyLine:
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.close()

    def _run(self) -> None:
        with suppress(OSError):
            while True:
                with self._listener.accept()[0] as caller, suppress(OSError):
                    self._pass_on(caller)

    def _pass_on(self, caller: socket.socket) -> None:
        request = self._whole(caller)
        self.seen.append(request.partition(b" HTTP")[0].decode())
        if self.refuse:
            self.refuse -= 1
            status, error = self.refusal
            told = b"<html>" if error is None else encode(problem_of(error, status))
            head = b"HTTP/1.1 %d Later\r\nContent-Length: %d\r\nConnection: close\r\n\r\n"
            caller.sendall(head % (status, len(told)) + told)
            return
        with socket.create_connection(self._server) as server:
            server.sendall(request)
            answer = self._whole(server)
        if self.lose:
            self.lose -= 1
        elif self.stop_after:
            events = answer.partition(b"\r\n\r\n")[2].split(b"id: ")[1:]
            caller.sendall(
                b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n" + b"id: ".join([b"", *events[: self.stop_after]])
            )
        else:
            caller.sendall(answer.replace(b"\r\n", b"\r\nConnection: close\r\n", 1))

    @staticmethod
    def _whole(sender: socket.socket) -> bytes:
        data = b""
        while b"\r\n\r\n" not in data:
            data += sender.recv(65_536)
        head, _, body = data.partition(b"\r\n\r\n")
        lengths = [line.split(b":")[1] for line in head.lower().split(b"\r\n") if line.startswith(b"content-length")]
        while b"chunked" in head and not body.endswith(b"0\r\n\r\n"):
            body += sender.recv(65_536)
        while lengths and len(body) < int(lengths[0]):
            body += sender.recv(65_536)
        return head + b"\r\n\r\n" + body
