"""What is asked of the last plan is looked up once for all who ask."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from threading import Event, Semaphore
from typing import TYPE_CHECKING

from mainspring.control.state.latest_plan import LatestPlan, once

if TYPE_CHECKING:
    from tests.control.conftest import World

WAIT_S = 120.0


def test_what_is_asked_of_a_picture_is_looked_up_once_for_all_who_ask_and_anew_of_the_next(world: World) -> None:
    world.tick()
    picture = world.control.pictures.newest
    assert picture is not None
    looked, came, go_on = list[LatestPlan](), Semaphore(0), Event()

    @once
    def slow(of: LatestPlan) -> int:
        looked.append(of)
        assert go_on.wait(WAIT_S)
        return len(looked)

    def ask() -> int:
        came.release()
        return slow(picture)

    with ThreadPoolExecutor(4) as threads:
        asked = [threads.submit(ask) for _ in range(4)]
        for _ in asked:
            assert came.acquire(timeout=WAIT_S)
        go_on.set()
        assert [one.result(WAIT_S) for one in asked] == [1] * 4
    newer = replace(picture)
    assert (slow(picture), slow(newer), slow(newer)) == (1, 2, 2)
    assert looked == [picture, newer]
