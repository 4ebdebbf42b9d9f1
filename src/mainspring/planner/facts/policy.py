"""Planning policy: what the lab decides, and how much work one plan may take."""

from __future__ import annotations

from dataclasses import dataclass, fields
from itertools import pairwise
from math import inf

from mainspring.domain.errors import InvalidInput

HOUR_S = 3_600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """What the lab decides about planning.

    Args:
        reservations_max: How many waiting jobs, first in the queue first, hold exact reservations.
        preempt: Whether a job may displace those that come after it.
        runtime_min_s: How long an attempt runs before it may be displaced.
        cooldown_s: How long after an eviction a job may not be evicted again.
        evicts_max: Blast radius: the most attempts one plan may displace.
        evicted_ratio_max: Blast radius: the most chips displaced for each chip a job asks for.
        restart_s: What a restart costs, from eviction to the next useful step.
        attained_levels_chip_s: Where a job of a team ordered by chip-time had drops to the next level (Tiresias,
            NSDI'19); a job of a lower level displaces those of higher ones.
        consolidate: Whether running jobs may be moved so that a gang that waits only for fragmentation can start.
        failover_s: How long a cluster may be silent before its jobs are placed elsewhere.
        leave_s: How long before its nodes leave a job is moved.
        provision_after_s: How long a job waits before nodes are ordered for it; negative never orders.
        checkpoint_s: How much work is lost on average when a node is lost; half a usual checkpoint interval.
        link_bytes_per_s: How fast data move between clusters.
        dollars_per_gib_moved: What moving them costs.
    """

    reservations_max: int = 16
    preempt: bool = True
    runtime_min_s: float = 600.0
    cooldown_s: float = 1_800.0
    evicts_max: int = 1_000
    evicted_ratio_max: float = 4.0
    restart_s: float = 300.0
    attained_levels_chip_s: tuple[float, ...] = (4 * HOUR_S, 40 * HOUR_S)
    consolidate: bool = True
    failover_s: float = 300.0
    leave_s: float = 120.0
    provision_after_s: float = 600.0
    checkpoint_s: float = 300.0
    link_bytes_per_s: float = 1.25e8
    dollars_per_gib_moved: float = 0.0

    def __post_init__(self) -> None:
        """Checks the numbers.

        Raises:
            InvalidInput: One is negative, or levels do not rise.
        """
        levels = self.attained_levels_chip_s
        rising = all(low < high for low, high in pairwise(levels))
        if not rising:
            raise InvalidInput("accept a policy", on="attained_levels_chip_s", got=str(levels), wanted="rising levels")
        for field in fields(self):
            value = getattr(self, field.name)
            least = -inf if field.name == "provision_after_s" else 0.0
            if not isinstance(value, tuple) and not value >= least:
                raise InvalidInput("accept a policy", on=field.name, got=f"{value:g}", wanted="0 or more")
        if self.link_bytes_per_s == 0:
            raise InvalidInput("accept a policy", on="link_bytes_per_s", got="0", wanted="over 0")


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """How much work one plan may take; what it did not come to waits with `Limit.SEARCH`.

    Args:
        probes_max: Probes of the future, for reservations.
    """

    placements_max: int = 200_000
    preemptions_max: int = 64
    probes_max: int = 1_024
