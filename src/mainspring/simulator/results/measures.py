"""Measures of an outcome: waits, slowdowns by size, use of the fleet, fairness, dollars, goodput."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf

import numpy as np

from mainspring.domain.goodput import TimeUse
from mainspring.domain.life import JobState
from mainspring.planner.facts.snapshot import Floats, Integers
from mainspring.simulator.results.fairness import Fairness, fairness
from mainspring.simulator.results.steps import integral
from mainspring.simulator.virtual.outcome import Counts, JobColumns, Outcome

_SPELLED = {TimeUse.WINDDOWN: "wind_down"}  # As files of measures have had it from the first.
HOUR_S = 3_600.0
SHORT_S = 10.0  # Jobs shorter than this count as this long in slowdowns (Feitelson's bounded slowdown).
SIZES = (
    ("none", 0.0), ("under 1", 0.999), ("1", 1.0), ("2 to 4", 4.0), ("5 to 8", 8.0), ("9 to 64", 64.0),
    ("65 to 512", 512.0), ("over 512", inf),
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """How numbers are spread; all 0 when there are none."""

    mean: float
    median: float
    p95: float
    max: float


@dataclass(frozen=True, slots=True, kw_only=True)
class SizeClass:
    """Jobs of about one size that succeeded.

    Args:
        size: What they ask for, in words.
        wait_s: From submission to the first start.
        jct_s: From submission to the end.
        slowdown: That, over how long they take without a break.
    """

    size: str
    jobs: int
    wait_s: Spread
    jct_s: Spread
    slowdown: Spread


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolUse:
    """How much of a pool was used.

    Args:
        unit: What is counted, "chip" or "core".
        there_h: Chip-hours that were there.
        used_h: Chip-hours that were used.
        utilization: The part that was used.
        utilization_loaded: The same until the last job was submitted.
        idle_dollars: What the rest cost, at the mean price of what was there.
    """

    cluster: str
    chip: str
    unit: str
    there_h: float
    used_h: float
    utilization: float
    utilization_loaded: float
    idle_dollars: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Measures:
    """The figures of one replay.

    Args:
        unit: What sizes count: "chip" or "core".
        jobs: How many ended how; "unfinished" ones never did.
        left_out: Rows of the trace that were left out, by reason.
        span_h: From the first submission to the end of the replay.
        wait_s: From submission to the first start, of all jobs that started.
        jct_s: From submission to the end, of all that succeeded.
        slowdown: That, over how long they take without a break.
        sizes: The same by size.
        pools: How much of the fleet was used.
        fairness: What teams had of what was due to them.
        dollars: What attempts cost, and moves.
        idle_dollars: What the idle rest of the fleet cost.
        goodput: Part of the allocated chip-time that brought jobs further than they had been.
        spent_h: Where allocated chip-hours went.
        counts: How often what happened.
    """

    workload: str
    fleet: str
    unit: str
    jobs: Mapping[str, int]
    left_out: Mapping[str, int]
    span_h: float
    wait_s: Spread
    jct_s: Spread
    slowdown: Spread
    sizes: tuple[SizeClass, ...]
    pools: tuple[PoolUse, ...]
    fairness: Fairness
    preemptions: int
    dollars: float
    idle_dollars: float
    goodput: float
    spent_h: Mapping[str, float]
    counts: Counts

    @property
    def utilization(self) -> float:
        """Returns the part of the whole fleet that was used."""
        there_h = sum(pool.there_h for pool in self.pools if pool.unit == self.unit)
        return sum(pool.used_h for pool in self.pools if pool.unit == self.unit) / there_h if there_h else 0.0


def measure(outcome: Outcome) -> Measures:
    """Returns the figures of a replay.

    Args:
        outcome: What it came to.
    """
    jobs = outcome.jobs
    done = jobs.succeeded
    started = np.flatnonzero(jobs.start_s < inf)
    pools = tuple(_pools(outcome))
    allocated_s = sum(outcome.spent_s.values())
    states = [state.value if state in _ENDS else "unfinished" for state in jobs.state]
    return Measures(
        workload=outcome.workload.name,
        fleet=outcome.fleet,
        unit=outcome.unit,
        jobs={state: states.count(state) for state in ("succeeded", "failed", "cancelled", "unfinished")},
        left_out=dict(outcome.workload.left_out),
        span_h=(outcome.end_s - outcome.start_s) / HOUR_S,
        wait_s=spread(jobs.start_s[started] - jobs.submit_s[started]),
        jct_s=spread(jobs.end_s[done] - jobs.submit_s[done]),
        slowdown=spread(slowdowns(jobs, done)),
        sizes=tuple(_by_size(jobs)),
        pools=pools,
        fairness=fairness(outcome),
        preemptions=int(jobs.displaced.sum()),
        dollars=float(jobs.dollars.sum()) + outcome.counts.moved_dollars,
        idle_dollars=sum(pool.idle_dollars for pool in pools),
        goodput=outcome.spent_s[TimeUse.PRODUCTIVE] / allocated_s if allocated_s else 0.0,
        spent_h={_SPELLED.get(use, use.value): seconds / HOUR_S for use, seconds in outcome.spent_s.items()},
        counts=outcome.counts,
    )


_ENDS = (JobState.SUCCEEDED, JobState.FAILED, JobState.CANCELLED)


def spread(values: Floats) -> Spread:
    """Returns how numbers are spread.

    Args:
        values: In any order.
    """
    if not len(values):
        return Spread(mean=0.0, median=0.0, p95=0.0, max=0.0)
    median, p95 = np.percentile(values, [50, 95])
    return Spread(mean=float(values.mean()), median=float(median), p95=float(p95), max=float(values.max()))


def slowdowns(jobs: JobColumns, rows: Integers) -> Floats:
    """Returns the time from submission to the end over how long jobs take without a break; at least 1.

    Args:
        jobs: What became of every job.
        rows: Which of them; they have ended.
    """
    return np.maximum(1.0, (jobs.end_s[rows] - jobs.submit_s[rows]) / np.maximum(jobs.duration_s[rows], SHORT_S))


def _by_size(jobs: JobColumns) -> Sequence[SizeClass]:
    done = jobs.succeeded
    classes = np.searchsorted([most for _, most in SIZES], jobs.size[done], side="left")
    found = []
    for index, (size, _) in enumerate(SIZES):
        rows = done[classes == index]
        if len(rows):
            found.append(
                SizeClass(
                    size=size,
                    jobs=len(rows),
                    wait_s=spread(jobs.start_s[rows] - jobs.submit_s[rows]),
                    jct_s=spread(jobs.end_s[rows] - jobs.submit_s[rows]),
                    slowdown=spread(slowdowns(jobs, rows)),
                )
            )
    return found


def _pools(outcome: Outcome) -> Sequence[PoolUse]:
    ends_s = np.array([outcome.end_s, outcome.jobs.submit_s.max() if len(outcome.jobs.submit_s) else outcome.end_s])
    room_of, use_of = outcome.room.whole("pool"), outcome.use.whole("pool")
    found = []
    for row, pool in enumerate(outcome.pools):
        rooms, uses = room_of == row, use_of == row
        there_s = integral(outcome.room.time_s[rooms], outcome.room["amount"][rooms], ends_s)
        used_s = integral(outcome.use.time_s[uses], outcome.use["amount"][uses], ends_s)
        worth = integral(outcome.room.time_s[rooms], outcome.room["dollars_per_hour"][rooms], ends_s)[0] / HOUR_S
        parts = [float(used / there) if there else 0.0 for used, there in zip(used_s, there_s, strict=True)]
        found.append(
            PoolUse(
                cluster=pool.cluster,
                chip=pool.chip,
                unit="core" if pool.counts_cores else "chip",
                there_h=float(there_s[0]) / HOUR_S,
                used_h=float(used_s[0]) / HOUR_S,
                utilization=parts[0],
                utilization_loaded=parts[1],
                idle_dollars=float(worth) * (1.0 - parts[0]),
            )
        )
    return found
