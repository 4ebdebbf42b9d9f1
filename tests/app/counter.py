"""A tiny program for fault tests: a chain of numbers that any lost or doubled step would change.

    python counter.py STEPS EVERY [GATE HALT...]

Every rank folds step after step into its own number, saves every EVERY steps, and reports the end. After each step HALT
it leaves `at-HALT-RANK` in the folder GATE and waits there for a file `go-HALT`.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Sequence
from pathlib import Path

import numpy as np

import mainspring as ms
from mainspring.domain.wire import EXIT_PREEMPTED
from mainspring.session import Block, Session

STEP_S = 0.005  # A quick step of a real program: word of a stop outruns few of them.


def main(steps: int, every: int, gate: Path, halts: Sequence[int]) -> int:
    session = ms.join()
    path = f"number/{session.rank}"
    restored = session.restore()
    step, number = 0, np.array([float(session.rank + 1)])
    if restored is not None:
        step, number = restored.step, restored.array(path)
    while step < steps:
        threading.Event().wait(STEP_S)
        step += 1
        number = np.sin(number * 3.0 + step)
        stop = session.report(step, {"number": float(number[0])})
        if step % every == 0:
            session.snapshot(step, [Block.whole(path, number)], {"step": step})
        if step in halts:
            halt(session, step, gate)
        if stop:
            session.snapshot(step, [Block.whole(path, number)], {"step": step})
            return EXIT_PREEMPTED
    session.result({f"number_{session.rank}": float(number[0]), "generation": session.generation})
    return 0


def halt(session: Session, step: int, gate: Path) -> None:
    """Waits for the gate to open."""
    (gate / f"at-{step}-{session.rank}").touch()
    while not (gate / f"go-{step}").exists():
        threading.Event().wait(0.02)


if __name__ == "__main__":
    words = sys.argv[1:]
    sys.exit(main(int(words[0]), int(words[1]), Path(words[2]), [int(word) for word in words[3:]]))
