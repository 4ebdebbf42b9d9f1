"""The breaker: how much may be closed at once, and that it fails static; and what quarantines come of findings."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mainspring.control.health.breaker import Answered, Breaker, Closing
from mainspring.control.health.incidents import incidents_of
from mainspring.control.health.nodes import NodeHealth
from mainspring.control.health.quarantines import FABRIC_S, QUARANTINE_S, Decided, NodePlace, Quarantine, decide
from mainspring.control.health.rules import Finding
from mainspring.domain.answers import HealthFinding, NodeHealthView
from mainspring.domain.fleet import NodeRef
from mainspring.domain.hardware.health import HealthSource, HealthState, Repair, Strategy
from mainspring.domain.ids import ClusterName, NodeName

HALL = ClusterName("hall")
NOW_S = 10_000.0
MINUTE_S = 60.0


def node(number: int) -> NodeRef:
    return NodeRef(cluster=HALL, node=NodeName(f"n{number:03}"))


def ask(
    breaker: Breaker, number: int, at_s: float, *, nodes: int = 100, leaf: str = "", leaf_nodes: int = 0
) -> Answered:
    return breaker.ask(Closing(at=node(number), at_s=at_s, leaf=leaf, cluster_nodes=nodes, leaf_nodes=leaf_nodes))


def granted(numbers: Iterable[int], **fleet: int | str) -> tuple[int, Breaker]:
    """How many nodes a shut breaker lets be closed, one after the other within seconds, and what it is then."""
    breaker, count = Breaker(), 0
    for place, number in enumerate(numbers):
        answered = ask(breaker, number, NOW_S + place * 0.1, **fleet)  # type: ignore[arg-type]
        breaker, count = answered.breaker, count + answered.granted
    return count, breaker


@pytest.mark.parametrize(("nodes", "most"), [(1, 2), (3, 2), (40, 2), (59, 2), (60, 3), (100, 5), (1_000, 50)])
def test_breaker_lets_five_in_a_hundred_nodes_be_closed_at_once_and_two_of_a_small_cluster(
    nodes: int, most: int
) -> None:
    count, breaker = granted(range(most), nodes=nodes)
    assert (count, breaker.is_open) == (most, False)
    count, breaker = granted(range(most + 3), nodes=nodes)
    assert (count, breaker.is_open) == (most, True)
    assert breaker.words == f"{most + 1} of {nodes} nodes in 5 minutes; at most {most} are closed so"


@pytest.mark.parametrize(("leaf_nodes", "most"), [(1, 1), (2, 1), (3, 1), (4, 2), (16, 8)])
def test_breaker_lets_half_of_a_leaf_be_closed_at_once(leaf_nodes: int, most: int) -> None:
    count, breaker = granted(range(most), nodes=1_000, leaf="r1", leaf_nodes=leaf_nodes)
    assert (count, breaker.is_open) == (most, False)
    count, breaker = granted(range(most + 1), nodes=1_000, leaf="r1", leaf_nodes=leaf_nodes)
    assert (count, breaker.is_open) == (most, True)
    assert breaker.words == f"{most + 1} of {leaf_nodes} nodes of r1 in 5 minutes; at most {most} are closed so"


def test_leaves_are_counted_apart() -> None:
    breaker = Breaker()
    for number in range(4):
        answered = ask(breaker, number, NOW_S, leaf=f"r{number}", leaf_nodes=2)
        assert answered.granted
        breaker = answered.breaker


def test_what_was_closed_five_minutes_ago_counts_no_more() -> None:
    breaker = ask(ask(Breaker(), 1, NOW_S, nodes=10).breaker, 2, NOW_S + 1.0, nodes=10).breaker
    assert not ask(breaker, 3, NOW_S + 5 * MINUTE_S - 0.1, nodes=10).granted
    assert ask(breaker, 3, NOW_S + 5 * MINUTE_S, nodes=10).granted


def test_node_that_is_asked_for_again_counts_once() -> None:
    count, breaker = granted([1, 2, 1, 2, 1], nodes=10)
    assert (count, breaker.is_open) == (5, False)


def test_open_breaker_grants_nothing_however_late_until_it_is_reset() -> None:
    _, breaker = granted(range(3), nodes=10)
    late = ask(breaker, 9, NOW_S + 365 * 86_400.0, nodes=10)
    assert (late.granted, late.breaker) == (False, breaker)
    assert not ask(breaker, 1, NOW_S, nodes=10).granted, "not even what was closed before"
    assert ask(breaker.reset(), 9, NOW_S + 1.0, nodes=10).granted


@given(
    st.lists(st.tuples(st.integers(0, 30), st.floats(0.0, 200.0), st.integers(0, 3)), max_size=40),
    st.integers(1, 200),
    st.integers(1, 12),
)
def test_no_five_minutes_ever_see_more_closed_than_the_limits(
    asked: list[tuple[int, float, int]], nodes: int, leaf_nodes: int
) -> None:
    breaker, at_s, done = Breaker(), 0.0, list[tuple[float, int, int]]()
    for number, after_s, leaf in asked:
        at_s += after_s
        was_open = breaker.is_open
        answered = ask(breaker, number, at_s, nodes=nodes, leaf=f"r{leaf}", leaf_nodes=leaf_nodes)
        breaker = answered.breaker
        assert not (was_open and answered.granted)
        if answered.granted and not any(n == number and t > at_s - 300.0 for t, n, _ in done):
            done.append((at_s, number, leaf))
        recent = [(n, own) for t, n, own in done if t > at_s - 300.0]
        assert len(recent) <= max(2, nodes // 20)
        assert all(sum(own == each for _, own in recent) <= max(1, leaf_nodes // 2) for each in range(4))


# ---------------------------------------------------------------- quarantines


def health(
    number: int,
    *,
    state: HealthState = HealthState.FAILED,
    strategy: Strategy = Strategy.ACT,
    at: NodeRef | None = None,
    of_links: bool = False,
) -> NodeHealth:
    finding = Finding(
        rule="fatal",
        state=state,
        repair=Repair.RESTART_NODE,
        words="of no use",
        evidence=(HealthSource(name="kernel-log", session="s1", sequence=number),),
        strategy=strategy,
        of_links=of_links,
    )
    return NodeHealth(at=at or node(number), findings=(finding,))


PLACES = {node(number): NodePlace(leaf=f"r{number // 4}", leaf_nodes=4, cluster_nodes=40) for number in range(40)}


def decided(*healths: NodeHealth, before: Decided | None = None, now_s: float = NOW_S) -> Decided:
    closed = before.closed if before else {}
    breakers, fabrics = (before.breakers, before.fabrics) if before else ({}, {})
    return decide(healths, PLACES, closed, breakers, now_s, fabrics)


def test_failed_node_is_closed_with_owner_reason_evidence_and_expiry() -> None:
    found = decided(health(1))
    (made,) = found.close
    assert made == Quarantine(
        at=node(1),
        owner="health",
        reason="fatal: of no use",
        evidence=(HealthSource(name="kernel-log", session="s1", sequence=1),),
        repair=Repair.RESTART_NODE,
        from_s=NOW_S,
        until_s=NOW_S + 86_400.0,
    )
    assert found.closed == {node(1): made}
    assert (found.shadow, found.held, found.reopen) == ((), (), ())


def test_rules_in_shadow_and_suspects_close_nothing() -> None:
    found = decided(health(1, strategy=Strategy.SHADOW), health(2, state=HealthState.SUSPECT))
    assert (found.closed, found.close) == ({}, ())
    assert [each.at for each in found.shadow] == [node(1)]


def test_node_that_is_closed_stays_so_while_it_is_found_and_is_told_of_once() -> None:
    first = decided(health(1))
    later = decided(health(1), before=first, now_s=NOW_S + 2 * QUARANTINE_S)
    assert (later.close, later.reopen) == ((), ())
    assert later.closed[node(1)].from_s == NOW_S
    assert later.closed[node(1)].until_s == NOW_S + 3 * QUARANTINE_S


def test_node_is_opened_again_once_it_is_well_or_nobody_says_anything_for_a_day() -> None:
    first = decided(health(1), health(20))
    well = decided(NodeHealth(at=node(1)), health(20), before=first, now_s=NOW_S + 60.0)
    assert (well.reopen, list(well.closed)) == ((node(1),), [node(20)])
    assert decided(before=first, now_s=NOW_S + QUARANTINE_S - 1.0).reopen == ()
    assert decided(before=first, now_s=NOW_S + QUARANTINE_S).reopen == (node(1), node(20))


def test_rule_that_goes_back_to_shadow_opens_what_it_closed() -> None:
    shadow = replace(health(1, strategy=Strategy.SHADOW), stands=True)
    later = decided(shadow, before=decided(health(1)), now_s=NOW_S + 60.0)
    assert later.reopen == (node(1),)
    past = decided(NodeHealth(at=node(1), stands=True), before=decided(health(1)), now_s=NOW_S + 60.0)
    assert past.reopen == (), "that a rule looks no further back repairs nothing"


def test_many_failures_at_once_open_the_breaker_and_leave_everything_as_it_is() -> None:
    numbers = (1, 8, 16, 24, 32)
    found = decided(*(health(number) for number in numbers))
    assert [each.at for each in found.close] == [node(1), node(8)]
    assert [each.at for each in found.held] == [node(16), node(24), node(32)]
    assert found.breakers[HALL].is_open
    later = decided(NodeHealth(at=node(1)), health(16), before=found, now_s=NOW_S + 10 * QUARANTINE_S)
    assert (later.close, later.reopen, sorted(later.closed)) == ((), (), [node(1), node(8)])
    shut = {HALL: later.breakers[HALL].reset()}
    after = decide([NodeHealth(at=node(1)), health(16)], PLACES, later.closed, shut, NOW_S + 11 * QUARANTINE_S)
    assert [each.at for each in after.close] == [node(16)]
    assert after.reopen == (node(1), node(8))


def test_breakers_of_clusters_are_apart_and_nodes_that_are_gone_are_let_be() -> None:
    other = NodeRef(cluster=ClusterName("cloud"), node=NodeName("n001"))
    found = decided(*(health(number) for number in (1, 8, 16)), health(1, at=other))
    assert found.breakers[HALL].is_open
    assert other not in found.closed
    assert ClusterName("cloud") not in found.breakers


def test_one_node_whose_links_fail_is_closed_and_several_of_a_leaf_are_the_switchs() -> None:
    alone = decided(health(1, of_links=True), health(4, of_links=True), health(2))
    assert [each.at for each in alone.close] == [node(1), node(2)], "of a leaf each, or more than links"
    several = decided(health(1, of_links=True), health(2, of_links=True), health(3, of_links=True), health(9))
    assert [each.at for each in several.close] == [node(9)]
    assert [each.at for each in several.held] == [node(1), node(2), node(3)]
    assert not several.breakers[HALL].is_open
    nowhere = {at: replace(place, leaf="") for at, place in PLACES.items()}
    told = [health(number, of_links=True) for number in (1, 2)]
    assert len(decide(told, nowhere, {}, {}, NOW_S).close) == 2, "nobody knows what they hang on"


def test_the_last_link_of_a_switch_that_comes_back_is_no_fault_of_its_node() -> None:
    together = decided(health(1, of_links=True), health(2, of_links=True))
    last = decided(health(2, of_links=True), before=together, now_s=NOW_S + FABRIC_S / 2)
    assert (last.close, [each.at for each in last.held]) == ((), [node(2)])
    later = decided(health(2, of_links=True), before=last, now_s=NOW_S + FABRIC_S)
    assert [each.at for each in later.close] == [node(2)], "it is down by itself"


# ---------------------------------------------------------------- incidents


def view(number: int, *, of_links: bool = False, strategy: Strategy = Strategy.ACT) -> NodeHealthView:
    finding = HealthFinding(
        rule="fatal",
        state=HealthState.FAILED,
        repair=Repair.RESTART_NODE,
        words=f"of no use: {number}",
        strategy=strategy,
        of_links=of_links,
    )
    at = node(number)
    return NodeHealthView(
        cluster=at.cluster,
        node=at.node,
        state=HealthState.FAILED,
        findings=(finding,),
        lemon_score=1.0,
        since_s=NOW_S + number,
    )


def test_what_is_wrong_with_many_for_one_reason_is_told_once() -> None:
    wrong = [view(1, of_links=True), view(2, of_links=True), view(8), view(9, strategy=Strategy.SHADOW), view(10)]
    _, opened = granted(range(3), nodes=40)
    found = incidents_of(wrong, PLACES, {node(8)}, {HALL: opened})
    assert [(each.kind.value, each.where, each.nodes, each.done) for each in found] == [
        ("breaker", "", ("n000", "n001"), "held"),
        ("fabric", "r0", ("n001", "n002"), "held"),
        ("node", "", ("n008",), "closed"),
        ("node", "", ("n009",), "shadow"),
        ("node", "", ("n010",), "held"),
    ]
    assert found[1].since_s == NOW_S + 1
    assert incidents_of([], PLACES, (), {HALL: Breaker()}) == ()
