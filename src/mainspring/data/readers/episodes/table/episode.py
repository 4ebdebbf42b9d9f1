"""Reads folders of CSV or Parquet tables and the videos or pictures beside them, by a `TableRecipe`."""

from __future__ import annotations

import fnmatch
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as csv
import pyarrow.parquet as pq

from mainspring.data.episode import (
    FRAMES_MAX,
    Episode,
    Integers,
    Recording,
    SourceFile,
    Unreadable,
    VideoFile,
    camera_of,
    column_from_table,
)
from mainspring.data.features import Column, Features
from mainspring.data.options import DEFAULT, IngestOptions
from mainspring.data.readers.episodes.shaping import even_times, nearest_steps, shaped, with_note
from mainspring.data.readers.episodes.steps.fields import VALUES_BYTES_MAX, Array
from mainspring.data.readers.episodes.steps.making import rate_from, times_from
from mainspring.data.readers.episodes.table.recipe import (
    TableCamera,
    TableFact,
    TableRecipe,
    filled,
    pattern_of,
    values_in,
)
from mainspring.data.video.packets import PacketIndex, index_of_file
from mainspring.data.video.pictures import PictureFile
from mainspring.domain.errors import DamagedData, InvalidInput, nearest
from mainspring.objects.files import reported

EPISODES_MAX = 1_000_000
PICTURES_MAX = 1_000_000
_PICTURE_BYTES_MAX = 256 << 20
_FACT_BYTES_MAX = 1 << 20
_FACT_CHARS_MAX = 16_384
_TEXTS_MAX = 16
_NAMED_MAX = 12
_PARQUET = (".parquet", ".pq")
_BROKEN = (pa.ArrowException, OSError, ValueError, KeyError, TypeError, UnicodeError)


