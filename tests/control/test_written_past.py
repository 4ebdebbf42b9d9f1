"""What benchmarks write straight into tables has the form of what the product writes there."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from tests.control.conftest import World

from mainspring.control import open_store
from mainspring.control.store.records import event_of, read_text
from mainspring.control.store.schema import events, jobs
from mainspring.control.store.tallies import counts_by_team
from mainspring.domain.ids import JobId
from mainspring.domain.job import JobSpec
from mainspring.domain.life import JobState

ROOT = Path(__file__).parents[2]
COUNT, TEAMS = 7, 3
JSON = ("spec", "metrics", "result", "detail")


def write_past(url: str) -> None:
    words = ["benchmarks.fleet_past", url, str(COUNT), str(TEAMS)]
    subprocess.run([sys.executable, "-m", *words], cwd=ROOT, check=True, capture_output=True, timeout=180)


def forms(row: Mapping[Any, Any]) -> dict[str, Any]:
    """What kind of value each column has; of JSON, its keys too, and that it is written as ours is."""
    found: dict[str, Any] = {name: type(value).__name__ for name, value in row.items()}
    for name in JSON:
        if name in row:
            plain = json.loads(row[name])
            assert row[name] == json.dumps(plain, separators=(",", ":"), ensure_ascii=False)
            found[name] = list(plain)
    return found


@pytest.mark.slow
def test_jobs_of_a_past_that_was_written_at_once_have_the_form_of_one_that_ran(tmp_path: Path, url: str) -> None:
    write_past(url)
    world = World(tmp_path, url=url)
    real = world.submit()
    world.run(real)
    world.beat(real, step=1_000)
    world.succeed(real)
    assert world.job(real).state is JobState.SUCCEEDED
    with world.control.store.read() as connection:
        ended = connection.execute(sa.select(jobs).order_by(jobs.c.ordinal)).mappings().all()
        told = connection.execute(sa.select(events).order_by(events.c.sequence)).all()
    world.control.store.close()

    *made, ran = ended
    assert (len(made), ran["id"]) == (COUNT, real)
    for one in made:
        assert forms(one) == forms(ran)
        assert (len(one["id"]), one["state"]) == (len(ran["id"]), ran["state"])
        read_text(JobSpec, one["spec"])
    kinds: dict[str, list[dict[str, Any]]] = {}
    for row in told:
        if row.job_id == real and row.attempt_id is None:
            kinds.setdefault(row.kind, []).append(forms(row._mapping))
    for one in made:
        own = [row for row in told if row.job_id == one["id"]]
        assert len(own) == 6
        for row in own:
            assert event_of(row).job == JobId(one["id"])
            assert row.kind == "start_promised" or forms(row._mapping) in kinds[row.kind]
            assert row.kind != "start_promised" or json.loads(row.detail).keys() == {"start_s"}


@pytest.mark.slow
def test_past_that_was_written_at_once_is_counted(url: str) -> None:
    write_past(url)
    store = open_store(url)
    with store.read() as connection:
        by_hand = sa.select(jobs.c.team, jobs.c.state, sa.func.count()).group_by(jobs.c.team, jobs.c.state)
        there = {(team, JobState(state)): count for team, state, count in connection.execute(by_hand)}
        assert counts_by_team(connection) == there
        assert sum(there.values()) == COUNT
    store.close()
