"""Entry points of a rank's program: the one place outside `app` that reads an environment variable."""

from __future__ import annotations

import atexit
import contextlib
import faulthandler
import os
import signal
import sys
import threading
import time
from types import FrameType
from typing import TYPE_CHECKING, final

from mainspring.domain.errors import InvalidMessage, NotAllowed, NotFound, Unavailable
from mainspring.domain.ports import Backoff
from mainspring.domain.wire import VIEWS_SUFFIX, StoreCredentials, ViewRefused, ViewWanted
from mainspring.session.line import AgentConnection
from mainspring.session.session import Session

if TYPE_CHECKING:
    from mainspring.objects import ObjectStore

SOCKET_VARIABLE = "MAINSPRING_SOCKET"
RENEW_PART = 0.5  # Of the time of a view's credentials, as agents do with their own.
ASK_AGAIN = Backoff(first_s=1.0, cap_s=60.0)


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


def open_view_store(url: str, view: str) -> ObjectStore:
    """Returns the object store at `url`, for a program to read a view from. May be called before `join`.

    Where the lab's agents alone hold credentials, this gives those for the view, which the job's spec must name under
    `views`: with them the view can be read, and the checkpoint that the job begins from. They are renewed while the
    process lives; a process forked from it needs its own. Elsewhere, and without an agent, it is `objects.open_store`.

    Args:
        url: Where the store is.
        view: The view's id.

    Raises:
        NotAllowed: The job does not name the view, or the store refuses.
        Unavailable: The agent does not answer.
    """
    from mainspring.objects import open_store  # A program that reads no view does without.

    path = os.environ.get(SOCKET_VARIABLE, "")
    if not path or not os.path.exists(path + VIEWS_SUFFIX):
        return open_store(url)
    held = _ViewCredentials(path + VIEWS_SUFFIX, view)
    return open_store(url, held.current().options, held.current)


def open_named_store(url: str) -> ObjectStore:
    """Returns the object store at `url`, for a program to read the checkpoints and releases that its job names.

    Where the lab's agents alone hold credentials, this gives those for what the job's spec names under `reads` and
    `evaluates`: with them that can be read, with the views that it names, and reports of what it evaluates be kept;
    nothing else can be read or written. They are renewed as those of `open_view_store` are. Elsewhere, without an
    agent, and for a job that names nothing, whose program has credentials of its own, it is `objects.open_store`.

    Args:
        url: Where the store is.

    Raises:
        NotAllowed: The job's team may not read what it names, or the store refuses.
        Unavailable: The agent does not answer.
    """
    from mainspring.objects import open_store  # A program that reads nothing does without.

    path = os.environ.get(SOCKET_VARIABLE, "")
    if not path or not os.path.exists(path + VIEWS_SUFFIX):
        return open_store(url)
    try:
        held = _ViewCredentials(path + VIEWS_SUFFIX, "")
    except NotFound:
        return open_store(url)
    return open_store(url, held.current().options, held.current)


@final
class _ViewCredentials:
    """Credentials for a view, or for all that the job names, renewed by a thread for as long as the process lives."""

    def __init__(self, path: str, view: str) -> None:
        self._path = path
        self._view = view
        self._now = self._asked()
        threading.Thread(target=self._renew, name="mainspring-view", daemon=True).start()

    def current(self) -> StoreCredentials:
        """Returns those that are good now."""
        return self._now

    def _renew(self) -> None:
        """Asks for others in time; those that are held are used until there are."""
        tries = 0
        never = threading.Event()
        while True:
            never.wait(ASK_AGAIN.wait_s(tries) if tries else self._now.lasts_s * RENEW_PART)
            try:
                self._now = self._asked()
                tries = 0
            except (NotAllowed, NotFound, Unavailable, InvalidMessage):
                tries += 1

    def _asked(self) -> StoreCredentials:
        """Returns new ones; waits for as long as those who give them are away."""
        line = AgentConnection(self._path)
        try:
            answer = line.ask(ViewWanted(view=self._view), StoreCredentials | ViewRefused, limit_s=None)
        finally:
            line.close()
        if isinstance(answer, ViewRefused):
            kind = NotFound if answer.unnamed and not self._view else NotAllowed
            raise kind(
                "read a view" if self._view else "read what a job names",
                on=self._view or "the object store",
                got=answer.reason,
                wanted=f"what its spec names under {'views' if self._view else 'reads, evaluates or views'}",
                next_step="name it there, in a job whose team may read it",
            )
        return answer


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
