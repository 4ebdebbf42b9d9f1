"""How a controller is, as probes and people ask it; and how nodes are: what was seen, what rules make of it."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum

from mainspring.domain.answers.steering import REASON_MAX, check_reason
from mainspring.domain.codec import message
from mainspring.domain.errors import InvalidInput
from mainspring.domain.fleet import NodeRef
from mainspring.domain.hardware.health import (
    TIME_S_MAX,
    HealthEvent,
    HealthSource,
    HealthState,
    Repair,
    Strategy,
)
from mainspring.domain.ids import ClusterName, JobId, NodeName


class HealthStatus(str, Enum):
    """What a controller can do: all it should, its own part, or not even that."""

    OK = "ok"
    DEGRADED = "degraded"
    FAILING = "failing"


@message("HealthCheck")
class HealthCheck:
    """One thing that was looked at.

    Args:
        name: What: "loop", "lead", "store", a cluster, or, where the store went back in time, "held".
        status: How it is; by a cluster, and by what is held, it is degraded at worst.
        words: What is the matter, "" when nothing is.
    """

    name: str
    status: HealthStatus
    words: str = ""


@message("Health")
class Health:
    """How a controller is: as bad as the worst of what was looked at. `release` is Mainspring's, "" before 0.3."""

    status: HealthStatus
    leader_epoch: int
    checks: tuple[HealthCheck, ...] = ()
    release: str = ""

    def __str__(self) -> str:
        troubles = "; ".join(f"{check.name} {check.words}" for check in self.checks if check.words)
        return f"{self.status.value}: {troubles}" if troubles else self.status.value


# ---------------------------------------------------------------- nodes

MAINTAINED_MAX = 10_000  # Nodes of one window; of more all of the cluster is meant.
HOURS_MAX = 8_784.0  # A year: what is to be closed for longer is taken out of its cluster.


@message("HealthFinding")
class HealthFinding:
    """A rule that holds for a node.

    Args:
        words: What is so, and what was said of it last.
        strategy: Whether anything follows from it.
        evidence: The newest of the events for which it holds.
        of_links: Whether all of them are of links, of which the other end may be at fault.
    """

    rule: str
    state: HealthState
    repair: Repair
    words: str
    strategy: Strategy
    evidence: tuple[HealthSource, ...] = ()
    of_links: bool = False


@message("NodeHealthView")
class NodeHealthView:
    """How a node is, as a fold over what was seen of it says; a node of which nothing is known has none.

    Args:
        state: The worst that any rule says, whether it acts or not.
        lemon_score: About how many times it has failed in four weeks.
        since_s: Since when it is in this state.
    """

    cluster: ClusterName
    node: NodeName
    state: HealthState
    findings: tuple[HealthFinding, ...]
    lemon_score: float
    since_s: float

    @property
    def at(self) -> NodeRef:
        """Returns which node."""
        return NodeRef(cluster=self.cluster, node=self.node)


class ClosureKind(str, Enum):
    """What a node is closed for."""

    CORDON = "cordon"  # Nothing more starts there; what runs goes on.
    DRAIN = "drain"  # What runs ends too, saved, and goes elsewhere.
    QUARANTINE = "quarantine"  # As a drain, for what was found or seen; it ends at its time.


@message("NodeClosure")
class NodeClosure:
    """That a node is, or was, closed to new work.

    Args:
        number: Counts them; each is one stay.
        owner: Who closed it: "health", or somebody.
        rule: Of health, that found why; "" for people.
        evidence: The newest events behind it.
        until_s: When it ends by itself, None for never.
        on_engine: Whether its cluster shows it cordoned for this.
        refused: Why its cluster does not, in its words; it is closed to our jobs all the same.
        ended_s: When it was opened again, None while it is closed.
        ended_by: Who opened it.
        ended_reason: Why.
    """

    number: int
    cluster: ClusterName
    node: NodeName
    kind: ClosureKind
    owner: str
    rule: str
    reason: str
    evidence: tuple[HealthSource, ...]
    repair: Repair
    from_s: float
    until_s: float | None
    on_engine: bool = False
    refused: str = ""
    ended_s: float | None = None
    ended_by: str = ""
    ended_reason: str = ""

    @property
    def at(self) -> NodeRef:
        """Returns which node."""
        return NodeRef(cluster=self.cluster, node=self.node)


