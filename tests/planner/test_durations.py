"""What ended jobs teach about how long others run."""

from __future__ import annotations

from math import inf, isinf

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.planner.making import H100

from mainspring.domain.ids import TeamName
from mainspring.domain.job import JobSpec, Option, Role
from mainspring.planner.facts.durations import ENOUGH, GROUPS_MAX, REMEMBERED_MAX, UNKNOWN, Durations

_ROLES = (Role(command=("true",), options=(Option(chip=H100),)),)


def job(name: str = "train", team: str = "lab", requested_s: float = 0.0) -> JobSpec:
    """Returns the spec of a job."""
    return JobSpec(name=name, team=TeamName(team), roles=_ROLES, duration_s=requested_s)


def taught(*ran_s: float, name: str = "train", team: str = "lab", requested_s: float = 0.0) -> Durations:
    """Returns what jobs of one kind teach."""
    durations = Durations()
    for each in ran_s:
        durations.observe(job(name, team, requested_s), each)
    return durations


def test_prediction_without_history_is_what_the_owner_named() -> None:
    assert Durations().predict(job()) == UNKNOWN
    guess = Durations().predict(job(requested_s=500.0))
    assert (guess.expected_s, guess.safe_s) == (500.0, 500.0)


def test_prediction_from_jobs_of_the_same_name_is_their_mean() -> None:
    guess = taught(100.0, 200.0, 600.0).predict(job())
    assert guess.expected_s == pytest.approx(300.0)
    assert guess.safe_s == 600.0


def test_prediction_sees_names_that_differ_in_digits_only_as_one() -> None:
    durations = Durations()
    for index in range(3):
        durations.observe(job(f"eval-{index}"), 50.0)
        durations.observe(job(f"sweep-{index}"), 5_000.0)
    assert durations.predict(job("eval-17")).expected_s == pytest.approx(50.0)


def test_prediction_for_a_named_duration_is_the_part_that_others_used() -> None:
    durations = taught(10.0, 20.0, 30.0, requested_s=100.0)
    guess = durations.predict(job(requested_s=1_000.0))
    assert guess.expected_s == pytest.approx(200.0)
    assert guess.safe_s == pytest.approx(300.0)


def test_prediction_from_jobs_without_named_durations_stays_below_the_named_one() -> None:
    guess = taught(100.0, 200.0, 600.0).predict(job(requested_s=150.0))
    assert (guess.expected_s, guess.safe_s) == (150.0, 150.0)


def test_prediction_for_a_job_that_runs_is_that_of_those_that_ran_longer() -> None:
    durations = taught(10.0, 10.0, 10.0, 400.0, 500.0, 600.0)
    assert durations.predict(job(), elapsed_s=50.0).expected_s == pytest.approx(500.0)
    assert durations.predict(job(), elapsed_s=10.0).expected_s == pytest.approx(500.0)


def test_prediction_for_a_job_that_ran_longer_than_all_is_as_long_again() -> None:
    durations = taught(10.0, 20.0, 30.0)
    guess = durations.predict(job(), elapsed_s=70.0)
    assert (guess.expected_s, guess.safe_s) == (140.0, inf)
    assert durations.predict(job(requested_s=100.0), elapsed_s=70.0).expected_s == 100.0


def test_prediction_without_any_history_for_a_running_job_stays_unknown() -> None:
    assert isinf(Durations().predict(job(), elapsed_s=70.0).expected_s)


def test_prediction_for_an_unknown_team_gives_each_team_one_voice() -> None:
    durations = Durations()
    for team, ran_s, count in (("sweeps", 1.0, 500), ("one", 100.0, 1), ("two", 199.0, 1)):
        for _ in range(count):
            durations.observe(job(team=team), ran_s)
    assert durations.predict(job(team="new")).expected_s == pytest.approx(100.0)


def test_prediction_for_an_unknown_name_gives_each_name_of_the_team_one_voice() -> None:
    durations = Durations()
    for name, ran_s, count in (("sweep", 1.0, 500), ("long", 100.0, 1), ("longer", 199.0, 1)):
        for _ in range(count):
            durations.observe(job(name), ran_s)
    assert durations.predict(job("new")).expected_s == pytest.approx(100.0)


def test_prediction_follows_habits_that_change() -> None:
    durations = taught(*[10.0] * 200, *[900.0] * REMEMBERED_MAX)
    assert durations.predict(job()).expected_s == pytest.approx(900.0)


def test_prediction_learns_from_the_newest_job_at_once() -> None:
    durations = taught(10.0, 10.0, 10.0)
    assert durations.predict(job()).expected_s == pytest.approx(10.0)
    durations.observe(job(), 410.0)
    assert durations.predict(job()).expected_s == pytest.approx(110.0)


@pytest.mark.slow
def test_groups_beyond_the_bound_forget_the_one_longest_without_news() -> None:
    durations = taught(*[10.0] * ENOUGH)
    for index in range(GROUPS_MAX):
        durations.observe(job(team=f"team-{index}"), 700.0)
        if index % 1_000 == 0:
            durations.observe(job("keeps-coming"), 20.0)
    assert durations.predict(job("keeps-coming")).expected_s == pytest.approx(20.0)
    assert durations.predict(job("train")).expected_s != pytest.approx(10.0)


@given(
    ran_s=st.lists(st.floats(0.0, 1e6), max_size=40),
    requested_s=st.sampled_from([0.0, 100.0, 1e5]),
    elapsed_s=st.floats(0.0, 1e6),
)
def test_prediction_is_never_less_than_a_job_has_run_nor_safer_than_sound(
    ran_s: list[float], requested_s: float, elapsed_s: float
) -> None:
    guess = taught(*ran_s, requested_s=requested_s).predict(job(requested_s=requested_s), elapsed_s=elapsed_s)
    assert elapsed_s <= guess.expected_s * (1 + 1e-9)
    assert guess.expected_s <= guess.safe_s


@given(ran_s=st.lists(st.floats(0.0, 100.0), min_size=1, max_size=40), requested_s=st.floats(100.0, 1e5))
def test_prediction_stays_within_a_limit_that_nobody_broke(ran_s: list[float], requested_s: float) -> None:
    guess = taught(*ran_s, requested_s=100.0).predict(job(requested_s=requested_s))
    assert guess.safe_s <= requested_s * (1 + 1e-9)
