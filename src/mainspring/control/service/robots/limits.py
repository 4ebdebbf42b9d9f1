"""How often each robot may call: one that has gone wrong takes nothing from the others, nor a stranger from any."""

from __future__ import annotations

from threading import Lock
from typing import final

from mainspring.domain.errors import TooManyRequests

CALLS_PER_S = 2.0  # An installation is some twenty calls; a poll one a minute.
BURST = 120.0  # As when a robot tells all that it had to keep for itself.
KNOWN_MAX = 200_000  # Callers that came lately, robots and strangers.


@final
class DeviceLimits:
    """Counts calls by caller. Used by many threads; of one server."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._left: dict[str, tuple[float, float]] = {}

    def count(self, robot: str, caller: str, now_s: float) -> None:
        """Counts a call.

        Args:
            caller: Who says to be the robot, as the hash of all that tells callers apart: some are strangers.
            now_s: By a clock that never goes back.

        Raises:
            TooManyRequests: It is one too many.
        """
        with self._lock:
            left, since_s = self._left.get(caller, (BURST, now_s))
            left = min(BURST, left + (now_s - since_s) * CALLS_PER_S)
            if len(self._left) >= KNOWN_MAX and caller not in self._left:
                self._left.clear()
            self._left[caller] = (max(0.0, left - 1.0), now_s)
        if left < 1.0:
            got, wanted = "calls one upon another", f"at most {CALLS_PER_S:g} a second"
            raise TooManyRequests("call as a robot", on=robot[:80], got=got, wanted=wanted, next_step="again, later")