@dataclass(frozen=True, slots=True, kw_only=True)
class TableRecording:
    """One table and what lies beside it, not yet read.

    Args:
        name: The table's path inside the source.
        root: The source.
        values: What stands for each placeholder of the recipe's paths.
        recipe: How it is read.
        files: The files it is made of.
        parse_bytes: None: tables are parsed outside Python.
        options: What is said of the source.
    """

    name: str
    root: Path
    values: Mapping[str, str]
    recipe: TableRecipe
    files: tuple[SourceFile, ...]
    parse_bytes: int = 0
    options: IngestOptions = DEFAULT

    @property
    def part(self) -> str:
        """See `Recording.part`."""
        return json.dumps(sorted(self.values.items()))

    def read(self, folder: Path) -> Episode:
        """See `Recording.read`."""
        if missing := [path for path in self._paths() if "*" not in path and not (self.root / path).is_file()]:
            raise DamagedData("read a table's episode", on=self.name, got=f"no file {', '.join(missing[:_NAMED_MAX])}")
        recipe = self.recipe
        table, parts = self._table()
        time_ns, rate_hz, by = self._times(table)
        names = sorted(name for name in recipe.cameras if self.options.takes(name))
        videos = [self._video(number, name, time_ns, folder) for number, name in enumerate(names)]
        videos, steps = _evened(videos, len(time_ns), self.name)
        said = {name: self._fact(fact, table) for name, fact in recipe.facts.items()}
        columns = {
            name: np.concatenate([column_from_table(table, key) for key in keys], axis=1)
            for name, keys in parts.items()
        }
        episode = Episode(
            task=said["task"],
            robot=said["robot"],
            success=_truth(said["success"]),
            rate_hz=rate_hz,
            features=Features(
                columns=tuple(Column(name=name, names=_names(keys, table)) for name, keys in sorted(parts.items())),
                cameras=tuple(camera_of(video) for video in videos),
            ),
            time_ns=time_ns[:steps],
            columns={name: values[:steps] for name, values in sorted(columns.items())},
            videos=tuple(videos),
            files=self.files,
            metadata={name: text for name in sorted(recipe.metadata) if (text := said[name])},
            note=with_note(by, "the last row is left out" if steps < len(time_ns) else ""),
        )
        return shaped(episode, self.options)

    def _paths(self) -> list[str]:
        return [filled(path, self.values) for path in self.recipe.paths]

    def _table(self) -> tuple[pa.Table, dict[str, list[str]]]:
        """Returns the columns that are wanted, and which of them each of ours is made of."""
        path = self.root / self.name
        with reported("read a table", self.name):
            have = list(column_kinds(path, self.recipe.delimiter))
        parts = {
            name: [found for key in keys for found in _matching(key, have, self.name)]
            for name, keys in self.recipe.columns.items()
        }
        numbers = sorted({key for keys in parts.values() for key in keys})
        texts = [fact.column for fact in self.recipe.facts.values() if fact.column]
        others = [_matching(name, have, self.name)[0] for name in (*texts, self.recipe.time) if name]
        return _read(path, numbers, others, self.recipe, self.name), parts

    def _times(self, table: pa.Table) -> tuple[Integers, float, str]:
        recipe, rows = self.recipe, table.num_rows
        if not rows:
            raise DamagedData("read a table", on=self.name, got="no rows")
        if recipe.time and not self.options.rate_hz:
            time_ns, unit = times_from(_time_values(table[recipe.time], self.name), recipe.time, recipe.unit)
            return time_ns, rate_from(time_ns, recipe.rate_hz), f"times by {recipe.time} in {unit}"
        rate_hz = self.options.rate_hz or recipe.rate_hz
        if rate_hz is None:
            raise InvalidInput(
                "know the times of a table",
                on=self.name,
                got="none",
                wanted="time: a column, or rate_hz: a number, in the recipe",
            )
        return even_times(rows, rate_hz), rate_hz, f"{rate_hz:g} Hz, as said"

    def _video(self, number: int, name: str, time_ns: Integers, folder: Path) -> VideoFile:
        camera = self.recipe.cameras[name]
        path = filled(camera.path, self.values)
        if "*" in path:
            video = self._pictures(name, path, folder / f"pictures-{number:04d}.packets")
        else:
            video = VideoFile(camera=name, path=self.root / path, index=index_of_file(self.root / path))
        assert video.index is not None
        frames_ns = self._frame_times(camera, video.index, time_ns, name)
        if frames_ns is None:
            return video
        return replace(video, shown=nearest_steps(frames_ns, time_ns).astype(np.int32))

    def _frame_times(self, camera: TableCamera, index: PacketIndex, time_ns: Integers, name: str) -> Integers | None:
        """Returns when each frame was taken; None when each row has its frame."""
        if camera.times:
            path = filled(camera.times, self.values)
            have = list(column_kinds(self.root / path, self.recipe.delimiter))
            wanted = _matching(camera.time, have, path)[0] if camera.time else have[0]
            table = _read(self.root / path, [], [wanted], self.recipe, path, time=wanted)
            times, _ = times_from(_time_values(table[wanted], path), wanted, camera.unit)
            if len(times) != index.frames or (len(times) > 1 and int(np.diff(times).min()) <= 0):
                got = f"{len(times)} times, {index.frames} frames"
                raise DamagedData("read a camera's times", on=f"{self.name} {name}", got=got, wanted="one each, rising")
        elif camera.fps is not None:
            times = time_ns[0] + even_times(index.frames, camera.fps)
        else:
            return None
        period_ns = int(np.median(np.diff(times))) if len(times) > 1 else 0
        beyond = max(int(times[0] - time_ns[0]), int(time_ns[-1] - times[-1]))
        if beyond > 2 * period_ns:
            got = f"frames that begin or end {beyond / 1e9:.3f} s inside the rows' times"
            raise DamagedData("read a camera", on=f"{self.name} {name}", got=got, wanted="frames for every row")
        return times

    def _pictures(self, name: str, path: str, packets: Path) -> VideoFile:
        found = sorted((one for one in self.root.glob(path) if one.is_file()), key=lambda one: _by_number(one.name))
        if not 0 < len(found) <= PICTURES_MAX:
            raise DamagedData("read a camera", on=f"{self.name} {name}", got=f"{len(found)} files {path}"[:200])
        with PictureFile(packets, name) as file:
            for one in found:
                with reported("read a picture", str(one)), open(one, "rb") as picture:
                    file.add_coded(picture.read(_PICTURE_BYTES_MAX))
            return file.finish()

    def _fact(self, fact: TableFact, table: pa.Table) -> str:
        if fact.column:
            said = pc.unique(table[fact.column]).to_pylist()[:_TEXTS_MAX]
            text = "; ".join(str(one).lower() if isinstance(one, bool) else str(one) for one in said if one is not None)
        elif fact.file:
            path = filled(fact.file, self.values)
            with reported("read a fact", path), open(self.root / path, "rb") as file:
                text = file.read(_FACT_BYTES_MAX).decode("utf-8", "replace")
            text = _inside(text, fact.key, path) if fact.key else text
        else:
            text = fact.text
        return " ".join(text.split())[:_FACT_CHARS_MAX]


