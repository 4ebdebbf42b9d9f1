"""The rule of rings: what follows of what happened, as properties and by cases."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mainspring.control.service.robots.planning import part_of
from mainspring.control.service.robots.rings import (
    RingWord,
    RolloutFold,
    RolloutSeen,
    decide,
    difference,
    folded,
    judged,
    missing_episodes,
)
from mainspring.domain.answers import RobotTally
from mainspring.domain.answers.policies.rollouts import (
    RingPlan,
    RobotStanding,
    RolloutEvent,
    RolloutEventKind,
    RolloutPlan,
    RolloutRules,
    RolloutState,
)
from mainspring.domain.errors import InvalidInput

Kind = RolloutEventKind
RINGS = (RingPlan(name="lab", robots=("a", "b")), RingPlan(name="all", robots=("c", "d", "e")))
ROBOTS = [robot for ring in RINGS for robot in ring.robots]
PLAN = RolloutPlan(
    release="arm@2",
    rings=RINGS,
    before=dict.fromkeys(ROBOTS, "arm@1"),
    rules=RolloutRules(hours=1.0, unhealthy=2, watch_s=5.0),
)
BASE = RobotTally(target="", episodes=1_000, successes=900)
GOOD = {"a": RobotTally(target="", episodes=400, successes=364)}


def told(kind: Kind, at_s: float = 0.0, robot: str = "", ring: int = 0) -> RolloutEvent:
    return RolloutEvent(kind=kind, at_s=at_s, robot=robot, ring=ring)


def run(seen: RolloutSeen, *events: RolloutEvent, now_s: float = 10.0) -> RolloutFold:
    """A rollout after some events and all that follows."""
    fold = folded(PLAN, events)
    for _ in range(20):
        followed = decide(PLAN, fold, seen, now_s)
        for event in followed:
            fold.apply(event)
        if not followed:
            return fold
    raise AssertionError("it never rests")


def committed(*robots: str) -> list[RolloutEvent]:
    return [told(Kind.COMMITTED, robot=robot) for robot in robots]


@given(
    st.lists(st.tuples(st.sampled_from(list(Kind)), st.sampled_from(["", *ROBOTS, "stranger"])), max_size=30),
    st.lists(st.tuples(st.sampled_from(ROBOTS), st.integers(0, 300), st.floats(0, 1)), max_size=8),
    st.sets(st.sampled_from(ROBOTS)),
    st.floats(0, 1e5),
)
def test_rings_open_in_order_and_one_that_is_open_is_waited_for(
    happened: list[tuple[Kind, str]], counted: list[tuple[str, int, float]], offline: set[str], now_s: float
) -> None:
    """However events come: no robot of a later ring is offered before the earlier ring has one that committed; nothing
    is opened once it stopped; what is over stays over; a decision is the same for the same events."""
    tallies = {robot: RobotTally(target="", episodes=n, successes=int(n * share)) for robot, n, share in counted}
    seen = RolloutSeen(tallies=tallies, base=BASE, offline=frozenset(offline))
    fold, events = RolloutFold(PLAN), []
    for kind, robot in happened:
        if kind in (Kind.OPENED, Kind.FINISHED, Kind.WENT_BACK):  # Said by the rule alone.
            continue
        event = told(kind, robot=robot)
        if fold.state in (RolloutState.ABORTED, RolloutState.WENT_BACK, RolloutState.DONE) and not robot:
            continue
        events.append(event)
        fold.apply(event)
        followed = decide(PLAN, fold, seen, now_s)
        assert followed == decide(PLAN, folded(PLAN, events), seen, now_s)
        for each in followed:
            if each.kind is Kind.OPENED:
                assert fold.state is RolloutState.RUNNING
                assert each.ring == len(fold.opened_s)
                if each.ring:
                    ring = RINGS[each.ring - 1]
                    assert fold.count(RobotStanding.COMMITTED, ring=ring)
                    left = [one for one in ring.robots if fold.standing[one] is RobotStanding.OFFERED]
                    assert set(left) <= offline
            events.append(each)
            fold.apply(each)
        if fold.state in (RolloutState.ABORTED, RolloutState.WENT_BACK, RolloutState.DONE):
            assert not decide(PLAN, fold, seen, now_s + 1e6)


def test_ring_whose_success_excludes_the_loss_opens_the_next_which_finishes() -> None:
    seen = RolloutSeen(tallies=GOOD, base=BASE)
    begun = [told(Kind.OPENED), *committed("a", "b")]
    fold = run(seen, *begun)
    assert (fold.state, len(fold.opened_s)) == (RolloutState.RUNNING, 2)
    assert run(seen, *begun, told(Kind.OPENED, ring=1), *committed("c", "d", "e")).state is RolloutState.DONE


def test_ring_with_too_few_episodes_waits_and_says_how_many_are_missing() -> None:
    few = RolloutSeen(tallies={"a": RobotTally(target="", episodes=20, successes=18)}, base=BASE)
    begun = [told(Kind.OPENED), *committed("a", "b")]
    fold = run(few, *begun)
    assert len(fold.opened_s) == 1
    verdict = judged(PLAN, fold, few, 0, 10.0)
    assert (verdict.word, verdict.missing is not None) == (RingWord.WAITS, True)
    assert verdict.missing is not None
    enough = 20 + verdict.missing
    tally = RobotTally(target="", episodes=enough, successes=round(0.9 * enough))
    assert judged(PLAN, fold, replace(few, tallies={"a": tally}), 0, 10.0).word is RingWord.PASSED
    assert missing_episodes(RobotTally(target="", episodes=100, successes=20), BASE, 0.05) is None


def test_person_s_yes_passes_a_ring_after_the_stated_hours_and_no_sooner() -> None:
    nothing = RolloutSeen(base=BASE)
    begun = [told(Kind.OPENED), *committed("a", "b")]
    assert len(run(nothing, *begun, now_s=4_000.0).opened_s) == 1
    assert len(run(nothing, *begun, told(Kind.APPROVED), now_s=3_000.0).opened_s) == 1
    assert len(run(nothing, *begun, told(Kind.APPROVED), now_s=3_700.0).opened_s) == 2


def test_robots_that_are_not_healthy_take_it_back_from_all_also_while_paused() -> None:
    sick = [told(Kind.UNHEALTHY, robot="a"), told(Kind.UNHEALTHY, robot="b")]
    for more in ([], [told(Kind.PAUSED)]):
        fold = run(RolloutSeen(busy=frozenset("ab")), told(Kind.OPENED), *more, *sick)
        assert fold.state is RolloutState.GOING_BACK
        assert run(RolloutSeen(busy=frozenset("a"), offline=frozenset("a")), told(Kind.OPENED), *sick).state is (
            RolloutState.WENT_BACK
        )


def test_loss_that_is_proved_takes_it_back() -> None:
    seen = RolloutSeen(
        tallies={"a": RobotTally(target="", episodes=200, successes=100)}, base=BASE, busy=frozenset("a")
    )
    fold = run(seen, told(Kind.OPENED), *committed("a", "b"))
    assert (fold.state, "worse by over 5 points" in fold.why) == (RolloutState.GOING_BACK, True)


def test_more_safety_stops_than_before_pause_it() -> None:
    stops = RobotTally(target="", episodes=400, successes=380, safety_stops=90)
    fold = run(RolloutSeen(tallies={"a": stops}, base=BASE), told(Kind.OPENED), *committed("a", "b"))
    assert (fold.state, "more safety stops" in fold.why) == (RolloutState.PAUSED, True)


def test_errors_above_the_threshold_pause_it_and_those_a_person_saw_do_not_again() -> None:
    failed = [told(Kind.FAILED, robot="a"), told(Kind.FAILED, robot="b")]
    fold = run(RolloutSeen(), told(Kind.OPENED), *failed)
    assert (fold.state, "2 of 2 robots of ring lab" in fold.why) == (RolloutState.PAUSED, True)
    again = run(RolloutSeen(), told(Kind.OPENED), *failed, told(Kind.PAUSED), told(Kind.RESUMED))
    assert again.state is RolloutState.RUNNING


def test_robot_that_asked_and_does_not_commit_in_time_has_failed() -> None:
    seen = RolloutSeen(asked_s={"a": 0.0}, base=BASE)
    fold = run(seen, told(Kind.OPENED), now_s=PLAN.rules.timeout_s + 1.0)
    assert fold.standing["a"] is RobotStanding.FAILED
    assert fold.standing["b"] is RobotStanding.OFFERED


def test_ring_is_not_passed_by_robots_that_are_all_away() -> None:
    seen = RolloutSeen(tallies=GOOD, base=BASE, offline=frozenset("ab"))
    assert len(run(seen, told(Kind.OPENED)).opened_s) == 1
    assert len(run(seen, told(Kind.OPENED), *committed("a")).opened_s) == 2


@pytest.mark.parametrize(
    ("first", "of_first", "second", "of_second", "low", "high"),
    [(56, 70, 48, 80, 0.0524, 0.3339), (9, 10, 3, 10, 0.1705, 0.8090), (10, 10, 0, 20, 0.6791, 1.0)],
)
def test_interval_of_a_difference_is_newcombe_s(
    first: int, of_first: int, second: int, of_second: int, low: float, high: float
) -> None:
    """Cases a, b and g of the paper's table II, method 10."""
    assert difference(first, of_first, second, of_second) == pytest.approx((low, high), abs=1e-4)


