"""Gangs in a tree of domains: the tightest one, whole children first, groups kept together, and why not."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from mainspring.planner.facts.snapshot import NONE, Integers
from mainspring.planner.place.topology import Ask, Chosen, Tree, choose, most, shortfall, tree_of

LEVELS = ("block", "rack")


def column(*values: int) -> Integers:
    return np.array(values, dtype=np.int64)


def fleet(racks: int, rack_size: int, racks_per_block: int) -> Tree:
    rows = np.arange(racks * rack_size)
    return tree_of(LEVELS, np.stack([rows // rack_size // racks_per_block, rows // rack_size + 100], axis=1))


def placed(tree: Tree, caps: Integers, ask: Ask) -> Chosen:
    found = choose(caps, tree, ask)
    assert found is not None
    return found


@st.composite
def trees(draw: st.DrawFn) -> tuple[Integers, Integers]:
    """Draws the domains and the room of a few nodes: blocks of racks; some nodes hang in no rack, or nowhere."""
    domain: list[tuple[int, int]] = []
    for block in range(draw(st.integers(1, 3))):
        for rack in range(draw(st.integers(1, 3))):
            domain += [(block, 10 * block + rack + 100)] * draw(st.integers(1, 4))
        domain += [(block, NONE)] * draw(st.integers(0, 2))
    domain += [(NONE, NONE)] * draw(st.integers(0, 2))
    domain = draw(st.permutations(domain))
    caps = draw(st.lists(st.integers(0, 4), min_size=len(domain), max_size=len(domain)))
    return np.array(domain, dtype=np.int64), column(*caps)


@st.composite
def asks(draw: st.DrawFn) -> Ask:
    level = st.sampled_from([None, "cluster", "block", "rack", "node"])
    each = draw(st.integers(0, 4))
    return Ask(
        units=draw(st.integers(1, 12)) * max(each, 1),
        within=draw(level),
        prefer=draw(level),
        group_units=each,
        group_within=draw(level) if each else None,
    )


def names(domain: Integers, level: str | None) -> list[object]:
    """Returns each row's domain at a level, None where it has none."""
    if level in (None, "cluster"):
        return [0] * len(domain)
    if level == "node":
        return list(range(len(domain)))
    return [None if name == NONE else name for name in domain[:, LEVELS.index(str(level))].tolist()]


