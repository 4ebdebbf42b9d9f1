"""Samples end to end: real ranks report, one of them dies, and what they said is read by API, SDK and command line."""

from __future__ import annotations

import csv
import io
import json
import os
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from mainspring.app.sdk.lab import Lab, job
from mainspring.domain.answers import NewToken
from mainspring.domain.errors import MainspringError, NotFound
from mainspring.domain.ids import TeamName
from mainspring.domain.life import JobState
from mainspring.domain.team import TeamRole
from tests.app.conftest import until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]

HOSTILE = "<img src=x onerror=alert(1)>,=1+1 \u202e" + "x" * 300
STEPS, SAVED, DIED = 24, 8, 14
PROGRAM = f"""
import os, threading
import numpy as np
import mainspring as ms
from mainspring.session import Block

session = ms.join()
restored = session.restore()
step, weights = (0, np.zeros(4)) if restored is None else (restored.step, restored.array("w/%d" % session.rank))
while step < {STEPS}:
    threading.Event().wait(0.15)
    step += 1
    loss = 1.0 / step if step != 20 else float("nan")
    session.report(step, {{"loss": loss, {HOSTILE!r}: 1.0, "inf": float("inf")}})
    if step == {SAVED}:
        session.snapshot(step, [Block.whole("w/%d" % session.rank, weights)])
    if step == {DIED} and session.generation == 1:
        threading.Event().wait(1.0)
        os.kill(os.getpid(), 9)
"""


PROGRAM_MS = str(Path(sys.executable).parent / "ms")


def ms(lab: Lab, *words: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "COLUMNS": "200", "MAINSPRING_HOME": str(lab.home.path)}
    done = subprocess.run([PROGRAM_MS, *words], env=environment, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    return done


@pytest.fixture(scope="module")
def trained(shared_lab: Lab) -> str:
    """A job that went back once, and has succeeded."""
    view = shared_lab.run(job("sampled", [sys.executable, "-c", PROGRAM], on=["h100"], replicas=2))
    until(lambda: shared_lab.status(view.id).state is JobState.SUCCEEDED, "the job to end", wait_s=200)
    return view.id


def test_every_step_is_kept_and_those_that_were_done_again_are_marked(shared_lab: Lab, trained: str) -> None:
    found = shared_lab.samples(trained)
    loss = found["loss"]
    again = list(range(SAVED + 1, DIED + 1))
    assert loss.step[~loss.lost].tolist() == [step for step in range(1, STEPS + 1) if step != 20]
    assert loss.step[loss.lost].tolist() == again
    assert loss.generation.tolist() == [1] * DIED + [2] * (STEPS - SAVED - 1)
    assert loss.value[~loss.lost].tolist() == pytest.approx([1.0 / step for step in loss.step[~loss.lost].tolist()])
    assert loss.not_finite.tolist() == [20]
    assert len(found["inf"].step) == 0
    assert (found[HOSTILE[:128]].value == 1.0).all()
    step_s = found["time/step"].value
    assert 0.14 < sorted(step_s)[len(step_s) // 2] < 0.6
    assert found.ideal_step_s is not None
    assert found.arrow().num_rows == sum(len(one.step) for one in found.values())


def test_times_of_ranks_are_shown_for_each(shared_lab: Lab, trained: str) -> None:
    told = shared_lab.rank_times(trained)
    assert (told.ranks, told.first) in [(2, (0, 1)), (0, ())]  # A job of a few seconds may have no whole window.


def test_command_line_shows_draws_and_compares(shared_lab: Lab, trained: str) -> None:
    table = ms(shared_lab, "samples", trained)
    assert "did steps again" in table.stdout
    assert "no finite number at step 20" in table.stdout
    drawn = ms(shared_lab, "samples", trained, "--metric", "loss").stdout
    assert "step" in drawn
    assert any(0x2800 <= ord(letter) < 0x2900 for letter in drawn)
    rows = list(csv.DictReader(io.StringIO(ms(shared_lab, "samples", trained, "--csv").stdout)))
    assert {row["metric"] for row in rows} >= {"loss", HOSTILE[:128], "time/step"}
    assert json.loads(ms(shared_lab, "samples", trained, "--json").stdout)["job"] == trained
    other = shared_lab.run(job("else", ["true"], on=["h100"])).id
    compared = ms(shared_lab, "compare", trained, other)
    assert "roles[0].command" in compared.stdout
    assert json.loads(ms(shared_lab, "compare", trained, other, "--json").stdout)["differences"]


def test_samples_of_others_are_not_found_and_what_cannot_be_is_refused(shared_lab: Lab, trained: str) -> None:
    shared_lab.set_team("strangers")
    theirs = NewToken(holder="eve", team=TeamName("strangers"), role=TeamRole.VIEWER)
    url, secret = shared_lab.client().servers.url, shared_lab.new_token(theirs).secret
    with httpx.Client(base_url=url, headers={"Authorization": f"Bearer {secret}"}) as client:
        assert client.get(f"/v1/jobs/{trained}/samples").status_code == 404
        assert client.get(f"/v1/jobs/{trained}/rank-times").status_code == 404
    with pytest.raises(NotFound, match="metric 'none'"):
        shared_lab.samples(trained, "none")
    with pytest.raises(MainspringError, match="name fewer"):
        shared_lab.samples(trained, "loss", "time/step", "time/data", "a", "b", "c", points=20_000)
    assert shared_lab.samples(trained, attempt=2).names == ()
