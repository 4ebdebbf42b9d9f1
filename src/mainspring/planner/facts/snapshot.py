"""Everything the planner may know, frozen at one instant as immutable NumPy columns.

Nodes are ordered by cluster, then name; clusters, chips, teams, levels and taints by name; pending jobs by age, then
id. So equal facts give equal snapshots, whatever order they came in. Chips and cores are counted in thousandths
(`milli`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from math import inf
from typing import Annotated, TypeVar

import numpy as np
from numpy.typing import NDArray

from mainspring.domain.fleet import AvoidedNode, NodeRef, Offer
from mainspring.domain.ids import AttemptId, ChipName, ClusterName, JobId, NodeName, RoleName, TeamName
from mainspring.domain.job import JobSpec, Option
from mainspring.domain.plan import Grant

Integers = NDArray[np.int64]
Floats = NDArray[np.float64]
Flags = NDArray[np.bool_]
Scalar = TypeVar("Scalar", np.int64, np.float64, np.bool_)

NONE = -1  # In a column of indexes: no such thing.
NO_LIMIT = -1  # In a column of limits: unlimited.
UNCOUNTED = 1 << 50  # Cores (milli) or memory (MiB) of a node, or of its chips, where nobody counts: always enough.


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """How a column of a table is kept, as far as its type alone does not say.

    Args:
        of: What its rows are, "" for what the table's own rows are.
        fill: What a new row holds there when nobody says.
        dtype: As the column's own type says.
    """

    of: str = ""
    fill: float = 0.0
    dtype: type[np.generic] = np.float64


NEVER = Column(fill=-inf)
UNKNOWN = Column(fill=inf)


def sealed(column: NDArray[Scalar]) -> NDArray[Scalar]:
    """Returns `column`, which nobody can write to from now on.

    Args:
        column: A column of a snapshot under construction.
    """
    column.setflags(write=False)
    return column


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Nodes:
    """Nodes, one row each; then partly used chips, one row each.

    Args:
        names: Unique inside their cluster.
        cluster: Index of the cluster.
        chip: Index of the chip type.
        chips: How many chips the node has.
        whole: How many of them nobody uses any part of.
        cpu_total_milli: Cores it has, `UNCOUNTED` when nobody counts.
        cpu_milli: Cores free, `UNCOUNTED` when nobody counts.
        memory_total_mib: Memory it has, `UNCOUNTED` when nobody counts.
        memory_mib: Memory free, `UNCOUNTED` when nobody counts.
        ready: Whether new work may be placed on it.
        coming: Whether it was ordered and is not there yet.
        taint: Index of its set of taints.
        slice: Index of its slice shape.
        chip_memory_mib: Memory of each of its chips, `UNCOUNTED` when nobody knows.
        leaves_s: When it goes away, infinity when nobody knows.
        words: Why nothing new is placed on it, or why it goes away; "" when nobody says.
        avoided_s: Until when nothing new is placed on it, for what was lost there; minus infinity for no time.
        divides: Whether several replicas may share one of its chips.
        domain: One column a level: id of the node's domain there, unique in its cluster, or `NONE`.
        share_node: For each partly used chip: row of its node.
        share_chip: For each partly used chip: its number on the node.
        share_milli: For each partly used chip: thousandths still free.
    """

    names: tuple[NodeName, ...]
    cluster: Integers
    chip: Integers
    chips: Integers
    whole: Integers
    cpu_total_milli: Integers
    cpu_milli: Integers
    memory_total_mib: Integers
    memory_mib: Integers
    ready: Flags
    coming: Flags
    taint: Integers
    slice: Integers
    chip_memory_mib: Integers
    leaves_s: Floats
    words: tuple[str, ...]
    avoided_s: Annotated[Floats, NEVER]
    divides: Flags
    domain: Integers
    share_node: Annotated[Integers, Column(of="share")]
    share_chip: Annotated[Integers, Column(of="share")]
    share_milli: Annotated[Integers, Column(of="share")]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Clusters:
    """Clusters, one row each.

    Args:
        names: In order.
        simulated: Whether the chips are pretended.
        answering: Whether its engine answered last time.
        silent_s: For how long its engine has not answered; 0 when it answers.
        delegated: Whether it places work by itself: its nodes are slots, and its own queue may add a wait.
        dollars_per_chip_hour: Rows are clusters, columns chip types; 0 where no price is known.
        losses_per_node_hour: How often it takes a node back.
    """

    names: tuple[ClusterName, ...]
    simulated: Flags
    answering: Flags
    silent_s: Floats
    delegated: Flags
    dollars_per_chip_hour: Floats
    losses_per_node_hour: Floats


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Teams:
    """The tenant tree, one row a team; where a column has two dimensions, the second is the chip type.

    Args:
        names: In order.
        parent: Index of the team above, or `NONE`.
        milli_max: The most the team and those below it may hold together, or `NO_LIMIT`.
        guarantee_milli: What they can always have.
        borrow_max_milli: The most beyond the guarantee, or `NO_LIMIT`.
        lend_max_milli: The most of the guarantee that others may use while it is idle, or `NO_LIMIT`.
        weight: Its part of what is borrowed, relative to its siblings.
        usage: Chip value x seconds it used by itself (teams below not included), decayed.
        dollars_max: Its budget for the window, infinity when it has none.
        dollars: What it and those below it spent in the window, live attempts until now included.
        attained: Whether its own jobs are taken by least chip-time had, not by age.
    """

    names: tuple[TeamName, ...]
    parent: Integers
    milli_max: Integers
    guarantee_milli: Integers
    borrow_max_milli: Integers
    lend_max_milli: Integers
    weight: Floats
    usage: Floats
    dollars_max: Floats
    dollars: Floats
    attained: Flags


@dataclass(frozen=True, slots=True, kw_only=True)
class RoleShape:
    """What placement needs to know of a role.

    Args:
        name: The role's name.
        options: Acceptable ways to run it.
    """

    name: RoleName
    options: tuple[Option, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """What placement needs to know of a job; jobs of one shape can stand in the same places.

    Args:
        roles: What it asks for.
        avoids: Nodes it is not placed on while others could run it.
        shuns: Those of them it is not placed on whatever else there is.
        spreads: Whether it rather stands where it avoids to, but for those it shuns, than waits.
    """

    roles: tuple[RoleShape, ...]
    inputs: tuple[str, ...] = ()
    avoids: tuple[NodeRef, ...] = ()
    shuns: tuple[NodeRef, ...] = ()
    spreads: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveAttempt:
    """An attempt that holds nodes.

    Args:
        spec: The job's spec.
        grants: What it was granted.
        submitted_s: When its job was submitted.
        granted_s: When it was granted.
        resized_s: When it was last given more or fewer nodes, minus infinity for never.
        attained_chip_s: Chip-seconds its job's earlier attempts had.
        durable_s: When its newest durable checkpoint was taken; None before the first.
        evicted_s: When an attempt of its job was last evicted.
        stopping: Whether it was asked to end already.
        sized: Whether people have said another size of it since it was submitted: then it is brought to that.
        queued: Whether it waits in its cluster's own queue: it has had nothing yet.
    """

    attempt: AttemptId
    job: JobId
    spec: JobSpec
    grants: tuple[Grant, ...]
    submitted_s: float
    granted_s: float
    resized_s: float = -inf
    attained_chip_s: float = 0.0
    durable_s: float | None = None
    evicted_s: float = -inf
    stopping: bool = False
    sized: bool = False
    queued: bool = False


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Live:
    """Live attempts, one row each, ordered by id; and what they hold, one row a node (or shared chip) held.

    Args:
        attempts: In order.
        grants: What each was granted.
        shape: Index of its shape.
        team: Index of the team charged.
        tier: Rank of its tier.
        cluster: Index of its cluster, or `NONE` when the cluster is not known.
        submitted_s: When its job was submitted.
        granted_s: When it was granted; now, while it waits in its cluster's own queue.
        resized_s: When it was last given more or fewer nodes, minus infinity for never.
        attained_chip_s: Chip-seconds its job has had until now, earlier attempts included.
        durable_s: When its newest durable checkpoint was taken, or it was granted: what came after would be lost.
        evicted_s: When an attempt of its job was last evicted, minus infinity for never.
        ends_s: When it is expected to end, infinity when nobody can know.
        ends_safe_s: When it will very likely have ended, infinity when nobody can know.
        stopping: Whether it was asked to end already: what it holds comes free soon.
        sized: Whether people have said another size of it since it was submitted.
        serves: Whether it is a replica of a service.
        chip_milli: What it holds in all.
        held_by: For each thing held: row of the attempt.
        held_node: For each thing held: row of the node, or `NONE` when its cluster no longer lists it.
        held_whole: For each thing held: whole chips.
        held_cpu_milli: For each thing held: cores.
        held_memory_mib: For each thing held: memory.
        held_chip: For each thing held: number of the shared chip, or `NONE`.
        held_share_milli: For each thing held: thousandths of the shared chip.
    """

    attempts: tuple[AttemptId, ...]
    jobs: tuple[JobId, ...]
    grants: tuple[tuple[Grant, ...], ...]
    shape: Integers
    team: Integers
    tier: Integers
    cluster: Integers
    submitted_s: Floats
    granted_s: Floats
    resized_s: Annotated[Floats, NEVER]
    attained_chip_s: Floats
    durable_s: Floats
    evicted_s: Annotated[Floats, NEVER]
    ends_s: Annotated[Floats, UNKNOWN]
    ends_safe_s: Annotated[Floats, UNKNOWN]
    stopping: Flags
    sized: Flags
    serves: Flags
    chip_milli: Integers
    held_by: Annotated[Integers, Column(of="held")]
    held_node: Annotated[Integers, Column(of="held")]
    held_whole: Annotated[Integers, Column(of="held")]
    held_cpu_milli: Annotated[Integers, Column(of="held")]
    held_memory_mib: Annotated[Integers, Column(of="held")]
    held_chip: Annotated[Integers, Column(of="held")]
    held_share_milli: Annotated[Integers, Column(of="held")]


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingJob:
    """A job that waits.

    Args:
        spec: What it asks for.
        submitted_s: When it was submitted.
        attained_chip_s: Chip-seconds its earlier attempts had.
        evicted_s: When an attempt of it was last evicted.
        blocked: Whether a job it comes after has not succeeded yet.
        paused: Whether somebody keeps it from starting.
        avoid: Clusters that took it back: until when it is not to be placed there.
        avoid_nodes: Nodes where its attempts were lost, each once.
    """

    job: JobId
    spec: JobSpec
    submitted_s: float
    attained_chip_s: float = 0.0
    evicted_s: float = -inf
    blocked: bool = False
    paused: bool = False
    avoid: Mapping[ClusterName, float] = field(default_factory=dict)
    avoid_nodes: tuple[AvoidedNode, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Pending:
    """Jobs that wait, one row each, oldest first, then by id.

    Args:
        jobs: In order.
        shape: Index of its shape.
        team: Index of the team charged.
        tier: Rank of its tier.
        submitted_s: When it was submitted.
        attained_chip_s: Chip-seconds its earlier attempts had.
        evicted_s: When an attempt of it was last evicted, minus infinity for never.
        duration_s: How long it is expected to run, infinity when nobody can know.
        duration_safe_s: How long it will very likely run at most, infinity when nobody can know.
        blocked: Whether a job it comes after has not succeeded yet.
        paused: Whether somebody keeps it from starting.
        serves: Whether it is a replica of a service.
        behind: Whether another replica of its service is to have its place first.
    """

    jobs: tuple[JobId, ...]
    shape: Integers
    team: Integers
    tier: Integers
    submitted_s: Floats
    attained_chip_s: Floats
    evicted_s: Annotated[Floats, NEVER]
    duration_s: Annotated[Floats, UNKNOWN]
    duration_safe_s: Annotated[Floats, UNKNOWN]
    blocked: Flags
    paused: Flags
    serves: Flags
    behind: Flags


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterOffer:
    """An offer and whose it is.

    Args:
        cluster: Index of the cluster.
        offer: What could be had.
    """

    cluster: int
    offer: Offer


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Data:
    """Where inputs lie; one that is not listed lies everywhere.

    Args:
        names: In order.
        size_bytes: How large each is.
        present: Rows are inputs, columns clusters: whether it lies there whole.
    """

    names: tuple[str, ...]
    size_bytes: Integers
    present: Flags


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Snapshot:
    """The facts one plan is made from.

    Args:
        number: The number the plan will carry.
        chips: Chip types known, in order.
        chip_value: What an hour of each is worth, relative to an H100-hour.
        levels: Names of the levels of topology known, in order; "cluster" and "node" always exist and are not listed.
        taints: Sets of taints known, in order; the first is the empty one.
        slices: Slice shapes known, in order; the first is "": no slice.
        nodes: Every node of every cluster.
        shapes: Every shape of a pending or live job, and of some that ended.
        shape_weight: How often jobs of each shape come, relative to one another: what room must be kept useful for.
        offers: What could be had.
        avoid: Pending jobs that clusters took back: until when they are not to be placed there.
        avoid_nodes: Pending jobs that avoid nodes now: which ones; their shapes name them too.
    """

    number: int
    chips: tuple[ChipName, ...]
    chip_value: Floats
    levels: tuple[str, ...]
    taints: tuple[tuple[str, ...], ...]
    slices: tuple[str, ...]
    nodes: Nodes
    clusters: Clusters
    teams: Teams
    shapes: tuple[Shape, ...]
    shape_weight: Floats
    live: Live
    pending: Pending
    offers: tuple[ClusterOffer, ...]
    data: Data
    avoid: Mapping[JobId, Mapping[ClusterName, float]]
    avoid_nodes: Mapping[JobId, tuple[AvoidedNode, ...]]


def emptied(snapshot: Snapshot) -> Snapshot:
    """Returns a snapshot of the same nodes as they are, with nothing on them.

    Args:
        snapshot: The fleet; its live attempts stay listed.
    """
    nodes, nothing = snapshot.nodes, sealed(np.zeros(0, dtype=np.int64))
    free = replace(
        nodes,
        whole=nodes.chips,
        cpu_milli=nodes.cpu_total_milli,
        memory_mib=nodes.memory_total_mib,
        share_node=nothing,
        share_chip=nothing,
        share_milli=nothing,
    )
    return replace(snapshot, nodes=free)
