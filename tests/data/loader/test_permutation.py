from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mainspring.data.loader.permutation import COUNT_MAX, Permutation
from mainspring.domain.errors import InvalidInput

GOLDEN = [64419, 204130, 907504, 297188, 5133]


@given(count=st.integers(1, 5_000), seed=st.integers(0, 2**64))
def test_permutation_of_any_count_holds_each_thing_once(count: int, seed: int) -> None:
    order = Permutation(count, "view", seed)(np.arange(count))
    assert np.array_equal(np.sort(order), np.arange(count))


@given(count=st.integers(2**20, COUNT_MAX), seed=st.integers(0, 100), data=st.data())
def test_permutation_of_a_huge_count_stays_inside_and_apart(count: int, seed: int, data: st.DataObject) -> None:
    positions = data.draw(st.lists(st.integers(0, count - 1), unique=True, min_size=1, max_size=50))
    things = Permutation(count, seed)(np.array(positions))
    assert len(set(things.tolist())) == len(positions)
    assert things.min() >= 0
    assert things.max() < count


def test_permutation_asked_in_parts_gives_the_same_order() -> None:
    order = Permutation(100_000, "a", 1)
    whole = order(np.arange(100_000))
    parts = np.concatenate([order(np.arange(start, start + 12_500)) for start in range(0, 100_000, 12_500)])
    assert np.array_equal(whole, parts)


def test_permutation_of_another_key_is_another_order() -> None:
    orders = {Permutation(1_000, *key)(np.arange(1_000)).tobytes() for key in (("a", 1), ("a", 2), ("b", 1), ("a1",))}
    assert len(orders) == 4


def test_permutation_never_changes_between_releases() -> None:
    assert Permutation(1_000_003, "golden", 7)(np.arange(5)).tolist() == GOLDEN


def test_permutation_scatters_neighbours() -> None:
    order = Permutation(100_000, "scatter")(np.arange(100_000))
    assert abs(np.corrcoef(order[:-1], order[1:])[0, 1]) < 0.02
    assert abs(np.abs(np.diff(order)).mean() / 100_000 - 1 / 3) < 0.01


@pytest.mark.parametrize("count", [0, -1, COUNT_MAX + 1])
def test_permutation_of_a_count_out_of_range_is_refused(count: int) -> None:
    with pytest.raises(InvalidInput):
        Permutation(count, 1)
