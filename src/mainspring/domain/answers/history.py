"""What was: a job's whole life, the fleet at a time, and what a sweep of the store does."""

from __future__ import annotations

from mainspring.domain.answers.jobs import Event, JobView
from mainspring.domain.codec import message
from mainspring.domain.fleet import NodeCondition
from mainspring.domain.ids import ClusterName, JobId, NodeName, TeamName
from mainspring.domain.job import Hold


@message("JobHistory")
class JobHistory:
    """A job's whole life.

    Args:
        job: All about it, with every attempt, what it cost and where its time went.
        events: What happened to it, oldest first; of very many, the newest.
        archived: Whether it is in the archive, and no longer in the store.
    """

    job: JobView
    events: tuple[Event, ...]
    archived: bool = False


@message("Sweep")
class Sweep:
    """What a sweep takes out of the store, or would.

    Args:
        dry_run: Whether nothing of it was done.
        archived: Jobs written to the archive.
        jobs: Jobs removed, with their attempts, events and tokens; all are in the archive.
        events: Events of no job.
        node_states: States that nodes were in.
        health_events: What was seen of machines.
        closures: Closures of nodes that were over.
        node_repairs: What was done to nodes in quarantine.
        maintenance: Windows of maintenance that were over.
        rule_cases: Times that rules of health held.
        plans: Plans.
        tokens: Tokens of people, which had ended.
        allocations: Folders of allocations that ended, with what ranks wrote.
        silent: Clusters that could not be asked for these.
        samples: Files of what ranks of removed jobs reported.
        snapshots: Snapshots of code.
        snapshot_keys: Where they are in the object store; of a dry run, the first of them.
    """

    dry_run: bool = False
    archived: int = 0
    jobs: int = 0
    events: int = 0
    node_states: int = 0
    health_events: int = 0
    closures: int = 0
    node_repairs: int = 0
    maintenance: int = 0
    rule_cases: int = 0
    plans: int = 0
    tokens: int = 0
    allocations: int = 0
    samples: int = 0
    snapshots: int = 0
    snapshot_keys: tuple[str, ...] = ()
    silent: tuple[ClusterName, ...] = ()


@message("ClosedNode")
class ClosedNode:
    """A node on which nothing new was to start; `by` is who closed it, "" for its cluster or nobody known."""

    node: NodeName
    condition: NodeCondition
    since_s: float
    by: str = ""
    reason: str = ""


@message("PastCluster")
class PastCluster:
    """A cluster at a time.

    Args:
        nodes: How many nodes it had; None where that was not written down: of slots, or of so long ago.
        used: On how many of its nodes, or slots, jobs ran.
        closed: How many were closed; `closed_nodes` are the first of them by name.
        hold: What kept everything from starting there; by "" where only its end is known.
    """

    cluster: ClusterName
    nodes: int | None
    used: int
    closed: int
    closed_nodes: tuple[ClosedNode, ...]
    hold: Hold | None = None


@message("PastAttempt")
class PastAttempt:
    """An attempt that held nodes at a time; of an archived job those that it held last."""

    job: JobId
    name: str
    team: TeamName
    number: int
    cluster: ClusterName
    nodes: tuple[NodeName, ...]
    granted_s: float
    archived: bool = False


@message("PastFleet")
class PastFleet:
    """The fleet at a time.

    Args:
        running: Jobs that held nodes, also those that the caller may not read.
        waiting: Jobs that had been submitted, held nothing, and had not ended.
        attempts: Those that the caller may read, the last granted first; of very many, so many.
        unread: Jobs of the archive that had not ended, of which more is not known here: they are not counted.
    """

    at_s: float
    clusters: tuple[PastCluster, ...]
    running: int
    waiting: int
    attempts: tuple[PastAttempt, ...]
    unread: int = 0
