"""Faults of nodes, drawn from a seed: when each fails next, and for how long it is away."""

from __future__ import annotations

from math import exp, inf, log, sqrt
from statistics import NormalDist
from zlib import crc32

import numpy as np

from mainspring.domain.fleet import Inventory
from mainspring.domain.ids import ClusterName, NodeName
from mainspring.simulator.inputs.fleet import Outage
from mainspring.simulator.inputs.workload import ReplayOptions

DAY_S = 86_400.0
SPOT_NOTICE_S = 120.0  # What Amazon EC2 gives.
SPOT_AWAY_S = 600.0  # Until another machine of the kind takes the place of one that was taken back.
_STANDARD = NormalDist()


class Faults:
    """When nodes fail: a Poisson process for each node, with dice of its own.

    Args:
        inventories: Every cluster; `losses_per_node_hour` says how often it takes nodes back.
        options: Rates and repair times.
        seed: Of the whole replay.
    """

    def __init__(self, inventories: tuple[Inventory, ...], options: ReplayOptions, seed: int) -> None:
        self._options = options
        self._seed = seed
        # Of a lognormal: mean = median * exp(sigma^2 / 2).
        self._sigma = sqrt(2.0 * log(options.repair_mean_s / options.repair_median_s))
        failures_per_s = options.faults_per_1000_node_days / 1_000.0 / DAY_S
        self._rates = {each.cluster: (failures_per_s, each.losses_per_node_hour / 3_600.0) for each in inventories}
        self._dice: dict[tuple[ClusterName, NodeName], np.random.Generator] = {}

    def next(self, cluster: ClusterName, node: NodeName, after_s: float) -> Outage | None:
        """Returns a node's next outage, None when it never fails."""
        failures_per_s, losses_per_s = self._rates[cluster]
        rate_per_s = failures_per_s + losses_per_s
        if rate_per_s <= 0.0:
            return None
        dice = self._dice.get((cluster, node))
        if dice is None:
            purpose = crc32(f"faults/{cluster}/{node}".encode())
            dice = self._dice[cluster, node] = np.random.default_rng([self._seed, purpose])
        when, which, how_long = (float(number) for number in dice.random(3))
        from_s = after_s - log(1.0 - when) / rate_per_s
        if which * rate_per_s < losses_per_s:
            away_s, notice_s, reason = SPOT_AWAY_S, SPOT_NOTICE_S, "was taken back"
        elif which * rate_per_s < losses_per_s + failures_per_s * self._options.transient:
            away_s, notice_s, reason = 0.0, 0.0, "failed for a moment"
        else:
            spread = _STANDARD.inv_cdf(max(how_long, 1e-12))
            away_s, notice_s, reason = self._options.repair_median_s * exp(self._sigma * spread), 0.0, "failed"
        return Outage(
            cluster=cluster, nodes=(node,), from_s=from_s, until_s=from_s + away_s, notice_s=notice_s, reason=reason
        )


def after(outage: Outage) -> float:
    """Returns from when the nodes of an outage may fail again."""
    return outage.until_s if outage.until_s < inf else outage.from_s
