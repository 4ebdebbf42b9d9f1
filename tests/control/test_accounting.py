"""Goodput: what the parts say adds up to the whole, whatever the events."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mainspring.control.state.accounting import KINDS, Spent, dollars, spent
from mainspring.domain.answers import Event
from mainspring.domain.ids import AttemptId, JobId
from mainspring.domain.wire import Detail, EventKind

START_S = 1_700_000_000.0
DETAILS = st.fixed_dictionaries(
    {},
    optional={
        "step": st.integers(-1, 100) | st.text(max_size=3),
        "exit_code": st.integers(-9, 80),
        "outcome": st.sampled_from(["succeeded", "failed"]),
        "snapshot_blocked_s": st.floats(0, 1e9) | st.integers(-5, 5),
    },
)
HAPPENINGS = st.lists(
    st.tuples(st.sampled_from(["a", "b", "c"]), st.sampled_from(KINDS), st.floats(-1e6, 1e6), DETAILS), max_size=40
)


def _event(sequence: int, attempt: str, kind: EventKind, time_s: float, detail: Detail | None = None) -> Event:
    return Event(
        sequence=sequence,
        time_s=START_S + time_s,
        kind=kind,
        job=JobId("job"),
        attempt=AttemptId(attempt),
        detail=detail or {},
    )


def _parts(told: Spent) -> float:
    return told.startup_s + told.productive_s + told.checkpoint_s + told.repeated_s + told.recovery_s + told.wind_down_s


@pytest.mark.slow
@given(HAPPENINGS, st.floats(-1e6, 1e7))
def test_goodput_of_any_events_adds_up_exactly_to_the_time_allocated(
    happenings: list[tuple[str, EventKind, float, Detail]], now_s: float
) -> None:
    granted = [_event(0, attempt, EventKind.ATTEMPT_GRANTED, 0.1 * index) for index, attempt in enumerate("abc")]
    news = [
        _event(index, attempt, kind, time_s, detail) for index, (attempt, kind, time_s, detail) in enumerate(happenings)
    ]
    told = spent([*granted, *news], START_S + now_s)
    assert told is not None
    assert _parts(told) == told.allocated_s
    assert min(told.startup_s, told.productive_s, told.checkpoint_s, told.recovery_s, told.repeated_s) >= 0
    assert sum(told.recoveries_s) <= told.recovery_s
    assert told.repeated_steps >= 0


def test_goodput_of_a_killed_rank_tells_recovery_and_repeated_steps() -> None:
    lines: list[tuple[EventKind, float, Detail]] = [
        (EventKind.ATTEMPT_GRANTED, 0.0, {}),
        (EventKind.GENERATION_PREPARING, 1.0, {"generation": 1}),
        (EventKind.GENERATION_RESUMED, 2.0, {"generation": 1, "step": -1}),
        (EventKind.GENERATION_STEPPING, 4.0, {"generation": 1, "step": 0}),
        (EventKind.RANK_EXITED, 20.0, {"generation": 1, "exit_code": -9, "step": 150}),
        (EventKind.GENERATION_PREPARING, 21.0, {"generation": 2}),
        (EventKind.GENERATION_RESUMED, 22.0, {"generation": 2, "step": 100}),
        (EventKind.GENERATION_STEPPING, 25.0, {"generation": 2, "step": 101}),
        (EventKind.CAUGHT_UP, 30.0, {"generation": 2, "step": 151}),
        (EventKind.RANK_EXITED, 39.0, {"generation": 2, "exit_code": 0, "step": 200}),
        (EventKind.LEAD_ENDED, 40.0, {"step": 200, "snapshot_blocked_s": 1.5}),
        (EventKind.ATTEMPT_ENDED, 42.0, {}),
    ]
    told = spent([_event(n, "a", kind, time_s, detail) for n, (kind, time_s, detail) in enumerate(lines)], 1e12)
    assert told == Spent(
        allocated_s=42.0,
        startup_s=4.0,
        productive_s=24.5,
        checkpoint_s=1.5,
        repeated_s=5.0,
        recovery_s=5.0,
        wind_down_s=2.0,
        recoveries_s=(5.0,),
        repeated_steps=50,
    )


def test_goodput_of_a_later_attempt_counts_the_steps_that_earlier_ones_had_done_as_repeated() -> None:
    lines: list[tuple[EventKind, float, Detail]] = [
        (EventKind.ATTEMPT_GRANTED, 0.0, {"step": 30}),
        (EventKind.GENERATION_RESUMED, 2.0, {"generation": 1, "step": 28}),
        (EventKind.GENERATION_STEPPING, 4.0, {"generation": 1, "step": 29}),
        (EventKind.CAUGHT_UP, 7.0, {"generation": 1, "step": 31}),
        (EventKind.LEAD_ENDED, 12.0, {"outcome": "succeeded", "step": 60}),
        (EventKind.ATTEMPT_ENDED, 13.0, {}),
    ]
    told = spent([_event(n, "a", kind, time_s, detail) for n, (kind, time_s, detail) in enumerate(lines)], 1e12)
    assert told is not None
    assert (told.startup_s, told.repeated_s, told.productive_s, told.repeated_steps) == (4.0, 3.0, 5.0, 2)


def test_goodput_of_ranks_that_were_told_to_stop_is_no_recovery() -> None:
    lines: list[tuple[EventKind, float, Detail]] = [
        (EventKind.ATTEMPT_GRANTED, 0.0, {}),
        (EventKind.GENERATION_STEPPING, 4.0, {"step": 0}),
        (EventKind.STOP_REQUESTED, 10.0, {}),
        (EventKind.RANK_EXITED, 11.0, {"exit_code": -15, "step": 50}),
        (EventKind.ATTEMPT_ENDED, 12.0, {}),
    ]
    told = spent([_event(n, "a", kind, time_s, detail) for n, (kind, time_s, detail) in enumerate(lines)], 1e12)
    assert told is not None
    assert (told.recovery_s, told.productive_s) == (0.0, 8.0)


def test_goodput_of_a_program_that_tells_no_steps_counts_its_run_when_it_succeeds() -> None:
    lines: list[tuple[EventKind, float, Detail]] = [
        (EventKind.ATTEMPT_GRANTED, 0.0, {}),
        (EventKind.GENERATION_RESUMED, 2.0, {"generation": 1, "step": -1}),
        (EventKind.LEAD_ENDED, 12.0, {"outcome": "succeeded", "step": -1}),
        (EventKind.ATTEMPT_ENDED, 13.0, {}),
    ]
    events = [_event(n, "a", kind, time_s, detail) for n, (kind, time_s, detail) in enumerate(lines)]
    told = spent(events, 1e12)
    assert told is not None
    assert (told.startup_s, told.productive_s, told.wind_down_s) == (2.0, 10.0, 1.0)


def test_goodput_before_any_grant_is_nothing() -> None:
    assert spent([], START_S) is None


def test_dollars_are_price_times_hours() -> None:
    assert dollars(dollars_per_hour=8 * 2.5, granted_s=0.0, ended_s=1_800.0) == 10.0
    assert dollars(dollars_per_hour=8.0, granted_s=10.0, ended_s=5.0) == 0.0
