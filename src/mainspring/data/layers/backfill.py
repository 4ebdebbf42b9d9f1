"""Computes what a layer lacks of a version, and nothing that it has."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa

from mainspring.data.catalog.fragments import read_fragment
from mainspring.data.catalog.lineage import record_use
from mainspring.data.catalog.log import Version
from mainspring.data.catalog.versions import episode_table
from mainspring.data.episode import EpisodeRow
from mainspring.data.layers.layer import layer_pieces, layer_table, put_layer, put_part
from mainspring.data.layers.making import Result, Task
from mainspring.data.layers.pools import Pool
from mainspring.data.layers.producer import LayerSpec, Parameter, Producer, spec_of
from mainspring.data.packs import PACK_BYTES_MAX
from mainspring.domain.codec import from_plain
from mainspring.domain.ids import EpisodeId
from mainspring.objects import ObjectStore, open_store

PART_EPISODES_MAX = 10_000
PART_S = 60.0  # A kill loses at most so much work.
FAILED_NAMED_MAX = 1_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Failed:
    """An episode of which a producer made nothing, and why."""

    episode: EpisodeId
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class BackfillProgress:
    """Where a backfill stands: episodes done, and how many were missing."""

    done: int
    total: int


@dataclass(frozen=True, slots=True, kw_only=True)
class BackfillReport:
    """What came of a backfill.

    Args:
        layer: The layer.
        made: Episodes it has now that it had not.
        held: Episodes of the version that it had.
        failed: How many the producer made nothing of.
        failures: Of these the first `FAILED_NAMED_MAX`.
    """

    layer: LayerSpec
    made: int
    held: int
    failed: int
    failures: tuple[Failed, ...]


def backfill(
    url: str,
    version: Version,
    made_by: Producer,
    *,
    pool: Pool,
    elapsed_s: Callable[[], float],
    parameters: Mapping[str, Parameter] | None = None,
    inputs: Sequence[str] = (),
    options: Mapping[str, str] | None = None,
    progress: Callable[[BackfillProgress], None] | None = None,
) -> BackfillReport:
    """Makes a producer's layer for every episode of a version that it lacks. May be killed, and run again.

    Args:
        url: Of the object store, as each process opens it.
        version: The version.
        made_by: The producer.
        pool: Where it runs.
        elapsed_s: A stopwatch: parts are stored at least each `PART_S`.
        parameters: What the producer is told.
        inputs: Ids of layers whose columns it reads.
        options: The store's settings.
        progress: Called in the caller's thread after each episode.

    Raises:
        InvalidInput: The parameters do not fit.
        NotFound: An input layer lacks episodes.
        Unavailable: The store or the pool does not answer.
    """
    store = open_store(url, options)
    spec = spec_of(made_by, parameters or {}, inputs)
    put_layer(store, spec)
    record_use(store, version.name, "layer", spec.id)
    held = set(layer_table(store, spec.id)["id"].to_pylist())
    ids = episode_table(store, version, ["id"])["id"].to_pylist()
    missing = [EpisodeId(id) for id in ids if id not in held]
    pieces = [layer_pieces(store, layer_id, missing) for layer_id in inputs]

    def tasks() -> Iterator[Task]:
        for row in _rows(store, version, set(missing)):
            yield Task(
                where=made_by.where,
                spec=spec,
                store=url,
                options=dict(options or {}),
                row=row,
                inputs=tuple(each[row.id] for each in pieces),
            )

    done = _stored(store, spec, pool.results(tasks()), elapsed_s, progress, len(missing))
    return BackfillReport(
        layer=spec,
        made=len(missing) - len(done),
        held=len(ids) - len(missing),
        failed=len(done),
        failures=tuple(done[:FAILED_NAMED_MAX]),
    )


def _stored(
    store: ObjectStore,
    spec: LayerSpec,
    results: Iterator[Result],
    elapsed_s: Callable[[], float],
    progress: Callable[[BackfillProgress], None] | None,
    total: int,
) -> list[Failed]:
    """Stores results in parts as they come, and returns what failed."""
    waiting: list[Result] = []
    failed: list[Failed] = []
    size_bytes, since_s = 0, elapsed_s()
    for done, result in enumerate(results, 1):
        if result.reason:
            failed.append(Failed(episode=result.episode, reason=result.reason))
        else:
            waiting.append(result)
            size_bytes += len(result.columns)
        full = size_bytes >= PACK_BYTES_MAX or len(waiting) >= PART_EPISODES_MAX
        if waiting and (full or elapsed_s() - since_s >= PART_S):
            put_part(store, spec.id, waiting)
            waiting, size_bytes, since_s = [], 0, elapsed_s()
        if progress:
            progress(BackfillProgress(done=done, total=total))
    if waiting:
        put_part(store, spec.id, waiting)
    return failed


def _rows(store: ObjectStore, version: Version, wanted: set[EpisodeId]) -> Iterator[EpisodeRow]:
    for fragment in version.fragments:
        table: pa.Table = read_fragment(store, fragment)
        for batch in table.to_batches(max_chunksize=1_000):
            for row in batch.to_pylist(maps_as_pydicts="strict"):
                if row["id"] in wanted:
                    yield from_plain(EpisodeRow, row)
