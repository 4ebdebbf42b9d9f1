"""What runs is paused, requeued, resized, ranked and drained through the client, and goes on where it had saved."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

from mainspring.app.base.client import Client
from mainspring.app.sdk.lab import Lab, job
from mainspring.domain.answers import JobView, NewHold, NewPriority, NewSize, QueuePlace
from mainspring.domain.fleet import NodeCondition
from mainspring.domain.life import AttemptState, JobState
from mainspring.domain.plan import Limit
from tests.app.conftest import counting, halted, kinds, until
from tests.app.lossy_line import LossyLine

pytestmark = pytest.mark.slow
WHY = NewHold(reason="new firmware")
STEPS = 2_000
STEPPER = """
import sys, threading
import mainspring as ms
from mainspring.domain.wire import EXIT_PREEMPTED
session, step = ms.join(), 0
while not session.report(step, {}):
    step += 1
    threading.Event().wait(0.02)
sys.exit(EXIT_PREEMPTED)
"""


def _number(rank: int) -> float:
    """What a rank of the counter comes to, however often it is interrupted."""
    number = np.array([float(rank + 1)])
    for step in range(1, STEPS + 1):
        number = np.sin(number * 3.0 + step)
    return float(number[0])


def _waits(lab: Lab, name: str) -> JobView:
    until(lambda: lab.status(name).state is JobState.QUEUED, "the job to be queued again")
    return lab.status(name)


def test_a_job_that_is_paused_and_then_requeued_goes_on_at_its_saved_steps(lab: Lab, tmp_path: Path) -> None:
    made = lab.run(counting(tmp_path, 20, steps=STEPS))
    halted(lab, made.id, tmp_path, 20)
    lab.pause(made.id, WHY)
    until(lambda: lab.status(made.id).attempts[-1].state is AttemptState.STOPPING, "the attempt to be told to end")
    (tmp_path / "go-20").touch()
    view = _waits(lab, made.id)
    assert str(view.hold).endswith(": new firmware")
    assert 20 <= view.step < STEPS
    assert lab.why(made.id).limit is Limit.PAUSED
    assert lab.resume(made.id).hold is None
    until(lambda: lab.status(made.id).step > view.step, "the job to go on")
    lab.requeue(made.id, reason="another driver")
    until(lambda: len(lab.status(made.id).attempts) == 3, "another attempt")
    ended = lab.wait(made.id)
    assert (ended.state, len(ended.attempts)) == (JobState.SUCCEEDED, 3)
    assert [ended.result[f"number_{rank}"] for rank in range(2)] == [_number(rank) for rank in range(2)]
    resumed = [event.detail["step"] for event in lab.events(made.id) if event.kind == "generation_resumed"]
    assert resumed[1] == view.step
    assert resumed == sorted(resumed)


@pytest.mark.soak
def test_a_requeue_whose_answer_is_lost_ends_one_attempt(lab: Lab, tmp_path: Path) -> None:
    record = lab.home.server()
    assert record is not None
    made = lab.run(counting(tmp_path, 20, steps=STEPS))
    halted(lab, made.id, tmp_path, 20)
    with LossyLine(record.url) as line, Client(line.url, lab.home.token()) as client:
        line.lose = 2
        client.requeue(made.id)
        assert line.seen == [f"POST /v1/jobs/{made.id}/requeue"] * 3
        for _ in range(2):  # What is one state, said again, needs no key.
            line.lose = 1
            client.drain("alpha", "alpha-0", WHY)
            line.lose = 1
            client.undrain("alpha", "alpha-0")
    (tmp_path / "go-20").touch()
    assert len(lab.wait(made.id).attempts) == 2
    assert kinds(lab, made.id).count("stop_requested") == 1


def test_an_elastic_job_is_resized_while_it_runs(lab: Lab) -> None:
    spec = job("elastic", [sys.executable, "-c", STEPPER], on=["v5e"], replicas=2, each={"replicas_min": 1})
    made = lab.run(spec)
    until(lambda: len(lab.status(made.id).attempts[-1:]) == 1, "the attempt")
    until(lambda: sum(rank.alive for rank in lab.status(made.id).attempts[-1].ranks) == 2, "two ranks")
    lab.resize(made.id, NewSize(least=1, most=1))
    until(lambda: len(lab.status(made.id).attempts[-1].nodes) == 1, "one node to go")
    until(lambda: sum(rank.alive for rank in lab.status(made.id).attempts[-1].ranks) == 1, "one rank to go on alone")
    lab.resize(made.id, NewSize(least=2, most=2))
    until(lambda: sum(rank.alive for rank in lab.status(made.id).attempts[-1].ranks) == 2, "two ranks again")
    assert len(lab.status(made.id).attempts) == 1
    lab.drain("beta", lab.status(made.id).attempts[-1].nodes[0], WHY)
    view = _waits(lab, made.id)
    assert [str(hold).partition(" by ")[0] for hold in lab.why(made.id).holds] == [
        f"node {view.attempts[-1].nodes[0]} of beta is drained"
    ]


def test_waiting_jobs_nodes_and_plans_are_listed_and_ranked_over_http(lab: Lab) -> None:
    until(lambda: len(lab.fleet()) == 2, "the clusters")
    lab.pause_cluster("alpha", WHY)
    first, second = (lab.run(job(name, ["true"], on=["h100"])) for name in ("first", "second"))
    until(lambda: [one.count for one in lab.verdicts()] == [2], "one verdict on both")
    (verdict,) = lab.verdicts()
    assert (verdict.limit, verdict.where, verdict.count, verdict.first) == (Limit.HEALTH, "alpha", 2, first.id)
    view = lab.priority(second.id, NewPriority(place=QueuePlace.FIRST))
    assert view.overrides is not None
    assert view.overrides.since_s is not None
    assert view.overrides.since_s < first.submitted_s
    nodes = lab.nodes("alpha")
    assert [(one.node.name, one.node.condition) for one in nodes] == [
        ("alpha-0", NodeCondition.CORDONED),
        ("alpha-1", NodeCondition.CORDONED),
    ]
    assert lab.nodes("alpha", after="alpha-0") == nodes[1:]
    assert [hold.hold and hold.hold.cluster for hold in lab.holds()] == ["alpha"]
    lab.resume_cluster("alpha")
    lab.wait(first.id)
    numbers = [line.number for line in lab.plans()]
    assert numbers == sorted(numbers, reverse=True)
    assert [line.number for line in lab.plans(before=numbers[0], limit=1)] == numbers[1:2]
