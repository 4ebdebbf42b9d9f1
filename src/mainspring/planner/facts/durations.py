"""Run-time prediction: what owners say, corrected by what jobs like theirs did.

A job is like those of its team whose names differ from its own in digits only, then those of its team, then all; the
narrowest group with enough ended jobs speaks. A wider group remembers one ended job of each narrower one: thousands
of equal jobs that one team ran last night say nothing about anybody else's.

Where the owner named a duration, a group speaks of the part of it that jobs used, else of seconds. Whether a named
duration is a hard limit need not be known: where it is one, no part is ever over 1.

Source: Tsafrir, Etsion, Feitelson, "Backfilling Using System-Generated Predictions Rather than User Runtime
Estimates" (TPDS 2007): the newest jobs of the same owner predict better than their own estimates. Gibbons, "A
Historical Application Profiler for Use by Parallel Schedulers" (JSSPP 1997): groups from narrow to wide; the mean of
those that ran longer than a job has run already.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import accumulate
from math import inf

from mainspring.domain.job import JobSpec

REMEMBERED_MAX = 32  # Ended jobs a group remembers, the newest: habits change.
GROUPS_MAX = 8_192  # Some 60 MB when each remembers all it may; the one longest without news is forgotten first.
ENOUGH = 3  # Ended jobs a group needs before it speaks.
SAFE_QUANTILE = 0.9
_NO_DIGITS = {ord(digit): None for digit in "0123456789"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Duration:
    """A guess at a duration.

    Args:
        expected_s: How long on average; infinity when nobody can know.
        safe_s: Very likely not longer; infinity when nobody can know.
    """

    expected_s: float
    safe_s: float


UNKNOWN = Duration(expected_s=inf, safe_s=inf)


class _Sample:
    """Ascending numbers, and what those of them beyond a bound are like."""

    __slots__ = ("_sums", "_values")

    def __init__(self, values: Iterable[float]) -> None:
        self._values = sorted(values)
        self._sums = list(accumulate(reversed(self._values)))  # The last of them, the last two, and so on.

    def beyond(self, bound: float, scale: float) -> Duration | None:
        """Returns mean and safe quantile of what is over `bound`, times `scale`; None when that is too little."""
        first = bisect_right(self._values, bound)
        count = len(self._values) - first
        if count < ENOUGH:
            return None
        safe = self._values[first + min(count - 1, int(SAFE_QUANTILE * count))]
        expected = self._sums[count - 1] / count
        return Duration(expected_s=expected * scale, safe_s=max(safe, expected) * scale)


class _Group:
    """Ended jobs of one kind, newest last: seconds they ran, and the part that is of what their owners named."""

    __slots__ = ("_at_start", "_count", "_newest", "_parts", "_seconds")

    def __init__(self) -> None:
        self._newest: dict[object, tuple[float, float | None]] = {}
        self._count = 0
        self._settle()

    def _settle(self) -> None:
        self._parts: _Sample | None = None
        self._seconds: _Sample | None = None
        self._at_start: dict[float, Duration | None] = {}

    def add(self, kind: object, ran_s: float, requested_s: float) -> None:
        """Remembers a job, in the place of the one of the same kind unless `kind` is None."""
        self._count += 1
        key = self._count if kind is None else kind
        self._newest.pop(key, None)
        self._newest[key] = (ran_s, ran_s / requested_s if requested_s else None)
        if len(self._newest) > REMEMBERED_MAX:
            del self._newest[next(iter(self._newest))]
        self._settle()

    def speak(self, requested_s: float, elapsed_s: float) -> Duration | None:
        """Returns a guess for a job of this group, None when too few such jobs are known."""
        if elapsed_s > 0.0:
            return self._beyond(requested_s, elapsed_s)
        if requested_s not in self._at_start:
            self._at_start[requested_s] = self._beyond(requested_s, -inf)
        return self._at_start[requested_s]

    def _beyond(self, requested_s: float, elapsed_s: float) -> Duration | None:
        if self._parts is None or self._seconds is None:
            self._parts = _Sample(part for _, part in self._newest.values() if part is not None)
            self._seconds = _Sample(ran_s for ran_s, _ in self._newest.values())
        found = self._parts.beyond(elapsed_s / requested_s, requested_s) if requested_s else None
        if found is None:
            found = self._seconds.beyond(elapsed_s, 1.0)
            if found is not None and requested_s > max(elapsed_s, 0.0):
                safe_s = min(found.safe_s, requested_s)
                found = Duration(expected_s=min(found.expected_s, requested_s), safe_s=safe_s)
        return found


class Durations:
    """What ended jobs teach about those to come."""

    def __init__(self) -> None:
        self._groups: dict[tuple[str, ...], _Group] = {}

    def observe(self, spec: JobSpec, ran_s: float) -> None:
        """Learns from a job that ended by itself.

        Args:
            ran_s: How long it ran, all attempts together.
        """
        kind: tuple[str, ...] | None = None
        for key in _keys(spec):
            group = self._groups.pop(key, None) or _Group()
            if len(self._groups) >= GROUPS_MAX:
                del self._groups[next(iter(self._groups))]
            self._groups[key] = group
            group.add(kind, ran_s, spec.duration_s)
            kind = key

    def predict(self, spec: JobSpec, *, elapsed_s: float = 0.0) -> Duration:
        """Returns how long a job will have run in all when it ends.

        One that has run longer than all like it, and than its owner named, is taken to run as long again.

        Source: Harchol-Balter & Downey, "Exploiting Process Lifetime Distributions for Dynamic Load Balancing"
        (TOCS 1997): the median remaining lifetime equals the age.

        Args:
            elapsed_s: How long it has run already.
        """
        requested_s = spec.duration_s
        groups = [group for key in _keys(spec) if (group := self._groups.get(key)) is not None]
        for group in groups:
            found = group.speak(requested_s, elapsed_s)
            if found is not None:
                return found
        if requested_s > elapsed_s:
            return Duration(expected_s=requested_s, safe_s=requested_s)
        if elapsed_s and (groups or requested_s):
            return Duration(expected_s=2.0 * elapsed_s, safe_s=inf)
        return UNKNOWN


def _keys(spec: JobSpec) -> tuple[tuple[str, ...], ...]:
    return (spec.team, spec.name.translate(_NO_DIGITS)), (spec.team,), ()
