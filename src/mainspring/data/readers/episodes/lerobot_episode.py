"""Reads one episode of a LeRobot dataset: its rows, checked against what the dataset says of it, and its files."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from pathlib import Path

import av
import numpy as np
import pyarrow as pa
from blake3 import blake3

from mainspring.data.episode import FRAMES_MAX, Episode, Floats, Integers, SourceFile, VideoFile
from mainspring.data.features import ACTION, STATE, Camera, Features
from mainspring.data.hashed_text import hashed_text
from mainspring.data.loss import LOST, Loss, losses_text
from mainspring.data.readers.episodes.lerobot_columns import ColumnPart, ColumnPlan, Kept, LeRobotCamera
from mainspring.data.readers.episodes.lerobot_info import inside, not_there
from mainspring.data.readers.episodes.lerobot_listing import TEXT_MAX, Clip, Listed
from mainspring.data.readers.episodes.lerobot_parquet import (
    Rows,
    columns_of_integers,
    is_rounded,
    kind_of,
    numbers,
    rows_in,
    rows_of,
    texts,
    whole_column,
)
from mainspring.data.readers.episodes.lerobot_pictures import picture_paths, pictures_of
from mainspring.data.readers.episodes.lerobot_stats import Packed, objections
from mainspring.data.readers.episodes.lerobot_time import Times, times_of
from mainspring.data.readers.episodes.shaping import next_values, resampled
from mainspring.data.video.packets import index_of_file
from mainspring.domain.errors import DamagedData, InvalidInput

SUCCESS = ("next.success", "success", "is_success", "is_episode_successful", "episode_success")  # True once it is done.
TASK_STEPS = "task_steps"  # In an episode's metadata: from which time on which of its tasks is done.
_INSTRUCTIONS = ("language_instruction", "instruction", "prompt", "task")
_RUNS_MAX = 4_096
_STALE = "--stale-statistics lets it in"
_CALLED = {Listed: "Listed", Clip: "Clip", ColumnPart: "ColumnPart", LeRobotCamera: "CameraPart", Kept: "Kept"}


@dataclass(frozen=True, slots=True, kw_only=True)
class LeRobotRecording:
    """One episode of a LeRobot dataset, not yet read.

    Args:
        name: "episode_000007".
        root: The dataset's folder.
        plan: What its episodes have.
        listed: What is said of this one, each camera's file with it.
        rate: Frames per second, exact.
        robot: Kind of robot.
        shared: Whether its files hold other episodes too.
        task_names: Of its tasks, by number.
        bounds: What is said of the numbers of all episodes together, where nothing is said of this one's.
        meta_paths: The dataset's own description, kept with every episode.
        resample_hz: See `IngestOptions`.
        stale_statistics: See `IngestOptions`.
        parse_bytes: None: Parquet and video are parsed outside Python.
    """

    name: str
    root: Path
    plan: ColumnPlan
    listed: Listed
    rate: Fraction
    robot: str
    shared: bool
    task_names: tuple[tuple[int, str], ...]
    bounds: Packed
    meta_paths: tuple[str, ...]
    resample_hz: float | None = None
    stale_statistics: bool = False
    parse_bytes: int = 0

    @property
    def part(self) -> str:
        """See `Recording.part`. The dataset's description grows with it; only what it says of this one counts."""
        said = hashed_text(replace(self.listed, statistics=(), notes=()), _CALLED)
        numbers = blake3(repr((self.listed.statistics, self.bounds)).encode()).hexdigest()
        how = (self.name, str(self.rate), self.robot, self.shared, self.task_names, self.resample_hz)
        plan = hashed_text((self.plan.columns, self.plan.cameras, self.plan.texts, self.plan.action), _CALLED)
        return f"{how} {self.stale_statistics} {said} {numbers} {plan}"

    @property
    def paths(self) -> tuple[str, ...]:
        """Returns the files inside the root that decide what it is."""
        stills = [part.key for part in self.plan.cameras if part.kept is Kept.FILES]
        steps = self.listed.length or 0
        return (
            *self._own_paths,
            *(path for key in stills for path in picture_paths(self.root, key, self.listed.index, steps)),
        )

    @property
    def _own_paths(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys((self.listed.data_path, *(clip.paths[0] for clip in self.listed.clips))))

    def read(self, folder: Path) -> Episode:
        """See `Recording.read`."""
        found = _Found(notes=[*self.plan.notes, *self.listed.notes])
        files = self._files()
        rows = self._rows(files[self.listed.data_path], found)
        table = rows.table
        times = self._times(table, found)
        columns = self._columns(rows, found)
        videos = self._videos(files, table.num_rows, times, folder, found)
        found.refuse(self.name)
        assert times is not None  # Else there is a problem.
        kept = min([table.num_rows, *(one.frames for one in videos)])
        self._compare(videos, table.num_rows, found)
        try:
            made = [one.cut(kept) for one in videos]
        except DamagedData as error:
            raise DamagedData("read a LeRobot episode", on=self.name, got=str(error)) from error
        task, metadata = self._words(table, times.time_ns, found)
        sizes = {video.camera: video.index for video in made}
        cameras = []
        for part in self.plan.cameras:
            index = sizes[part.name]
            assert index is not None
            cameras.append(Camera(name=part.name, height=index.height, width=index.width))
            if part.height and (part.height, part.width) not in ((index.height, index.width),):
                found.notes.append(f"{part.key}: {index.width}x{index.height}, declared {part.width}x{part.height}")
        episode = Episode(
            task=task,
            robot=self.robot,
            success=self.listed.success if self.listed.success is not None else _success(columns),
            rate_hz=float(self.rate),
            features=Features(columns=self.plan.features.columns, cameras=tuple(cameras)),
            time_ns=times.time_ns[:kept],
            columns={name: values[:kept] for name, values in columns.items()},
            videos=tuple(made),
            files=tuple(SourceFile(name=path, path=place) for path, place in files.items()),
            metadata={**metadata, **found.marked()},
            losses=(*found.losses, *found.last) if found.losses else (),
            note="; ".join(found.notes),
        )
        if not self.resample_hz or (times.even and self.resample_hz == float(self.rate)):
            return episode
        return resampled(episode, self.resample_hz)

    def _files(self) -> dict[str, Path]:
        files = {path: inside(self.root, path) for path in (*self._own_paths, *self.meta_paths)}
        reasons = [reason for name, path in files.items() if (reason := not_there(path, name))]
        if reasons:
            videos = {clip.paths[0]: clip.key for clip in self.listed.clips}
            raise DamagedData(
                "read a LeRobot episode",
                on=self.name,
                got=", ".join(reasons),
                next_step=self._without([key for path, key in videos.items() if not_there(files[path], path)]),
            )
        return files

    def _without(self, keys: Sequence[str]) -> str:
        names = [part.name for part in self.plan.cameras if part.key in keys]
        return " ".join(f"--without-camera {name}" for name in names) + " lets it in" if names else ""

    def _rows(self, path: Path, found: _Found) -> Rows:
        length = self.listed.length
        most = FRAMES_MAX if length is None else length + 1
        if not self.shared and (there := rows_in(path)) > most:
            raise DamagedData(
                "read a LeRobot episode",
                on=self.name,
                got=f"{there - (length or 0)} rows of no or another episode, or too many, in its own file",
                wanted="its own rows only",
            )
        rows = rows_of(
            path,
            [*self.plan.keys, *self.plan.texts, "timestamp", "frame_index", "task_index"],
            rows_max=most + 1,
            episode=self.listed.index if self.shared else None,
        )
        there = rows.table.num_rows
        if not 0 < there <= most:
            raise DamagedData("read a LeRobot episode", on=self.name, got=f"{there} rows", wanted=f"{length} rows")
        if length is not None and abs(there - length) == 1:
            found.notes.append(f"{there} rows, its description says {length}")
        if length is not None and there < length:
            found.lose(Loss(subject="rows", lost=length - there, total=length, unit="rows"))
        return rows

    def _times(self, table: pa.Table, found: _Found) -> Times | None:
        try:
            names = table.column_names
            frame = columns_of_integers(table, "frame_index") if "frame_index" in names else None
            stamp = numbers(table, "timestamp")[:, 0] if "timestamp" in names else None
            times = times_of(
                frame,
                stamp,
                rows=table.num_rows,
                rate=self.rate,
                single=stamp is not None and pa.types.is_float32(whole_column(table, "timestamp").type),
                resampled=self.resample_hz is not None,
            )
        except DamagedData as error:
            found.add(error)
            return None
        found.notes += [times.note] if times.note else []
        return times

    def _columns(self, rows: Rows, found: _Found) -> dict[str, Floats]:
        """Returns the columns, held against every statistic there is of them."""
        table, raw = rows.table, dict[str, Floats]()
        for key in (*self.plan.keys, *(name for name in ("timestamp",) if name in table.column_names)):
            try:
                raw[key] = numbers(table, key)
                if is_rounded(table, key):
                    found.notes.append(f"{key}: whole numbers beyond 2^53 are rounded to doubles")
            except DamagedData as error:
                found.add(error)
                if any(part.parts == (key,) and part.name not in (STATE, ACTION) for part in self.plan.columns):
                    found.steps.append(f"--without-camera {key} leaves that column out")
        said = self.listed.statistics or self.bounds
        kept = {key: kind_of(table, key) for key in raw}
        wrong = {one.column: one.text for one in objections(said, raw, kept, whole=bool(self.listed.statistics))}
        told = {column for column, _, _ in self.listed.statistics} - wrong.keys()
        for column, text in rows.objections.items():
            if not (self.shared and column in told):  # Another episode's rows may be what the file's do not agree with.
                wrong.setdefault(column, text)
        for column, text in wrong.items():
            if self.stale_statistics:
                found.notes.append(f"statistics disagree: {column}: {text}")
            else:
                found.problems.append(f"{column}: {text}")
                found.steps.append(_STALE)
        columns: dict[str, Floats] = {}
        for part in self.plan.columns:
            if all(key in raw for key in part.parts):
                values = np.concatenate([raw[key] for key in part.parts], axis=1)
                columns[part.name] = values
                if values.shape[1] != len(part.names):
                    got = f"{' + '.join(part.parts)}: {values.shape[1]} values a step"
                    found.problems.append(f"{got}, declared {len(part.names)}")
        if self.plan.action and self.plan.action in columns:
            columns[ACTION] = next_values(columns[self.plan.action])
        return columns

    def _videos(
        self, files: Mapping[str, Path], rows: int, times: Times | None, folder: Path, found: _Found
    ) -> list[_Track]:
        clips = {clip.key: clip for clip in self.listed.clips}
        tracks: list[_Track] = []
        for number, part in enumerate(self.plan.cameras):
            try:
                if part.kept is Kept.VIDEO:
                    clip = clips[part.key]
                    tracks.append(self._track(part, clip, files[clip.paths[0]], rows, times))
                    continue
                video = pictures_of(
                    self.root,
                    part,
                    data=files[self.listed.data_path],
                    rows=rows,
                    index=self.listed.index,
                    shared=self.shared,
                    path=folder / f"camera-{number:03d}.packets",
                )
                assert video.index is not None
                tracks.append(_Track(video=video, first=0, frames=video.index.frames))
            except InvalidInput as error:
                found.problems.append(f"camera {part.name}: {error}")
                found.steps.append(self._without([part.key]))
            except (av.FFmpegError, OSError) as error:
                found.problems.append(f"camera {part.name}: {type(error).__name__}: {str(error)[:200]}")
        return tracks

    def _track(self, part: LeRobotCamera, clip: Clip, path: Path, rows: int, times: Times | None) -> _Track:
        """Returns where a camera's frames begin in its file, and how many there are."""
        index = index_of_file(path)
        first, there = clip.first, index.frames
        if not self.shared and times is not None:
            skipped = round(times.begin_s * self.rate)
            if skipped > 0 and skipped + rows <= there + 1 and there - rows > 1:
                first = skipped  # Rows were cut off in front, and the film was not: the timestamps say where.
        told = clip.frames if clip.frames is not None else rows if self.shared else there
        frames = min(there - first, told)
        if frames <= 0:
            raise DamagedData(
                "read a camera",
                on=clip.paths[0],
                got=f"{there} frames, none from {first} on",
                wanted=f"{rows} from there",
            )
        return _Track(video=VideoFile(camera=part.name, path=path, index=index), first=first, frames=frames)

    def _compare(self, tracks: Sequence[_Track], rows: int, found: _Found) -> None:
        """Tells of cameras with more frames or fewer than there are rows; one at the end is how recorders stop."""
        for track in tracks:
            more, name = track.frames - rows, track.video.camera
            if more == 1 or more == -1:
                found.notes.append(f"camera {name}: {track.frames} frames for {rows} rows, the last left out")
            if more > 1:
                found.lose(
                    Loss(
                        subject="rows",
                        lost=more,
                        total=track.frames,
                        unit="rows",
                        what=f"camera {name} has {track.frames} frames",
                    )
                )
            elif more < 0:
                found.lose(Loss(subject=f"camera {name}", lost=-more, total=rows, unit="frames"))

    def _words(self, table: pa.Table, time_ns: Integers, found: _Found) -> tuple[str, dict[str, str]]:
        """Returns the task, and what else is said of the episode in words."""
        metadata = dict(self.listed.extras)
        task, names = "; ".join(dict.fromkeys(self.listed.tasks)), dict(self.task_names)
        if "task_index" in table.column_names and names and not whole_column(table, "task_index").null_count:
            steps = [names.get(number) for number in columns_of_integers(table, "task_index").tolist()]
            known = [name for name in steps if name is not None]
            if len(known) < len(steps):
                found.notes.append(f"{len(steps) - len(known)} steps are of a task that is not listed")
            else:
                done = list(dict.fromkeys(known))
                task = "; ".join(done)
                if len(done) > 1:
                    metadata[TASK_STEPS] = _runs(known, time_ns) or json.dumps(done)
                if set(self.listed.tasks) - set(done):
                    metadata["tasks"] = json.dumps(list(self.listed.tasks))
        for column in self.plan.texts:
            said = texts(table, column) if column in table.column_names else [""]
            text = said[0] if len(set(said)) == 1 else _runs(said, time_ns)
            if text is None or len(text) > TEXT_MAX:
                found.notes.append(f"{column}: too many words, left to the source's own file")
            elif text:
                metadata[column] = text
                if not task and column in _INSTRUCTIONS and len(set(said)) == 1:
                    task = text
        return task, metadata


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Track:
    """A camera's frames for an episode: those of the video's index from `first` on."""

    video: VideoFile
    first: int
    frames: int

    def cut(self, frames: int) -> VideoFile:
        """Returns the first of them."""
        assert self.video.index is not None
        return replace(self.video, index=self.video.index.cut(self.first, frames))


