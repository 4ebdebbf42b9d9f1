"""Steps that went wrong, as programs tell of them."""

from __future__ import annotations

from mainspring.domain import wire
from mainspring.domain.wire.events.leads import ResultEvent, StepUpsetEvent
from mainspring.node.lead.effects import Said
from tests.node.lead_agents import orders
from tests.node.lead_cluster import Cluster


def test_lead_told_again_of_a_step_that_went_wrong_tells_it_once_beside_results() -> None:
    cluster = Cluster(1, orders(2))
    cluster.until_step(3)
    report = wire.UpsetReport(step=3, upset="spike", answer="roll_back", words="loss 9", to_step=2)
    for message in (
        wire.RankUpset(rank=0, report=report, sequence=1),
        wire.RankResult(rank=0, values={"x": 1}, sequence=2),
        wire.RankUpset(rank=0, report=report, sequence=1),
    ):
        cluster.feed(Said(agent=0, message=message))
    told = {"step": 3, "upset": "spike", "answer": "roll_back", "seen": "loss 9", "to_step": 2}
    assert cluster.of_kind(StepUpsetEvent.kind) == [told]
    assert cluster.of_kind(ResultEvent.kind) == [{"x": 1}]
