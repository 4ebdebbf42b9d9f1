"""Writes LeRobot datasets: v2.1, a table and a video an episode, and v3.0, many episodes a file."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from mainspring.data.export.formats.lerobot_meta import (
    CHUNK_FILES_MAX,
    LeRobotShape,
    Statistic,
    codes_again,
    info_json,
    lerobot_lost,
    lerobot_shape,
    merged_statistics,
    picture_statistic,
    said_of,
    statistic,
)
from mainspring.data.export.run import Job, JobResult, MadeFile, Work, episode_job
from mainspring.data.export.survey import EpisodeFile, EpisodeSeen, ExportSurvey, grouped, part_of, read_episode
from mainspring.data.export.video import first_frame, step_packets, write_mp4
from mainspring.objects.files import reported

DATA_FILE_BYTES_MAX = 100 << 20  # LeRobot's own bound of a file of tables.
VIDEO_FILE_BYTES_MAX = 200 << 20  # And of videos.
_ROW_BYTES = 36  # What LeRobot adds to a step: timestamp and four numbers.
_EPISODES_A_FILE = 10_000
_MIB = 1 << 20


@final
class LeRobotV3:
    """LeRobot v3.0: tables and videos of many episodes.

    Args:
        survey: What goes out.

    Raises:
        InvalidInput: Its episodes have several rates, or not all cameras.
    """

    def __init__(self, survey: ExportSurvey) -> None:
        self._survey, self._shape = survey, lerobot_shape(survey)

    @property
    def lost(self) -> tuple[str, ...]:
        """See `ExportFormat.lost`."""
        return lerobot_lost(self._survey, self._shape)

    @property
    def jobs(self) -> Sequence[Job]:
        """See `ExportFormat.jobs`."""
        tables = [Job(name=f"data {file.number}", make=self._making_table(file)) for file in self._tables()]
        videos = [
            Job(name=f"video {camera} {file.number}", make=self._making_video(file, camera))
            for camera in self._shape.videos
            for file in self._video_files(camera)
        ]
        return [*tables, *videos]

    def finish(self, facts: Mapping[str, Mapping[str, Any]], work: Work) -> JobResult:
        """See `ExportFormat.finish`."""
        statistics: dict[int, dict[str, Statistic]] = {one.number: {} for one in self._survey.episodes}
        for said in facts.values():
            for number, of_features in said["statistics"].items():
                statistics[int(number)] |= of_features
        ordered = [statistics[one.number] for one in self._survey.episodes]
        more = {
            "codebase_version": "v3.0",
            "data_path": "data/chunk-{chunk_index:03d}/file-{file_index:03d}.parquet",
            "video_path": "videos/{video_key}/chunk-{chunk_index:03d}/file-{file_index:03d}.mp4",
            "data_files_size_in_mb": DATA_FILE_BYTES_MAX // _MIB,
            "video_files_size_in_mb": VIDEO_FILE_BYTES_MAX // _MIB,
        }
        contents = {
            "meta/info.json": info_json(
                self._survey, self._shape, _pixels(work, self._survey, self._shape.videos), more
            ),
            "meta/stats.json": json.dumps(merged_statistics(ordered), indent=4).encode(),
            "meta/tasks.parquet": _tasks_parquet(self._shape.tasks),
            **self._described(ordered),
        }
        return _stored(work, contents)

    def _tables(self) -> list[EpisodeFile]:
        row = _ROW_BYTES + sum(
            len(column.names) * (8 if column.name in self._shape.wide else 4)
            for column in self._survey.features.columns
        )

        def size(episode: EpisodeSeen) -> int:
            pictures = sum(track.size_bytes for track in episode.tracks if track.camera in self._shape.stills)
            return row * episode.row.frames + pictures

        return list(grouped([(episode, size(episode), "") for episode in self._survey.episodes], DATA_FILE_BYTES_MAX))

    def _video_files(self, camera: str) -> list[EpisodeFile]:
        sized = []
        for episode in self._survey.episodes:
            track = episode.track(camera)
            assert track is not None
            key = f"again {track.width}x{track.height}" if codes_again(episode, camera) else track.joins
            sized.append((episode, track.size_bytes, key))
        return list(grouped(sized, VIDEO_FILE_BYTES_MAX))

    def _making_table(self, file: EpisodeFile) -> Any:
        def make(work: Work) -> JobResult:
            path = work.folder / "table"
            statistics: dict[str, Any] = {}
            writer: pq.ParquetWriter | None = None
            for episode in file.episodes:
                table, said = episode_table_of(work, self._survey, self._shape, episode)
                statistics[str(episode.number)] = said
                writer = writer or pq.ParquetWriter(path, table.schema, compression="snappy")
                writer.write_table(table)
            assert writer is not None
            writer.close()
            return JobResult(
                files=(MadeFile(key=f"data/{_file_path(file)}.parquet", path=path),), facts={"statistics": statistics}
            )

        return make

    def _making_video(self, file: EpisodeFile, camera: str) -> Any:
        def make(work: Work) -> JobResult:
            path = work.folder / "video.mp4"
            again = codes_again(file.episodes[0], camera)
            parts = (part_of(work.store, one, camera, work.fetched, again=again) for one in file.episodes)
            frames = write_mp4(path, parts, self._shape.rate)
            name = self._shape.names.cameras[camera]
            statistics = {str(one.number): {name: picture_statistic(work, one, camera)} for one in file.episodes}
            files = (MadeFile(key=f"videos/{name}/{_file_path(file)}.mp4", path=path),)
            counts = {"again": frames} if again else {"copied": frames}
            return JobResult(files=files, facts={"statistics": statistics}, **counts)

        return make

    def _described(self, statistics: Sequence[Mapping[str, Statistic]]) -> dict[str, bytes]:
        """Returns the tables of episodes, by path."""
        rows: list[dict[str, Any]] = []
        places: dict[int, dict[str, Any]] = {one.number: {} for one in self._survey.episodes}
        for file in self._tables():
            for episode in file.episodes:
                places[episode.number] |= {f"data/{key}": value for key, value in _place(file).items()}
        for camera in self._shape.videos:
            name = self._shape.names.cameras[camera]
            for file in self._video_files(camera):
                begin = 0
                for episode in file.episodes:
                    place: dict[str, Any] = {f"videos/{name}/{key}": value for key, value in _place(file).items()}
                    place[f"videos/{name}/from_timestamp"] = float(begin / self._shape.rate)
                    begin += episode.row.frames
                    place[f"videos/{name}/to_timestamp"] = float(begin / self._shape.rate)
                    places[episode.number] |= place
        start = 0
        for episode, those in zip(self._survey.episodes, statistics, strict=True):
            row = {
                "episode_index": episode.number,
                "tasks": [episode.row.task],
                "length": episode.row.frames,
                "dataset_from_index": start,
                "dataset_to_index": start + episode.row.frames,
                **places[episode.number],
            }
            start += episode.row.frames
            for feature, said in sorted(those.items()):
                row |= {f"stats/{feature}/{kind}": value for kind, value in said.items()}
            rows.append(row | said_of(episode, tuple(row)))
        return dict(_episode_files(rows))


def _episode_files(rows: list[dict[str, Any]]) -> Iterator[tuple[str, bytes]]:
    names = list(dict.fromkeys(name for row in rows for name in row))  # Arrow takes the first row's for all.
    for number, first in enumerate(range(0, len(rows), _EPISODES_A_FILE)):
        file = EpisodeFile(number=number, episodes=())
        place = {f"meta/episodes/{key}": value for key, value in _place(file).items()}
        here = [{**row, **place} for row in rows[first : first + _EPISODES_A_FILE]]
        columns = {name: [row.get(name) for row in here] for name in (*names, *place)}
        sink = io.BytesIO()
        pq.write_table(pa.table(columns), sink, compression="snappy")
        yield f"meta/episodes/{_file_path(file)}.parquet", sink.getvalue()


@final
class LeRobotV21:
    """LeRobot v2.1: a table and a video of each camera for each episode.

    Args:
        survey: What goes out.

    Raises:
        InvalidInput: Its episodes have several rates, or not all cameras.
    """

    def __init__(self, survey: ExportSurvey) -> None:
        self._survey, self._shape = survey, lerobot_shape(survey)

    @property
    def lost(self) -> tuple[str, ...]:
        """See `ExportFormat.lost`."""
        return lerobot_lost(self._survey, self._shape)

    @property
    def jobs(self) -> Sequence[Job]:
        """See `ExportFormat.jobs`."""
        return [episode_job("episode", episode, self._made) for episode in self._survey.episodes]

    def finish(self, facts: Mapping[str, Mapping[str, Any]], work: Work) -> JobResult:
        """See `ExportFormat.finish`."""
        more = {
            "codebase_version": "v2.1",
            "total_chunks": -(-len(self._survey.episodes) // CHUNK_FILES_MAX),
            "data_path": "data/chunk-{episode_chunk:03d}/episode_{episode_index:06d}.parquet",
            "video_path": "videos/chunk-{episode_chunk:03d}/{video_key}/episode_{episode_index:06d}.mp4",
        }
        episodes, statistics = [], []
        for episode in self._survey.episodes:
            said = {"episode_index": episode.number, "tasks": [episode.row.task], "length": episode.row.frames}
            episodes.append(said | said_of(episode, tuple(said)))
            statistics.append(
                {"episode_index": episode.number, "stats": facts[f"episode {episode.number}"]["statistics"]}
            )
        contents = {
            "meta/info.json": info_json(
                self._survey, self._shape, _pixels(work, self._survey, self._shape.videos), more
            ),
            "meta/episodes.jsonl": _lines(episodes),
            "meta/episodes_stats.jsonl": _lines(statistics),
            "meta/tasks.jsonl": _lines(
                [{"task_index": number, "task": task} for task, number in self._shape.tasks.items()]
            ),
        }
        return _stored(work, contents)

    def _made(self, episode: EpisodeSeen, work: Work) -> JobResult:
        table, statistics = episode_table_of(work, self._survey, self._shape, episode)
        chunk = f"chunk-{episode.number // CHUNK_FILES_MAX:03d}"
        name = f"episode_{episode.number:06d}"
        pq.write_table(table, work.folder / "table", compression="snappy")
        files = [MadeFile(key=f"data/{chunk}/{name}.parquet", path=work.folder / "table")]
        copied = again = 0
        for place, camera in enumerate(self._shape.videos):
            coded = codes_again(episode, camera)
            path = work.folder / f"video-{place}.mp4"
            frames = write_mp4(
                path, [part_of(work.store, episode, camera, work.fetched, again=coded)], self._shape.rate
            )
            copied, again = copied + frames * (not coded), again + frames * coded
            feature = self._shape.names.cameras[camera]
            statistics[feature] = picture_statistic(work, episode, camera)
            files.append(MadeFile(key=f"videos/{chunk}/{feature}/{name}.mp4", path=path))
        return JobResult(files=tuple(files), facts={"statistics": statistics}, copied=copied, again=again)


def episode_table_of(
    work: Work, survey: ExportSurvey, shape: LeRobotShape, episode: EpisodeSeen
) -> tuple[pa.Table, dict[str, Statistic]]:
    """Returns an episode's rows as LeRobot writes them, and the statistics of its columns.

    Args:
        work: See `Work`.
        survey: What goes out.
        shape: See `LeRobotShape`.
        episode: The episode.
    """
    read, names, steps = read_episode(work.store, episode, work.fetched), shape.names, episode.row.frames
    frame = np.arange(steps, dtype=np.int64)
    columns: dict[str, Any] = {}
    statistics: dict[str, Statistic] = {}
    for column in survey.features.columns:
        values = read.columns[column.name].astype(np.float64 if column.name in shape.wide else np.float32)
        name = names.columns[column.name]
        columns[name], statistics[name] = _vectors(values), statistic(values, steps)
    pictures: list[str] = []
    for camera in shape.stills:
        name = names.cameras[camera]
        columns[name], statistics[name] = _stills(work, episode, camera), picture_statistic(work, episode, camera)
        pictures.append(name)
    own: dict[str, Any] = {
        "timestamp": (frame * shape.rate.denominator / shape.rate.numerator).astype(np.float32),
        "frame_index": frame,
        "episode_index": np.full(steps, episode.number, np.int64),
        "index": shape.starts[episode.number] + frame,
        "task_index": np.full(steps, shape.tasks[episode.row.task], np.int64),
    }
    statistics |= {name: statistic(values[:, None], steps) for name, values in own.items()}
    table = pa.table(columns | own)
    return table.replace_schema_metadata({"huggingface": _hugging_face(table, pictures)}), statistics


def _vectors(values: Any) -> pa.Array:
    """Returns a column as LeRobot's readers expect it: plain numbers where a vector would have one."""
    if values.shape[1] == 1:
        return pa.array(values[:, 0])
    return pa.FixedSizeListArray.from_arrays(pa.array(values.reshape(-1)), values.shape[1])


