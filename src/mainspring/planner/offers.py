"""Nodes worth ordering: for jobs that have waited long and would wait longer than the nodes take to come."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from math import ceil, inf

import numpy as np

from mainspring.domain.plan import Limit, Provision, Wait
from mainspring.planner.facts.policy import Policy
from mainspring.planner.facts.snapshot import ClusterOffer, Shape, Snapshot
from mainspring.planner.place.chip_memory import brings
from mainspring.planner.quota.entitlement import Entitlement
from mainspring.planner.quota.limits import Charge

PROVISIONS_MAX = 64  # Orders in one plan; the next plan sees what is coming.
_FOR_WANT_OF_NODES = (Limit.CAPACITY, Limit.TOPOLOGY, Limit.TIER, Limit.IMPOSSIBLE, Limit.HEALTH)


def provisions(
    snapshot: Snapshot, policy: Policy, entitlement: Entitlement, now_s: float, waits: Sequence[Wait]
) -> tuple[Provision, ...]:
    """Returns the nodes to order, for the first jobs in the queue first.

    What is coming already counts: an order is given once.

    Args:
        policy: What the lab decides.
        waits: Who waits, and until when.
    """
    if not snapshot.offers or policy.provision_after_s < 0:
        return ()
    left = [0 if offer.offer.withheld else offer.offer.nodes_max for offer in snapshot.offers]
    coming = _coming(snapshot)
    row_of = {job: row for row, job in enumerate(snapshot.pending.jobs)}
    ordered: list[Provision] = []
    for wait in waits:
        if wait.limit not in _FOR_WANT_OF_NODES:
            continue
        for job, start_s in zip(wait.jobs, wait.start_s, strict=True):
            if len(ordered) >= PROVISIONS_MAX:
                return tuple(ordered)
            row = row_of[job]
            waited_s = now_s - float(snapshot.pending.submitted_s[row])
            if waited_s < policy.provision_after_s:
                continue
            shape = snapshot.shapes[int(snapshot.pending.shape[row])]
            best = _best(snapshot, shape, left, gain_s=(inf if start_s is None else start_s) - now_s)
            if best is None:
                continue
            index, nodes = best
            offer = snapshot.offers[index]
            key = (offer.cluster, offer.offer.chip)
            spare = min(nodes, coming.get(key, 0))
            coming[key] = coming.get(key, 0) - spare
            if nodes == spare:
                continue
            rate = nodes * offer.offer.chips * offer.offer.dollars_per_chip_hour
            duration_s = float(snapshot.pending.duration_s[row])
            charge = Charge(chips=(), dollars_per_hour=rate, duration_s=duration_s if duration_s < inf else 3_600.0)
            if entitlement.bar(int(snapshot.pending.team[row]), charge) is not None:
                continue
            left[index] -= nodes - spare
            ordered.append(
                Provision(
                    cluster=snapshot.clusters.names[offer.cluster],
                    offer=offer.offer.name,
                    nodes=nodes - spare,
                    for_job=job,
                    reason=f"{job} has waited {waited_s:.0f} s; they come in {offer.offer.lead_time_s:.0f} s",
                )
            )
    return tuple(ordered)


def _coming(snapshot: Snapshot) -> dict[tuple[int, str], int]:
    """Returns how many nodes were ordered and are not there yet, by cluster and chip."""
    rows = np.flatnonzero(snapshot.nodes.coming)
    chips = (snapshot.chips[chip] for chip in snapshot.nodes.chip[rows].tolist())
    return Counter(zip(snapshot.nodes.cluster[rows].tolist(), chips, strict=True))


def _best(snapshot: Snapshot, shape: Shape, left: Sequence[int], *, gain_s: float) -> tuple[int, int] | None:
    """Returns the offer that runs a shape cheapest, and sooner than it would start, and how many nodes it takes."""
    best: tuple[float, int, int] | None = None
    for index, offer in enumerate(snapshot.offers):
        if offer.offer.lead_time_s >= gain_s or not snapshot.clusters.answering[offer.cluster]:
            continue
        taken = _nodes(shape, offer)
        if taken is None or taken[0] > left[index]:
            continue
        nodes, work = taken
        price = nodes * offer.offer.chips * offer.offer.dollars_per_chip_hour / work
        if best is None or price < best[0]:
            best = (price, index, nodes)
    return None if best is None else (best[1], best[2])


def _nodes(shape: Shape, offer: ClusterOffer) -> tuple[int, float] | None:
    """Returns how many nodes of an offer a shape takes and the work they do; None when it cannot run on them."""
    nodes, work = 0, 0.0
    for role in shape.roles:
        fitting = [option for option in role.options if brings(offer.offer, option) and not option.slice]
        if not fitting:
            return None
        option = max(fitting, key=lambda option: option.speed)
        fit = int(offer.offer.chips // option.chips) if option.chips else option.replicas
        nodes += ceil(option.replicas / fit) if fit else option.replicas * ceil(option.chips / offer.offer.chips)
        work += option.replicas * max(option.chips, 1e-3) * option.speed
    return nodes, work
