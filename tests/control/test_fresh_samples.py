"""What a server was told just now is read once by its loop, and who tells much waits for it."""

from __future__ import annotations

from collections.abc import Sequence
from threading import Event, Thread

from mainspring.control.store.nodes.samples import FRESH_MAX, FULL, FreshSamples, Told
from mainspring.domain.hardware.health import HealthEvent, HealthSource, Scope, ScopeKind
from mainspring.domain.ids import ClusterName, NodeName

LONG_S = 300.0


def _source(number: int) -> HealthSource:
    return HealthSource(name="watcher", session="s", sequence=number)


def _told(first: int, count: int) -> Sequence[Told]:
    scope = Scope(kind=ScopeKind.NODE, cluster=ClusterName("hall"), node=NodeName("n1"))
    return [
        Told(teller="t", event=HealthEvent(source=_source(number), at_s=1.0, scope=scope, check="disk"))
        for number in range(first, first + count)
    ]


def test_what_is_told_is_kept_for_a_loop_that_leads_alone_and_taken_once() -> None:
    fresh = FreshSamples()
    fresh.put(_told(0, 1))
    assert fresh.take("t", _source(0)) is None
    fresh.turn(leads=True)
    (one,) = _told(1, 1)
    fresh.put([one])
    assert (fresh.take("t", _source(1)), fresh.take("t", _source(1))) == (one.event, None)
    fresh.put([one])
    fresh.turn(leads=False)
    fresh.turn(leads=True)
    assert fresh.take("t", _source(1)) is None


def test_what_the_loop_read_before_it_was_kept_goes_with_its_next_turn_and_nothing_else_does() -> None:
    fresh = FreshSamples()
    fresh.turn(leads=True)
    fresh.put(_told(0, 1))  # Of which the loop has read the row by now.
    fresh.turn(leads=True)
    fresh.put(_told(1, 1))
    fresh.done()
    assert fresh.take("t", _source(0)) is None
    assert fresh.take("t", _source(1)) is not None


def test_no_more_is_kept_than_there_is_room_for() -> None:
    fresh = FreshSamples()
    fresh.turn(leads=True)
    for first in range(0, FRESH_MAX + 2_000, 500):
        fresh.put(_told(first, 500))
    assert sum(fresh.take("t", _source(number)) is not None for number in range(FRESH_MAX + 2_000)) == FRESH_MAX


def _wait(fresh: FreshSamples, waited: Event) -> None:
    fresh.wait_for_room()
    waited.set()


def test_who_tells_much_waits_until_the_loop_has_read_or_leads_no_more() -> None:
    for leads in (True, False):
        fresh, waited = FreshSamples(room_s=LONG_S), Event()
        fresh.turn(leads=True)
        fresh.wait_for_room()  # There is room.
        fresh.put(_told(0, FULL))
        teller = Thread(target=_wait, args=(fresh, waited))
        teller.start()
        assert not waited.wait(0.2)
        fresh.turn(leads=leads)
        if leads:
            assert not waited.wait(0.2)
            fresh.done()
        assert waited.wait(LONG_S)
        teller.join()
