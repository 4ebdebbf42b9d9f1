"""Large bodies are read past the connection's parser: every byte comes, and the connection goes on after them."""

from __future__ import annotations

import random
import socket
import ssl
from collections.abc import Iterator
from pathlib import Path
from threading import Event, Thread
from typing import Any

import pytest
import uvicorn
from blake3 import blake3
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send
from tests.app.certificates import self_signed

from mainspring.control.api_arrivals import PIECE_BYTES, body_pieces
from mainspring.control.connections import BODY_BYTES_TAKEN, BoundedConnection, Tls, listen

pytestmark = pytest.mark.slow  # Each starts a server.
WAIT_S = 120.0
BYTES = random.Random(7).randbytes(3 * PIECE_BYTES + 12_345)


class Counted(BoundedConnection):
    """Counts the bytes that went through the parser's hands."""

    parsed = 0

    def on_body(self, body: bytes) -> None:
        type(self).parsed += len(body)
        super().on_body(body)


class Served:
    """A server that answers with the hash of what it was sent; it reads no more than asked for, where that is said."""

    def __init__(self, loop: str, tls: Tls | None) -> None:
        self.kind: type[Counted] = type("Counted", (Counted,), {"parsed": 0})
        self.tls = tls
        self.ended = Event()  # A body that was not whole has ended.
        self.came = 0
        self._listener = listen("127.0.0.1", 0, tls=tls)
        files = {"ssl_certfile": str(tls.certificate), "ssl_keyfile": str(tls.key)} if tls else {}
        words: dict[str, Any] = {
            "interface": "asgi3",
            "loop": loop,
            "http": self.kind,
            "lifespan": "off",
            "log_config": None,
            **files,
        }
        self._server = uvicorn.Server(uvicorn.Config(self._serve, **words))
        self._thread = Thread(target=self._server.run, kwargs={"sockets": [self._listener]}, daemon=True)
        self._thread.start()

    async def _serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        hasher, size = blake3(), 0
        wanted = int(request.query_params.get("until", 1 << 60))
        pieces = body_pieces(request)
        async for piece in pieces:
            hasher.update(piece)
            size += memoryview(piece).nbytes
            if size >= wanted:
                break
        await pieces.aclose()
        if size < min(wanted, int(request.headers.get("content-length", size))):
            self.came = size
            self.ended.set()
            return
        await Response(f"{size} {hasher.hexdigest()}")(scope, receive, send)

    def line(self) -> socket.socket:
        """Returns a connection."""
        plain = socket.create_connection(self._listener.getsockname(), timeout=WAIT_S)
        if self.tls is None:
            return plain
        context = ssl.create_default_context(cafile=str(self.tls.certificate))
        return context.wrap_socket(plain, server_hostname="localhost")

    def close(self) -> None:
        self._server.should_exit = True
        self._thread.join(WAIT_S)
        self._listener.close()


@pytest.fixture(params=["uvloop", "asyncio", "uvloop with TLS", "asyncio with TLS"])
def served(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Served]:
    loop, _, more = request.param.partition(" ")
    made = self_signed(tmp_path, name="localhost") if more else None
    served = Served(loop, Tls(certificate=made.chain, key=made.key) if made else None)
    yield served
    served.close()


def _head(size: int, path: str = "/") -> bytes:
    return f"PUT {path} HTTP/1.1\r\nHost: a\r\nContent-Length: {size}\r\n\r\n".encode()


def _answer(line: socket.socket) -> str:
    told = b""
    while True:
        head, found, body = told.partition(b"\r\n\r\n")
        if found:
            length = next(int(said[15:]) for said in head.lower().split(b"\r\n") if said.startswith(b"content-length:"))
            if len(body) >= length:
                assert head.startswith(b"HTTP/1.1 200"), head
                assert len(body) == length, "answers to one request alone"
                return body.decode()
        part = line.recv(65_536)
        assert part, f"hung up after {told!r}"
        told += part


def _said(data: bytes) -> str:
    return f"{len(data)} {blake3(data).hexdigest()}"


def test_every_byte_of_a_large_body_comes_and_few_are_parsed(served: Served) -> None:
    with served.line() as line:
        for size in (len(BYTES), PIECE_BYTES, PIECE_BYTES + 1, 2 * PIECE_BYTES - 1, 10, 0):
            line.sendall(_head(size) + BYTES[:size])
            assert _answer(line) == _said(BYTES[:size])
        before = served.kind.parsed
        line.sendall(_head(len(BYTES)))
        line.sendall(BYTES)
        assert _answer(line) == _said(BYTES)
    assert served.kind.parsed - before < len(BYTES) - BODY_BYTES_TAKEN


def test_what_follows_a_large_body_at_once_is_served_too(served: Served) -> None:
    small = BYTES[:100]
    with served.line() as line:
        line.sendall(_head(len(BYTES)) + BYTES + _head(len(small)))
        assert _answer(line) == _said(BYTES)
        line.sendall(small)
        assert _answer(line) == _said(small)


@pytest.mark.parametrize("until", [1, PIECE_BYTES + 1])
def test_who_answers_in_the_middle_of_a_body_is_heard_and_the_connection_goes_on(served: Served, until: int) -> None:
    taken = BYTES[: PIECE_BYTES * (1 + until // PIECE_BYTES)]
    with served.line() as line:
        for _ in range(2):
            line.sendall(_head(len(BYTES), f"/?until={until}") + BYTES)  # What is not asked for is read all the same.
            assert _answer(line) == _said(taken)
        line.sendall(_head(3) + b"abc")
        assert _answer(line) == _said(b"abc")


def test_of_a_body_that_breaks_off_all_is_handed_on_that_came(served: Served) -> None:
    sent = BYTES[: PIECE_BYTES + 54_321]
    with served.line() as line:
        line.sendall(_head(len(BYTES)) + sent)
        line.shutdown(socket.SHUT_WR)
        assert served.ended.wait(WAIT_S)
    dropped_max = 0 if served.tls is None else PIECE_BYTES // 2  # What TLS has read ahead goes with it.
    assert len(sent) - dropped_max <= served.came <= len(sent)


def test_who_stalls_in_a_large_body_is_hung_up_on(served: Served) -> None:
    served.kind.body_s_max = 1.0
    with served.line() as line:
        line.sendall(_head(len(BYTES)) + BYTES[:PIECE_BYTES])
        assert served.ended.wait(WAIT_S)
    assert served.came <= PIECE_BYTES


def test_a_body_of_unknown_length_comes_whole(served: Served) -> None:
    with served.line() as line:
        line.sendall(b"PUT / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n")
        for begin in range(0, len(BYTES), 100_000):
            part = BYTES[begin : begin + 100_000]
            line.sendall(b"%x\r\n%b\r\n" % (len(part), part))
        line.sendall(b"0\r\n\r\n")
        assert _answer(line) == _said(BYTES)
