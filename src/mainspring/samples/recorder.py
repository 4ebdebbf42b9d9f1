"""Recorder: what one lead keeps of what ranks report, within bounds that hold for an attempt of any length.

Pure: it is told what comes and when; whoever holds it writes its parts away.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from math import inf, nan
from typing import TypeAlias, final

import numpy as np

from mainspring.domain.goodput import TimeUse
from mainspring.domain.ids import RoleName
from mainspring.domain.wire import RankPlace, RankProgress, StepSample
from mainspring.domain.wire.rank import METRIC_NAME_LENGTH_MAX
from mainspring.samples.parts import CELLS_MAX, NAMES_MAX, Array, SamplePart

TIME_PREFIX = "time/"  # Of what we measure ourselves, in seconds a step: "time/step", "time/data", ...
ROWS_WHOLE = 500_000  # Kept one by one: 14 hours at ten steps a second. Of the next as many every second, then fourth.
WINDOWS_WHOLE = 8_192  # A day of ten seconds each; the next as many are twice as long, and so on.
WINDOW_S = 10.0  # Twenty reports of a rank at full pace.
RANKS_WHOLE = 1_000  # Of more ranks windows are longer, as their reports are rarer: a window's cells cost the same.
LATE_WINDOWS = 6.0  # A window in which nobody has finished a step goes on for so many: steps may be longer than it.
ROUNDS_MAX = 20  # Of either: far more than any attempt sees.
_BESIDE = (TimeUse.COMPILE.value, TimeUse.RESTORE.value, TimeUse.SNAPSHOT.value)  # Not part of a step.
_Row: TypeAlias = tuple[int, int, float, Mapping[str, float]]  # Generation, step, when, values by name.
_Window: TypeAlias = tuple[float, float, Mapping[int, tuple[float, float]]]  # From, until, step_s and share by rank.


@dataclass(slots=True)
class _RankSeen:
    """One rank as last heard of, and what it did in the window that is open."""

    generation: int = 0
    step: int = -1
    time_s: float = 0.0
    steps: int = 0
    spent_s: float = 0.0
    data_s: float = 0.0


@dataclass(slots=True)
class _Reporter:
    """A role's rank whose metrics are kept: in each generation the lowest that reports any; its last sample."""

    rank: int
    generation: int
    step: int = -1
    time_s: float = 0.0
    names: set[str] = field(default_factory=set)


