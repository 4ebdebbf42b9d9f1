"""Who begins a request and does not go on is hung up on; who is slow and goes on is served."""

from __future__ import annotations

import select
import socket
import time
from contextlib import ExitStack
from dataclasses import dataclass
from threading import Event
from typing import TYPE_CHECKING

import pytest

from mainspring.control.api_load import REQUESTS_MAX
from mainspring.control.connections import BoundedConnection, bounded_by
from mainspring.domain.answers import PROBLEM_TYPE, NewToken, Problem
from mainspring.domain.codec import decode

if TYPE_CHECKING:
    from tests.control.serving import Lab

PATIENCE_S = 0.5


class Impatient(BoundedConnection):
    head_s_max = body_s_max = answer_s_max = PATIENCE_S
    body_bytes_least = 16
    heads_max = 8


class Patient(Impatient):
    """Gives requests so long that a busy machine may hold one up meanwhile."""

    head_s_max = body_s_max = answer_s_max = 4 * PATIENCE_S


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """Where a server is, and a token there."""

    address: tuple[str, int]
    secret: str


@pytest.fixture
def served(lab: Lab) -> Served:
    return _served(lab, Impatient)


def _served(lab: Lab, connection: type[BoundedConnection]) -> Served:
    server, control, url = lab.server("first", connection)
    server.start()
    made = control.people.new_token(NewToken(holder="ada"))
    return Served(address=("127.0.0.1", int(url.rpartition(":")[2])), secret=made.secret)


@pytest.fixture
def address(served: Served) -> tuple[str, int]:
    return served.address


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
        while not told.endswith(b"}"):
            told += line.recv(65_536)
        line.sendall(b"\r\n")
        begun = time.monotonic()
        assert _ended(line) == b""
        assert time.monotonic() - begun < 60 * PATIENCE_S


def test_a_head_without_end_is_hung_up_on(address: tuple[str, int]) -> None:
    lines = [b"X-%d: %s\r\n" % (number, b"a" * 8_192) for number in range(1_000)]
    with socket.create_connection(address) as line, pytest.raises(OSError, match=r"reset|pipe"):
        line.sendall(b"GET /livez HTTP/1.1\r\n" + b"".join(lines))


@pytest.mark.slow
@pytest.mark.parametrize("known", [True, False])
def test_a_body_that_trickles_in_is_hung_up_on_all_the_same(served: Served, *, known: bool) -> None:
    with socket.create_connection(served.address) as line:
        line.sendall(_submit(served.secret if known else "nobody's"))
        with pytest.raises(OSError, match=r"reset|pipe"):
            _trickle(line)


@pytest.mark.slow
def test_who_does_not_read_an_answer_is_hung_up_on(served: Served) -> None:
    for waits in (3, 12, 40):  # A busy machine takes a while to answer at all.
        with socket.socket() as line:
            line.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
            line.connect(served.address)
            line.sendall(b"GET /openapi.json HTTP/1.1\r\nHost: a\r\n\r\n" * 100)
            Event().wait(waits * PATIENCE_S)
            if _ended(line).count(b"200 OK") < 100:
                return
    raise AssertionError("everything came")


@pytest.mark.slow
def test_of_too_many_that_wait_one_gives_way(served: Served) -> None:
    with ExitStack() as held:
        lines = [held.enter_context(socket.create_connection(served.address)) for _ in range(Impatient.heads_max)]
        with socket.create_connection(served.address) as last:
            last.sendall(b"GET /livez HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
            assert b"200 OK" in _ended(last)
        assert len(select.select(lines, [], [], 0.5 * PATIENCE_S)[0]) == 1


@pytest.mark.slow
def test_connections_are_bounded_by_the_files_that_a_process_may_have_open(lab: Lab) -> None:
    kind = bounded_by(16)
    served = _served(lab, kind)
    with ExitStack() as held:
        lines = [held.enter_context(socket.create_connection(served.address)) for _ in range(kind.connections_max)]
        with socket.create_connection(served.address) as last:
            last.sendall(b"GET /livez HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
            assert b"200 OK" in _ended(last)
        assert len(select.select(lines, [], [], 0.5 * PATIENCE_S)[0]) == 1


@pytest.mark.slow
def test_bodies_on_their_way_count_among_a_callers_requests(lab: Lab) -> None:
    served = _served(lab, BoundedConnection)
    with ExitStack() as held:
        lines = [held.enter_context(socket.create_connection(served.address)) for _ in range(REQUESTS_MAX + 1)]
        for line in lines:
            line.sendall(_submit(served.secret))
        assert b"HTTP/1.1 429 " in b"".join(line.recv(65_536) for line in select.select(lines, [], [], 5.0)[0])


@pytest.mark.slow
@pytest.mark.parametrize(
    "sent", [b"GARBAGE\r\n\r\n", b"GET / HTTP/1.1\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n"]
)
def test_what_is_no_request_is_told_so_as_a_problem(served: Served, sent: bytes) -> None:
    with socket.create_connection(served.address) as line:
        line.sendall(sent)
        head, _, body = _ended(line).partition(b"\r\n\r\n")
    assert PROBLEM_TYPE.encode() in head
    assert decode(Problem, body).status == 400


def _submit(secret: str) -> bytes:
    """The beginning of a long body."""
    head = f"POST /v1/jobs HTTP/1.1\r\nHost: a\r\nContent-Length: 1000\r\nAuthorization: Bearer {secret}\r\n\r\n"
    return head.encode()


def _trickle(line: socket.socket) -> None:
    for _ in range(100):
        line.sendall(b"a")
        Event().wait(PATIENCE_S / 5)


@pytest.mark.slow
def test_a_slow_request_that_goes_on_and_those_after_it_are_served(lab: Lab) -> None:
    with socket.create_connection(_served(lab, Patient).address) as line:
        for _ in range(2):  # On one connection; both take longer than one may.
            line.sendall(b"PUT /v1/teams/x HTTP/1.1\r\nHost: a\r\nContent-Length: 8\r\n\r\n")
            for letter in b"abcdefgh":
                Event().wait(Patient.body_s_max / 14)
                line.sendall(bytes([letter]))
            assert b"401" in line.recv(65_536)
        line.sendall(b"GET /livez HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
        assert b"200 OK" in _ended(line)
