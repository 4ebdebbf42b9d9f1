"""The client on a line that loses answers: what may be made again is, and does nothing twice."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest

from mainspring.app.base.calls import BATCH_BYTES_MAX, batches
from mainspring.app.base.client import Client
from mainspring.app.sdk.lab import Lab, job
from mainspring.domain.answers import BATCH_MAX, NewToken, Submit, SubmitBatch
from mainspring.domain.codec import decode, encode
from mainspring.domain.errors import Busy, InvalidInput, MainspringError, Unavailable
from tests.app.lossy_line import LossyLine

GONE = "http://127.0.0.1:1"  # Nobody listens there.


@pytest.fixture(scope="module")
def lab(shared_lab: Lab) -> Lab:
    return shared_lab


@pytest.fixture
def line(lab: Lab) -> Iterator[LossyLine]:
    record = lab.home.server()
    assert record is not None
    with LossyLine(record.url) as made:
        yield made


def test_a_submit_whose_answer_is_lost_makes_one_job(lab: Lab, line: LossyLine) -> None:
    spec = job("once", [sys.executable, "-c", "pass"], on=["h100"])
    with Client(line.url, lab.home.token()) as client:
        client.teams()
        line.lose = 2
        made = client.submit(Submit(spec=spec))
        assert line.seen[-3:] == ["POST /v1/jobs"] * 3
        assert client.submit(Submit(spec=spec)).id != made.id  # Another call is another job.
    assert [view.spec.name for view in lab.ps()].count("once") == 2


def test_a_token_whose_answer_is_lost_is_made_once_and_its_secret_lets_in(lab: Lab, line: LossyLine) -> None:
    with Client(line.url, lab.home.token()) as client:  # It has not been answered before, as that of a command.
        line.lose = 2
        made = client.new_token(NewToken(holder="ada"))
        assert line.seen == ["POST /v1/tokens"] * 3
        assert [token.holder for token in client.tokens()].count("ada") == 1
        with Client(line.url, made.secret) as ada:
            assert ada.whoami().holder == "ada"
        store = (lab.home.path / "state.db").read_bytes() + (lab.home.path / "state.db-wal").read_bytes()
        assert made.secret.encode() not in store
        line.lose = 1
        assert client.remove_token(made.token.id).id == made.token.id


def test_a_batch_whose_answer_is_lost_makes_each_job_once(lab: Lab, line: LossyLine) -> None:
    specs = [job(f"one-{index}", [sys.executable, "-c", "pass"], on=["h100"]) for index in range(3)]
    with Client(line.url, lab.home.token()) as client:
        client.teams()
        line.lose = 1
        made = client.submit_batch(SubmitBatch(submits=tuple(Submit(spec=spec) for spec in specs)))
    assert line.seen[-2:] == ["POST /v1/jobs/batch"] * 2
    assert [lab.status(one).spec.name for one in made.jobs] == ["one-0", "one-1", "one-2"]
    assert {"one-0", "one-1", "one-2"} <= {view.spec.name for view in lab.ps()}
    assert len([view for view in lab.ps() if view.spec.name == "one-0"]) == 1


def test_many_jobs_are_run_in_one_call(lab: Lab) -> None:
    specs = [job(f"many-{index}", [sys.executable, "-c", "pass"], on=["h100"]) for index in range(5)]
    made = lab.run_all(specs)
    assert [lab.status(one).spec.name for one in made] == [spec.name for spec in specs]
    assert lab.run_all([]) == ()


def test_submits_go_in_batches_of_as_many_and_as_long_as_a_server_takes() -> None:
    plain = Submit(spec=job("plain", ["true"], on=["h100"]))
    assert [len(one.submits) for one in batches([plain] * (BATCH_MAX + 1))] == [BATCH_MAX, 1]
    long = list(batches([Submit(spec=job("long", ["x" * 60_000], on=["h100"]))] * 270))
    assert sum(len(one.submits) for one in long) == 270
    assert len(long) == 3
    assert max(len(encode(one)) for one in long) <= BATCH_BYTES_MAX
    assert [len(one.submits) for one in batches([])] == []


def test_batches_are_read_whatever_they_are_made_of() -> None:
    named = [
        Submit(spec=job(f"plain-{number}", ["true"], on=["h100"]), key=f"k{number}") for number in range(BATCH_MAX)
    ]
    (whole,) = batches(named)
    assert decode(SubmitBatch, encode(whole)) == whole
    dense = Submit(spec=job("dense", ["true"], on=["h100"], environment={f"A{number}": "{}," for number in range(60)}))
    many = list(batches([dense] * BATCH_MAX))
    assert sum(len(decode(SubmitBatch, encode(one)).submits) for one in many) == BATCH_MAX


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


def test_events_are_watched_across_streams_that_stop_before_their_end(lab: Lab, line: LossyLine) -> None:
    made = lab.run(job("stopped", [sys.executable, "-c", "pass"], on=["h100"]))
    lab.wait(made.id)
    line.stop_after = 2
    with Client(line.url, lab.home.token()) as client:
        assert list(client.watch(made.id)) == list(lab.events(made.id))
    assert len(line.seen) > 1


def test_calls_go_to_the_next_server_when_one_is_gone_and_stay_there(lab: Lab, line: LossyLine) -> None:
    with Client(f"{GONE},{line.url}/", lab.home.token()) as client:
        made = client.submit(Submit(spec=job("next", [sys.executable, "-c", "pass"], on=["h100"])))
        assert client.servers.url == line.url
        assert client.status(made.id).spec.name == "next"
        assert list(client.watch(made.id)) == list(lab.events(made.id))
    assert line.seen[:2] == ["POST /v1/jobs", f"GET /v1/jobs/{made.id}"]
    with Client(f"{GONE},http://127.0.0.1:2", "") as client, pytest.raises(Unavailable, match=f"{GONE}, http.*ms up"):
        client.teams()


@pytest.mark.parametrize("refusal", [(503, Busy("write the store")), (502, None), (504, None)])
def test_server_that_is_away_for_a_moment_is_asked_again(
    lab: Lab, line: LossyLine, refusal: tuple[int, MainspringError | None]
) -> None:
    line.refusal, line.refuse = refusal, 2
    with Client(line.url, lab.home.token()) as client:
        assert client.new_token(NewToken(holder="bo")).token.holder == "bo"
    assert line.seen == ["POST /v1/tokens"] * 3


def test_what_one_server_has_not_is_asked_of_each_of_the_others_once(lab: Lab, line: LossyLine) -> None:
    line.refusal, line.refuse = (503, Unavailable("read a log", got="no answer")), 3
    with LossyLine(lab.client().servers.url) as other, Client(f"{line.url},{other.url}", lab.home.token()) as client:
        assert client.teams()
        assert (line.seen, other.seen) == (["GET /v1/teams"], ["GET /v1/teams"])
        other.refusal, other.refuse = line.refusal, 1
        with pytest.raises(Unavailable, match="read a log"):
            client.teams()
        assert (len(line.seen), len(other.seen)) == (2, 2)


def test_events_are_watched_from_one_server_to_the_next(lab: Lab, line: LossyLine) -> None:
    made = lab.run(job("handed", [sys.executable, "-c", "pass"], on=["h100"]))
    lab.wait(made.id)
    with LossyLine(lab.client().servers.url) as other, Client(f"{line.url},{other.url}", lab.home.token()) as client:
        line.stop_after = other.stop_after = 1
        assert list(client.watch(made.id)) == list(lab.events(made.id))
        assert min(len(line.seen), len(other.seen)) > 1


def test_addresses_that_are_none_are_told() -> None:
    for text in ("", "lab:7077", "http://a,", "http://a b", "http://ada:secret@lab", "http://a/,http://a"):
        with pytest.raises(InvalidInput, match="commas"):
            Client(text, "")
    with pytest.raises(InvalidInput, match="17 addresses"):
        Client(",".join(f"http://host-{number}" for number in range(17)), "")
