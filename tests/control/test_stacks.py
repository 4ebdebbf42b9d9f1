"""Asking where ranks stand: who may, what the lead is told, what it tells; and what became of promises."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from mainspring.control.service.alerts.history import DAYS, LATE_S
from mainspring.control.service.alerts.slos import SLOS
from mainspring.domain.answers import Reason
from mainspring.domain.errors import Conflict, InvalidInput
from mainspring.domain.wire import StacksDumped
from mainspring.node.lead.watch.stacks import GROUPS_MAX, StackLook, spans

if TYPE_CHECKING:
    from tests.control.conftest import World


def test_lead_hears_once_more_that_somebody_asked_and_a_job_that_waits_cannot_be_asked(world: World) -> None:
    job = world.submit()
    with pytest.raises(Conflict, match="whose ranks run"):
        world.control.steering.ask_stacks(job, Reason(reason="slow"))
    world.run(job)
    assert world.beat(job).stacks == 0
    for count in (1, 2):
        world.control.steering.ask_stacks(job, Reason(reason="slow"))
        assert world.beat(job).stacks == count
    asked = [one for one in world.control.events(job) if one.kind == "stacks_asked"]
    assert [one.detail["reason"] for one in asked] == ["slow", "slow"]
    with pytest.raises(InvalidInput, match="reason"):
        Reason(reason=" ")


def dumped(rank: int, top: str, state: str = "S") -> StacksDumped:
    return StacksDumped(generation=1, rank=rank, process_state=state, top=top, stacks=f"stack of {top}")


def test_ranks_that_stand_together_are_one_event_and_those_that_do_not_answer_another() -> None:
    look = StackLook()
    assert look.ask(1, 0.0)
    assert not look.ask(1, 0.0)
    for rank in range(6):
        look.take(dumped(rank, "step.py:9 train", "R" if rank % 2 else "S"))
    look.take(dumped(6, "data.py:3 load", "D"))
    assert look.due(1, range(8), 1.0) == ()
    told = look.due(1, range(8), 6.0)
    assert [(one.ranks, one.count, one.top, one.process_state) for one in told] == [
        ("0-5", 6, "step.py:9 train", ""),
        ("6", 1, "data.py:3 load", "D"),
        ("7", 1, "does not answer", ""),
    ]
    assert look.due(1, range(8), 7.0) == ()
    assert look.ask(2, 10.0)
    for rank in range(1_000):
        look.take(dumped(rank, f"file.py:{rank} f"))
    told = look.due(1, range(1_000), 10.1)
    assert len(told) == GROUPS_MAX + 1
    assert sum(one.count for one in told) == 1_000


def test_numbers_in_order_are_told_as_spans() -> None:
    assert spans([0, 1, 2, 5, 7, 8]) == "0-2, 5, 7-8"
    assert spans(list(range(0, 100, 2)), most=2) == "0, 2 and 48 more"


def test_promises_are_told_by_day_with_how_fast_their_budget_burns(world: World) -> None:
    job = world.submit()
    world.run(job)
    for silent_s in (5.0, LATE_S["hang-detection"] + 1.0):
        world.beat(job, ("hang", {"generation": 1, "step": 3, "silent_s": silent_s, "odd": "", "evidence": ""}))
    told = {one.name: one for one in world.control.questions.promises()}
    hangs = told["hang-detection"]
    assert (hangs.days[-1].total, hangs.days[-1].late) == (2, 1)
    objective = next(slo.objective for slo in SLOS if slo.name == "hang-detection")
    assert hangs.burns["3600"] == pytest.approx(0.5 / (1.0 - objective))
    assert len(hangs.days) <= DAYS
    assert told["recovery"].burns == {}
    assert {*LATE_S} <= {slo.name for slo in SLOS}
