"""Scores: how much of a task was done, from an environment that tells it to a comparison of two policies."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console, RenderableType

from mainspring.app.render.training.evaluations import comparison_panel, report_panel, reports_table
from mainspring.domain.codec import decode, encode
from mainspring.domain.errors import InvalidInput, NotAllowed
from mainspring.domain.ids import JobId
from mainspring.objects.folder import FolderStore
from mainspring.objects.port import Data
from mainspring.robots.environments.port import EnvironmentFacts, EpisodeStart, FloatArray, Moment, Pixels
from mainspring.robots.evaluation.keeping import find_evaluation, keep_if_allowed
from mainspring.robots.evaluation.pictures import page
from mainspring.robots.evaluation.playing import LANES, Observations, Played, play
from mainspring.robots.evaluation.report import (
    EvaluationReport,
    compared,
    rate_of,
    rates_by_task,
    score_of,
    scores_by_task,
)
from mainspring.robots.evaluation.run import outcomes_of
from mainspring.robots.evaluation.statistics import mean_interval

OLD = b'{"job":"job-1","step":5,"name":"walk","created_s":0.0}'
STARTS = [EpisodeStart(seed=3, index=index) for index in range(LANES + 4)]


class Walk:
    """A point walks along a line and is to be past 1 after the last step; how far it is, is its score."""

    def __init__(self, *, told: str = "always") -> None:
        self._told = told
        self._at = 0.0
        self._steps = 0

    def facts(self) -> EnvironmentFacts:
        return EnvironmentFacts(name="walk", state_names=("x",), action_names=("dx",), rate_hz=10.0, steps_max=4)

    def reset(self, start: EpisodeStart) -> Moment:
        self._at, self._steps = 0.0, 0
        return self._moment(score=None, task=f"walk {start.index % 2}")

    def step(self, action: FloatArray) -> Moment:
        self._at, self._steps = self._at + float(action[0]), self._steps + 1
        told = self._told == "always" or (self._told == "at times" and self._steps % 2 == 0)
        return self._moment(score=float(np.clip(self._at, 0, 1)) if told else None, task="another")

    def draw(self) -> Pixels:
        return np.zeros((2, 2, 3), np.uint8)

    def _moment(self, *, score: float | None, task: str) -> Moment:
        return Moment(state=np.asarray([self._at], np.float32), solved=self._at >= 1.0, task=task, score=score)


def silent() -> Walk:
    return Walk(told="never")


def there_and_back(far: float) -> FloatArray:
    """Walks so far in one step, and back in the next: chunks whose first half, two steps, is carried out."""
    return np.tile(np.asarray([[far], [-far], [0.0]], np.float32), (LANES, 1, 1))


def walked(far: float, *, told: str = "always") -> tuple[Played, ...]:
    def actor(seen: Observations, call: int) -> FloatArray:
        return there_and_back(far)

    return play(lambda: Walk(told=told), actor, STARTS, progress=lambda done: None)


def reported(played: tuple[Played, ...], *, job: str = "job-1") -> EvaluationReport:
    episodes = outcomes_of(played)
    return EvaluationReport(
        job=JobId(job),
        step=5,
        name="walk",
        created_s=0.0,
        environment="walk",
        success=rate_of(episodes),
        tasks=rates_by_task(episodes),
        score=score_of(episodes),
        task_scores=scores_by_task(episodes),
        episodes=episodes,
    )


def drawn(look: RenderableType) -> str:
    console = Console(width=200)
    with console.capture() as seen:
        console.print(look)
    return seen.get()


def test_report_says_as_which_robot_a_policy_played_and_what_was_left_out() -> None:
    plain = reported(walked(0.25))
    left_out = "a view that may not be read: could not read"
    told = replace(plain, robot="hand", left_out=left_out)
    assert decode(EvaluationReport, encode(told)) == told
    for said, wanted in ((page(told, []), "robot `hand`"), (drawn(report_panel(told, folder="f")), "hand")):
        assert wanted in said
        assert left_out in said
    for said in (page(plain, []), drawn(report_panel(plain, folder="f"))):
        assert "robot" not in said
        assert "left out" not in said
    assert decode(EvaluationReport, OLD).robot == ""


def test_score_of_an_episode_is_its_best_also_where_it_was_lost_again() -> None:
    played = walked(0.25)
    assert [each.score for each in played] == [0.25] * len(STARTS)
    assert not any(each.solved for each in played)
    assert all(each.score == 1.0 and each.solved for each in walked(1.5))


def test_report_of_a_checkpoint_that_nothing_may_be_kept_with_is_no_fault(tmp_path: Path) -> None:
    class Closed(FolderStore):
        def put(self, key: str, data: Data) -> None:
            raise NotAllowed("store an object", on=key)

    report = reported(walked(1.5))
    assert keep_if_allowed(FolderStore(tmp_path), report, {})
    assert find_evaluation(FolderStore(tmp_path), report.job, report.step, report.name) == report
    assert not keep_if_allowed(Closed(tmp_path), report, {})


def test_score_of_each_start_is_its_own_where_lanes_are_used_again() -> None:
    def actor(seen: Observations, call: int) -> FloatArray:  # The first round does well, who comes later does not.
        return there_and_back(0.5 if call < 2 else 0.125)

    played = play(Walk, actor, STARTS, progress=lambda done: None)
    assert [each.score for each in played] == [0.5] * LANES + [0.125] * (len(STARTS) - LANES)


def test_environment_that_tells_a_score_at_times_is_refused() -> None:
    with pytest.raises(InvalidInput, match="after step 2, unlike before"):
        walked(0.25, told="at times")


@pytest.mark.parametrize("score", [-0.1, 1.1, float("nan")])
def test_score_out_of_its_range_is_refused(score: float) -> None:
    with pytest.raises(InvalidInput, match="0 to 1"):
        Moment(state=np.zeros(1, np.float32), solved=False, score=score)


def test_report_shows_and_keeps_the_mean_score_with_its_interval() -> None:
    report = reported((*walked(0.25)[:10], *walked(0.75)[:10]))
    assert report.score is not None
    assert report.score.mean == pytest.approx(0.5)
    assert report.score.interval.low == pytest.approx(0.38, abs=0.005)  # 0.5 - 2.093 * 0.2565 / sqrt(20)
    assert report.score.interval.high == pytest.approx(0.62, abs=0.005)
    assert list(report.task_scores) == ["walk 0", "walk 1"]
    assert decode(EvaluationReport, encode(report)) == report
    assert "**0.500 of 1, 95 % 0.380 to 0.620**" in page(report, [])
    assert "| score | interval |" in page(report, [])
    panel = drawn(report_panel(report, folder="here"))
    assert "0.500 of 1, 95 % 0.380 to 0.620" in panel
    assert "SCORE'S INTERVAL" in panel
    table = drawn(reports_table([report, reported(walked(0.25, told="never"))], now_s=0.0)).splitlines()
    assert "SCORE" in table[0]
    assert "0.500" in table[1]


def test_environments_without_scores_show_none_anywhere() -> None:
    report = reported(walked(0.25, told="never"))
    assert report.score is None
    assert not report.task_scores
    found = compared(report, reported(walked(1.5, told="never"), job="job-2"), margin=0.0, created_s=0.0)
    assert found.scores is None
    shown = [page(report, []), drawn(report_panel(report, folder="here")), drawn(reports_table([report], now_s=0.0))]
    assert not any("score" in text.lower() for text in [*shown, drawn(comparison_panel(found))])


def test_report_of_before_there_were_scores_is_read_and_compares_without_them() -> None:
    kept = encode(reported(walked(0.25, told="never")))
    for word in (b'"score":null,', b',"score":null', b'"task_scores":{},'):
        kept = kept.replace(word, b"")
    assert b"score" not in kept
    old = decode(EvaluationReport, kept)
    assert compared(old, reported(walked(0.25), job="job-2"), margin=0.0, created_s=0.0).scores is None


def test_scores_are_compared_start_by_start() -> None:
    dice = np.random.default_rng(5)
    base = dice.uniform(0.0, 0.8, 60)  # Starts differ much, the policies at each of them little.
    better = base + dice.uniform(0.0, 0.1, 60)
    first, second = (
        reported(tuple(one for far in each for one in walked(float(np.float32(far)))[:1])) for each in (better, base)
    )
    found = compared(first, second, margin=0.0, created_s=0.0).scores
    assert found is not None
    assert found.difference == pytest.approx(float((better - base).mean()), abs=1e-6)
    assert 0.03 < found.interval.low < found.difference < found.interval.high < 0.07
    apart = [each.score.interval for each in (first, second) if each.score is not None]
    assert apart[0].low < apart[1].high  # Which the intervals of each by itself would not have told.
    told = drawn(comparison_panel(compared(first, second, margin=0.0, created_s=0.0)))
    assert f"{100 * found.difference:+.1f} points, 95 % +" in told


@pytest.mark.slow
@given(st.lists(st.floats(-1, 1), min_size=1, max_size=30))
def test_interval_of_a_mean_holds_it_and_stays_where_it_can_lie(numbers: list[float]) -> None:
    found = mean_interval(numbers, least=-1.0)
    assert -1.0 <= found.low <= np.mean(numbers) + 1e-12
    assert np.mean(numbers) - 1e-12 <= found.high <= 1.0


def test_interval_of_a_mean_covers_the_truth_as_often_as_it_says() -> None:
    dice, rounds = np.random.default_rng(11), 400
    covered = 0
    for _ in range(rounds):
        found = mean_interval(dice.beta(1, 4, 50).tolist())  # Few come far: the mean is 0.2.
        covered += found.low <= 0.2 <= found.high
    assert 0.90 < covered / rounds < 0.99


def test_interval_of_equal_numbers_is_as_wide_as_their_spread_may_be() -> None:
    one, ten = mean_interval([0.0]), mean_interval([0.0] * 10)
    assert (one.low, ten.low) == (0.0, 0.0)
    assert one.high > 0.7
    assert ten.high == pytest.approx(0.2775, abs=1e-3)  # Wilson's of none in ten.
    both = mean_interval([0.0] * 10, least=-1.0)
    assert both.low < -0.3 < 0.3 < both.high
