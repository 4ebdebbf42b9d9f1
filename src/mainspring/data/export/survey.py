"""Export survey: which episodes go out, and what of them a format must hold, seen before anything is written."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from blake3 import blake3

from mainspring.data.catalog.fragments import ROWS, read_fragments
from mainspring.data.catalog.log import Version
from mainspring.data.catalog.queries import matching
from mainspring.data.episode import NANOSECONDS, EpisodeRow, Integers, shown_at
from mainspring.data.export.beside import topics_beside
from mainspring.data.export.video import VideoPart, delay_of
from mainspring.data.features import Camera, Column, Features
from mainspring.data.hashed_text import hashed_text
from mainspring.data.layers.episode import Recorded, read_recorded
from mainspring.data.layers.layer import facts_table, features_with, find_layer, layer_pieces
from mainspring.data.packs import PackPiece, read_piece
from mainspring.data.video.packets import PacketIndex, index_from_parquet
from mainspring.domain.codec import from_plain
from mainspring.domain.errors import DamagedData, InvalidInput, nearest
from mainspring.objects import ObjectStore, fetch_blob

EPISODES_MAX = 1_000_000  # As of a dataset that is read.
RATE_DENOMINATOR_MAX = 1_001  # Television's 30000/1001 is the oddest rate in use.
_PNG_HEADER_BYTES = 26  # Signature, length and name of the first chunk, then width, height, depth and colour.
_PNG_DEPTH, _PNG_COLOUR = 24, 25


class Look(str, Enum):
    """What a camera's packets are."""

    VIDEO = "video"
    JPEG = "jpeg"
    PNG = "png"  # Colour, 8 bits a channel.
    GRAY = "gray png"  # One channel of 8 bits.
    DEPTH = "depth png"  # One channel of 16 bits.


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportRequest:
    """What of a version goes out.

    Args:
        where: SQL over what is known of an episode; "" for all. See `queries.matching`.
        layers: Ids, or their beginnings, of layers whose columns go along.
        cameras: Which cameras go along; None for all.
        without_cameras: Which do not.
    """

    where: str = ""
    layers: tuple[str, ...] = ()
    cameras: tuple[str, ...] | None = None
    without_cameras: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class TrackSeen:
    """A camera of an episode.

    Args:
        camera: Its name.
        codec: FFmpeg's name of its codec.
        look: What its packets are.
        height: Pixels.
        width: Pixels.
        size_bytes: Of its packets.
        joins: What videos must share to follow each other in one file.
        jumps: Whether steps repeat or skip frames.
        leans: Whether its first frames lean on packets before them.
        leads: How many packets come before its first frame, which are only decoded on the way to it.
        reordered: Whether packets come in another order than their frames.
    """

    camera: str
    codec: str
    look: Look
    height: int
    width: int
    size_bytes: int
    joins: str
    jumps: bool
    leads: int
    leans: bool
    reordered: bool

    def why_again(self, codecs: Sequence[str], *, reordered: bool = True) -> str:
        """Returns why its packets cannot be copied; "" when they can.

        Args:
            codecs: What a format takes.
            reordered: Whether it takes packets in another order than their frames.
        """
        if self.codec not in codecs:
            return f"{self.codec} is not taken"
        if self.jumps:
            return "its steps repeat or skip frames"
        if self.leans:
            return "its first frames lean on packets before them"
        return "its packets are not in the order of their frames" if self.reordered and not reordered else ""


