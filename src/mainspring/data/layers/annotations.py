"""Annotations: what people, and robots by themselves, say of episodes and of stretches of them.

What is said in one act (a command, a file of many lines, a round of recordings) is an immutable layer,
`annotations/<id>.parquet`, named by its content; each line has its author and time. What holds of an episode is folded
from all of them, in the order of time: the newest verdict counts, labels add up, and what is withdrawn is gone.
"""

from __future__ import annotations

import io
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from blake3 import blake3

from mainspring.data.catalog.lineage import record_use
from mainspring.data.catalog.log import Version
from mainspring.data.catalog.versions import episode_rows
from mainspring.data.episode import NANOSECONDS, EpisodeRow
from mainspring.data.layers.layer import layer_table, put_layer, put_part
from mainspring.data.layers.making import Result
from mainspring.data.layers.producer import LayerSpec
from mainspring.data.packs import read_piece
from mainspring.data.video.packet import DECODING
from mainspring.domain.errors import DamagedData, InvalidInput
from mainspring.domain.ids import EpisodeId, checked_holder
from mainspring.objects import ObjectStore

ANNOTATIONS_MAX = 100_000  # Of one act: ten minutes of labels for each of ten thousand episodes fit.
LABEL_LENGTH_MAX = 200
LABELS_FROZEN_MAX = 64
JOINED = "annotation"  # By which conditions ask for it.
_FOLDER = "annotations"
_LETTERS = 32
_READERS = 16  # As many small objects are asked for at once as elsewhere in the catalog.
_PART_EPISODES = 10_000
_ROWS = pa.schema(
    [
        ("episode", pa.string()),
        ("author", pa.string()),
        ("made_ns", pa.int64()),
        ("success", pa.bool_()),
        ("label", pa.string()),
        ("begin_ns", pa.int64()),
        ("end_ns", pa.int64()),
        ("withdraws", pa.bool_()),
    ]
)
_SPAN = pa.struct([("label", pa.string()), ("from_s", pa.float64()), ("to_s", pa.float64()), ("author", pa.string())])
_JOINED = pa.schema(
    [
        ("id", pa.string()),
        ("success", pa.bool_()),
        ("labels", pa.list_(pa.string())),
        ("authors", pa.list_(pa.string())),
        ("spans", pa.list_(_SPAN)),
        ("made_s", pa.float64()),
    ]
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Annotation:
    """Something said of an episode.

    Args:
        episode: Of which.
        author: Who says so: a person, or a robot.
        made_ns: When, since the Unix epoch.
        success: Whether the task was done; None says nothing of it.
        label: A few words; "" for none.
        begin_ns: Where it begins, after the first step; None for the whole episode.
        end_ns: Where it ends; None with `begin_ns`.
        withdraws: Takes back what was said before: of this label and stretch where they are given, else everything.
    """

    episode: EpisodeId
    author: str
    made_ns: int
    success: bool | None = None
    label: str = ""
    begin_ns: int | None = None
    end_ns: int | None = None
    withdraws: bool = False

    def __post_init__(self) -> None:
        """Checks what is said.

        Raises:
            InvalidInput: It says nothing, its stretch is none, or its label is no line of text.
        """
        checked_holder(self.author)
        if len(self.label) > LABEL_LENGTH_MAX or not self.label.isprintable() or self.label != self.label.strip():
            raise _refused(self, repr(self.label[:80]), f"a label in one line of at most {LABEL_LENGTH_MAX} letters")
        if self.success is None and not self.label and not self.withdraws:
            raise _refused(self, "nothing", "success, a label, or both")
        if (self.begin_ns is None) != (self.end_ns is None) or not 0 <= (self.begin_ns or 0) <= (self.end_ns or 0):
            stretch = f"{_seconds(self.begin_ns)} to {_seconds(self.end_ns)}"
            raise _refused(self, stretch, "a beginning at 0 s or later, and an end not before it")

    @property
    def span(self) -> tuple[int, int] | None:
        """Returns where it begins and ends, None for the whole episode."""
        return None if self.begin_ns is None or self.end_ns is None else (self.begin_ns, self.end_ns)


def stretch_of(row: EpisodeRow, begin_s: float | None, end_s: float | None) -> tuple[int, int] | None:
    """Returns a stretch of an episode in nanoseconds after its first step, None for the whole of it.

    Args:
        row: The episode.
        begin_s: Where it begins; None for the first step, if there is an end.
        end_s: Where it ends; None for the last step, if there is a beginning.

    Raises:
        InvalidInput: It leaves the episode, or ends before it begins.
    """
    if begin_s is None and end_s is None:
        return None
    begin_s, end_s = begin_s or 0.0, row.seconds if end_s is None else end_s
    if not 0.0 <= begin_s <= end_s <= row.seconds + 1.0 / row.rate_hz:
        raise InvalidInput(
            "annotate an episode",
            on=row.id[:12],
            got=f"{begin_s:g} s to {end_s:g} s",
            wanted=f"a stretch within its {row.seconds:.3f} s",
        )
    return round(begin_s * NANOSECONDS), round(end_s * NANOSECONDS)


def put_annotations(store: ObjectStore, said: Sequence[Annotation]) -> str:
    """Keeps what was said in one act as a layer, and returns its id. May be repeated: the same again is the same layer.

    Args:
        store: Where to.
        said: At least one.

    Raises:
        InvalidInput: There is none, or there are more than `ANNOTATIONS_MAX`.
    """
    if not 0 < len(said) <= ANNOTATIONS_MAX:
        raise InvalidInput("annotate episodes", got=f"{len(said)} annotations", wanted=f"1 to {ANNOTATIONS_MAX}")
    rows = [[getattr(one, name) for name in _ROWS.names] for one in sorted(said, key=_order)]
    id = blake3(json.dumps(rows).encode()).hexdigest()[:_LETTERS]
    sink = io.BytesIO()
    columns = [dict(zip(_ROWS.names, row, strict=True)) for row in rows]
    pq.write_table(pa.Table.from_pylist(columns, schema=_ROWS), sink, compression="zstd")
    store.put_if_absent(f"{_FOLDER}/{id}.parquet", sink.getvalue())
    return id


def annotations_of(store: ObjectStore, episodes: Iterable[EpisodeId]) -> dict[EpisodeId, tuple[Annotation, ...]]:
    """Returns what holds of episodes, in the order in which it was said; those of which nothing does are left out.

    Args:
        store: Where it lies.
        episodes: Which.

    Raises:
        DamagedData: What was said cannot be read.
    """
    wanted = pa.array(sorted(set(episodes)), pa.string())
    said: dict[EpisodeId, list[Annotation]] = {}
    for table in _layers(store):
        for row in table.filter(pc.is_in(table["episode"], value_set=wanted)).to_pylist():
            said.setdefault(EpisodeId(row["episode"]), []).append(Annotation(**row))
    found = {id: tuple(_standing(each)) for id, each in sorted(said.items())}
    return {id: each for id, each in found.items() if each}


def verdict_of(annotations: Sequence[Annotation]) -> bool | None:
    """Returns whether an episode's task was done, by the newest that says so; None when none does.

    Args:
        annotations: What holds of it, in order.
    """
    return next((one.success for one in reversed(annotations) if one.success is not None), None)


def annotation_table(store: ObjectStore, episodes: Iterable[EpisodeId]) -> pa.Table:
    """Returns what holds of episodes as a table for conditions: id, success, labels, authors, spans, made_s.

    Args:
        store: Where it lies.
        episodes: Which.
    """
    rows: list[dict[str, Any]] = [
        {
            "id": id,
            "success": verdict_of(each),
            "labels": sorted({one.label for one in each if one.label}),
            "authors": sorted({one.author for one in each}),
            "spans": [
                {
                    "label": one.label,
                    "from_s": one.span[0] / NANOSECONDS,
                    "to_s": one.span[1] / NANOSECONDS,
                    "author": one.author,
                }
                for one in each
                if one.span
            ],
            "made_s": each[-1].made_ns / NANOSECONDS,
        }
        for id, each in annotations_of(store, episodes).items()
    ]
    return pa.Table.from_pylist(rows, schema=_JOINED)


def freeze_labels(store: ObjectStore, version: Version, labels: Sequence[str]) -> LayerSpec:
    """Makes a layer of what is said of a version's episodes now: a column for each label, 1 at the steps it covers.

    What is said later changes nothing of it: the same labels then make another layer.

    Args:
        store: Where the version lies.
        version: The version.
        labels: Which; a column is called like its label, in small letters, with dashes.

    Raises:
        InvalidInput: There is no label, or two make one column, or none of the episodes has one of them.
    """
    columns = {column_of(label): label for label in labels}
    if not 0 < len(columns) == len(labels) <= LABELS_FROZEN_MAX:
        wanted = f"1 to {LABELS_FROZEN_MAX}, each of letters or digits and each once"
        raise InvalidInput("freeze labels", got=", ".join(map(repr, labels))[:200] or "none", wanted=wanted)
    rows = {row.id: row for row in episode_rows(store, version)}
    said = annotations_of(store, rows)
    known = {one.label for each in said.values() for one in each if one.label}
    if missing := sorted(set(labels) - known):
        got = f"no episode labelled {missing[0]!r}"
        raise InvalidInput("freeze labels", on=version.name, got=got, wanted=(", ".join(sorted(known)) or "none")[:300])
    facts = [[one.episode, one.made_ns, one.label, one.span, one.success] for each in said.values() for one in each]
    spec = LayerSpec(
        producer=JOINED,
        code=blake3(json.dumps(facts).encode()).hexdigest()[:_LETTERS],  # What was said stands for what computed it.
        columns=dict.fromkeys(sorted(columns), ("held",)),
        facts=("success",),
        parameters={name: columns[name] for name in sorted(columns)},
        decoding=DECODING,  # It looks at no pictures: none of them can make it doubtful.
    )
    put_layer(store, spec)
    record_use(store, version.name, "layer", spec.id)
    held = set(layer_table(store, spec.id)["id"].to_pylist())
    missing_rows = [row for id, row in sorted(rows.items()) if id not in held]
    for at in range(0, len(missing_rows), _PART_EPISODES):
        part = missing_rows[at : at + _PART_EPISODES]
        put_part(store, spec.id, [_marked(store, row, said.get(row.id, ()), columns) for row in part])
    return spec


def column_of(label: str) -> str:
    """Returns what a label's column is called.

    Args:
        label: The label.

    Raises:
        InvalidInput: It has no letter or digit.
    """
    name = re.sub(r"[^a-z0-9]+", "-", label.lower()).strip("-")[:63]
    if not name:
        raise InvalidInput("name a column by a label", got=repr(label[:80]), wanted="one with a letter or digit")
    return name


def _marked(store: ObjectStore, row: EpisodeRow, said: Sequence[Annotation], columns: Mapping[str, str]) -> Result:
    time_ns = pq.read_table(pa.BufferReader(read_piece(store, row.columns)), columns=["time_ns"])["time_ns"].to_numpy()
    after_ns, half_ns = time_ns - row.started_ns, round(NANOSECONDS / row.rate_hz / 2)
    table = {}
    for name, label in columns.items():
        held = np.zeros(len(after_ns))
        for one in said:
            if one.label == label:
                begin_ns, end_ns = one.span or (0, int(after_ns[-1]))
                held[(after_ns >= begin_ns - half_ns) & (after_ns <= end_ns + half_ns)] = 1.0
        table[name] = pa.FixedSizeListArray.from_arrays(pa.array(held), 1)
    sink = io.BytesIO()
    pq.write_table(pa.table(table), sink, compression="zstd")
    return Result(episode=row.id, columns=sink.getvalue(), facts=json.dumps({"success": verdict_of(said)}))


def _layers(store: ObjectStore) -> Iterator[pa.Table]:
    keys = [entry.key for entry in store.list(_FOLDER)]

    def read(key: str) -> pa.Table:
        try:
            return pq.read_table(pa.BufferReader(store.get(key))).cast(_ROWS)
        except (pa.ArrowException, OSError, ValueError) as error:
            raise DamagedData("read annotations", on=key, got=str(error)[:200]) from error

    with ThreadPoolExecutor(_READERS, "annotations") as pool:
        yield from pool.map(read, keys)


def _standing(said: Iterable[Annotation]) -> list[Annotation]:
    """Returns what is not withdrawn, each once, in order."""
    held: dict[Annotation, None] = {}
    for one in sorted(said, key=_order):
        if not one.withdraws:
            held[one] = None
            continue
        held = {
            before: None
            for before in held
            if (one.label and before.label != one.label) or (one.span and before.span != one.span)
        }
    return list(held)


def _order(one: Annotation) -> tuple[Any, ...]:
    return (one.made_ns, one.withdraws, one.episode, one.author, one.label, one.span or (), one.success is True)


def _refused(said: Annotation, got: str, wanted: str) -> InvalidInput:
    return InvalidInput("annotate an episode", on=said.episode[:12], got=got, wanted=wanted)


def _seconds(time_ns: int | None) -> str:
    return "none" if time_ns is None else f"{time_ns / NANOSECONDS:g} s"