@dataclass(kw_only=True)
class _Found:
    """What was found while an episode was read."""

    notes: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    steps: list[str] = field(default_factory=list)
    losses: list[Loss] = field(default_factory=list)
    last: list[Loss] = field(default_factory=list)

    def lose(self, loss: Loss) -> None:
        """Takes a loss in; one at the end is marked, and no reason to refuse however short the episode is."""
        (self.last if loss.lost == 1 else self.losses).append(loss)

    def marked(self) -> Mapping[str, str]:
        """Returns the mark of what is gone, where losses that are judged do not make one."""
        return {LOST: losses_text(self.last)} if self.last and not self.losses else {}

    def add(self, error: DamagedData) -> None:
        """Takes a problem in that keeps others from nothing."""
        wanted = f", wanted {error.wanted}" if error.wanted else ""
        self.problems.append(": ".join(filter(None, (error.on, error.got))) + wanted)
        self.steps += [error.next_step] if error.next_step else []

    def refuse(self, name: str) -> None:
        """Raises all problems as one, with the options that would let the episode in."""
        if self.problems:
            got, next_step = "; ".join(self.problems), ", ".join(dict.fromkeys(filter(None, self.steps)))
            raise DamagedData("read a LeRobot episode", on=name, got=got[:2_000], next_step=next_step)


def _success(columns: Mapping[str, Floats]) -> bool | None:
    for name in SUCCESS:
        values = columns.get(name)
        if values is not None and np.isin(values, (0.0, 1.0)).all():
            return bool(values.any())
    return None


def _runs(said: Sequence[str], time_ns: Integers) -> str | None:
    """Returns from when on each text holds, as JSON; None when there are too many."""
    begins = [step for step in range(len(said)) if not step or said[step] != said[step - 1]]
    return None if len(begins) > _RUNS_MAX else json.dumps([[int(time_ns[step]), said[step]] for step in begins])
