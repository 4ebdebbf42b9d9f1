"""Goodput: what the parts say adds up to the whole, whatever the events."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mainspring.control.state.accounting import Spent, dollars, spent
from mainspring.domain.answers import Event
from mainspring.domain.goodput import TimeUse
from mainspring.domain.ids import AttemptId, JobId
from mainspring.domain.wire import Detail
from mainspring.domain.wire.events import EVENTS
from mainspring.domain.wire.events.attempts import AttemptEndedEvent, AttemptGrantedEvent
from mainspring.domain.wire.events.jobs import StopRequestedEvent
from mainspring.domain.wire.events.leads import (
    CaughtUpEvent,
    GenerationPreparingEvent,
    GenerationResumedEvent,
    GenerationSteppingEvent,
    HangEvent,
    LeadEndedEvent,
    RankExitedEvent,
    RankLeftEvent,
)

START_S = 1_700_000_000.0
FACTS: dict[str, Detail] = {
    AttemptGrantedEvent.kind: {"cluster": "local", "nodes": 1, "plan": 1, "number": 1},
    AttemptEndedEvent.kind: {"outcome": "lost", "reason": ""},
    StopRequestedEvent.kind: {"by": "somebody"},
    GenerationPreparingEvent.kind: {"generation": 1, "cause": "the first"},
    GenerationResumedEvent.kind: {"generation": 1, "step": -1, "source": ""},
    GenerationSteppingEvent.kind: {"generation": 1, "step": 0},
    CaughtUpEvent.kind: {"generation": 1, "step": 0},
    RankExitedEvent.kind: {"generation": 1, "rank": 0, "exit_code": 1, "step": -1},
    RankLeftEvent.kind: {"generation": 1, "rank": 0, "step": -1, "words": "lost"},
    HangEvent.kind: {"generation": 1, "step": 0, "silent_s": 1.0, "odd": "", "evidence": ""},
    LeadEndedEvent.kind: {"outcome": "lost", "reason": "", "step": -1},
}
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
    st.tuples(st.sampled_from(["a", "b", "c"]), st.sampled_from(sorted(FACTS)), st.floats(-1e6, 1e6), DETAILS),
    max_size=40,
)


def _event(sequence: int, attempt: str, kind: str, time_s: float, detail: Detail | None = None) -> Event:
    return Event(
        sequence=sequence,
        time_s=START_S + time_s,
        kind=kind,
        job=JobId("job"),
        attempt=AttemptId(attempt),
        detail={**FACTS[kind], **(detail or {})},
    )


def test_every_event_that_tells_where_time_goes_is_folded_here() -> None:
    assert sorted(FACTS) == sorted(event.kind for event in EVENTS if event.accounted)


@pytest.mark.slow
@given(HAPPENINGS, st.floats(-1e6, 1e7))
def test_goodput_of_any_events_adds_up_exactly_to_the_time_allocated(
    happenings: list[tuple[str, str, float, Detail]], now_s: float
) -> None:
    granted = [_event(0, attempt, AttemptGrantedEvent.kind, 0.1 * index) for index, attempt in enumerate("abc")]
    news = [
        _event(index, attempt, kind, time_s, detail) for index, (attempt, kind, time_s, detail) in enumerate(happenings)
    ]
    told = spent([*granted, *news], START_S + now_s)
    assert told is not None
    assert sum(told.seconds.values()) == told.allocated_s
    assert min(told.seconds.values()) >= 0
    assert sum(told.recoveries_s) <= told.seconds[TimeUse.RECOVERY]
    assert told.repeated_steps >= 0


def test_goodput_of_a_killed_rank_tells_recovery_and_repeated_steps() -> None:
    lines: list[tuple[str, float, Detail]] = [
        (AttemptGrantedEvent.kind, 0.0, {}),
        (GenerationPreparingEvent.kind, 1.0, {"generation": 1}),
        (GenerationResumedEvent.kind, 2.0, {"generation": 1, "step": -1}),
        (GenerationSteppingEvent.kind, 4.0, {"generation": 1, "step": 0}),
        (RankExitedEvent.kind, 20.0, {"generation": 1, "exit_code": -9, "step": 150}),
        (GenerationPreparingEvent.kind, 21.0, {"generation": 2}),
        (GenerationResumedEvent.kind, 22.0, {"generation": 2, "step": 100}),
        (GenerationSteppingEvent.kind, 25.0, {"generation": 2, "step": 101}),
        (CaughtUpEvent.kind, 30.0, {"generation": 2, "step": 151}),
        (RankExitedEvent.kind, 39.0, {"generation": 2, "exit_code": 0, "step": 200}),
        (LeadEndedEvent.kind, 40.0, {"step": 200, "snapshot_blocked_s": 1.5}),
        (AttemptEndedEvent.kind, 42.0, {}),
    ]
    told = spent([_event(n, "a", kind, time_s, detail) for n, (kind, time_s, detail) in enumerate(lines)], 1e12)
    assert told == Spent(
        allocated_s=42.0,
        seconds={
            **dict.fromkeys(TimeUse, 0.0),
            TimeUse.STARTUP: 4.0,
            TimeUse.PRODUCTIVE: 24.5,
            TimeUse.SNAPSHOT: 1.5,
            TimeUse.REPEATED: 5.0,
            TimeUse.RECOVERY: 5.0,
            TimeUse.WINDDOWN: 2.0,
        },
        recoveries_s=(5.0,),
        repeated_steps=50,
    )


def test_goodput_of_a_later_attempt_counts_the_steps_that_earlier_ones_had_done_as_repeated() -> None:
    lines: list[tuple[str, float, Detail]] = [
        (AttemptGrantedEvent.kind, 0.0, {"step": 30}),
        (GenerationResumedEvent.kind, 2.0, {"generation": 1, "step": 28}),
        (GenerationSteppingEvent.kind, 4.0, {"generation": 1, "step": 29}),
        (CaughtUpEvent.kind, 7.0, {"generation": 1, "step": 31}),
        (LeadEndedEvent.kind, 12.0, {"outcome": "succeeded", "step": 60}),
        (AttemptEndedEvent.kind, 13.0, {}),
    ]
    told = spent([_event(n, "a", kind, time_s, detail) for n, (kind, time_s, detail) in enumerate(lines)], 1e12)
    assert told is not None
    assert (
        told.seconds[TimeUse.STARTUP],
        told.seconds[TimeUse.REPEATED],
        told.seconds[TimeUse.PRODUCTIVE],
        told.repeated_steps,
    ) == (4.0, 3.0, 5.0, 2)


def test_goodput_of_ranks_that_were_told_to_stop_is_no_recovery() -> None:
    lines: list[tuple[str, float, Detail]] = [
        (AttemptGrantedEvent.kind, 0.0, {}),
        (GenerationSteppingEvent.kind, 4.0, {"step": 0}),
        (StopRequestedEvent.kind, 10.0, {}),
        (RankExitedEvent.kind, 11.0, {"exit_code": -15, "step": 50}),
        (AttemptEndedEvent.kind, 12.0, {}),
    ]
    told = spent([_event(n, "a", kind, time_s, detail) for n, (kind, time_s, detail) in enumerate(lines)], 1e12)
    assert told is not None
    assert (told.seconds[TimeUse.RECOVERY], told.seconds[TimeUse.PRODUCTIVE]) == (0.0, 8.0)


def test_goodput_of_a_program_that_tells_no_steps_counts_its_run_when_it_succeeds() -> None:
    lines: list[tuple[str, float, Detail]] = [
        (AttemptGrantedEvent.kind, 0.0, {}),
        (GenerationResumedEvent.kind, 2.0, {"generation": 1, "step": -1}),
        (LeadEndedEvent.kind, 12.0, {"outcome": "succeeded", "step": -1}),
        (AttemptEndedEvent.kind, 13.0, {}),
    ]
    events = [_event(n, "a", kind, time_s, detail) for n, (kind, time_s, detail) in enumerate(lines)]
    told = spent(events, 1e12)
    assert told is not None
    assert (told.seconds[TimeUse.STARTUP], told.seconds[TimeUse.PRODUCTIVE], told.seconds[TimeUse.WINDDOWN]) == (
        2.0,
        10.0,
        1.0,
    )


def test_goodput_before_any_grant_is_nothing() -> None:
    assert spent([], START_S) is None


def test_dollars_are_price_times_hours() -> None:
    assert dollars(dollars_per_hour=8 * 2.5, granted_s=0.0, ended_s=1_800.0) == 10.0
    assert dollars(dollars_per_hour=8.0, granted_s=10.0, ended_s=5.0) == 0.0