class RepairOutcome(str, Enum):
    """How a step of a repair ended."""

    DONE = "done"
    FAILED = "failed"
    LATE = "late"  # It was not done in time.


@message("NodeRepair")
class NodeRepair:
    """One thing that was done to a node in quarantine.

    Args:
        number: Counts them.
        closure: Which stay it was in.
        step: A rung of the ladder ("reboot"), or "burn-in".
        job: Of a burn-in, its job; "" of others.
        ended_s: When it was over, None while it is under way.
        words: What came of it, for people.
    """

    number: int
    closure: int
    cluster: ClusterName
    node: NodeName
    step: str
    job: JobId
    begun_s: float
    ended_s: float | None = None
    outcome: RepairOutcome | None = None
    words: str = ""

    @property
    def at(self) -> NodeRef:
        """Returns which node."""
        return NodeRef(cluster=self.cluster, node=self.node)


@message("MaintenanceWindow")
class MaintenanceWindow:
    """A time in which nodes are not there for work.

    Args:
        number: Counts them.
        nodes: Which; none for all of the cluster.
        by: Who announced it.
    """

    number: int
    cluster: ClusterName
    nodes: tuple[NodeName, ...]
    from_s: float
    until_s: float
    by: str
    reason: str

    @property
    def words(self) -> str:
        """Returns what is said of a node that leaves for it."""
        return f"maintenance, announced by {self.by}: {self.reason}"


@message("NewMaintenance")
class NewMaintenance:
    """Maintenance that is to be announced.

    Args:
        nodes: Which; none for all of the cluster.
        from_s: When it begins, in seconds since the Unix epoch.
        hours: How long it takes.
        reason: Why, for people.
    """

    from_s: float
    hours: float
    reason: str
    nodes: tuple[NodeName, ...] = ()

    def __post_init__(self) -> None:
        """Checks every field.

        Raises:
            InvalidInput: A field is out of its range, or no reason is given.
        """
        require_reason("announce maintenance", self.reason)
        for name, held, got, wanted in (
            ("hours", 0 < self.hours <= HOURS_MAX, f"{self.hours:g}", f"over 0, to {HOURS_MAX:g}"),
            ("from_s", 0 <= self.from_s <= TIME_S_MAX, f"{self.from_s:g}", "seconds since the Unix epoch"),
            ("nodes", len(self.nodes) <= MAINTAINED_MAX, f"{len(self.nodes)}", f"at most {MAINTAINED_MAX}"),
        ):
            if not held:
                raise InvalidInput("announce maintenance", on=f"field {name!r}", got=got, wanted=wanted)


@message("NewClosure")
class NewClosure:
    """That a node is to be closed.

    Args:
        reason: Why, for people.
        hours: For how long; None for good, which no quarantine is.
    """

    kind: ClosureKind
    reason: str
    hours: float | None = None

    def __post_init__(self) -> None:
        """Checks every field.

        Raises:
            InvalidInput: A field is out of its range, or no reason is given.
        """
        require_reason("close a node", self.reason)
        if self.hours is not None and not 0 < self.hours <= HOURS_MAX:
            got, wanted = f"{self.hours:g} hours", f"over 0, to {HOURS_MAX:g}"
            raise InvalidInput("close a node", on="field 'hours'", got=got, wanted=wanted)


@message("PromiseDay")
class PromiseDay:
    """One day of a promise: how many things it was about, and how many of them were late."""

    until_s: float
    total: int
    late: int


@message("PromiseView")
class PromiseView:
    """What became of a promise, as far as events tell.

    Args:
        objective: The share that is to be in time.
        since_s: From when on it is known.
        days: The last of them ends now.
        burns: How fast the budget of 30 days burns, 1 for the pace that uses it up just so, by the seconds looked back.
    """

    name: str
    words: str
    objective: float
    since_s: float
    days: tuple[PromiseDay, ...]
    burns: Mapping[str, float]