def table_recordings(root: Path, recipe: TableRecipe, options: IngestOptions = DEFAULT) -> Iterator[Recording]:
    """Yields the episode of every table of a folder, in name order, numbers by their size.

    Args:
        root: The folder.
        recipe: How they are read.
        options: What is said of the source.
    """
    found = [path for path in root.glob(pattern_of(recipe.table)) if path.is_file()]
    names = sorted((path.relative_to(root).as_posix() for path in found), key=_by_number)
    if len(names) > EPISODES_MAX:
        raise InvalidInput("read a source", on=str(root), got=f"over {EPISODES_MAX} tables", wanted="fewer")
    for name in names:
        values = values_in(recipe.table, name)
        if values is None or any(part.startswith(".") for part in name.split("/")):
            continue
        files: dict[str, SourceFile] = {}
        for template in recipe.paths:
            path = filled(template, values)
            for one in sorted(root.glob(path), key=lambda one: _by_number(one.name)) if "*" in path else [root / path]:
                inner = one.relative_to(root).as_posix()
                files[inner] = SourceFile(name=inner, path=one)
        if outside := [inner for inner, file in files.items() if not _is_inside(file.path, root)]:
            yield Unreadable(name=name, reason=f"{outside[0]} leads out of the source")
            continue
        yield TableRecording(
            name=name, root=root, values=values, recipe=recipe, files=tuple(files.values()), options=options
        )


def column_kinds(path: Path, delimiter: str) -> dict[str, str]:
    """Returns the columns of a table in its order, and what each holds: "number", "text", or "" for anything else.

    Args:
        path: A CSV or Parquet file.
        delimiter: Between the values of a CSV file.

    Raises:
        DamagedData: It cannot be read.
    """
    try:
        if path.suffix.lower() in _PARQUET:
            schema = pq.read_schema(path)
        else:
            with csv.open_csv(path, parse_options=csv.ParseOptions(delimiter=delimiter)) as reader:
                schema = reader.schema
        return {str(field.name): _kind(field.type) for field in schema}
    except _BROKEN as error:
        raise DamagedData("read a table", on=path.name, got=str(error)[:200]) from error


def _kind(held: pa.DataType) -> str:
    held = held.value_type if pa.types.is_list(held) or pa.types.is_fixed_size_list(held) else held
    if pa.types.is_integer(held) or pa.types.is_floating(held):
        return "number"
    return "text" if pa.types.is_string(held) or pa.types.is_large_string(held) else ""


def _read(
    path: Path, numbers: list[str], others: list[str], recipe: TableRecipe, on: str, *, time: str = ""
) -> pa.Table:
    """Returns some columns of a table; numbers as doubles, times in whole numbers where they are written so."""
    time = time or recipe.time
    wanted = list(dict.fromkeys([*numbers, *others]))
    plain = path.suffix.lower() in _PARQUET or time not in others
    kinds = [None] if plain else [pa.int64(), pa.float64(), pa.timestamp("ns"), pa.timestamp("ns", tz="UTC")]
    errors: list[Exception] = []
    for kind in kinds:
        try:
            if path.suffix.lower() in _PARQUET:
                with pq.ParquetFile(path) as file:
                    return _gathered(file.iter_batches(columns=wanted), file.schema_arrow, wanted, on)
            types = dict.fromkeys(numbers, pa.float64()) | ({} if kind is None else {time: kind})
            with csv.open_csv(
                path,
                parse_options=csv.ParseOptions(delimiter=recipe.delimiter),
                convert_options=csv.ConvertOptions(include_columns=wanted, column_types=types),
            ) as reader:
                return _gathered(reader, reader.schema, wanted, on)
        except _BROKEN as error:
            errors.append(error)
    said = errors[min(1, len(errors) - 1)]  # Of times that are none of these, that they are no numbers.
    raise DamagedData("read a table", on=on, got=" ".join(str(said).split())[:300]) from said


