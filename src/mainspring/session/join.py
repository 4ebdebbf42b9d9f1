"""The door: the one place outside `app` that reads an environment variable and the process's own stopwatch."""

from __future__ import annotations

import atexit
import contextlib
import faulthandler
import os
import signal
import sys
import time

from mainspring.session.session import Session

SOCKET_VARIABLE = "MAINSPRING_SOCKET"


def join(*, standby: bool = False, reconnects: bool = False) -> Session:
    """Returns this rank's session with its agent, or one that stands alone when no agent started the program.

    From here on the agent may send SIGUSR1, upon which the process writes the stacks of all its threads to its
    standard error.

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
    session = Session(path, pid=os.getpid(), stopwatch=time.monotonic, standby=standby, reconnects=reconnects)
    atexit.register(session.close)
    return session
