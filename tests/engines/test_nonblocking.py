"""`NonBlockingEngine`: what a controller sees of an engine that is slow, hangs or fails."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mainspring.app.base.system import SystemClock
from mainspring.domain.errors import DamagedData, NotFound, Unavailable
from mainspring.domain.fleet import AllocationPhase, AllocationSeen
from mainspring.domain.ids import AllocationId, ClusterName, JobId, NodeName
from mainspring.domain.plan import Provision
from mainspring.domain.ports import Clock
from mainspring.engines.common.background_calls import ACTS_MAX, THREADS
from mainspring.engines.common.forwarding import CallResult, EngineCall
from mainspring.engines.common.nonblocking import NonBlockingEngine
from mainspring.testing import FakeClock, SeededDice
from tests.engines.troubled import WAIT_S, Troubled, order, small_cluster

ONE = AllocationId("allocation-1")
STALE_S = 30.0


@dataclass
class World:
    clock: FakeClock = field(default_factory=FakeClock)
    made: list[NonBlockingEngine] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.fake = small_cluster(self.clock)
        self.inner = Troubled(self.fake)
        self.engine = self.behind(self.clock)

    def behind(self, clock: Clock) -> NonBlockingEngine:
        made = NonBlockingEngine(
            self.inner, name=ClusterName("alpha"), clock=clock, inventory_s=8.0, observe_s=2.0, stale_s=STALE_S
        )
        self.made.append(made)
        return made

    def phase(self, name: str = ONE) -> AllocationPhase | None:
        found = {seen.allocation: seen for seen in self.engine.observe()}
        return found[AllocationId(name)].phase if name in found else None

    def eventually_launched(self, name: str = ONE) -> None:
        deadline = time.monotonic() + WAIT_S
        while True:
            try:
                return self.engine.launch(order(name))
            except Unavailable:
                assert time.monotonic() < deadline


@pytest.fixture
def world() -> Iterator[World]:
    made = World()
    yield made
    for engine in made.made:
        engine.close()


def test_an_engine_that_is_quick_answers_at_once(world: World) -> None:
    assert len(world.engine.inventory().nodes) == 3
    assert world.engine.observe() == ()
    world.engine.launch(order())
    assert world.phase() is AllocationPhase.RUNNING
    world.engine.stop(ONE, grace_s=60.0)
    assert world.phase() is AllocationPhase.STOPPING
    world.clock.advance(2.5)
    world.engine.observe()
    world.inner.returned("observe", 4)
    assert world.phase() is AllocationPhase.ENDED


def test_nobody_asks_a_cluster_that_nobody_asks_about(world: World) -> None:
    world.engine.inventory()
    world.engine.observe()
    world.clock.advance(1_000.0)
    threading.Event().wait(0.05)  # Anything that asks by itself would have.
    assert world.inner.begun.count("inventory") == 1


def test_answers_within_their_time_are_not_asked_for_again(world: World) -> None:
    world.engine.observe()
    for _ in range(50):
        world.engine.observe()
    assert world.inner.begun.count("observe") == 1


@pytest.mark.slow
@pytest.mark.parametrize("call", ["inventory", "observe"])
def test_a_question_that_hangs_raises_within_a_moment_and_is_answered_later(world: World, call: str) -> None:
    with world.inner.closed(call):
        for _ in range(3):
            with pytest.raises(Unavailable, match="no answer yet"):
                getattr(world.engine, call)()
    world.inner.returned(call)
    getattr(world.engine, call)()
    assert world.inner.begun.count(call) == 1


@pytest.mark.slow
def test_a_question_that_hangs_is_answered_from_before_until_that_is_too_old(world: World) -> None:
    world.engine.launch(order())
    assert world.phase() is AllocationPhase.RUNNING
    world.fake.end_agent(ONE, 0, exit_code=1)
    world.clock.advance(STALE_S)
    with world.inner.closed("observe"):
        assert world.phase() is AllocationPhase.RUNNING
        world.clock.advance(0.1)
        with pytest.raises(Unavailable, match="no answer"):
            world.phase()
    world.inner.returned("observe", 2)
    assert world.phase() is AllocationPhase.ENDED


def test_an_engine_that_fails_is_silent_in_its_own_words_once_its_answers_are_old(world: World) -> None:
    world.engine.observe()
    world.inner.error["observe"] = DamagedData("read a Claim", on="claim.json", got="nonsense", wanted="JSON")
    world.clock.advance(10.0)
    world.engine.observe()
    world.inner.returned("observe", 2)
    assert world.engine.observe() == ()
    world.clock.advance(STALE_S)
    with pytest.raises(Unavailable, match=r"could not read a Claim; on claim\.json; got nonsense; wanted JSON"):
        world.engine.observe()


def test_a_fault_of_an_engine_is_told_and_does_not_end_the_asking(world: World) -> None:
    world.inner.error["inventory"] = KeyError("nodes")
    with pytest.raises(Unavailable, match="KeyError"):
        world.engine.inventory()
    del world.inner.error["inventory"]
    world.clock.advance(8.0)
    assert len(world.engine.inventory().nodes) == 3


@pytest.mark.slow
def test_a_launch_that_hangs_goes_on_and_tells_later_how_it_ended(world: World) -> None:
    with world.inner.closed("launch"):
        for _ in range(3):
            with pytest.raises(Unavailable, match="no end of it yet"):
                world.engine.launch(order())
    world.inner.returned("launch")
    world.eventually_launched()
    assert world.inner.begun.count("launch") == 1
    assert world.phase() is AllocationPhase.RUNNING


@pytest.mark.slow
@pytest.mark.parametrize("error", [NotFound("launch", on="beta-0"), Unavailable("launch", got="munge"), KeyError("x")])
def test_what_a_slow_launch_raised_is_raised_to_who_asks_again_and_only_once(world: World, error: Exception) -> None:
    world.inner.error["launch"] = error
    with world.inner.closed("launch"), pytest.raises(Unavailable, match="no end of it yet"):
        world.engine.launch(order())
    world.inner.returned("launch")
    with pytest.raises(type(error)) as raised:
        world.engine.launch(order())
    assert raised.value is error
    del world.inner.error["launch"]
    world.eventually_launched()
    assert world.inner.begun.count("launch") == 2


@pytest.mark.slow
def test_an_order_of_nodes_that_hangs_goes_on_and_tells_later_how_it_ended(world: World) -> None:
    wanted = Provision(cluster=ClusterName("alpha"), offer="spot", nodes=2, for_job=JobId("job-1"), reason="it waits")
    with world.inner.closed("provision"):
        with pytest.raises(Unavailable, match="provision nodes"):
            world.engine.provision(wanted)
        assert world.engine.inventory().nodes
    world.inner.returned("provision")
    with pytest.raises(NotFound, match="spot"):
        world.engine.provision(wanted)
    assert world.inner.begun.count("provision") == 1


@pytest.mark.slow
def test_a_stop_waits_for_the_launch_it_follows(world: World) -> None:
    with world.inner.closed("launch"):
        with pytest.raises(Unavailable):
            world.engine.launch(order())
        with pytest.raises(Unavailable):
            world.engine.stop(ONE, grace_s=60.0)
        world.engine.stop(AllocationId("allocation-2"), grace_s=60.0)  # Another allocation's need not.
        assert world.inner.begun.count("stop allocation-1") == 0
    world.inner.returned("stop", 2)
    world.engine.stop(ONE, grace_s=60.0)
    assert world.inner.begun.count("stop allocation-1") == 1
    assert world.phase() in (AllocationPhase.STOPPING, AllocationPhase.ENDED)


@pytest.mark.slow
def test_a_stop_with_another_grace_is_another_stop(world: World) -> None:
    world.engine.launch(order())
    with world.inner.closed("stop"):
        for grace_s in (60.0, 5.0, 60.0, 5.0):
            with pytest.raises(Unavailable):
                world.engine.stop(ONE, grace_s=grace_s)
    world.inner.returned("stop", 2)
    for grace_s in (60.0, 5.0):
        world.engine.stop(ONE, grace_s=grace_s)
    assert world.inner.begun.count("stop") == 2


@pytest.mark.slow
def test_results_nobody_asked_for_are_forgotten(world: World) -> None:
    world.engine.launch(order())
    with world.inner.closed("stop"), pytest.raises(Unavailable):
        world.engine.stop(ONE, grace_s=60.0)
    world.inner.returned("stop")
    world.clock.advance(STALE_S + 1.0)
    world.engine.stop(ONE, grace_s=60.0)
    assert world.inner.begun.count("stop") == 2, "a stop asked for much later is sent"


@pytest.mark.slow
def test_a_launch_that_returned_is_never_absent_from_an_answer_that_came_from_before(world: World) -> None:
    world.engine.observe()
    world.clock.advance(3.0)
    with world.inner.closed("observe replies"):
        world.engine.observe()
        world.inner.reached("observe replies", 2)
        world.engine.launch(order())
        seen = world.engine.observe()
        assert seen == (
            AllocationSeen(
                allocation=ONE,
                phase=AllocationPhase.PENDING,
                nodes=(NodeName("alpha-0"),),
                reason="not looked at since",
            ),
        )
    world.inner.returned("observe", 3)
    assert world.phase() is AllocationPhase.RUNNING
    assert world.inner.begun.count("observe") == 3


@pytest.mark.slow
def test_what_a_stop_took_runs_in_no_answer_that_came_from_before(world: World) -> None:
    world.engine.launch(order())
    assert world.phase() is AllocationPhase.RUNNING
    world.clock.advance(3.0)
    with world.inner.closed("observe replies"):
        world.engine.observe()
        world.inner.reached("observe replies", 2)
        world.engine.stop(ONE, grace_s=60.0)
        world.engine.stop(AllocationId("allocation-2"), grace_s=60.0)
        world.clock.advance(0.2)
        assert world.phase() is AllocationPhase.STOPPING
        assert world.phase("allocation-2") is AllocationPhase.STOPPING, "not known to be gone"
    world.inner.returned("observe", 3)
    assert world.phase() is AllocationPhase.ENDED
    assert world.phase("allocation-2") is None


def test_a_cordon_shows_in_the_next_inventory(world: World) -> None:
    world.engine.inventory()
    world.engine.cordon(NodeName("alpha-1"), owner="ada", reason="noisy fan")
    assert world.engine.inventory().nodes[1].condition_owner == "ada"
    world.engine.uncordon(NodeName("alpha-1"), owner="ada")
    assert world.engine.inventory().nodes[1].condition_owner == ""


@pytest.mark.slow
def test_many_cordons_on_a_slow_cluster_are_under_way_at_once_and_hold_up_no_launch(world: World) -> None:
    nodes = [NodeName(f"alpha-{index}") for index in range(3)]
    with world.inner.closed("cordon"):
        for node in nodes:
            with pytest.raises(Unavailable, match="a node"):
                world.engine.cordon(node, owner="ada", reason="noisy fan")
        world.inner.reached("cordon", len(nodes))
        world.eventually_launched()
    world.inner.returned("cordon", len(nodes))
    for node in nodes:
        world.engine.cordon(node, owner="ada", reason="noisy fan")
    assert world.inner.begun.count("cordon") == len(nodes), "asked for again they tell what came of them"


@pytest.mark.slow
def test_acts_beyond_the_bound_are_refused_until_there_is_room(world: World) -> None:
    engine = world.behind(SystemClock())
    with world.inner.closed("stop"):
        for index in range(ACTS_MAX):
            with pytest.raises(Unavailable, match="no end of it yet"):
                engine.stop(AllocationId(f"allocation-{index}"), grace_s=1.0)
        with pytest.raises(Unavailable, match=f"{ACTS_MAX} others that wait"):
            engine.stop(AllocationId("one-more"), grace_s=1.0)
        assert world.inner.begun.count("stop") == THREADS
    world.inner.returned("stop", ACTS_MAX)
    with suppress(Unavailable):
        engine.stop(AllocationId("one-more"), grace_s=1.0)
    world.inner.returned("stop", ACTS_MAX + 1)


@pytest.mark.slow
def test_close_ends_every_thread_though_the_engine_hangs(world: World) -> None:
    before = set(threading.enumerate())
    engine = world.behind(world.clock)
    mine = [thread for thread in threading.enumerate() if thread not in before]
    with world.inner.closed("observe"), world.inner.closed("stop"):
        with pytest.raises(Unavailable):
            engine.observe()
        with pytest.raises(Unavailable):
            engine.stop(ONE, grace_s=1.0)
        engine.close()
        for call in (engine.inventory, engine.observe, lambda: engine.stop(AllocationId("2"), grace_s=1.0)):
            with pytest.raises(Unavailable, match="closed"):
                call()
    for thread in mine:
        thread.join(WAIT_S)
    assert not any(thread.is_alive() for thread in mine)


def after_a_while(gate: str) -> None:
    if gate == "launch":
        threading.Event().wait(0.04)


@pytest.mark.slow
def test_many_acts_on_a_slow_cluster_keep_their_caller_for_a_moment_in_all(world: World) -> None:
    engine = world.behind(SystemClock())
    world.inner.dawdle = after_a_while
    begun = time.monotonic()
    for index in range(400):
        with suppress(Unavailable):
            engine.launch(order(f"allocation-{index}"))
    took_s = time.monotonic() - begun
    assert took_s < 10.0, "one after the other they take 16 s"
    world.inner.returned("launch", 400)
    assert len(engine.observe()) == 400


@pytest.mark.slow
@settings(max_examples=25)
@given(seed=st.integers(0, 2**32), words=st.lists(st.sampled_from("lsoiw"), min_size=20, max_size=120))
def test_however_slow_and_faulty_the_cluster_what_returned_holds(seed: int, words: list[str]) -> None:
    """A launch that returned is never absent, a stop that returned never undone, and no allocation has two calls."""
    world = World()
    dice, lock, busy = SeededDice(seed), threading.Lock(), set[str]()
    launched: set[AllocationId] = set()
    asked_to_stop: set[AllocationId] = set()
    stopped: set[AllocationId] = set()

    def dawdle(_: str) -> None:
        with lock:
            drawn = dice.bits(8)
        if drawn < 100:
            threading.Event().wait(drawn / 20_000)
        if drawn > 230:
            raise Unavailable("reach it", got="a fault")

    def alone(name: str, act: str) -> None:
        with lock:
            assert name not in busy, f"{act} while another call is under way for {name}"
            busy.add(name)

    class Alone(Troubled):
        def _forward(self, call: EngineCall) -> CallResult:
            if not call.about:
                return super()._forward(call)
            alone(call.about, call.call)
            try:
                return super()._forward(call)
            finally:
                busy.discard(call.about)

    world.inner = Alone(world.fake)
    world.inner.dawdle = dawdle
    engine = world.behind(world.clock)
    for index, word in enumerate(words):
        name = AllocationId(f"allocation-{index % 3}")
        try:
            match word:
                case "l" if name not in asked_to_stop:  # Controllers launch nothing that they have begun to stop.
                    engine.launch(order(name))
                    launched.add(name)
                case "s":
                    asked_to_stop.add(name)
                    engine.stop(name, grace_s=1_000.0)
                    stopped.add(name)
                case "o":
                    phases = {seen.allocation: seen.phase for seen in engine.observe()}
                    assert launched - stopped <= phases.keys()
                    live = {each for each, phase in phases.items() if phase in ("pending", "running")}
                    assert not live & stopped
                case "i":
                    engine.inventory()
                case _:
                    world.clock.advance(3.0)
        except Unavailable:
            pass
    engine.close()
    world.engine.close()
