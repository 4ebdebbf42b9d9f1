"""Standby processes: each has its program's imports behind it, and waits for a place that needs a process.

Only for programs that say so (`Hello.standby`): what they do before they join may be done in vain.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import final

from mainspring.domain.ids import RoleName
from mainspring.node.supervise.rank_server import RankConnection

FAILURES_MAX = 3  # A program whose spare process ends by itself that often is not helped by another.


@final
class Standbys:
    """One spare process for each role that allows it."""

    def __init__(self, start: Callable[[RoleName], Awaitable[RankConnection]]) -> None:
        self._start = start
        self._failures: dict[RoleName, int] = {}
        self._waiting: dict[RoleName, RankConnection] = {}
        self._starting: set[RoleName] = set()

    async def fill(self, role: RoleName) -> None:
        """Starts a spare process unless there is one."""
        if role in self._waiting or role in self._starting or self._failures.get(role, 0) >= FAILURES_MAX:
            return
        self._starting.add(role)
        try:
            self._waiting[role] = await self._start(role)
        finally:
            self._starting.discard(role)

    def take(self, role: RoleName) -> RankConnection | None:
        """Returns the spare process, then no spare any more; one that has yet to join is still ahead of a new one."""
        return self._waiting.pop(role, None)

    def lost(self, life: RankConnection) -> None:
        """Forgets a spare process that has ended."""
        for role, waiting in list(self._waiting.items()):
            if waiting is life:
                self._failures[role] = self._failures.get(role, 0) + 1
                del self._waiting[role]
