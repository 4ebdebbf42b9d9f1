"""Work at risk, on real processes: a killed rank repeats seconds of it, and `ms status` has said how many."""

from __future__ import annotations

import sys
import threading
from pathlib import Path

import pytest

from mainspring.app.sdk.lab import Lab, job
from mainspring.domain.goodput import TimeUse
from mainspring.domain.wire.events.leads import CaughtUpEvent, SnapshotPaceEvent
from tests.app.conftest import kill, kinds, until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(150)]

RANKS = 2
LOOKS, LOOK_S = (
    60,
    0.5,
)  # Until the pace has come to rest; at Young's interval it would be snapshots of minutes by then.
LOST_S_MAX = 20.0  # Young's interval would lose all of the half minute that is looked at.
COST_S_USUAL = 0.01  # Where a snapshot of the demo's size costs more, the machine is slow, and risks the more.
PROGRAM = """
import threading
import numpy as np
import mainspring as ms
from mainspring.session import Block

session = ms.join()
restored = session.restore()
arrays = [np.zeros(15_000, dtype=np.float32) for _ in range(60)]  # As many, and as large, as the demo's.
for step in session.steps(restored.step if restored else 0, 10**6):
    threading.Event().wait(0.005)
    arrays[step % 60][step % 15_000] = step
    if session.snapshot_due(step):
        blocks = [Block.whole(f"{session.rank}/{number}", array) for number, array in enumerate(arrays)]
        session.snapshot(step, blocks)
"""


@pytest.mark.soak
def test_killed_rank_of_a_program_of_short_steps_repeats_seconds_of_work(lab: Lab, tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    view = lab.run(job("short-steps", [sys.executable, str(program)], on=["h100"], replicas=RANKS))
    until(lambda: lab.status(view.id).step > 0, "the first step")
    told = []
    for _ in range(LOOKS):
        threading.Event().wait(LOOK_S)
        risk = lab.status(view.id).attempts[-1].at_risk
        assert risk is not None
        told.append(risk)
    paces = [event for event in lab.events(view.id) if event.kind == SnapshotPaceEvent.kind]
    cost_s = float(paces[-1].detail["cost_s"])
    bound_s = LOST_S_MAX * max(1.0, cost_s / COST_S_USUAL)
    assert 0.0 < max(risk.seconds for risk in told) <= bound_s
    assert all(risk.steps <= risk.durable_steps for risk in told)
    kill(lab.status(view.id).attempts[-1].ranks[1].pid)
    until(lambda: CaughtUpEvent.kind in kinds(lab, view.id), "the lost work to be done again")
    assert lab.goodput(view.id).seconds.get(TimeUse.REPEATED, 0.0) / RANKS <= bound_s
