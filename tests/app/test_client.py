"""The client on a line that loses answers: what may be made again is, and does nothing twice."""

from __future__ import annotations

import socket
import sys
from collections.abc import Iterator
from contextlib import suppress
from threading import Thread
from urllib.parse import urlsplit

import pytest

from mainspring.app.base.client import Client
from mainspring.app.sdk.lab import Lab, job
from mainspring.domain.answers import NewToken, Submit
from mainspring.domain.errors import Unavailable


class LossyLine:
    """Passes requests on to a server, one a connection; on request it keeps the next answer to itself."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        self._server = (str(parts.hostname), int(parts.port or 0))
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self.lose = 0
        self.seen: list[str] = []
        Thread(target=self._run, daemon=True).start()

    def close(self) -> None:
        self._listener.close()

    def _run(self) -> None:
        with suppress(OSError):
            while True:
                with self._listener.accept()[0] as caller, suppress(OSError):
                    self._pass_on(caller)

    def _pass_on(self, caller: socket.socket) -> None:
        request = self._whole(caller)
        self.seen.append(request.partition(b" HTTP")[0].decode())
        with socket.create_connection(self._server) as server:
            server.sendall(request)
            answer = self._whole(server)
        if self.lose:
            self.lose -= 1
        else:
            caller.sendall(answer.replace(b"\r\n", b"\r\nConnection: close\r\n", 1))

    @staticmethod
    def _whole(sender: socket.socket) -> bytes:
        data = b""
        while b"\r\n\r\n" not in data:
            data += sender.recv(65_536)
        head, _, body = data.partition(b"\r\n\r\n")
        lengths = [line.split(b":")[1] for line in head.lower().split(b"\r\n") if line.startswith(b"content-length")]
        while lengths and len(body) < int(lengths[0]):
            body += sender.recv(65_536)
        return head + b"\r\n\r\n" + body


@pytest.fixture
def line(lab: Lab) -> Iterator[LossyLine]:
    record = lab.home.server()
    assert record is not None
    made = LossyLine(record.url)
    yield made
    made.close()


def test_a_submit_whose_answer_is_lost_makes_one_job(lab: Lab, line: LossyLine) -> None:
    spec = job("once", [sys.executable, "-c", "pass"], on=["h100"])
    with Client(line.url, lab.home.token()) as client:
        client.teams()
        line.lose = 2
        made = client.submit(Submit(spec=spec))
        assert line.seen[-3:] == ["POST /v1/jobs"] * 3
        assert client.submit(Submit(spec=spec)).id != made.id  # Another call is another job.
    assert [view.spec.name for view in lab.ps()] == ["once", "once"]


def test_a_call_that_would_do_something_twice_is_not_made_again(lab: Lab, line: LossyLine) -> None:
    with Client(line.url, lab.home.token()) as client:
        client.teams()
        line.lose = 1
        with pytest.raises(Unavailable):
            client.new_token(NewToken(holder="ada"))
        assert line.seen[-1:] == ["POST /v1/tokens"]
        assert [token.holder for token in client.tokens()].count("ada") == 1
