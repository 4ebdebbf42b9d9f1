"""What the planner answers: a numbered, complete decision that leaves the executor no choice."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from mainspring.domain.ids import AttemptId, ClusterName, JobId, NodeName, RoleName


class Limit(str, Enum):
    """Which limit binds a waiting job."""

    QUOTA = "quota"
    CAPACITY = "capacity"
    TOPOLOGY = "topology"
    HEALTH = "health"
    IMPOSSIBLE = "impossible"
    BUDGET = "budget"


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
        dollars_per_work: Price of one chip-hour of useful work: lower is better; the score.
        verdict: One clause for people ("chosen", "1 of 2 free chips short").
    """

    role: RoleName
    option: int
    cluster: ClusterName
    simulated: bool
    fits: bool
    dollars_per_hour: float
    dollars_per_work: float
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
    """

    role: RoleName
    option: int
    cluster: ClusterName
    nodes: tuple[NodeName, ...]
    chip_milli: tuple[int, ...]
    ranks: tuple[int, ...]

    def __post_init__(self) -> None:
        """Checks that columns agree."""
        assert len(self.nodes) == len(self.chip_milli) == len(self.ranks) > 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """A job that starts now, with a grant for every role.

    Args:
        job: The job.
        grants: One per role, all on one cluster.
        considered: Every candidate weighed, the chosen ones first, then by score.
    """

    job: JobId
    grants: tuple[Grant, ...]
    considered: tuple[Candidate, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Evict:
    """A live attempt that must end to make room, or because its nodes are gone.

    Args:
        attempt: The attempt.
        job: Its job, which goes back to the queue.
        cause: Which limit called for it.
        reason: One clause for people.
    """

    attempt: AttemptId
    job: JobId
    cause: Limit
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Wait:
    """A job that waits, and what binds it.

    Args:
        job: The job.
        limit: The binding limit on its best candidate.
        where: The cluster or team whose limit it is.
        short_by: How many chips are missing there; 0 when chips are not the matter.
        reason: One sentence for people.
        considered: Every candidate weighed, best first.
    """

    job: JobId
    limit: Limit
    where: str
    short_by: float
    reason: str
    considered: tuple[Candidate, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """One complete decision over everything that was pending and live.

    Args:
        number: Counts up from 1.
        starts: Jobs that start now, in the order they were placed.
        evicts: Attempts that end now.
        waits: Why every other pending job waits, in queue order.
    """

    number: int
    starts: tuple[Start, ...] = ()
    evicts: tuple[Evict, ...] = ()
    waits: tuple[Wait, ...] = ()
