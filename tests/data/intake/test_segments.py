from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mainspring.data.intake.logs import segments
from mainspring.data.intake.logs.segments import between_marks, between_pauses, while_true
from mainspring.domain.errors import InvalidInput

TIMES = st.lists(st.integers(0, 40), unique=True, min_size=1, max_size=15).map(sorted)


def array(times: list[int]) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    return np.array(times, np.int64)


@given(streams=st.lists(TIMES, min_size=1, max_size=3), gap=st.integers(1, 10))
def test_segments_between_pauses_hold_every_instant_at_which_no_stream_pauses(
    streams: list[list[int]], gap: int
) -> None:
    found = between_pauses(tuple(map(array, streams)), gap / 1e9)
    assert [part.begin_ns for part in found] == sorted(part.begin_ns for part in found)
    for half in range(-2, 84):  # Half steps, so that instants inside a pause are met too.
        at = half / 2
        pausing = any(
            before < at < after and after - before > gap for times in streams for before, after in pairwise(times)
        )
        inside = [part for part in found if part.begin_ns <= at <= part.end_ns]
        if pausing:
            assert not inside
        else:
            ends = {time for times in streams for time in times}
            assert len(inside) == 1 or at in ends  # An instant between two pauses that touch may be in none.


@given(st.lists(st.tuples(st.integers(0, 40), st.booleans()), unique_by=lambda one: one[0], max_size=15).map(sorted))
def test_segments_of_a_flag_are_where_it_was_last_said_to_be_true(said: list[tuple[int, bool]]) -> None:
    found = while_true(array([time for time, _ in said]), np.array([true for _, true in said], np.bool_))
    for at in range(-1, 45):
        before = [true for time, true in said if time <= at]
        assert any(part.begin_ns <= at <= part.end_ns for part in found) == bool(before and before[-1])
    assert all(first.end_ns < second.begin_ns for first, second in pairwise(found))


@given(TIMES, TIMES)
def test_segments_of_marks_begin_at_each_start_and_never_overlap(starts: list[int], stops: list[int]) -> None:
    found = between_marks(array(starts), array(stops))
    assert [part.begin_ns for part in found] == starts
    for part, after in zip(found, [*starts[1:], 1 << 63], strict=True):
        later = [stop for stop in stops if stop > part.begin_ns]
        assert part.end_ns < after
        assert not later or part.end_ns <= later[0]


def test_log_cut_into_too_many_episodes_is_refused() -> None:
    times = np.arange(segments.SEGMENTS_MAX + 2, dtype=np.int64) * 10
    with pytest.raises(InvalidInput, match="at most"):
        between_marks(times, np.empty(0, np.int64))
