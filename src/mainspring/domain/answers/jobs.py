"""Jobs and their events as people's tools and the controller speak of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import TYPE_CHECKING

from mainspring.domain.codec import message
from mainspring.domain.errors import InvalidInput
from mainspring.domain.goodput import Goodput
from mainspring.domain.ids import AttemptId, ClusterName, JobId, NodeName
from mainspring.domain.job import ARRAY_MAX, Hold, JobSpec, Overrides
from mainspring.domain.life import AttemptState, JobState
from mainspring.domain.wire.facts import AtRisk, Detail, RankStatus
from mainspring.domain.wire.telemetry import require_place

if TYPE_CHECKING:
    from mainspring.domain.wire.events import AnyEvent


BATCH_MAX = 10_000  # Submits of one request.


@message("Submit")
class Submit:
    """A job to run, or an array of `count` equal ones called `<name>-0` and so on.

    The same `key` again returns what it made the first time; "" means no key. `traceparent` is the span that it is
    submitted under, as W3C Trace Context has it, "" for none.
    """

    spec: JobSpec
    key: str = ""
    count: int = 1
    traceparent: str = ""

    def __post_init__(self) -> None:
        """Checks the count, and the span.

        Raises:
            InvalidInput: The count is out of its range, or the span is none.
        """
        require_place(self.traceparent)
        if not 1 <= self.count <= ARRAY_MAX:
            raise InvalidInput("submit jobs", on="field 'count'", got=str(self.count), wanted=f"1 to {ARRAY_MAX}")


@message("SubmitBatch")
class SubmitBatch:
    """Up to `BATCH_MAX` submits, of which all are taken or none. None can come after another of the same batch."""

    submits: tuple[Submit, ...]

    def __post_init__(self) -> None:
        """Checks how many there are.

        Raises:
            InvalidInput: None, or too many.
        """
        if not 1 <= len(self.submits) <= BATCH_MAX:
            raise InvalidInput(
                "submit a batch",
                on="field 'submits'",
                got=f"{len(self.submits)} submits",
                wanted=f"1 to {BATCH_MAX}",
                next_step="send it in pieces",
            )


@message("SubmittedBatch")
class SubmittedBatch:
    """The job that each submit of a batch has made, now or before, in order; of an array, its first."""

    jobs: tuple[JobId, ...]


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
        from mainspring.domain.wire.events import told_event  # Thirty classes, which few verbs need.

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
    """One attempt, for people; `hosts` names the machine behind a node where the cluster chose it.

    `at_risk` is as its lead last reported, None once it has ended, or where many jobs are looked at.
    """

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
    at_risk: AtRisk | None = None


@message("JobCounts")
class JobCounts:
    """How many jobs are in each state; states with none are left out."""

    states: Mapping[str, int]


@message("JobView")
class JobView:
    """One job, for people. `owner` submitted it, "" where nobody knows.

    While it waits, `start_s` is when it is expected to start: `exact` when room is kept. `overrides` is what was said
    of it since; `hold` is what keeps it from starting, its own or its team's, until it has ended. `trace` is the id of
    the trace that it is in, "" for none, or where many jobs are looked at.
    """

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
    owner: str = ""
    overrides: Overrides | None = None
    hold: Hold | None = None
    trace: str = ""
