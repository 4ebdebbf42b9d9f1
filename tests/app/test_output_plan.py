"""What people see of plans: nothing cut, times of day, and what a change would bring."""

from __future__ import annotations

import io
import time
from dataclasses import replace

import pytest
from rich.console import Console

from mainspring.app.render.plans import plan_panel, teams_table, what_if_panel, why_panel
from mainspring.app.render.tables import clock_text, jobs_table, start_text
from mainspring.app.sdk.lab import job
from mainspring.domain.answers import (
    ArrayView,
    JobView,
    PlannedStart,
    PlanView,
    Remedy,
    Shift,
    TeamUse,
    TeamView,
    WaitingUse,
    WaitView,
    WhatIfAnswer,
    Why,
)
from mainspring.domain.fleet import AvoidedNode, NodeOrder, NodeRef
from mainspring.domain.ids import AttemptId, ChipName, ClusterName, JobId, NodeName, TeamName
from mainspring.domain.life import JobState
from mainspring.domain.plan import Candidate, Evict, Limit, Reservation
from mainspring.domain.team import Team, TeamOrder

JOB, OTHER = JobId("job-x34am42h1s4q"), JobId("job-y34am42h1s4q")
NOW_S = time.mktime((2026, 3, 4, 13, 0, 0, 0, 0, -1))


def _drawn(drawable: object, *, columns: int = 200) -> str:
    file = io.StringIO()
    Console(file=file, width=columns, markup=False, emoji=False).print(drawable, crop=False)
    return file.getvalue()


def _plan(**fields: object) -> PlanView:
    plain: dict[str, object] = dict.fromkeys(
        ("starts", "evicts", "resizes", "moves", "provisions", "reservations", "waits"), ()
    )
    return PlanView(number=7, made_s=NOW_S - 2.0, complete=True, **{"counts": {}, **plain, **fields})  # type: ignore[arg-type]


WAIT = WaitView(
    count=60,
    jobs=(JOB,),
    limit=Limit.TOPOLOGY,
    where="alpha",
    short_by=16.0,
    reason="block b2 has 30 of 32 whole racks",
    exact=1,
    first_s=NOW_S + 3_600.0,
    last_s=NOW_S + 5_400.0,
)


def test_nodes_that_are_ordered_are_told_with_when_they_come() -> None:
    due = NodeOrder(cluster=ClusterName("cloud"), offer="a3", job=JOB, nodes=4, expected_s=NOW_S + 4_800.0)
    assert "4 nodes of a3 on cloud, expected at 14:20" in _drawn(plan_panel(_plan(ordered=(due,)), now_s=NOW_S))
    limit = Limit.CAPACITY
    why = Why(job=JOB, state=JobState.QUEUED, plan=1, summary="s", limit=limit, candidates=(), ordered=(due,))
    assert "4 nodes of a3 on cloud, expected at 14:20" in _drawn(why_panel(why, _view(), now_s=NOW_S))
    assert "4 nodes of a3 on cloud, late" in _drawn(why_panel(why, _view(), now_s=NOW_S + 5_000.0))


def test_moments_are_told_as_times_of_day_with_the_day_when_it_is_another() -> None:
    assert clock_text(NOW_S + 4_800.0, now_s=NOW_S) == "14:20"
    assert clock_text(NOW_S + 86_400.0, now_s=NOW_S) == "05 Mar 13:00"
    assert start_text(NOW_S + 4_800.0, exact=False, now_s=NOW_S) == "about 14:20, estimate"
    assert start_text(NOW_S + 4_800.0, exact=True, now_s=NOW_S) == "14:20, reserved"
    assert start_text(None, exact=False, now_s=NOW_S) == "-"


def _view(state: JobState = JobState.QUEUED, reason: str = "", after: tuple[JobId, ...] = ()) -> JobView:
    return JobView(
        id=JOB,
        spec=replace(job("x", "true", on="h100:4"), after=after),
        state=state,
        submitted_s=NOW_S,
        ended_s=None,
        reason=reason,
        step=-1,
        metrics={},
        result={},
        attempts=(),
        goodput=None,
    )


def test_why_of_a_job_that_ended_says_how_it_ended() -> None:
    why = Why(job=JOB, state=JobState.CANCELLED, plan=1, summary="placed 1 chip", limit=None, candidates=())
    shown = _drawn(why_panel(why, _view(JobState.CANCELLED, "cancelled by ann"), now_s=NOW_S))
    assert f"{JOB} is cancelled: cancelled by ann" in shown


def test_why_of_a_job_that_waits_for_others_names_them() -> None:
    why = Why(job=JOB, state=JobState.QUEUED, plan=1, summary="waits", limit=Limit.DEPENDENCY, candidates=())
    assert OTHER in _drawn(why_panel(why, _view(after=(OTHER,)), now_s=NOW_S))


def test_why_names_the_nodes_a_job_avoids_until_when_and_why() -> None:
    at = NodeRef(cluster=ClusterName("alpha"), node=NodeName("n7"))
    lost = AvoidedNode(at=at, until_s=NOW_S + 4_800.0, again_s=NOW_S, reason="an attempt was lost there; disk full")
    why = Why(job=JOB, state=JobState.QUEUED, plan=1, summary="waits", limit=None, candidates=(), avoided=(lost,))
    shown = " ".join(_drawn(why_panel(why, _view(), now_s=NOW_S)).split())
    for words in ("AVOIDS", "n7 alpha 14:20", "an attempt was lost there; disk full"):
        assert words in shown


