"""What several messages share: small facts."""

from __future__ import annotations

from collections.abc import Mapping

from mainspring.domain.codec import message
from mainspring.domain.ids import NodeName

Detail = Mapping[str, str | int | float | bool]

NO_LONGER_HELD = "no longer in the arena"  # Why a share is not stored whose snapshot newer ones have overwritten.
EXIT_PREEMPTED = 75  # EX_TEMPFAIL of sysexits.h: "I was asked to stop and have saved; run me again".


@message("AtRisk")
class AtRisk:
    """Steps whose work would be lost now, and how long they took (0.0 while no step was timed).

    `steps` and `seconds` with a rank: since the newest step that is whole in memory or durable. `durable_steps` and
    `durable_seconds` with all nodes: since the newest durable step.
    """

    steps: int
    seconds: float
    durable_steps: int
    durable_seconds: float


@message("RankStatus")
class RankStatus:
    """One rank, as last seen."""

    rank: int
    node: NodeName
    pid: int
    alive: bool
    step: int
