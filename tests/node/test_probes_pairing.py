"""Who is at fault, as sentences that hold whoever is."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mainspring.node.probes.sweep.pairing import (
    ROUNDS_MAX,
    Grouped,
    Isolated,
    is_slow,
    isolated,
    next_groups,
    usual_rate,
)

COUNTS = st.integers(2, 40)


def _played(count: int, seconds: Callable[[tuple[int, ...]], float | None]) -> tuple[Isolated, int]:
    """Returns what is found of nodes whose groups take so long, and how many rounds that took."""
    members, rounds = range(count), list[list[Grouped]]()
    while groups := next_groups(members, rounds):
        named = [one for group in groups for one in group]
        assert len(named) == len(set(named))  # Nobody works in two groups at once.
        assert all(2 <= len(group) <= 3 for group in groups)
        rounds.append([Grouped(members=group, seconds=seconds(group)) for group in groups])
    assert len(rounds) <= ROUNDS_MAX
    found = isolated(members, rounds)
    assert sorted((*found.well, *found.bad, *found.undecided)) == list(members)
    return found, len(rounds)


@given(COUNTS, st.data(), st.sampled_from([None, 30.0]))
def test_few_bad_nodes_are_found_in_two_rounds_and_nobody_else_is_blamed(
    count: int, data: st.DataObject, fault: float | None
) -> None:
    bad = data.draw(st.sets(st.integers(0, count - 1), max_size=max(0, (count - 3) // 4)))
    found, rounds = _played(count, lambda group: fault if bad & set(group) else 1.0)
    assert set(found.bad) == bad
    assert found.undecided == ()
    assert found.ways == ()
    assert rounds == (2 if bad else 1)


@given(COUNTS, st.data())
def test_however_many_are_bad_no_good_node_is_blamed_and_no_bad_one_cleared(count: int, data: st.DataObject) -> None:
    bad = data.draw(st.sets(st.integers(0, count - 1)))
    found, _ = _played(count, lambda group: None if bad & set(group) else 1.0)
    assert set(found.bad) <= bad
    assert not bad & set(found.well)


@given(COUNTS, st.data())
def test_a_way_that_is_at_fault_blames_neither_of_its_ends(count: int, data: st.DataObject) -> None:
    first = next_groups(range(count), [])
    broken = data.draw(st.sampled_from(first))
    found, _ = _played(count, lambda group: None if set(broken) <= set(group) else 1.0)
    assert found.bad == ()
    if count >= 6:
        assert found.ways == (broken,)
        assert found.undecided == ()


@settings(max_examples=400)
@given(st.integers(5, 11), st.data())
def test_whatever_comes_of_groups_nobody_is_measured_twice_by_the_same_node(count: int, data: st.DataObject) -> None:
    rounds = list[list[Grouped]]()
    while groups := next_groups(range(count), rounds):
        well = isolated(range(count), rounds).well if rounds else ()
        met = [set(group.members) for each in rounds for group in each]
        for group in groups:
            assert not (set(group) & set(well) and any(set(group) <= before for before in met))
        rounds.append([Grouped(members=group, seconds=1.0 if data.draw(st.booleans()) else None) for group in groups])
    assert len(rounds) <= ROUNDS_MAX


@given(COUNTS)
def test_where_everything_fails_nobody_is_blamed(count: int) -> None:
    found, rounds = _played(count, lambda group: None)
    assert (found.bad, found.well, rounds) == ((), (), 1)


@given(COUNTS, st.floats(1e-6, 1e6))
def test_where_all_are_alike_nobody_is_slow(count: int, seconds: float) -> None:
    found, rounds = _played(count, lambda group: seconds)
    assert (len(found.well), rounds) == (count, 1)


def test_two_nodes_alone_cannot_tell_which_of_them_it_is() -> None:
    found, _ = _played(2, lambda group: None)
    assert found.undecided == (0, 1)


def test_of_three_the_odd_one_works_with_both_others() -> None:
    assert next_groups(range(3), []) == ((0, 1, 2),)
    assert next_groups([7], []) == ()


@pytest.mark.parametrize(
    ("rate", "peers", "history", "slow"),
    [
        (70.0, [100.0, 99.0, 70.0], [], True),
        (85.0, [100.0, 99.0, 85.0], [], False),
        (70.0, [70.0, 100.0], [], False),  # Two differ: nobody knows which is usual.
        (70.0, [70.0], [100.0] * 5, True),
        (70.0, [70.0], [100.0] * 4, False),
        (70.0, [70.0, 71.0, 69.0], [100.0] * 9, False),  # All of its kind are so today.
        (0.0, [1.0, 1.0, 0.0], [], True),
    ],
)
def test_a_rate_is_slow_by_its_peers_else_by_its_past(
    rate: float, peers: list[float], history: list[float], slow: bool
) -> None:
    assert is_slow(rate, peers, history) == slow


def test_a_usual_rate_needs_enough_who_tell_it() -> None:
    assert usual_rate([1.0, 2.0], [3.0] * 4) is None
