"""Figures of replays, checked against what one can count by hand or sum up the slow way."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mainspring.domain.ids import TeamName
from mainspring.domain.team import Team
from mainspring.simulator import Measures, Outcome, ReplayOptions, compare, draw, measure, replay
from mainspring.simulator.results.steps import integral, means, values

from .replaying import GPU, fleet, job, workload
from .standin import first_fit

OFTEN = ReplayOptions(plan_every_s=1.0)


@given(
    changes=st.lists(st.tuples(st.integers(0, 50), st.integers(-5, 5)), min_size=1, max_size=20),
    until=st.integers(0, 60),
)
def test_integral_of_steps_is_the_sum_over_seconds(changes: list[tuple[int, int]], until: int) -> None:
    ordered = sorted(changes)
    time_s = np.array([float(at) for at, _ in ordered])
    delta = np.array([float(by) for _, by in ordered])

    level = [sum(by for at, by in ordered if at <= second) for second in range(until)]

    assert integral(time_s, delta, np.array([float(until)]))[0] == pytest.approx(sum(level))
    assert values(time_s, delta, np.array([float(until)]))[0] == sum(by for at, by in ordered if at <= until)


def test_means_of_steps_between_edges_are_exact() -> None:
    got = means(np.array([0.0, 5.0]), np.array([2.0, 2.0]), np.array([0.0, 10.0, 20.0]))

    assert got.tolist() == [3.0, 4.0]


def _two_teams() -> Measures:
    """Red takes everything for two hours; blue has a guarantee of 4 chips and waits with 3 + 3."""
    jobs = [
        job("r", team="red", chips=8.0, duration_s=7_200.0),
        job("b1", team="blue", submit_s=10.0, chips=3.0, duration_s=600.0),
        job("b2", team="blue", submit_s=10.0, chips=3.0, duration_s=600.0),
    ]
    teams = (
        Team(name=TeamName("red"), guarantee={GPU: 4.0}),
        Team(name=TeamName("blue"), guarantee={GPU: 4.0}),
    )
    return measure(replay(workload(*jobs), fleet(), planner=first_fit, teams=teams, options=OFTEN))


def test_deficit_counts_what_waiting_jobs_would_have_used_of_a_guarantee() -> None:
    measures = _two_teams()
    blue, red = measures.fairness.teams

    # Only one job of 3 chips fits into a guarantee of 4: it stayed 3 chips short for 7,190 s.
    assert blue.deficit_h == pytest.approx(3 * 7_190.0 / 3_600.0)
    assert red.deficit_h == 0.0
    assert measures.fairness.deficit_h == blue.deficit_h


def test_deficit_shorter_than_half_an_hour_does_not_count() -> None:
    jobs = [
        job("r", team="red", chips=8.0, duration_s=1_700.0),
        job("b", team="blue", submit_s=10.0, chips=3.0, duration_s=600.0),
    ]
    teams = (Team(name=TeamName("red")), Team(name=TeamName("blue"), guarantee={GPU: 4.0}))

    measures = measure(replay(workload(*jobs), fleet(), planner=first_fit, teams=teams, options=OFTEN))

    assert measures.fairness.deficit_h == 0.0


def test_team_that_got_nothing_of_its_due_lowers_jains_index() -> None:
    measures = _two_teams()
    blue, red = measures.fairness.teams

    # Blue could count on 4 chips, wanted 6, and had none of the 4 until red ended, all of them after.
    due_s = 4.0 * 7_190.0 + 4.0 * 600.0
    assert blue.due_h == pytest.approx(due_s / 3_600.0)
    assert blue.had == pytest.approx(4.0 * 600.0 / due_s)
    assert red.had == pytest.approx(1.0)
    had = [blue.had, red.had]
    assert measures.fairness.jain == pytest.approx(sum(had) ** 2 / (2 * sum(part**2 for part in had)))


def test_teams_without_guarantees_are_measured_by_weight() -> None:
    jobs = [job("r", team="red", chips=6.0), job("b", team="blue", chips=2.0)]
    teams = (Team(name=TeamName("red"), weight=3.0), Team(name=TeamName("blue"), weight=1.0))

    measures = measure(replay(workload(*jobs), fleet(), planner=first_fit, teams=teams, options=OFTEN))

    assert [share.team for share in measures.fairness.teams] == ["blue", "red"]
    assert [share.due for share in measures.fairness.teams] == pytest.approx([2.0, 6.0])
    assert measures.fairness.jain == pytest.approx(1.0)


def test_team_above_others_counts_what_they_use_but_not_twice() -> None:
    jobs = [job("r", team="red", chips=8.0, duration_s=3_600.0)]
    teams = (
        Team(name=TeamName("org"), guarantee={GPU: 8.0}),
        Team(name=TeamName("red"), parent=TeamName("org"), guarantee={GPU: 8.0}),
    )

    fairness = measure(replay(workload(*jobs), fleet(), planner=first_fit, teams=teams)).fairness

    assert [(share.team, share.used_h, share.jobs) for share in fairness.teams] == [("org", 8.0, 0), ("red", 8.0, 1)]
    assert fairness.jain == pytest.approx(1.0)


def test_slowdowns_and_waits_are_counted_by_size() -> None:
    jobs = [
        job("big", chips=8.0, duration_s=1_000.0),
        job("small", chips=1.0, duration_s=1_000.0, submit_s=500.0),
        job("tiny", chips=1.0, duration_s=1.0, submit_s=999.0),
    ]

    measures = measure(replay(workload(*jobs), fleet(), planner=first_fit, options=OFTEN))
    one, eight = measures.sizes

    assert (one.size, one.jobs, eight.size, eight.jobs) == ("1", 2, "5 to 8", 1)
    assert one.wait_s.mean == pytest.approx((500.0 + 1.0) / 2)
    assert eight.slowdown.mean == 1.0
    # Three halves for the first; the second took 2 s, which is nothing beside the 10 s a short job counts as.
    assert one.slowdown.mean == pytest.approx((1.5 + 1.0) / 2)


def test_cores_are_counted_where_no_job_asks_for_chips(tmp_path: Path) -> None:
    from mainspring.simulator import load, load_fleet

    (tmp_path / "trace.csv").write_text("submit_s,duration_s,chips,cpus\n0,3600,0,16\n0,3600,0,48\n")
    (tmp_path / "fleet.yaml").write_text(
        "clusters: [{name: hpc, nodes: [{count: 2, chip: cpu, chips: 0, cpus: 64, memory_gib: 256}]}]\n"
    )

    measures = measure(
        replay(load(tmp_path / "trace.csv"), load_fleet(tmp_path / "fleet.yaml"), planner=first_fit, options=OFTEN)
    )

    assert measures.unit == "core"
    assert measures.utilization == pytest.approx(64 / 128)
    assert [each.size for each in measures.sizes] == ["9 to 64"]


def _outcome(nodes: int) -> Outcome:
    jobs = [job(f"j{n}", submit_s=10.0 * n, chips=8.0, duration_s=3_600.0) for n in range(6)]
    return replay(workload(*jobs), fleet(nodes, prices={GPU: 2.0}), planner=first_fit, options=OFTEN)


def test_comparison_of_two_fleets_says_what_more_chips_buy_and_what_idles() -> None:
    small, large = measure(_outcome(1)), measure(_outcome(4))

    found = {each.name: each for each in compare(small, large, names=("one", "four")).differences}

    assert found["mean JCT"].other < found["mean JCT"].base
    assert found["mean JCT"].change == pytest.approx(large.jct_s.mean / small.jct_s.mean - 1.0)
    assert found["chips on average"].base == pytest.approx(8.0)
    assert found["chips on average"].other == pytest.approx(32.0)
    assert found["idle chip-hours"].other == pytest.approx(large.pools[0].there_h - 48.0)
    assert found["idle dollars"].other == pytest.approx(2.0 * found["idle chip-hours"].other)
    assert found["dollars used"].base == pytest.approx(found["dollars used"].other)


@pytest.mark.slow
def test_plots_of_equal_outcomes_are_equal_bytes(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    drawn = []
    for name in ("first", "second"):
        outcome = _outcome(2)
        (tmp_path / name).mkdir()
        files = draw({"two nodes": (outcome, measure(outcome))}, tmp_path / name)
        drawn.append({path.name: path.read_bytes() for path in files})

    assert drawn[0] == drawn[1]
    assert sorted(drawn[0]) == ["completion.png", "slowdown.png", "teams.png", "utilization.png"]
    assert all(data.startswith(b"\x89PNG") for data in drawn[0].values())
