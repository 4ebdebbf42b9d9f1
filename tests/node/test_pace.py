"""The pace of snapshots: often where they cost little, never later than Young's interval, and no faster than copies."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mainspring.node.lead.watch.pace import DAY_S, INTERVAL_S_MAX, LEAST_SNAPSHOTS, NOTCH_SLACK, WORD_S_MAX, Pace


def _measured(pace: Pace, *, cost_s: float, step_s: float, beside_s: float = 0.0) -> None:
    for _ in range(8):
        pace.snapshot()
        pace.spent(beside_s)
        pace.stepped(steps=1, elapsed_s=step_s + cost_s, blocked_s=cost_s)


def _interval_s(*, cost_s: float, beside_s: float = 0.0, nodes: int = 1, ranks: int = 0) -> float:
    pace = Pace(nodes=nodes, now_s=0.0)
    pace.begin(ranks)
    _measured(pace, cost_s=cost_s, step_s=1.0, beside_s=beside_s)
    interval_s = pace.interval_s(0.0)
    assert interval_s is not None
    return interval_s


def _settle(pace: Pace, now_s: float = 0.0) -> int:
    """Lets the pace move for as long as it likes; returns how many notches it took."""
    for notches in range(64):
        before = pace.every
        pace.whole(notches, safe=True)
        if not pace.move(now_s, known_from=notches):
            return notches
        assert pace.every in (2 * before, before // 2)
    raise AssertionError("it swings")


@pytest.mark.parametrize(("cost_s", "interval_s"), [(1e-4, 0.1), (3e-3, 3.0), (0.03, 30.0)])
def test_pace_of_a_cheap_snapshot_takes_it_as_soon_as_it_costs_a_thousandth(cost_s: float, interval_s: float) -> None:
    assert _interval_s(cost_s=cost_s) == pytest.approx(interval_s)


@pytest.mark.parametrize("cost_s", [0.03, 0.1, 0.3])
def test_pace_of_a_snapshot_that_costs_under_one_percent_never_risks_over_thirty_seconds(cost_s: float) -> None:
    assert _interval_s(cost_s=cost_s) == pytest.approx(30.0)


@pytest.mark.parametrize(("cost_s", "interval_s"), [(0.5, 50.0), (2.0, 200.0), (60.0, INTERVAL_S_MAX)])
def test_pace_of_a_dear_snapshot_spends_one_percent_on_it(cost_s: float, interval_s: float) -> None:
    assert _interval_s(cost_s=cost_s) == pytest.approx(interval_s)


def test_pace_counts_what_snapshots_cost_beside_blocking() -> None:
    assert _interval_s(cost_s=1e-3, beside_s=4e-3) == pytest.approx(5.0)
    assert _interval_s(cost_s=0.1, beside_s=0.9) == pytest.approx(100.0)


def test_pace_of_a_cost_that_cannot_be_is_bounded() -> None:
    assert _interval_s(cost_s=0.1, beside_s=1e300) == INTERVAL_S_MAX
    assert _interval_s(cost_s=0.1, beside_s=-5.0) == pytest.approx(30.0)


def test_pace_is_never_slower_than_youngs_for_what_blocks() -> None:
    pace = Pace(nodes=2_048, now_s=0.0)
    _measured(pace, cost_s=0.1, step_s=1.0, beside_s=2.0)
    days = 10
    for _ in range(79):
        pace.failed()
    per_day = 80 / (250 + days * 2_048) * 2_048
    assert pace.failures_per_day(days * DAY_S) == pytest.approx(per_day)
    assert pace.interval_s(days * DAY_S) == pytest.approx((2 * 0.1 * DAY_S / per_day) ** 0.5)


def test_pace_of_many_ranks_leaves_the_lead_time_to_hear_of_their_snapshots() -> None:
    assert _interval_s(cost_s=1e-4, ranks=2_000) == pytest.approx(2.0)
    assert _interval_s(cost_s=1e-4, ranks=100_000) == pytest.approx(WORD_S_MAX)
    assert _interval_s(cost_s=1e-4, ranks=2) == pytest.approx(0.1)


def test_pace_is_none_before_a_snapshot_was_measured() -> None:
    pace = Pace(nodes=1, now_s=0.0)
    assert pace.interval_s(0.0) is None
    assert not pace.move(0.0, known_from=1)


@given(
    cost_s=st.floats(0.0, 1e3),
    beside_s=st.floats(0.0, 1e3),
    step_s=st.floats(1e-3, 1e3),
    nodes=st.integers(1, 100_000),
    failures=st.integers(0, 99),
)
def test_pace_moves_by_one_notch_at_a_time_to_the_most_steps_that_fit_and_stays(
    cost_s: float, beside_s: float, step_s: float, nodes: int, failures: int
) -> None:
    pace = Pace(nodes=nodes, now_s=0.0)
    _measured(pace, cost_s=cost_s, step_s=step_s, beside_s=beside_s)
    for _ in range(failures):
        pace.failed()
    _settle(pace)
    interval_s, measured_s = pace.interval_s(0.0), pace.step_s
    assert interval_s is not None
    assert measured_s is not None
    most = interval_s / measured_s
    assert pace.every <= max(1.0, most) <= max(1.0, 2 * NOTCH_SLACK * pace.every)
    assert not pace.move(0.0, known_from=0)


def test_pace_follows_a_cost_that_changes_and_comes_back() -> None:
    pace = Pace(nodes=2, now_s=0.0)
    every = []
    for cost_s in (1e-3, 1e-1, 1e-3):
        _measured(pace, cost_s=cost_s, step_s=1e-2)
        _settle(pace)
        every.append(pace.every)
    assert every == [64, 2_048, 64]


@pytest.mark.parametrize("step_s", [1e-3, 1e-2, 0.3])
def test_pace_of_short_steps_is_at_its_notch_within_half_a_minute(step_s: float) -> None:
    pace = Pace(nodes=2, now_s=0.0)
    pace.begin(2)
    heard_s, tick_s, cost_s = 1.2, 0.25, 3e-3  # What word of a move takes; how often the lead looks.
    now_s, step, last = 0.0, 0, 0.0
    while now_s < 30.0:
        now_s += tick_s
        steps = max(1, int(tick_s / step_s)) if now_s - last >= step_s else 0
        taken = (step + steps) // pace.every - step // pace.every
        step, last = step + steps, now_s if steps else last
        if taken:
            pace.snapshot()
            pace.whole(step // pace.every * pace.every, safe=True)
        if steps:
            pace.stepped(steps=steps, elapsed_s=steps * step_s + cost_s * bool(taken), blocked_s=cost_s * bool(taken))
        pace.move(now_s, known_from=step + 1 + int(heard_s / step_s))
    assert 3.0 / (2 * NOTCH_SLACK) <= pace.every * step_s <= 3.0


def test_pace_moves_again_only_once_a_step_is_whole_that_all_knew_of_the_last_move_for() -> None:
    pace = Pace(nodes=1, now_s=0.0)
    _measured(pace, cost_s=1.0, step_s=0.1)
    pace.whole(1, safe=True)
    assert pace.move(0.0, known_from=9)
    pace.whole(8, safe=True)
    assert not pace.move(0.0, known_from=20)
    pace.whole(10, safe=True)
    assert pace.move(0.0, known_from=20)


def test_pace_slows_while_snapshots_come_faster_than_their_copies_and_stays_there() -> None:
    pace = Pace(nodes=2, now_s=0.0)
    _measured(pace, cost_s=0.0, step_s=20.0)
    step = 0
    for _ in range(3):
        for _ in range(2):
            step += 1
            pace.whole(step, safe=False)
        pace.move(0.0, known_from=step)
    assert pace.every == 8
    for _ in range(5):
        step += 8
        pace.whole(step, safe=False)
        pace.whole(step, safe=True)
        pace.move(0.0, known_from=step)
    assert pace.every == 8


def test_pace_that_copies_could_not_keep_is_tried_again_after_many_that_arrived() -> None:
    pace = Pace(nodes=2, now_s=0.0)
    _measured(pace, cost_s=0.0, step_s=1.0)
    for step in (1, 2):
        pace.whole(step, safe=False)
    assert pace.move(0.0, known_from=2)
    assert pace.every == 2
    tried = []
    for number in range(2, LEAST_SNAPSHOTS + 3):
        pace.whole(2 * number, safe=False)
        pace.whole(2 * number, safe=True)
        tried.append(pace.move(0.0, known_from=2 * number))
    assert not any(tried[: LEAST_SNAPSHOTS - 1])
    assert any(tried)
    assert pace.every == 1


def test_pace_slows_while_ranks_that_drift_apart_have_no_step_in_common() -> None:
    pace = Pace(nodes=2, now_s=0.0)
    _measured(pace, cost_s=0.0, step_s=0.1)
    seen = []
    for second in range(12):
        pace.move(float(second), known_from=0)
        seen.append(pace.every)
    assert seen[:3] == [1, 1, 2]
    assert seen[-1] >= 8
    assert all(after in (before, 2 * before) for before, after in pairwise(seen))
