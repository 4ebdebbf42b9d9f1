"""Attempt progress: arithmetic on virtual time, in closed form between two changes of size."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import floor, inf

from mainspring.domain.goodput import TimeUse
from mainspring.domain.ids import AttemptId
from mainspring.domain.job import JobSpec, Option
from mainspring.domain.life import JobState
from mainspring.domain.plan import Grant
from mainspring.simulator.inputs.workload import TraceJob

# What a replay tells apart of where time goes.
TOLD_APART = (TimeUse.STARTUP, TimeUse.PRODUCTIVE, TimeUse.REPEATED, TimeUse.RECOVERY, TimeUse.WINDDOWN)


@dataclass(slots=True)
class Course:
    """A stretch of an attempt in which it neither grows nor shrinks.

    Args:
        steps_s: From when it makes steps.
        work_s: Work done when it began, in seconds at full size.
        furthest_s: Work that was done before, and partly lost since.
        rate: Work done in a second of stepping.
        checkpoint_s: How often it becomes durable.
        before: What the time before its first step counts as.
    """

    from_s: float
    steps_s: float
    work_s: float
    furthest_s: float
    rate: float
    checkpoint_s: float
    before: TimeUse = TimeUse.STARTUP

    def work_at(self, now_s: float) -> float:
        """Returns the work done."""
        return self.work_s + max(0.0, now_s - self.steps_s) * self.rate

    def durable_at(self, now_s: float) -> float:
        """Returns the work that would survive the loss of the nodes."""
        saved = floor(max(0.0, now_s - self.steps_s) / self.checkpoint_s)
        return self.work_s + saved * self.checkpoint_s * self.rate

    def reaches_s(self, work_s: float) -> float:
        """Returns when an amount of work is done, if nothing happens until then.

        Args:
            work_s: How much, in seconds at full size.
        """
        return self.steps_s + max(0.0, work_s - self.work_s) / self.rate

    def spent(self, now_s: float) -> tuple[tuple[TimeUse, float], ...]:
        """Returns where the time went since it began."""
        steps_s = min(now_s, self.steps_s)
        caught_up_s = min(now_s, self.reaches_s(self.furthest_s))
        return (
            (self.before, steps_s - self.from_s),
            (TimeUse.REPEATED, max(0.0, caught_up_s - self.steps_s)),
            (TimeUse.PRODUCTIVE, max(0.0, now_s - max(self.steps_s, caught_up_s))),
        )


@dataclass(slots=True)
class AttemptRun:
    """An attempt that holds nodes.

    Args:
        course: How far it has come since it last changed its size.
        dollars_per_hour: What it costs now.
        paid_s: Until when that was paid.
        uses: Pools and what it holds of each (chips, or cores where a pool counts those).
        granted_s: When it was granted.
        number: Counts the job's attempts from 1.
        generation: Counts its sizes from 1.
        stopping: Whether it was asked to end.
    """

    attempt: AttemptId
    job: JobRun
    grants: tuple[Grant, ...]
    course: Course
    dollars_per_hour: float
    paid_s: float
    uses: tuple[tuple[int, float], ...]
    chips: float
    granted_s: float
    number: int
    generation: int = 1
    stopping: bool = False

    @property
    def amount(self) -> float:
        """Returns how much it holds of all pools together."""
        return sum(amount for _, amount in self.uses)


@dataclass(slots=True)
class JobRun:
    """A job of the trace and what became of it.

    Args:
        row: Its place in the workload.
        team: Index of its team.
        chip: Index of the chip type it asks for first.
        size: Chips it asks for, or cores where the workload asks for no chip.
        work_s: Durable work of earlier attempts.
        furthest_s: The most work any of them did.
        attained_chip_s: Chip-seconds they had.
        held_s: For how long they held nodes.
        evicted_s: When one of them was last displaced.
        start_s: When the first was granted, infinity for never.
        end_s: When the job ended, infinity for never.
        attempts: How many there were.
        lost: How many were lost.
        displaced: How many were displaced.
        blocked: Whether a job it comes after has not succeeded yet.
        wanted: Whether it counts as waiting for room.
        run: The attempt it has now.
        followers: Jobs that come after it.
    """

    trace: TraceJob
    row: int
    team: int
    chip: int
    size: float
    state: JobState = JobState.QUEUED
    work_s: float = 0.0
    furthest_s: float = 0.0
    attained_chip_s: float = 0.0
    held_s: float = 0.0
    evicted_s: float = -inf
    start_s: float = inf
    end_s: float = inf
    attempts: int = 0
    lost: int = 0
    displaced: int = 0
    dollars: float = 0.0
    blocked: bool = False
    wanted: bool = False
    run: AttemptRun | None = None
    followers: list[JobRun] = field(default_factory=list)


def rate_of(spec: JobSpec, grants: Sequence[Grant]) -> float:
    """Returns how fast a job goes with what it was granted; 1 for every role at full size on its first option.

    The slowest role sets the pace, and a role goes as fast as its replicas, chips and their speed together.

    Args:
        spec: The job's spec.
        grants: One for each role.
    """
    rates = []
    roles = {role.name: role.options for role in spec.roles}
    for grant in grants:
        options = roles[grant.role]
        had, full = options[grant.option], options[0]
        rates.append(_might(had, replicas_of(grant, had)) / _might(full, full.replicas))
    return min(rates)


def _might(option: Option, replicas: int) -> float:
    return option.speed * (option.chips or option.cpus) * replicas


def replicas_of(grant: Grant, option: Option) -> int:
    """Returns how many replicas a grant holds.

    Args:
        option: The option it was granted for.
    """
    if not option.chip_milli:
        return sum(grant.ranks)
    # A replica larger than a node holds several, and perhaps more of the last one than it asked for.
    return max(1, min(option.replicas, sum(grant.chip_milli) // option.chip_milli))
