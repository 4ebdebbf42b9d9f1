"""Writes episodes as HDF5 in the layout of ALOHA: one file an episode.

Of the layouts in use this one is read by most (ACT, openpi and LeRobot's converters, RDT), it holds recordings of real
robots where robomimic's holds a simulator's states, and a file an episode can be made, moved and made again by itself.
Beside ALOHA's own `observations/qpos`, `observations/images/<camera>` and `action` lie `time_ns`, every other column
under its name, and the facts of the episode as attributes of the file.

Source: github.com/tonyzhaozh/aloha, `aloha_scripts/record_episodes.py`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, final

import h5py
import numpy as np

from mainspring.data.export.formats.pictures import (
    PictureForm,
    coded_pictures,
    counts,
    drawn_again,
    form_of,
    pixel_pictures,
    short_camera,
)
from mainspring.data.export.losses import common_losses
from mainspring.data.export.run import Job, JobResult, MadeFile, Work, episode_job
from mainspring.data.export.survey import EpisodeSeen, ExportSurvey, part_of, read_episode
from mainspring.data.features import ACTION, STATE
from mainspring.domain.errors import DamagedData, InvalidInput
from mainspring.objects.files import reported

_STATE_PATH, _ACTION_PATH = "observations/qpos", "action"
_IMAGES, _DEPTHS = "observations/images", "observations/depth_images"
_UNNAMED = re.compile(r"[/\0]+")
_OWN = ("time_ns", "observations", "action", "compress_len")
_ATTRIBUTE_BYTES_MAX = 60_000  # HDF5 keeps attributes of up to 64 KiB in an object's header.
_GZIP = 1  # Levels above take several times as long for a tenth less.


@final
class Hdf5Files:
    """An HDF5 file an episode.

    Args:
        survey: What goes out.

    Raises:
        InvalidInput: Two columns would lie at one path.
    """

    def __init__(self, survey: ExportSurvey) -> None:
        self._survey, self._wide = survey, survey.wide()
        self._paths = {one.name: _path_of(one.name) for one in survey.features.columns}
        self._forms = {one.name: form_of(survey, one.name) for one in survey.features.cameras}
        self._cameras = {
            name: f"{_DEPTHS if form is PictureForm.DEPTH else _IMAGES}/{_UNNAMED.sub('.', short_camera(name))}"
            for name, form in self._forms.items()
        }
        paths = [*self._paths.values(), *self._cameras.values()]
        if twice := sorted({path for path in paths if paths.count(path) > 1}):
            raise InvalidInput("export to HDF5", got=f"{', '.join(twice)[:200]} twice", wanted="names that differ")

    @property
    def lost(self) -> tuple[str, ...]:
        """See `ExportFormat.lost`."""
        return (*common_losses(self._survey, None), *drawn_again(self._survey, self._forms, "the RGB pixels"))

    @property
    def jobs(self) -> Sequence[Job]:
        """See `ExportFormat.jobs`."""
        return [episode_job("episode", episode, self._made) for episode in self._survey.episodes]

    def finish(self, facts: Mapping[str, Mapping[str, Any]], work: Work) -> JobResult:
        """See `ExportFormat.finish`."""
        return JobResult(files=())

    def _made(self, episode: EpisodeSeen, work: Work) -> JobResult:
        path = work.folder / "episode.hdf5"
        try:
            with reported("export a version", str(path)):
                return self._write(episode, work, path)
        except (RuntimeError, TypeError, ValueError) as error:  # What h5py raises for names and values it cannot keep.
            raise DamagedData("export an episode", on=episode.row.source, got=str(error)[:200]) from error

    def _write(self, episode: EpisodeSeen, work: Work, path: Path) -> JobResult:
        read = read_episode(work.store, episode, work.fetched)
        with h5py.File(path, "w", libver=("v108", "v112")) as file:
            file.attrs.update({"sim": False, **self._said(episode)})
            file["time_ns"] = read.time_ns
            for column in self._survey.features.columns:
                kind = np.float64 if column.name in self._wide else np.float32
                placed = file.create_dataset(self._paths[column.name], data=read.columns[column.name].astype(kind))
                names = [name.encode("utf-8", "replace") for name in column.names]
                if sum(map(len, names)) < _ATTRIBUTE_BYTES_MAX:
                    placed.attrs["names"] = names
            coded = [track.camera for track in episode.tracks if self._forms[track.camera] is PictureForm.JPEG]
            for track in episode.tracks:
                if track.camera in coded:
                    self._write_coded(file, episode, work, track.camera)
                else:
                    self._write_pixels(file, episode, work, track.camera)
            if coded:
                file.attrs["compress"] = len(coded) == len(episode.tracks)
        files = (MadeFile(key=f"episode_{episode.number}.hdf5", path=path),)
        counted = counts(episode, self._forms)
        return JobResult(files=files, copied=counted["copied"], again=counted["again"])

    def _write_coded(self, file: Any, episode: EpisodeSeen, work: Work, camera: str) -> None:
        pictures = [np.frombuffer(one, np.uint8) for one in coded_pictures(work, episode, camera, PictureForm.JPEG)]
        padded = np.zeros((len(pictures), max(map(len, pictures))), np.uint8)
        for row, picture in zip(padded, pictures, strict=True):
            row[: len(picture)] = picture
        file.create_dataset(self._cameras[camera], data=padded, chunks=(1, padded.shape[1]))

    def _write_pixels(self, file: Any, episode: EpisodeSeen, work: Work, camera: str) -> None:
        part = part_of(work.store, episode, camera, work.fetched, again=False)
        placed: Any = None
        for step, image in enumerate(pixel_pictures(part, self._forms[camera])):
            if placed is None:
                placed = file.create_dataset(
                    self._cameras[camera],
                    (episode.row.frames, *image.shape),
                    image.dtype,
                    chunks=(1, *image.shape),
                    compression="gzip",
                    compression_opts=_GZIP,
                )
            placed[step] = image

    def _said(self, episode: EpisodeSeen) -> dict[str, Any]:
        row = episode.row
        own: dict[str, Any] = {"task": row.task, "robot": row.robot, "rate_hz": row.rate_hz}
        if row.success is not None:
            own["success"] = row.success
        more = {key: value for key, value in sorted(row.metadata.items()) if key not in (*own, "sim", "compress")}
        return {key: value for key, value in {**more, **own}.items() if len(str(value).encode()) < _ATTRIBUTE_BYTES_MAX}


def _path_of(column: str) -> str:
    plain = _UNNAMED.sub(".", column).strip(".") or "column"
    return {STATE: _STATE_PATH, ACTION: _ACTION_PATH}.get(column) or (f"{plain}_" if plain in _OWN else plain)
