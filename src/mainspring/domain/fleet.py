"""Clusters, nodes and allocations, as engines report them and the planner reads them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from hashlib import sha256

from mainspring.domain.errors import InvalidInput
from mainspring.domain.hardware.health import Repair
from mainspring.domain.ids import (
    NO_JOB,
    AllocationId,
    AttemptId,
    ChipName,
    ClusterName,
    JobId,
    NodeName,
    RoleName,
    TeamName,
    checked_name,
)
from mainspring.domain.job import CHIP_MEMORY_GIB_MAX, LAB, Tier
from mainspring.domain.wire.telemetry import LogForm

NODES_MAX = 200_000
MEMORY = "/dev/shm"  # Linux keeps POSIX shared memory there, a tmpfs: files in it never see a disk.
CHIPS_MAX = 1_000_000  # Of one node; far more than any machine has, and a pool that is shown as one may.


class NodeCondition(str, Enum):
    """Whether new work may be placed on a node."""

    READY = "ready"
    CORDONED = "cordoned"
    DOWN = "down"
    COMING = "coming"  # Ordered from an offer, not there yet.


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """One machine.

    Args:
        name: Unique inside its cluster.
        chip: Chip type.
        chips: How many chips it has.
        domains: Its place in the topology tree, from the widest level down: (level, name) pairs such as
            (("block", "b1"), ("rack", "r3")).
        condition: Whether new work may be placed on it.
        condition_owner: Who set the condition, "" for the engine itself.
        condition_reason: Why, for people.
        foreign_chip_milli: Thousandths of chips in use by work that is not ours.
        cpus: CPU cores work may use, None when nobody counts them.
        memory_gib: Host memory work may use, None when nobody counts it.
        foreign_cpus: CPU cores in use by work that is not ours.
        foreign_memory_gib: Host memory in use by work that is not ours.
        taints: Only work that tolerates every one of them comes here.
        slice: Shape of the TPU slice it is a host of ("4x4x4"); all hosts of a slice share their "slice" domain.
        leaves_s: When it goes away (a spot notice, a drain, a reservation of others), None when nobody knows.
        divides: Whether several replicas may share one of its chips; the engine must be able to start them so.
        chip_memory_gib: Memory of each of its chips, as its driver counts it or its operator says; None where neither
            is known.
        features: The cluster's own words for what it has ("ib", "nvlink"), for people.
    """

    name: NodeName
    chip: ChipName
    chips: int
    domains: tuple[tuple[str, str], ...] = ()
    condition: NodeCondition = NodeCondition.READY
    condition_owner: str = ""
    condition_reason: str = ""
    foreign_chip_milli: int = 0
    cpus: float | None = None
    memory_gib: float | None = None
    foreign_cpus: float = 0.0
    foreign_memory_gib: float = 0.0
    taints: tuple[str, ...] = ()
    slice: str = ""
    leaves_s: float | None = None
    divides: bool = True
    features: tuple[str, ...] = ()
    chip_memory_gib: float | None = None

    def __post_init__(self) -> None:
        """Checks the name and the counts.

        Raises:
            InvalidInput: A field is out of its range.
        """
        checked_name(self.name, "node")
        if not (0 <= self.chips <= CHIPS_MAX and 0 <= self.foreign_chip_milli <= self.chips * 1_000):
            raise InvalidInput(
                "accept a node", on=self.name, got=f"{self.chips} chips", wanted=f"0 to {CHIPS_MAX} chips"
            )
        for what, has, foreign in (
            ("cpus", self.cpus, self.foreign_cpus),
            ("memory_gib", self.memory_gib, self.foreign_memory_gib),
            ("chip_memory_gib", self.chip_memory_gib, 0.0),
        ):
            if (has is not None and not 0 <= has <= 1e9) or not 0 <= foreign <= 1e9:
                raise InvalidInput("accept a node", on=self.name, got=f"{what} {has}, foreign {foreign}", wanted=">= 0")


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """Nodes a cluster could get.

    Args:
        name: Unique inside its cluster ("a3-spot").
        chip: Chip type.
        chips: Chips of one node.
        nodes_max: The most nodes it can still give.
        lead_time_s: From the order until they are ready.
        dollars_per_chip_hour: Price.
        spot: Whether they can be taken back at any time.
        withheld: Why it gives none for now all the same, in the cluster's words, such as that the last ones never came;
            "" where it does.
        chip_memory_gib: Memory of each of their chips, None where the cluster does not say.
    """

    name: str
    chip: ChipName
    chips: int
    nodes_max: int
    lead_time_s: float
    dollars_per_chip_hour: float
    spot: bool = False
    withheld: str = ""
    chip_memory_gib: float | None = None

    def __post_init__(self) -> None:
        """Checks the name and the numbers.

        Raises:
            InvalidInput: A field is out of its range.
        """
        checked_name(self.name, "offer")
        sound = 0 < self.chips <= CHIPS_MAX and 0 <= self.nodes_max <= NODES_MAX and self.lead_time_s >= 0
        sound = sound and (self.chip_memory_gib is None or 0 <= self.chip_memory_gib <= CHIP_MEMORY_GIB_MAX)
        if not (sound and self.dollars_per_chip_hour >= 0):
            raise InvalidInput("accept an offer", on=self.name, got=f"{self}"[:200], wanted="counts and prices >= 0")


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeOrder:
    """An order of nodes that is under way.

    Args:
        cluster: Whose offer.
        offer: Its name.
        job: The job they are for.
        nodes: How many.
        expected_s: When they should be there.
    """

    cluster: ClusterName
    offer: str
    job: JobId
    nodes: int
    expected_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeSign:
    """What others say is wrong with a node, through its cluster, which goes on using it all the same.

    Args:
        check: What they looked at; of one node each has another.
        code: Their own word for it.
        message: For people.
        repair: What would help.
        stands: Whether they say it now; else they cannot tell, and what was told before holds.
    """

    node: NodeName
    check: str
    code: str
    message: str = ""
    repair: Repair = Repair.NONE
    stands: bool = True

    def __post_init__(self) -> None:
        """Checks the names.

        Raises:
            InvalidInput: One is none.
        """
        checked_name(self.node, "node")
        checked_name(self.check, "check")


@dataclass(frozen=True, slots=True, kw_only=True)
class Inventory:
    """Everything one engine says of its cluster at one instant.

    Args:
        cluster: The cluster's name.
        engine: Kind of engine ("local", "slurm", ...).
        simulated: Whether the chips are pretended; shown wherever the cluster is shown.
        dollars_per_chip_hour: Price by chip type.
        nodes: All nodes, ordered by name; slots when the cluster is delegated.
        delegated: Whether the cluster places work by itself. Its nodes are slots then: each stands for some machine of
            its kind, which one the cluster decides once its queue lets an allocation start. As many are free as the
            cluster lets us ask for now, those that will have to wait included.
        offers: Nodes that could be had, ordered by name.
        orders: What is under way of them; its nodes are among `nodes`, as COMING.
        losses_per_node_hour: How often it takes a node back (spot), on average.
        signs: What is said of its nodes that closes none of them.
    """

    cluster: ClusterName
    engine: str
    simulated: bool
    dollars_per_chip_hour: Mapping[ChipName, float] = field(default_factory=dict)
    nodes: tuple[Node, ...]
    delegated: bool = False
    offers: tuple[Offer, ...] = ()
    orders: tuple[NodeOrder, ...] = ()
    losses_per_node_hour: float = 0.0
    signs: tuple[NodeSign, ...] = ()

    def __post_init__(self) -> None:
        """Checks the name, the size, and that nodes are ordered and unique.

        Raises:
            InvalidInput: A field is out of its range.
        """
        checked_name(self.cluster, "cluster")
        names = [node.name for node in self.nodes]
        if len(names) > NODES_MAX or names != sorted(set(names)):
            raise InvalidInput(
                "accept an inventory", on=self.cluster, got=f"{len(names)} nodes", wanted="unique nodes in name order"
            )


class AllocationPhase(str, Enum):
    """What an engine sees of an allocation."""

    PENDING = "pending"
    RUNNING = "running"
    STOPPING = "stopping"
    ENDED = "ended"


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class NodeRef:
    """One node among those of all clusters."""

    cluster: ClusterName
    node: NodeName


@dataclass(frozen=True, slots=True, kw_only=True)
class AvoidedNode:
    """A node that is avoided, by one job or by all, because attempts were lost there.

    Args:
        until_s: Until when it is, while other nodes could do.
        again_s: From when on it is tried all the same by a job that nothing else could run; never later than `until_s`.
        reason: What was lost there, for people.
    """

    at: NodeRef
    until_s: float
    again_s: float
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AllocationSeen:
    """One allocation as its engine sees it.

    Args:
        allocation: Its id.
        phase: Where it stands; agents of an ENDED one are all gone.
        nodes: Where it is, in rank order.
        exit_code: Of the first agent that failed, 0 when all ended well, None while any lives or when unknown.
        reason: The engine's own words, for people; while it is PENDING, what it waits for.
        agent_lost: Whether one of its agents ended otherwise than well.
        lost_nodes: Where those agents were, as far as the engine can tell. They are over, not merely silent, and with
            them their ranks; none is started again. Others go on without them at once.
        taken: Whether the cluster took it back (preempted, cancelled, out of time, refused by its queue): the job goes
            back to ours, and nothing is held against it.
        hosts: The machines behind its nodes, in the same order, where a delegated cluster chose them.
        job_id: The job it was launched for, "" where its order told none: a store that has forgotten it goes by that.
    """

    allocation: AllocationId
    phase: AllocationPhase
    nodes: tuple[NodeName, ...]
    exit_code: int | None = None
    reason: str = ""
    agent_lost: bool = False
    lost_nodes: tuple[NodeName, ...] = ()
    taken: bool = False
    hosts: tuple[str, ...] = ()
    job_id: JobId = NO_JOB


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchOrder:
    """What an engine must start: one agent on each of these nodes.

    Args:
        allocation: Id that makes the order idempotent.
        attempt: The attempt it belongs to.
        role: The role its nodes serve.
        nodes: Pinned nodes in rank order.
        chip_milli: Thousandths of chips granted on each node.
        cpu_milli: Thousandths of CPU cores asked for on each node; 0 where nothing particular was.
        memory_mib: Host memory asked for on each node; 0 where nothing particular was.
        controller: URL the agents register at.
        controllers_beside: URLs of other servers, which they call when that one does not answer.
        token: Secret scoped to this attempt. Passed to agents by file or pipe, never in arguments or logs.
        job: Its job's name, for people who look at the cluster's own tools.
        job_id: Its job's id, which the engine keeps and shows.
        teams: The team that is charged, and those above it, nearest first.
        tier: How urgent it is.
        duration_s: How long the job is expected to run, None when nobody can know.
        attestation: What the engine keeps until the allocation is over, and shows when asked: by it the controller
            knows the allocation again. It holds no secret, and is at most a MiB.
        log_form: How agents say what they have to say.
    """

    allocation: AllocationId
    attempt: AttemptId
    role: RoleName
    nodes: tuple[NodeName, ...]
    chip_milli: tuple[int, ...]
    cpu_milli: tuple[int, ...] = ()
    memory_mib: tuple[int, ...] = ()
    controller: str
    token: str = field(repr=False)
    job: str = ""
    job_id: JobId = NO_JOB
    teams: tuple[TeamName, ...] = (LAB,)
    tier: Tier = Tier.STANDARD
    duration_s: float | None = None
    controllers_beside: tuple[str, ...] = ()
    attestation: str = field(default="", repr=False)
    log_form: LogForm = LogForm.TEXT

    def __post_init__(self) -> None:
        """Checks that every node has its grant, and completes what was not asked for."""
        nothing = (0,) * len(self.nodes)
        for column in ("cpu_milli", "memory_mib"):
            object.__setattr__(self, column, getattr(self, column) or nothing)
        assert self.nodes
        assert len(self.nodes) == len(self.chip_milli) == len(set(self.nodes))
        assert len(self.nodes) == len(self.cpu_milli) == len(self.memory_mib)


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentOrder:
    """What one agent is told, in the order file its engine leaves for it.

    An agent sees to it that its ranks end when it does, however it ends. An engine that ends an agent by force also
    ends its session and its descendants.

    Args:
        allocation: The allocation it belongs to.
        attempt: The attempt it serves.
        role: The role its node serves.
        node: Its node.
        index: Its place among the allocation's nodes, in rank order.
        chip_milli: Thousandths of chips granted on the node.
        controller: URL it registers at.
        controllers_beside: URLs of other servers, which it calls when that one does not answer.
        token: Secret scoped to the attempt.
        work_dir: Absolute folder of its own on its node, for code, sockets and state.
        report_dir: Absolute folder its engine reads: `rank-<rank>.log`, and `exit.json`, an `AgentExit`, as its last
            act; the work folder when empty. Before the engine asks it to end, it writes there how long it has, in
            seconds: `grace`. When a log is turned over, the part before becomes `rank-<rank>.log.<end>`: the offset in
            all of the rank's output at which it ends and `rank-<rank>.log` begins.
        run_as: The user of this machine that its ranks run as; "" for its own.
        shared_dir: With such a user: absolute folder that this user is to make, where nobody else can remove it. Its
            path is short, as sockets lie in it, and nobody can guess its name. It goes when the agent ends, as does
            `memory_of` it, or of the work folder; what is left where all was killed, its engine removes.
        job_id: Its job's id.
        log_form: How it says what it has to say.
    """

    allocation: AllocationId
    attempt: AttemptId
    role: RoleName
    node: NodeName
    index: int
    chip_milli: int
    controller: str
    token: str = field(repr=False)
    work_dir: str
    report_dir: str = ""
    run_as: str = ""
    shared_dir: str = ""
    controllers_beside: tuple[str, ...] = ()
    job_id: JobId = NO_JOB
    log_form: LogForm = LogForm.TEXT


def memory_of(folder: str) -> str:
    """Returns where the files of an agent's folder are that see no disk: others see the name, and not what it is of.

    Args:
        folder: The one that its ranks' user makes, else its work folder.
    """
    return f"{MEMORY}/mainspring-{sha256(folder.encode()).hexdigest()[:32]}"


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentPlaces:
    """Where the agents of one allocation are, for an order that is written once for all of them.

    Args:
        nodes: In rank order.
        chip_milli: Thousandths of chips granted on each.
    """

    nodes: tuple[NodeName, ...]
    chip_milli: tuple[int, ...]

    def order_of(self, index: int, order: AgentOrder) -> AgentOrder:
        """Returns one agent's order.

        Args:
            index: Its place among the nodes.
            order: Any agent's.
        """
        return replace(order, node=self.nodes[index], index=index, chip_milli=self.chip_milli[index])


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentExit:
    """How an agent ended, in its own words.

    Args:
        exit_code: 0 when everything it was asked to do ended well.
        reason: Why, for people.
    """

    exit_code: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LogChunk:
    """A piece of a rank's output.

    Args:
        data: The bytes.
        next_offset: Where the next piece starts.
    """

    data: bytes
    next_offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Replica:
    """A reported fact: a whole copy of a dataset version or checkpoint lies on a cluster.

    Args:
        name: The dataset version or checkpoint.
        cluster: Where.
        size_bytes: How large it is.
    """

    name: str
    cluster: ClusterName
    size_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class EndedBefore:
    """Which of the allocations that have ended are to be forgotten; times are by the clock of the engine.

    Args:
        time_s: Those that ended before this, in seconds since the Unix epoch.
        kept: Allocations that stay, however long ago they ended.
        limit: The most to remove; 0 removes nothing.
        bytes_max: How much all that has ended may take together, what stays among it; None for no bound.
        spared_s: What ended after this goes for no bound.
    """

    time_s: float
    kept: tuple[AllocationId, ...] = ()
    limit: int = 0
    bytes_max: int | None = None
    spared_s: float = 0.0
