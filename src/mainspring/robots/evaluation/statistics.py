"""What outcomes say: intervals of a rate, of a mean, of the difference of two on the same starts; when a margin is
decided.

Decides nothing about a policy: a gate's words are in `report`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from scipy.optimize import brentq
from scipy.stats import binomtest, norm, t

from mainspring.domain.errors import InvalidInput

CONFIDENCE = 0.95  # Of every interval, and of every gate in the direction it decides.
POWER = 0.8  # The odds with which the starts that a margin is said to need do decide it: the custom of trials.
DISCORDANT_MIN = 0.5  # Added to each kind of disagreement where starts are planned: none seen does not mean none.


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """From `low` to `high`, both possible."""

    low: float
    high: float


class GateVerdict(str, Enum):
    """What a gate says. Undecided is neither: more starts are needed."""

    PASSED = "passed"
    FAILED = "failed"
    UNDECIDED = "undecided"


def wilson(solved: int, starts: int, *, confidence: float = CONFIDENCE) -> Interval:
    """Returns the interval of a success rate. Source: Wilson, "Probable inference", JASA 22, 1927.

    Args:
        solved: Of how many starts.
        confidence: Of both sides together.
    """
    found = binomtest(solved, starts).proportion_ci(confidence, method="wilson")
    return Interval(low=float(found.low), high=float(found.high))


def mean_interval(
    numbers: Sequence[float], *, least: float = 0.0, most: float = 1.0, confidence: float = CONFIDENCE
) -> Interval:
    """Returns Student's interval of a mean, cut to where it can lie. Source: Student, Biometrika 6, 1908.

    Numbers that are all the same show no spread to go by, which does not mean that there is none: theirs is Wilson's,
    of the widest spread that numbers of that mean and range can have.

    Args:
        numbers: At least one, each from `least` to `most`.
        confidence: Of both sides together.
    """
    assert numbers
    assert all(least <= number <= most for number in numbers)
    count, mean = len(numbers), math.fsum(numbers) / len(numbers)
    if min(numbers) == max(numbers):
        share, z = (mean - least) / (most - least), float(norm.ppf((1 + confidence) / 2))
        middle = (share + z * z / (2 * count)) / (1 + z * z / count)
        half = z / (1 + z * z / count) * math.sqrt(share * (1 - share) / count + (z / (2 * count)) ** 2)
        low, high = (least + (most - least) * edge for edge in (middle - half, middle + half))
    else:
        variance = math.fsum((number - mean) ** 2 for number in numbers) / (count - 1)
        half = float(t.ppf((1 + confidence) / 2, count - 1)) * math.sqrt(variance / count)
        low, high = mean - half, mean + half
    return Interval(low=min(max(low, least), mean), high=max(min(high, most), mean))


@dataclass(frozen=True, slots=True, kw_only=True)
class Pairs:
    """Two policies on the same starts.

    Args:
        starts: How many, at least one.
        only_first: Starts that the first alone solved.
        only_second: Starts that the second alone solved.
    """

    starts: int
    only_first: int
    only_second: int

    @property
    def difference(self) -> float:
        """Returns the first's success rate less the second's."""
        return (self.only_first - self.only_second) / self.starts


def pairs_of(first: Sequence[bool], second: Sequence[bool]) -> Pairs:
    """Returns how two policies compare, start by start.

    Args:
        first: Whether each start was solved.
        second: The same starts in the same order.

    Raises:
        InvalidInput: They are not equally many, or none.
    """
    if len(first) != len(second) or not first:
        raise InvalidInput("compare two policies", got=f"{len(first)} and {len(second)} starts", wanted="the same")
    both = list(zip(first, second, strict=True))
    return Pairs(
        starts=len(both),
        only_first=sum(one and not other for one, other in both),
        only_second=sum(other and not one for one, other in both),
    )


def mcnemar(pairs: Pairs) -> float:
    """Returns the exact two-sided p-value of "both are equally good". Source: McNemar, Psychometrika 12, 1947."""
    discordant = pairs.only_first + pairs.only_second
    return float(binomtest(pairs.only_first, discordant).pvalue) if discordant else 1.0


def difference_interval(pairs: Pairs, *, confidence: float = CONFIDENCE) -> Interval:
    """Returns the score interval of the difference. Source: Tango, Statistics in Medicine 17, 1998, pages 891-908.

    It keeps its promise where few starts or few disagreements make that of the normal approximation too narrow.

    Args:
        confidence: Of both sides together.
    """
    z = float(norm.ppf((1 + confidence) / 2))
    least, most = -1 + 1e-9, 1 - 1e-9
    middle = min(max(pairs.difference, least), most)

    def side(edge: float, wanted: float) -> float:
        def off(difference: float) -> float:
            return _score(pairs, difference) - wanted

        if off(edge) * off(middle) > 0:  # Even the largest difference there is cannot be ruled out.
            return math.copysign(1.0, edge)
        return float(brentq(off, edge, middle))

    return Interval(low=side(least, z), high=side(most, -z))


def _score(pairs: Pairs, difference: float) -> float:
    """Returns how many deviations what was seen lies from a difference, with the likeliest disagreement under it."""
    n, first, second = pairs.starts, pairs.only_first, pairs.only_second
    b = -first - second + (2 * n - first + second) * difference
    c = -second * difference * (1 - difference)
    share = (math.sqrt(max(b * b - 8 * n * c, 0.0)) - b) / (4 * n)
    variance = n * (2 * share + difference * (1 - difference))
    off = first - second - n * difference
    if variance <= 0.0:
        return math.copysign(math.inf, off) if off else 0.0
    return off / math.sqrt(variance)


def starts_needed(pairs: Pairs, margin: float) -> int:
    """Returns how many starts most likely decide a margin, if two policies are equally good and disagree as seen.

    Source: Lachin, Statistics in Medicine 11, 1992: n = (z of the confidence + z of the power)^2 x disagreement /
    margin^2; between 5 and 10 % of disagreement, 770 to 1,550 starts for two points.

    Args:
        margin: By how much one may be worse, over 0.
    """
    disagree = (pairs.only_first + pairs.only_second + 2 * DISCORDANT_MIN) / (pairs.starts + 2 * DISCORDANT_MIN)
    z = float(norm.ppf(CONFIDENCE)) + float(norm.ppf(POWER))
    return math.ceil(z * z * disagree / margin**2)


def not_worse(pairs: Pairs, margin: float) -> GateVerdict:
    """Returns whether the first is, at `CONFIDENCE`, not worse than the second by more than a margin.

    Args:
        margin: 0 to 1.
    """
    found = difference_interval(pairs, confidence=2 * CONFIDENCE - 1)  # One-sided, each way.
    return _against(found, -margin)


def at_least(solved: int, starts: int, rate: float) -> GateVerdict:
    """Returns whether a success rate is, at `CONFIDENCE`, at least so much.

    Args:
        solved: Of how many starts.
        rate: 0 to 1.
    """
    return _against(wilson(solved, starts, confidence=2 * CONFIDENCE - 1), rate)


def _against(found: Interval, wanted: float) -> GateVerdict:
    if found.low >= wanted:
        return GateVerdict.PASSED
    return GateVerdict.FAILED if found.high < wanted else GateVerdict.UNDECIDED
