"""The thread that has checkpoints evaluated as rules say."""

from __future__ import annotations

import logging
from functools import partial
from threading import Event, Thread
from typing import final

from mainspring.control import Control
from mainspring.control.server import Server
from mainspring.control.service.evaluations.carrying import EvaluationStarter
from mainspring.control.store.tokens import Caller
from mainspring.domain.errors import Conflict, MainspringError

_PAUSE_S = 2.0  # Between two looks: checkpoints come minutes apart.
_STEP_S = 5.0  # What is under way may take when the server stops.
_log = logging.getLogger(__name__)


@final
class EvaluationThread:
    """Has checkpoints evaluated while its server leads, until it is stopped."""

    def __init__(self, control: Control, server: Server) -> None:
        self._server = server
        stop = partial(_stop, control)
        self._starter = EvaluationStarter(control.store, control.clock, control.submit, stop, server.write_as_leader)
        self._stopping = Event()
        self._thread = Thread(target=self._run, name="mainspring-evaluations", daemon=True)

    def start(self) -> None:
        """Begins with what the last leader left."""
        self._thread.start()

    def stop(self) -> None:
        """Ends; what was not started waits for the next leader."""
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join(_STEP_S)

    def _run(self) -> None:
        while not self._stopping.wait(_PAUSE_S):
            if not self._server.leads:
                self._starter.forget()
                continue
            try:
                self._starter.step()
            except Conflict:
                self._starter.forget()
            except MainspringError as error:
                _log.warning("evaluations wait: %s", error)
            except Exception:  # noqa: BLE001  As of a sweep: the next look begins from the store.
                _log.exception("evaluations failed")
                self._starter.forget()


def _stop(control: Control, job: str, caller: Caller, reason: str) -> None:
    control.steering.stop(job, caller, reason=reason)
