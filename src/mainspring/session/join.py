"""Entry point of a rank's program: the one place outside `app` that reads an environment variable."""

from __future__ import annotations

import atexit
import contextlib
import faulthandler
import os
import signal
import sys
import time
from types import FrameType

from mainspring.session.session import Session

SOCKET_VARIABLE = "MAINSPRING_SOCKET"


def join(*, standby: bool = False, reconnects: bool = False) -> Session:
    """Returns this rank's session with its agent, or one that stands alone when no agent started the program.

    From here on the agent may send SIGUSR1, upon which the process writes the stacks of all its threads to its
    standard error. SIGTERM no longer ends the process, unless the program has said what it does: a cluster that takes
    nodes back sends it to every process there, while `Session.steps` tells when to leave. It ends forked ones as ever.

    Args:
        standby: Whether a spare process of the program may be started ahead. All the program does before it joins is
            then done by a process that is perhaps never needed, and that waits here until it is.
        reconnects: Whether the process can go on as a rank of another generation: it calls `Session.next_generation`
            when its generation ends.

    Raises:
        Unavailable: An agent started the program but does not answer.
    """
    path = os.environ.get(SOCKET_VARIABLE, "")
    if path:
        with contextlib.suppress(AttributeError, OSError, ValueError):  # A program without a standard error has none.
            faulthandler.register(signal.SIGUSR1, file=sys.__stderr__ or 2, all_threads=True)
        with contextlib.suppress(ValueError):  # Signals are the main thread's.
            _outlive_sigterm()
    session = Session(path, pid=os.getpid(), stopwatch=time.monotonic, standby=standby, reconnects=reconnects)
    atexit.register(session.close)
    return session


def _outlive_sigterm() -> None:
    if signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        return
    joined = os.getpid()

    def obey_if_forked(number: int, frame: FrameType | None) -> None:
        if os.getpid() != joined:  # A worker, whose end its parent waits for.
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)

    signal.signal(signal.SIGTERM, obey_if_forked)
    signal.siginterrupt(signal.SIGTERM, False)
