"""Writes RLDS as TFDS lays it out: TFRecord files, what lies in them, and how much; without TensorFlow.

Steps hold `observation` (state, cameras), `action`, every other column, `language_instruction`, `time_ns` and RLDS's
marks of first and last steps; `episode_metadata` holds the facts of an episode. Columns whose values 32 bits do not
hold are kept as the bytes of doubles, which TFDS turns into numbers again.

Source: github.com/tensorflow/datasets 4.9, `core/features` and `core/dataset_info.py`; github.com/google-research/rlds.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, final

import numpy as np

from mainspring.data.export.formats.pictures import (
    PictureForm,
    coded_pictures,
    counts,
    drawn_again,
    form_of,
    short_camera,
)
from mainspring.data.export.formats.tfrecord import FeatureValue, example, framed
from mainspring.data.export.losses import common_losses
from mainspring.data.export.run import Job, JobResult, MadeFile, Work
from mainspring.data.export.survey import EpisodeFile, EpisodeSeen, ExportSurvey, Look, grouped, read_episode
from mainspring.data.features import ACTION, STATE
from mainspring.domain.errors import InvalidInput
from mainspring.objects.files import reported

SHARD_BYTES = 200 << 20  # TFDS aims at 100 to 200 MB.
_VERSION = "1.0.0"
_FEATURES = "tensorflow_datasets.core.features"
_UNNAMED = re.compile(r"[^A-Za-z0-9._-]+")
_NAME = re.compile(r"[^a-z0-9_]+")
_OWN = ("observation", "action", "language_instruction", "time_ns", "is_first", "is_last", "is_terminal")
_FACTS = ("source", "task", "robot", "success", "rate_hz")
_PIXEL_BYTES = 1.5  # What a pixel of a video takes as PNG.


@final
class RldsFolder:
    """A TFDS folder of RLDS episodes.

    Args:
        survey: What goes out.

    Raises:
        InvalidInput: Not all episodes have all cameras, or two columns would have one name.
    """

    def __init__(self, survey: ExportSurvey) -> None:
        survey.every_camera("RLDS")
        self._survey, self._wide = survey, survey.wide()
        self._name = _NAME.sub("_", survey.version.partition("@")[0].lower()).strip("_") or "episodes"
        self._forms = {one.name: form_of(survey, one.name) for one in survey.features.cameras}
        self._columns = {one.name: _path_of(one.name) for one in survey.features.columns}
        self._cameras = {name: f"observation/{_UNNAMED.sub('_', short_camera(name))}" for name in self._forms}
        paths = [*self._columns.values(), *self._cameras.values()]
        if twice := sorted({path for path in paths if paths.count(path) > 1}):
            raise InvalidInput("export to RLDS", got=f"{', '.join(twice)[:200]} twice", wanted="names that differ")
        self._facts = sorted({key for one in survey.episodes for key in one.row.metadata} - set(_FACTS))

    @property
    def lost(self) -> tuple[str, ...]:
        """See `ExportFormat.lost`."""
        drawn = drawn_again(self._survey, self._forms, "PNG of the RGB pixels")
        lost = [*common_losses(self._survey, None), *drawn]
        if names := [column.name for column in self._survey.features.columns if not _numbered(column.names)]:
            lost.append(f"names of dimensions of {', '.join(names)[:200]}: RLDS has none")
        return tuple(lost)

    @property
    def jobs(self) -> Sequence[Job]:
        """See `ExportFormat.jobs`."""
        files = self._files()
        return [Job(name=f"shard {file.number}", make=self._making(file, len(files))) for file in files]

    def finish(self, facts: Mapping[str, Mapping[str, Any]], work: Work) -> JobResult:
        """See `ExportFormat.finish`."""
        files = self._files()
        said = [facts[f"shard {file.number}"] for file in files]
        info = {
            "fileFormat": "tfrecord",
            "moduleName": "mainspring",
            "name": self._name,
            "splits": [
                {
                    "filepathTemplate": "{DATASET}-{SPLIT}.{FILEFORMAT}-{SHARD_X_OF_Y}",
                    "name": "train",
                    "numBytes": str(sum(one["size_bytes"] for one in said)),
                    "shardLengths": [str(len(file.episodes)) for file in files],
                }
            ],
            "version": _VERSION,
        }
        made = []
        for name, plain in (("features.json", self._described()), ("dataset_info.json", info)):
            path = work.folder / name
            with reported("export a version", str(path)):
                path.write_text(json.dumps(plain, indent=2), encoding="utf-8")
            made.append(MadeFile(key=name, path=path))
        return JobResult(files=tuple(made))

    def _files(self) -> list[EpisodeFile]:
        row = sum(8 * len(column.names) for column in self._survey.features.columns)

        def size(episode: EpisodeSeen) -> int:
            pictures = sum(
                track.size_bytes
                if track.look is not Look.VIDEO
                else int(_PIXEL_BYTES * track.height * track.width) * episode.row.frames
                for track in episode.tracks
            )
            return row * episode.row.frames + pictures

        return list(grouped([(episode, size(episode), "") for episode in self._survey.episodes], SHARD_BYTES))

    def _making(self, file: EpisodeFile, count: int) -> Any:
        def make(work: Work) -> JobResult:
            path = work.folder / "shard"
            size_bytes = copied = again = 0
            with reported("export a version", str(path)), open(path, "wb") as out:
                for episode in file.episodes:
                    record = example(self._features(episode, work), on=episode.row.source)
                    out.write(framed(record))
                    size_bytes += len(record)
                    counted = counts(episode, self._forms)
                    copied, again = copied + counted["copied"], again + counted["again"]
            return JobResult(
                files=(MadeFile(key=f"{self._name}-train.tfrecord-{file.number:05d}-of-{count:05d}", path=path),),
                facts={"size_bytes": size_bytes},
                copied=copied,
                again=again,
            )

        return make

    def _features(self, episode: EpisodeSeen, work: Work) -> dict[str, FeatureValue]:
        read, row = read_episode(work.store, episode, work.fetched), episode.row
        steps = np.arange(row.frames)
        made: dict[str, FeatureValue] = {
            "steps/time_ns": read.time_ns,
            "steps/is_first": (steps == 0).astype(np.int64),
            "steps/is_last": (steps == row.frames - 1).astype(np.int64),
            "steps/is_terminal": (steps == row.frames - 1).astype(np.int64),
            "steps/language_instruction": [row.task.encode("utf-8", "replace")] * row.frames,
        }
        for column in self._survey.features.columns:
            values = read.columns[column.name]
            made[f"steps/{self._columns[column.name]}"] = (
                [one.tobytes() for one in values.astype("<f8")]
                if column.name in self._wide
                else values.astype(np.float32)
            )
        for name, form in self._forms.items():
            made[f"steps/{self._cameras[name]}"] = list(coded_pictures(work, episode, name, form))
        said = self._said(episode).items()
        return made | {f"episode_metadata/{key}": [text.encode("utf-8", "replace")] for key, text in said}

    def _said(self, episode: EpisodeSeen) -> dict[str, str]:
        row = episode.row
        own = {
            "source": row.source,
            "task": row.task,
            "robot": row.robot,
            "success": "" if row.success is None else str(row.success).lower(),
            "rate_hz": repr(row.rate_hz),
        }
        return {**{_fact(key): row.metadata.get(key, "") for key in self._facts}, **own}

    def _described(self) -> dict[str, Any]:
        """Returns what TFDS reads from `features.json`."""
        text = {"pythonClassName": f"{_FEATURES}.text_feature.Text", "text": {}}
        mark = {
            "pythonClassName": f"{_FEATURES}.scalar.Scalar",
            "tensor": {"shape": {}, "dtype": "bool", "encoding": "none"},
        }
        step: dict[str, Any] = {
            "language_instruction": text,
            "time_ns": {**mark, "tensor": {"shape": {}, "dtype": "int64", "encoding": "none"}},
        }
        step |= dict.fromkeys(("is_first", "is_last", "is_terminal"), mark)
        observed: dict[str, Any] = {}
        for column in self._survey.features.columns:
            wide = column.name in self._wide
            kind = {
                "shape": {"dimensions": [str(len(column.names))]},
                "dtype": "float64" if wide else "float32",
                "encoding": "bytes" if wide else "none",
            }
            group, _, name = self._columns[column.name].rpartition("/")
            (observed if group else step)[name] = {
                "pythonClassName": f"{_FEATURES}.tensor_feature.Tensor",
                "tensor": kind,
            }
        for camera, form in self._forms.items():
            track = self._survey.episodes[0].track(camera)
            assert track is not None
            image = {
                "shape": {"dimensions": [str(track.height), str(track.width), str(form.channels)]},
                "dtype": "uint16" if form is PictureForm.DEPTH else "uint8",
                "encodingFormat": "jpeg" if form is PictureForm.JPEG else "png",
            }
            name = self._cameras[camera].rpartition("/")[2]
            observed[name] = {"pythonClassName": f"{_FEATURES}.image_feature.Image", "image": image}
        step["observation"] = _group(observed)
        steps = {
            "pythonClassName": f"{_FEATURES}.dataset_feature.Dataset",
            "sequence": {"feature": _group(step), "length": "-1"},
        }
        said = dict.fromkeys(self._said(self._survey.episodes[0]), text)
        return _group({"steps": steps, "episode_metadata": _group(said)})


def _group(features: Mapping[str, Any]) -> dict[str, Any]:
    return {"pythonClassName": f"{_FEATURES}.features_dict.FeaturesDict", "featuresDict": {"features": dict(features)}}


def _path_of(column: str) -> str:
    plain = _UNNAMED.sub("_", column)
    return {STATE: "observation/state", ACTION: "action"}.get(column) or (f"{plain}_" if plain in _OWN else plain)


def _fact(key: str) -> str:
    plain = _UNNAMED.sub("_", key)
    return f"{plain}_" if plain in _FACTS else plain


def _numbered(names: Sequence[str]) -> bool:
    """Returns whether names say no more than which number each dimension has."""
    return all(name.endswith(str(place)) for place, name in enumerate(names))
