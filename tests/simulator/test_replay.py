"""Replays: what happens to jobs in virtual time when the planner does exactly what a test says."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from math import inf

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mainspring.control.state.accounting import spent
from mainspring.domain.errors import InvalidInput
from mainspring.domain.fleet import Offer, Replica
from mainspring.domain.goodput import TimeUse
from mainspring.domain.ids import ChipName, ClusterName, JobId, NodeName, RoleName, TeamName
from mainspring.domain.life import JobState
from mainspring.domain.plan import Grant, Limit, Move, Plan, Provision, Resize, Wait
from mainspring.domain.team import Team
from mainspring.domain.wire.events.jobs import JobMovedEvent
from mainspring.planner import Budget, Policy, Snapshot, plan
from mainspring.simulator import Outage, Outcome, PriceChange, ReplayOptions, TraceJob, measure, replay

from .replaying import GPU, Heard, evicting, fleet, job, workload
from .standin import first_fit

EAST = ClusterName("east")
N0 = NodeName("n-000000")
OFTEN = ReplayOptions(plan_every_s=1.0)


def _ends(outcome: Outcome) -> dict[str, float]:
    names = [each.job for each in outcome.workload.jobs]
    return dict(zip(names, outcome.jobs.end_s.tolist(), strict=True))


def test_replay_of_one_job_ends_it_after_its_duration() -> None:
    outcome = replay(workload(job("a", submit_s=50.0, duration_s=1_000.0)), fleet(), planner=first_fit)

    assert outcome.jobs.start_s.tolist() == [50.0]
    assert outcome.jobs.end_s.tolist() == [1_050.0]
    assert outcome.jobs.state == (JobState.SUCCEEDED,)


def test_replay_of_two_jobs_for_one_place_runs_them_one_after_the_other() -> None:
    jobs = [job("a", chips=8.0), job("b", submit_s=1.0, chips=8.0)]

    outcome = replay(workload(*jobs), fleet(), planner=first_fit, options=OFTEN)

    assert _ends(outcome) == {"a": 1_000.0, "b": 2_000.0}


def test_replay_plans_at_most_once_in_the_time_allowed() -> None:
    times: list[float] = []
    jobs = [job(f"j{n:03d}", submit_s=7.0 * n, duration_s=40.0, chips=8.0) for n in range(100)]

    replay(
        workload(*jobs),
        fleet(),
        planner=first_fit,
        options=ReplayOptions(plan_every_s=60.0),
        planned=lambda now_s, snapshot, made: times.append(now_s),
    )

    assert len(times) > 50
    assert all(later - earlier >= 60.0 for earlier, later in pairwise(times))


def test_displaced_job_pays_the_restart_and_repeats_what_came_after_its_last_checkpoint() -> None:
    options = ReplayOptions(plan_every_s=1.0, restart_s=300.0, checkpoint_s=600.0, grace_s=30.0)

    outcome = replay(
        workload(job("a", duration_s=5_000.0), job("tick", submit_s=1_500.0, duration_s=10.0)),
        fleet(),
        planner=evicting(1_500.0, of="a"),
        options=options,
    )

    # 1,200 s of 1,500 were durable; 30 s later the nodes are free, and it starts again at once.
    assert _ends(outcome)["a"] == pytest.approx(1_500.0 + 30.0 + 300.0 + (5_000.0 - 1_200.0), abs=2.0)
    assert outcome.jobs.displaced.tolist() == [1, 0]
    assert outcome.spent_s[TimeUse.REPEATED] == pytest.approx(300.0)
    assert outcome.spent_s[TimeUse.STARTUP] == pytest.approx(300.0)
    assert outcome.spent_s[TimeUse.WINDDOWN] == pytest.approx(30.0)


def test_job_whose_node_fails_too_often_fails() -> None:
    outages = tuple(
        Outage(cluster=EAST, nodes=(N0,), from_s=at_s, until_s=at_s + 60.0) for at_s in (100.0, 300.0, 500.0)
    )

    outcome = replay(
        workload(job("a", attempts_max=2, duration_s=10_000.0), job("b", duration_s=10_000.0)),
        replace(fleet(), outages=outages),
        planner=first_fit,
        options=OFTEN,
    )

    assert outcome.jobs.state == (JobState.FAILED, JobState.SUCCEEDED)
    assert outcome.jobs.lost.tolist() == [2, 3]
    assert outcome.jobs.end_s[0] == 300.0


def test_node_that_is_away_is_listed_as_down_and_not_used() -> None:
    seen: list[tuple[float, bool]] = []
    away = Outage(cluster=EAST, nodes=(N0,), from_s=10.0, until_s=500.0)

    outcome = replay(
        workload(job("a", submit_s=20.0, duration_s=100.0)),
        replace(fleet(), outages=(away,)),
        planner=first_fit,
        planned=lambda now_s, snapshot, made: seen.append((now_s, bool(snapshot.nodes.ready[0]))),
    )

    assert seen[0] == (20.0, False)
    assert outcome.jobs.start_s[0] >= 500.0


def test_spot_notice_reaches_the_planner_before_the_nodes_go() -> None:
    leaves: dict[float, float] = {}

    def look(now_s: float, snapshot: Snapshot, made: Plan) -> None:
        leaves[now_s] = float(snapshot.nodes.leaves_s[0])

    away = Outage(cluster=EAST, nodes=(N0,), from_s=1_000.0, until_s=inf, notice_s=120.0)

    replay(
        workload(job("a", duration_s=5_000.0)),
        replace(fleet(2), outages=(away,)),
        planner=first_fit,
        options=ReplayOptions(plan_every_s=1.0, until_s=3_000.0),
        planned=look,
    )

    assert leaves[0.0] == inf
    assert leaves[880.0] == 1_000.0


def test_prices_that_change_are_paid_from_then_on() -> None:
    changed = PriceChange(cluster=EAST, chip=GPU, at_s=1_800.0, dollars_per_chip_hour=10.0)
    priced = replace(fleet(prices={GPU: 2.0}), prices=(changed,))

    outcome = replay(workload(job("a", chips=4.0, duration_s=3_600.0)), priced, planner=first_fit)

    assert outcome.jobs.dollars.tolist() == pytest.approx([4 * (0.5 * 2.0 + 0.5 * 10.0)])
    assert measure(outcome).idle_dollars == pytest.approx(4 * (0.5 * 2.0 + 0.5 * 10.0))


def test_job_that_comes_after_another_waits_for_it_and_fails_with_it() -> None:
    blocked: list[int] = []
    jobs = [
        job("a", duration_s=500.0),
        job("b", after=["a"], duration_s=100.0),
        job("c", attempts_max=1, chips=8.0, submit_s=700.0),
        job("d", after=["c"], submit_s=700.0),
    ]
    away = Outage(cluster=EAST, nodes=(N0,), from_s=800.0, until_s=900.0)

    outcome = replay(
        workload(*jobs),
        replace(fleet(), outages=(away,)),
        planner=first_fit,
        options=OFTEN,
        planned=lambda now_s, snapshot, made: blocked.append(int(snapshot.pending.blocked.sum())),
    )

    assert blocked[0] == 1
    assert _ends(outcome) == {"a": 500.0, "b": 600.0, "c": 800.0, "d": 800.0}
    assert outcome.jobs.state[2:] == (JobState.FAILED, JobState.FAILED)


def test_job_after_one_that_is_not_there_is_refused() -> None:
    with pytest.raises(InvalidInput, match="after ghost"):
        replay(workload(job("a", after=["ghost"])), fleet(), planner=first_fit)


def test_job_that_no_machine_could_run_is_refused_and_the_rest_goes_on() -> None:
    def refusing(snapshot: Snapshot, policy: Policy, now_s: float, budget: Budget) -> Plan:
        made = first_fit(snapshot, policy, now_s, budget)
        waits = [replace(wait, limit=Limit.IMPOSSIBLE) for wait in made.waits]
        return replace(made, waits=tuple(waits))

    outcome = replay(workload(job("a"), job("huge", chips=64.0)), fleet(), planner=refusing)

    assert outcome.jobs.state == (JobState.SUCCEEDED, JobState.FAILED)
    assert outcome.counts.refused == 1


def test_replay_where_something_waits_for_ever_ends() -> None:
    outcome = replay(workload(job("a"), job("huge", chips=64.0)), fleet(), planner=first_fit)

    assert outcome.jobs.state == (JobState.SUCCEEDED, JobState.QUEUED)
    assert measure(outcome).jobs["unfinished"] == 1


def test_replay_that_is_cut_short_counts_what_ran_until_then() -> None:
    outcome = replay(
        workload(job("a", chips=2.0, duration_s=1e6)),
        fleet(),
        planner=first_fit,
        options=ReplayOptions(until_s=3_600.0),
    )

    assert outcome.end_s == 3_600.0
    assert outcome.spent_s[TimeUse.PRODUCTIVE] == pytest.approx(2 * 3_600.0)
    assert measure(outcome).pools[0].used_h == pytest.approx(2.0)


def test_elastic_job_that_grows_goes_faster_and_loses_nothing() -> None:
    def growing(snapshot: Snapshot, policy: Policy, now_s: float, budget: Budget) -> Plan:
        live = snapshot.live
        resizes: tuple[Resize, ...] = ()
        if live.attempts and live.grants[0][0].ranks == (2,):
            grant = Grant(role=RoleName("main"), option=0, cluster=EAST, nodes=(N0,), chip_milli=(4_000,), ranks=(4,))
            resizes = (
                Resize(
                    attempt=live.attempts[0], job=live.jobs[0], role=RoleName("main"), replicas=4, grant=grant,
                    reason="there is room",
                ),
            )  # fmt: skip
        starts = first_fit(snapshot, policy, now_s, budget).starts
        small = tuple(
            replace(start, grants=(replace(start.grants[0], chip_milli=(2_000,), ranks=(2,)),))
            for start in starts
            if start.job == "a"
        )
        return Plan(number=snapshot.number, starts=small or starts, resizes=resizes)

    heard = Heard()
    options = ReplayOptions(plan_every_s=1_000.0, resize_s=10.0)
    elastic = job("a", replicas=4, replicas_min=2, duration_s=2_000.0)

    outcome = replay(workload(elastic, job("b", submit_s=500.0)), fleet(), planner=growing, options=options, tell=heard)

    # A thousand seconds at half speed, ten of change, the remaining 1,500 at full speed.
    assert _ends(outcome)["a"] == pytest.approx(1_000.0 + 10.0 + 1_500.0)
    assert outcome.counts.resizes == 1
    told = spent([event for event in heard.events if event.job == "a"], outcome.end_s)
    assert told is not None
    assert told.seconds[TimeUse.RECOVERY] == pytest.approx(10.0)


def test_data_arrive_after_the_time_the_link_takes() -> None:
    copies = (Replica(name="d", cluster=ClusterName("west"), size_bytes=int(2.5e11)),)
    two = fleet()
    west = replace(two.inventories[0], cluster=ClusterName("west"), nodes=())
    both = replace(two, inventories=(*two.inventories, west), replicas=copies)
    brought: list[float] = []

    def moving(snapshot: Snapshot, policy: Policy, now_s: float, budget: Budget) -> Plan:
        if bool(snapshot.data.present[0].all()):
            brought.append(now_s)
            return first_fit(snapshot, policy, now_s, budget)
        move = Move(what="d", source=ClusterName("west"), target=EAST, size_bytes=int(2.5e11), for_job=JobId("a"))
        return Plan(number=snapshot.number, moves=(move,))

    policy = Policy(link_bytes_per_s=1.25e8, dollars_per_gib_moved=0.01)
    outcome = replay(workload(job("a", inputs=["d"])), both, planner=moving, policy=policy)

    assert brought == [2_000.0]
    assert outcome.counts.moves == 1
    assert outcome.counts.moved_dollars == pytest.approx(0.01 * 2.5e11 / 2**30)


def test_nodes_that_are_ordered_come_after_their_lead_time_and_go_back_when_idle() -> None:
    offer = Offer(name="spot", chip=GPU, chips=8, nodes_max=4, lead_time_s=300.0, dollars_per_chip_hour=1.0)

    def ordering(snapshot: Snapshot, policy: Policy, now_s: float, budget: Budget) -> Plan:
        made = first_fit(snapshot, policy, now_s, budget)
        coming = bool(snapshot.nodes.coming.any())
        if made.waits and not coming and snapshot.offers:
            order = Provision(cluster=EAST, offer="spot", nodes=1, for_job=made.waits[0].jobs[0], reason="it waits")
            return replace(made, provisions=(order,))
        return made

    outcome = replay(
        workload(job("a", chips=8.0, duration_s=7_200.0), job("b", chips=8.0, duration_s=600.0)),
        fleet(offers=(offer,)),
        planner=ordering,
        options=OFTEN,
    )

    assert outcome.counts.nodes_bought == 1
    assert _ends(outcome)["b"] == pytest.approx(900.0)
    assert outcome.jobs.dollars[1] == pytest.approx(8 * 600.0 / 3_600.0)
    room = measure(outcome).pools[0]
    # 8 chips for two hours, and 8 more from when they came until they had been idle for ten minutes.
    assert 16.0 < room.there_h < 16.0 + 8 * (600.0 + 1_900.0) / 3_600.0


def test_budget_of_a_team_tells_the_planner_what_it_spent() -> None:
    spent: list[float] = []
    teams = (Team(name=TeamName("org"), dollars_max=100.0), Team(name=TeamName("lab"), parent=TeamName("org")))

    def watching(now_s: float, snapshot: Snapshot, made: Plan) -> None:
        spent.append(float(snapshot.teams.dollars[snapshot.teams.names.index(TeamName("org"))]))

    replay(
        workload(job("a", duration_s=3_600.0), job("b", submit_s=1_800.0), job("c", submit_s=7_200.0)),
        fleet(prices={GPU: 4.0}),
        planner=first_fit,
        teams=teams,
        planned=watching,
    )

    assert spent == pytest.approx([0.0, 2.0, 4.0 + 4.0 * 1_000.0 / 3_600.0])


def test_planner_learns_durations_only_where_it_may() -> None:
    jobs = [job(f"j{n}", submit_s=2_000.0 * n, duration_s=700.0) for n in range(6)]

    def expected(*, learn: bool) -> float:
        seen: list[float] = []
        replay(
            workload(*jobs),
            fleet(),
            planner=first_fit,
            options=ReplayOptions(learn=learn),
            planned=lambda now_s, snapshot, made: seen.extend(snapshot.pending.duration_s.tolist()),
        )
        return seen[-1]

    assert expected(learn=True) == pytest.approx(700.0)
    assert expected(learn=False) == inf


@settings(max_examples=25)
@given(
    evicts=st.lists(st.integers(1, 20_000), max_size=5),
    outages=st.lists(st.integers(1, 20_000), max_size=5),
    durations=st.lists(st.integers(1, 9_000), min_size=1, max_size=6),
)
@pytest.mark.slow
def test_goodput_of_a_replay_is_what_the_accounting_folds_from_its_events(
    evicts: list[int], outages: list[int], durations: list[int]
) -> None:
    heard = Heard()
    away = [Outage(cluster=EAST, nodes=(N0,), from_s=float(at), until_s=at + 90.0) for at in sorted(set(outages))]
    jobs = [job(f"j{n}", submit_s=300.0 * n, duration_s=float(length)) for n, length in enumerate(durations)]

    outcome = replay(
        workload(*jobs),
        replace(fleet(), outages=tuple(away)),
        planner=evicting(*map(float, evicts)),
        options=ReplayOptions(plan_every_s=100.0),
        tell=heard,
    )

    parts = [spent([event for event in heard.events if event.job == each.job], outcome.end_s) for each in jobs]
    for use, seconds in outcome.spent_s.items():
        assert sum(part.seconds[use] for part in parts if part is not None) == pytest.approx(seconds, abs=0.01)


def test_events_are_numbered_in_order_of_time_and_tell_each_job_to_its_end() -> None:
    heard = Heard()

    replay(
        workload(*[job(f"j{n}", submit_s=10.0 * n, chips=3.0) for n in range(9)]),
        fleet(),
        planner=evicting(400.0, 900.0),
        tell=heard,
    )

    assert [event.sequence for event in heard.events] == list(range(1, len(heard.events) + 1))
    assert all(one.time_s <= two.time_s for one, two in pairwise(heard.events))
    moves = [event for event in heard.events if event.kind == JobMovedEvent.kind]
    assert sum(event.detail["after"] == "succeeded" for event in moves) == 9


def _random_jobs(draw: Sequence[tuple[int, int, int, int, int]]) -> list[TraceJob]:
    return [
        job(
            f"j{n:03d}", submit_s=float(submit), duration_s=float(length), chips=float(chips), replicas=replicas,
            team=("red", "blue")[team], requested_s=float(2 * length),
        )
        for n, (submit, length, chips, replicas, team) in enumerate(draw)
    ]  # fmt: skip


@settings(max_examples=15)
@given(
    drawn=st.lists(
        st.tuples(
            st.integers(0, 20_000),
            st.integers(60, 9_000),
            st.sampled_from([1, 2, 4, 8]),
            st.integers(1, 2),
            st.integers(0, 1),
        ),
        min_size=1,
        max_size=25,
    ),
    seed=st.integers(0, 3),
)
@pytest.mark.slow
def test_real_planner_under_faults_ends_every_job_and_the_same_seed_gives_the_same_events(
    drawn: list[tuple[int, int, int, int, int]], seed: int
) -> None:
    teams = (
        Team(name=TeamName("red"), guarantee={GPU: 12.0}),
        Team(name=TeamName("blue"), guarantee={GPU: 4.0}),
    )
    options = ReplayOptions(plan_every_s=120.0, faults_per_1000_node_days=2_000.0)

    def once() -> tuple[Outcome, Heard]:
        heard = Heard()
        jobs = workload(*_random_jobs(drawn))
        outcome = replay(jobs, fleet(2), planner=plan, teams=teams, options=options, seed=seed, tell=heard)
        return outcome, heard

    outcome, heard = once()
    measures = measure(outcome)

    assert set(outcome.jobs.state) == {JobState.SUCCEEDED}
    assert measures.pools[0].utilization <= 1.0 + 1e-9
    assert 0.0 <= measures.goodput <= 1.0
    assert once()[1].events == heard.events


def test_waiting_for_nobody_makes_no_plans() -> None:
    outcome = replay(workload(job("a", duration_s=1e6)), fleet(), planner=first_fit)

    assert outcome.counts.plans == 1


def test_planner_that_grants_what_is_taken_is_caught() -> None:
    def greedy(snapshot: Snapshot, policy: Policy, now_s: float, budget: Budget) -> Plan:
        made = first_fit(snapshot, policy, now_s, budget)
        return replace(
            made,
            starts=tuple(
                replace(start, grants=(replace(start.grants[0], chip_milli=(9_000,)),)) for start in made.starts
            ),
        )

    with pytest.raises(AssertionError, match="too few chips"):
        replay(workload(job("a")), fleet(), planner=greedy)


def test_wait_that_nobody_answers_wakes_the_planner_again() -> None:
    def patient(snapshot: Snapshot, policy: Policy, now_s: float, budget: Budget) -> Plan:
        if now_s < 700.0:
            waits = Wait(
                jobs=snapshot.pending.jobs, start_s=(None,) * len(snapshot.pending.jobs), exact=0,
                limit=Limit.CAPACITY, where="", short_by=0.0, reason="not yet", considered=(),
            )  # fmt: skip
            return Plan(number=snapshot.number, waits=(waits,))
        return first_fit(snapshot, policy, now_s, budget)

    outcome = replay(workload(job("a")), fleet(), planner=patient)

    assert 700.0 <= outcome.jobs.start_s[0] < 2_500.0


def test_chip_not_named_by_an_option_keeps_its_own_speed() -> None:
    quick = job("a", duration_s=1_000.0)
    option = quick.spec.roles[0].options[0]
    slow = replace(option, chip=ChipName("old"), speed=0.5)
    spec = replace(quick.spec, roles=(replace(quick.spec.roles[0], options=(option, slow)),))
    old = fleet().inventories[0]
    nodes = tuple(replace(node, chip=ChipName("old")) for node in old.nodes)

    outcome = replay(
        workload(replace(quick, spec=spec)),
        replace(fleet(), inventories=(replace(old, nodes=nodes),)),
        planner=first_fit,
    )

    assert outcome.jobs.end_s.tolist() == [2_000.0]
