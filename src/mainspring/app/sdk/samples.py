"""What ranks of a job reported, as arrays; and how two jobs differ, in what they were and in what came out."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, final

import numpy as np
from numpy.typing import NDArray

from mainspring.domain.answers import JobSamples, JobView, MetricSeries
from mainspring.domain.codec import to_plain
from mainspring.domain.ids import JobId

if TYPE_CHECKING:
    import pyarrow as pa

_NOT_COMPARED = ("name", "team", "owner")  # Of specs: what says nothing of how a run goes.
_COLUMNS = ("attempt", "generation", "step", "time_s", "value", "lost")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class MetricCurve:
    """One metric of a job, in order of time.

    Args:
        attempt: Number of the attempt, of each point.
        generation: Of each point.
        step: Of each point.
        time_s: When the step was finished, in seconds since the Unix epoch.
        value: Of each point.
        lost: Whether the step was done again later, from an older state.
        count: Samples that there are in all; a curve goes through what was least and most of them in each stretch.
        not_finite: Steps at which it was no finite number.
    """

    name: str
    attempt: NDArray[np.int64]
    generation: NDArray[np.int64]
    step: NDArray[np.int64]
    time_s: NDArray[np.float64]
    value: NDArray[np.float64]
    lost: NDArray[np.bool_]
    count: int
    not_finite: NDArray[np.int64]


@final
class Samples(Mapping[str, MetricCurve]):
    """Curves of a job's metrics, by name."""

    def __init__(self, told: JobSamples) -> None:
        self.job: JobId = told.job
        self.names = told.names
        self.ideal_step_s = told.ideal_step_s
        self._curves = {one.name: _curve(one) for one in told.series}

    def __getitem__(self, name: str) -> MetricCurve:
        """Returns the curve of a metric."""
        return self._curves[name]

    def __iter__(self) -> Iterator[str]:
        """Returns the names of the curves."""
        return iter(self._curves)

    def __len__(self) -> int:
        """Returns how many curves there are."""
        return len(self._curves)

    def arrow(self) -> pa.Table:
        """Returns all points as one Arrow table, each with its metric's name: for DuckDB, pandas, Polars.

        Raises:
            ImportError: pyarrow is not here: `pip install 'mainspring[data]'`.
        """
        import pyarrow as pa

        columns: dict[str, Any] = {
            "metric": np.repeat(np.array([*self], object), [len(one.step) for one in self.values()])
        }
        for name in _COLUMNS:
            pieces = [getattr(one, name) for one in self.values()]
            columns[name] = np.concatenate(pieces) if pieces else np.empty(0)
        return pa.table(columns)


def _curve(one: MetricSeries) -> MetricCurve:
    return MetricCurve(
        name=one.name,
        attempt=np.asarray(one.attempt, np.int64),
        generation=np.asarray(one.generation, np.int64),
        step=np.asarray(one.step, np.int64),
        time_s=np.asarray(one.time_s, np.float64),
        value=np.asarray(one.value, np.float64),
        lost=np.asarray(one.lost, np.bool_),
        count=one.count,
        not_finite=np.asarray(one.not_finite, np.int64),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Differing:
    """What one job has otherwise than another, None where it has nothing."""

    field: str
    one: Any
    other: Any


def differences(one: JobView, other: JobView) -> Sequence[Differing]:
    """Returns in which fields the specs of two jobs differ, in order of name.

    Args:
        one: A job.
        other: Another.
    """
    left, right = _flat(to_plain(one.spec)), _flat(to_plain(other.spec))
    return [
        Differing(field=field, one=left.get(field), other=right.get(field))
        for field in sorted({*left, *right})
        if left.get(field) != right.get(field) and field not in _NOT_COMPARED
    ]


def _flat(plain: Any, where: str = "") -> dict[str, Any]:
    """Returns a tree's leaves by their paths; a list of words, such as a command's, is one leaf."""
    if isinstance(plain, Mapping):
        pairs = [(f"{where}.{name}" if where else str(name), value) for name, value in plain.items()]
    elif isinstance(plain, list) and any(isinstance(value, Mapping | list) for value in plain):
        pairs = [(f"{where}[{number}]", value) for number, value in enumerate(plain)]
    else:
        return {where: plain}
    return {path: leaf for at, value in pairs for path, leaf in _flat(value, at).items()}
