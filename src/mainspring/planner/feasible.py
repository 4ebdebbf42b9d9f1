"""Whether a spec could ever run: on the whole fleet, empty and healthy, alone. Quota is not asked: it can be raised."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from mainspring.domain.errors import ImpossibleJob, nearest
from mainspring.domain.job import JobSpec, Role
from mainspring.planner.place import Pool
from mainspring.planner.snapshot import RoleShape, Snapshot, sealed
from mainspring.planner.weigh import Fleet, Standing, Work, amount, stand

_PLACEMENTS_MAX = 10_000  # About 0.5 s. A job whose search is longer is given the benefit of the doubt.


def feasible(snapshot: Snapshot, spec: JobSpec) -> ImpossibleJob | None:
    """Returns why a job could never run here, naming the most that could ever fit; None when it could.

    While no cluster has reported, nothing is known to be impossible.

    Args:
        snapshot: The fleet; what runs and waits in it does not matter.
        spec: The job.
    """
    if not snapshot.nodes.names:
        return None
    fleet = Fleet(_healthy(snapshot))
    for role in spec.roles:
        error = _unknown_chips(snapshot, spec, role) or _too_large(fleet, spec, role)
        if error:
            return error
    roles = [RoleShape(name=role.name, options=role.options) for role in spec.roles]
    work = Work(placements_max=_PLACEMENTS_MAX)
    for site in fleet.sites(fleet.choices(roles), len(roles)):
        if work.spent or isinstance(stand(fleet, site, work), Standing):
            return None
    return ImpossibleJob(
        f"find room for job {spec.name!r}",
        on=", ".join(f"role {role.name!r}" for role in spec.roles),
        got="roles that each fit alone, but no cluster could ever hold together",
        wanted="all roles on one cluster",
        next_step="ask for fewer replicas, or give a role another option",
    )


def _healthy(snapshot: Snapshot) -> Snapshot:
    nodes, clusters = snapshot.nodes, snapshot.clusters
    return replace(
        snapshot,
        nodes=replace(nodes, free_milli=nodes.total_milli, ready=sealed(np.ones_like(nodes.ready))),
        clusters=replace(clusters, answering=sealed(np.ones_like(clusters.answering))),
    )


def _unknown_chips(snapshot: Snapshot, spec: JobSpec, role: Role) -> ImpossibleJob | None:
    unknown = [option.chip for option in role.options if option.chip not in snapshot.chips]
    if len(unknown) < len(role.options):
        return None
    return ImpossibleJob(
        f"find room for job {spec.name!r}",
        on=f"role {role.name!r}",
        got=f"chip {', '.join(repr(chip) for chip in unknown)}, which no cluster has",
        wanted=nearest(unknown[0], snapshot.chips),
        next_step="`ms fleet` lists the chips there are",
    )


def _too_large(fleet: Fleet, spec: JobSpec, role: Role) -> ImpossibleJob | None:
    most = ""
    most_chips = -1.0
    for option in role.options:
        for cluster, name in enumerate(fleet.snapshot.clusters.names):
            pool = fleet.pool(cluster, option)
            room = 0 if pool is None else pool.room_ever
            if room >= option.replicas_min:
                return None
            if pool is not None and room * option.chips > most_chips:
                most_chips = room * option.chips
                most = _most(pool, name, option.within) if room == 0 else f"{amount(option, room)} on cluster {name}"
    asked = " or ".join(
        amount(option, option.replicas_min) + (f" in one {option.within}" if option.within else "")
        for option in role.options
    )
    return ImpossibleJob(
        f"find room for job {spec.name!r}",
        on=f"role {role.name!r}",
        got=asked,
        wanted=f"the most that ever fits: {most}",
        next_step="ask for fewer or smaller replicas, or name another option",
    )


def _most(pool: Pool, cluster: str, within: str | None) -> str:
    """Returns what a cluster could hold when not even one replica fits."""
    if not pool.level_known:
        return f"nothing, for cluster {cluster} has no level {within!r}"
    return f"no replica of that size, for cluster {cluster} has {pool.block.usable_milli // 1000} such chips in all"