def by_hand(domain: Integers, caps: Integers, ask: Ask) -> int:
    """Returns the most units together, by looking at every domain."""
    outer, inner = names(domain, ask.within), names(domain, ask.group_within)
    best = 0
    for name in dict.fromkeys(each for each in outer if each is not None):
        rooms: dict[object, int] = {}
        for row, cap in enumerate(caps.tolist()):
            if outer[row] == name and inner[row] is not None:
                rooms[inner[row]] = rooms.get(inner[row], 0) + cap
        each = ask.group_units or 1
        best = max(best, sum(room // each * each for room in rooms.values()))
    return best


@given(trees(), asks())
def test_most_equals_a_look_at_every_domain(rows: tuple[Integers, Integers], ask: Ask) -> None:
    domain, caps = rows
    assert most(caps, tree_of(LEVELS, domain), ask) == by_hand(domain, caps, ask)


@given(trees(), asks())
def test_gang_stands_whole_inside_its_domain_in_whole_groups_or_not_at_all(
    rows: tuple[Integers, Integers], ask: Ask
) -> None:
    domain, caps = rows
    tree = tree_of(LEVELS, domain)
    found = choose(caps, tree, ask)
    assert (found is None) == (by_hand(domain, caps, ask) < ask.units) == (shortfall(caps, tree, ask) is not None)
    if found is None:
        return
    assert int(found.units.sum()) == ask.units
    assert len(set(found.rows.tolist())) == len(found.rows)
    assert (found.units > 0).all()
    assert (found.units <= caps[found.rows]).all()
    outer, inner = names(domain, ask.within), names(domain, ask.group_within)
    assert len({outer[row] for row in found.rows.tolist()}) == 1
    assert outer[int(found.rows[0])] is not None
    if ask.group_units:
        ranks = [inner[row] for row, units in zip(*map(np.ndarray.tolist, found), strict=True) for _ in range(units)]
        assert None not in ranks
        for first in range(0, len(ranks), ask.group_units):
            assert len(set(ranks[first : first + ask.group_units])) == 1, "ranks of one group are neighbours"


@given(trees(), st.integers(1, 20))
def test_gang_touches_the_fewest_racks_of_the_fewest_blocks(rows: tuple[Integers, Integers], units: int) -> None:
    domain, caps = rows
    found = choose(caps, tree_of(LEVELS, domain), Ask(units=units))
    if found is None:
        return
    for level in LEVELS:
        own = names(domain, level)
        holds_all = {name for name in own if name is not None} & {
            name
            for name in own
            if sum(cap for cap, other in zip(caps.tolist(), own, strict=True) if other == name) >= units
        }
        if holds_all:
            assert len({own[row] for row in found.rows.tolist()}) == 1, f"some {level} holds all of it"


@given(trees(), asks())
def test_neighbours_in_rank_are_neighbours_in_the_tree(rows: tuple[Integers, Integers], ask: Ask) -> None:
    domain, caps = rows
    found = choose(caps, tree_of(LEVELS, domain), ask)
    if found is None:
        return
    for level in LEVELS:
        seen = [name for name in (names(domain, level)[row] for row in found.rows.tolist()) if name is not None]
        runs = [name for place, name in enumerate(seen) if place == 0 or seen[place - 1] != name]
        assert len(runs) == len(set(runs)), f"every {level} is one run of ranks"


def test_gang_takes_the_domain_it_leaves_least_room_in() -> None:
    tree = fleet(racks=3, rack_size=2, racks_per_block=3)
    assert placed(tree, column(4, 8, 8, 8, 7, 8), Ask(units=15, within="rack")).rows.tolist() == [4, 5]


def test_gang_over_several_racks_fills_whole_ones_and_leaves_least_room_in_the_last() -> None:
    tree = fleet(racks=4, rack_size=4, racks_per_block=4)
    caps = column(1, 1, 1, 1, 1, 0, 0, 1, 1, 1, 0, 1, 1, 1, 1, 1)
    assert placed(tree, caps, Ask(units=10)).rows.tolist() == [0, 1, 2, 3, 4, 7, 12, 13, 14, 15]


def test_equal_racks_come_from_the_block_with_least_room() -> None:
    tree = fleet(racks=4, rack_size=2, racks_per_block=2)
    assert placed(tree, column(1, 1, 1, 1, 1, 1, 0, 1), Ask(units=2)).rows.tolist() == [4, 5]


def test_among_nodes_with_as_much_room_the_cheapest_is_taken() -> None:
    tree = fleet(racks=1, rack_size=4, racks_per_block=1)
    found = choose(column(1, 1, 1, 1), tree, Ask(units=2), cost=np.array([5.0, 4.0, 7.0, 4.0]))
    assert found is not None
    assert found.rows.tolist() == [1, 3]
    one = choose(column(2, 1, 1, 1), tree, Ask(units=1), cost=np.array([1.0, 4.0, 7.0, 3.0]))
    assert one is not None
    assert one.rows.tolist() == [3]


def test_preferred_level_is_soft_and_wider_ones_follow() -> None:
    tree = fleet(racks=4, rack_size=2, racks_per_block=2)
    caps = column(1, 0, 1, 1, 1, 1, 1, 1)
    assert placed(tree, caps, Ask(units=2, prefer="rack")).rows.tolist() == [2, 3]
    assert placed(tree, caps, Ask(units=3, prefer="rack")).rows.tolist() == [0, 2, 3]
    assert placed(tree, caps, Ask(units=5, prefer="rack", within="cluster")).units.sum() == 5
    assert choose(caps, tree, Ask(units=5, prefer="rack", within="block")) is None
    assert placed(tree, caps, Ask(units=2, prefer="planet")).units.sum() == 2


def test_whole_groups_take_only_domains_with_room_for_exactly_one() -> None:
    tree = tree_of(("slice",), column(0, 0, 1, 1, 2, 2).reshape(-1, 1))
    ask = Ask(units=4, group_units=2, group_within="slice", whole=True)
    assert placed(tree, column(1, 1, 1, 0, 1, 1), ask).rows.tolist() == [0, 1, 4, 5]
    assert most(column(1, 1, 2, 1, 2, 2), tree, ask) == 2, "one with room for more than a group is not whole"
    missing = shortfall(column(1, 1, 1, 0, 1, 0), tree, ask)
    assert missing is not None
    assert (missing.together, missing.short_units) == (2, 2)
    assert missing.text == "the cluster has 1 of the 2 whole slices of 2"


def test_level_nobody_is_placed_in_holds_nothing() -> None:
    tree = tree_of(LEVELS, column(0, NONE, 1, NONE).reshape(-1, 2))
    assert tree.levels == ("block",)
    assert most(column(4, 4), tree, Ask(units=1, within="rack")) == 0
    assert choose(column(4, 4), tree, Ask(units=1, within="rack")) is None


def test_levels_are_told_apart_by_what_lies_in_what_not_by_name() -> None:
    domain = column(0, 7, 0, 7, 1, 7, 1, 7, 2, 8, NONE, 8).reshape(-1, 2)
    assert tree_of(("a_rack", "z_block"), domain).levels == ("z_block", "a_rack")


def test_shortfall_tells_missing_room_from_room_too_far_apart() -> None:
    tree = fleet(racks=4, rack_size=2, racks_per_block=2)
    caps = column(1, 1, 1, 0, 1, 1, 0, 0)
    apart = shortfall(caps, tree, Ask(units=4, within="block"))
    assert apart is not None
    assert apart.apart
    assert (apart.short_units, apart.together, apart.free) == (1, 3, 5)
    assert apart.text == "the roomiest block has room for 3 of 4"
    groups = shortfall(caps, tree, Ask(units=4, within="block", group_units=2, group_within="rack"))
    assert groups is not None
    assert groups.text == "the roomiest block has room for 1 of the 2 groups of 2, each in one rack"
    few = shortfall(caps, tree, Ask(units=6))
    assert few is not None
    assert not few.apart
    assert few.short_units == 1


def test_no_rows_at_all_hold_nothing() -> None:
    tree = tree_of(LEVELS, np.zeros((0, 2), dtype=np.int64))
    assert most(column(), tree, Ask(units=1)) == 0
    assert choose(column(), tree, Ask(units=1)) is None
