"""Moves of running jobs: off nodes and clusters that go away, and together so that a scattered gang can start."""

from __future__ import annotations

from math import inf

import numpy as np

from mainspring.domain.job import MILLI
from mainspring.domain.plan import Evict, Limit
from mainspring.planner.displace.elastic import parts_of
from mainspring.planner.displace.preemption import Found, Victims, cheapest, prices, settled
from mainspring.planner.displace.reclaimable import Free, Parts, ReclaimableCapacity, pool_of, things_of
from mainspring.planner.facts.policy import Policy
from mainspring.planner.facts.snapshot import NONE, Flags, Integers, Snapshot
from mainspring.planner.place.candidates import CandidatePlacement
from mainspring.planner.place.free_capacity import FreeCapacity
from mainspring.planner.place.pool import Picked
from mainspring.planner.place.topology import choose, most

MOVED_MAX = 32  # Attempts moved for one gang: each must be shown to have another place.


def forced(snapshot: Snapshot, policy: Policy, now_s: float) -> tuple[Evict, ...]:
    """Returns the attempts that must live elsewhere, in order: their nodes leave soon, or their cluster is silent.

    Cordoned nodes keep what runs on them. What runs on a node that is down is left to its engine and its lead, who
    alone can tell whether it is lost.

    Args:
        policy: How soon is soon, and how long a cluster may be silent.
    """
    live, nodes, clusters = snapshot.live, snapshot.nodes, snapshot.clusters
    silent = clusters.silent_s > policy.failover_s
    known = live.held_node != NONE
    leaves_s = np.full(len(live.attempts), inf)
    np.minimum.at(leaves_s, live.held_by[known], nodes.leaves_s[live.held_node[known]])
    given_up = np.zeros(len(live.attempts), dtype=np.bool_)
    placed = live.cluster != NONE
    given_up[placed] = silent[live.cluster[placed]]
    leaving = (leaves_s <= now_s + policy.leave_s) & ~given_up
    rows = np.flatnonzero((given_up | leaving) & ~live.stopping)
    price = prices(snapshot, policy, now_s) if len(rows) else leaves_s
    evicts = []
    for row in rows.tolist():
        name = clusters.names[int(live.cluster[row])] if placed[row] else ""
        if given_up[row]:
            silent_s = float(clusters.silent_s[live.cluster[row]])
            reason = f"cluster {name} has been silent for {silent_s:.0f} s"
        else:
            reason = _leaving(snapshot, row, float(leaves_s[row]), now_s)
        evicts.append(
            Evict(
                attempt=live.attempts[row],
                job=live.jobs[row],
                cause=Limit.HEALTH,
                reason=reason,
                price_chip_s=float(price[row]),
            )
        )
    return tuple(evicts)


def _leaving(snapshot: Snapshot, row: int, leaves_s: float, now_s: float) -> str:
    """Returns which node of an attempt leaves when, and why, in the words of who takes it."""
    live, nodes = snapshot.live, snapshot.nodes
    first, last = np.searchsorted(live.held_by, [row, row + 1]).tolist()
    held = [node for node in live.held_node[first:last].tolist() if node != NONE]
    node = next(node for node in held if nodes.leaves_s[node] == leaves_s)
    when = f"leaves in {leaves_s - now_s:.0f} s" if leaves_s > now_s else "is taken away"
    words = f": {nodes.words[node]}" if nodes.words[node] else ""
    return f"node {nodes.names[node]} of {snapshot.clusters.names[int(live.cluster[row])]} {when}{words}"


def consolidate(
    room: FreeCapacity, site: CandidatePlacement, *, candidates: Flags, policy: Policy, now_s: float, evicts_max: int
) -> Victims | None:
    """Returns the attempts to move so that a gang stands that waits only because free room is scattered.

    Every one of them would find another place at once; together they cost less than the gang loses by one restart.
    Their places are not kept: they go back to the queue, and the room they need is there.

    Args:
        site: Where the gang's roles would go.
        candidates: By live row: whether it may be moved at all.
        policy: Minimum runtime, cooldown, blast radius.
        evicts_max: How many attempts this plan may still end.
    """
    snapshot, live = room.snapshot, room.snapshot.live
    asked_milli = sum(pool_of(choice).charge_milli(choice.wanted.replicas_min) for choice in site.choices)
    worth = asked_milli / MILLI * policy.restart_s
    # Only what is free can take everybody in, so enough must be free in all.
    ending_milli = int(live.chip_milli[live.stopping].sum())
    if not asked_milli or int(room.whole[room.usable].sum()) * MILLI + ending_milli < asked_milli:
        return None
    price = prices(snapshot, policy, now_s)
    eligible = candidates & (live.cluster == site.cluster) & settled(snapshot, policy, now_s) & (price < worth)
    ground = ReclaimableCapacity(room, site.choices)
    if int(ground.base.whole.sum()) * MILLI < asked_milli or not eligible.any():
        return None
    parts = parts_of(ground, eligible, price, restart=None)
    found = cheapest(ground, site.choices, parts)
    if found is None or found.price >= worth or len(found.parts) > min(MOVED_MAX, evicts_max):
        return None
    if not _all_fit(ground, site, parts, found):
        return None
    rows = parts.live[found.parts]
    return Victims(rows=rows, prices_chip_s=price[rows], price_chip_s=found.price, resizes=(), picked=found.picked)


def _all_fit(ground: ReclaimableCapacity, site: CandidatePlacement, parts: Parts, found: Found) -> bool:
    """Returns whether the gang and all attempts stand again, with the options they had, whoever comes first.

    Those that come before the gang in the queue, or are as eager as an elastic one, would else take its place again.
    """
    room, live = ground.room, ground.live
    anywhere = ReclaimableCapacity(room, site.choices, everywhere=True)
    moved = np.zeros(len(live.attempts), dtype=np.bool_)
    moved[parts.live[found.parts]] = True
    free = anywhere.with_things(anywhere.base, things_of(live, anywhere.inside, moved))
    rows = parts.live[found.parts]
    rows = rows[np.argsort(-live.chip_milli[rows], kind="stable")]
    after = _beside(anywhere, rows, free, eager=True)
    fewest = [choice.wanted.replicas_min for choice in site.choices]
    if after is None or anywhere.stand(site.choices, fewest, after) is None:
        return False
    for choice, picked in zip(site.choices, found.picked, strict=True):
        free = anywhere.taken(pool_of(choice), picked, free)
    return _beside(anywhere, rows, free, eager=False) is not None


def _beside(ground: ReclaimableCapacity, rows: Integers, free: Free, *, eager: bool) -> Free | None:
    """Returns what is left once attempts stand again, as large as they can if `eager`; None when one does not."""
    room, live = ground.room, ground.live
    for row in rows.tolist():
        options = {role.name: role.options for role in room.snapshot.shapes[int(live.shape[row])].roles}
        for grant in live.grants[row]:
            option = options[grant.role][grant.option]
            pool = room.pool(int(live.cluster[row]), option)
            if pool is None:
                return None
            caps, replicas = pool.caps(*free), option.replicas_min
            if eager and option.replicas > replicas:
                fit = min(option.replicas, most(caps, pool.tree, pool.ask(option.replicas)) // pool.units_per_replica)
                replicas = max(replicas, fit - fit % pool.together)
            chosen = choose(caps, pool.tree, pool.ask(replicas), cost=free.whole[pool.rows].astype(np.float64))
            if chosen is None:
                return None
            free = ground.taken(pool, Picked(rows=pool.rows[chosen.rows], units=chosen.units), free)
    return free
