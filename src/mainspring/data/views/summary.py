"""Column summaries: moments and quantile sketches, merged over shards into a view's statistics."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from mainspring.data.features import Features
from mainspring.data.sketch import Sketch, sketch_from_bytes, sketch_to_bytes
from mainspring.data.views.moments import QUANTILES, Moments, Statistics
from mainspring.domain.errors import DamagedData

_COUNT = struct.Struct("<q")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Summary:
    """Of all columns side by side, in name order.

    Args:
        moments: Sums.
        sketch: Counts.
    """

    moments: Moments
    sketch: Sketch

    @staticmethod
    def of(columns: Mapping[str, NDArray[np.float32]]) -> Summary:
        """Returns the summary of rows, as they are stored.

        Args:
            columns: [T, D] for each column, T at least 1, finite.

        Raises:
            InvalidInput: A value is infinite or not a number.
        """
        values = np.concatenate([columns[name] for name in sorted(columns)], axis=1).astype(np.float64)
        return Summary(sketch=Sketch.of(values), moments=Moments.of(values))

    def merged(self, other: Summary) -> Summary:
        """Returns the summary of both sets of rows.

        Args:
            other: Of the other rows.
        """
        return Summary(moments=self.moments.merged(other.moments), sketch=self.sketch.merged(other.sketch))

    def statistics(self, features: Features) -> dict[str, Statistics]:
        """Returns the statistics of each column.

        Args:
            features: The columns.
        """
        moments, begin = self.moments, 0
        std = np.sqrt(moments.squares / moments.count)
        quantiles = np.clip(self.sketch.quantiles(QUANTILES), moments.min, moments.max)
        found = {}
        for column in features.columns:
            here = slice(begin, begin + len(column.names))
            found[column.name] = Statistics(
                count=moments.count,
                mean=tuple(moments.mean[here].tolist()),
                std=tuple(std[here].tolist()),
                min=tuple(moments.min[here].tolist()),
                max=tuple(moments.max[here].tolist()),
                quantiles=tuple(tuple(row) for row in quantiles[:, here].tolist()),
            )
            begin = here.stop
        return found


def summary_to_bytes(summary: Summary) -> bytes:
    """Returns a summary as bytes; the same for equal summaries.

    Args:
        summary: The summary.
    """
    moments = summary.moments
    sums = np.stack([moments.mean, moments.squares, moments.min, moments.max]).astype("<f8")
    return _COUNT.pack(moments.count) + sums.tobytes() + sketch_to_bytes(summary.sketch)


def summary_from_bytes(data: bytes, features: Features) -> Summary:
    """Returns what `summary_to_bytes` wrote.

    Args:
        data: The bytes.
        features: The columns it is of.

    Raises:
        DamagedData: It is something else.
    """
    dims = sum(len(column.names) for column in features.columns)
    begin = _COUNT.size + 4 * 8 * dims
    if len(data) < begin:
        raise DamagedData("read a summary", got=f"{len(data)} bytes", wanted=f"at least {begin}")
    mean, squares, least, most = np.frombuffer(data, "<f8", 4 * dims, _COUNT.size).reshape(4, dims)
    (count,) = _COUNT.unpack_from(data)
    moments = Moments(count=count, mean=mean, squares=squares, min=least, max=most)
    sketch = sketch_from_bytes(data[begin:])
    if (sketch.dims, sketch.rows) != (dims, count):
        raise DamagedData("read a summary", got=f"{sketch.rows} rows of {sketch.dims}", wanted=f"{count} of {dims}")
    return Summary(moments=moments, sketch=sketch)