@final
class Recorder:
    """Samples of one attempt under one lead.

    Args:
        now_s: The time.
        rows_whole: So many reports are kept one by one, and of the next as many every second.
    """

    def __init__(self, places: Iterable[RankPlace], *, now_s: float, rows_whole: int = ROWS_WHOLE) -> None:
        self._rows_whole = rows_whole
        self._roles: dict[int, RoleName] = {}
        self._ranks: dict[int, _RankSeen] = {}
        self._reporters: dict[RoleName, _Reporter] = {}
        self._quiet: set[RoleName] = set()  # Whose first rank steps and reports nothing: another may.
        self._names: dict[str, int] = {}
        self._rows: list[_Row] = []
        self._windows: list[_Window] = []
        self._rows_kept = self._windows_kept = 0
        self._began_s = now_s
        self.revision = 0  # Another with everything that is kept.
        self.place(places)

    def place(self, places: Iterable[RankPlace]) -> None:
        """Takes note of places that ranks may run at."""
        self._roles |= {place.rank: place.role for place in places}

    @property
    def full(self) -> bool:
        """Returns whether the part is as large as one may be, and another is to begin."""
        return len(self._rows) * max(1, len(self._names)) >= CELLS_MAX or self._window_cells >= CELLS_MAX

    @property
    def _window_cells(self) -> int:
        return len(self._windows) * max(1, len(self._ranks))

    def note(self, told: RankProgress, now_s: float) -> None:
        """Takes a rank's step report; one told again is ignored.

        Args:
            now_s: When it came.
        """
        if told.rank not in self._roles:
            return
        seen = self._ranks.setdefault(told.rank, _RankSeen())
        if (told.generation, told.step) <= (seen.generation, seen.step):
            return
        self._measure(seen, told)
        role = self._roles[told.rank]
        if told.samples:
            if not any(sample.metrics or sample.not_finite for sample in told.samples):
                self._quiet.add(role)
            for sample in told.samples:
                self._sample(told.rank, told.generation, sample)
        elif told.metrics and role in self._quiet:
            whole = StepSample(step=told.step, time_s=told.time_s, metrics=told.metrics, seconds=told.seconds)
            self._sample(told.rank, told.generation, whole)
        self.look(now_s)

    def look(self, now_s: float) -> None:
        """Closes the window whose time is over."""
        length_s = self._length_s
        if now_s - self._began_s < length_s:
            return
        stepped = {rank: seen for rank, seen in self._ranks.items() if seen.steps}
        if not stepped and (now_s - self._began_s < LATE_WINDOWS * length_s or not self._ranks):
            return
        whole_s = now_s - self._began_s
        means = {rank: (one.spent_s / one.steps, min(1.0, one.data_s / whole_s)) for rank, one in stepped.items()}
        if self._window_cells < 2 * CELLS_MAX:
            self._windows.append((self._began_s, now_s, means))
            self._windows_kept += 1
            self.revision += 1
        for seen in stepped.values():
            seen.steps, seen.spent_s, seen.data_s = 0, 0.0, 0.0
        self._began_s = now_s

    @property
    def _length_s(self) -> float:
        wide = max(1.0, len(self._ranks) / RANKS_WHOLE)
        return float(WINDOW_S * wide * (1 << min(self._windows_kept // WINDOWS_WHOLE, ROUNDS_MAX)))

    def _measure(self, seen: _RankSeen, told: RankProgress) -> None:
        beside_s = sum(told.seconds.get(use, 0.0) for use in _BESIDE)
        if seen.generation == told.generation and seen.step >= 0:
            seen.steps += told.step - seen.step
            seen.spent_s += max(0.0, told.time_s - seen.time_s - beside_s)
            seen.data_s += told.seconds.get(TimeUse.DATA.value, 0.0)
        seen.generation, seen.step, seen.time_s = told.generation, told.step, told.time_s

    def _sample(self, rank: int, generation: int, sample: StepSample) -> None:
        role = self._roles[rank]
        reporter = self._reporters.get(role)
        if reporter is None or rank < reporter.rank or generation > reporter.generation:
            if not sample.metrics and not sample.not_finite:
                return
            names = reporter.names if reporter is not None else set()
            reporter = self._reporters[role] = _Reporter(rank=rank, generation=generation, names=names)
        if rank != reporter.rank or (generation, sample.step) < (reporter.generation, reporter.step):
            return
        values = {**sample.metrics, **dict.fromkeys(sample.not_finite, inf), **_times(reporter, generation, sample)}
        known = reporter.names >= values.keys()
        reporter.generation, reporter.step, reporter.time_s = generation, sample.step, sample.time_s
        reporter.names = {*values}
        stride = 1 << min(self._rows_kept // self._rows_whole, ROUNDS_MAX)
        if known and sample.step % stride:  # A name that is rare is kept.
            return
        whose = f"{role}/" if len({*self._roles.values()}) > 1 else ""
        named = {self._named(_of(whose, name)): value for name, value in values.items()}
        named.pop("", None)
        if named and len(self._rows) * len(self._names) < 2 * CELLS_MAX:  # A store that is away is not waited for.
            self._rows.append((generation, sample.step, sample.time_s, named))
            self._rows_kept += 1
            self.revision += 1

    def _named(self, name: str) -> str:
        """Returns a name as it is kept, "" where there are too many."""
        name = name[:METRIC_NAME_LENGTH_MAX]
        if name not in self._names:
            if len(self._names) >= NAMES_MAX:
                return ""
            self._names[name] = len(self._names)
        return name

    def part(self) -> SamplePart:
        """Returns what was kept since the last `seal`."""
        values = np.full((len(self._rows), len(self._names)), nan)
        for number, row in enumerate(self._rows):
            for name, value in row[3].items():
                values[number, self._names[name]] = value
        ranks = sorted(self._ranks)
        step_s, share = np.full((2, len(self._windows), len(ranks)), nan, np.float32)
        column = {rank: number for number, rank in enumerate(ranks)}
        for number, (_, _, means) in enumerate(self._windows):
            for rank, (mean_s, waited) in means.items():
                step_s[number, column[rank]], share[number, column[rank]] = mean_s, waited
        return SamplePart(
            names=tuple(self._names),
            generation=_column([row[0] for row in self._rows], np.int32),
            step=_column([row[1] for row in self._rows], np.int64),
            time_s=_column([row[2] for row in self._rows], np.float64),
            values=values,
            ranks=_column(ranks, np.int32),
            from_s=_column([window[0] for window in self._windows], np.float64),
            until_s=_column([window[1] for window in self._windows], np.float64),
            step_s=step_s,
            data_share=share,
        )

    def seal(self, part: SamplePart) -> None:
        """Begins another part after one that is stored; what came since then is in the next one."""
        del self._rows[: len(part.step)]
        del self._windows[: len(part.from_s)]
        self._names = {}
        for row in self._rows:
            for name in row[3]:
                self._names.setdefault(name, len(self._names))


def _of(whose: str, name: str) -> str:
    """Returns the name of a metric of one of several roles: "ROLE/loss", "time/ROLE/step"."""
    own = name.removeprefix(TIME_PREFIX)
    return f"{TIME_PREFIX}{whose}{own}" if own != name else f"{whose}{name}"


def _times(reporter: _Reporter, generation: int, sample: StepSample) -> Mapping[str, float]:
    """Returns what the time since the last sample went into, in seconds a step where it comes with every step."""
    spent = {f"{TIME_PREFIX}{use}": seconds for use, seconds in sample.seconds.items() if seconds > 0}
    steps = sample.step - reporter.step
    if generation != reporter.generation or reporter.step < 0 or steps <= 0:
        return spent
    beside_s = sum(sample.seconds.get(use, 0.0) for use in _BESIDE)
    step_s = max(0.0, sample.time_s - reporter.time_s - beside_s) / steps
    data_s = sample.seconds.get(TimeUse.DATA.value, 0.0) / steps
    return {**spent, f"{TIME_PREFIX}step": step_s, f"{TIME_PREFIX}data": data_s}


def _column(values: list[float] | list[int], kind: type) -> Array:
    return np.asarray(values, kind)
