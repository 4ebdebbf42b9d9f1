"""Writes episodes as MCAP files that Foxglove shows, with the recipe by which they come in again as they were.

State and action are `JointState`s, other columns `Float64MultiArray`s; video is `CompressedVideo` of the packets as
they are, pictures are `CompressedImage`s, depth an `Image` of 16 bits. Every time is the step's own, in nanoseconds.
"""

from __future__ import annotations

import heapq
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, final

import numpy as np
import yaml
from mcap.writer import CompressionType, Writer

from mainspring.data.episode import Integers
from mainspring.data.export.beside import BesideMessage, messages_beside
from mainspring.data.export.formats import ros
from mainspring.data.export.losses import common_losses
from mainspring.data.export.run import Job, JobResult, MadeFile, Work, episode_job
from mainspring.data.export.survey import EpisodeSeen, ExportSurvey, Look, TrackSeen, part_of, rate_of, read_episode
from mainspring.data.export.video import VideoPart, part_packets, step_packets
from mainspring.data.features import ACTION, STATE
from mainspring.data.recording import ACTION_TOPIC, METADATA_NAME, STATE_TOPIC
from mainspring.data.video.frames import frames_shown
from mainspring.domain.errors import InvalidInput
from mainspring.objects.files import reported

MCAP_CODECS = ("av1", "h264", "hevc", "vp9")
_FORMATS = {"av1": "av1", "h264": "h264", "hevc": "h265", "vp9": "vp9"}
_STILLS = {Look.JPEG, Look.PNG, Look.GRAY, Look.DEPTH}
_UNNAMED = re.compile(r"[^A-Za-z0-9._/-]+")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Message:
    """A message on its way into a file."""

    time_ns: int
    topic: str
    schema: ros.RosSchema
    data: bytes