@dataclass(frozen=True, slots=True, kw_only=True)
class EpisodeSeen:
    """An episode that goes out.

    Args:
        number: Its place among those that do, from 0.
        row: What the catalog knows of it.
        layers: Where its columns of the layers lie.
        off_grid_ns: How far a step's time is from its place at the rate, counted from the first, at most.
        wide: Columns with values that 32 bits do not hold.
        tracks: Of the cameras that go out and that it has.
    """

    number: int
    row: EpisodeRow
    layers: tuple[PackPiece, ...]
    off_grid_ns: int
    wide: tuple[str, ...]
    tracks: tuple[TrackSeen, ...]

    def track(self, camera: str) -> TrackSeen | None:
        """Returns a camera's track, None when it has no such camera.

        Args:
            camera: Its name.
        """
        return next((track for track in self.tracks if track.camera == camera), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportSurvey:
    """Everything that goes out.

    Args:
        id: Hash of the episodes, columns and cameras.
        version: The version's name.
        features: The columns, with those of layers, and the cameras that go out.
        layers: By layer, the columns it adds.
        episodes: Each, in order.
        beside: Topics of raw logs that viewers need, as the first episode's has them.
    """

    id: str
    version: str
    features: Features
    layers: Mapping[str, tuple[str, ...]]
    episodes: tuple[EpisodeSeen, ...]
    beside: tuple[str, ...] = ()

    @property
    def frames(self) -> int:
        """Returns how many steps they have together."""
        return sum(episode.row.frames for episode in self.episodes)

    def looks(self, camera: str) -> set[Look]:
        """Returns how a camera's pictures are coded in its episodes.

        Args:
            camera: The camera.
        """
        return {track.look for episode in self.episodes for track in episode.tracks if track.camera == camera}

    def wide(self) -> frozenset[str]:
        """Returns the columns that some episode's values need 64 bits for."""
        return frozenset(name for episode in self.episodes for name in episode.wide)

    def one_rate(self, format: str) -> Fraction:
        """Returns the rate of all episodes.

        Args:
            format: What can hold only one, for the message.

        Raises:
            InvalidInput: There are several.
        """
        rates = sorted({episode.row.rate_hz for episode in self.episodes})
        if len(rates) > 1:
            raise InvalidInput(
                f"export to {format}",
                on=self.version,
                got=", ".join(f"{rate:g} Hz" for rate in rates[:5]),
                wanted="one rate",
                next_step=f'--where "rate_hz = {rates[0]:g}"',
            )
        return rate_of(self.episodes[0].row)

    def every_camera(self, format: str) -> None:
        """Checks that each episode has each camera that goes out.

        Args:
            format: What can hold nothing else, for the message.

        Raises:
            InvalidInput: One lacks one.
        """
        for camera in self.features.cameras:
            lacking = [episode.row.source for episode in self.episodes if episode.track(camera.name) is None]
            if lacking:
                raise InvalidInput(
                    f"export to {format}",
                    on=self.version,
                    got=f"{len(lacking)} episodes without {camera.name}, such as {lacking[0]}"[:300],
                    wanted="each camera in each episode",
                    next_step=f"--without-camera {camera.name}",
                )


@dataclass(frozen=True, slots=True, kw_only=True)
class EpisodeFile:
    """Several episodes that share a file, and its number among such files."""

    number: int
    episodes: tuple[EpisodeSeen, ...]


def grouped(sized: Sequence[tuple[EpisodeSeen, int, str]], size_max: int) -> Iterator[EpisodeFile]:
    """Yields files of episodes that follow each other and are of one kind, each as full as it may be.

    Args:
        sized: Each episode, how many bytes it takes, and its kind.
        size_max: Bytes of a file; one episode alone may take more.
    """
    held: list[EpisodeSeen] = []
    held_bytes, kind, number = 0, "", 0
    for episode, size_bytes, key in sized:
        if held and (key != kind or held_bytes + size_bytes > size_max):
            yield EpisodeFile(number=number, episodes=tuple(held))
            held, held_bytes, number = [], 0, number + 1
        held.append(episode)
        held_bytes, kind = held_bytes + size_bytes, key
    yield EpisodeFile(number=number, episodes=tuple(held))


def rate_of(row: EpisodeRow) -> Fraction:
    """Returns an episode's rate, exact.

    Args:
        row: The episode.
    """
    return Fraction(row.rate_hz).limit_denominator(RATE_DENOMINATOR_MAX)


def survey_export(store: ObjectStore, version: Version, request: ExportRequest, scratch: Path) -> ExportSurvey:
    """Returns what would go out; reads columns and indexes, no pictures.

    Args:
        store: Where the version lies.
        version: What is exported.
        request: What of it.
        scratch: Local folder for what is fetched.

    Raises:
        InvalidInput: The condition holds for no episode, or there is no such camera.
        NotFound: There is no such layer, or it lacks an episode.
        DamagedData: What is stored is not what it should be.
    """
    specs = [find_layer(store, id) for id in request.layers]
    features = features_with(version.features, specs)
    features = Features(columns=features.columns, cameras=_cameras(features.cameras, request))
    rows = _rows(store, version, request, {spec.producer: facts_table(store, spec.id) for spec in specs})
    with_columns = [spec for spec in specs if spec.columns]
    pieces = [layer_pieces(store, spec.id, [row.id for row in rows]) for spec in with_columns]
    seen = tuple(
        _seen(store, number, row, tuple(layer[row.id] for layer in pieces), features, scratch)
        for number, row in enumerate(rows)
    )
    called = hashed_text(features, {Features: "Features", Column: "Column", Camera: "Camera"})
    hasher = blake3(f"({called}, {[spec.id for spec in specs]})".encode())
    for row in rows:
        hasher.update(row.id.encode())
    layers = {f"{spec.producer} {spec.id[:12]}": tuple(spec.columns) for spec in with_columns}
    scratch.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=scratch, prefix="survey-") as folder:
        beside = topics_beside(store, rows[0], Path(folder))
    return ExportSurvey(
        id=hasher.hexdigest()[:32],
        version=version.name,
        features=features,
        layers=layers,
        episodes=seen,
        beside=beside,
    )


