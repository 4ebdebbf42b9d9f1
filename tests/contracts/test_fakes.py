"""What the fakes offer beyond their ports: faults that are called by name, time and chance that repeat."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mainspring.domain.errors import Conflict, Unavailable
from mainspring.domain.fleet import AllocationPhase, Inventory, LaunchOrder, Node, NodeCondition
from mainspring.domain.ids import AllocationId, AttemptId, ChipName, ClusterName, JobId, NodeName, RoleName, draw_id
from mainspring.testing import FakeClock, FakeEngine, SeededDice

NAME = AllocationId("allocation-1")
ORDER = LaunchOrder(
    allocation=NAME,
    attempt=AttemptId("attempt-1"),
    role=RoleName("main"),
    nodes=(NodeName("n0"), NodeName("n1")),
    chip_milli=(500, 1_000),
    controller="http://127.0.0.1:1",
    token="a-secret",
)


@pytest.fixture
def clock() -> FakeClock:
    """Virtual time."""
    return FakeClock()


@pytest.fixture
def engine(clock: FakeClock) -> FakeEngine:
    """Two nodes whose agents take 5 s to obey a stop."""
    nodes = tuple(Node(name=NodeName(f"n{index}"), chip=ChipName("h100"), chips=8) for index in range(2))
    inventory = Inventory(cluster=ClusterName("alpha"), engine="fake", simulated=True, nodes=nodes)
    return FakeEngine(inventory, clock, obey_s=5.0)


def test_launch_made_to_fail_does_nothing_and_the_next_one_works(engine: FakeEngine) -> None:
    engine.fail_next("launch")
    with pytest.raises(Unavailable):
        engine.launch(ORDER)
    assert engine.observe() == ()
    engine.launch(ORDER)
    assert engine.agents_started == 2


def test_launch_whose_reply_is_dropped_has_acted(engine: FakeEngine) -> None:
    engine.drop_reply("launch")
    with pytest.raises(Unavailable):
        engine.launch(ORDER)
    assert engine.used_chip_milli() == {"n0": 500, "n1": 1_000}


def test_allocation_taken_back_ends_within_its_grace_and_says_so_only_then(
    engine: FakeEngine, clock: FakeClock
) -> None:
    engine.launch(ORDER)
    engine.take_back(NAME, "preempted", grace_s=2.0)
    (seen,) = engine.observe()
    assert (seen.phase, seen.taken) == (AllocationPhase.STOPPING, False)
    clock.advance(2.0)
    (seen,) = engine.observe()
    assert (seen.phase, seen.taken, seen.reason) == (AllocationPhase.ENDED, True, "preempted")


def test_allocation_that_was_stopped_is_not_taken_back_after_that(engine: FakeEngine, clock: FakeClock) -> None:
    engine.launch(ORDER)
    engine.stop(NAME, grace_s=10.0)
    engine.take_back(NAME, "preempted")
    clock.advance(5.0)
    (seen,) = engine.observe()
    assert (seen.phase, seen.taken) == (AllocationPhase.ENDED, False)


def test_queueing_engine_holds_what_is_launched_until_it_is_let_start(clock: FakeClock) -> None:
    nodes = tuple(Node(name=NodeName(f"n{index}"), chip=ChipName("h100"), chips=8) for index in range(2))
    engine = FakeEngine(
        Inventory(cluster=ClusterName("queue"), engine="fake", simulated=True, nodes=nodes, delegated=True), clock
    )
    engine.queueing = True
    engine.launch(ORDER)
    engine.launch(ORDER)
    (seen,) = engine.observe()
    assert (seen.phase, seen.hosts, engine.waiting()) == (AllocationPhase.PENDING, (), (NAME,))
    assert (engine.agents_started, engine.used_chip_milli()) == (0, {})
    engine.let_start(NAME)
    (seen,) = engine.observe()
    assert (seen.phase, seen.hosts) == (AllocationPhase.RUNNING, ("host-of-n0", "host-of-n1"))
    assert engine.agents_started == 2
    with pytest.raises(Conflict):
        engine.cordon(NodeName("n0"), owner="us", reason="slow")


@pytest.mark.parametrize("taken", [False, True])
def test_allocation_stopped_or_taken_back_in_the_queue_never_starts(engine: FakeEngine, *, taken: bool) -> None:
    engine.queueing = True
    engine.launch(ORDER)
    if taken:
        engine.take_back(NAME, "held for ever")
    else:
        engine.stop(NAME, grace_s=10.0)
    (seen,) = engine.observe()
    assert (seen.phase, seen.taken, engine.waiting()) == (AllocationPhase.ENDED, taken, ())
    assert engine.agents_started == 0


def test_engine_that_does_not_answer_fails_every_call(engine: FakeEngine) -> None:
    engine.launch(ORDER)
    engine.answering = False
    calls: list[Callable[[], object]] = [engine.observe, engine.inventory, lambda: engine.stop(NAME, grace_s=1.0)]
    for call in calls:
        with pytest.raises(Unavailable):
            call()
    engine.answering = True
    assert engine.observe()[0].phase is AllocationPhase.RUNNING


def test_node_taken_down_ends_its_agents_and_shows(engine: FakeEngine) -> None:
    engine.launch(ORDER)
    engine.node_down(NodeName("n0"), "power")
    seen = engine.observe()[0]
    assert (seen.phase, seen.reason) == (AllocationPhase.RUNNING, "power")
    assert engine.used_chip_milli() == {"n1": 1_000}
    assert engine.inventory().nodes[0].condition is NodeCondition.DOWN
    engine.node_up(NodeName("n0"))
    assert engine.inventory().nodes[0].condition is NodeCondition.READY


def test_agents_that_die_end_the_allocation_with_the_first_failure(engine: FakeEngine) -> None:
    engine.launch(ORDER)
    engine.end_agent(NAME, 1, exit_code=0)
    engine.end_agent(NAME, 0, exit_code=3, reason="out of memory")
    seen = engine.observe()[0]
    assert (seen.phase, seen.exit_code, seen.reason) == (AllocationPhase.ENDED, 3, "out of memory")


@pytest.mark.parametrize(("grace_s", "ends_s"), [(60.0, 5.0), (2.0, 2.0)])
def test_stop_takes_as_long_as_agents_obey_or_the_grace(
    engine: FakeEngine, clock: FakeClock, grace_s: float, ends_s: float
) -> None:
    engine.launch(ORDER)
    engine.stop(NAME, grace_s=grace_s)
    clock.advance(ends_s - 0.1)
    assert engine.observe()[0].phase is AllocationPhase.STOPPING
    clock.advance(0.1)
    assert engine.observe()[0].phase is AllocationPhase.ENDED


def test_clock_that_jumps_back_keeps_its_monotonic_time(clock: FakeClock) -> None:
    before_s = clock.now_s()
    clock.advance(10.0)
    clock.jump(-100.0)
    assert clock.now_s() == before_s - 90.0
    assert clock.monotonic_s() == 10.0


@settings(max_examples=25)
@given(st.integers(), st.lists(st.integers(1, 4_096), min_size=1, max_size=10))
def test_dice_of_one_seed_repeat_and_stay_within_their_bits(seed: int, counts: list[int]) -> None:
    one, other = SeededDice(seed, "ids"), SeededDice(seed, "ids")
    for count in counts:
        drawn = one.bits(count)
        assert drawn == other.bits(count)
        assert 0 <= drawn < 1 << count


def test_dice_of_other_seeds_or_purposes_draw_other_ids() -> None:
    dice = [SeededDice(1, "jobs"), SeededDice(2, "jobs"), SeededDice(1, "attempts")]
    drawn = [JobId(draw_id("job", each)) for each in dice for _ in range(1_000)]
    assert len(set(drawn)) == 3_000
