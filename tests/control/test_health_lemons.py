"""Lemons and their switches: links that fail together say nothing of the nodes that hang on them."""

from __future__ import annotations

from random import Random
from time import process_time

import pytest

from mainspring.control.health.nodes import TOGETHER_S, HealthFold
from mainspring.domain.fleet import NodeRef
from mainspring.domain.hardware.health import HealthEvent, HealthSource, Repair, Scope, ScopeKind, Strategy
from mainspring.domain.ids import ClusterName, NodeName

HALL = ClusterName("hall")
NODES = [NodeRef(cluster=HALL, node=NodeName(f"n{number}")) for number in range(4)]
DAY_S, NOW_S = 86_400.0, 1_000 * 86_400.0
TWICE = (NOW_S - 9 * DAY_S, NOW_S - 4 * DAY_S)


def link(at: NodeRef, at_s: float, number: int) -> HealthEvent:
    return HealthEvent(
        source=HealthSource(name="links", session=str(at.node), sequence=number),
        at_s=at_s,
        scope=Scope(kind=ScopeKind.LINK, cluster=at.cluster, node=at.node, part="mlx5_0/1"),
        check="link-state",
        fatal=True,
        repair=Repair.CALL_PEOPLE,
        strategy=Strategy.ACT,
    )


def mates_of(at: NodeRef) -> list[NodeRef]:
    """All but the last hang on one switch."""
    return NODES[-1:] if at == NODES[-1] else NODES[:-1]


def is_lemon(fold: HealthFold, at: NodeRef, now_s: float = NOW_S) -> bool:
    found = fold.of(at, now_s)
    named = "lemon" in {each.rule for each in found.findings}
    assert named == (found.lemon_score >= 3.0)
    return named


def told(events: list[HealthEvent], seed: int = 0) -> HealthFold:
    fold = HealthFold(mates_of=mates_of)
    for event in Random(seed).sample(events, len(events)):
        fold.add(event)
    return fold


@pytest.mark.parametrize("seed", range(3))
def test_nodes_of_a_switch_that_failed_twice_are_no_lemons(seed: int) -> None:
    down = [link(at, at_s + 2.0 * place, turn) for turn, at_s in enumerate(TWICE) for place, at in enumerate(NODES[:3])]
    fold = told(down, seed)
    assert [is_lemon(fold, at) for at in NODES[:3]] == [False] * 3
    assert fold.of(NODES[0], TWICE[0] + 5.0).findings, "each is told of all the same"


def test_link_that_fails_by_itself_is_its_nodes_own_fault_whatever_another_switch_does() -> None:
    alone = [link(NODES[0], at_s, turn) for turn, at_s in enumerate(TWICE)]
    others = [link(NODES[-1], at_s, turn) for turn, at_s in enumerate(TWICE)]
    later = [link(NODES[1], at_s + 3 * TOGETHER_S, turn) for turn, at_s in enumerate(TWICE)]
    fold = told([*alone, *others, *later])
    assert [is_lemon(fold, at) for at in NODES] == [True, True, False, True]


def test_link_counts_once_it_has_shown_that_no_other_failed_with_it() -> None:
    fold = told([link(NODES[0], at_s, turn) for turn, at_s in enumerate((TWICE[0], NOW_S))])
    assert not is_lemon(fold, NODES[0], NOW_S + TOGETHER_S - 1.0)
    assert is_lemon(fold, NODES[0], NOW_S + TOGETHER_S)
    fold.forget(NOW_S + 60 * DAY_S)
    assert fold.nodes() == ()


@pytest.mark.parametrize("leaf_nodes", [16, 4_096], ids=["racks", "one switch"])
def test_a_look_at_a_node_takes_as_long_however_many_links_failed_at_other_times(leaf_nodes: int) -> None:
    def least_s(count: int) -> float:
        """The least time that a look takes at some nodes, all of whose links have failed one after the other."""
        nodes = [NodeRef(cluster=HALL, node=NodeName(f"n{number}")) for number in range(count)]
        leaves = [dict.fromkeys(nodes[first : first + leaf_nodes]) for first in range(0, count, leaf_nodes)]
        mates = {at: leaf for leaf in leaves for at in leaf}
        fold = HealthFold(mates_of=lambda at: mates[at].keys())
        for place, at in enumerate(nodes):
            fold.add(link(at, NOW_S - 27 * DAY_S + 3 * TOGETHER_S * place, 0))

        def look() -> float:
            began_s = process_time()
            for at in nodes[:64]:
                fold.of(at, NOW_S)
            return process_time() - began_s

        return min(look() for _ in range(5))

    few, many = least_s(64), least_s(4_096)
    assert many < 8 * few, f"{many:.4f} s beside {few:.4f} s"
