"""Clusters, nodes and allocations, as engines report them and the planner reads them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

from mainspring.domain.errors import InvalidInput
from mainspring.domain.ids import AllocationId, AttemptId, ChipName, ClusterName, NodeName, RoleName, checked_name

NODES_MAX = 200_000


class NodeCondition(str, Enum):
    """Whether new work may be placed on a node."""

    READY = "ready"
    CORDONED = "cordoned"
    DOWN = "down"


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
    """

    name: NodeName
    chip: ChipName
    chips: int
    domains: tuple[tuple[str, str], ...] = ()
    condition: NodeCondition = NodeCondition.READY
    condition_owner: str = ""
    condition_reason: str = ""
    foreign_chip_milli: int = 0

    def __post_init__(self) -> None:
        """Checks the name and the counts.

        Raises:
            InvalidInput: A field is out of its range.
        """
        checked_name(self.name, "node")
        if not (0 <= self.chips <= 1_024 and 0 <= self.foreign_chip_milli <= self.chips * 1_000):
            raise InvalidInput("accept a node", on=self.name, got=f"{self.chips} chips", wanted="0 to 1024 chips")


@dataclass(frozen=True, slots=True, kw_only=True)
class Inventory:
    """Everything one engine says of its cluster at one instant.

    Args:
        cluster: The cluster's name.
        engine: Kind of engine ("local", "slurm", ...).
        simulated: Whether the chips are pretended; shown wherever the cluster is shown.
        dollars_per_chip_hour: Price by chip type.
        nodes: All nodes, ordered by name.
    """

    cluster: ClusterName
    engine: str
    simulated: bool
    dollars_per_chip_hour: Mapping[ChipName, float] = field(default_factory=dict)
    nodes: tuple[Node, ...]

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


@dataclass(frozen=True, slots=True, kw_only=True)
class AllocationSeen:
    """One allocation as its engine sees it.

    Args:
        allocation: Its id.
        phase: Where it stands; agents of an ENDED one are all gone.
        nodes: Where it is, in rank order.
        exit_code: Of the first agent that failed, 0 when all ended well, None while any lives or when unknown.
        reason: The engine's own words, for people.
        agent_lost: Whether one of its agents ended otherwise than well; what is left of its attempt can never end well.
    """

    allocation: AllocationId
    phase: AllocationPhase
    nodes: tuple[NodeName, ...]
    exit_code: int | None = None
    reason: str = ""
    agent_lost: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchOrder:
    """What an engine must start: one agent on each of these nodes.

    Args:
        allocation: Id that makes the order idempotent.
        attempt: The attempt it belongs to.
        role: The role its nodes serve.
        nodes: Pinned nodes in rank order.
        chip_milli: Thousandths of chips granted on each node.
        controller: URL the agents register at.
        token: Secret scoped to this attempt. Passed to agents by file or pipe, never in arguments or logs.
    """

    allocation: AllocationId
    attempt: AttemptId
    role: RoleName
    nodes: tuple[NodeName, ...]
    chip_milli: tuple[int, ...]
    controller: str
    token: str = field(repr=False)

    def __post_init__(self) -> None:
        """Checks that every node has its grant."""
        assert self.nodes
        assert len(self.nodes) == len(self.chip_milli) == len(set(self.nodes))


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
        token: Secret scoped to the attempt.
        work_dir: Absolute folder of its own: `rank-<rank>.log`, and `exit.json`, an `AgentExit`, as its last act.
            When a log is turned over, the part before becomes `rank-<rank>.log.<end>`: the offset in all of the rank's
            output at which it ends and `rank-<rank>.log` begins.
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