def test_share_of_a_ring_that_is_not_healthy_takes_it_back_and_is_rounded_up() -> None:
    """Forty of a ring: 5 % of it are two; of one of two robots the least is one."""
    many = (RINGS[0], RingPlan(name="all", robots=tuple(f"r{number}" for number in range(40))))
    opened = [told(Kind.OPENED, ring=place) for place in (0, 1)]

    def follows(share: float, *sick: str, open_rings: int = 2) -> list[Kind]:
        plan = replace(PLAN, rings=many, rules=replace(PLAN.rules, unhealthy=1, unhealthy_share=share))
        events = [*opened[:open_rings], *(told(Kind.UNHEALTHY, robot=robot) for robot in sick)]
        return [event.kind for event in decide(plan, folded(plan, events), RolloutSeen(), 10.0)]

    assert Kind.ROLLED_BACK not in follows(0.05, "r0")
    assert follows(0.05, "r0", "r1") == [Kind.ROLLED_BACK]
    assert Kind.ROLLED_BACK not in follows(0.051, "r0", "r1")
    assert follows(0.05, "a") == [Kind.ROLLED_BACK]
    assert Kind.ROLLED_BACK not in follows(0.05)
    assert Kind.ROLLED_BACK not in follows(0.05, "r0", "r1", open_rings=1)  # They have been offered nothing.


@pytest.mark.parametrize("share", [0.0, -0.1, 1.01, float("nan")])
def test_share_that_cannot_be_is_refused(share: float) -> None:
    with pytest.raises(InvalidInput, match="unhealthy_share"):
        RolloutRules(unhealthy_share=share)


@pytest.mark.parametrize(("share", "count", "wanted"), [(0.07, 100, 7), (0.05, 1, 1), (0.05, 21, 2), (1.0, 9, 9)])
def test_part_of_some_robots_is_rounded_up_and_no_further(share: float, count: int, wanted: int) -> None:
    assert part_of(share, count) == wanted
