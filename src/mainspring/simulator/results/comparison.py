"""Two replays of one workload side by side: what another policy or another fleet brings, and what it leaves idle."""

from __future__ import annotations

from dataclasses import dataclass

from mainspring.simulator.results.measures import Measures


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """One figure of two replays.

    Args:
        unit: "s", "h", "$", "%" or "" for a plain number.
        base: In the first replay.
        other: In the second.
        less_is_better: Whether it should be small; None where neither is better.
    """

    name: str
    unit: str
    base: float
    other: float
    less_is_better: bool | None

    @property
    def change(self) -> float | None:
        """Returns by which part of the first the second is more, None where the first is 0."""
        return (self.other - self.base) / abs(self.base) if self.base else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Two replays of one workload.

    Args:
        base: Names the first.
        other: Names the second.
        differences: The figures that matter, in the order they are shown.
    """

    base: str
    other: str
    differences: tuple[Difference, ...]


def compare(base: Measures, other: Measures, *, names: tuple[str, str]) -> Comparison:
    """Returns how two replays differ.

    Args:
        base: The first.
        other: The second.
        names: What they are called.
    """
    figures = (
        ("mean JCT", "s", base.jct_s.mean, other.jct_s.mean, True),
        ("median JCT", "s", base.jct_s.median, other.jct_s.median, True),
        ("95 % JCT", "s", base.jct_s.p95, other.jct_s.p95, True),
        ("mean wait", "s", base.wait_s.mean, other.wait_s.mean, True),
        ("mean slowdown", "", base.slowdown.mean, other.slowdown.mean, True),
        ("all done after", "h", base.span_h, other.span_h, True),
        ("jobs succeeded", "", base.jobs["succeeded"], other.jobs["succeeded"], False),
        (f"{base.unit}s on average", "", _there(base), _there(other), None),
        ("utilization", "%", 100 * base.utilization, 100 * other.utilization, False),
        (f"idle {base.unit}-hours", "", _idle_h(base), _idle_h(other), True),
        ("idle dollars", "$", base.idle_dollars, other.idle_dollars, True),
        ("dollars used", "$", base.dollars, other.dollars, True),
        ("goodput", "%", 100 * base.goodput, 100 * other.goodput, False),
        ("preemptions", "", base.preemptions, other.preemptions, True),
        ("attempts lost", "", base.counts.lost, other.counts.lost, True),
        ("Jain's index", "", base.fairness.jain, other.fairness.jain, False),
        ("deficit chip-hours", "", base.fairness.deficit_h, other.fairness.deficit_h, True),
    )
    return Comparison(
        base=names[0],
        other=names[1],
        differences=tuple(
            Difference(name=name, unit=unit, base=float(one), other=float(two), less_is_better=better)
            for name, unit, one, two, better in figures
        ),
    )


def _there(measures: Measures) -> float:
    there_h = sum(pool.there_h for pool in measures.pools if pool.unit == measures.unit)
    return there_h / measures.span_h if measures.span_h else 0.0


def _idle_h(measures: Measures) -> float:
    return sum(pool.there_h - pool.used_h for pool in measures.pools if pool.unit == measures.unit)
