"""What several messages share: small facts."""

from __future__ import annotations

from collections.abc import Mapping

from mainspring.domain.codec import message
from mainspring.domain.ids import NodeName

Detail = Mapping[str, str | int | float | bool]

NO_LONGER_HELD = "no longer in the arena"  # Why a share is not stored whose snapshot newer ones have overwritten.
EXIT_PREEMPTED = 75  # EX_TEMPFAIL of sysexits.h: "I was asked to stop and have saved; run me again".


@message("RankStatus")
class RankStatus:
    """One rank, as last seen."""

    rank: int
    node: NodeName
    pid: int
    alive: bool
    step: int