def read_episode(store: ObjectStore, episode: EpisodeSeen, folder: Path) -> Recorded:
    """Returns an episode's columns and times.

    Args:
        store: Where it lies.
        episode: Which.
        folder: Local folder for its videos.

    Raises:
        NotFound: Bytes of it are missing.
        DamagedData: They are not what they should be.
    """
    return read_recorded(store, episode.row, episode.layers, folder)


def index_of(store: ObjectStore, episode: EpisodeSeen, camera: str) -> PacketIndex:
    """Returns where a camera's packets lie.

    Args:
        store: Where the episode lies.
        episode: Which.
        camera: A camera it has.
    """
    track = next(track for track in episode.row.videos if track.camera == camera)
    return index_from_parquet(read_piece(store, track.index))


def part_of(store: ObjectStore, episode: EpisodeSeen, camera: str, folder: Path, *, again: bool) -> VideoPart:
    """Returns a camera's frames, fetched to this machine.

    Args:
        store: Where the episode lies.
        episode: Which.
        camera: A camera it has.
        folder: Local folder for what is fetched.
        again: Whether they are encoded again.
    """
    track = next(track for track in episode.row.videos if track.camera == camera)
    seen = episode.track(camera)
    assert seen is not None
    frames = np.arange(episode.row.frames, dtype=np.int64)
    shown = shown_at(read_recorded(store, episode.row, (), folder).table, camera) if seen.jumps else frames
    return VideoPart(
        path=fetch_blob(store, track.blob, folder),
        index=index_from_parquet(read_piece(store, track.index)),
        shown=shown,
        again=again,
    )


def _cameras(known: tuple[Camera, ...], request: ExportRequest) -> tuple[Camera, ...]:
    names = [camera.name for camera in known]
    for name in (*(request.cameras or ()), *request.without_cameras):
        if name not in names:
            raise InvalidInput("export cameras", got=repr(name[:80]), wanted=nearest(name[:80], names)[:300])
    wanted = set(names if request.cameras is None else request.cameras) - set(request.without_cameras)
    return tuple(camera for camera in known if camera.name in wanted)


