"""Folds what control learns into snapshots, redoing only what changed since the last one."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import chain

import numpy as np

from mainspring.domain.errors import InvalidInput, nearest
from mainspring.domain.fleet import Inventory, NodeCondition
from mainspring.domain.ids import AttemptId, ChipName, ClusterName, JobId, NodeName, TeamName, checked_name
from mainspring.domain.job import MILLI, JobSpec, Tier
from mainspring.planner.snapshot import (
    NO_LIMIT,
    NONE,
    Clusters,
    Flags,
    Floats,
    Integers,
    Live,
    Nodes,
    RoleShape,
    Shape,
    Snapshot,
    Teams,
    sealed,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class TeamQuota:
    """One team of the tenant tree.

    Args:
        name: The team.
        parent: The team above, or None at the top.
        chips_max: The most chips the team and those below it may hold together, or None for no limit.
    """

    name: TeamName
    parent: TeamName | None = None
    chips_max: float | None = None

    def __post_init__(self) -> None:
        """Checks the name and the limit.

        Raises:
            InvalidInput: A field is out of its range.
        """
        checked_name(self.name, "team")
        if self.chips_max is not None and not 0 <= self.chips_max <= 1e9:
            raise InvalidInput("accept a quota", on=self.name, got=f"{self.chips_max} chips", wanted="0 to 1e9")


@dataclass(frozen=True, slots=True, kw_only=True)
class _ShapeKey:
    team: TeamName
    tier: Tier
    roles: tuple[RoleShape, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class _ShapeJobs:
    jobs: tuple[JobId, ...]
    submitted_s: Floats


@dataclass(frozen=True, slots=True, kw_only=True)
class _LiveAttempt:
    attempt: AttemptId
    job: JobId
    team: TeamName
    tier: Tier
    submitted_s: float
    cluster: ClusterName
    held: Mapping[NodeName, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Cluster:
    """One inventory as columns; `chip` and `domain` count within the cluster."""

    inventory: Inventory
    row_of: Mapping[NodeName, int]
    chips: tuple[ChipName, ...]
    chip: Integers
    total_milli: Integers
    unused_milli: Integers
    ready: Flags
    levels: tuple[str, ...]
    domain: Integers


class SnapshotBuilder:
    """Keeps the planner's facts up to date; `build` freezes them. Used by one thread."""

    def __init__(self) -> None:
        self._quotas: dict[TeamName, TeamQuota] = {}
        self._clusters: dict[ClusterName, _Cluster] = {}
        self._answering: dict[ClusterName, bool] = {}
        self._key_of: dict[JobId, _ShapeKey] = {}
        self._pending: dict[_ShapeKey, dict[JobId, float]] = {}
        self._sorted: dict[_ShapeKey, _ShapeJobs] = {}
        self._live: dict[AttemptId, _LiveAttempt] = {}

    def set_teams(self, quotas: Iterable[TeamQuota]) -> None:
        """Replaces the tenant tree. A team nobody lists stands alone and has no limit.

        Args:
            quotas: Every team, in any order.

        Raises:
            InvalidInput: A team is listed twice, has an unknown parent, or is its own ancestor.
        """
        tree: dict[TeamName, TeamQuota] = {}
        for quota in quotas:
            if quota.name in tree:
                raise InvalidInput("accept a tenant tree", on=quota.name, got="the team twice", wanted="each team once")
            tree[quota.name] = quota
        for quota in tree.values():
            seen = [quota.name]
            while (parent := tree[seen[-1]].parent) is not None:
                if parent not in tree:
                    raise InvalidInput("accept a tenant tree", on=seen[-1], got=parent, wanted=nearest(parent, tree))
                if parent in seen:
                    raise InvalidInput("accept a tenant tree", on=parent, got="a team above itself", wanted="a tree")
                seen.append(parent)
        self._quotas = tree

    def set_inventory(self, inventory: Inventory, *, answering: bool) -> None:
        """Replaces what is known of one cluster.

        Args:
            inventory: The last one its engine gave.
            answering: Whether the engine answered this time.
        """
        known = self._clusters.get(inventory.cluster)
        if known is None or (known.inventory is not inventory and known.inventory != inventory):
            self._clusters[inventory.cluster] = _columns(inventory)
        self._answering[inventory.cluster] = answering

    def add_pending(self, job: JobId, spec: JobSpec, submitted_s: float) -> None:
        """Adds a job that waits; one that is known already is replaced.

        Args:
            job: The job.
            spec: What it asks for.
            submitted_s: When it was submitted.
        """
        self.remove_pending(job)
        roles = tuple(RoleShape(name=role.name, options=role.options) for role in spec.roles)
        key = _ShapeKey(team=spec.team, tier=spec.tier, roles=roles)
        self._key_of[job] = key
        self._pending.setdefault(key, {})[job] = submitted_s
        self._sorted.pop(key, None)

    def remove_pending(self, job: JobId) -> None:
        """Forgets a job that no longer waits; does nothing when it is not known.

        Args:
            job: The job.
        """
        key = self._key_of.pop(job, None)
        if key is not None:
            self._sorted.pop(key, None)
            del self._pending[key][job]
            if not self._pending[key]:
                del self._pending[key]

    def add_live(
        self,
        attempt: AttemptId,
        job: JobId,
        *,
        team: TeamName,
        tier: Tier,
        submitted_s: float,
        cluster: ClusterName,
        chip_milli: Mapping[NodeName, int],
    ) -> None:
        """Adds an attempt that holds chips; one that is known already is replaced.

        Args:
            attempt: The attempt.
            job: Its job.
            team: The team charged.
            tier: How urgent the job is.
            submitted_s: When the job was submitted.
            cluster: Where the attempt is.
            chip_milli: What it holds on each node, all roles together.
        """
        self._live[attempt] = _LiveAttempt(
            attempt=attempt,
            job=job,
            team=team,
            tier=tier,
            submitted_s=submitted_s,
            cluster=cluster,
            held=dict(chip_milli),
        )

    def remove_live(self, attempt: AttemptId) -> None:
        """Forgets an attempt that holds nothing any more; does nothing when it is not known.

        Args:
            attempt: The attempt.
        """
        self._live.pop(attempt, None)

    def build(self, *, number: int = 1) -> Snapshot:
        """Returns everything known now.

        Args:
            number: The number the plan made from it will carry.
        """
        clusters = [self._clusters[name] for name in sorted(self._clusters)]
        chips = tuple(sorted(set(chain.from_iterable(cluster.chips for cluster in clusters))))
        levels = tuple(sorted(set(chain.from_iterable(cluster.levels for cluster in clusters))))
        teams = self._teams()
        live = self._live_table(clusters, teams)
        return Snapshot(
            number=number,
            chips=chips,
            levels=levels,
            nodes=_nodes(clusters, chips, levels, live),
            clusters=self._cluster_table(clusters, chips),
            teams=teams,
            live=live,
            pending=self._shapes(teams),
        )

    def _teams(self) -> Teams:
        used = [key.team for key in self._pending] + [attempt.team for attempt in self._live.values()]
        names = tuple(sorted({*self._quotas, *used}))
        row_of = {name: row for row, name in enumerate(names)}
        quotas = [self._quotas.get(name, TeamQuota(name=name)) for name in names]
        return Teams(
            names=names,
            parent=_integers(NONE if quota.parent is None else row_of[quota.parent] for quota in quotas),
            milli_max=_integers(
                NO_LIMIT if quota.chips_max is None else round(quota.chips_max * MILLI) for quota in quotas
            ),
        )

    def _cluster_table(self, clusters: list[_Cluster], chips: tuple[ChipName, ...]) -> Clusters:
        prices = [[cluster.inventory.dollars_per_chip_hour.get(chip, 0.0) for chip in chips] for cluster in clusters]
        return Clusters(
            names=tuple(cluster.inventory.cluster for cluster in clusters),
            simulated=sealed(np.array([cluster.inventory.simulated for cluster in clusters], dtype=np.bool_)),
            answering=sealed(
                np.array([self._answering[cluster.inventory.cluster] for cluster in clusters], dtype=np.bool_)
            ),
            dollars_per_chip_hour=sealed(np.array(prices, dtype=np.float64).reshape(len(clusters), len(chips))),
        )

    def _live_table(self, clusters: list[_Cluster], teams: Teams) -> Live:
        live = [self._live[attempt] for attempt in sorted(self._live)]
        team_row = {name: row for row, name in enumerate(teams.names)}
        cluster_row = {cluster.inventory.cluster: row for row, cluster in enumerate(clusters)}
        starts = np.cumsum([0, *(len(cluster.row_of) for cluster in clusters)]).tolist()
        held_node: list[int] = []
        for attempt in live:
            row = cluster_row.get(attempt.cluster)
            for node in attempt.held:
                local = None if row is None else clusters[row].row_of.get(node)
                held_node.append(NONE if row is None or local is None else starts[row] + local)
        return Live(
            attempts=tuple(attempt.attempt for attempt in live),
            jobs=tuple(attempt.job for attempt in live),
            team=_integers(team_row[attempt.team] for attempt in live),
            tier=_integers(attempt.tier.rank for attempt in live),
            cluster=_integers(cluster_row.get(attempt.cluster, NONE) for attempt in live),
            submitted_s=sealed(np.array([attempt.submitted_s for attempt in live], dtype=np.float64)),
            held_by=_integers(row for row, attempt in enumerate(live) for _ in attempt.held),
            held_node=_integers(held_node),
            held_milli=_integers(milli for attempt in live for milli in attempt.held.values()),
        )

    def _shapes(self, teams: Teams) -> tuple[Shape, ...]:
        team_row = {name: row for row, name in enumerate(teams.names)}
        shapes = []
        for key, jobs in self._pending.items():
            if key not in self._sorted:
                ordered = sorted(jobs.items(), key=lambda item: (item[1], item[0]))
                self._sorted[key] = _ShapeJobs(
                    jobs=tuple(job for job, _ in ordered),
                    submitted_s=sealed(np.array([submitted_s for _, submitted_s in ordered], dtype=np.float64)),
                )
            entry = self._sorted[key]
            shapes.append(
                Shape(
                    team=team_row[key.team],
                    tier=key.tier,
                    roles=key.roles,
                    jobs=entry.jobs,
                    submitted_s=entry.submitted_s,
                )
            )
        shapes.sort(key=lambda shape: (shape.tier.rank, shape.team, float(shape.submitted_s[0]), shape.jobs[0]))
        return tuple(shapes)


