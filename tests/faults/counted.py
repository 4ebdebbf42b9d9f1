"""A light program for the test of kills: rows of numbers that a step lost, doubled or of another job would change.

    python -m tests.faults.counted JOB STEPS PAUSE_S FOLDER [apart] [reconnects] [standby]

JOB is added to the place in an array. Every rank owns some rows, so that the end is the same for any number of ranks;
ranks meet after every step, as collectives do, in FOLDER, unless they are `apart`. Each reports its rows as the result.
"""

from __future__ import annotations

import os
import sys
import threading
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from mainspring.session import EXIT_PREEMPTED, Block, Session, Then, join
from tests.node.program import Meeting

ROWS = 6  # Whole shares for one, two and three ranks.
SAVE_EVERY = 5
_PRIME = 2**31 - 1


def advanced(rows: NDArray[np.int64], step: int, low: int, job: int) -> NDArray[np.int64]:
    """Returns the rows from `low` on after one more step."""
    places = np.arange(low, low + len(rows), dtype=np.int64)
    return (rows * 48_271 + step * 69_621 + places * 40_692 + job * 1_000_003) % _PRIME


def expected(job: int, steps: int) -> dict[str, int]:
    """Returns the result of a job that nothing disturbs."""
    rows = np.zeros(ROWS, np.int64)
    for step in range(1, steps + 1):
        rows = advanced(rows, step, 0, job)
    return {f"row-{place}": int(row) for place, row in enumerate(rows)}


def count(session: Session, meeting: Meeting, job: int, steps: int, pause_s: float) -> dict[str, int]:
    low, high = (ROWS * (session.rank + add) // session.world_size for add in (0, 1))
    rows, start = np.zeros(high - low, np.int64), 0
    restored = session.restore()
    if restored is not None:
        rows, start = restored.array("rows", (low,), (high - low,)), restored.step
    for step in session.steps(start, steps):
        threading.Event().wait(pause_s)
        rows = advanced(rows, step, low, job)
        meeting.meet()
        if step % SAVE_EVERY == 0 or session.snapshot_due(step):
            session.snapshot(step, [Block(path="rows", data=rows, global_shape=(ROWS,), start=(low,))], {"job": job})
    return {f"row-{low + place}": int(row) for place, row in enumerate(rows)}


def main() -> int:
    job = int(sys.argv[1]) + int(os.environ.get("MAINSPRING_ARRAY_INDEX", "0"))
    steps, pause_s, how = int(sys.argv[2]), float(sys.argv[3]), sys.argv[5:]
    session = join(standby="standby" in how, reconnects="reconnects" in how)
    folder = Path(sys.argv[4]) / session.attempt
    folder.mkdir(parents=True, exist_ok=True)
    while True:
        meeting = Meeting(session, folder, apart="apart" in how)
        try:
            rows = count(session, meeting, job, steps, pause_s)
        except ConnectionError:
            meeting.close()
            if "reconnects" not in how:
                threading.Event().wait()  # Until it is ended: others have failed, not this one.
            session.next_generation()
            continue
        if not session.stop_requested:
            break
        if session.left() is not Then.REJOIN or "reconnects" not in how:
            return EXIT_PREEMPTED
        meeting.close()
        session.next_generation()
    session.result(dict(rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())
