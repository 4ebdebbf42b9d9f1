"""What a follower has read by the time it leads: the same as whoever reads everything then."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tests.control.conftest import ADMIN

from mainspring.control.state.active_state import ActiveState
from mainspring.domain.answers import NewHold
from mainspring.domain.life import AttemptState
from mainspring.domain.wire.events.leads import GenerationSteppingEvent, RankExitedEvent

if TYPE_CHECKING:
    from tests.control.conftest import World


def test_state_that_was_followed_and_is_taken_over_is_that_which_is_read_anew(world: World) -> None:
    followers = [ActiveState() for _ in range(3)]
    looks = 0

    def look() -> None:
        nonlocal looks
        looks += 1
        with world.control.store.read() as connection:
            for number, follower in enumerate(followers):
                if looks % (number + 1) == 0:
                    follower.refresh(connection, world.clock.now_s())

    def tick(count: int) -> None:
        for _ in range(count):
            for _ in world.loop.steps():
                look()
            world.clock.advance(1.0)

    look()
    ends, loses, waits = world.submit(), world.submit(), world.submit(world.spec(replicas=4))
    later = world.submit(world.spec("later", after=(ends,)))
    for job in (ends, loses):
        tick(2)
        world.register(job)
        world.beat(job, (GenerationSteppingEvent.kind, {"generation": 1, "step": 0}), step=3)
        look()
    world.control.steering.pause(waits, NewHold(reason="later"), ADMIN)
    world.beat(loses, (RankExitedEvent.kind, {"rank": 0, "exit_code": 1, "reason": "a fault"}))
    world.end_agents(loses, exit_code=1)
    tick(2)
    world.beat(ends, step=9, outcome=AttemptState.SUCCEEDED)
    world.end_agents(ends, exit_code=0)
    tick(3)
    world.register(later)
    world.submit()
    tick(1)
    with world.control.store.read() as connection:
        read = ActiveState()
        read.refresh(connection, world.clock.now_s())
        assert (len(read.attempts), len(read.jobs)) == (3, 4)
        for follower in followers:
            follower.take_over(connection)
            follower.refresh(connection, world.clock.now_s())
            assert _seen(follower, world) == _seen(read, world)


def _seen(state: ActiveState, world: World) -> dict[str, Any]:
    snapshot = state.snapshot(world.clock.now_s())
    return {
        "jobs": state.jobs,
        "specs": state.specs,
        "attempts": state.attempts,
        "allocations": sorted(state.allocations, key=lambda one: one.id),
        "parts": dict(state.parts),
        "doomed": state.doomed,
        "bereaved": dict(state.bereaved),
        "plan": state.plan_number,
        "waiting": sorted(snapshot.pending.jobs),
        "avoided": state.avoidance.of_all(world.clock.now_s(), {}),
    }