def _integers(values: Iterable[int]) -> Integers:
    return sealed(np.fromiter(values, dtype=np.int64))


def _columns(inventory: Inventory) -> _Cluster:
    nodes = inventory.nodes
    chips = tuple(sorted({node.chip for node in nodes}))
    chip_row = {chip: row for row, chip in enumerate(chips)}
    levels = tuple(sorted({level for node in nodes for level, _ in node.domains}))
    level_column = {level: column for column, level in enumerate(levels)}
    # Two blocks may both have a rack "r1": a domain is known by its whole path.
    paths = sorted({node.domains[: depth + 1] for node in nodes for depth in range(len(node.domains))})
    domain_of = {path: row for row, path in enumerate(paths)}
    domain = np.full((len(nodes), len(levels)), NONE, dtype=np.int64)
    for row, node in enumerate(nodes):
        for depth, (level, _) in enumerate(node.domains):
            domain[row, level_column[level]] = domain_of[node.domains[: depth + 1]]
    return _Cluster(
        inventory=inventory,
        row_of={node.name: row for row, node in enumerate(nodes)},
        chips=chips,
        chip=_integers(chip_row[node.chip] for node in nodes),
        total_milli=_integers(node.chips * MILLI for node in nodes),
        unused_milli=_integers(node.chips * MILLI - node.foreign_chip_milli for node in nodes),
        ready=sealed(np.array([node.condition is NodeCondition.READY for node in nodes], dtype=np.bool_)),
        levels=levels,
        domain=domain,
    )


