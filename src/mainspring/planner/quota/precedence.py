"""Precedence: what comes before what, as three numbers or as one.

Standing is 0 for what its team's own guarantee covers, n for what that of the team n above does, else `BORROWED`.
"""

from __future__ import annotations

import numpy as np

from mainspring.domain.job import Tier
from mainspring.planner.facts.policy import Policy
from mainspring.planner.facts.snapshot import Integers, Live, Pending, Teams

Precedence = tuple[int, int, int]  # Standing, rank of the tier, level of chip-time had: less comes first.

BORROWED = 1 << 16  # The standing of what no guarantee covers; no tree is as deep.
LAST = 1 << 16  # A tier or level after all others.
TIERS = len(Tier)
LEVELS_MAX = 1_024  # Levels of chip-time had that a policy may name.


def code_of(precedence: Integers) -> Integers:
    """Returns precedences as single numbers that compare as they do.

    Args:
        precedence: One row each, or one alone: standing, rank of the tier, level.
    """
    return (precedence[..., 0] * TIERS + precedence[..., 1]) * LEVELS_MAX + precedence[..., 2]


def attained_level(teams: Teams, policy: Policy, jobs: Pending | Live) -> Integers:
    """Returns the level each job has dropped to; 0 where the team does not take its jobs by chip-time had.

    A replica of a service drops to none: it is not done sooner for having run.

    Args:
        jobs: Their teams, and the chip-seconds each has had.

    Source: Gu et al., Tiresias (NSDI'19), discretised two-dimensional least attained service.
    """
    if not teams.attained.any():
        return np.zeros(len(jobs.team), dtype=np.int64)
    leveled = teams.attained[jobs.team] & ~jobs.serves
    return np.where(leveled, np.searchsorted(policy.attained_levels_chip_s, jobs.attained_chip_s), 0)