def _rows(
    store: ObjectStore, version: Version, request: ExportRequest, joined: Mapping[str, pa.Table]
) -> tuple[EpisodeRow, ...]:
    table = read_fragments(store, version.fragments, ROWS.names)
    if request.where:
        table = table.filter(pa.array(matching(store, version.fragments, request.where, joined)))
    if not 0 < table.num_rows <= EPISODES_MAX:
        got, wanted = f"{table.num_rows} episodes", f"1 to {EPISODES_MAX}"
        raise InvalidInput("export a version", on=f"{version.name} {request.where}"[:200], got=got, wanted=wanted)
    table = table.sort_by([("source", "ascending"), ("id", "ascending")])
    return tuple(from_plain(EpisodeRow, row) for row in table.to_pylist(maps_as_pydicts="strict"))


def _seen(
    store: ObjectStore, number: int, row: EpisodeRow, layers: tuple[PackPiece, ...], features: Features, folder: Path
) -> EpisodeSeen:
    read = read_recorded(store, row, layers, folder)
    for column in features.columns:
        if column.name not in read.columns or read.columns[column.name].shape != (row.frames, len(column.names)):
            raise DamagedData(
                "export an episode",
                on=f"{row.id} ({row.source})",
                got=f"no {column.name} of {row.frames} x {len(column.names)}",
            )
    wanted = {camera.name for camera in features.cameras}
    return EpisodeSeen(
        number=number,
        row=row,
        layers=layers,
        off_grid_ns=int(np.abs(read.time_ns - read.time_ns[0] - grid_ns(row.frames, rate_of(row))).max(initial=0)),
        wide=tuple(name for name, values in sorted(read.columns.items()) if _is_wide(values)),
        tracks=tuple(
            _track(store, read, row, place) for place in range(len(row.videos)) if row.videos[place].camera in wanted
        ),
    )


def _is_wide(values: Any) -> bool:
    return not np.array_equal(values.astype(np.float32).astype(np.float64), values, equal_nan=True)


def grid_ns(steps: int, rate: Fraction) -> Integers:
    """Returns when each step is at a rate, from 0: whole nanoseconds, rounded down, never accumulated.

    Args:
        steps: How many.
        rate: Steps per second.
    """
    whole, rest = np.divmod(np.arange(steps, dtype=np.int64) * rate.denominator, rate.numerator)
    times: Integers = whole * NANOSECONDS + rest * NANOSECONDS // rate.numerator
    return times


def _track(store: ObjectStore, read: Recorded, row: EpisodeRow, place: int) -> TrackSeen:
    track = row.videos[place]
    index = index_from_parquet(read_piece(store, track.index))
    shown = shown_at(read.table, track.camera)
    leads = int(np.argmax(index.frame >= 0))
    return TrackSeen(
        camera=track.camera,
        codec=index.codec,
        look=_look(store, track.blob.key, index),
        height=index.height,
        width=index.width,
        size_bytes=int(index.size_bytes.sum(dtype=np.int64)),
        joins=blake3(
            f"{index.codec} {index.width}x{index.height} {delay_of(index)} ".encode() + index.extradata
        ).hexdigest(),
        jumps=len(shown) != index.frames or not np.array_equal(shown, np.arange(len(shown))),
        leads=leads,
        leans=bool((index.frame < 0).any()) or not bool(index.key[0]),
        reordered=not np.array_equal(index.frame[leads:], np.arange(len(index.frame) - leads)),
    )


def _look(store: ObjectStore, key: str, index: PacketIndex) -> Look:
    if index.codec == "mjpeg":
        return Look.JPEG
    if index.codec != "png":
        return Look.VIDEO
    head = store.get_range(key, offset=int(index.offset[0]), size_bytes=_PNG_HEADER_BYTES)
    if head[_PNG_COLOUR] != 0:
        return Look.PNG
    return Look.DEPTH if head[_PNG_DEPTH] == 16 else Look.GRAY
