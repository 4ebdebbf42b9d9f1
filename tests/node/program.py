"""The program of attempts in tests: ranks that meet over sockets, as collectives do; any number of them can go on.

Each owns some rows of one state, whose every element depends on its place and the step alone, so that the end is
bitwise the same for any number of ranks. When a rank goes, the others' next meeting fails, in milliseconds.

Arguments: steps, seconds a step waits, folder to meet in, then words for how to behave (see below).
"""

from __future__ import annotations

import hashlib
import os
import signal
import socket
import sys
import threading
from contextlib import suppress
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from mainspring.domain.wire import EXIT_PREEMPTED, Then
from mainspring.session import Block, join
from mainspring.session.session import Session

ROWS, COLUMNS = 60, 100
ODD_STEP = 7  # Where rank 1 of the first generation misbehaves, if it is asked to.
LIE = "lie"
AGREE, DIFFER = "agree", "differ"  # Files that have the first rank of the first generation say so of devices, once.
SAVE_EVERY = 5  # Fixed, so that tests know what can be lost; other programs ask `snapshot_due`.


def advanced(state: NDArray[np.float64], step: int, low: int) -> NDArray[np.float64]:
    rows = np.arange(low, low + len(state), dtype=np.float64)[:, None]
    return state * 0.999 + (step * 0.001 + rows)


def expected_rows(steps: int) -> NDArray[np.float64]:
    state = np.zeros((ROWS, COLUMNS))
    for step in range(1, steps + 1):
        state = advanced(state, step, 0)
    return state


def digest_of(state: NDArray[np.float64]) -> str:
    return hashlib.sha256(np.ascontiguousarray(state).tobytes()).hexdigest()


class Meeting:
    """All ranks of one generation; nobody meets anybody `apart`."""

    def __init__(self, session: Session, folder: Path, *, apart: bool) -> None:
        self.folder = folder
        self.leads = session.rank == 0
        self.others: list[socket.socket] = []
        if apart:
            return
        note = folder / f"{session.attempt}-{session.generation}"  # Another has generations of these numbers.
        if self.leads:
            server = socket.create_server(("127.0.0.1", 0))
            note.with_suffix(".new").write_text(str(server.getsockname()[1]))
            note.with_suffix(".new").replace(note)
            self.others = [server.accept()[0] for _ in range(session.world_size - 1)]
            server.close()
        else:
            while (
                not self.others
            ):  # What is written there may be of a lead before, whose generations had these numbers.
                with suppress(FileNotFoundError, ConnectionRefusedError):
                    self.others = [socket.create_connection(("127.0.0.1", int(note.read_text())))]
                threading.Event().wait(0.002)

    def meet(self) -> None:
        if self.leads:
            self._hear()
            self._say()
        else:
            self._say()
            self._hear()

    def close(self) -> None:
        for other in self.others:
            other.close()

    def _say(self) -> None:
        for other in self.others:
            other.sendall(b".")

    def _hear(self) -> None:
        for other in self.others:
            if not other.recv(1):
                raise ConnectionError("a rank is gone")


def misbehave(how: list[str]) -> None:
    if "quit" in how:
        sys.exit(0)
    if "fail" in how:
        raise SystemExit("the gripper is missing")
    if "hang" in how:
        threading.Event().wait()
    if "stop" in how:
        os.kill(os.getpid(), signal.SIGSTOP)
    if "hog" in how:
        hoard = []
        while True:
            hoard.append(np.ones(1 << 20))


def replica(session: Session, folder: Path, step: int) -> Block:
    """What all ranks have; rank 1 of the first generation has something else once there is a file that says so."""
    lies = session.rank == 1 and session.generation == 1 and (folder / LIE).exists()
    data = np.full(8, step + (1e-9 if lies else 0.0))
    return Block.whole("weights", data, once=session.rank == 0, elsewhere=session.world_size > 1)


def tell_of_devices(session: Session, folder: Path, step: int) -> None:
    """Says that all agree, or that rank 1 stands alone; the step on which all agreed is left in a file."""
    agreed = folder / "agreed"
    for name in (AGREE, DIFFER):
        if session.rank or session.generation != 1 or not (folder / name).exists():
            continue
        (folder / name).unlink()
        from mainspring.domain.wire import StepTried  # The release before, which runs this program too, has none.

        if name == AGREE:
            session.tried(StepTried(step=step, equal=True, agreed_step=step - 1))
            agreed.with_suffix(".new").write_text(str(step - 1))
            agreed.with_suffix(".new").replace(agreed)
        else:
            since = int(agreed.read_text())
            told = StepTried(step=step, equal=False, ranks=(1,), device="device 0", certain=True, agreed_step=since)
            session.tried(told)


def flood() -> None:
    line = b"x" * 1023 + b"\n"
    while True:
        os.write(1, line * 64)


def train(session: Session, meeting: Meeting, steps: int, pause_s: float, how: list[str]) -> NDArray[np.float64]:
    low, high = (ROWS * (session.rank + add) // session.world_size for add in (0, 1))
    state, start = np.zeros((high - low, COLUMNS)), 0
    restored = session.restore()
    if restored is not None:
        state, start = restored.array("state", (low, 0), (high - low, COLUMNS)), restored.step
    for step in session.steps(start, steps):
        if step == ODD_STEP and session.rank == 1 and session.generation == 1:
            misbehave(how)
        state = advanced(state, step, low)
        meeting.meet()
        tell_of_devices(session, meeting.folder, step)
        threading.Event().wait(pause_s)
        session.report(step, {"loss": 1.0 / step})
        if step % SAVE_EVERY == 0 or step == steps or session.stop_requested:
            block = Block(path="state", data=state, global_shape=(ROWS, COLUMNS), start=(low, 0))
            session.snapshot(step, [block, replica(session, meeting.folder, step)], {"step": step})
    return state


def main() -> None:
    steps, pause_s, folder, how = int(sys.argv[1]), float(sys.argv[2]), Path(sys.argv[3]), sys.argv[4:]
    if "flood" in how:
        threading.Thread(target=flood, daemon=True).start()
    session = join(standby="standby" in how, reconnects="reconnects" in how)
    while True:
        meeting = Meeting(session, folder, apart="apart" in how)
        try:
            state = train(session, meeting, steps, pause_s, how)
        except (ConnectionError, BrokenPipeError):
            meeting.close()
            if "reconnects" not in how:
                threading.Event().wait()  # Until we are ended: others have failed, not this one.
            session.next_generation()
            continue
        if not session.stop_requested:
            break
        if session.left() is not Then.REJOIN or "reconnects" not in how:
            sys.exit(EXIT_PREEMPTED)
        meeting.close()
        session.next_generation()
    session.result({f"rows-{session.rank}-{session.world_size}": digest_of(state)})


if __name__ == "__main__":
    main()
