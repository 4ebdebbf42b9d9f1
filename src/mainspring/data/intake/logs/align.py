"""Finds the values of streams at an episode's steps, in whole nanoseconds.

Shape suffixes: N messages of a stream, T steps, D dimensions.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from mainspring.data.episode import FRAMES_MAX, NANOSECONDS, Floats, Integers
from mainspring.data.intake.logs.recipe import Align
from mainspring.domain.errors import DamagedData


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Match:
    """Which messages of a stream stand for each step.

    Args:
        before: [T] number of a message.
        after: [T] number of the one the value leans towards; that of `before` unless it is interpolated.
        weight: [T] how far it leans, 0 to 1.
        distance_ns: [T] how far in time the farther of them is from the step; below 0 when there is none.
    """

    before: Integers
    after: Integers
    weight: Floats
    distance_ns: Integers

    def missed(self, tolerance_ns: int) -> NDArray[np.int64]:
        """Returns the steps that no message is near enough to.

        Args:
            tolerance_ns: A message exactly as far away is near enough.
        """
        return np.flatnonzero((self.distance_ns < 0) | (self.distance_ns > tolerance_ns))

    def values(self, values_ND: NDArray[np.generic]) -> Floats:
        """Returns the values at each step, [T, D].

        Args:
            values_ND: The stream's own.
        """
        first: Floats = values_ND[self.before].astype(np.float64)
        leaning = np.flatnonzero(self.weight)  # Elsewhere the value is the message's own, to the last bit.
        second = values_ND[self.after[leaning]].astype(np.float64)
        first[leaning] += (second - first[leaning]) * self.weight[leaning, None]
        return first


def advancing(time_ns: Integers, topic: str) -> NDArray[np.bool_]:
    """Returns which messages of a stream are kept: the first of those that carry the same time.

    Args:
        time_ns: [N] times in the order of the file.
        topic: For the message.

    Raises:
        DamagedData: A clock jumped back: the order of what happened is not known.
    """
    steps_ns = np.diff(time_ns)
    if len(steps_ns) and steps_ns.min() < 0:
        at = int(np.argmax(steps_ns < 0))
        raise DamagedData(
            "align a topic",
            on=topic,
            got=f"a clock that jumps back by {-int(steps_ns[at]) / NANOSECONDS:.6f} s after message {at}",
            wanted="times that advance; another stamp in the recipe may",
        )
    return np.concatenate([np.ones(min(1, len(time_ns)), np.bool_), steps_ns > 0])


def steps_between(begin_ns: int, end_ns: int, rate: Fraction) -> Integers:
    """Returns the times of steps at a rate, from `begin_ns` to `end_ns` at most; rounded, never accumulated.

    Args:
        begin_ns: The first step.
        end_ns: None is later.
        rate: Steps per second.

    Raises:
        DamagedData: They are more than an episode may have: a clock must be wrong.
    """
    if end_ns < begin_ns:
        return np.empty(0, np.int64)
    count = (end_ns - begin_ns) * rate.numerator // (NANOSECONDS * rate.denominator) + 1
    if count > FRAMES_MAX:
        raise DamagedData("align a log", got=f"{count} steps at {float(rate):g} Hz", wanted=f"at most {FRAMES_MAX}")
    # Seconds and the rest of a second apart, so that the products stay below 2^63 for any length of recording.
    seconds, rest = np.divmod(np.arange(count, dtype=np.int64) * rate.denominator, rate.numerator)
    times: Integers = begin_ns + seconds * NANOSECONDS + rest * NANOSECONDS // rate.numerator
    return times


def matched(time_ns: Integers, at_ns: Integers, align: Align) -> Match:
    """Returns which messages stand for each step.

    Args:
        time_ns: [N] times of the messages, each later than the one before.
        at_ns: [T] times of the steps.
        align: How they are found.
    """
    if len(time_ns) == 0:
        none = np.zeros(len(at_ns), np.int64)
        return Match(before=none, after=none, weight=none.astype(np.float64), distance_ns=none - 1)
    last = len(time_ns) - 1
    after = np.searchsorted(time_ns, at_ns, side="left")  # The first message at the step or later.
    before = np.searchsorted(time_ns, at_ns, side="right") - 1  # The last one at the step or earlier.
    to_before = at_ns - time_ns[np.maximum(before, 0)]
    to_after = time_ns[np.minimum(after, last)] - at_ns
    weight = np.zeros(len(at_ns))
    found, other, distance = before, before, np.where(before < 0, -1, to_before)
    if align is Align.NEAREST:
        later = (before < 0) | ((after <= last) & (to_after < to_before))
        found = other = np.where(later, after, before)
        distance = np.where(later, to_after, to_before)
    elif align is Align.INTERPOLATE:
        inside = (before >= 0) & (after <= last)
        other = after
        distance = np.where(inside, np.maximum(to_before, to_after), -1)
        width = np.where(inside & (after > before), to_before + to_after, 1)
        weight = np.where(inside & (after > before), to_before / width, 0.0)
    return Match(before=np.clip(found, 0, last), after=np.clip(other, 0, last), weight=weight, distance_ns=distance)