@pytest.mark.parametrize("columns", [30, 80, 200])
def test_why_tells_limit_shortfall_start_and_remedies_on_a_screen_of_any_width(columns: int) -> None:
    candidate = Candidate(
        role=job("x", "true").roles[0].name,
        option=0,
        cluster=ClusterName("alpha"),
        simulated=True,
        fits=False,
        dollars_per_hour=9.6,
        dollars_per_work=2.4,
        verdict="needs 4, 1 free",
    )
    why = Why(
        job=JOB,
        state=JobState.QUEUED,
        plan=1,
        summary="alpha: needs 4, 1 free",
        limit=Limit.CAPACITY,
        candidates=(candidate,),
        where="alpha",
        short_by=3.0,
        start_s=NOW_S + 4_800.0,
        remedies=(Remedy(text="1 instead of 4 h100", cluster=ClusterName("alpha"), dollars_per_hour=2.4),),
    )
    shown = " ".join(_drawn(why_panel(why, _view(), now_s=NOW_S), columns=columns).split())
    assert JOB in shown
    for words in ("capacity (alpha)", "3 chips", "about 14:20, estimate", "1 instead of 4 h100", "(simulated)"):
        assert all(word in shown for word in words.split()), words


def test_plan_shows_starts_ends_reservations_and_who_waits_until_when() -> None:
    evict = Evict(
        attempt=AttemptId("attempt-1"),
        job=OTHER,
        cause=Limit.TIER,
        reason="makes room",
        for_job=JOB,
        price_chip_s=240.0,
    )
    view = _plan(
        counts={"starts": 1, "waits": 60, "moves": 0},
        starts=(PlannedStart(job=JOB, cluster=ClusterName("alpha"), nodes=(NodeName("alpha-0"),), chips=8.0),),
        evicts=(evict,),
        reservations=(Reservation(job=JOB, cluster=ClusterName("alpha"), start_s=NOW_S + 60.0, nodes=4),),
        waits=(WAIT,),
    )
    shown = _drawn(plan_panel(view, now_s=NOW_S))
    for words in (
        "plan 7",
        "alpha-0",
        "makes room",
        "240",
        "13:01",
        "60",
        "topology",
        "14:00, reserved; the last 14:30, estimate",
        "16",
    ):
        assert words in shown
    assert "moves" not in shown


def test_what_if_shows_what_changes_and_says_so_when_nothing_does() -> None:
    none = WhatIfAnswer(
        before=_plan(counts={"waits": 60}), after=_plan(counts={"waits": 60}, waits=(WAIT,)),
        start=(), wait=(), restart=(), stranded=(), shifts=(), sooner=0, later=0,
    )  # fmt: skip
    assert "nothing for any job" in _drawn(what_if_panel(none, now_s=NOW_S))
    some = WhatIfAnswer(
        before=_plan(counts={"waits": 60}), after=_plan(counts={"waits": 58, "starts": 2}),
        start=(JOB,), wait=(), restart=(), stranded=(OTHER,),
        shifts=(Shift(job=OTHER, before_s=None, after_s=NOW_S + 4_800.0),), sooner=1, later=0,
    )  # fmt: skip
    shown = _drawn(what_if_panel(some, now_s=NOW_S))
    assert ["waits", "60", "58"] in [line.split() for line in shown.splitlines()]
    assert all(words in shown for words in ("would start now", "would stop and wait", "14:20", JOB, OTHER))


def test_teams_show_promises_limits_and_use() -> None:
    team = Team(
        name=TeamName("vision"),
        parent=TeamName("lab"),
        chips_max=64.0,
        guarantee={ChipName("h100"): 32.0},
        borrow_max={ChipName("h100"): 16.0},
        dollars_max=500.0,
        budget_days=7.0,
        order=TeamOrder.ATTAINED,
    )
    use = TeamUse(chips={ChipName("h100"): 8.0, ChipName("v5e"): 0.5}, dollars=120.0)
    waiting = WaitingUse(jobs=7, jobs_max=9, bytes=3 << 30, bytes_max=None)
    shown = _drawn(
        teams_table((TeamView(team=team, use=use, waiting=waiting), TeamView(team=Team(name=TeamName("idle")))))
    )
    for words in (
        "8 h100, 0.5 v5e",
        "64 chips",
        "32 h100",
        "16 h100",
        "$120 of 500 in 7 d",
        "least had first",
        "7 of 9",
        "3.0 GiB",
    ):
        assert words in shown


def test_an_array_is_one_line_with_a_count_of_its_states_unless_its_jobs_are_asked_for() -> None:
    member = JobView(
        id=OTHER,
        spec=job("sweep-19", "true"),
        state=JobState.QUEUED,
        submitted_s=NOW_S - 60.0,
        ended_s=None,
        reason="waits",
        step=-1,
        metrics={},
        result={},
        attempts=(),
        goodput=None,
        start_s=NOW_S + 4_800.0,
        exact=True,
        array=ArrayView(first=JOB, index=19, count=20, states={"running": 8, "queued": 12}),
    )
    line = _drawn(jobs_table([member], now_s=NOW_S))
    assert all(words in line for words in (JOB, "sweep-[0..19]", "12 queued", "8 running", "14:20, reserved"))
    alone = _drawn(jobs_table([member], now_s=NOW_S, members=True))
    assert OTHER in alone
    assert "sweep-19" in alone
