"""Runs a producer on one episode, in whatever process: what it made is checked against what it declared."""

from __future__ import annotations

import io
import json
import math
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from mainspring.data.episode import EpisodeRow
from mainspring.data.layers.episode import read_recorded
from mainspring.data.layers.producer import LayerSpec, Producer, load_producer
from mainspring.data.packs import PackPiece
from mainspring.domain.errors import InvalidInput, MainspringError, Unavailable
from mainspring.domain.ids import EpisodeId
from mainspring.objects import open_store

REASON_MAX = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """One episode to run a producer on; travels to other processes.

    Args:
        where: Where to find the producer.
        spec: The layer it is for.
        store: URL of the object store.
        options: The store's settings.
        row: The episode.
        inputs: Its pieces of the layers that the producer reads.
    """

    where: str
    spec: LayerSpec
    store: str
    options: Mapping[str, str]
    row: EpisodeRow
    inputs: tuple[PackPiece, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """What came of a task.

    Args:
        episode: The episode.
        columns: Parquet of the columns made, b"" when there are none.
        facts: JSON of the facts made.
        reason: Why there is nothing, "" when there is.
    """

    episode: EpisodeId
    columns: bytes = b""
    facts: str = "{}"
    reason: str = ""


def carry_out(task: Task) -> Result:
    """Returns what a producer makes of an episode, or why it made nothing.

    Args:
        task: What to do.

    Raises:
        Unavailable: The store does not answer: that says nothing of the episode.
        NotFound: There is no such producer here.
    """
    made_by = load_producer(task.where)
    if made_by.code != task.spec.code:
        raise InvalidInput(
            "run a producer",
            on=task.where,
            got=f"code {made_by.code[:12]}",
            wanted=f"{task.spec.code[:12]}, as asked for",
        )
    return produced(made_by, task)


def produced(made_by: Producer, task: Task) -> Result:
    """Returns what a loaded producer makes of an episode, or why it made nothing.

    Args:
        made_by: The producer.
        task: What to do.
    """
    store = open_store(task.store, task.options)
    try:
        with tempfile.TemporaryDirectory() as folder:
            episode = read_recorded(store, task.row, task.inputs, Path(folder))
            return _checked(task.spec, made_by.function(episode, **task.spec.parameters), task.row)
    except Unavailable:
        raise
    except MainspringError as error:
        reason = str(error)
    except Exception as error:  # noqa: BLE001 - foreign code: whatever it raises is about this episode alone.
        reason = f"{type(error).__name__}: {error}"
    return Result(episode=task.row.id, reason=reason[:REASON_MAX])


def _checked(spec: LayerSpec, made: Any, row: EpisodeRow) -> Result:
    declared = {*spec.columns, *spec.facts}
    if not isinstance(made, Mapping) or set(made) != declared:
        got = ", ".join(sorted(map(str, made))) if isinstance(made, Mapping) else type(made).__name__
        raise InvalidInput("run a producer", on=spec.producer, got=got[:200], wanted=", ".join(sorted(declared))[:200])
    table = {}
    for name, dims in spec.columns.items():
        values = np.asarray(made[name], np.float64)
        values = values[:, None] if values.ndim == 1 else values
        if values.shape != (row.frames, len(dims)) or not np.isfinite(values).all():
            raise InvalidInput(
                "run a producer",
                on=f"{spec.producer}, {name}",
                got=f"{values.shape}",
                wanted=f"finite numbers [{row.frames}, {len(dims)}]",
            )
        table[name] = pa.FixedSizeListArray.from_arrays(pa.array(values.reshape(-1)), len(dims))
    sink = io.BytesIO()
    if table:
        pq.write_table(pa.table(table), sink, compression="zstd", use_dictionary=False)
    facts = {name: _fact(spec, name, made[name]) for name in spec.facts}
    return Result(episode=row.id, columns=sink.getvalue(), facts=json.dumps(facts, sort_keys=True))


def _fact(spec: LayerSpec, name: str, value: Any) -> bool | int | float | str | None:
    plain = value.item() if isinstance(value, np.generic) else value
    if plain is None or isinstance(plain, (bool, int, str)) or (isinstance(plain, float) and math.isfinite(plain)):
        return plain
    raise InvalidInput(
        "run a producer",
        on=f"{spec.producer}, {name}",
        got=repr(plain)[:80],
        wanted="a finite number, text, truth or None",
    )
