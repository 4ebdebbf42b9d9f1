"""What is told early: agents that are not heard of, and ranks that are slow, or are not any more."""

from __future__ import annotations

from mainspring.node.lead.watch.quiet import TOLD_MAX, QuietLines
from mainspring.node.lead.watch.stragglers import WINDOW_S, WINDOWS_EVEN, WINDOWS_SLOW, Stragglers


def test_agent_not_heard_of_is_quiet_long_before_its_lease_and_once() -> None:
    lines = QuietLines(15.0, 0.0)
    for agent in range(3):
        assert not lines.heard(agent, 0.0)
    quiet: list[tuple[float, int]] = []
    for tick in range(1, 4 * 12):
        now_s = tick / 4
        for agent in (0, 1):
            lines.heard(agent, now_s)
        quiet += [(now_s, agent) for agent in lines.look(now_s)]
    assert quiet == [(6.25, 2)]
    assert lines.heard(2, 12.0)
    assert not lines.heard(2, 12.1)


def test_lead_that_did_not_listen_itself_calls_nobody_quiet() -> None:
    lines = QuietLines(15.0, 0.0)
    lines.heard(0, 0.0)
    assert lines.look(0.25) == ()
    assert lines.look(20.0) == ()
    assert [tick for tick in range(40) if lines.look(20.25 + tick / 4)] == [24]


def test_many_agents_quiet_at_one_time_are_told_of_up_to_a_bound_and_forgotten() -> None:
    lines, now_s, told = QuietLines(15.0, 0.0), 0.0, 0
    for agent in range(100):
        lines.heard(agent, 0.0)
    while now_s < 100.0:
        now_s += 0.25
        told += len(lines.look(now_s))
    assert told == TOLD_MAX
    lines.heard(7, now_s)
    assert [lines.look(now_s + tick / 4) for tick in range(1, 26)][-1] == (7,)


def test_straggler_that_is_as_fast_as_the_others_again_is_taken_back() -> None:
    stragglers, now_s = Stragglers(), 0.0
    found: list[tuple[int, float]] = []
    stragglers.begin(now_s)
    for window in range(12):
        now_s += WINDOW_S
        for rank in range(5):
            stragglers.stepped(rank, steps=10, seconds={"data": 5.0 if rank == 2 and window < 5 else 0.1})
        found += [(window, slow.ratio) for slow in stragglers.look(now_s, step_s=1.0)]
    assert [window for window, _ in found] == [WINDOWS_SLOW - 1, 4 + WINDOWS_EVEN]
    assert found[1][1] == 1.0


def test_straggler_of_long_steps_is_told_of_within_three_of_them() -> None:
    stragglers, now_s, told_s = Stragglers(), 0.0, 0.0
    stragglers.begin(now_s)
    while not told_s and now_s < 200.0:
        now_s += 0.25
        if now_s % 30.0 == 0.0:
            for rank in range(5):
                stragglers.stepped(rank, steps=1, seconds={"data": 15.0 if rank == 2 else 1.0})
        told_s = now_s if stragglers.look(now_s, step_s=30.0) else 0.0
    assert told_s == 90.0
