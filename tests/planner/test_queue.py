"""Who is next."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from math import inf

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.planner.tenants import B200, H100, NOW_S, Job, Tenants, holds, snapshot, team, tenants, wants

from mainspring.domain.job import ANY_CHIP, Tier
from mainspring.domain.team import Team, TeamOrder
from mainspring.planner.quota.precedence import BORROWED
from mainspring.planner.quota.queue import Turn

property_of = settings(max_examples=60)


def world(teams: Iterable[Team], jobs: dict[str, Job]) -> Tenants:
    return tenants(snapshot(teams, jobs))


def turn(made: Tenants) -> Turn:
    found = made.queue.pop()
    assert found is not None
    return found


def started(made: Tenants) -> list[str]:
    """Starts every job in turn and returns them."""
    jobs = []
    while (found := made.queue.pop()) is not None:
        name = made.snapshot.pending.jobs[found.row]
        option = made.snapshot.shapes[found.shape].roles[0].options[0]
        made.charge(Job(team=made.snapshot.teams.names[found.team], chips={option.chip: option.replicas}))
        jobs.append(str(name))
    return jobs


# -------------------------------------------------------------------- order


def test_order_is_tier_then_share_then_age_then_id() -> None:
    jobs = {
        "live": holds("busy", 3),
        "e": wants("busy", 1, submitted_s=1.0),
        "d": wants("idle", 1, submitted_s=3.0),
        "c": wants("idle", 2, submitted_s=3.0),
        "b": wants("idle", 1, submitted_s=2.0),
        "a": wants("busy", 1, submitted_s=4.0, tier=Tier.CRITICAL),
    }
    assert world([], jobs).popped() == ["a", "b", "c", "d", "e"]


def test_teams_take_turns_as_their_shares_grow() -> None:
    jobs = {f"x{index}": wants("x", 1, submitted_s=float(index)) for index in range(3)}
    jobs |= {f"y{index}": wants("y", 1, submitted_s=10.0 + index) for index in range(3)}
    assert started(world([], jobs)) == ["x0", "y0", "x1", "y1", "x2", "y2"]


def test_team_of_twice_the_weight_gets_twice_as_much() -> None:
    jobs = {f"{name}{index}": wants(name, 1, submitted_s=float(index)) for name in "xy" for index in range(8)}
    first = started(world([team("x", weight=2.0), team("y")], jobs))[:9]
    assert (sum(job.startswith("x") for job in first), len(first)) == (6, 9)


def test_guaranteed_use_comes_before_borrowed_use_in_every_tier() -> None:
    teams = [team("sure", guarantee=4), team("other")]
    jobs = {
        "urgent": wants("other", 1, tier=Tier.CRITICAL),
        "sure-1": wants("sure", 3, tier=Tier.OPPORTUNISTIC),
        "sure-2": wants("sure", 3, tier=Tier.OPPORTUNISTIC),
    }
    assert started(world(teams, jobs)) == ["sure-1", "urgent", "sure-2"]


def test_job_that_a_guarantee_covers_does_not_wait_behind_a_larger_one_of_its_team() -> None:
    jobs = {"large": wants("sure", 8), "small": wants("sure", 4, submitted_s=1.0), "other": wants("other", 1)}
    assert started(world([team("sure", guarantee=4), team("other")], jobs)) == ["small", "large", "other"]


def test_precedence_tells_standing_tier_and_level() -> None:
    teams = [team("lab", guarantee=8), team("a", "lab", order=TeamOrder.ATTAINED)]
    jobs = {
        "fresh": wants("a", 8, tier=Tier.CRITICAL),
        "tired": wants("a", 8, tier=Tier.OPPORTUNISTIC, attained_chip_s=1e9),
    }
    made = world(teams, jobs)
    first = turn(made)
    made.charge(jobs["fresh"])
    assert (made.snapshot.pending.jobs[first.row], first.precedence) == ("fresh", (1, 0, 0))
    assert turn(made).precedence == (BORROWED, 2, 2)


def test_team_ordered_by_chip_time_takes_those_that_had_least_first() -> None:
    jobs = {
        "old": wants("a", 1, submitted_s=0.0, attained_chip_s=1e9),
        "middle": wants("a", 1, submitted_s=1.0, attained_chip_s=20_000.0),
        "young": wants("a", 1, submitted_s=2.0),
    }
    assert world([team("a", order=TeamOrder.ATTAINED)], jobs).popped() == ["young", "middle", "old"]
    assert world([team("a")], jobs).popped() == ["old", "middle", "young"]


def test_jobs_from_the_future_count_as_submitted_now() -> None:
    jobs = {
        "a-late": wants("lab", 1, submitted_s=NOW_S + 50.0),
        "b-now": wants("lab", 1, submitted_s=NOW_S),
        "c-later": wants("lab", 1, submitted_s=NOW_S + 10.0),
        "d-before": wants("lab", 1, submitted_s=NOW_S - 1.0),
    }
    assert world([], jobs).popped() == ["d-before", "a-late", "b-now", "c-later"]


def test_blocked_jobs_are_left_out() -> None:
    assert world([], {"a": wants("lab", 1, blocked=True), "b": wants("lab", 1)}).popped() == ["b"]


def test_job_on_any_chip_is_covered_where_there_is_but_one() -> None:
    made = snapshot([team("a", guarantee=4)], {"any": Job(team="a", chips={ANY_CHIP: 4})})
    assert turn(tenants(made)).precedence[0] == BORROWED
    alone = replace(
        made,
        chips=(H100,),
        nodes=replace(made.nodes, chip=np.zeros_like(made.nodes.chip)),
        teams=replace(
            made.teams,
            guarantee_milli=made.teams.guarantee_milli[:, 1:],
            lend_max_milli=made.teams.lend_max_milli[:, 1:],
            borrow_max_milli=made.teams.borrow_max_milli[:, 1:],
        ),
    )
    assert turn(tenants(alone)).precedence[0] == 0


# -------------------------------------------------------------------- closing


def test_closed_shape_is_not_popped_again() -> None:
    made = world([], {f"{name}{index}": wants(name, 1 + index % 2) for name in "xy" for index in range(40)})
    first = turn(made)
    made.queue.close(first.shape)
    rest = made.popped()
    assert len(rest) == 40
    assert {int(name[1:]) % 2 for name in rest} == {1}
    made = world([], {f"x{index}": wants("x", 1) for index in range(40)})
    made.queue.close(turn(made).shape)
    assert made.queue.pop() is None


def test_closed_from_a_duration_on_leaves_shorter_jobs_open() -> None:
    jobs = {f"long{index:03}": wants("x", 1, duration_s=100.0) for index in range(900)}
    jobs |= {"short": wants("x", 1, duration_s=99.0), "unknown": wants("x", 1)}
    made = world([], jobs)
    shape = int(made.snapshot.pending.shape[0])
    made.queue.close(shape, duration_s=inf)
    assert turn(made).row == 0, "a job of unknown duration may yet be short"
    made.queue.close(shape, duration_s=100.0)
    made.queue.close(shape, duration_s=500.0)
    assert made.popped() == ["short"], "a later, laxer close opens nothing"


def test_closed_for_a_team_leaves_other_teams_open() -> None:
    made = world([], {f"{name}{index:03}": wants(name, 1) for name in "xy" for index in range(30)})
    made.queue.close_for_team(int(made.snapshot.pending.shape[0]), made.row("x"))
    assert made.popped() == [f"y{index:03}" for index in range(30)]


def test_release_brings_a_team_forward() -> None:
    live = holds("x", 4)
    made = world([], {"live": live, "x": wants("x", 1, submitted_s=0.0), "y": wants("y", 1, submitted_s=1.0)})
    made.release("live", live)
    assert made.popped() == ["x", "y"]


def test_release_in_a_guarantee_of_the_top_brings_every_team_below_forward() -> None:
    teams = [team("lab", guarantee=4), team("x", "lab"), team("y", "lab"), team("z", "lab")]
    live = holds("x", 4, tier=Tier.CRITICAL)
    jobs = {
        "live": live,
        "y": wants("y", 4, tier=Tier.OPPORTUNISTIC),
        "z": wants("z", 5, tier=Tier.CRITICAL),
    }
    assert world(teams, jobs).popped() == ["z", "y"]
    made = world(teams, jobs)
    made.release("live", live)
    assert made.popped() == ["y", "z"]


# -------------------------------------------------------------------- properties

TEAMS = ("lab", "vision", "pose", "control", "stray")
PENDING = st.builds(
    Job,
    team=st.sampled_from(TEAMS),
    chips=st.dictionaries(st.sampled_from((H100, B200)), st.sampled_from((1, 2, 4)), min_size=1),
    tier=st.sampled_from(Tier),
    submitted_s=st.integers(0, 5).map(float),
    attained_chip_s=st.sampled_from((0.0, 20_000.0)),
    duration_s=st.sampled_from((0.0, 10.0, 20.0)),
)
LIVE = st.builds(
    Job,
    team=st.sampled_from(TEAMS),
    chips=st.dictionaries(st.sampled_from((H100, B200)), st.integers(1, 4), min_size=1),
    tier=st.sampled_from(Tier),
    granted_s=st.just(0.0),
)


@st.composite
def worlds(draw: st.DrawFn) -> tuple[list[Team], dict[str, Job]]:
    parents = {"lab": None, "vision": "lab", "pose": "vision", "control": "lab"}
    teams = [
        team(
            name,
            parent,
            guarantee=draw(st.sampled_from((0, 2, 6))),
            lend_max=draw(st.sampled_from((None, 0))),
            weight=draw(st.sampled_from((1.0, 2.0))),
            order=draw(st.sampled_from(TeamOrder)),
        )
        for name, parent in parents.items()
    ]
    pending = draw(st.lists(PENDING, min_size=1, max_size=25))
    live = draw(st.lists(LIVE, max_size=6))
    jobs = {f"job-{index:02}": job for index, job in enumerate(pending)}
    return teams, jobs | {f"live-{index}": job for index, job in enumerate(live)}


class Plain:
    """The same queue without any cleverness: it looks at every job each time."""

    def __init__(self, made: Tenants, jobs: dict[str, Job]) -> None:
        self.made, self.jobs = made, jobs
        self.open = set(range(len(made.snapshot.pending.jobs)))

    def key(self, row: int) -> tuple[object, ...]:
        pending, teams = self.made.snapshot.pending, self.made.snapshot.teams
        job, own = self.jobs[pending.jobs[row]], int(pending.team[row])
        level = int(job.attained_chip_s > 14_400.0 and bool(teams.attained[own]))
        standing = self.made.entitlement.standing(own, job.charge, tier=job.tier.rank, level=level)
        return standing, job.tier.rank, level, self.made.entitlement.shares.of(own), job.submitted_s, pending.jobs[row]

    def pop(self) -> tuple[int, object] | None:
        if not self.open:
            return None
        row = min(self.open, key=self.key)
        self.open.discard(row)
        return row, self.key(row)[:3]

    def close(self, shape: int, duration_s: float, team: int | None) -> None:
        pending = self.made.snapshot.pending
        self.open -= {
            row
            for row in self.open
            if pending.shape[row] == shape
            and pending.duration_safe_s[row] >= duration_s
            and team in (None, pending.team[row])
        }


@property_of
@given(drawn=worlds(), acts=st.lists(st.sampled_from(("start", "close", "short", "team", "evict")), max_size=40))
@pytest.mark.slow
def test_queue_pops_what_looking_at_every_job_each_time_would(
    drawn: tuple[list[Team], dict[str, Job]], acts: list[str]
) -> None:
    teams, jobs = drawn
    made = world(teams, jobs)
    plain = Plain(made, jobs)
    live = [(name, job) for name, job in jobs.items() if job.granted_s is not None]
    for act in [*acts, *["start"] * len(jobs)]:
        expected, got = plain.pop(), made.queue.pop()
        assert (None if got is None else (got.row, got.precedence)) == expected
        if got is None:
            return
        if act == "start":
            made.charge(jobs[made.snapshot.pending.jobs[got.row]])
        elif act == "team":
            made.queue.close_for_team(got.shape, got.team)
            plain.close(got.shape, 0.0, got.team)
        elif act == "evict" and live:
            made.release(*live.pop())
        elif act in ("close", "short"):
            made.queue.close(got.shape, duration_s=0.0 if act == "close" else 15.0)
            plain.close(got.shape, 0.0 if act == "close" else 15.0, None)


@property_of
@given(drawn=worlds(), starts=st.integers(0, 10))
@pytest.mark.slow
def test_order_is_that_in_which_jobs_would_be_popped_if_nothing_started(
    drawn: tuple[list[Team], dict[str, Job]], starts: int
) -> None:
    teams, jobs = drawn
    made = world(teams, jobs)
    for _ in range(starts):
        if (found := made.queue.pop()) is not None:
            made.charge(jobs[made.snapshot.pending.jobs[found.row]])
    rest = []
    while (found := made.queue.pop()) is not None:
        rest.append(found.row)
    assert made.queue.order(np.array(sorted(rest), dtype=np.int64)).tolist() == rest
