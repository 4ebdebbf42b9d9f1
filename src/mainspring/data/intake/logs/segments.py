"""Segmentation: where in a log an episode begins and ends."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from mainspring.data.episode import NANOSECONDS, Integers
from mainspring.domain.errors import InvalidInput

SEGMENTS_MAX = 100_000  # An episode a second in a file of a day.
TIME_NS_MAX = 1 << 62  # After every time (the year 2116); the difference of two such still fits 64 bits.


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """A stretch of a log's time, both ends included."""

    begin_ns: int
    end_ns: int


def whole() -> tuple[Segment, ...]:
    """Returns the one segment that is all of a log."""
    return (Segment(begin_ns=-TIME_NS_MAX, end_ns=TIME_NS_MAX),)


def between_pauses(streams: tuple[Integers, ...], gap_s: float) -> tuple[Segment, ...]:
    """Returns the stretches in which no stream pauses.

    Args:
        streams: Times of each stream's messages, advancing.
        gap_s: A pause is longer than this.

    Raises:
        InvalidInput: There are more than `SEGMENTS_MAX`.
    """
    gap_ns = round(gap_s * NANOSECONDS)
    pauses = [(time_ns[:-1][here], time_ns[1:][here]) for time_ns in streams for here in [np.diff(time_ns) > gap_ns]]
    start = np.concatenate([begins for begins, _ in pauses])
    order = np.argsort(start, kind="stable")
    start, stop = start[order], np.concatenate([ends for _, ends in pauses])[order]
    reach = np.maximum.accumulate(stop) if len(stop) else stop  # Pauses of several streams overlap.
    fresh = np.concatenate([np.ones(min(1, len(start)), np.bool_), start[1:] > reach[:-1]])
    last = np.flatnonzero(np.concatenate([fresh[1:], np.ones(min(1, len(start)), np.bool_)]))
    return _segments(np.concatenate([[-TIME_NS_MAX], reach[last]]), np.concatenate([start[fresh], [TIME_NS_MAX]]))


def while_true(time_ns: Integers, true: np.ndarray[tuple[int, ...], np.dtype[np.bool_]]) -> tuple[Segment, ...]:
    """Returns the stretches in which a flag is true; it holds until it is said again.

    Args:
        time_ns: [N] when it is said, advancing.
        true: [N] what is said.

    Raises:
        InvalidInput: There are more than `SEGMENTS_MAX`.
    """
    changes = np.diff(np.concatenate([[False], true]).astype(np.int8))
    begin, end = time_ns[changes > 0], time_ns[changes < 0] - 1
    return _segments(begin, np.concatenate([end, [TIME_NS_MAX]])[: len(begin)])


def between_marks(start_ns: Integers, stop_ns: Integers) -> tuple[Segment, ...]:
    """Returns the stretches from each start to the first stop after it, or to the next start.

    Args:
        start_ns: Times of the starts, advancing.
        stop_ns: Times of the stops, advancing.

    Raises:
        InvalidInput: There are more than `SEGMENTS_MAX`.
    """
    first_stop = np.concatenate([stop_ns, [TIME_NS_MAX]])[np.searchsorted(stop_ns, start_ns, side="right")]
    next_start = np.concatenate([start_ns[1:] - 1, [TIME_NS_MAX]])[: len(start_ns)]
    return _segments(start_ns, np.minimum(first_stop, next_start))


def _segments(begin: Integers, end: Integers) -> tuple[Segment, ...]:
    if len(begin) > SEGMENTS_MAX:
        raise InvalidInput("cut a log", got=f"{len(begin)} episodes", wanted=f"at most {SEGMENTS_MAX}")
    return tuple(Segment(begin_ns=first, end_ns=last) for first, last in zip(begin.tolist(), end.tolist(), strict=True))
