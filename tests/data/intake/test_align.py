from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mainspring.data.intake.logs.align import advancing, matched, steps_between
from mainspring.data.intake.logs.recipe import Align
from mainspring.domain.errors import DamagedData

TIMES = st.lists(st.integers(0, 60), unique=True, max_size=12).map(sorted)
BASES = st.sampled_from([0, 1_700_000_000_000_000_000])


def slow_match(times: list[int], at: int, align: Align) -> tuple[int, int, float, int] | None:
    """Number of the message before and after, weight, and distance; in plain Python."""
    before = [number for number, time in enumerate(times) if time <= at]
    after = [number for number, time in enumerate(times) if time >= at]
    if align is Align.HOLD:
        return (before[-1], before[-1], 0.0, at - times[before[-1]]) if before else None
    if align is Align.NEAREST:
        if not times:
            return None
        best = min(range(len(times)), key=lambda number: (abs(times[number] - at), number))
        return best, best, 0.0, abs(times[best] - at)
    if not before or not after:
        return None
    first, second = before[-1], after[0]
    width = times[second] - times[first]
    weight = (at - times[first]) / width if width else 0.0
    return first, second, weight, max(at - times[first], times[second] - at)


@given(times=TIMES, at=st.lists(st.integers(-5, 70), max_size=10), align=st.sampled_from(Align), base=BASES)
def test_matches_are_those_of_a_slow_search_at_any_epoch(
    times: list[int], at: list[int], align: Align, base: int
) -> None:
    found = matched(np.array(times, np.int64) + base, np.array(at, np.int64) + base, align)
    for step, time in enumerate(at):
        wanted = slow_match(times, time, align)
        if wanted is None:
            assert found.distance_ns[step] < 0
        else:
            got = (found.before[step], found.after[step], found.weight[step], found.distance_ns[step])
            assert got == wanted


@given(times=TIMES.filter(len), at=st.integers(-5, 70), align=st.sampled_from(Align), tolerance=st.integers(0, 20))
def test_message_exactly_at_the_tolerance_is_near_enough(
    times: list[int], at: int, align: Align, tolerance: int
) -> None:
    wanted = slow_match(times, at, align)
    found = matched(np.array(times, np.int64), np.array([at], np.int64), align)
    assert (len(found.missed(tolerance)) == 0) == (wanted is not None and wanted[3] <= tolerance)


@given(times=TIMES.filter(lambda times: len(times) > 1), at=st.lists(st.integers(0, 60), min_size=1, max_size=10))
def test_interpolated_values_lie_on_the_line_and_are_exact_at_messages(times: list[int], at: list[int]) -> None:
    inside = [time for time in at if times[0] <= time <= times[-1]]
    values = np.array([[time / 3, np.float64(number)] for number, time in enumerate(times)])
    found = matched(np.array(times, np.int64), np.array(inside, np.int64), Align.INTERPOLATE).values(values)
    for time, value in zip(inside, found, strict=True):
        assert value[0] == pytest.approx(time / 3)
        if time in times:
            assert value.tolist() == values[times.index(time)].tolist()


@given(
    begin=BASES,
    length=st.integers(-10, 10**11),
    rate=st.sampled_from([Fraction(30), Fraction(30_000, 1_001), Fraction(1, 3), Fraction(1_000), Fraction(50)]),
)
def test_steps_are_rounded_down_from_exact_times_and_end_in_time(begin: int, length: int, rate: Fraction) -> None:
    times = steps_between(begin, begin + length, rate).tolist()
    assert times == [begin + (number * 10**9 * rate.denominator) // rate.numerator for number in range(len(times))]
    assert all(begin <= time <= begin + length for time in times)
    assert length < 0 or begin + (len(times) * 10**9 * rate.denominator) // rate.numerator >= begin + length


@given(st.lists(st.integers(0, 5), max_size=20))
def test_messages_that_repeat_a_time_are_dropped_and_a_clock_that_jumps_back_is_refused(times: list[int]) -> None:
    array = np.array(times, np.int64)
    if times != sorted(times):
        with pytest.raises(DamagedData, match="jumps back"):
            advancing(array, "/topic")
    else:
        assert array[advancing(array, "/topic")].tolist() == sorted(set(times))


def test_steps_of_a_clock_that_must_be_wrong_are_refused() -> None:
    with pytest.raises(DamagedData, match="steps at 1000 Hz"):
        steps_between(0, 1_700_000_000_000_000_000, Fraction(1_000))
