"""Workload of a replay: jobs with the truth about them, and its settings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from graphlib import CycleError, TopologicalSorter
from math import inf

from mainspring.domain.errors import InvalidInput
from mainspring.domain.ids import NAME_LENGTH_MAX, JobId
from mainspring.domain.job import JobSpec

JOBS_MAX = 5_000_000
ATTEMPTS_MAX = 1_000  # A trace's jobs came to their end: only what the replay does to them ends an attempt.
COMMAND = ("trace",)  # What jobs of a trace run.


def slug(text: str) -> str:
    """Returns the nearest name that may be one: lower case, dashes for letters no name has.

    Args:
        text: As a trace writes it.
    """
    letters = (letter if letter.isascii() and (letter.isalnum() or letter in "._-") else "-" for letter in text.lower())
    return "".join(letters)[:NAME_LENGTH_MAX].strip("._-") or "unnamed"


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceJob:
    """One job of a trace. What only the replay knows stands here; what the planner may know stands in the spec.

    Args:
        job: Its id, unique in the workload.
        spec: What it asks for; `spec.duration_s` is what its owner said, 0 when nothing was said.
        submit_s: When it was submitted, in seconds of virtual time.
        duration_s: How long it truly runs without a break, at full size on the first option of each of its roles.
    """

    job: JobId
    spec: JobSpec
    submit_s: float
    duration_s: float

    @property
    def chips(self) -> float:
        """Returns how many chips it asks for, on the first option of each of its roles."""
        return sum(role.options[0].chips * role.options[0].replicas for role in self.spec.roles)

    @property
    def cores(self) -> float:
        """Returns how many CPU cores it asks for, on the first option of each of its roles."""
        return sum(role.options[0].cpus * role.options[0].replicas for role in self.spec.roles)


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """Everything a trace asks for.

    Args:
        name: Shown in tables and plots.
        jobs: By time of submission, then id.
        left_out: How many rows of the trace were left out, by reason.
    """

    name: str
    jobs: tuple[TraceJob, ...]
    left_out: Mapping[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Checks that jobs are ordered and unique.

        Raises:
            InvalidInput: There are too many, a job comes twice, or one waits for itself.
        """
        if len(self.jobs) > JOBS_MAX:
            raise InvalidInput("accept a workload", on=self.name, got=f"{len(self.jobs)} jobs", wanted=f"<= {JOBS_MAX}")
        keys = [(job.submit_s, job.job) for job in self.jobs]
        assert keys == sorted(keys)
        if len({job.job for job in self.jobs}) < len(keys):
            raise InvalidInput("accept a workload", on=self.name, got="a job id twice", wanted="ids that differ")
        after = {job.job: job.spec.after for job in self.jobs if job.spec.after}
        try:
            TopologicalSorter(after).prepare()
        except CycleError as error:
            circle = " after ".join(reversed(error.args[1]))
            raise InvalidInput("accept a workload", on=self.name, got=circle[:200], wanted="no circles") from error

    def first(self, count: int) -> Workload:
        """Returns the jobs that were submitted first."""
        return Workload(name=self.name, jobs=self.jobs[:count], left_out=self.left_out)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayOptions:
    """How a replay runs.

    Args:
        plan_every_s: Plans are made when something happened, at most once in so many seconds of virtual time.
        restart_s: What a job that was displaced or lost pays before its next useful step.
        checkpoint_s: How often running jobs become durable; what came after the last time is lost and done again.
        grace_s: How long a displaced attempt still holds its nodes.
        resize_s: For how long an elastic job stands still when it grows or shrinks; nothing it did is lost.
        learn: Whether the planner learns durations from jobs that ended.
        faults_per_1000_node_days: How often nodes fail; 0 for never. Meta's RSC-1 saw 6.5, Llama 3's cluster 3.79.
        transient: Part of those failures after which the node is back at once; the rest wait for a repair.
        repair_median_s: Median of the repair time, which is lognormal.
        until_s: Ends the replay so long after the first submission, whatever still runs or waits; None for when all
            has ended.
    """

    plan_every_s: float = 60.0
    restart_s: float = 300.0
    checkpoint_s: float = 600.0
    grace_s: float = 30.0
    resize_s: float = 10.0
    learn: bool = True
    faults_per_1000_node_days: float = 0.0
    transient: float = 0.73
    repair_median_s: float = 54 * 60.0
    repair_mean_s: float = 355 * 60.0
    until_s: float | None = None

    def __post_init__(self) -> None:
        """Checks the numbers.

        Raises:
            InvalidInput: One is out of its range.
        """
        for name in ("restart_s", "grace_s", "resize_s", "faults_per_1000_node_days"):
            self._check(name, "a finite number from 0 on", sound=0.0 <= getattr(self, name) < inf)
        for name in ("plan_every_s", "checkpoint_s", "repair_median_s"):
            self._check(name, "a finite number above 0", sound=0.0 < getattr(self, name) < inf)
        self._check("repair_mean_s", "at least the median", sound=self.repair_median_s <= self.repair_mean_s < inf)
        self._check("transient", "0 to 1", sound=0.0 <= self.transient <= 1.0)
        self._check("until_s", "a number above 0", sound=self.until_s is None or self.until_s > 0.0)

    def _check(self, name: str, wanted: str, *, sound: bool) -> None:
        if not sound:
            raise InvalidInput(
                "accept the settings of a replay", on=f"field {name!r}", got=f"{getattr(self, name):g}", wanted=wanted
            )