@final
class McapFiles:
    """An MCAP file an episode.

    Args:
        survey: What goes out.

    Raises:
        InvalidInput: An episode's times are negative, which MCAP has none of.
    """

    def __init__(self, survey: ExportSurvey) -> None:
        self._survey = survey
        if early := [one for one in survey.episodes if one.row.started_ns < 0]:
            raise InvalidInput(
                "export to MCAP",
                on=early[0].row.source,
                got=f"{early[0].row.started_ns} ns as the time of a step",
                wanted="times from 0 on",
            )
        names = [*map(_topic_of, (one.name for one in survey.features.columns))]
        names += [camera_topic(one.name) for one in survey.features.cameras]
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise InvalidInput(
                "export to MCAP", got=f"topics {', '.join(twice)[:200]} twice", wanted="names that differ"
            )

    @property
    def lost(self) -> tuple[str, ...]:
        """See `ExportFormat.lost`."""
        rates = sorted({one.row.rate_hz for one in self._survey.episodes})
        several = (
            [f"rate: recipe.yaml tells one of {len(rates)}; the times themselves are kept"] if len(rates) > 1 else []
        )
        lost = common_losses(self._survey, lambda one, track: _why_again(track, one.row.started_ns), stepped=False)
        return (*several, *lost)

    @property
    def jobs(self) -> Sequence[Job]:
        """See `ExportFormat.jobs`."""
        return [episode_job("episode", episode, self._made) for episode in self._survey.episodes]

    def finish(self, facts: Mapping[str, Mapping[str, Any]], work: Work) -> JobResult:
        """See `ExportFormat.finish`."""
        behind: dict[str, int] = {}
        for said in facts.values():
            for camera, behind_ns in said["behind_ns"].items():
                behind[camera] = max(behind_ns, behind.get(camera, 0))
        path = work.folder / "recipe.yaml"
        with reported("export a version", str(path)):
            path.write_text(yaml.safe_dump(self._recipe(behind), sort_keys=False, allow_unicode=True), encoding="utf-8")
        return JobResult(files=(MadeFile(key="recipe.yaml", path=path),))

    def _recipe(self, behind_ns: Mapping[str, int]) -> dict[str, Any]:
        """Returns the recipe by which our own intake reads the files."""
        columns = {}
        for column in self._survey.features.columns:
            field = "position" if column.name in (STATE, ACTION) else "data"
            columns[column.name] = [
                {"topic": _topic_of(column.name), "field": field, "tolerance_ms": 0.0, "names": list(column.names)}
            ]
        cameras = {}
        for camera in self._survey.features.cameras:
            late_ns = behind_ns.get(camera.name, 0)
            cameras[camera.name] = {"topic": camera_topic(camera.name), "tolerance_ms": late_ns / 1e6}
            if late_ns:
                cameras[camera.name] |= {"align": "hold", "tolerance_ms": float(-(-late_ns // 1_000_000))}
        steps = _topic_of(self._survey.features.columns[0].name)
        said = {fact: {"metadata": f"{METADATA_NAME}.{fact}"} for fact in ("task", "success", "robot")}
        return {
            "rate_hz": self._survey.episodes[0].row.rate_hz,
            "steps": steps,
            "columns": columns,
            "cameras": cameras,
            **said,
        }

    def _made(self, episode: EpisodeSeen, work: Work) -> JobResult:
        read = read_episode(work.store, episode, work.fetched)
        times: list[int] = read.time_ns.tolist()
        streams: list[Iterator[_Message]] = []
        for column in self._survey.features.columns:
            values = read.columns[column.name]
            robot = column.name in (STATE, ACTION)
            data = ros.joint_states(times, column.names, values) if robot else ros.multi_arrays(values)
            streams.append(
                _messages(times, _topic_of(column.name), ros.JOINT_STATE if robot else ros.MULTI_ARRAY, data)
            )
        behind_ns: dict[str, int] = {}
        copied = again = 0
        for track in episode.tracks:
            coded = bool(_why_again(track, times[0]))
            part = part_of(work.store, episode, track.camera, work.fetched, again=coded)
            streams.append(_pictures(track, part, read.time_ns, episode))
            if track.look is Look.VIDEO and track.jumps and not coded:
                behind_ns[track.camera] = _behind_ns(part.shown, read.time_ns)
            copied, again = copied + len(times) * (not coded), again + len(times) * coded
        beside = messages_beside(work.store, episode.row, times[0], times[-1], work.fetched)
        path = work.folder / "episode.mcap"
        with reported("export a version", str(path)), open(path, "wb") as file:
            _write(file, heapq.merge(*streams, key=lambda message: message.time_ns), beside, self._said(episode))
        return JobResult(
            files=(MadeFile(key=f"episode_{episode.number:06d}.mcap", path=path),),
            facts={"behind_ns": behind_ns},
            copied=copied,
            again=again,
        )

    def _said(self, episode: EpisodeSeen) -> dict[str, str]:
        row = episode.row
        success = "" if row.success is None else str(row.success).lower()
        prefix = f"{METADATA_NAME}."  # What came from such a file carries it already.
        more = {key.removeprefix(prefix): value for key, value in sorted(row.metadata.items())}
        return {**more, "task": row.task, "robot": row.robot, "success": success, "rate_hz": repr(row.rate_hz)}


def camera_topic(camera: str) -> str:
    """Returns the topic of a camera.

    Args:
        camera: Its name.
    """
    return f"/camera/{_UNNAMED.sub('_', camera.strip('/'))}"


def _topic_of(column: str) -> str:
    return {STATE: STATE_TOPIC, ACTION: ACTION_TOPIC}.get(column) or f"/column/{_UNNAMED.sub('_', column.strip('/'))}"


def _why_again(track: TrackSeen, first_ns: int) -> str:
    """Returns why a video is encoded again: one may begin before its first step, and repeat and skip frames."""
    if track.look in _STILLS:
        return ""
    if track.codec not in MCAP_CODECS:
        return f"{track.codec} is not taken"
    if track.reordered:
        return "its packets are not in the order of their frames"
    return "there is no time before its first step" if track.leans and first_ns < max(1, track.leads) else ""


def _messages(times: Sequence[int], topic: str, schema: ros.RosSchema, data: Sequence[bytes]) -> Iterator[_Message]:
    for time_ns, one in zip(times, data, strict=True):
        yield _Message(time_ns=time_ns, topic=topic, schema=schema, data=one)


def _pictures(track: TrackSeen, part: VideoPart, time_ns: Integers, episode: EpisodeSeen) -> Iterator[_Message]:
    topic = camera_topic(track.camera)
    if track.look is Look.DEPTH:
        for time, frame in zip(time_ns.tolist(), frames_shown(part.path, part.index, part.shown), strict=True):
            pixels = frame.to_ndarray(format="gray16le").astype("<u2")
            data = ros.depth_image(time, track.height, track.width, pixels.tobytes())
            yield _Message(time_ns=time, topic=topic, schema=ros.IMAGE, data=data)
    elif track.look in _STILLS:
        format = "jpeg" if track.look is Look.JPEG else "png"
        for time, picture in zip(time_ns.tolist(), step_packets(part), strict=True):
            data = ros.compressed_image(time, format, picture)
            yield _Message(time_ns=time, topic=topic, schema=ros.COMPRESSED_IMAGE, data=data)
    else:
        format = _FORMATS["h264" if part.again else track.codec]
        times = time_ns if part.again else _frame_times(part.shown, time_ns, track.leads, len(part.index.frame))
        for time, packet in zip(times.tolist(), part_packets(part, rate_of(episode.row)), strict=True):
            data = ros.compressed_video(time, format, packet.data)
            yield _Message(time_ns=time, topic=topic, schema=ros.COMPRESSED_VIDEO, data=data)


def _frame_times(shown: Integers, time_ns: Integers, leads: int, packets: int) -> Integers:
    """Returns when each packet of a video is said: its frame at the first step that shows it, others just before."""
    times = np.full(packets, -1, np.int64)
    first = np.unique(shown, return_index=True)
    times[leads + first[0]] = time_ns[first[1]]
    after = int(time_ns[-1]) + packets
    for place in range(packets - 1, -1, -1):  # A frame that no step shows comes a nanosecond before the next.
        if times[place] < 0:
            times[place] = (int(times[place + 1]) if place + 1 < packets else after) - 1
    return times


def _behind_ns(shown: Integers, time_ns: Integers) -> int:
    """Returns how long a step may show a frame that was first shown before it."""
    first = np.unique(shown, return_index=True)
    return int((time_ns - time_ns[first[1]][np.searchsorted(first[0], shown)]).max(initial=0))


def _write(file: Any, messages: Iterator[_Message], beside: Sequence[BesideMessage], said: Mapping[str, str]) -> None:
    writer = Writer(file, compression=CompressionType.ZSTD)
    writer.start(profile="ros2", library="mainspring")
    schemas: dict[tuple[str, str, bytes], int] = {}
    channels: dict[tuple[str, int, str], int] = {}
    numbers: dict[int, int] = {}

    def add(topic: str, type: str, language: str, definition: bytes, encoding: str, time_ns: int, data: bytes) -> None:
        kind = (type, language, definition)
        if kind not in schemas:
            schemas[kind] = writer.register_schema(type, language, definition)
        stream = (topic, schemas[kind], encoding)
        if stream not in channels:
            channels[stream] = writer.register_channel(topic, encoding, schemas[kind])
        channel = channels[stream]
        numbers[channel] = numbers.get(channel, -1) + 1
        writer.add_message(
            channel_id=channel, log_time=time_ns, publish_time=time_ns, sequence=numbers[channel], data=data
        )

    waiting = list(reversed(beside))
    for message in messages:
        while waiting and waiting[-1].time_ns <= message.time_ns:
            one = waiting.pop()
            add(one.topic, one.type, one.language, one.definition, one.encoding, one.time_ns, one.data)
        schema = message.schema
        add(message.topic, schema.name, "ros2msg", schema.text.encode(), "cdr", message.time_ns, message.data)
    for one in reversed(waiting):
        add(one.topic, one.type, one.language, one.definition, one.encoding, one.time_ns, one.data)
    writer.add_metadata(METADATA_NAME, dict(said))
    writer.finish()  # type: ignore[no-untyped-call]
