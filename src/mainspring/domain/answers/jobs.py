"""Jobs and their events as people's tools and the controller speak of them; rules of evaluations, profiles."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import TYPE_CHECKING

from mainspring.domain.codec import message
from mainspring.domain.errors import InvalidInput
from mainspring.domain.goodput import Goodput
from mainspring.domain.ids import AttemptId, ClusterName, JobId, NodeName, TeamName
from mainspring.domain.job import ARRAY_MAX, DURATION_S_MAX, Hold, JobSpec, Overrides
from mainspring.domain.life import AttemptState, JobState
from mainspring.domain.wire.facts import AtRisk, Detail, RankStatus
from mainspring.domain.wire.telemetry import require_place

if TYPE_CHECKING:
    from mainspring.domain.wire.events import AnyEvent


BATCH_MAX = 10_000  # Submits of one request.
CHECKPOINT = "{checkpoint}"  # What stands for "JOB@STEP" in the words of an evaluation's command.
EVERY_MAX = 1_000_000
PROFILE_STEPS_MAX = 1_000  # A trace of many steps says no more than one of a few, and fills disks.
PROFILE_RANKS_MAX = 64  # Each is some ten megabytes.
CHIPS_MAX = 100_000


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


@message("NewEvaluationRule")
class NewEvaluationRule:
    """Which checkpoints of a job are evaluated, how, and with how many chips at most.

    Args:
        job: A job's id, or a name: then always its newest job.
        every: Each so many of its durable checkpoints; 0 for by time.
        every_s: At most one in so many seconds, the newest; 0 for by number.
        chips_max: All of its evaluations that wait or run together ask for no more; one without chips counts as 1.
        spec: One evaluation. `{checkpoint}` in its commands becomes "JOB@STEP", which it begins from; it has the
            job's views unless it names some.
    """

    job: str
    every: int = 1
    every_s: float = 0.0
    chips_max: int = 1
    spec: JobSpec

    def __post_init__(self) -> None:
        """Checks every field.

        Raises:
            InvalidInput: A field is out of its range.
        """
        by_number, by_time = 1 <= self.every <= EVERY_MAX, 0 < self.every_s <= DURATION_S_MAX
        if by_number + by_time != 1 or (not by_number and self.every) or (not by_time and self.every_s):
            got = f"every {self.every}, every {self.every_s:g} s"
            raise InvalidInput("rule evaluations", got=got, wanted="one of the two over 0, and the other 0")
        if not 1 <= self.chips_max <= CHIPS_MAX:
            raise InvalidInput("rule evaluations", on="chips_max", got=str(self.chips_max), wanted=f"1 to {CHIPS_MAX}")
        if not 1 <= len(self.job) <= 63:
            raise InvalidInput("rule evaluations", on="job", got=repr(self.job[:80]), wanted="a job's id or name")
        if not any(CHECKPOINT in word for role in self.spec.roles for word in role.command):
            got = " ".join(self.spec.roles[0].command)[:200]
            raise InvalidInput("rule evaluations", on="its command", got=got, wanted=f"{CHECKPOINT} in it")
        if self.chips_each > self.chips_max:
            got = f"an evaluation that asks for {self.chips_each}"
            raise InvalidInput("rule evaluations", got=got, wanted=f"at most {self.chips_max} chips, as the rule says")

    @property
    def chips_each(self) -> int:
        """Returns what one evaluation counts as: the most chips that it may be given, at least 1."""
        most = sum(max(option.chips * option.replicas for option in role.options) for role in self.spec.roles)
        return max(1, -int(-most // 1))


@message("NewProfile")
class NewProfile:
    """Which ranks of a job are profiled, as output and status number them, and over how many steps."""

    steps: int = 5
    ranks: tuple[int, ...] = (0,)

    def __post_init__(self) -> None:
        """Checks both.

        Raises:
            InvalidInput: A number is out of its range.
        """
        if not 1 <= self.steps <= PROFILE_STEPS_MAX:
            raise InvalidInput("profile a job", got=f"{self.steps} steps", wanted=f"1 to {PROFILE_STEPS_MAX}")
        if not 1 <= len(self.ranks) <= PROFILE_RANKS_MAX or len({*self.ranks}) < len(self.ranks):
            got = f"ranks {', '.join(map(str, self.ranks[:20]))}"
            raise InvalidInput("profile a job", got=got, wanted=f"1 to {PROFILE_RANKS_MAX} that differ")


@message("ProfileView")
class ProfileView:
    """A profile that was asked for: its id, and of what."""

    id: str
    job: JobId
    steps: int
    ranks: tuple[int, ...]


@message("EvaluationRun")
class EvaluationRun:
    """One evaluation that a rule started: the job that evaluates, and what of."""

    job: JobId
    trained: JobId
    step: int
    state: JobState
    submitted_s: float
    result: Detail


@message("EvaluationRuleView")
class EvaluationRuleView:
    """A rule, and the evaluations that it started, newest first."""

    name: str
    team: TeamName
    owner: str
    made_s: float
    rule: NewEvaluationRule
    runs: tuple[EvaluationRun, ...] = ()
