"""The client of event loops: many calls at once, the same errors, lists, events, and answers that are lost."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator

import pytest

from mainspring.app.base.async_client import AsyncClient
from mainspring.app.sdk.lab import Lab, job
from mainspring.domain.answers import Submit
from mainspring.domain.errors import NotAllowed, NotFound, Unavailable
from mainspring.domain.life import JobState
from tests.app.lossy_line import LossyLine

PASS = [sys.executable, "-c", "pass"]


@pytest.fixture
def line(lab: Lab) -> Iterator[LossyLine]:
    record = lab.home.server()
    assert record is not None
    with LossyLine(record.url) as made:
        yield made


def test_calls_are_made_side_by_side(lab: Lab) -> None:
    async def work() -> None:
        async with lab.async_client() as client:
            submits = [Submit(spec=job(f"side-{index}", PASS, on=["h100"])) for index in range(8)]
            made = await asyncio.gather(*map(client.submit, submits))
            assert [view.spec.name for view in made] == [submit.spec.name for submit in submits]
            assert (await client.status(made[3].id)).spec.name == "side-3"
            assert sum((await client.job_counts()).states.values()) == 8
            assert {view.id async for view in client.every_job()} == {view.id for view in made}

    asyncio.run(work())


def test_a_job_is_watched_to_its_end_across_answers_that_are_lost(lab: Lab, line: LossyLine) -> None:
    async def work() -> None:
        async with AsyncClient(line.url, lab.home.token()) as client:
            await client.teams()
            line.lose = 2
            made = await client.submit(Submit(spec=job("watched", PASS, on=["h100"])))
            line.lose = 1
            events = [event async for event in client.watch(made.id)]
            assert (await client.status(made.id)).state is JobState.SUCCEEDED
            assert events == list(await client.job_events(made.id))

    asyncio.run(work())
    assert [view.spec.name for view in lab.ps()] == ["watched"]


def test_errors_are_the_server_s_own(lab: Lab) -> None:
    async def work() -> None:
        async with lab.async_client() as client:
            with pytest.raises(NotFound, match="no-such-job"):
                await client.status("no-such-job")
            with pytest.raises(NotFound, match="no-such-job"):
                _ = [event async for event in client.watch("no-such-job")]
        async with AsyncClient("http://127.0.0.1:9", "t") as nobody:
            with pytest.raises(Unavailable, match="ms up"):
                await nobody.ps()

    asyncio.run(work())
    with pytest.raises(NotAllowed, match="https"):
        AsyncClient("http://far.example", "t")
