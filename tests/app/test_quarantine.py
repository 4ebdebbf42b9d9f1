"""A real server and its local engine: what is told of a node closes it once a rule acts, and its job goes elsewhere."""

from __future__ import annotations

import sys
import time

import pytest

from mainspring.app.sdk.lab import Lab, job
from mainspring.domain.answers import Reason
from mainspring.domain.fleet import NodeCondition
from mainspring.domain.hardware.health import HealthEvent, HealthSource, Repair, Scope, ScopeKind, Strategy
from mainspring.domain.ids import ClusterName, NodeName
from mainspring.domain.life import JobState
from mainspring.domain.plan import Limit
from mainspring.domain.wire import HealthBatch
from tests.app.conftest import until

pytestmark = pytest.mark.slow
PATIENT = [sys.executable, "-c", "import threading; threading.Event().wait()"]


def fallen(node: str) -> HealthBatch:
    seen = HealthEvent(
        source=HealthSource(name="kernel-log", session="boot-1", sequence=7),
        at_s=time.time(),
        scope=Scope(kind=ScopeKind.DEVICE, cluster=ClusterName("alpha"), node=NodeName(node), part="GPU-1"),
        check="xid",
        codes=("79",),
        fatal=True,
        message="GPU has fallen off the bus",
        repair=Repair.RESTART_NODE,
        strategy=Strategy.ACT,
    )
    return HealthBatch(events=(seen,))


def test_a_node_that_is_told_to_be_dead_is_closed_left_and_released(lab: Lab) -> None:
    until(lambda: len(lab.fleet()) == 2, "the clusters")
    made = lab.run(job("patient", PATIENT, on=["h100"]))
    until(lambda: lab.status(made.id).state is JobState.RUNNING, "the job to run")
    (node,) = lab.status(made.id).attempts[-1].nodes
    assert lab.tell_health(fallen(node)).taken == 1
    until(lambda: bool(lab.incidents()), "the rule to find it")
    assert [(one.done, one.nodes) for one in lab.incidents()] == [("shadow", (node,))]
    assert len(lab.status(made.id).attempts) == 1, "no job ends for a rule in shadow"
    lab.promote_rule("fatal", Reason(reason="measured"))
    until(lambda: bool(lab.closures()), "the node to be closed")
    until(lambda: len(lab.status(made.id).attempts) == 2, "the job to go elsewhere")
    until(lambda: lab.status(made.id).state is JobState.RUNNING, "it to run there")
    assert node not in lab.status(made.id).attempts[-1].nodes
    until(lambda: lab.node("alpha", node).node.condition_owner == "health", "the engine to show it")
    seen = lab.node("alpha", node)
    assert (seen.node.condition, [one.rule for one in seen.closures]) == (NodeCondition.CORDONED, ["fatal"])
    waits = lab.run(job("wide", PATIENT, on=["h100"], replicas=2))
    until(lambda: lab.why(waits.id).limit is not None, "the other to wait")
    why = lab.why(waits.id)
    assert why.limit in (Limit.HEALTH, Limit.CAPACITY)
    told = [str(hold) for hold in why.holds]
    assert told == [f"node {node} of alpha is drained by health: quarantine: {seen.closures[0].reason}"]
    lab.stop(made.id)
    lab.open_node("alpha", node, reason="it was reseated")
    until(lambda: lab.status(waits.id).state is JobState.RUNNING, "the node to take work again")
    assert lab.node("alpha", node).node.condition is NodeCondition.READY
    with lab.client() as client:
        kinds = [event.kind for event in client.all_events() if event.job is None]
    assert [kind for kind in kinds if "node_" in kind or "rule" in kind] == [
        "health_rule_promoted",
        "node_closed",
        "node_opened",
    ]
    assert [one.by for one in lab.node_history("alpha", node)][:2] != ["", ""]
