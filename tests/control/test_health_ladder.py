"""The ladder of repairs: what comes next after what was done."""

from __future__ import annotations

from dataclasses import replace

import pytest

from mainspring.control.health.ladder import TRIES_MAX, Otherwise, Patient, next_step
from mainspring.domain.answers import NodeRepair, RepairOutcome
from mainspring.domain.errors import InvalidSpec
from mainspring.domain.hardware.care import (
    BURN_IN,
    SWEEP,
    BreakerLimits,
    BurnIn,
    CareRules,
    RepairHook,
    Rung,
    put_in,
)
from mainspring.domain.hardware.health import Repair
from mainspring.domain.ids import NO_JOB, ClusterName, NodeName

HOOK = RepairHook(command=("true",), settle_s=100.0)
DONE, FAILED, LATE = RepairOutcome.DONE, RepairOutcome.FAILED, RepairOutcome.LATE
ALL = CareRules(repairs=dict.fromkeys(Rung, HOOK), burn_in=BurnIn())
ILL = Patient(asked=Repair.RESET_DEVICE, found=True, over=False, busy=False)


def did(*steps: tuple[str, RepairOutcome | None]) -> tuple[NodeRepair, ...]:
    return tuple(
        NodeRepair(
            number=number,
            closure=1,
            cluster=ClusterName("hall"),
            node=NodeName("n1"),
            step=step,
            job=NO_JOB,
            begun_s=0.0,
            ended_s=None if outcome is None else 10.0,
            outcome=outcome,
        )
        for number, (step, outcome) in enumerate(steps, 1)
    )


def then(*steps: tuple[str, RepairOutcome | None], rules: CareRules = ALL, now_s: float = 20.0, **of: bool) -> object:
    return next_step(replace(ILL, steps=did(*steps), **of), rules, now_s)  # type: ignore[arg-type]


def test_ladder_begins_with_what_is_asked_for_and_climbs_by_what_did_not_help() -> None:
    assert then() is Rung.RESET
    assert then(("reset", DONE)) == BURN_IN
    assert then(("reset", DONE), (BURN_IN, FAILED)) is Rung.REBOOT
    climbed = (("reset", DONE), (BURN_IN, FAILED), ("reboot", FAILED))
    assert then(*climbed) is Rung.REPLACE
    assert then(*climbed, ("replace", LATE)) is Rung.VENDOR
    assert then(*climbed, ("replace", LATE), ("vendor", FAILED)) is Otherwise.STUCK
    assert then(*climbed, ("replace", DONE), (BURN_IN, DONE)) is Otherwise.OPEN


@pytest.mark.parametrize(
    ("asked", "first"),
    [
        (Repair.RESTART_RANKS, Rung.RESTART),
        (Repair.RESET_DEVICE, Rung.RESET),
        (Repair.RESTART_NODE, Rung.REBOOT),
        (Repair.CALL_PEOPLE, Rung.REPLACE),
    ],
)
def test_each_repair_that_is_asked_for_has_its_first_rung(asked: Repair, first: Rung) -> None:
    assert next_step(replace(ILL, asked=asked), ALL, 0.0) is first


def test_rungs_without_a_hook_are_passed_over_and_nothing_is_done_twice_at_one_time() -> None:
    some = CareRules(repairs={Rung.REPLACE: HOOK})
    assert then(rules=some) is Rung.REPLACE
    assert then(("replace", FAILED), rules=some) is Otherwise.STUCK
    assert then(("reset", None)) is Otherwise.WAIT
    assert then(busy=True) is Otherwise.WAIT


def test_without_a_burn_in_a_node_is_open_once_nothing_is_found_and_climbs_when_it_has_not_settled() -> None:
    hooks = CareRules(repairs=dict.fromkeys(Rung, HOOK))
    assert then(("reset", DONE), rules=hooks, found=False) is Otherwise.OPEN
    assert then(("reset", DONE), rules=hooks, now_s=109.0) is Otherwise.WAIT
    assert then(("reset", DONE), rules=hooks, now_s=110.0) is Rung.REBOOT


def test_without_hooks_a_burn_in_is_tried_when_its_watchers_say_well_or_its_time_is_over() -> None:
    trial = CareRules(burn_in=BurnIn())
    assert then(rules=trial) is Otherwise.WAIT
    assert then(rules=trial, found=False) == BURN_IN
    assert then(rules=trial, over=True) == BURN_IN
    assert then((BURN_IN, FAILED), rules=trial, found=False) is Otherwise.STUCK
    assert next_step(replace(ILL, new=True), trial, 0.0) == BURN_IN


def test_ladder_has_an_end() -> None:
    assert then(*[(BURN_IN, FAILED)] * TRIES_MAX) is Otherwise.STUCK


def test_care_that_cannot_be_is_refused_by_name() -> None:
    for made, field in (
        (RepairHook, "url"),
        (lambda: RepairHook(url="https://a", command=("b",)), "url"),
        (lambda: RepairHook(url="ftp://a"), "url"),
        (lambda: RepairHook(command=("",)), "command"),
        (lambda: RepairHook(command=("a",), limit_s=0.0), "limit_s"),
        (lambda: BurnIn(minutes=0.0), "minutes"),
        (lambda: BurnIn(minutes=30.0, limit_minutes=20.0), "limit_minutes"),
        (lambda: BreakerLimits(percent=0.0), "percent"),
        (lambda: BreakerLimits(least=0), "least"),
    ):
        with pytest.raises(InvalidSpec, match=field):
            made()


def test_words_of_a_command_say_where_it_is() -> None:
    assert put_in(("do", "{node}.{cluster}"), cluster="hall", node="n1") == ("do", "n1.hall")
    assert BurnIn(minutes=2.5).words == (*SWEEP, "--minutes", "2.5")
    assert BurnIn(command=("mine",)).words == ("mine",)


def test_limits_of_a_breaker_are_those_of_its_cluster() -> None:
    wide = BreakerLimits(percent=20.0, least=4, leaf_percent=100.0)
    rules = CareRules(breakers={ClusterName("hall"): wide})
    assert [rules.limits_of(ClusterName(name)).most(100) for name in ("hall", "other")] == [20, 5]
    assert (wide.most(5), wide.most_of_leaf(8), rules.limits_of(ClusterName("other")).most_of_leaf(8)) == (4, 8, 4)
