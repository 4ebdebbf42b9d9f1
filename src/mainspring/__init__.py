"""Mainspring: the operating system of a lab that trains robot foundation models.

Names are loaded when they are first used, so that a rank that only joins its session imports nothing else.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mainspring.app.sdk.lab import Lab, job
    from mainspring.domain.errors import MainspringError
    from mainspring.session import Session, join

_WHERE = {
    "Lab": "mainspring.app.sdk.lab",
    "job": "mainspring.app.sdk.lab",
    "MainspringError": "mainspring.domain.errors",
    "Session": "mainspring.session",
    "join": "mainspring.session",
}

_VERBS = (
    *("again", "down", "fleet", "logs", "plan", "ps", "run", "set_team", "status", "stop", "teams", "up"),
    *("wait", "what_if", "why"),
)

__all__ = ["Lab", "MainspringError", "Session", "job", "join"]


def __getattr__(name: str) -> Any:
    """Returns a public name from the room that holds it; a verb is that of the lab in the default home folder."""
    if name in _VERBS:
        return getattr(import_module("mainspring.app.sdk.lab").Lab(), name)
    if name not in _WHERE:
        raise AttributeError(f"module 'mainspring' has no attribute {name!r}")
    return getattr(import_module(_WHERE[name]), name)
