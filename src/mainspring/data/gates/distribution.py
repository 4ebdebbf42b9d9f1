"""Distribution drift: what values columns take, kept with each fragment, and how new episodes differ from old ones.

A changed unit, a flipped sign, swapped joints and a dead sensor are all sound recordings by themselves; beside what the
dataset held before they stand out.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import reduce

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from mainspring.data.catalog.fragments import Fragment, read_fragment
from mainspring.data.episode import column_from_table
from mainspring.data.features import Features
from mainspring.data.packs import PackPiece, read_piece
from mainspring.data.pool import mapped
from mainspring.data.sketch import Sketch, sketch_from_bytes, sketch_to_bytes
from mainspring.domain.codec import from_plain
from mainspring.domain.errors import NotFound
from mainspring.objects import ObjectStore

ROWS_MIN = 1_000  # Half a minute at 30 Hz: of fewer rows a distribution says too little.
OUTSIDE_MAX = 0.05  # Share of new values beyond what was there, widened by a tenth of its range on both sides.
MARGIN = 0.1
SHIFT_MAX = 0.6  # Kolmogorov-Smirnov distance; between single tasks of one dataset, that of a joint stays below 0.5.
EDGES = (0.01, 0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99)
THREADS = 8  # A remote store answers in tens of milliseconds.
AHEAD = 64  # Episodes in hand at once: a few megabytes.


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnShift:
    """How one dimension of new episodes differs from the same of the old ones.

    Args:
        column: The column.
        dimension: Its name.
        kind: "range", "constant" or "shift".
        got: What the new episodes have.
        wanted: What the old ones had.
    """

    column: str
    dimension: str
    kind: str
    got: str
    wanted: str


def sketch_of(store: ObjectStore, fragments: Sequence[Fragment], features: Features) -> Sketch:
    """Returns the sketch of the columns of all kept episodes, side by side in name order.

    Each fragment's is made once, by reading its episodes' columns, and kept in the store.

    Args:
        store: Where they lie.
        fragments: At least one.
        features: The episodes'.

    Raises:
        NotFound: Episodes' columns are missing.
        DamagedData: They are not what they should be.
    """
    return reduce(Sketch.merged, (_of_fragment(store, fragment, features) for fragment in fragments))


def shifts(before: Sketch, after: Sketch, features: Features) -> tuple[ColumnShift, ...]:
    """Returns where new rows differ from old ones by more than chance or another task would explain.

    Args:
        before: Of the old rows.
        after: Of the new rows.
        features: Says what the dimensions are.
    """
    if min(before.rows, after.rows) < ROWS_MIN:
        return ()
    edges = before.quantiles(EDGES)
    low, high = before.quantiles((0.0, 1.0))
    margin = MARGIN * (high - low)
    inside = after.fractions(np.stack([np.nextafter(low - margin, -np.inf), high + margin]))
    outside = 1.0 - (inside[1] - inside[0])
    distance = np.abs(after.fractions(edges) - before.fractions(edges)).max(axis=0)
    spread_before, spread_after = (np.ptp(sketch.quantiles((0.01, 0.99)), axis=0) for sketch in (before, after))
    span_after = np.ptp(after.quantiles((0.0, 1.0)), axis=0)
    found = []
    names = [(column.name, name) for column in features.columns for name in column.names]
    for at, (column, dimension) in enumerate(names):
        range_text = f"{low[at]:.4g} to {high[at]:.4g}"
        if span_after[at] == 0.0 and spread_before[at] > 0.0:
            kind, got = "constant", f"always {after.quantiles((0.5,))[0, at]:.4g}"
        elif outside[at] > OUTSIDE_MAX:
            values = after.quantiles((0.01, 0.99))[:, at]
            kind, got = "range", f"{100 * outside[at]:.0f} % outside, mostly {values[0]:.4g} to {values[1]:.4g}"
        elif distance[at] > SHIFT_MAX and spread_after[at] > 0.0:
            kind, got = "shift", f"median {after.quantiles((0.5,))[0, at]:.4g}, {distance[at]:.2f} apart"
            range_text = f"median {edges[4, at]:.4g}, at most {SHIFT_MAX} apart"
        else:
            continue
        found.append(ColumnShift(column=column, dimension=dimension, kind=kind, got=got, wanted=range_text))
    return tuple(found)


def _of_fragment(store: ObjectStore, fragment: Fragment, features: Features) -> Sketch:
    key = f"sketches/{fragment.table.id}-{fragment.keep.id if fragment.keep else 'all'}"
    try:
        return sketch_from_bytes(store.get(key))
    except NotFound:
        made = _made(store, fragment, features)
    store.put_if_absent(key, sketch_to_bytes(made))
    return made


def _made(store: ObjectStore, fragment: Fragment, features: Features) -> Sketch:
    pieces = [from_plain(PackPiece, row) for row in read_fragment(store, fragment, ["columns"])["columns"].to_pylist()]

    def one(piece: PackPiece) -> Sketch:
        table = pq.read_table(pa.BufferReader(read_piece(store, piece)))
        return Sketch.of(np.concatenate([column_from_table(table, column.name) for column in features.columns], axis=1))

    with ThreadPoolExecutor(THREADS, "sketches") as pool:
        return reduce(Sketch.merged, mapped(pool, one, pieces, ahead=AHEAD))
