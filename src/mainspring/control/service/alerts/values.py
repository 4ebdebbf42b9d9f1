"""The words of this package as values: promises and how they are measured, burn rates, alerts, panels.

Expressions are PromQL in which `{5m}`, a time in braces, is written by `paced`: tests run the same rules many times
faster.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum
from typing import TypeAlias

MINUTE_S, HOUR_S, DAY_S = 60.0, 3_600.0, 86_400.0
_UNITS = (("d", DAY_S), ("h", HOUR_S), ("m", MINUTE_S), ("s", 1.0))
_TIME = re.compile(r"\{(\d+)([smhd])\}")


class Severity(str, Enum):
    """Who is told, and when."""

    PAGE = "page"  # Somebody now, also at night.
    TICKET = "ticket"  # Somebody on a working day.
    NONE = "none"  # Nobody, while it fires.


@dataclass(frozen=True, slots=True, kw_only=True)
class Burn:
    """How fast an error budget is used up when somebody is told.

    Args:
        factor: As a multiple of the pace that uses it up in 30 days.
        long_s: It has been that fast over this time,
        short_s: and still is over this one, so that the alert ends soon after its cause.
    """

    factor: float
    long_s: float
    short_s: float
    severity: Severity


# Google's SRE workbook, chapter 5, table 5-8: 2 % of the budget of 30 days in an hour, 5 % in six, 10 % in three days.
BURNS = (
    Burn(factor=14.4, long_s=HOUR_S, short_s=5 * MINUTE_S, severity=Severity.PAGE),
    Burn(factor=6.0, long_s=6 * HOUR_S, short_s=30 * MINUTE_S, severity=Severity.PAGE),
    Burn(factor=3.0, long_s=DAY_S, short_s=2 * HOUR_S, severity=Severity.TICKET),
    Burn(factor=1.0, long_s=3 * DAY_S, short_s=6 * HOUR_S, severity=Severity.TICKET),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """A promise about single things: the share of them that were bad.

    Args:
        bad: A second's count of bad ones over `{window}`.
        total: The same of all.
        events: Of what is rare, how many there were in `{window}`; "" of what is not.
    """

    bad: str
    total: str
    events: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Minutes:
    """A promise about time: the share of it in which something held.

    Args:
        late: 1 while the promise is not kept, else 0.
    """

    late: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Slo:
    """A service level objective: what is promised, and how often.

    Args:
        name: Also of its page in the runbooks.
        words: What is promised, as a sentence.
        objective: The share that keeps it, over 30 days.
        measure: The share that does not.
        pages: Whether it is worth waking somebody.
    """

    name: str
    words: str
    objective: float
    measure: Share | Minutes
    pages: bool = True

    @property
    def title(self) -> str:
        """Returns its name as one word, as alerts are called."""
        return "".join(word.capitalize() for word in self.name.split("-"))

    @property
    def burns(self) -> tuple[Burn, ...]:
        """Returns the burn rates that are watched: those that can be reached at all, and wake nobody for nothing."""
        budget = 1.0 - self.objective
        may = (one for one in BURNS if one.factor * budget < 1.0)
        return tuple(one for one in may if self.pages or one.severity is not Severity.PAGE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Alert:
    """What somebody is told.

    Args:
        name: In CamelCase, as Prometheus's own are.
        expr: Holds while something is wrong.
        for_s: How long it must.
        summary: One line; `{{ $labels.cluster }}` and `{{ $value }}` are filled in.
        runbook: Its page in `docs/runbooks`, without the ending.
    """

    name: str
    severity: Severity
    expr: str
    for_s: float
    summary: str
    runbook: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Recording:
    """A series that is worked out once for many."""

    record: str
    expr: str
    labels: tuple[tuple[str, str], ...] = ()


Rule: TypeAlias = Recording | Alert


@dataclass(frozen=True, slots=True, kw_only=True)
class PanelLine:
    """A line of a panel, or several, each named by `legend` with its labels filled in."""

    expr: str
    legend: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Panel:
    """A picture on a dashboard.

    Args:
        unit: Grafana's word for what is counted.
        kind: Grafana's: "timeseries", or "stat" for one number.
    """

    title: str
    lines: tuple[PanelLine, ...]
    unit: str = "short"
    kind: str = "timeseries"


@dataclass(frozen=True, slots=True, kw_only=True)
class Dashboard:
    """A page of panels."""

    name: str
    title: str
    panels: tuple[Panel, ...]


def duration(seconds: float) -> str:
    """Returns a time as Prometheus writes it, in its largest whole unit."""
    for unit, unit_s in _UNITS:
        if seconds >= unit_s and seconds % unit_s == 0:
            return f"{seconds / unit_s:.0f}{unit}"
    return f"{seconds * 1_000:.0f}ms"


def paced(text: str, pace: float) -> str:
    """Returns an expression with its times written out.

    Args:
        pace: How many times faster than in earnest time goes by.
    """
    seconds = dict(_UNITS)
    return _TIME.sub(lambda found: duration(float(found[1]) * seconds[found[2]] / pace), text)
