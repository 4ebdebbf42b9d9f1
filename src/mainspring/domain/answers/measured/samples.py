"""What ranks measured of a job: curves of metrics, and how long steps took at every rank."""

from __future__ import annotations

from mainspring.domain.codec import message
from mainspring.domain.ids import JobId

POINTS_MAX = 20_000  # Of a curve: more than any screen shows.
SERIES_MAX = 64  # Curves of one answer; a job's other metrics are named, and asked for by name.


@message("MetricSeries")
class MetricSeries:
    """One metric of a job, in order of time; where many samples lie in a stretch, those that were least and most in it.

    Args:
        attempt: Number of the attempt, of each point.
        generation: Of each point.
        step: Of each point.
        time_s: When the step was finished, of each point.
        value: Of each point.
        lost: Whether the step was done again later, from an older state, of each point.
        count: Samples that there are in all.
        least: Of all that were not lost, None where all were.
        most: Likewise.
        last: The newest that was not lost.
        not_finite: Steps at which it was no finite number, the first of them.
    """

    name: str
    attempt: tuple[int, ...] = ()
    generation: tuple[int, ...] = ()
    step: tuple[int, ...] = ()
    time_s: tuple[float, ...] = ()
    value: tuple[float, ...] = ()
    lost: tuple[bool, ...] = ()
    count: int = 0
    least: float | None = None
    most: float | None = None
    last: float | None = None
    not_finite: tuple[int, ...] = ()


@message("JobSamples")
class JobSamples:
    """What a job's ranks reported, each role's lowest that reports any; "time/..." is what was measured of each step.

    Args:
        names: Of all metrics that there are.
        series: Those that were asked for, in order of name.
        until_s: When the newest sample was taken, None before the first.
        ideal_step_s: How long a step takes when nothing holds it up: as the fastest tenth did.
    """

    job: JobId
    names: tuple[str, ...]
    series: tuple[MetricSeries, ...]
    until_s: float | None = None
    ideal_step_s: float | None = None


@message("RankTimes")
class RankTimes:
    """Seconds a step of every rank over time: the mean of each window; of ranks that share a row, the slowest.

    Args:
        ranks: How many there are.
        first: The first rank of each row, which goes on until the next one's.
        from_s: When each window begins.
        until_s: When it ends.
        step_s: Windows by rows, None where no rank of a row finished a step.
        data_share: Likewise, the share of the time in which ranks waited for data.
        ideal_step_s: See `JobSamples`.
    """

    job: JobId
    ranks: int = 0
    first: tuple[int, ...] = ()
    from_s: tuple[float, ...] = ()
    until_s: tuple[float, ...] = ()
    step_s: tuple[tuple[float | None, ...], ...] = ()
    data_share: tuple[tuple[float | None, ...], ...] = ()
    ideal_step_s: float | None = None