def _stills(work: Work, episode: EpisodeSeen, camera: str) -> pa.Array:
    part = part_of(work.store, episode, camera, work.fetched, again=False)
    return pa.array(
        [{"bytes": data, "path": None} for data in step_packets(part)],
        pa.struct([("bytes", pa.binary()), ("path", pa.string())]),
    )


def _hugging_face(table: pa.Table, pictures: Sequence[str]) -> str:
    """Returns what the `datasets` library reads from a table's schema: which columns are pictures, above all."""
    features: dict[str, Any] = {}
    for field in table.schema:
        if field.name in pictures:
            features[field.name] = {"_type": "Image"}
        elif pa.types.is_fixed_size_list(field.type):
            features[field.name] = {
                "feature": {"dtype": _dtype(field.type.value_type), "_type": "Value"},
                "length": field.type.list_size,
                "_type": "Sequence",
            }
        else:
            features[field.name] = {"dtype": _dtype(field.type), "_type": "Value"}
    return json.dumps({"info": {"features": features}})


def _dtype(kind: pa.DataType) -> str:
    return {"float": "float32", "double": "float64"}.get(str(kind), str(kind))


def _tasks_parquet(tasks: Mapping[str, int]) -> bytes:
    """Returns `meta/tasks.parquet`: a pandas table whose index is the task's words."""
    index = "__index_level_0__"
    table = pa.table({"task_index": pa.array(tasks.values(), pa.int64()), index: pa.array(tasks, pa.string())})
    kinds = {"task_index": ("int64", "int64"), index: ("unicode", "object")}
    told = {
        "index_columns": [index],
        "column_indexes": [
            {"name": None, "field_name": None, "pandas_type": "unicode", "numpy_type": "object", "metadata": None}
        ],
        "columns": [
            {
                "name": None if name == index else name,
                "field_name": name,
                "pandas_type": kind,
                "numpy_type": numpy_kind,
                "metadata": None,
            }
            for name, (kind, numpy_kind) in kinds.items()
        ],
        "creator": {"library": "pyarrow", "version": pa.__version__},
        "pandas_version": "2.2.0",
    }
    sink = io.BytesIO()
    pq.write_table(table.replace_schema_metadata({"pandas": json.dumps(told)}), sink)
    return sink.getvalue()


