"""Who begins a request and does not go on is hung up on; who is slow and goes on is served."""

from __future__ import annotations

import socket
import time
from threading import Event
from typing import TYPE_CHECKING

import pytest

from mainspring.control.connections import BoundedConnection

if TYPE_CHECKING:
    from tests.control.serving import Lab

PATIENCE_S = 0.5


class Impatient(BoundedConnection):
    head_s_max = body_s_max = PATIENCE_S


@pytest.fixture
def address(lab: Lab) -> tuple[str, int]:
    server, _, url = lab.server("first", Impatient)
    server.start()
    return "127.0.0.1", int(url.rpartition(":")[2])


def _ended(line: socket.socket) -> bytes:
    """What comes until the other end hangs up."""
    line.settimeout(20 * PATIENCE_S)
    parts = []
    while part := line.recv(65_536):
        parts.append(part)
    return b"".join(parts)


@pytest.mark.slow
@pytest.mark.parametrize(
    "sent",
    [
        b"",
        b"GET /livez HT",
        b"GET /livez HTTP/1.1\r\nHost: a\r\nX-Slow: ",
        b"POST /v1/jobs HTTP/1.1\r\nHost: a\r\nContent-Length: 10\r\n\r\nabc",
        b"POST /v1/jobs HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nab",
    ],
)
def test_a_request_that_does_not_go_on_is_hung_up_on(address: tuple[str, int], sent: bytes) -> None:
    with socket.create_connection(address) as line:
        line.sendall(sent)
        begun = time.monotonic()
        assert b"200 OK" not in _ended(line)
        assert time.monotonic() - begun > 0.8 * PATIENCE_S


@pytest.mark.slow
def test_a_head_that_trickles_in_is_hung_up_on_all_the_same(address: tuple[str, int]) -> None:
    with socket.create_connection(address) as line:
        line.sendall(b"GET /livez HTTP/1.1\r\nX-Slow: ")
        with pytest.raises(OSError, match=r"reset|pipe"):
            _trickle(line)


@pytest.mark.slow
def test_bytes_between_requests_keep_no_connection_open(address: tuple[str, int]) -> None:
    with socket.create_connection(address) as line:
        line.sendall(b"GET /livez HTTP/1.1\r\nHost: a\r\n\r\n")
        told = b""
        while not told.endswith(b"]}"):
            told += line.recv(65_536)
        line.sendall(b"\r\n")
        begun = time.monotonic()
        assert _ended(line) == b""
        assert time.monotonic() - begun < 5 * PATIENCE_S


def test_a_head_without_end_is_hung_up_on(address: tuple[str, int]) -> None:
    lines = [b"X-%d: %s\r\n" % (number, b"a" * 8_192) for number in range(1_000)]
    with socket.create_connection(address) as line, pytest.raises(OSError, match=r"reset|pipe"):
        line.sendall(b"GET /livez HTTP/1.1\r\n" + b"".join(lines))


def _trickle(line: socket.socket) -> None:
    for _ in range(100):
        line.sendall(b"a")
        Event().wait(PATIENCE_S / 5)


@pytest.mark.slow
def test_a_slow_request_that_goes_on_and_those_after_it_are_served(address: tuple[str, int]) -> None:
    with socket.create_connection(address) as line:
        for _ in range(2):  # On one connection.
            line.sendall(b"PUT /v1/teams/x HTTP/1.1\r\nHost: a\r\nContent-Length: 8\r\n\r\n")
            for letter in b"abcdefgh":
                Event().wait(PATIENCE_S / 4)
                line.sendall(bytes([letter]))
            assert b"401" in line.recv(65_536)
        line.sendall(b"GET /livez HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
        assert b"200 OK" in _ended(line)