def _gathered(batches: Any, schema: pa.Schema, wanted: list[str], on: str) -> pa.Table:
    parts: list[pa.RecordBatch] = []
    rows = size_bytes = 0
    for batch in batches:
        rows, size_bytes = rows + batch.num_rows, size_bytes + batch.nbytes
        if rows > FRAMES_MAX or size_bytes > VALUES_BYTES_MAX:
            raise DamagedData("read a table", on=on, got=f"over {rows} rows or {size_bytes:,} bytes")
        parts.append(batch)
    return pa.Table.from_batches(parts, pa.schema([schema.field(name) for name in wanted])).select(wanted)


def _time_values(values: pa.ChunkedArray, on: str) -> Array:
    if values.null_count:
        raise DamagedData("read times", on=on, got="empty cells")
    if pa.types.is_timestamp(values.type):
        values = values.cast(pa.timestamp("ns", tz=values.type.tz)).cast(pa.int64())
    if not (pa.types.is_integer(values.type) or pa.types.is_floating(values.type)):
        raise DamagedData("read times", on=on, got=str(values.type), wanted="numbers, or dates with times")
    return np.asarray(values.to_numpy())


def _matching(key: str, have: list[str], on: str) -> list[str]:
    found = [key] if key in have else [name for name in have if "*" in key and fnmatch.fnmatchcase(name, key)]
    if not found:
        raise DamagedData("read a table", on=on, got=f"no column {key!r}", wanted=nearest(key, have))
    return found


def _evened(videos: list[VideoFile], rows: int, on: str) -> tuple[list[VideoFile], int]:
    """Returns videos of as many frames as there are steps: recorders stop between two writes, so one may be missing."""
    counts = {video.camera: video.index.frames for video in videos if video.index is not None and video.shown is None}
    lengths = [rows, *counts.values()]
    steps = min(lengths)
    if max(lengths) - steps > 1:
        got = f"{rows} rows; frames of {', '.join(f'{name} {count}' for name, count in sorted(counts.items()))}"
        raise DamagedData(
            "read a table's episode",
            on=on,
            got=got,
            wanted="a frame a row",
            next_step="say fps or times of the camera in the recipe",
        )
    evened = []
    for video in videos:
        assert video.index is not None
        if video.shown is not None:
            evened.append(replace(video, shown=video.shown[:steps]))
        else:
            evened.append(
                replace(video, index=video.index.cut(0, steps) if video.index.frames > steps else video.index)
            )
    return evened, steps


def _names(keys: list[str], table: pa.Table) -> tuple[str, ...]:
    widths = {key: column_from_table(table, key).shape[1] for key in keys}
    return tuple(key if widths[key] == 1 else f"{key}_{dim}" for key in keys for dim in range(widths[key]))


def _truth(text: str) -> bool | None:
    words = {word.strip().lower() for word in text.split(";") if word.strip()}
    if words & {"true", "1", "1.0", "yes", "success"}:
        return True
    return False if words & {"false", "0", "0.0", "no", "failure", "fail"} else None


def _inside(text: str, key: str, path: str) -> str:
    try:
        plain: Any = json.loads(text)
        for part in key.split("."):
            plain = plain[int(part)] if isinstance(plain, list) else plain[part]
    except (ValueError, LookupError, TypeError, RecursionError) as error:
        raise DamagedData("read a fact", on=path, got=str(error)[:200], wanted=f"JSON that holds {key}") from error
    return plain if isinstance(plain, str) else json.dumps(plain)


def _is_inside(path: Path, root: Path) -> bool:
    try:
        return path.resolve().is_relative_to(root.resolve())
    except (OSError, RuntimeError):
        return True  # It leads to itself, and so nowhere.


def _by_number(name: str) -> list[tuple[int, str]]:
    """Sorts names with numbers in them by the numbers' size."""
    return [(int(part[:18]), "") if part.isdigit() else (-1, part) for part in re.split(r"(\d+)", name)]
