"""LeRobot time: even steps where the timestamps agree with the rate, else as they say."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from mainspring.data.episode import NANOSECONDS, Floats, Integers
from mainspring.domain.errors import DamagedData

RATE_DRIFT_MAX = 0.10  # As the doctor's limit, who would refuse it without a way in.
GAP_PERIODS_MAX = 10  # As the doctor's limit: times that are brought to a rate would hide it.
_UNITS = (("", 1.0), ("milliseconds", 1e3), ("microseconds", 1e6), ("nanoseconds", 1e9))
_TIME_S_MAX = 4e9  # The year 2096: beyond it int64 nanoseconds are near their end.


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Times:
    """When an episode's steps were.

    Args:
        time_ns: [T].
        begin_s: Where its timestamps begin; 0 where they begin with the episode.
        note: What they were taken for; "" when they are as usual.
        even: Whether they are at even distances.
    """

    time_ns: Integers
    begin_s: float = 0.0
    note: str = ""
    even: bool = True


def times_of(
    frame: Integers | None, stamp: Floats | None, *, rows: int, rate: Fraction, single: bool, resampled: bool
) -> Times:
    """Returns when an episode's steps were.

    Args:
        frame: [T] numbers of its frames; None where it has none, and rows are in order.
        stamp: [T] seconds; None where it has none, and frames are at even distances.
        rows: T.
        rate: Frames per second.
        single: Whether timestamps are kept as float32, which tells seconds apart only so well.
        resampled: Whether steps are brought to a rate afterwards, whichever these are.

    Raises:
        DamagedData: Frames are missing or out of order; timestamps do not advance, or are of another rate.
    """
    period_s = 1 / float(rate)
    if frame is not None and not np.array_equal(frame - frame[:1], np.arange(rows)):
        raise _damaged(
            f"{rows} rows, frames {frame[:3].tolist()}...", f"frames 0 to {rows - 1}, each once and in order"
        )
    note = f"frame_index begins at {frame[0]}" if frame is not None and rows and frame[0] else ""
    even = np.arange(rows, dtype=np.int64) * (NANOSECONDS * rate.denominator) // rate.numerator
    if stamp is None or not rows:
        return Times(time_ns=even, note=note)
    if not np.isfinite(stamp).all():
        raise _damaged(f"{int(np.count_nonzero(~np.isfinite(stamp)))} timestamps that are no numbers", "seconds")
    stamp, unit = _in_seconds(stamp, period_s)
    grid_s = np.arange(rows) * period_s
    if np.abs(stamp - grid_s).max() <= 0.5 * period_s:
        return Times(time_ns=even, note=note)
    begin_s = float(stamp[0])
    fine_s = float(np.spacing(np.float32(np.abs(stamp).max()))) if single else 0.0
    if np.abs(stamp - begin_s - grid_s).max() <= 0.5 * period_s + fine_s:
        said = f"timestamps begin at {begin_s:.7g} s{unit}" + ("" if fine_s < period_s else f", {fine_s:g} s apart")
        shift_ns = round(begin_s * NANOSECONDS) if begin_s > 0 else 0
        return Times(time_ns=even + shift_ns, begin_s=begin_s, note="; ".join(filter(None, (note, said))))
    return _irregular(stamp, period_s, note, unit, resampled=resampled)


def _irregular(stamp: Floats, period_s: float, note: str, unit: str, *, resampled: bool) -> Times:
    distances = np.diff(stamp)
    if distances.min() <= 0:
        raise _damaged(f"timestamps that do not advance after step {int(np.argmin(distances))}", "each later")
    rate_hz, declared_hz = len(distances) / float(stamp[-1] - stamp[0]), 1 / period_s
    gap = float(distances.max())
    if resampled and gap > GAP_PERIODS_MAX * period_s:
        raise _damaged(
            f"a gap of {gap:.3f} s after step {int(np.argmax(distances))}", "no longer one than --resample fills"
        )
    if not resampled and abs(rate_hz / declared_hz - 1) > RATE_DRIFT_MAX:
        raise _damaged(
            f"timestamps of {rate_hz:.4g} steps per second, declared {declared_hz:g}",
            "the declared rate",
            next_step=f"--resample {rate_hz:.3g} brings them to that rate",
        )
    off_s = float(np.abs(stamp - stamp[0] - np.arange(len(stamp)) * period_s).max())
    said = f"irregular timestamps{unit}, up to {off_s:.3f} s off {declared_hz:g} Hz" + (
        "" if resampled else ", are kept"
    )
    return Times(
        time_ns=np.round((stamp - min(0.0, float(stamp[0]))) * NANOSECONDS).astype(np.int64),
        begin_s=float(stamp[0]),
        note="; ".join(filter(None, (note, said))),
        even=False,
    )


def _in_seconds(stamp: Floats, period_s: float) -> tuple[Floats, str]:
    """Returns timestamps in seconds, whichever unit gives steps of about the declared length."""
    usual = float(np.median(np.diff(stamp))) if len(stamp) > 1 else period_s
    for name, units in _UNITS:
        if 0.5 <= usual / units / period_s <= 2.0:
            stamp = stamp / units
            unit = f" in {name}" if name else ""
            break
    else:
        unit = ""
    if np.abs(stamp).max() > _TIME_S_MAX:
        raise _damaged(f"timestamps up to {np.abs(stamp).max():.3g}", "seconds")
    return stamp, unit


def _damaged(got: str, wanted: str, next_step: str = "") -> DamagedData:
    return DamagedData("read a LeRobot episode", got=got, wanted=wanted, next_step=next_step)
