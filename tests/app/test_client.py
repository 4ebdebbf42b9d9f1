"""The client on a line that loses answers: what may be made again is, and does nothing twice."""

from __future__ import annotations

import socket
import sys
from collections.abc import Iterator
from contextlib import suppress
from threading import Thread
from urllib.parse import urlsplit

import pytest

from mainspring.app.base.client import BATCH_BYTES_MAX, Client, batches
from mainspring.app.sdk.lab import Lab, job
from mainspring.domain.answers import BATCH_MAX, NewToken, Submit, SubmitBatch, problem_of
from mainspring.domain.codec import encode
from mainspring.domain.errors import TooManyRequests, Unavailable


class LossyLine:
    """Passes requests on to a server, one a connection; on request it keeps answers to itself or refuses."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        self._server = (str(parts.hostname), int(parts.port or 0))
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self.lose = 0
        self.refuse = 0
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
        if self.refuse:
            self.refuse -= 1
            told = encode(problem_of(TooManyRequests("serve a request"), 429))
            caller.sendall(
                b"HTTP/1.1 429 Later\r\nContent-Length: %d\r\nConnection: close\r\n\r\n%s" % (len(told), told)
            )
            return
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
        while b"chunked" in head and not body.endswith(b"0\r\n\r\n"):
            body += sender.recv(65_536)
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


def test_a_batch_whose_answer_is_lost_makes_each_job_once(lab: Lab, line: LossyLine) -> None:
    specs = [job(f"one-{index}", [sys.executable, "-c", "pass"], on=["h100"]) for index in range(3)]
    with Client(line.url, lab.home.token()) as client:
        client.teams()
        line.lose = 1
        made = client.submit_batch(SubmitBatch(submits=tuple(Submit(spec=spec) for spec in specs)))
    assert line.seen[-2:] == ["POST /v1/jobs/batch"] * 2
    assert [lab.status(one).spec.name for one in made.jobs] == ["one-0", "one-1", "one-2"]
    assert {"one-0", "one-1", "one-2"} <= {view.spec.name for view in lab.ps(limit=10)}
    assert len([view for view in lab.ps(limit=10) if view.spec.name == "one-0"]) == 1


def test_many_jobs_are_run_in_one_call(lab: Lab) -> None:
    specs = [job(f"many-{index}", [sys.executable, "-c", "pass"], on=["h100"]) for index in range(5)]
    made = lab.run_all(specs)
    assert [lab.status(one).spec.name for one in made] == [spec.name for spec in specs]
    assert lab.run_all([]) == ()


def test_submits_go_in_batches_of_as_many_and_as_long_as_a_server_takes() -> None:
    plain = Submit(spec=job("plain", ["true"], on=["h100"]))
    assert [len(one.submits) for one in batches([plain] * (BATCH_MAX + 1))] == [BATCH_MAX, 1]
    long = list(batches([Submit(spec=job("long", ["x" * 60_000], on=["h100"]))] * 250))
    assert sum(len(one.submits) for one in long) == 250
    assert len(long) == 3
    assert max(len(encode(one)) for one in long) <= BATCH_BYTES_MAX
    assert [len(one.submits) for one in batches([])] == []


def test_events_are_watched_across_a_connection_that_breaks(lab: Lab, line: LossyLine) -> None:
    made = lab.run(job("watched", [sys.executable, "-c", "pass"], on=["h100"]))
    lab.wait(made.id)
    every = lab.events(made.id)
    with Client(line.url, lab.home.token()) as client:
        client.teams()
        line.lose = 1
        assert list(client.watch(made.id)) == list(every)
        assert list(client.watch(made.id, since=every[1].sequence)) == list(every[2:])
        assert list(client.past_events(made.id, since=0, limit=1)) == list(every)
        assert list(client.past_events(made.id, since=None, limit=3)) == list(every[-3:])
    assert list(lab.watch(made.id)) == list(every)


def test_a_call_of_more_than_one_share_is_made_again_a_little_later(lab: Lab, line: LossyLine) -> None:
    line.refuse = 2
    with Client(line.url, lab.home.token()) as client:
        assert client.new_token(NewToken(holder="bo")).token.holder == "bo"
    assert line.seen == ["POST /v1/tokens"] * 3
