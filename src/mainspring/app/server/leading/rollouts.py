"""What moves rollouts on."""

from __future__ import annotations

from mainspring.app.server.leading.thread import LeadingThread
from mainspring.control import Control
from mainspring.control.server import Server
from mainspring.control.service.robots.rollouts import Rollouts

_PAUSE_S = 2.0  # Between two looks: robots ask once a minute.


def rollout_thread(control: Control, server: Server) -> LeadingThread:
    """Returns what moves rollouts on."""
    moving = Rollouts(control.store, control.clock, control.releases, server.write_as_leader)
    return LeadingThread(server, "rollouts", moving.step, pause_s=_PAUSE_S)
