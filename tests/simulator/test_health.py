"""A month of a fleet with health at work and without: what is counted, and that rules close what is ill and no more."""

from __future__ import annotations

from dataclasses import replace

import pytest

from mainspring.simulator.health.care import HealthAtWork
from mainspring.simulator.health.faults import DAY_S, Drawn, Fault, FaultKind, FaultModel, draw_faults
from mainspring.simulator.health.month import figures, month
from mainspring.simulator.health.operation import LOST_S, Nobody, Operation, Watching
from mainspring.simulator.health.watchers import CHECK_STEPS, STEPS_S

SMALL = FaultModel(nodes=64, leaf_nodes=8, days=4.0, gangs=((1, 32), (3, 8), (1, 6)), blind=0.0)
SPARES = SMALL.spares / SMALL.nodes


def lost(*faults: Fault, watching: Watching | None = None, model: FaultModel = SMALL) -> float:
    """What faults cost beside spares, in node-seconds."""
    drawn = Drawn(faults=tuple(replace(one, number=at) for at, one in enumerate(faults)), lemons=frozenset())
    part = Operation(model, drawn, watching or Nobody(), 1).run()
    return (part - SPARES) * model.nodes * model.days * DAY_S


def crash(row: int, at_s: float = DAY_S, *, stays: bool = False, kind: FaultKind = FaultKind.DEVICE) -> Fault:
    return Fault(kind=kind, row=row, at_s=at_s, stays=stays)


def test_fleet_without_faults_loses_its_spares() -> None:
    assert lost() == pytest.approx(0.0, abs=1e-3)
    assert lost(watching=HealthAtWork(SMALL)) == pytest.approx(0.0, abs=1e-3)


def test_fault_that_a_restart_cures_costs_its_gang_a_restart_and_what_was_not_saved() -> None:
    restart_s = LOST_S + SMALL.restart_s + 32 * SMALL.restart_node_s
    assert lost(crash(0)) == pytest.approx(32 * (restart_s + SMALL.unsaved_s), rel=1e-3)
    assert lost(crash(SMALL.nodes - 1)) == pytest.approx(0.0, abs=1e-3), "a spare has no gang"


def test_slow_node_slows_its_gang_until_somebody_sees_it_or_a_rule_does() -> None:
    slow = crash(0, kind=FaultKind.SLOW, stays=True)
    alone, watched = lost(slow), lost(slow, watching=HealthAtWork(SMALL))
    assert alone > 20 * watched > 0.0


def test_corruption_costs_all_since_it_began_until_replicas_tell() -> None:
    wrong = crash(0, kind=FaultKind.CORRUPTION, stays=True)
    seen = replace(SMALL, replicated=1.0)
    assert lost(wrong, watching=HealthAtWork(seen), model=seen) < 32 * 300.0
    assert lost(wrong) > 32 * 3_600.0


def test_corruption_that_neighbours_see_costs_what_lies_between_two_checks() -> None:
    wrong = crash(0, kind=FaultKind.CORRUPTION, stays=True)
    seen = replace(SMALL, replicated=0.0, checked=1.0)
    assert lost(wrong, watching=HealthAtWork(seen), model=seen) < 32 * (300.0 + CHECK_STEPS * STEPS_S[1])
    unseen = replace(seen, checked=0.0)
    assert lost(wrong, watching=HealthAtWork(unseen), model=unseen) == lost(wrong, model=unseen)


def test_switch_is_the_fault_of_no_node_but_the_first_that_goes() -> None:
    health = HealthAtWork(SMALL)
    lost(Fault(kind=FaultKind.SWITCH, row=0, at_s=DAY_S, lasts_s=3_600.0), watching=health)
    assert health.record.closings <= 1
    assert health.record.breakers_opened == 0


def test_what_only_looks_like_a_fault_closes_nothing() -> None:
    health = HealthAtWork(SMALL)
    assert lost(*(crash(row, 3_600.0 * row, kind=FaultKind.ALARM) for row in range(64)), watching=health) < 1.0
    assert (health.record.closings, health.record.lemons) == (0, {})


def test_node_that_fails_again_at_one_place_is_a_lemon_and_one_that_fails_here_and_there_is_none() -> None:
    health = HealthAtWork(SMALL)
    again = [replace(crash(3, DAY_S * day), part=2) for day in (1, 2)]
    here_and_there = [replace(crash(5, DAY_S * day), part=day) for day in (1, 2)]
    lost(*again, *here_and_there, watching=health)
    assert set(health.record.lemons) == {3}


def test_month_is_the_same_for_a_seed_and_health_is_worth_its_while() -> None:
    model = replace(SMALL, failures=60.0, lemons=0.05, days=14.0)
    one = month(model, 5)
    assert one == month(model, 5) != month(model, 6)
    assert one.badput[0] < one.badput[1]
    found = figures(model, [one])
    assert found["badput_ratio"] == one.badput[0] / one.badput[1]
    assert 0.0 <= found["detect_miss"] <= 1.0
    assert len(draw_faults(model, 5).lemons) == one.lemons[1] == 3
