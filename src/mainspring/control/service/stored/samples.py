"""Samples of jobs, read from the object store where their leads have written them: the controller keeps none."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from math import isfinite
from typing import Any, final

from mainspring.control.service.views import find_job
from mainspring.control.store.store import Store
from mainspring.control.store.tokens import LAB_ITSELF, Caller
from mainspring.domain.answers import POINTS_MAX, SERIES_MAX, JobSamples, MetricSeries, RankTimes
from mainspring.domain.errors import InvalidInput, NotFound
from mainspring.domain.ids import JobId
from mainspring.objects import open_store
from mainspring.samples import SampleReader, curve_of, heat_of, ideal_step_s, names_of

_CELLS_MAX = 100_000  # Points of all curves of an answer: 5 MB of it.
_SIGNIFICANT = 9  # Digits: what a picture can show, and a third of the bytes of all that a float has.


@lru_cache(maxsize=4)
def _reader(url: str) -> SampleReader:
    return SampleReader(open_store(url))


@final
class Samples:
    """What may be asked of samples. Used by many threads.

    Args:
        objects_url: Where they are.
    """

    def __init__(self, store: Store, objects_url: str) -> None:
        self._store = store
        self._objects_url = objects_url

    def series(
        self,
        reference: str,
        caller: Caller = LAB_ITSELF,
        *,
        metrics: str = "",
        points: int = 500,
        attempt: int | None = None,
    ) -> JobSamples:
        """Returns curves of a job's metrics.

        Args:
            reference: Its id, or a name; of several with one name, the newest.
            caller: Who asks: somebody else's job is not found.
            metrics: Names, with commas between; "" for all.
            points: Of each curve, about so many.
            attempt: Only of the attempt of this number.

        Raises:
            NotFound: No such job, or nothing was reported under a name.
            InvalidInput: That would be more points than one answer holds.
            Unavailable: The object store does not answer.
        """
        assert 1 <= points <= POINTS_MAX
        job = self._job(reference, caller)
        found = _reader(self._objects_url).read(job, attempt=attempt)
        names = names_of(found)
        wanted = (
            tuple(dict.fromkeys(name for name in metrics.split(",") if name)) if metrics not in names else (metrics,)
        )
        wanted = wanted or names[:SERIES_MAX]
        if len(wanted) * points > _CELLS_MAX and len(wanted) > 1:
            raise InvalidInput(
                "read samples",
                on=job,
                got=f"{points} points of {len(wanted)} metrics",
                wanted=f"at most {_CELLS_MAX} in one answer",
                next_step="name fewer metrics",
            )
        series = []
        for name in wanted:
            curve = curve_of(found, name, points=points)
            if curve is None:
                raise NotFound("read samples", on=job, got=f"metric {name[:80]!r}", wanted=", ".join(names)[:500])
            shown = {
                column: tuple(getattr(curve, column).tolist()) for column in ("attempt", "generation", "step", "lost")
            }
            series.append(
                MetricSeries(
                    name=name,
                    **shown,
                    time_s=tuple(round(at, 3) for at in curve.time_s.tolist()),
                    value=tuple(map(_short, curve.value.tolist())),
                    count=curve.count,
                    least=_finite(curve.least),
                    most=_finite(curve.most),
                    last=_finite(curve.last),
                    not_finite=tuple(curve.not_finite.tolist()),
                )
            )
        newest = [float(one.part.time_s[-1]) for one in found if len(one.part.time_s)]
        until_s = max(newest, default=None)
        return JobSamples(job=job, names=names, series=tuple(series), until_s=until_s, ideal_step_s=ideal_step_s(found))

    def rank_times(
        self, reference: str, caller: Caller = LAB_ITSELF, *, columns: int = 120, rows: int = 64
    ) -> RankTimes:
        """Returns the seconds a step of every rank of a job over time.

        Args:
            reference: See `series`.
            caller: See `series`.
            columns: At most so many stretches of time.
            rows: At most so many rows of ranks.

        Raises:
            NotFound: No such job.
            Unavailable: The object store does not answer.
        """
        job = self._job(reference, caller)
        found = _reader(self._objects_url).read(job)
        heat = heat_of(found, columns=columns, rows=rows)
        if heat is None:
            return RankTimes(job=job, ideal_step_s=ideal_step_s(found))
        return RankTimes(
            job=job,
            ranks=heat.ranks,
            first=tuple(heat.first.tolist()),
            from_s=tuple(heat.from_s.tolist()),
            until_s=tuple(heat.until_s.tolist()),
            step_s=_table(heat.step_s),
            data_share=_table(heat.data_share),
            ideal_step_s=ideal_step_s(found),
        )

    def _job(self, reference: str, caller: Caller) -> JobId:
        with self._store.read() as connection:
            return find_job(connection, reference, caller).id


def _table(values: Any) -> tuple[tuple[float | None, ...], ...]:
    rows: Sequence[Sequence[float]] = values.tolist()
    return tuple(tuple(_short(one) if isfinite(one) else None for one in row) for row in rows)


def _short(value: float) -> float:
    return float(f"{value:.{_SIGNIFICANT}g}")


def _finite(value: float) -> float | None:
    return _short(value) if isfinite(value) else None
