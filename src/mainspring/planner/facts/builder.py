"""Folds what control learns into snapshots, redoing only what changed since the last one."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from itertools import chain
from math import inf, log

import numpy as np

from mainspring.domain.fleet import AvoidedNode, Inventory, NodeRef, Replica
from mainspring.domain.ids import AttemptId, ChipName, ClusterName, JobId, RoleName, TeamName
from mainspring.domain.job import MILLI, JobSpec
from mainspring.domain.team import Team
from mainspring.planner.facts.attempts import Attempts
from mainspring.planner.facts.avoiding import Avoiding, AvoidingJob
from mainspring.planner.facts.columns import ClusterColumns, columns_of, integers
from mainspring.planner.facts.durations import Durations
from mainspring.planner.facts.gather import cluster_table, data_table, node_table, team_table, tenant_tree
from mainspring.planner.facts.services import serves
from mainspring.planner.facts.snapshot import (
    NONE,
    ClusterOffer,
    Floats,
    Integers,
    Live,
    LiveAttempt,
    Pending,
    PendingJob,
    RoleShape,
    Shape,
    Snapshot,
    Teams,
    sealed,
)
from mainspring.planner.facts.tables import GrowableTable, columns, table_of

SHAPES_MAX = 8_192  # Shapes remembered; those of jobs that are all gone are forgotten first.
USAGE_HALF_LIFE_S = 7 * 86_400.0  # Slurm's PriorityDecayHalfLife default.
# Dense bf16 TFLOP/s per chip by the vendors' data sheets, over the H100 SXM's 989.
CHIP_VALUES: Mapping[ChipName, float] = {
    ChipName(chip): value
    for chip, value in {
        "b200": 2.28, "gb200": 2.53, "h100": 1.0, "h200": 1.0, "h800": 1.0, "a100": 0.315, "l40s": 0.366, "l4": 0.122,
        "a10": 0.126, "v100": 0.126, "t4": 0.066, "v4": 0.278, "v5e": 0.199, "v5p": 0.464, "v6e": 0.928, "cpu": 0.01,
    }.items()
}  # fmt: skip


@dataclass(slots=True)
class _Cluster:
    columns: ClusterColumns
    answering: bool
    silent_s: float


@dataclass(slots=True)
class _Usage:
    value_s: dict[TeamName, float] = field(default_factory=dict)
    at_s: float = -inf


_GIVEN = tuple(each.name for each in fields(PendingJob) if each.name in columns(Pending))


class SnapshotBuilder:
    """Keeps the planner's facts up to date; `build` freezes them. Used by one thread.

    Args:
        chip_values: What an hour of each chip is worth, relative to an H100-hour; 1 for chips not named.
        usage_half_life_s: After how long a team's use weighs half.
    """

    def __init__(
        self,
        *,
        chip_values: Mapping[ChipName, float] = CHIP_VALUES,
        usage_half_life_s: float = USAGE_HALF_LIFE_S,
    ) -> None:
        self._chip_values = chip_values
        self._half_life_s = usage_half_life_s
        self._tree: dict[TeamName, Team] = {}
        self._spent: Mapping[TeamName, float] = {}
        self._clusters: dict[ClusterName, _Cluster] = {}
        self._replicas: tuple[Replica, ...] = ()
        self._pending = GrowableTable(columns(Pending))
        self._avoiding = Avoiding()
        self._shapes: dict[Shape, int] = {}
        self._shape_weight: list[float] = []
        self._shape_of_options: dict[tuple[tuple[RoleName, int], ...], tuple[object, int]] = {}
        self._seen_teams: dict[TeamName, int] = {}
        self._usage = _Usage()
        self.durations = Durations()
        self._live = Attempts(self.durations)

    def set_teams(self, teams: Iterable[Team]) -> None:
        """Replaces the tenant tree. A team nobody lists stands alone, with no guarantee and no limit.

        Args:
            teams: Every team, in any order.

        Raises:
            InvalidInput: A team is listed twice, has an unknown parent, or is its own ancestor.
        """
        self._tree = tenant_tree(teams)

    def set_spent(self, dollars: Mapping[TeamName, float]) -> None:
        """Replaces what each team spent in its budget's window, teams below it included.

        Args:
            dollars: By team; 0 for a team not named.
        """
        self._spent = dict(dollars)

    def set_usage(self, value_s: Mapping[TeamName, float], *, at_s: float) -> None:
        """Replaces what each team used, as after a restart.

        Args:
            value_s: Chip value x seconds by team, decayed to `at_s`.
            at_s: Until when it is counted; live attempts are counted from here on.
        """
        self._usage = _Usage(value_s=dict(value_s), at_s=at_s)

    def set_inventory(self, inventory: Inventory, *, answering: bool, silent_s: float = 0.0) -> None:
        """Replaces what is known of one cluster.

        Args:
            inventory: The last one its engine gave.
            answering: Whether the engine answered this time.
            silent_s: For how long it has not.
        """
        known = self._clusters.get(inventory.cluster)
        if known is None or (known.columns.inventory is not inventory and known.columns.inventory != inventory):
            columns = columns_of(inventory)
            moved = known is None or known.columns.row_of != columns.row_of
            self._clusters[inventory.cluster] = known = _Cluster(
                columns=columns, answering=answering, silent_s=silent_s
            )
            if moved:
                self._live.place(inventory.cluster, columns.row_of)
        known.answering, known.silent_s = answering, silent_s

    def set_avoided(self, until_s: Mapping[NodeRef, float]) -> None:
        """Replaces which nodes nothing new is placed on for a while, for what was lost there.

        Args:
            until_s: Until when, by node; one that no cluster has is passed over.
        """
        self._avoiding.set_nodes(until_s)

    def set_replicas(self, replicas: Iterable[Replica]) -> None:
        """Replaces what is known of where data lie. What nobody reports lies everywhere.

        Args:
            replicas: Every whole copy there is.
        """
        self._replicas = tuple(sorted(replicas, key=lambda replica: (replica.name, replica.cluster)))

    def add_pending(self, job: PendingJob) -> None:
        """Adds a job that waits; one that is known already is replaced."""
        known = job.job in self._pending
        if known:
            self._pending.drop(job.job)
        shape = self._shape(job.spec)
        self._shape_weight[shape] += 0.0 if known else 1.0
        duration = self.durations.predict(job.spec)
        self._pending.put(
            job.job,
            job.submitted_s,
            {name: getattr(job, name) for name in _GIVEN}
            | {
                "shape": shape,
                "tier": job.spec.tier.rank,
                "team": self._team(job.spec.team),
                "duration_s": duration.expected_s,
                "duration_safe_s": duration.safe_s,
                "serves": serves(job.spec),
            },
        )
        self._avoiding.put(job)

    def remove_pending(self, job: JobId) -> None:
        """Forgets a job that no longer waits; does nothing when it is not known."""
        if job in self._pending:
            self._pending.drop(job)
            self._avoiding.drop(job)

    def add_live(self, attempt: LiveAttempt) -> None:
        """Adds an attempt that holds nodes; one that is known already is replaced."""
        cluster = self._clusters.get(attempt.grants[0].cluster)
        row_of = cluster.columns.row_of if cluster else {}
        self._live.put(attempt, shape=self._shape(attempt.spec), team=self._team(attempt.spec.team), row_of=row_of)
        self._avoiding.services.put_live(attempt)

    def remove_live(self, attempt: AttemptId) -> None:
        """Forgets an attempt that holds nothing any more; does nothing when it is not known."""
        self._live.drop(attempt)
        self._avoiding.services.drop_live(attempt)

    def build(self, *, number: int = 1, now_s: float = 0.0) -> Snapshot:
        """Returns everything known now.

        Args:
            number: The number the plan made from it will carry.
        """
        avoid_nodes = self._avoid_nodes(now_s)  # First: shapes may get other numbers.
        clusters = [self._clusters[name].columns for name in sorted(self._clusters)]
        chips = tuple(sorted(set(chain.from_iterable(cluster.chip_names for cluster in clusters))))
        value = np.array([self._chip_values.get(chip, 1.0) for chip in chips], dtype=np.float64)
        names = tuple(sorted({*self._tree, *self._seen_teams}))
        team_row = {name: row for row, name in enumerate(names)}
        levels = tuple(sorted(set(chain.from_iterable(cluster.levels for cluster in clusters))))
        taints = ((), *sorted(set(chain.from_iterable(cluster.taint_sets for cluster in clusters)) - {()}))
        slices = ("", *sorted(set(chain.from_iterable(cluster.slice_names for cluster in clusters)) - {""}))
        seen = integers(team_row[team] for team in self._seen_teams)
        live = self._live.table(clusters, seen, now_s)
        self._advance(live, names, clusters, chips, value, now_s)
        teams = self._team_table(names, chips)
        state = [self._clusters[cluster.inventory.cluster] for cluster in clusters]
        return Snapshot(
            number=number,
            chips=chips,
            chip_value=sealed(value),
            levels=levels,
            taints=taints,
            slices=slices,
            nodes=node_table(clusters, chips, levels, taints, slices, live, self._avoiding.nodes(now_s)),
            clusters=cluster_table(
                [cluster.inventory for cluster in clusters],
                chips,
                answering=[each.answering for each in state],
                silent_s=[each.silent_s for each in state],
            ),
            teams=teams,
            shapes=tuple(self._shapes),
            shape_weight=sealed(np.array(self._shape_weight, dtype=np.float64)),
            live=live,
            pending=self._pending_table(seen),
            offers=tuple(
                ClusterOffer(cluster=row, offer=offer)
                for row, cluster in enumerate(clusters)
                for offer in cluster.inventory.offers
            ),
            data=data_table(self._replicas, [cluster.inventory.cluster for cluster in clusters]),
            avoid=self._avoiding.clusters,
            avoid_nodes=avoid_nodes,
        )

    # ---------------------------------------------------------------- parts

    def _avoid_nodes(self, now_s: float) -> dict[JobId, tuple[AvoidedNode, ...]]:
        """Puts jobs that avoid nodes into shapes that say so, as far as they still do; returns which they avoid."""
        found: dict[JobId, AvoidingJob] = {}
        for one in self._avoiding.jobs(now_s):
            self._pending.set(one.job.job, "shape", self._shape(one.job.spec, one.avoids, one.shuns))
            found[one.job.job] = one
        behind = frozenset(self._avoiding.services.behind())
        for job in self._avoiding.services.pending():
            own, others = found.get(job.job), self._avoiding.services.nodes(job.spec)
            avoids = tuple(sorted(others.union(own.avoids if own is not None else ())))
            shape = self._shape(job.spec, avoids, own.shuns if own is not None else (), spreads=bool(others))
            self._pending.set(job.job, "shape", shape)
            self._pending.set(job.job, "behind", job.job in behind)
        return {job: one.avoided for job, one in found.items() if one.avoided}

    def _shape(
        self,
        spec: JobSpec,
        avoids: tuple[NodeRef, ...] = (),
        shuns: tuple[NodeRef, ...] = (),
        *,
        spreads: bool = False,
    ) -> int:
        # Jobs of one array or batch share their options: looking these up spares building and hashing the shape.
        plain = not (spec.inputs or avoids)
        asks = tuple([(role.name, id(role.options)) for role in spec.roles])
        known = self._shape_of_options.get(asks) if plain else None
        if known is not None:
            return known[1]
        roles = tuple(RoleShape(name=role.name, options=role.options) for role in spec.roles)
        shape = Shape(roles=roles, inputs=spec.inputs, avoids=avoids, shuns=shuns, spreads=spreads)
        row = self._shapes.get(shape)
        if row is None:
            if len(self._shapes) >= SHAPES_MAX:
                self._forget_shapes()
            row = self._shapes[shape] = len(self._shapes)
            self._shape_weight.append(0.0)
        if plain:
            if len(self._shape_of_options) >= 2 * SHAPES_MAX:
                self._shape_of_options.clear()
            self._shape_of_options[asks] = ([role.options for role in spec.roles], row)  # Which live on by it.
        return row

    def _forget_shapes(self) -> None:
        """Keeps the shapes still in use and the heavier half of the others, and halves what history weighs."""
        rows = self._pending.rows()
        used = set(self._pending.column("shape", rows).tolist()) | self._live.shapes()
        by_weight = sorted(range(len(self._shapes)), key=lambda row: (-self._shape_weight[row], row))
        kept = sorted({*used, *by_weight[: SHAPES_MAX // 2]})
        renumbered = {old: new for new, old in enumerate(kept)}
        shapes = tuple(self._shapes)
        self._shapes = {shapes[old]: new for old, new in renumbered.items()}
        self._shape_weight = [self._shape_weight[old] / 2 for old in kept]
        self._shape_of_options.clear()
        self._live.renumber(renumbered)
        for name, old in zip(self._pending.names(), self._pending.column("shape", rows).tolist(), strict=True):
            self._pending.set(name, "shape", renumbered[old])

    def _team(self, team: TeamName) -> int:
        """Returns the team's number in the order it was first seen."""
        return self._seen_teams.setdefault(team, len(self._seen_teams))

    def _pending_table(self, team_row: Integers) -> Pending:
        rows = self._pending.rows()
        team = team_row[self._pending.column("team", rows)] if len(rows) else team_row[:0]
        read = {name: self._pending.column(name, rows) for name in columns(Pending)}
        return table_of(Pending, jobs=tuple(self._pending.names()), **read | {"team": team})

    def _advance(
        self,
        live: Live,
        names: tuple[TeamName, ...],
        clusters: list[ClusterColumns],
        chips: tuple[ChipName, ...],
        value: Floats,
        now_s: float,
    ) -> None:
        """Lets what teams used decay until now, and adds what their live attempts used since the last time.

        Source: Slurm's multifactor plugin, decayed usage with a half-life; here in closed form over the interval.
        """
        if now_s <= self._usage.at_s:
            return
        fades = 0.5 ** ((now_s - self._usage.at_s) / self._half_life_s)
        gain_s = (1.0 - fades) * self._half_life_s / log(2.0)
        used = np.array([self._usage.value_s.get(name, 0.0) for name in names], dtype=np.float64) * fades
        if self._usage.at_s > -inf and len(live.attempts):
            chip_rows = {chip: row for row, chip in enumerate(chips)}
            nowhere = np.zeros(0, dtype=np.int64)  # The last cluster may be gone before its attempts are.
            chip = np.concatenate(
                [
                    nowhere,
                    *(integers(chip_rows[name] for name in each.chip_names)[each.nodes.chip] for each in clusters),
                ]
            )
            known = live.held_node != NONE
            milli = (live.held_whole * MILLI + live.held_share_milli)[known]
            # What was granted now, or waits in its cluster's own queue, has used nothing yet.
            had = live.granted_s[live.held_by[known]] < now_s
            rates = value[chip[live.held_node[known]]] * milli * had / MILLI
            used += gain_s * np.bincount(live.team[live.held_by[known]], weights=rates, minlength=len(names))
        self._usage = _Usage(value_s=dict(zip(names, used.tolist(), strict=True)), at_s=now_s)

    def _team_table(self, names: tuple[TeamName, ...], chips: tuple[ChipName, ...]) -> Teams:
        teams = [self._tree.get(name, Team(name=name)) for name in names]
        usage = [self._usage.value_s.get(name, 0.0) for name in names]
        return team_table(teams, chips, usage=usage, dollars=[self._spent.get(name, 0.0) for name in names])
