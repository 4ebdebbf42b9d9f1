"""Answers that many ask for at one time: made once, kept for a moment, never for others than those they are for."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from itertools import count
from threading import Event, Semaphore

import pytest

from mainspring.control.service.shared import COST, Shared
from mainspring.testing import FakeClock

WAIT_S = 120.0  # The longest that a slow machine is waited for.


def test_answer_that_took_a_while_is_told_again_for_a_moment() -> None:
    clock, numbers = FakeClock(), count()
    shared = Shared(clock, kept_s=1.0)

    def slow() -> int:
        clock.advance(0.5)
        return next(numbers)

    assert [shared.of("a", slow) for _ in range(3)] == [0, 0, 0]
    clock.advance(0.4)
    assert shared.of("a", slow) == 0
    clock.advance(0.2)
    assert shared.of("a", slow) == 1
    assert shared.of("b", slow) == 2


def test_answer_that_takes_no_time_is_always_new() -> None:
    clock, numbers = FakeClock(), count()
    shared = Shared(clock)
    assert [shared.of("a", lambda: next(numbers)) for _ in range(3)] == [0, 1, 2]

    def quick() -> int:
        clock.advance(0.001)
        return next(numbers)

    assert [shared.of("b", quick) for _ in range(2)] == [3, 3]
    clock.advance(0.001 * COST)
    assert shared.of("b", quick) == 4


def test_what_fails_is_tried_again_and_what_was_asked_for_longest_ago_is_forgotten() -> None:
    clock, numbers = FakeClock(), count()
    shared = Shared(clock, answers_max=2)

    def slow() -> int:
        clock.advance(0.1)
        return next(numbers)

    def fails() -> int:
        slow()
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        shared.of("a", fails)
    assert shared.of("a", slow) == 1
    assert shared.of("b", slow) == 2
    assert shared.of("a", slow) == 1
    assert shared.of("c", slow) == 3
    assert shared.of("a", slow) == 1
    assert shared.of("b", slow) == 4


class Counted:
    """A clock that tells how often it was looked at."""

    def __init__(self) -> None:
        self.clock, self.looks = FakeClock(), Semaphore(0)

    def now_s(self) -> float:
        return self.clock.now_s()

    def monotonic_s(self) -> float:
        now_s = self.clock.monotonic_s()
        self.looks.release()
        return now_s


def test_those_who_ask_while_it_is_made_wait_for_it_however_long_and_others_do_not() -> None:
    clock, numbers = Counted(), count()
    shared, begun, go_on = Shared(clock, kept_s=1.0), Event(), Event()

    def slow() -> int:
        begun.set()
        assert go_on.wait(WAIT_S)
        clock.clock.advance(5.0)
        return next(numbers)

    with ThreadPoolExecutor(4) as threads:
        first = threads.submit(shared.of, "a", slow)
        assert begun.wait(WAIT_S)
        assert shared.of("b", lambda: "at once") == "at once"
        others = [threads.submit(shared.of, "a", slow) for _ in range(3)]
        for _ in range(2 + 3 + len(others)):  # When it is asked, and before and after it is made.
            assert clock.looks.acquire(timeout=WAIT_S)
        assert not any(one.done() for one in (first, *others))
        go_on.set()
        assert {one.result(WAIT_S) for one in (first, *others)} == {0}
    assert shared.of("a", slow) == 1
