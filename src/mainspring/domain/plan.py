"""Plans: numbered, complete decisions that leave the executor no choice."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from mainspring.domain.ids import AttemptId, ClusterName, JobId, NodeName, RoleName


class Limit(str, Enum):
    """Which limit binds a waiting job, or called for an eviction."""

    QUOTA = "quota"  # A team's hard cap, or what it may borrow.
    BUDGET = "budget"  # A team's dollars.
    TIER = "tier"  # Everything it could use is held by jobs that come before it, or displaces one that comes after.
    CAPACITY = "capacity"  # Too few free chips, cores or memory.
    TOPOLOGY = "topology"  # Enough is free, but not close enough together.
    DATA = "data"  # What it reads is being moved there.
    HEALTH = "health"  # Nodes that are not ready, leave soon, or a cluster that does not answer.
    DEPENDENCY = "dependency"  # A job it comes after has not succeeded yet.
    PAUSED = "paused"  # Somebody keeps it from starting, or its team.
    IMPOSSIBLE = "impossible"  # No machine known could ever run it.
    SEARCH = "search"  # The plan's own work budget ran out before this job's turn.


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """One option of a job weighed on one cluster.

    Args:
        role: The role the option belongs to.
        option: Index of the option in its role.
        cluster: Where it was weighed.
        simulated: Whether the cluster's chips are pretended.
        fits: Whether it could start there now.
        dollars_per_hour: Price of all its chips, per hour.
        dollars_per_work: Price of one chip-hour of useful work, risk and moves included: lower is better; the score.
        start_s: When it could start there at the earliest, None when nobody knows.
        verdict: One clause for people ("chosen", "1 of 2 free chips short").
    """

    role: RoleName
    option: int
    cluster: ClusterName
    simulated: bool
    fits: bool
    dollars_per_hour: float
    dollars_per_work: float
    start_s: float | None = None
    verdict: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Grant:
    """The nodes one role gets.

    Args:
        role: The role.
        option: Index of the option chosen.
        cluster: The cluster.
        nodes: Nodes in rank order.
        chip_milli: Thousandths of chips taken on each node.
        ranks: Ranks on each node.
        shared: For replicas that share chips: on each node, the chip each rank lies on; () for whole chips.
    """

    role: RoleName
    option: int
    cluster: ClusterName
    nodes: tuple[NodeName, ...]
    chip_milli: tuple[int, ...]
    ranks: tuple[int, ...]
    shared: tuple[tuple[int, ...], ...] = ()

    def __post_init__(self) -> None:
        """Checks that columns agree."""
        assert len(self.nodes) == len(self.chip_milli) == len(self.ranks) > 0
        assert not self.shared or tuple(map(len, self.shared)) == self.ranks


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """A job that starts now, with a grant for every role.

    Args:
        job: The job.
        grants: One per role, all on one cluster.
        considered: Candidates weighed, the chosen ones first, then by score: why here, and what came second.
    """

    job: JobId
    grants: tuple[Grant, ...]
    considered: tuple[Candidate, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Evict:
    """A live attempt that must end to make room, or because its nodes are going; its job goes back to the queue.

    Args:
        attempt: The attempt.
        job: Its job.
        cause: Which limit called for it.
        reason: One clause for people.
        for_job: The job the room is kept for, None for a forced move.
        price_chip_s: What it costs: chip-seconds since the last durable checkpoint, and to restart.
    """

    attempt: AttemptId
    job: JobId
    cause: Limit
    reason: str
    for_job: JobId | None = None
    price_chip_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Resize:
    """An elastic role of a live attempt that grows into idle room, or shrinks to spare somebody an eviction.

    Args:
        attempt: The attempt.
        job: Its job.
        role: The role.
        replicas: How many it has afterwards.
        grant: All its nodes afterwards.
        reason: One clause for people.
        for_job: The job the room is kept for, None for growth.
    """

    attempt: AttemptId
    job: JobId
    role: RoleName
    replicas: int
    grant: Grant
    reason: str
    for_job: JobId | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Move:
    """Bytes to be brought to a cluster before a job can start there.

    Args:
        what: The dataset version or checkpoint.
        source: Where it lies.
        target: Where it must be.
        size_bytes: How much is missing there.
        for_job: The job that waits for it.
    """

    what: str
    source: ClusterName
    target: ClusterName
    size_bytes: int
    for_job: JobId


@dataclass(frozen=True, slots=True, kw_only=True)
class Provision:
    """Nodes to be ordered from an offer.

    Args:
        cluster: Whose offer.
        offer: Its name.
        nodes: How many.
        for_job: The job they are for.
        reason: One clause for people.
    """

    cluster: ClusterName
    offer: str
    nodes: int
    for_job: JobId
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Reservation:
    """Room kept for a waiting job from a time on; until then only what ends before may use it.

    Args:
        job: The job.
        cluster: Where.
        start_s: From when; None: as soon as what runs there, for nobody knows how long, has ended.
        nodes: How many nodes.
    """

    job: JobId
    cluster: ClusterName
    start_s: float | None
    nodes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Wait:
    """Jobs of one equivalence class that wait, and what binds them all.

    Args:
        jobs: In queue order.
        start_s: When each is expected to start, None when nobody can know.
        exact: How many of the first are exact (they hold a reservation); the rest are estimates.
        limit: The binding limit on their best candidate.
        where: The cluster or team whose limit it is.
        short_by: How many chips are missing there; 0 when chips are not the matter.
        reason: One sentence for people.
        considered: Candidates weighed, best first.
    """

    jobs: tuple[JobId, ...]
    start_s: tuple[float | None, ...]
    exact: int
    limit: Limit
    where: str
    short_by: float
    reason: str
    considered: tuple[Candidate, ...]

    def __post_init__(self) -> None:
        """Checks that columns agree."""
        assert len(self.jobs) == len(self.start_s) > 0
        assert 0 <= self.exact <= len(self.jobs)


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """One complete decision over everything that was pending and live.

    Args:
        number: Counts up from 1.
        starts: Jobs that start now, in the order they were placed.
        evicts: Attempts that end now.
        resizes: Elastic roles that grow or shrink now.
        moves: Bytes to be brought where jobs will need them.
        provisions: Nodes to be ordered.
        reservations: Room kept, in queue order.
        waits: Why every other pending job waits, classes in queue order of their first job.
        complete: False when the work budget ran out: what is said stands, but more might have been found.
    """

    number: int
    starts: tuple[Start, ...] = ()
    evicts: tuple[Evict, ...] = ()
    resizes: tuple[Resize, ...] = ()
    moves: tuple[Move, ...] = ()
    provisions: tuple[Provision, ...] = ()
    reservations: tuple[Reservation, ...] = ()
    waits: tuple[Wait, ...] = ()
    complete: bool = True