def _place(file: EpisodeFile) -> dict[str, int]:
    return {"chunk_index": file.number // CHUNK_FILES_MAX, "file_index": file.number % CHUNK_FILES_MAX}


def _file_path(file: EpisodeFile) -> str:
    return "chunk-{chunk_index:03d}/file-{file_index:03d}".format(**_place(file))


def _pixels(work: Work, survey: ExportSurvey, cameras: Sequence[str]) -> dict[str, str]:
    """Returns how each camera's pixels lie, from the first frame of its first video."""
    found = {}
    for camera in cameras:
        frame = first_frame(part_of(work.store, survey.episodes[0], camera, work.fetched, again=False))
        found[camera] = "yuv420p" if codes_again(survey.episodes[0], camera) else str(frame.format.name)
    return found


def _lines(rows: Sequence[Mapping[str, Any]]) -> bytes:
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows).encode()


def _stored(work: Work, contents: Mapping[str, bytes]) -> JobResult:
    """Writes small files, and returns them in an order in which the description of the whole comes last."""
    files = []
    for place, (key, data) in enumerate(sorted(contents.items(), key=lambda item: item[0] == "meta/info.json")):
        path: Path = work.folder / str(place)
        with reported("export a version", str(path)):
            path.write_bytes(data)
        files.append(MadeFile(key=key, path=path))
    return JobResult(files=tuple(files))
