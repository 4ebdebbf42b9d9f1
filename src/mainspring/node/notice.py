"""Preemption notice of the engine: that it came, and how much of its grace is left."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import final

from mainspring.domain.ports import Clock

STOP_GRACE_S = 20.0  # Where the engine does not say: Kubernetes ends agents by force after 30 s.
STOP_GRACE_S_MAX = 24 * 3600.0
GRACE_LOOK_S = 1.0  # A shared folder that answers later costs more of the grace than it could tell.
GRACE_FILE = "grace"  # In the agent's report folder, seconds as text, written by the engine before SIGTERM.


@final
class StopNotice:
    """One notice at the most."""

    def __init__(self, reports: Path, clock: Clock) -> None:
        self._reports = reports
        self._clock = clock
        self.given = asyncio.Event()
        """Set when the engine's signal comes."""
        self._until_s = 0.0

    @property
    def left_s(self) -> float:
        """Returns how much of the grace is left; 0 before it is known."""
        return max(0.0, self._until_s - self._clock.monotonic_s())

    async def grace_s(self) -> float:
        """Returns how long ranks have from now on, as the engine says."""
        try:
            async with asyncio.timeout(GRACE_LOOK_S):
                text = await asyncio.to_thread((self._reports / GRACE_FILE).read_text)
            grace_s = min(max(0.0, float(text)), STOP_GRACE_S_MAX)
        except (OSError, ValueError):  # A look that takes too long among them.
            grace_s = STOP_GRACE_S
        self._until_s = self._clock.monotonic_s() + grace_s
        return grace_s
