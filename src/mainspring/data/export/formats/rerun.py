"""Writes episodes as recordings that Rerun opens, through its own SDK, which is asked for only here.

Columns are time series under `column/`, videos lie whole in the recording with a reference at each step, pictures and
depth are logged at each step.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import Any, final

import numpy as np

from mainspring.data.episode import Integers
from mainspring.data.export.formats.pictures import PictureForm, coded_pictures, form_of, pixel_pictures, short_camera
from mainspring.data.export.losses import common_losses
from mainspring.data.export.run import Job, JobResult, MadeFile, Work, episode_job
from mainspring.data.export.survey import EpisodeSeen, ExportSurvey, Look, TrackSeen, part_of, rate_of, read_episode
from mainspring.data.export.video import write_mp4
from mainspring.domain.errors import InvalidInput, Unavailable
from mainspring.objects.files import reported

RERUN_CODECS = ("av1", "h264", "hevc", "vp9")
_STILLS = {Look.JPEG, Look.PNG, Look.GRAY, Look.DEPTH}
_TIMELINE = "time"


@final
class RerunFiles:
    """A `.rrd` file an episode.

    Args:
        survey: What goes out.

    Raises:
        InvalidInput: Rerun's SDK is not installed.
    """

    def __init__(self, survey: ExportSurvey) -> None:
        self._survey = survey
        self._rerun()

    @property
    def lost(self) -> tuple[str, ...]:
        """See `ExportFormat.lost`."""
        return common_losses(self._survey, lambda _, track: _why_again(track))

    @property
    def jobs(self) -> Sequence[Job]:
        """See `ExportFormat.jobs`."""
        return [episode_job("episode", episode, self._made) for episode in self._survey.episodes]

    def finish(self, facts: Mapping[str, Mapping[str, Any]], work: Work) -> JobResult:
        """See `ExportFormat.finish`."""
        return JobResult(files=())

    def _rerun(self) -> Any:
        try:
            return import_module("rerun")
        except ImportError as error:
            got, step = "no Rerun here", "pip install rerun-sdk"
            raise InvalidInput("export to Rerun", got=got, wanted="its SDK", next_step=step) from error

    def _made(self, episode: EpisodeSeen, work: Work) -> JobResult:
        rerun = self._rerun()
        path = work.folder / "episode.rrd"
        read, row = read_episode(work.store, episode, work.fetched), episode.row
        copied = again = 0
        recording = rerun.RecordingStream("mainspring", recording_id=row.id)
        with reported("export a version", str(path)):
            recording.save(path)
            recording.send_recording_name(f"{self._survey.version} {row.source}")
            said = {"task": row.task, "robot": row.robot, "success": str(row.success), **row.metadata}
            text = "\n".join(f"- {key}: {value}" for key, value in said.items())
            recording.log("episode", rerun.TextDocument(text, media_type="text/markdown"), static=True)
            times = _times(rerun, read.time_ns)
            for column in self._survey.features.columns:
                name = f"column/{column.name}"
                recording.log(name, rerun.SeriesLines(names=list(column.names)), static=True)
                values = read.columns[column.name]
                recording.send_columns(
                    name,
                    indexes=[times],
                    columns=rerun.Scalars.columns(scalars=values.reshape(-1)).partition(
                        [values.shape[1]] * len(values)
                    ),
                )
            for track in episode.tracks:
                if track.look in _STILLS:
                    self._log_pictures(recording, times, read.time_ns, episode, work, track.camera)
                    copied += row.frames
                else:
                    coded = bool(_why_again(track))
                    self._log_video(recording, times, episode, work, track.camera, again=coded)
                    copied, again = copied + row.frames * (not coded), again + row.frames * coded
            recording.disconnect()
        if not path.is_file():
            raise Unavailable("export to Rerun", on=row.source, got="no file from its SDK")
        return JobResult(
            files=(MadeFile(key=f"episode_{episode.number:06d}.rrd", path=path),), copied=copied, again=again
        )

    def _log_video(
        self, recording: Any, times: Any, episode: EpisodeSeen, work: Work, camera: str, *, again: bool
    ) -> None:
        rerun, name = self._rerun(), f"camera/{short_camera(camera)}"
        path = work.folder / "video.mp4"
        write_mp4(path, [part_of(work.store, episode, camera, work.fetched, again=again)], rate_of(episode.row))
        asset = rerun.AssetVideo(path=path)
        recording.log(name, asset, static=True)
        recording.send_columns(
            name, indexes=[times], columns=rerun.VideoFrameReference.columns_nanos(asset.read_frame_timestamps_nanos())
        )
        path.unlink()

    def _log_pictures(
        self, recording: Any, times: Any, time_ns: Integers, episode: EpisodeSeen, work: Work, camera: str
    ) -> None:
        rerun, name, form = self._rerun(), f"camera/{short_camera(camera)}", form_of(self._survey, camera)
        if form is PictureForm.DEPTH:
            part = part_of(work.store, episode, camera, work.fetched, again=False)
            for time, image in zip(time_ns, pixel_pictures(part, form), strict=True):
                recording.set_time(_TIMELINE, **_time(time))
                recording.log(name, rerun.DepthImage(image))
            return
        coded = list(coded_pictures(work, episode, camera, form))
        kind = "image/jpeg" if form is PictureForm.JPEG else "image/png"
        recording.send_columns(
            name, indexes=[times], columns=rerun.EncodedImage.columns(blob=coded, media_type=[kind] * len(coded))
        )


def _why_again(track: TrackSeen) -> str:
    return "" if track.look in _STILLS else track.why_again(RERUN_CODECS)


def _times(rerun: Any, time_ns: Integers) -> Any:
    """Returns the times of steps: of the day where they are, else since the begin."""
    kind, name = ("datetime64[ns]", "timestamp") if time_ns[0] > 0 else ("timedelta64[ns]", "duration")
    return rerun.TimeColumn(_TIMELINE, **{name: time_ns.astype(kind)})


def _time(time_ns: np.int64) -> dict[str, Any]:
    if time_ns > 0:
        return {"timestamp": np.datetime64(int(time_ns), "ns")}
    return {"duration": np.timedelta64(int(time_ns), "ns")}
