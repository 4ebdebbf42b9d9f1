"""Everything the planner may know, frozen at one instant as immutable NumPy columns.

Chips are counted in thousandths (`milli`). Nodes are ordered by cluster, then name; clusters, chips, teams and levels
by name; so equal facts give equal snapshots, whatever order they came in.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from mainspring.domain.ids import AttemptId, ChipName, ClusterName, JobId, NodeName, RoleName, TeamName
from mainspring.domain.job import Option, Tier

Integers = NDArray[np.int64]
Floats = NDArray[np.float64]
Flags = NDArray[np.bool_]
Scalar = TypeVar("Scalar", np.int64, np.float64, np.bool_)

NONE = -1  # In a column of indexes: no such thing.
NO_LIMIT = -1  # In a column of limits: unlimited.


def sealed(column: NDArray[Scalar]) -> NDArray[Scalar]:
    """Returns `column`, which nobody can write to from now on.

    Args:
        column: A column of a snapshot under construction.
    """
    column.setflags(write=False)
    return column


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Nodes:
    """Nodes, one row each.

    Args:
        names: Unique inside their cluster.
        cluster: Index of the cluster.
        chip: Index of the chip type.
        total_milli: What the node has.
        free_milli: What neither live attempts nor foreign work use; never negative.
        ready: Whether new work may be placed on it.
        domain: One column a level: id of the node's domain there, unique in its cluster, or `NONE`.
    """

    names: tuple[NodeName, ...]
    cluster: Integers
    chip: Integers
    total_milli: Integers
    free_milli: Integers
    ready: Flags
    domain: Integers


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Clusters:
    """Clusters, one row each.

    Args:
        names: In order.
        simulated: Whether the chips are pretended.
        answering: Whether its engine answered last time.
        dollars_per_chip_hour: Rows are clusters, columns chip types; 0 where no price is known.
    """

    names: tuple[ClusterName, ...]
    simulated: Flags
    answering: Flags
    dollars_per_chip_hour: Floats


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Teams:
    """The tenant tree, one row a team.

    Args:
        names: In order.
        parent: Index of the team above, or `NONE`.
        milli_max: The most the team and those below it may hold together, or `NO_LIMIT`.
    """

    names: tuple[TeamName, ...]
    parent: Integers
    milli_max: Integers


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Live:
    """Live attempts, one row each, and what they hold, one row a node held.

    Args:
        attempts: In order.
        jobs: The job of each.
        team: Index of the team charged.
        tier: Rank of its tier.
        cluster: Index of its cluster, or `NONE` when the cluster is not known.
        submitted_s: When its job was submitted.
        held_by: For each node held: index of the attempt.
        held_node: For each node held: index of the node, or `NONE` when its cluster no longer lists it.
        held_milli: For each node held: how much.
    """

    attempts: tuple[AttemptId, ...]
    jobs: tuple[JobId, ...]
    team: Integers
    tier: Integers
    cluster: Integers
    submitted_s: Floats
    held_by: Integers
    held_node: Integers
    held_milli: Integers


@dataclass(frozen=True, slots=True, kw_only=True)
class RoleShape:
    """What placement needs to know of a role.

    Args:
        name: The role's name.
        options: Acceptable ways to run it.
    """

    name: RoleName
    options: tuple[Option, ...]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Shape:
    """Pending jobs that the planner cannot tell apart but by age.

    Args:
        team: Index of the team charged.
        tier: How urgent they are.
        roles: What they ask for.
        jobs: Oldest first, then by id.
        submitted_s: When each was submitted.
    """

    team: int
    tier: Tier
    roles: tuple[RoleShape, ...]
    jobs: tuple[JobId, ...]
    submitted_s: Floats


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Snapshot:
    """The facts one plan is made from.

    Args:
        number: The number the plan will carry.
        chips: Chip types known, in order.
        levels: Names of the levels of topology known, in order; "cluster" and "node" always exist and are not listed.
        nodes: Every node of every cluster.
        clusters: Every cluster.
        teams: The tenant tree.
        live: Every live attempt.
        pending: Every pending job, by shape; ordered by tier, team, then oldest job.
    """

    number: int
    chips: tuple[ChipName, ...]
    levels: tuple[str, ...]
    nodes: Nodes
    clusters: Clusters
    teams: Teams
    live: Live
    pending: tuple[Shape, ...]