def _nodes(clusters: list[_Cluster], chips: tuple[ChipName, ...], levels: tuple[str, ...], live: Live) -> Nodes:
    counts = [len(cluster.row_of) for cluster in clusters]
    none = np.zeros(0, dtype=np.int64)
    chip_parts, domain_parts = [none], [none.reshape(0, len(levels))]
    for cluster in clusters:
        chip_parts.append(_integers(chips.index(chip) for chip in cluster.chips)[cluster.chip])
        domain = np.full((len(cluster.row_of), len(levels)), NONE, dtype=np.int64)
        for column, level in enumerate(cluster.levels):
            domain[:, levels.index(level)] = cluster.domain[:, column]
        domain_parts.append(domain)
    free = np.concatenate([none, *(cluster.unused_milli for cluster in clusters)])
    known = live.held_node != NONE
    np.subtract.at(free, live.held_node[known], live.held_milli[known])
    return Nodes(
        names=tuple(chain.from_iterable(cluster.row_of for cluster in clusters)),
        cluster=sealed(np.repeat(np.arange(len(clusters)), counts)),
        chip=sealed(np.concatenate(chip_parts)),
        total_milli=sealed(np.concatenate([none, *(cluster.total_milli for cluster in clusters)])),
        free_milli=sealed(np.maximum(free, 0)),
        ready=sealed(np.concatenate([none.astype(np.bool_), *(cluster.ready for cluster in clusters)])),
        domain=sealed(np.concatenate(domain_parts)),
    )
