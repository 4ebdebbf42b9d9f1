"""How a controller is, as probes and people ask it."""

from __future__ import annotations

from enum import Enum

from mainspring.domain.codec import message


class HealthStatus(str, Enum):
    """What a controller can do: all it should, its own part, or not even that."""

    OK = "ok"
    DEGRADED = "degraded"
    FAILING = "failing"


@message("HealthCheck")
class HealthCheck:
    """One thing that was looked at.

    Args:
        name: What: "loop", "lead", "store", a cluster, or, where the store went back in time, "held".
        status: How it is; by a cluster, and by what is held, it is degraded at worst.
        words: What is the matter, "" when nothing is.
    """

    name: str
    status: HealthStatus
    words: str = ""


@message("Health")
class Health:
    """How a controller is: as bad as the worst of what was looked at. `release` is Mainspring's, "" before 0.3."""

    status: HealthStatus
    leader_epoch: int
    checks: tuple[HealthCheck, ...] = ()
    release: str = ""

    def __str__(self) -> str:
        troubles = "; ".join(f"{check.name} {check.words}" for check in self.checks if check.words)
        return f"{self.status.value}: {troubles}" if troubles else self.status.value
