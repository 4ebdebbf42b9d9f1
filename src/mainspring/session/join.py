"""The door: the one place outside `app` that reads an environment variable and the process's own stopwatch."""

from __future__ import annotations

import atexit
import os
import time

from mainspring.session.session import Session

SOCKET_VARIABLE = "MAINSPRING_SOCKET"


def join() -> Session:
    """Returns this rank's session with its agent, or one that stands alone when no agent started the program.

    Raises:
        Unavailable: An agent started the program but does not answer.
    """
    session = Session(os.environ.get(SOCKET_VARIABLE, ""), pid=os.getpid(), stopwatch=time.monotonic)
    atexit.register(session.close)
    return session
