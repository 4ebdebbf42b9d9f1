"""API values over HTTP: requests and views of people's tools and the controller, and errors as they travel.

A field may be added with a default; anything else is a new version. Times are seconds since the Unix epoch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from enum import Enum

from mainspring.domain import errors
from mainspring.domain.codec import message
from mainspring.domain.errors import InvalidInput, MainspringError
from mainspring.domain.fleet import Inventory
from mainspring.domain.goodput import Goodput
from mainspring.domain.ids import AttemptId, ChipName, ClusterName, JobId, NodeName
from mainspring.domain.job import JobSpec
from mainspring.domain.life import AttemptState, JobState
from mainspring.domain.plan import Candidate, Evict, Limit, Move, Provision, Reservation, Resize
from mainspring.domain.team import Team
from mainspring.domain.wire import Detail, RankStatus
from mainspring.domain.wire.events import AnyEvent, told_event

ARRAY_MAX = 100_000  # Jobs one request may make.
CHANGES_MAX = 64  # Changes of each kind one what-if may try.
SHOWN_MAX = 100  # Entries of one list in an answer about a plan; the whole is counted beside it.


@message("Submit")
class Submit:
    """A job to run, or an array of `count` equal ones called `<name>-0` and so on.

    The same `key` again returns what it made the first time; "" means no key.
    """

    spec: JobSpec
    key: str = ""
    count: int = 1

    def __post_init__(self) -> None:
        """Checks the count.

        Raises:
            InvalidInput: It is out of its range.
        """
        if not 1 <= self.count <= ARRAY_MAX:
            raise InvalidInput("submit jobs", on="field 'count'", got=str(self.count), wanted=f"1 to {ARRAY_MAX}")


@message("ArrayView")
class ArrayView:
    """A job's place in its array, and how many of the array's jobs are in each state; `first` names the array."""

    first: JobId
    index: int
    count: int
    states: Mapping[str, int] = field(default_factory=dict)


@message("Event")
class Event:
    """An append-only fact in the store; `kind` and `detail` are those of one of `wire.events`, or of a newer one."""

    sequence: int
    time_s: float
    kind: str
    job: JobId | None = None
    attempt: AttemptId | None = None
    detail: Detail = field(default_factory=dict)

    @property
    def told(self) -> AnyEvent:
        """Returns what happened, as an instance of its own class."""
        return told_event(self.kind, self.detail)


@message("GoodputReport")
class GoodputReport:
    """What the allocated time of many attempts went into: in all, by team, by cluster; their number is `attempts`.

    `complete` is false when there were more than one report counts: the oldest are left out.
    """

    attempts: int
    whole: Goodput
    teams: Mapping[str, Goodput]
    clusters: Mapping[str, Goodput]
    complete: bool = True


@message("AttemptView")
class AttemptView:
    """One attempt, for people; `hosts` names the machine behind a node where the cluster chose it."""

    id: AttemptId
    number: int
    state: AttemptState
    cluster: ClusterName
    simulated: bool
    nodes: tuple[NodeName, ...]
    generation: int
    granted_s: float
    ended_s: float | None
    reason: str
    ranks: tuple[RankStatus, ...]
    dollars: float
    hosts: Mapping[str, str] = field(default_factory=dict)


@message("JobView")
class JobView:
    """One job, for people. While it waits, `start_s` is when it is expected to start: `exact` when room is kept."""

    id: JobId
    spec: JobSpec
    state: JobState
    submitted_s: float
    ended_s: float | None
    reason: str
    step: int
    metrics: Mapping[str, float]
    result: Detail
    attempts: tuple[AttemptView, ...]
    goodput: Goodput | None
    start_s: float | None = None
    exact: bool = False
    array: ArrayView | None = None


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
    (`exact` when room is kept from then on), and what would start it now.
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


@message("ClusterView")
class ClusterView:
    """One cluster, for people: its inventory, and thousandths of chips of ours in use by node name."""

    inventory: Inventory
    used_chip_milli: Mapping[str, int]
    answering: bool
    seen_s: float


@message("TeamUse")
class TeamUse:
    """What a team and those below it hold and have spent: chips by type, and dollars in its budget's window."""

    chips: Mapping[ChipName, float]
    dollars: float


@message("TeamView")
class TeamView:
    """One team, for people; `use` is None while no plan has been made here."""

    team: Team
    use: TeamUse | None = None


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
    """One plan, for people: at most `SHOWN_MAX` entries of each kind, and how many there are in all by kind."""

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


@message("Problem")
class Problem:
    """An error as it travels over HTTP; the parts are those of `MainspringError`."""

    error: str
    attempted: str
    on: str = ""
    got: str = ""
    wanted: str = ""
    next_step: str = ""


_ERRORS = {
    kind.wire_name: kind
    for kind in vars(errors).values()
    if isinstance(kind, type) and issubclass(kind, MainspringError)
}


def problem_of(error: MainspringError) -> Problem:
    """Returns an error as it travels, all its parts kept.

    Args:
        error: What was raised.
    """
    return Problem(
        error=error.wire_name,
        attempted=error.attempted,
        on=error.on,
        got=error.got,
        wanted=error.wanted,
        next_step=error.next_step,
    )


def error_of(problem: Problem) -> MainspringError:
    """Returns the error that travelled, of the class it was raised as.

    Args:
        problem: What came.
    """
    kind = _ERRORS.get(problem.error, MainspringError)
    return kind(problem.attempted, on=problem.on, got=problem.got, wanted=problem.wanted, next_step=problem.next_step)


class Standing(str, Enum):
    """How far a recording is that is sent to a dataset."""

    ARRIVING = "arriving"  # Bytes are missing, or it was never heard of.
    ARRIVED = "arrived"  # Whole, and waits to be read.
    TAKEN = "taken"  # Its episodes are in the dataset, or about to be.
    REFUSED = "refused"  # Some or all of it is left out; the file is kept.


@message("ArrivalView")
class ArrivalView:
    """Where a recording stands: how many of its bytes are here, what became of it, and why, for people."""

    standing: Standing
    offset: int
    reason: str = ""
