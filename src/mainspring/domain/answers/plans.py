"""The last plan as people see it: what it decided, why a job waits, what changes would make of it."""

from __future__ import annotations

from collections.abc import Mapping

from mainspring.domain.answers.jobs import Submit
from mainspring.domain.codec import message
from mainspring.domain.errors import InvalidInput
from mainspring.domain.fleet import AvoidedNode, NodeOrder
from mainspring.domain.ids import ClusterName, JobId, NodeName
from mainspring.domain.job import Hold
from mainspring.domain.life import JobState
from mainspring.domain.plan import Candidate, Evict, Limit, Move, Provision, Reservation, Resize
from mainspring.domain.team import Team

CHANGES_MAX = 64  # Changes of each kind one what-if may try.
SHOWN_MAX = 100  # Entries of one list in an answer about a plan; the whole is counted beside it.


@message("Remedy")
class Remedy:
    """A change that would start a waiting job now ("32 instead of 64 h100"), where, and what it would cost there."""

    text: str
    cluster: ClusterName
    dollars_per_hour: float


@message("Why")
class Why:
    """Why a job is where it is, or waits: the words of the plan that decided it, and every candidate weighed.

    For a job that waits: the binding limit, whose it is, how many chips short, when the job is expected to start
    (`exact` when room is kept from then on), and what would start it now. `avoided` are the nodes where its attempts
    were lost and that it keeps away from. `ordered` are nodes that come for it. `holds` are what people keep it from:
    itself, its team, or clusters and nodes that could run it.
    """

    job: JobId
    state: JobState
    plan: int
    summary: str
    limit: Limit | None
    candidates: tuple[Candidate, ...]
    where: str = ""
    short_by: float = 0.0
    start_s: float | None = None
    exact: bool = False
    remedies: tuple[Remedy, ...] = ()
    avoided: tuple[AvoidedNode, ...] = ()
    holds: tuple[Hold, ...] = ()
    ordered: tuple[NodeOrder, ...] = ()


@message("PlannedStart")
class PlannedStart:
    """A job that a plan starts."""

    job: JobId
    cluster: ClusterName
    nodes: tuple[NodeName, ...]
    chips: float


@message("WaitView")
class WaitView:
    """Jobs of one class that wait: how many, the first of them, what binds them, and when they are expected to start.

    The first `exact` of them hold reservations. `first_s` and `last_s` are None where nobody can know.
    """

    count: int
    jobs: tuple[JobId, ...]
    limit: Limit
    where: str
    short_by: float
    reason: str
    exact: int
    first_s: float | None
    last_s: float | None


@message("PlanView")
class PlanView:
    """One plan, for people: at most `SHOWN_MAX` entries of each kind, and how many there are in all by kind.

    `ordered` are nodes that earlier plans wanted and that are to come.
    """

    number: int
    made_s: float
    complete: bool
    counts: Mapping[str, int]
    starts: tuple[PlannedStart, ...]
    evicts: tuple[Evict, ...]
    resizes: tuple[Resize, ...]
    moves: tuple[Move, ...]
    provisions: tuple[Provision, ...]
    reservations: tuple[Reservation, ...]
    waits: tuple[WaitView, ...]
    ordered: tuple[NodeOrder, ...] = ()


@message("PlanLine")
class PlanLine:
    """One plan that changed something: how many jobs it started, and ended for others, and how many waited."""

    number: int
    made_s: float
    starts: int
    evicts: int
    waits: int


@message("Verdict")
class Verdict:
    """What jobs wait for: how many of them, the first one, and when the first start is expected, if one can know."""

    limit: Limit
    where: str
    reason: str
    count: int
    first: JobId
    start_s: float | None


@message("AddNodes")
class AddNodes:
    """More nodes for a cluster, like those it has, in racks and blocks of their own.

    `chip` chooses among its kinds of node; "" takes the most common one.
    """

    cluster: ClusterName
    nodes: int
    chip: str = ""


@message("WhatIf")
class WhatIf:
    """Changes to try on a copy of what is known; nothing of it happens."""

    add_nodes: tuple[AddNodes, ...] = ()
    remove_clusters: tuple[ClusterName, ...] = ()
    teams: tuple[Team, ...] = ()
    submits: tuple[Submit, ...] = ()

    def __post_init__(self) -> None:
        """Checks how many changes there are.

        Raises:
            InvalidInput: None, or too many.
        """
        counts = (len(self.add_nodes), len(self.remove_clusters), len(self.teams), len(self.submits))
        if sum(counts) == 0 or max(counts) > CHANGES_MAX:
            raise InvalidInput(
                "try a change", got=f"{sum(counts)} changes", wanted=f"at least 1, at most {CHANGES_MAX} of each kind"
            )


@message("Shift")
class Shift:
    """A job that would start at another time; None where nobody can know."""

    job: JobId
    before_s: float | None
    after_s: float | None


@message("WhatIfAnswer")
class WhatIfAnswer:
    """What changes would make of the last plan.

    Args:
        before: The plan as it is.
        after: The plan as it would be; jobs that are only tried are called `what-if-<n>`.
        start: Jobs that would start now and do not.
        wait: Jobs that start now and would not.
        restart: Running jobs of clusters that are gone, which would start elsewhere.
        stranded: Running jobs of clusters that are gone, which would have to wait.
        shifts: Waiting jobs that would start sooner or later, those that gain or lose most first.
        sooner: How many would start sooner, `start` among them.
        later: How many would start later, `wait` among them.
    """

    before: PlanView
    after: PlanView
    start: tuple[JobId, ...]
    wait: tuple[JobId, ...]
    restart: tuple[JobId, ...]
    stranded: tuple[JobId, ...]
    shifts: tuple[Shift, ...]
    sooner: int
    later: int
