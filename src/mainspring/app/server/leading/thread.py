"""The thread in which a server that leads does what follows from the store, again and again."""

from __future__ import annotations

import logging
from collections.abc import Callable
from threading import Event, Thread
from typing import final

from mainspring.control.server import Server
from mainspring.domain.errors import Conflict, MainspringError

_STEP_S = 5.0  # What is under way may take when the server stops; the next leader finds it in the store.
_log = logging.getLogger(__name__)


@final
class LeadingThread:
    """Does work while its server leads, until it is stopped. Whatever fails is tried again at the next look.

    Args:
        what: The work, in the plural, for the log.
        step: Does what is due; returns whether there is more to do already.
        forget: Called when another server leads, or a step failed: the next begins from the store.
        pause_s: Between two looks.
        wanted: Whether there is anything to do, as the operator set it up.
    """

    def __init__(
        self,
        server: Server,
        what: str,
        step: Callable[[], bool | None],
        forget: Callable[[], object] = lambda: None,
        *,
        pause_s: float,
        wanted: bool = True,
    ) -> None:
        self._server = server
        self._what = what
        self._step = step
        self._forget = forget
        self._pause_s = pause_s
        self._wanted = wanted
        self._stopping = Event()
        self._thread = Thread(target=self._run, name=f"mainspring-{what}", daemon=True)

    def start(self) -> None:
        """Begins with what the last leader left."""
        if self._wanted:
            self._thread.start()

    def stop(self) -> None:
        """Ends; what was not done waits for the next leader."""
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join(_STEP_S)

    def _run(self) -> None:
        more = False
        while more or not self._stopping.wait(self._pause_s):
            more = False
            if not self._server.leads:
                self._forget()
                continue
            try:
                more = bool(self._step()) and not self._stopping.is_set()
            except Conflict:
                self._forget()
            except MainspringError as error:
                _log.warning("%s wait: %s", self._what, error)
            except Exception:  # noqa: BLE001  As of a sweep: the next look begins from the store.
                _log.exception("%s failed", self._what)
                self._forget()
