from __future__ import annotations

from itertools import product
from math import comb, sqrt

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mainspring.domain.errors import InvalidInput
from mainspring.robots.evaluation.statistics import (
    GateVerdict,
    Pairs,
    at_least,
    difference_interval,
    mcnemar,
    not_worse,
    pairs_of,
    starts_needed,
    wilson,
)


@st.composite
def some_pairs(draw: st.DrawFn) -> Pairs:
    starts = draw(st.integers(1, 400))
    first = draw(st.integers(0, starts))
    return Pairs(starts=starts, only_first=first, only_second=draw(st.integers(0, starts - first)))


def test_wilson_interval_is_that_of_the_paper() -> None:
    solved, starts, z = 81, 263, 1.959964  # Newcombe, Statistics in Medicine 17, 1998, table I: 0.2553 to 0.3662.
    found = wilson(solved, starts)
    assert found.low == pytest.approx(0.2553, abs=1e-4)
    assert found.high == pytest.approx(0.3662, abs=1e-4)
    assert wilson(0, 20).low == 0.0
    assert wilson(0, 20).high == pytest.approx(z * z / (20 + z * z))


@given(some_pairs())
def test_interval_of_a_difference_holds_it_and_turns_over_with_the_policies(pairs: Pairs) -> None:
    found = difference_interval(pairs)
    other = difference_interval(Pairs(starts=pairs.starts, only_first=pairs.only_second, only_second=pairs.only_first))
    assert -1 <= found.low <= pairs.difference <= found.high <= 1
    assert found.low == pytest.approx(-other.high, abs=1e-6)
    assert found.high == pytest.approx(-other.low, abs=1e-6)


@pytest.mark.parametrize(("first", "second"), [(0.05, 0.05), (0.2, 0.1), (0.02, 0.0), (0.3, 0.3)])
def test_interval_of_a_difference_covers_the_truth_as_often_as_it_says(first: float, second: float) -> None:
    starts, covered = 40, 0.0
    for b, c in product(range(starts + 1), repeat=2):
        if b + c > starts:
            continue
        odds = comb(starts, b) * comb(starts - b, c) * first**b * second**c * (1 - first - second) ** (starts - b - c)
        if odds > 1e-9:
            found = difference_interval(Pairs(starts=starts, only_first=b, only_second=c))
            covered += odds * (found.low - 1e-9 <= first - second <= found.high + 1e-9)
    assert covered > 0.93


def test_interval_without_a_disagreement_still_has_a_width() -> None:
    z = 1.959964
    found = difference_interval(Pairs(starts=100, only_first=0, only_second=0))
    assert found.high == -found.low == pytest.approx(z * z / (100 + z * z))  # Tango's score, in closed form.


def test_mcnemar_is_a_sign_test_of_the_disagreements() -> None:
    assert mcnemar(Pairs(starts=30, only_first=5, only_second=0)) == pytest.approx(2 * 0.5**5)
    assert mcnemar(Pairs(starts=30, only_first=0, only_second=0)) == 1.0


def test_gate_of_a_margin_is_undecided_until_there_are_enough_starts() -> None:
    def verdict(starts: int, *, worse: float = 0.0) -> GateVerdict:
        second = round(starts * (0.05 + worse))
        return not_worse(Pairs(starts=starts, only_first=round(starts * 0.05), only_second=second), 0.02)

    assert verdict(100) is GateVerdict.UNDECIDED
    assert verdict(2_000) is GateVerdict.PASSED
    assert verdict(2_000, worse=0.05) is GateVerdict.FAILED


def test_gate_of_a_rate_passes_fails_or_is_undecided() -> None:
    assert at_least(99, 100, 0.9) is GateVerdict.PASSED
    assert at_least(50, 100, 0.9) is GateVerdict.FAILED
    assert at_least(9, 10, 0.9) is GateVerdict.UNDECIDED


def test_starts_needed_for_two_points_are_some_eight_to_fifteen_hundred() -> None:
    of_five = starts_needed(Pairs(starts=10_000, only_first=250, only_second=250), 0.02)
    of_ten = starts_needed(Pairs(starts=10_000, only_first=500, only_second=500), 0.02)
    assert of_five == pytest.approx(800, rel=0.05)
    assert of_ten == pytest.approx(1_550, rel=0.01)
    assert of_five == pytest.approx((1.645 + 0.842) ** 2 * 0.05 / 0.02**2, rel=0.01)
    assert sqrt(of_ten / of_five) == pytest.approx(sqrt(2), rel=0.01)


def test_two_policies_of_other_starts_are_not_compared() -> None:
    assert pairs_of([True, False, True], [True, True, False]) == Pairs(starts=3, only_first=1, only_second=1)
    with pytest.raises(InvalidInput, match="the same"):
        pairs_of([True], [True, False])
