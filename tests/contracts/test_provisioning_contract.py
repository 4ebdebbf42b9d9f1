"""The promise of `Provisioning`, held by every adapter that can order nodes, and the fake."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from threading import Event
from typing import Protocol

import pytest
from tests.contracts.nodes_on_kubernetes import KubernetesOrdering, serve_requests

from mainspring.domain.errors import Conflict, NotFound
from mainspring.domain.fleet import Inventory, NodeCondition, Offer
from mainspring.domain.ids import ChipName, ClusterName, JobId
from mainspring.domain.plan import Provision
from mainspring.domain.ports import Engine, Provisioning
from mainspring.engines.common.nonblocking import NonBlockingEngine
from mainspring.testing import FakeClock, FakeEngine
from mainspring.testing.kubernetes import KubernetesServer, kubernetes_missing

H100 = ChipName("h100")
OFFER = Offer(name="spot", chip=H100, chips=8, nodes_max=4, lead_time_s=600.0, dollars_per_chip_hour=2.0, spot=True)
WANTED = Provision(cluster=ClusterName("alpha"), offer="spot", nodes=2, for_job=JobId("job-1"), reason="it waits")


class Ordering(Protocol):
    """One engine under test, of a cluster without a node, which makes the offer `OFFER`."""

    def engine(self) -> Engine:
        """Returns a new adapter to the same cluster, as after a restart of the controller."""
        ...

    def deliver(self) -> None:
        """Lets all nodes come that were ordered."""
        ...

    def deny(self, words: str) -> None:
        """Has the cluster say that they will not."""
        ...

    def until(self, condition: Callable[[], bool]) -> None:
        """Lets a little time pass until the condition holds."""
        ...


class FakeOrdering:
    """The fake, behind what lets nobody wait."""

    def __init__(self) -> None:
        self._clock = FakeClock()
        bare = Inventory(cluster=WANTED.cluster, engine="fake", simulated=True, nodes=(), offers=(OFFER,))
        self._fake = FakeEngine(bare, self._clock)
        self._made: list[NonBlockingEngine] = []

    def engine(self) -> Engine:
        made = NonBlockingEngine(
            self._fake, name=WANTED.cluster, clock=self._clock, inventory_s=0.0, observe_s=0.0, stale_s=60.0
        )
        self._made.append(made)
        return made

    def deliver(self) -> None:
        self._clock.advance(OFFER.lead_time_s)

    def deny(self, words: str) -> None:
        self._fake.withhold("spot", words)

    def until(self, condition: Callable[[], bool]) -> None:
        for _ in range(1_000):
            if condition():
                return
            self._clock.advance(0.01)
            Event().wait(0.001)  # Answers come by other threads.
        raise AssertionError("it never came about")

    def close(self) -> None:
        for each in self._made:
            each.close()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KubernetesServer]:
    if missing := kubernetes_missing():
        pytest.skip(missing)
    with KubernetesServer(tmp_path_factory.mktemp("kubernetes")) as started:
        serve_requests(started)
        yield started


@pytest.fixture(params=["fake", pytest.param("kubernetes", marks=pytest.mark.slow)])
def ordering(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Ordering]:
    if request.param == "fake":
        made: FakeOrdering | KubernetesOrdering = FakeOrdering()
    else:
        made = KubernetesOrdering(tmp_path, request.getfixturevalue("server"), requests=True)
    yield made
    made.close()


def order(engine: Engine, wanted: Provision = WANTED) -> None:
    assert isinstance(engine, Provisioning)
    engine.provision(wanted)


def coming(engine: Engine) -> int:
    """Returns how many nodes are shown as coming, each with what it will have."""
    found = [node for node in engine.inventory().nodes if node.condition is NodeCondition.COMING]
    assert all((node.chip, node.chips) == (H100, 8) and "job-" in node.condition_reason for node in found)
    return len(found)


def ready(engine: Engine) -> int:
    nodes = engine.inventory().nodes
    return sum(node.condition is NodeCondition.READY and not node.foreign_chip_milli for node in nodes)


def test_nodes_that_are_ordered_are_coming_until_they_are_there(ordering: Ordering) -> None:
    engine = ordering.engine()
    assert engine.inventory().offers == (OFFER,)
    order(engine)
    ordering.until(lambda: coming(engine) == 2)
    (shown,) = engine.inventory().orders
    assert (shown.cluster, shown.offer, shown.job, shown.nodes) == ("alpha", "spot", "job-1", 2)
    assert engine.inventory().offers == (replace(OFFER, nodes_max=2),)
    ordering.deliver()
    ordering.until(lambda: ready(engine) == 2)
    assert coming(engine) == 0
    assert engine.inventory().orders == ()
    assert engine.inventory().offers == (replace(OFFER, nodes_max=2),), "what has come can come no second time"


def test_an_order_that_is_under_way_is_given_once_however_often_it_is_said(ordering: Ordering) -> None:
    engine = ordering.engine()
    order(engine)
    order(engine)
    other = ordering.engine()
    order(other, replace(WANTED, nodes=1, reason="it waits still"))
    ordering.until(lambda: coming(other) == 2)
    order(other, replace(WANTED, nodes=1, for_job=JobId("job-2")))
    ordering.until(lambda: coming(other) == 3)
    assert {one.job: one.nodes for one in other.inventory().orders} == {"job-1": 2, "job-2": 1}


def test_what_is_not_offered_is_refused(ordering: Ordering) -> None:
    engine = ordering.engine()
    with pytest.raises(NotFound, match="cheap"):
        order(engine, replace(WANTED, offer="cheap"))
    with pytest.raises(Conflict, match="4"):
        order(engine, replace(WANTED, nodes=5))
    assert engine.inventory().orders == ()


def test_an_order_that_is_not_met_ends_and_its_offer_is_withheld_in_the_clusters_words(ordering: Ordering) -> None:
    engine = ordering.engine()
    order(engine)
    ordering.until(lambda: coming(engine) == 2)
    ordering.deny("no such machines in this zone")
    ordering.until(lambda: engine.inventory().orders == ())
    assert coming(engine) == 0
    (shown,) = ordering.engine().inventory().offers
    assert "no such machines in this zone" in shown.withheld
    with pytest.raises(Conflict, match="no such machines"):
        order(engine)
