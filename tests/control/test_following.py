"""A controller that follows another answers what only plans tell, from what it knows itself."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING, TypeVar

import pytest
from tests.control.conftest import World

from mainspring.control import AgentAccess, Control, Step, open_store
from mainspring.control.state.latest_plan import COPY_S, LatestPlans
from mainspring.domain.answers import AddNodes, WhatIf
from mainspring.domain.ids import ClusterName
from mainspring.testing import SeededDice

if TYPE_CHECKING:
    from mainspring.control import Loop

Value = TypeVar("Value")
pytestmark = pytest.mark.slow


class Follower:
    """Another controller on the world's store, whose loop ticks when somebody waits for it."""

    def __init__(self, world: World) -> None:
        self.control = Control(
            store=open_store(world.url),
            engines=dict(world.clusters),
            clock=world.clock,
            dice=SeededDice(99, "follower"),
            access=AgentAccess(controller_urls=("http://127.0.0.1:2",), objects_url="file:///objects", key="a key"),
        )
        self.loop: Loop = self.control.new_loop()
        self.planned = 0
        assert self.loop.tick() is Step.FOLLOWING

    def ask(self, question: Callable[[], Value]) -> Value:
        with ThreadPoolExecutor(1) as threads:
            answer, done = threads.submit(question), Event()
            answer.add_done_callback(lambda _: done.set())
            while not done.wait(0.02):
                if self.control.wake.is_set():
                    self.control.wake.clear()
                    assert self.loop.tick() is Step.FOLLOWING
                    self.planned += 1
            return answer.result()


@pytest.fixture
def world(tmp_path: Path, postgres_url: str) -> Iterator[World]:
    made = World(tmp_path, url=postgres_url)
    yield made
    made.control.store.close()


@pytest.fixture
def follower(world: World) -> Iterator[Follower]:
    world.tick(2)
    made = Follower(world)
    yield made
    made.control.store.close()


def test_follower_shows_the_plan_that_would_be_made_now_and_what_would_start_a_job(
    world: World, follower: Follower
) -> None:
    running = world.submit(world.spec("running", replicas=4))
    world.run(running)
    waits = [world.submit(world.spec("waits", replicas=4)) for _ in range(3)]
    world.tick(2)
    questions, own = world.control.questions, follower.control.questions
    asked, answered = questions.plan(), follower.ask(own.plan)
    assert answered.counts["waits"] == asked.counts["waits"] > 0
    assert [one.limit for one in answered.waits] == [one.limit for one in asked.waits]
    assert answered.number >= asked.number
    last = waits[-1]
    world.tick(round(COPY_S) + 1)
    told, known = follower.ask(lambda: own.why(last, remedies=True)), questions.why(last, remedies=True)
    assert told.remedies == known.remedies
    more = WhatIf(add_nodes=(AddNodes(cluster=ClusterName("west"), nodes=8),))
    assert follower.ask(lambda: own.what_if(more)).sooner == questions.what_if(more).sooner
    seen, shown = follower.ask(own.glance), questions.glance()
    assert (seen.clusters[0].chips_held, seen.queue[1].jobs) == (shown.clusters[0].chips_held, shown.queue[1].jobs)
    assert [job.job for job in seen.jobs] == [job.job for job in shown.jobs]


def test_follower_plans_once_for_those_who_ask_at_one_time_and_for_nobody_else(
    world: World, follower: Follower
) -> None:
    world.submit()
    follower.ask(follower.control.questions.plan)
    assert follower.planned == 1
    follower.ask(follower.control.questions.glance)
    assert follower.planned == 1
    world.tick(round(COPY_S) + 1)
    follower.ask(follower.control.questions.plan)
    assert follower.planned == 2
    assert follower.control.pictures.newest is None, "whether it leads is told by whether it plans"


def test_follower_that_was_asked_takes_over_as_one_that_was_not(world: World, follower: Follower) -> None:
    first = world.submit()
    world.run(first)
    follower.ask(follower.control.questions.plan)
    second = world.submit(world.spec("second"))
    world.loop.resign()
    assert follower.loop.tick() is Step.RECORDED
    world.clock.advance(1)
    assert follower.loop.tick() is Step.RECORDED
    assert len(world.job(second).attempts) == 1
    assert follower.control.questions.plan().number > 0
    assert not follower.control.pictures.following


def test_controller_that_neither_leads_nor_follows_keeps_nobody_waiting() -> None:
    pictures = LatestPlans()
    assert pictures.shown(0.0, lambda: pytest.fail("nobody is to be woken")) is None
