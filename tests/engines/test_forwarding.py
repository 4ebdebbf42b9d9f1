"""The base of proxies: every call of the port arrives as it was made, and every call of the port is there."""

from __future__ import annotations

import inspect
from dataclasses import replace
from typing import final

import pytest

from mainspring.domain.errors import InvalidMessage, NotFound
from mainspring.domain.fleet import AllocationPhase, EndedBefore
from mainspring.domain.ids import AllocationId, ClusterName, JobId, NodeName
from mainspring.domain.plan import Provision
from mainspring.domain.ports import Engine, Forgetting, Provisioning
from mainspring.engines.common.forwarding import CALLS, CallResult, EngineCall, ForwardingEngine, perform
from mainspring.testing import FakeClock, FakeEngine

from .troubled import order, small_cluster

NAME = AllocationId("allocation-1")
NODES = Provision(cluster=ClusterName("alpha"), offer="spot", nodes=2, for_job=JobId("job-1"), reason="it waits")


@final
class Noting(ForwardingEngine):
    """Notes every call, and passes it on."""

    def __init__(self, engine: FakeEngine) -> None:
        self.engine = engine
        self.noted: list[EngineCall] = []

    def _forward(self, call: EngineCall) -> CallResult:
        self.noted.append(call)
        return perform(self.engine, call)


def test_the_calls_are_those_of_the_port() -> None:
    named = {name for name, member in vars(Engine).items() if inspect.isfunction(member) and not name.startswith("_")}
    beside = {"forget_ended": Forgetting, "provision": Provisioning}
    assert set(CALLS) == named | beside.keys()
    for name in CALLS:
        port = beside.get(name, Engine)
        assert inspect.signature(getattr(port, name)) == inspect.signature(getattr(ForwardingEngine, name))


def test_every_call_arrives_as_it_was_made_and_its_answer_comes_back() -> None:
    clock = FakeClock()
    inner = small_cluster(clock)
    engine = Noting(inner)
    node = NodeName("alpha-1")
    assert engine.inventory() == inner.inventory()
    engine.launch(replace(order(), attestation="whose I am"))
    assert engine.observe() == inner.observe()
    assert engine.attestation(NAME) == "whose I am"
    inner.write_log(NAME, 3, b"hello there")
    assert engine.logs(NAME, rank=3, since=6, limit=2).data == b"th"
    engine.cordon(node, owner="ada", reason="noisy fan")
    assert inner.inventory().nodes[1].condition_reason == "noisy fan"
    engine.uncordon(node, owner="ada")
    assert engine.inventory() == inner.inventory()
    engine.stop(NAME, grace_s=0.0)
    assert engine.observe()[0].phase is AllocationPhase.ENDED
    assert engine.forget_ended(EndedBefore(time_s=clock.now_s(), kept=(), limit=9)) == 0, "of an engine that cannot"
    with pytest.raises(NotFound, match="spot"):
        engine.provision(NODES)
    assert {call.call for call in engine.noted} == set(CALLS)
    assert engine.noted[-1].subject == "spot for job-1"
    assert [call.about for call in engine.noted if call.call in ("launch", "stop", "logs")] == [NAME] * 3


@pytest.mark.parametrize("call", [EngineCall(call=name) for name in ("reboot", "launch", "provision", "_settle")])
def test_what_is_no_call_of_the_port_is_refused(call: EngineCall) -> None:
    with pytest.raises(InvalidMessage, match=call.call):
        perform(small_cluster(FakeClock()), call)
