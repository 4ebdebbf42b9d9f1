"""Samples read again: a job's parts, and of them curves and heat-maps of as many points as a picture can show.

A curve goes through the samples that were least and most in each stretch of it (as M4 does), so no spike is lost.
Source: Jugel et al., "M4: A Visualization-Oriented Time Series Data Aggregation", VLDB 2014.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import final

import numpy as np

from mainspring.domain.errors import DamagedData, NotFound
from mainspring.domain.ids import JobId
from mainspring.objects import ObjectSeen, ObjectStore
from mainspring.samples.parts import Array, PartName, SamplePart, part_name, samples_folder, unpack
from mainspring.samples.recorder import TIME_PREFIX

KEPT_BYTES = 64 << 20  # Parts of the jobs that are looked at: some ten of a day each.
PARTS_MAX = 4_096  # Of one job, the newest: several attempts of a month each.
READS_AT_ONCE = 16  # Of an object store that answers in 30 ms: 500 parts a second.
ROUGH_SHARE = 0.1  # The fastest tenth of its steps shows what a job's hardware can do.


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Stretch:
    """A part, and which it is."""

    name: PartName
    part: SamplePart


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Curve:
    """One metric of a job, in order of time.

    Args:
        attempt: Number of the attempt, of each point.
        generation: Of each point.
        step: Of each point.
        time_s: Of each point.
        value: Of each point.
        lost: Whether the step was done again later, from an older state.
        count: Samples that it was made of.
        least: Of all that count still.
        most: Of all that count still.
        last: The newest.
        not_finite: Steps at which it was no finite number, the first of them.
    """

    name: str
    attempt: Array
    generation: Array
    step: Array
    time_s: Array
    value: Array
    lost: Array
    count: int
    least: float
    most: float
    last: float
    not_finite: Array


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Heat:
    """Seconds a step of every rank over time: the mean of each window, of ranks that share a row the slowest.

    Args:
        from_s: When each column begins.
        until_s: When it ends.
        first: The first rank of each row; a row goes on until the next one's.
        step_s: Columns by rows; NaN where no rank of the row finished a step.
        data_share: Likewise, the share of the time in which ranks waited for data.
        ranks: How many there are in all.
    """

    from_s: Array
    until_s: Array
    first: Array
    step_s: Array
    data_share: Array
    ranks: int


@final
class SampleReader:
    """Reads samples of jobs, and keeps those of them in memory that were read last. For many threads."""

    def __init__(self, store: ObjectStore, *, kept_bytes: int = KEPT_BYTES) -> None:
        self._store = store
        self._kept_bytes = kept_bytes
        self._lock = threading.Lock()
        self._held: OrderedDict[ObjectSeen, SamplePart] = OrderedDict()
        self._size_bytes = 0

    def read(self, job: JobId, *, attempt: int | None = None) -> Sequence[Stretch]:
        """Returns a job's samples, oldest first, without what is damaged.

        Args:
            attempt: Only of the attempt of this number.

        Raises:
            Unavailable: The store does not answer.
        """
        found = {
            name: seen
            for seen in self._store.list(samples_folder(job))
            if (name := part_name(seen.key)) is not None and attempt in (None, name.number)
        }
        wanted = sorted(found)[-PARTS_MAX:]
        with ThreadPoolExecutor(READS_AT_ONCE, "samples") as pool:
            parts = list(pool.map(lambda name: self._part(found[name]), wanted)) if wanted else []
        return [Stretch(name=name, part=part) for name, part in zip(wanted, parts, strict=True) if part is not None]

    def _part(self, seen: ObjectSeen) -> SamplePart | None:
        with self._lock:
            if (held := self._held.get(seen)) is not None:
                self._held.move_to_end(seen)
                return held
        try:
            part = unpack(self._store.get(seen.key), on=seen.key)
        except (DamagedData, NotFound):  # Written by whoever may write the job's folder; or gone meanwhile.
            return None
        with self._lock:
            if seen not in self._held:
                self._held[seen] = part
                self._size_bytes += part.size_bytes
            while self._size_bytes > self._kept_bytes:
                self._size_bytes -= self._held.popitem(last=False)[1].size_bytes
        return part


def names_of(stretches: Sequence[Stretch]) -> tuple[str, ...]:
    """Returns the names of all metrics, in order: first what ranks report, then what we measure."""
    names = {name for one in stretches for name in one.part.names}
    return tuple(sorted(names, key=lambda name: (name.startswith(TIME_PREFIX), name)))


def curve_of(stretches: Sequence[Stretch], name: str, *, points: int) -> Curve | None:
    """Returns one metric of a job; None where nothing was reported under that name.

    Args:
        stretches: From `SampleReader.read`.
        points: At most about so many; steps at which it went back are kept beside them.
    """
    columns: dict[str, list[Array]] = {key: [] for key in ("attempt", "generation", "step", "time_s", "value")}
    broken: list[Array] = []
    count = 0
    for one in stretches:
        if name not in one.part.names:
            continue
        value = one.part.values[:, one.part.names.index(name)]
        broken.append(one.part.step[np.isinf(value)])
        rows = np.flatnonzero(np.isfinite(value))
        count += len(rows)
        rows = rows[_extremes(value[rows], points)]
        columns["attempt"].append(np.full(len(rows), one.name.number))
        columns["value"].append(value[rows])
        for key in ("generation", "step", "time_s"):
            columns[key].append(getattr(one.part, key)[rows])
    if not broken:
        return None
    whole = {key: np.concatenate(pieces) for key, pieces in columns.items()}
    lost = _lost(whole["attempt"], whole["generation"], whole["step"])
    kept = whole["value"][~lost]
    chosen = np.union1d(_extremes(whole["value"], points), _turns(whole["attempt"], whole["generation"])[:points])
    return Curve(
        name=name,
        **{key: column[chosen] for key, column in whole.items()},
        lost=lost[chosen],
        count=count,
        least=float(kept.min()) if len(kept) else np.nan,
        most=float(kept.max()) if len(kept) else np.nan,
        last=float(kept[-1]) if len(kept) else np.nan,
        not_finite=np.unique(np.concatenate(broken))[:points],
    )


def _extremes(values: Array, points: int) -> Array:
    """Returns which of some values are the first, least, most and last of as many equal stretches as that takes."""
    if len(values) <= points:
        return np.arange(len(values))
    edges = np.linspace(0, len(values), max(1, points // 2) + 1).astype(int)[:-1]
    edges = np.unique(edges)
    sizes = np.diff(np.append(edges, len(values)))
    bucket = np.repeat(np.arange(len(edges)), sizes)
    order = np.lexsort((values, bucket))
    least, most = order[edges], order[np.append(edges[1:], len(values)) - 1]
    return np.unique(np.concatenate(([0, len(values) - 1], least, most)))


def _turns(attempt: Array, generation: Array) -> Array:
    """Returns the first and last points of every generation."""
    if not len(attempt):
        return np.arange(0)
    ends = np.flatnonzero((np.diff(attempt) != 0) | (np.diff(generation) != 0))
    return np.unique(np.concatenate(([0], ends, ends + 1, [len(attempt) - 1])))


def _lost(attempt: Array, generation: Array, step: Array) -> Array:
    """Returns which points are of steps that a later generation did again."""
    lost = np.zeros(len(step), bool)
    if not len(step):
        return lost
    begins = np.flatnonzero((np.diff(attempt) != 0) | (np.diff(generation) != 0)) + 1
    edges = [0, *begins.tolist(), len(step)]
    again = np.inf
    for begin, end in zip(reversed(edges[:-1]), reversed(edges[1:]), strict=True):
        lost[begin:end] = step[begin:end] >= again
        again = min(again, float(step[begin:end].min()))
    return lost


def ideal_step_s(stretches: Sequence[Stretch]) -> float | None:
    """Returns how long a step takes when nothing holds it up: as the fastest tenth did; None before the first."""
    found = [
        one.part.values[:, column]
        for one in stretches
        for column, name in enumerate(one.part.names)
        if name.startswith(TIME_PREFIX) and name.endswith("/step")
    ]
    steps = np.concatenate(found) if found else np.empty(0)
    steps = steps[np.isfinite(steps) & (steps > 0)]
    return float(np.quantile(steps, ROUGH_SHARE)) if len(steps) else None


def heat_of(stretches: Sequence[Stretch], *, columns: int, rows: int) -> Heat | None:
    """Returns the seconds a step of every rank over time; None before the first window.

    Args:
        stretches: From `SampleReader.read`.
        columns: At most so many stretches of time.
        rows: At most so many rows of ranks.
    """
    parts = [one.part for one in stretches if len(one.part.from_s) and len(one.part.ranks)]
    if not parts:
        return None
    ranks = np.unique(np.concatenate([part.ranks for part in parts]))
    group = max(1, -(-len(ranks) // rows))
    first = ranks[::group]
    begins, ends = (np.concatenate([getattr(part, name) for part in parts]) for name in ("from_s", "until_s"))
    order = np.argsort(begins, kind="stable")
    width = max(1, -(-len(begins) // columns))
    cell = np.empty(len(begins), int)
    cell[order] = np.arange(len(begins)) // width
    made = np.full((2, int(cell.max()) + 1, len(first)), np.nan)
    sums, counts = np.zeros_like(made), np.zeros_like(made)
    at = 0
    for part in parts:
        row = np.searchsorted(ranks, part.ranks) // group
        for window in range(len(part.from_s)):
            for index, values in enumerate((part.step_s[window], part.data_share[window])):
                worst = np.full(len(first), -np.inf)
                np.maximum.at(worst, row, np.where(np.isfinite(values), values, -np.inf))
                here = np.isfinite(worst)
                sums[index, cell[at], here] += worst[here]
                counts[index, cell[at], here] += 1
            at += 1
    np.divide(sums, counts, out=made, where=counts > 0)
    edges = np.arange(0, len(begins), width)
    return Heat(
        from_s=begins[order][edges],
        until_s=np.maximum.reduceat(ends[order], edges),
        first=first,
        step_s=made[0],
        data_share=made[1],
        ranks=len(ranks),
    )
