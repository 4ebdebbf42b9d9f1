"""What a replica tells of itself, on its way through agent and lead."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from mainspring.domain import wire
from mainspring.domain.ids import NodeName
from mainspring.node.lead.effects import CoordinatorsUp, DurableSeen, Instant, Joined, News, Said, Tick
from mainspring.node.lead.lead import Lead
from tests.node.lead_agents import orders
from tests.node.test_rank_supervisor import ask, place, posted


def test_crew_tells_the_lead_at_once_where_a_rank_serves_and_of_its_load_as_often_as_of_progress(
    tmp_path: Path,
) -> None:
    async def life() -> None:
        async with posted(tmp_path / "work", ranks=(0,)) as post:
            await post.begin(1, place(0))
            line = await post.join(1)
            await post.welcome(line)
            for ready, in_flight in ((False, 0), (True, 1), (True, 2)):
                serving = wire.Serving(address="ws://elsewhere:8000", ready=ready, in_flight=in_flight)
                assert isinstance(await ask(line, wire.ServingReport(serving=serving)), wire.StepReply)
            told = [one.serving for one in post.of(wire.RankServing)]
            assert [(one.address, one.ready, one.in_flight) for one in told] == [
                ("ws://127.0.0.1:8000", False, 0),
                ("ws://127.0.0.1:8000", True, 1),
            ]
            post.told.clear()
            post.crew.retell()
            assert [one.serving for one in post.of(wire.RankServing)] == told[1:]
            line.close()

    asyncio.run(life())


def test_lead_tells_how_a_rank_serves_and_how_old_that_word_is_until_its_process_ends() -> None:
    lead, now = Lead(orders(1), Instant(now_s=0.0, monotonic_s=0.0)), Instant(now_s=1.0, monotonic_s=1.0)
    ready = wire.GenerationPrepared(generation=1, agent=0, ready=True)
    started = wire.RankStarted(generation=1, rank=0, pid=7)
    serving = wire.Serving(address="ws://n0:8000", ready=True, in_flight=2)
    news: list[News] = [Joined(agent=0, node=NodeName("n0")), DurableSeen(steps=()), Said(agent=0, message=ready)]
    news += [CoordinatorsUp(generation=1, addresses={}), Said(agent=0, message=started)]
    for each in [*news, Said(agent=0, message=wire.RankServing(generation=1, rank=0, serving=serving))]:
        lead.handle(each, now)
    assert lead.rank_status[0].serving == serving
    lead.handle(Tick(), Instant(now_s=5.0, monotonic_s=5.0))
    (told,) = [one.serving for one in lead.rank_status]
    assert told is not None
    assert told.silent_s == pytest.approx(4.0)
    assert lead.seconds(Instant(now_s=5.0, monotonic_s=5.0))["productive"] == pytest.approx(4.0)
    exited = wire.RankExited(generation=1, rank=0, exit_code=1)
    lead.handle(Said(agent=0, message=exited), Instant(now_s=6.0, monotonic_s=6.0))
    assert lead.rank_status[0].serving is None
