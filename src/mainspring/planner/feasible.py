"""Feasibility: whether a spec could ever run on the whole fleet, empty and healthy, alone. Quota can be raised."""

from __future__ import annotations

from dataclasses import replace
from math import inf

import numpy as np

from mainspring.domain.errors import ImpossibleJob, nearest
from mainspring.domain.job import ANY_CHIP, JobSpec, Role
from mainspring.planner.facts.policy import Policy
from mainspring.planner.facts.reasons import amount, together
from mainspring.planner.facts.snapshot import NONE, RoleShape, Shape, Snapshot, emptied, sealed
from mainspring.planner.place.candidates import menu, stand_at
from mainspring.planner.place.chip_memory import brings, most_memory_mib, too_little
from mainspring.planner.place.free_capacity import FreeCapacity, Pool


def feasible(snapshot: Snapshot, spec: JobSpec) -> ImpossibleJob | None:
    """Returns why a job could never run here, naming the most that could ever fit; None when it could.

    While no cluster has reported, nothing is known to be impossible; what an offer could bring is possible.

    Args:
        snapshot: The fleet; what runs and waits in it does not matter.
    """
    if not snapshot.nodes.names:
        return None
    shape = Shape(roles=tuple(RoleShape(name=role.name, options=role.options) for role in spec.roles))
    room = FreeCapacity(replace(_healthy(snapshot), shapes=(*snapshot.shapes, shape)))
    for role in spec.roles:
        named = [option for option in role.options if option.chip != ANY_CHIP]
        if any(brings(each.offer, option) for each in snapshot.offers for option in named):
            return None
        error = _unknown_chips(snapshot, spec, role) or _too_large(room, spec, role)
        if error:
            return error
    for site in menu(room, Policy(), shape).sites:
        if stand_at(room, site, None) is not None:
            return None
    return ImpossibleJob(
        f"find room for job {spec.name!r}",
        on=", ".join(f"role {role.name!r}" for role in spec.roles),
        got="roles that each fit alone, but no cluster could ever hold together",
        wanted="all roles on one cluster",
        next_step="ask for fewer replicas, or give a role another option",
    )


def _healthy(snapshot: Snapshot) -> Snapshot:
    free, clusters = emptied(snapshot), snapshot.clusters
    nodes = replace(
        free.nodes,
        ready=sealed(np.ones_like(free.nodes.ready)),
        leaves_s=sealed(np.full(len(free.nodes.names), inf)),
        avoided_s=sealed(np.full(len(free.nodes.names), -inf)),
    )
    return replace(free, nodes=nodes, clusters=replace(clusters, answering=sealed(np.ones_like(clusters.answering))))


def _unknown_chips(snapshot: Snapshot, spec: JobSpec, role: Role) -> ImpossibleJob | None:
    unknown = [option.chip for option in role.options if option.chip not in (*snapshot.chips, ANY_CHIP)]
    if len(unknown) < len(role.options):
        return None
    return ImpossibleJob(
        f"find room for job {spec.name!r}",
        on=f"role {role.name!r}",
        got=f"chip {', '.join(repr(chip) for chip in unknown)}, which no cluster has",
        wanted=nearest(unknown[0], snapshot.chips),
        next_step="`ms fleet` lists the chips there are",
    )


def _too_large(room: FreeCapacity, spec: JobSpec, role: Role) -> ImpossibleJob | None:
    snapshot, most = room.snapshot, "nothing, for no node is open to it"
    most_chips = -1.0
    most_mib = NONE
    for option in role.options:
        for cluster, name in enumerate(snapshot.clusters.names):
            words, has_mib = too_little(snapshot, cluster, option), most_memory_mib(snapshot, cluster, option)
            if words and has_mib > most_mib:
                most, most_mib = f"nothing: on cluster {name} {words}", has_mib
    for option in role.options:
        for cluster, name in enumerate(snapshot.clusters.names):
            pool = room.pool(cluster, option)
            fits = 0 if pool is None else pool.room_ever
            if fits >= option.replicas_min:
                return None
            if pool is not None and fits * option.chips > most_chips:
                most_chips = fits * option.chips
                levels = (option.within, option.group_within)
                most = f"{amount(option, fits)} on cluster {name}" if fits else _none(room, pool, name, levels)
    asked = " or ".join(amount(option, option.replicas_min) + together(option) for option in role.options)
    return ImpossibleJob(
        f"find room for job {spec.name!r}",
        on=f"role {role.name!r}",
        got=asked,
        wanted=f"the most that ever fits: {most}",
        next_step="ask for fewer or smaller replicas, or name another option",
    )


def _none(room: FreeCapacity, pool: Pool, cluster: str, levels: tuple[str | None, ...]) -> str:
    """Returns what a cluster could hold when not even one replica fits."""
    if not pool.level_known:
        missing = " or ".join(repr(level) for level in dict.fromkeys(levels) if level)
        return f"nothing, for cluster {cluster} has no level {missing}"
    chips = int(room.snapshot.nodes.chips[pool.rows].sum())
    return f"no replica of that size, for cluster {cluster} has {chips} such chips in all"
