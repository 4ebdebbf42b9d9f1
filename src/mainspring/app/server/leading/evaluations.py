"""What has checkpoints evaluated as rules say."""

from __future__ import annotations

from functools import partial

from mainspring.app.server.leading.thread import LeadingThread
from mainspring.control import Control
from mainspring.control.server import Server
from mainspring.control.service.evaluations.carrying import EvaluationStarter
from mainspring.control.store.tokens import Caller

_PAUSE_S = 2.0  # Between two looks: checkpoints come minutes apart.


def evaluation_thread(control: Control, server: Server) -> LeadingThread:
    """Returns what has checkpoints evaluated."""
    stop = partial(_stop, control)
    starter = EvaluationStarter(control.store, control.clock, control.submit, stop, server.write_as_leader)
    return LeadingThread(server, "evaluations", starter.step, starter.forget, pause_s=_PAUSE_S)


def _stop(control: Control, job: str, caller: Caller, reason: str) -> None:
    control.steering.stop(job, caller, reason=reason)
