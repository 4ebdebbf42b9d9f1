"""Layers in the object store: what each is, and its parts, each put there whole.

`layers/<id>/layer.json` says what it is made of. `layers/<id>/parts/<hash>.json` names a table of episodes, each with
the piece that holds its columns, and its facts. Parts are only ever added; an episode found in two of them has equal
content in both.
"""

from __future__ import annotations

import io
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from blake3 import blake3

from mainspring.data.catalog.condemned import confirm
from mainspring.data.catalog.fragments import PIECE
from mainspring.data.features import Column, Features
from mainspring.data.layers.making import Result
from mainspring.data.layers.producer import LayerSpec
from mainspring.data.packs import Pack, PackPiece
from mainspring.domain.codec import decode, encode, from_plain, to_plain
from mainspring.domain.errors import DamagedData, InvalidInput, NotFound, Unavailable
from mainspring.domain.ids import EpisodeId
from mainspring.objects import Blob, ObjectStore, get_blob, put_blob

_LETTERS = 32
_ROWS = pa.schema([("id", pa.string()), ("columns", PIECE), ("facts", pa.string())])


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerPart:
    """Some episodes of a layer: a Parquet table of id, columns (a piece, null without columns) and facts (JSON)."""

    table: Blob
    rows: int


def put_layer(store: ObjectStore, spec: LayerSpec) -> None:
    """Says what a layer is, before its first part comes. May be repeated.

    Args:
        store: Where to.
        spec: What it is.
    """
    store.put_if_absent(f"layers/{spec.id}/layer.json", encode(spec))


def known_layers(store: ObjectStore) -> tuple[LayerSpec, ...]:
    """Returns every layer, in order of id.

    Args:
        store: Where they lie.
    """
    keys = [entry.key for entry in store.list("layers") if entry.key.endswith("/layer.json")]
    return tuple(decode(LayerSpec, store.get(key)) for key in keys)


def find_layer(store: ObjectStore, id: str) -> LayerSpec:
    """Returns what a layer is.

    Args:
        store: Where it lies.
        id: The layer, or the beginning of its id when no other begins so.

    Raises:
        NotFound: There is no such layer, or several.
    """
    found = [spec for spec in known_layers(store) if id and spec.id.startswith(id)]
    if len(found) != 1:
        raise NotFound("find a layer", on=id[:80], got=f"{len(found)} that begin so", wanted="one")
    return found[0]


def put_part(store: ObjectStore, layer_id: str, results: Sequence[Result]) -> LayerPart:
    """Adds episodes to a layer: their columns as one pack, then the table, then its name. May be repeated.

    Args:
        store: Where to.
        layer_id: The layer.
        results: Of episodes for which something was made; at least one.

    Raises:
        StorageFull: There is no room.
        Unavailable: A collection of garbage took its bytes at the same time.
    """
    pack = Pack()
    parts = [pack.add(result.columns) if result.columns else None for result in results]
    place = pack.store(store) if any(part is not None for part in parts) else None
    rows: list[dict[str, Any]] = [
        {
            "id": result.episode,
            "columns": to_plain(place(part)) if place is not None and part is not None else None,
            "facts": result.facts,
        }
        for result, part in zip(results, parts, strict=True)
    ]
    sink = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(rows, schema=_ROWS), sink, compression="zstd")
    added = LayerPart(table=put_blob(store, sink.getvalue()), rows=len(rows))
    name = blake3("\n".join(sorted(result.episode for result in results)).encode()).hexdigest()[:_LETTERS]
    key = f"layers/{layer_id}/parts/{name}.json"
    store.put_if_absent(key, encode(added))
    try:
        confirm(store, [added.table.id, *({row["columns"]["blob"]["id"] for row in rows if row["columns"]})])
    except Unavailable:
        store.delete(key)  # A collection of garbage took what it names: whoever runs again makes it anew.
        raise
    return added


def layer_table(store: ObjectStore, layer_id: str) -> pa.Table:
    """Returns a layer's episodes, each once, in id order: id, columns, facts.

    Args:
        store: Where it lies.
        layer_id: The layer.

    Raises:
        DamagedData: A part is not what it should be.
    """
    tables = [_ROWS.empty_table()]
    for entry in store.list(f"layers/{layer_id}/parts"):
        data = get_blob(store, decode(LayerPart, store.get(entry.key)).table)
        try:
            tables.append(pq.read_table(pa.BufferReader(data)).cast(_ROWS))
        except (pa.ArrowException, OSError, ValueError) as error:
            raise DamagedData("read a layer", on=entry.key, got=str(error)[:200]) from error
    table = pa.concat_tables(tables).sort_by("id")
    ids = table["id"].to_pylist()
    return table.filter(pa.array([at == 0 or ids[at - 1] != id for at, id in enumerate(ids)], pa.bool_()))


def layer_pieces(store: ObjectStore, layer_id: str, episodes: Iterable[EpisodeId]) -> dict[EpisodeId, PackPiece]:
    """Returns where a layer's columns of some episodes lie.

    Args:
        store: Where it lies.
        layer_id: The layer.
        episodes: Which.

    Raises:
        NotFound: The layer lacks some of them, or has no columns.
    """
    wanted = set(episodes)
    found = {
        EpisodeId(row["id"]): from_plain(PackPiece, row["columns"])
        for row in layer_table(store, layer_id).select(["id", "columns"]).to_pylist()
        if row["id"] in wanted and row["columns"] is not None
    }
    if len(found) < len(wanted):
        raise NotFound(
            "read a layer's columns",
            on=layer_id,
            got=f"{len(found)} of {len(wanted)} episodes",
            wanted="all of them",
            next_step="backfill it: ms data layer",
        )
    return found


def features_with(features: Features, specs: Iterable[LayerSpec]) -> Features:
    """Returns features with the columns of layers.

    Args:
        features: A version's.
        specs: The layers.

    Raises:
        InvalidInput: Two columns have one name.
    """
    added = [Column(name=name, names=dims) for spec in specs for name, dims in spec.columns.items()]
    columns = [*features.columns, *added]
    names = [column.name for column in columns]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise InvalidInput("add layers", got=f"{', '.join(twice)[:200]} twice", wanted="each column once")
    return Features(columns=tuple(sorted(columns, key=lambda column: column.name)), cameras=features.cameras)


def facts_table(store: ObjectStore, layer_id: str) -> pa.Table:
    """Returns a layer's facts as a table: id, and a column for each fact; for conditions over episodes.

    Args:
        store: Where it lies.
        layer_id: The layer.
    """
    table = layer_table(store, layer_id)
    facts: list[dict[str, Any]] = [json.loads(text) for text in table["facts"].to_pylist()]
    names = find_layer(store, layer_id).facts
    return pa.table({"id": table["id"], **{name: pa.array([each[name] for each in facts]) for name in names}})
