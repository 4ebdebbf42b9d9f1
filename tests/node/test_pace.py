"""The pace of snapshots: Young's interval, reached by notches, and never faster than copies travel."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mainspring.node.lead.watch.pace import DAY_S, INTERVAL_S_MAX, INTERVAL_S_MIN, Pace


def _measured(pace: Pace, *, cost_s: float, step_s: float) -> None:
    for _ in range(4):
        pace.snapshot()
        pace.stepped(steps=1, elapsed_s=step_s + cost_s, blocked_s=cost_s)


def test_pace_of_measured_cost_and_failures_is_youngs() -> None:
    pace = Pace(nodes=2_048, now_s=0.0)
    _measured(pace, cost_s=0.1, step_s=1.0)
    days = 10
    for _ in range(79):
        pace.failed()
    per_day = 80 / (250 + days * 2_048) * 2_048
    assert pace.failures_per_day(days * DAY_S) == pytest.approx(per_day)
    assert pace.interval_s(days * DAY_S) == pytest.approx((2 * 0.1 * DAY_S / per_day) ** 0.5)


def test_pace_is_none_before_a_snapshot_was_measured() -> None:
    pace = Pace(nodes=1, now_s=0.0)
    assert pace.interval_s(0.0) is None
    assert not pace.move(0.0, known_from=1)


@given(
    cost_s=st.floats(0.0, 1e3), step_s=st.floats(1e-3, 1e3), nodes=st.integers(1, 100_000), failures=st.integers(0, 99)
)
def test_pace_moves_by_one_notch_at_a_time_to_within_one_of_the_best_and_stays(
    cost_s: float, step_s: float, nodes: int, failures: int
) -> None:
    pace = Pace(nodes=nodes, now_s=0.0)
    _measured(pace, cost_s=cost_s, step_s=step_s)
    for _ in range(failures):
        pace.failed()
    for step in range(64):
        before = pace.every
        pace.whole(step, safe=True)
        if not pace.move(0.0, known_from=step):
            break
        assert pace.every in (2 * before, before // 2)
    interval_s, measured_s = pace.interval_s(0.0), pace.step_s
    assert interval_s is not None
    assert measured_s is not None
    assert INTERVAL_S_MIN <= interval_s <= INTERVAL_S_MAX
    best = max(1.0, interval_s / measured_s)
    assert best / 2.5 < pace.every <= max(1.0, 1.3 * best)
    assert not pace.move(0.0, known_from=0)


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
    _measured(pace, cost_s=0.0, step_s=2.0 * INTERVAL_S_MIN)
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