@message("Reason")
class Reason:
    """Why something is done, for people."""

    reason: str

    def __post_init__(self) -> None:
        """Checks the reason.

        Raises:
            InvalidInput: There is none, or it is too long.
        """
        require_reason("do that", self.reason)


def require_reason(attempted: str, reason: str) -> None:
    """Returns if there is a reason, of the usual length.

    Args:
        attempted: What it is for, as a clause.
        reason: For people.

    Raises:
        InvalidInput: There is none, or it is too long.
    """
    check_reason(attempted, reason)
    if not reason.strip():
        raise InvalidInput(attempted, on="field 'reason'", got="none", wanted=f"why, in up to {REASON_MAX} letters")


@message("NodeChange")
class NodeChange:
    """One thing that happened to a node: `by` is "" for its cluster's own word."""

    time_s: float
    what: str
    by: str = ""
    words: str = ""


@message("HealthEventView")
class HealthEventView:
    """What was seen, as it was told.

    Args:
        number: Counts all that was told, as long as it is kept.
        told_s: When.
        teller: Who: an attempt, whose agents did; somebody; or the controller itself.
    """

    number: int
    told_s: float
    teller: str
    event: HealthEvent


@message("HealthRuleView")
class HealthRuleView:
    """A rule, and what follows from it.

    Args:
        words: What is so where it holds.
        window_s: How far back it looks.
        state: How a node is for which it holds; only one that has failed is ever closed.
        strategy: ACT where nodes are closed for it, SHADOW where it is only told.
        by: Who said so last, "" while nobody has; `since_s` and `reason` are theirs.
        found: Nodes for which it holds now, the first of them.
        found_count: How many there are.
        right: How often a burn-in, a repair or somebody said that it was; `wrong` how often that it was not, and
            `unjudged` how often it held and nobody has said so.
    """

    name: str
    words: str
    window_s: float
    state: HealthState
    repair: Repair | None
    strategy: Strategy
    by: str = ""
    since_s: float = 0.0
    reason: str = ""
    found: tuple[NodeRef, ...] = ()
    found_count: int = 0
    right: int = 0
    wrong: int = 0
    unjudged: int = 0


@message("NewVerdict")
class NewVerdict:
    """Whether a rule was right of a node: something of it had failed, or nothing had."""

    right: bool
    reason: str

    def __post_init__(self) -> None:
        """Checks the reason.

        Raises:
            InvalidInput: There is none, or it is too long.
        """
        require_reason("say whether a rule of health was right", self.reason)


@message("RuleMeasured")
class RuleMeasured:
    """How often a rule was right and wrong, and how often nobody said so yet."""

    rule: str
    right: int
    wrong: int
    unjudged: int


@message("SparesView")
class SparesView:
    """How many spare nodes a cluster wants, or (`block`) one of its blocks: what it lost within the time of a repair.

    `lost` counts since `since_s`. Half of the repairs take `repair_median_s`, None where nothing was lost;
    `repair_at_least` tells that it is longer, for most are not over. `dollars_per_hour` is the price of the spares.
    """

    cluster: ClusterName
    nodes: int
    lost: int
    spares: int
    since_s: float
    block: str = ""
    repair_median_s: float | None = None
    repair_at_least: bool = False
    dollars_per_hour: float = 0.0


class IncidentKind(str, Enum):
    """What an incident is."""

    NODE = "node"
    FABRIC = "fabric"  # Many nodes of one switch have the same at once: it is not the nodes.
    BREAKER = "breaker"  # Too much was to be closed at once: everything of the cluster stays as it is.


@message("Incident")
class Incident:
    """Something that is wrong now, once, however many nodes show it.

    Args:
        where: The domain of a fabric's, else "".
        nodes: The first of those that show it.
        node_count: How many do.
        words: What is so.
        done: What follows: "closed"; "held", for a breaker or a switch keeps it as it is; "shadow", where it would be
            closed if the rule acted; "told", for what closes nothing.
    """

    kind: IncidentKind
    cluster: ClusterName
    where: str
    rule: str
    nodes: tuple[NodeName, ...]
    node_count: int
    since_s: float
    words: str
    done: str
