"""The ledger's one law, and what it books where."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mainspring.domain.goodput import Goodput, TimeUse
from mainspring.node.lead.watch.ledger import TimeLedger

SECONDS = st.floats(0.0, 1e5, allow_nan=False)
NEWS = st.one_of(
    st.tuples(st.just("pass"), SECONDS),
    st.tuples(st.just("have"), st.integers(0, 4_000)),
    st.tuples(st.just("enter"), st.sampled_from(list(TimeUse))),
    st.tuples(st.just("hang"), st.just(0)),
    st.tuples(st.just("run"), st.integers(-1, 100)),
    st.tuples(
        st.just("step"),
        st.tuples(st.integers(-1, 200), st.dictionaries(st.sampled_from([use.value for use in TimeUse]), SECONDS)),
    ),
    st.tuples(st.just("end"), st.booleans()),
    st.tuples(st.just("served"), st.booleans()),
)


@given(news=st.lists(NEWS, max_size=60), nodes=st.integers(1, 4_000))
def test_ledger_whatever_the_news_adds_up_to_nodes_times_time(news: list[tuple[str, object]], nodes: int) -> None:
    ledger, now_s, allocated_s = TimeLedger(nodes=nodes, now_s=5.0), 5.0, 0.0
    for what, value in news:
        match what, value:
            case "pass", float():
                now_s, allocated_s = now_s + value, allocated_s + nodes * value
            case "have", int():
                ledger.have(value, now_s)
                nodes = value
            case "enter", TimeUse():
                ledger.enter(value, now_s)
            case "hang", _:
                ledger.enter(TimeUse.RECOVERY, now_s, closes=TimeUse.HANG)
            case "run", int():
                ledger.run(value, 50, now_s)
            case "step", (int() as step, dict() as measured):
                ledger.stepped(step, measured, now_s)
            case "end", bool():
                ledger.end(now_s, well=value)
            case "served", bool():
                ledger.served(now_s, ready=value)
            case _:
                raise AssertionError(what)
        seconds = ledger.seconds(now_s)
        assert all(part >= 0 for part in seconds.values())
        assert math.isclose(math.fsum(seconds.values()), allocated_s, rel_tol=1e-6, abs_tol=1e-6)
        Goodput(allocated_s=allocated_s, seconds={TimeUse(use): part for use, part in seconds.items()})


def _running(nodes: int = 2) -> TimeLedger:
    """Returns a ledger that is 10 s into its first generation's steps of a second each."""
    ledger = TimeLedger(nodes=nodes, now_s=0.0)
    ledger.run(-1, -1, 0.0)
    for step in range(1, 11):
        ledger.stepped(step, {}, float(step))
    return ledger


def test_ledger_of_steps_books_what_the_rank_measured_and_the_rest_as_productive() -> None:
    ledger = _running()
    before = ledger.seconds(10.0)
    ledger.stepped(11, {"data": 0.25, "snapshot": 0.25}, 11.0)
    after = ledger.seconds(11.0)
    assert after["data"] == pytest.approx(0.5)
    assert after["snapshot"] == pytest.approx(0.5)
    assert after["productive"] - before["productive"] == pytest.approx(1.0)


def test_ledger_of_a_first_report_books_compilation_and_restore_and_the_rest_as_what_it_waited_for() -> None:
    ledger = TimeLedger(nodes=1, now_s=0.0)
    ledger.enter(TimeUse.RECOVERY, 4.0)
    ledger.run(-1, -1, 5.0)
    ledger.stepped(1, {"compile": 3.0, "restore": 2.0}, 11.0)
    seconds = ledger.seconds(11.0)
    assert seconds == pytest.approx({"startup": 4.0, "recovery": 2.0, "compile": 3.0, "restore": 2.0})


def test_ledger_of_steps_done_before_books_them_as_repeated() -> None:
    ledger = _running(nodes=1)
    ledger.enter(TimeUse.RECOVERY, 10.0)
    ledger.run(6, 10, 10.0)
    for step in range(7, 13):
        ledger.stepped(step, {}, 10.0 + step - 6)
    seconds = ledger.seconds(16.0)
    assert seconds["repeated"] == pytest.approx(4.0)
    assert seconds["productive"] == pytest.approx(9.0 + 2.0)


def test_ledger_of_a_slow_step_books_what_exceeds_the_usual_by_half_as_somebodys_slowness() -> None:
    ledger = _running(nodes=1)
    ledger.stepped(11, {}, 14.0)
    assert ledger.seconds(14.0)["straggler"] == pytest.approx(2.5)


def test_ledger_of_a_hang_books_the_silence_since_the_last_step() -> None:
    ledger = _running(nodes=1)
    ledger.enter(TimeUse.RECOVERY, 40.0, closes=TimeUse.HANG)
    seconds = ledger.seconds(42.0)
    assert (seconds["hang"], seconds["recovery"]) == pytest.approx((30.0, 2.0))


def test_ledger_of_a_program_that_serves_is_productive_while_it_is_ready() -> None:
    ledger = TimeLedger(nodes=1, now_s=0.0)
    ledger.run(-1, -1, 2.0)
    ledger.served(5.0, ready=False)
    ledger.served(7.0, ready=True)
    assert ledger.seconds(10.0) == pytest.approx({"startup": 7.0, "productive": 3.0})
    ledger.enter(TimeUse.RECOVERY, 12.0)
    ledger.run(-1, -1, 15.0)
    assert ledger.seconds(16.0) == pytest.approx({"startup": 7.0, "recovery": 9.0})


@pytest.mark.parametrize(("well", "use"), [(True, "productive"), (False, "startup")])
def test_ledger_of_a_program_that_never_reports_is_productive_only_if_it_ends_well(*, well: bool, use: str) -> None:
    ledger = TimeLedger(nodes=3, now_s=0.0)
    ledger.run(-1, -1, 0.0)
    ledger.end(100.0, well=well)
    assert ledger.seconds(100.0) == pytest.approx({use: 300.0})
