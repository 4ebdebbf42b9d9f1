"""Clusters and teams as people see them: what is there, and what is in use."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field

from mainspring.domain.answers.health import NodeClosure, NodeHealthView
from mainspring.domain.answers.people import WaitingUse
from mainspring.domain.codec import message
from mainspring.domain.fleet import AvoidedNode, Inventory, Node
from mainspring.domain.ids import AttemptId, ChipName, ClusterName, JobId, TeamName
from mainspring.domain.job import Hold, Tier
from mainspring.domain.team import Team

FAILED_S = 3_600.0  # How long ago is not long ago.
FAILED_MAX = 1_000  # Counted; who has more need not know how many.


@message("ClusterView")
class ClusterView:
    """One cluster, for people: its inventory, and thousandths of chips of ours in use by node name.

    `avoided` are the nodes that all jobs keep away from for a while, since several were lost there. `hold` keeps
    everything from starting there; nodes that are drained are cordoned by whoever drains them.
    """

    inventory: Inventory
    used_chip_milli: Mapping[str, int]
    answering: bool
    seen_s: float
    avoided: tuple[AvoidedNode, ...] = ()
    hold: Hold | None = None


NODE_USES: Mapping[str, str] = {
    "f": "all chips in use",
    "p": "some chips in use",
    "i": "free",
    "o": "in use by others",
    "a": "avoided for now",
    "c": "closed",
    "d": "down",
    "n": "ordered",
}  # What a node is, as maps have it: its letter, and that in words.


@message("RackView")
class RackView:
    """Nodes that stand together: those of one rack, or of what the cluster has in place of racks.

    Args:
        block: The widest domain they are in, "" where the cluster tells of one level at most.
        rack: The narrowest, "" where it tells of none.
        uses: A letter of `NODE_USES` for each of its nodes, in order of name.
    """

    block: str
    rack: str
    uses: str


@message("ClusterMap")
class ClusterMap:
    """One cluster as a map of it shows it: its racks, and its chips in all.

    Args:
        nodes: By chip type.
        chips: Chips of all nodes that are there.
        healthy: Those of nodes that take work, or do some all the same.
        held: Those that jobs of ours hold.
        closed: Nodes that take no work, in order of name; of very many, the first.
    """

    cluster: ClusterName
    engine: str
    simulated: bool
    answering: bool
    seen_s: float
    nodes: Mapping[ChipName, int]
    dollars_per_chip_hour: Mapping[ChipName, float]
    chips: float
    healthy: float
    held: float
    racks: tuple[RackView, ...]
    closed: tuple[NodeView, ...] = ()
    hold: Hold | None = None


@message("TeamUse")
class TeamUse:
    """What a team and those below it hold and have spent: chips by type and by tier, dollars in its budget's window."""

    chips: Mapping[ChipName, float]
    dollars: float
    tiers: Mapping[str, float] = field(default_factory=dict)


@message("TeamView")
class TeamView:
    """One team, for people; `use` is None while no plan has been made here. `hold` keeps its jobs from starting."""

    team: Team
    use: TeamUse | None = None
    waiting: WaitingUse | None = None
    hold: Hold | None = None


@message("NodeView")
class NodeView:
    """One node of a cluster, or one slot, as its engine sees it, or held; thousandths of its chips in use by us.

    `avoided` tells until when all jobs keep away from it; `health` is None while nothing was told of it. `closures` are
    what keeps it closed, the oldest first.
    """

    node: Node
    used_chip_milli: int
    avoided: AvoidedNode | None = None
    health: NodeHealthView | None = None
    closures: tuple[NodeClosure, ...] = ()


# ---------------------------------------------------------------- at a glance


@message("ClusterGlance")
class ClusterGlance:
    """A cluster's chips; of a delegated one those of its slots.

    Args:
        nodes: All of them.
        nodes_closed: Those on which nothing more may start.
        chips: All of them.
        chips_healthy: Those of nodes on which more may start.
        chips_held: What our attempts hold, by tier.
        chips_foreign: What others hold.
        silent_s: Since its last answer.
    """

    cluster: ClusterName
    simulated: bool
    answering: bool
    silent_s: float
    nodes: int
    nodes_closed: int
    chips: float
    chips_healthy: float
    chips_held: Mapping[str, float]
    chips_foreign: float


@message("QueueGlance")
class QueueGlance:
    """Who waits of one tier.

    Args:
        jobs: All that wait.
        kept: Those of them that are paused, or come after another.
        oldest_s: How long the oldest of the others has waited, None for none.
    """

    tier: Tier
    jobs: int
    kept: int
    oldest_s: float | None


@message("JobGlance")
class JobGlance:
    """A job that holds chips.

    Args:
        held_s: How long its attempt has held them.
        attempt_number: Which one that is.
        step: The newest that its lead told, -1 for none.
        goodput: The part of its time that went into steps nobody has to do again, None while it has had none.
    """

    job: JobId
    name: str
    team: TeamName
    owner: str
    tier: Tier
    cluster: ClusterName
    attempt: AttemptId
    attempt_number: int
    chips: float
    held_s: float
    step: int
    goodput: float | None
    stopping: bool = False


@message("FailedGlance")
class FailedGlance:
    """A job that failed not long ago; times are in seconds since the Unix epoch."""

    job: JobId
    name: str
    team: TeamName
    ended_s: float
    reason: str


@message("Glance")
class Glance:
    """The lab at one moment; jobs are those that the caller may read, all else is the lab's.

    Args:
        at_s: When, in seconds since the Unix epoch.
        planned_s: When the plan was made that queue and holders are taken from.
        queue: By tier, the most urgent first.
        jobs: Those that hold most chips, the largest first.
        running: How many hold any.
        failed: The newest of those that failed within `FAILED_S`, the last first.
        failed_count: How many did, up to `FAILED_MAX`.
    """

    at_s: float
    planned_s: float
    clusters: tuple[ClusterGlance, ...]
    queue: tuple[QueueGlance, ...]
    jobs: tuple[JobGlance, ...]
    running: int
    failed: tuple[FailedGlance, ...]
    failed_count: int
