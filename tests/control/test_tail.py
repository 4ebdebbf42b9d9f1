"""Events read once for all who follow them: in their order, nothing lost, to those alone who may read them."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack
from itertools import count

import httpx
import pytest
import sqlalchemy as sa
from tests.control.calling import Api, Served

from mainspring.control.api_streams import PIECE_BYTES_MAX, Followers, Tail, ToldEvent
from mainspring.control.store.tokens import Sight
from mainspring.domain.answers import Event, Submit, SubmitBatch
from mainspring.domain.codec import decode
from mainspring.domain.ids import JobId, TeamName
from mainspring.domain.job import LAB
from mainspring.domain.team import Team, TeamRole

LAB_TEAM, ARMS, LEGS = TeamName(LAB), TeamName("arms"), TeamName("legs")
ALL = Sight(None)
WAIT_S = 120.0  # The longest that a slow machine is waited for.


def told(sequence: int, *, job: str | None = "a", team: TeamName | None = ARMS, size: int = 10) -> ToldEvent:
    text = f"{sequence};".rjust(size, " ").encode()
    return ToldEvent(sequence=sequence, job=JobId(job) if job else None, team=team, text=text)


def numbers(text: bytes) -> list[int]:
    return [int(part) for part in text.split(b";") if part.strip()]


def test_tail_tells_what_came_after_an_event_once_and_in_order() -> None:
    tail = Tail(5)
    tail.add([told(6), told(9)])
    tail.add([told(10)])
    piece = tail.after(5, None, ALL)
    assert (numbers(piece.text), piece.until, piece.whole) == ([6, 9, 10], 10, True)
    assert numbers(tail.after(6, None, ALL).text) == [9, 10]
    assert numbers(tail.after(8, None, ALL).text) == [9, 10]
    assert (tail.after(10, None, ALL).text, tail.after(20, None, ALL).until) == (b"", 20)


def test_tail_tells_each_what_is_for_them_and_passes_over_the_rest() -> None:
    tail = Tail(0)
    tail.add([told(1), told(2, job="b", team=LEGS), told(3, job=None, team=None), told(4)])
    arms = Sight(frozenset({ARMS}))
    assert numbers(tail.after(0, None, ALL).text) == [1, 2, 3, 4]
    assert numbers(tail.after(0, None, arms).text) == [1, 4]
    assert numbers(tail.after(0, None, Sight(frozenset())).text) == []
    piece = tail.after(0, JobId("b"), ALL)
    assert (numbers(piece.text), piece.until) == ([2], 4)


def test_tail_forgets_the_oldest_beyond_a_number_or_a_size_and_says_from_where_it_knows_all() -> None:
    tail = Tail(0, kept_max=3, bytes_max=100)
    tail.add(told(number) for number in range(1, 6))
    assert (tail.floor, tail.newest) == (2, 5)
    assert numbers(tail.after(2, None, ALL).text) == [3, 4, 5]
    with pytest.raises(AssertionError):
        tail.after(1, None, ALL)
    tail.add([told(6, size=95)])
    assert tail.floor == 5
    tail.add([told(7, size=200)])
    assert (tail.floor, tail.after(7, None, ALL).text) == (7, b"")


def test_tail_tells_much_in_pieces_that_go_on_where_they_end() -> None:
    tail = Tail(0)
    tail.add(told(number, size=PIECE_BYTES_MAX // 2) for number in range(1, 6))
    first = tail.after(0, None, ALL)
    second = tail.after(first.until, None, ALL)
    third = tail.after(second.until, None, ALL)
    assert [numbers(piece.text) for piece in (first, second, third)] == [[1, 2], [3, 4], [5]]
    assert [piece.whole for piece in (first, second, third)] == [False, False, True]


# ---------------------------------------------------------------- streams


def events_in(answer: httpx.Response) -> Iterator[Event]:
    for line in answer.iter_lines():
        if line == "event: end":
            return
        if line.startswith("data: "):
            yield decode(Event, line.removeprefix("data: ").encode())


def submit(api: Api, jobs: int, team: TeamName = LAB_TEAM) -> list[str]:
    """Submits jobs in one transaction, of which each is an event."""
    world = api.world
    submits = tuple(Submit(spec=world.spec(team=team)) for _ in range(jobs))
    return [*world.control.submit_batch(SubmitBatch(submits=submits)).jobs]


def until(true: Iterator[bool], what: str) -> None:
    deadline = time.monotonic() + WAIT_S
    for done in true:
        if done:
            return
        assert time.monotonic() < deadline, f"waited {WAIT_S} s for {what}"


@pytest.mark.slow
def test_follower_that_is_behind_what_is_kept_misses_nothing_and_sees_nothing_twice(api: Api, served: Served) -> None:
    served.app.state.followers = Followers(kept_max=3)
    wanted = submit(api, 20)
    with api.http.stream("GET", "/v1/events?follow=true", headers=api.viewer, timeout=WAIT_S) as answer:
        events = events_in(answer)
        seen = [next(events) for _ in wanted]
        for jobs in (1, 30, 2, 700, 1):  # Far more at once than are kept, and than are read at once.
            made = submit(api, jobs)
            wanted += made
            seen += [next(events) for _ in made]
    assert [event.job for event in seen] == wanted
    sequences = [event.sequence for event in seen]
    assert sequences == sorted(set(sequences))


@pytest.mark.slow
def test_events_are_read_once_for_all_who_follow_and_not_for_those_who_left(api: Api, served: Served) -> None:
    followers = served.app.state.followers
    store = api.world.control.store
    read: list[str] = []

    def note(_: object, __: object, statement: str, *___: object) -> None:
        if "FROM events" in statement and "detail" in statement:
            read.append(statement)

    with ExitStack() as held:
        streams = [
            held.enter_context(api.http.stream("GET", "/v1/events?follow=true", headers=api.viewer, timeout=WAIT_S))
            for _ in range(20)
        ]
        (first,) = submit(api, 1)
        every = [events_in(stream) for stream in streams]
        assert {next(events).job for events in every} == {first}
        assert followers.count == len(streams)
        sa.event.listen(store.engine, "before_cursor_execute", note)
        try:
            wanted = [submit(api, 1)[0] for _ in range(3)]
            assert [[next(events).job for _ in wanted] for events in every] == [wanted] * len(streams)
        finally:
            sa.event.remove(store.engine, "before_cursor_execute", note)
        assert 0 < len(read) < len(streams)
    until((followers.count == 0 and followers.tail is None for _ in count()), "streams to be closed")


@pytest.mark.slow
def test_follower_of_a_job_hears_of_no_other(api: Api) -> None:
    mine, _ = submit(api, 2)
    with api.http.stream("GET", f"/v1/jobs/{mine}/events?follow=true", headers=api.viewer, timeout=WAIT_S) as answer:
        events = events_in(answer)
        assert next(events).kind == "job_submitted"
        submit(api, 5)
        api.world.control.steering.stop(mine)
        seen = [*events]
    assert {event.job for event in seen} == {mine}
    assert seen[-1].kind == "job_moved"


@pytest.mark.slow
def test_follower_hears_no_more_of_a_team_that_is_closed_to_them(api: Api, served: Served) -> None:
    served.app.state.followers = Followers(asked_s=0.2)
    people = api.world.control.people
    for team in (Team(name=LAB), Team(name=LEGS, parent=LAB), Team(name=ARMS, parent=LAB, open=True)):
        people.set_team(team)
    headers = {"Authorization": f"Bearer {api.world.token(TeamRole.VIEWER, team=LEGS)}"}

    def hears_of_arms(events: Iterator[Event]) -> bool:
        (arms,), (legs,) = submit(api, 1, ARMS), submit(api, 1, LEGS)
        seen = next(events).job
        if seen == arms:
            assert next(events).job == legs
        return seen == arms

    with api.http.stream("GET", "/v1/events?follow=true", headers=headers, timeout=WAIT_S) as answer:
        events = events_in(answer)
        assert hears_of_arms(events)
        people.set_team(Team(name=ARMS, parent=LAB))
        until((not hears_of_arms(events) for _ in count()), "the team to be closed to its reader")
        assert not hears_of_arms(events)


@pytest.mark.slow
def test_streams_end_when_the_server_does(api: Api) -> None:
    with api.http.stream("GET", "/v1/events?follow=true", headers=api.viewer, timeout=WAIT_S) as answer:
        (job,) = submit(api, 1)
        events = events_in(answer)
        assert next(events).job == job
        api.world.control.pulse.ending = True
        assert [*events] == []
