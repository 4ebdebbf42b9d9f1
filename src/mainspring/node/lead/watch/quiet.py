"""Quiet lines: agents not heard of for long enough to be suspected, long before one may be given up.

Nothing of a run follows from it: an agent that is cut off keeps its ranks for a lease. But whoever looks after machines
learns of a node that died within seconds, and of one that speaks again.
"""

from __future__ import annotations

from typing import final

from mainspring.node.net.connection import QUIET_PARTS

QUIET_LEASES = 2.0 / QUIET_PARTS  # Two words in a row are missed: of 15 s, 6; with what telling takes, under 10 s.
LATE_S = 1.5  # Looks come four times a second: after such a pause it was the lead that did not listen.
TOLD_MAX = 16  # At one time: where more are quiet, it is the lead's own line, or a switch; each is one fact.
OVER_LEASES = 4.0  # By then an agent that is quiet was given up, or the attempt is over.


@final
class QuietLines:
    """When each agent was last heard of.

    Args:
        lease_s: Silence after which an agent ends its ranks.
        now_s: When the lead begins, on the monotonic clock.
    """

    def __init__(self, lease_s: float, now_s: float) -> None:
        self._patience_s, self._over_s = lease_s * QUIET_LEASES, lease_s * OVER_LEASES
        self._heard_s: dict[int, float] = {}
        self._quiet: dict[int, None] = {}
        self._looked_s = now_s

    def heard(self, agent: int, now_s: float) -> bool:
        """Takes note that an agent has spoken; returns whether it was said to be quiet."""
        self._heard_s[agent] = now_s
        return self._quiet.pop(agent, agent) is None

    def look(self, now_s: float) -> tuple[int, ...]:
        """Returns the agents that have just become quiet, each once until it speaks again."""
        if now_s - self._looked_s > LATE_S:
            self._heard_s = dict.fromkeys(self._heard_s, now_s)
        self._looked_s = now_s
        for agent in [agent for agent, heard_s in self._heard_s.items() if now_s - heard_s > self._over_s]:
            del self._heard_s[agent]
            self._quiet.pop(agent, None)
        silent = [agent for agent, heard_s in self._heard_s.items() if now_s - heard_s > self._patience_s]
        found = [agent for agent in silent if agent not in self._quiet][: max(0, TOLD_MAX - len(self._quiet))]
        self._quiet |= dict.fromkeys(found)
        return tuple(found)
