"""A camera's frames as packets: where each lies in a blob, and what its decoder must know.

The packets of a video file of a source are read where they are, inside the source's own file.
"""

from __future__ import annotations

import io
import json
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, BinaryIO

import av
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from blake3 import blake3
from numpy.typing import NDArray

from mainspring.data.episode import VideoFile
from mainspring.data.video.keys import begins_group, unit_length_bytes
from mainspring.data.video.packet import decoder_of, packet_from
from mainspring.domain.errors import DamagedData, InvalidInput

PACKETS_MAX = 10_000_000
_BLOCK_HEADER_BYTES_MAX = 64  # Matroska's block group: some ids and sizes of up to 8 bytes each, track, time, flags.
_UNTIMED = ("avi",)  # Formats that do not say when a packet is shown: FFmpeg guesses, and for h264 it guesses wrong.
_TAGGED = ("mpeg4", "rawvideo")  # Here a tag says which encoder to imitate, or how pixels lie.
_PLAIN_TAGS = ("mp4v", "FMP4", "\0\0\0\0")  # These stand for none.
_STRICT_ORDER = ("h264",)  # A stream may not say how far frames are reordered: then as far as the standard allows.
_INDEXES_KEPT = 8  # An episode's cameras, each asked for by who judges and who stores; and files of many episodes.
_FACTS = b"mainspring.video"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PacketIndex:
    """Where a camera's packets lie, P of them in the order they are decoded.

    Args:
        codec: FFmpeg's name of the codec, such as "av1", "h264", "mjpeg", "png".
        extradata: What the decoder must be given before the first packet.
        height: Pixels.
        width: Pixels.
        frame: [P] int32, which frame of the track it shows; negative when it is only decoded on the way to one.
        offset: [P] int64, in the blob.
        size_bytes: [P] int32.
        key: [P] bool, whether decoding can begin here.
        tag: What the container calls the codec, where that decides how it is decoded; else "".
        lost: Numbers of the frames that are damaged, rising: they are let in as they are, or as the one before.
    """

    codec: str
    extradata: bytes
    height: int
    width: int
    frame: NDArray[np.int32]
    offset: NDArray[np.int64]
    size_bytes: NDArray[np.int32]
    key: NDArray[np.bool_]
    tag: str = ""
    lost: tuple[int, ...] = ()

    @property
    def frames(self) -> int:
        """Returns how many frames the track has."""
        return int(np.count_nonzero(self.frame >= 0))

    @property
    def id(self) -> str:
        """Returns the hash of what it says, however it is stored."""
        facts = f"{self.codec} {self.extradata.hex()} {self.height} {self.width} {len(self.frame)}"
        facts += f" tag {self.tag}" * bool(self.tag) + f" lost {self.lost}" * bool(self.lost)
        hasher = blake3(facts.encode())
        for values, kind in ((self.frame, "<i4"), (self.offset, "<i8"), (self.size_bytes, "<i4"), (self.key, "?")):
            hasher.update(np.ascontiguousarray(values, dtype=kind).tobytes())
        return hasher.hexdigest()

    def decoder(self, **options: str) -> Any:
        """Returns a decoder of its packets, of one thread.

        Args:
            options: More of FFmpeg's options.
        """
        order = {"strict": "strict"} if self.codec in _STRICT_ORDER else {}
        context = decoder_of(self.codec, self.extradata, tag=self.tag, options={**order, **options})
        context.width, context.height = self.width, self.height  # Some codecs leave it to the container.
        return context

    def cut(self, first_frame: int, frames: int, *, lead: int = 0) -> PacketIndex:
        """Returns the index of some of the frames, with the packets that lead to them.

        Args:
            first_frame: Becomes frame 0.
            frames: How many.
            lead: How many groups more than are needed come before, if there are as many.

        Raises:
            DamagedData: Some are missing.
        """
        wanted = (self.frame >= first_frame) & (self.frame < first_frame + frames)
        if np.count_nonzero(wanted) != frames or frames == 0:
            raise DamagedData(
                "cut a video",
                got=f"{np.count_nonzero(wanted)} of {frames} frames from {first_frame} on",
                wanted="each of them",
            )
        places = np.flatnonzero(wanted)
        keys = np.flatnonzero(self.key & (self.frame <= first_frame))
        leads = keys[keys <= places[0]]
        if len(leads) == 0:
            raise DamagedData("cut a video", got=f"no key frame at or before frame {first_frame}", wanted="one")
        here = slice(int(leads[max(0, len(leads) - 1 - lead)]), int(places[-1]) + 1)
        frame = self.frame[here] - first_frame
        frame = np.where((frame < 0) | (frame >= frames), -1, frame).astype(np.int32)
        return replace(
            self,
            frame=frame,
            offset=self.offset[here],
            size_bytes=self.size_bytes[here],
            key=self.key[here],
            lost=tuple(lost - first_frame for lost in self.lost if first_frame <= lost < first_frame + frames),
        )

    def to_parquet(self) -> bytes:
        """Returns it as a Parquet file."""
        facts: dict[str, Any] = {"codec": self.codec, "extradata": self.extradata.hex()}
        facts |= {"height": self.height, "width": self.width}
        facts |= {"tag": self.tag} if self.tag else {}
        facts |= {"lost": self.lost} if self.lost else {}
        table = pa.table(
            {"frame": self.frame, "offset": self.offset, "size_bytes": self.size_bytes, "key": self.key}
        ).replace_schema_metadata({_FACTS: json.dumps(facts)})
        sink = io.BytesIO()
        pq.write_table(table, sink, compression="zstd")
        return sink.getvalue()


def index_from_parquet(data: bytes) -> PacketIndex:
    """Returns what `PacketIndex.to_parquet` wrote.

    Args:
        data: The Parquet file.

    Raises:
        DamagedData: It is something else.
    """
    try:
        table = pq.read_table(pa.BufferReader(data))
        facts = json.loads(table.schema.metadata[_FACTS])
        columns: dict[str, Any] = {name: table[name].to_numpy() for name in table.column_names}
        told = {"extradata": bytes.fromhex(facts["extradata"]), "lost": tuple(map(int, facts.get("lost", ())))}
        return PacketIndex(**{**facts, **told}, **columns)
    except (pa.ArrowException, OSError, ValueError, KeyError, TypeError) as error:
        raise DamagedData("read a video's index", got=str(error)[:200]) from error


def index_of_file(path: Path) -> PacketIndex:
    """Returns the index of a video file; its packets stay where they are, and are only decoded to learn their order.

    Frames are numbered in the order they are shown, from 0, whatever their times. What a player would not show is no
    frame: packets that an edit list leaves out.

    Args:
        path: The file, of a format whose packets lie in it as the decoder wants them: MP4, MOV, MKV, WebM, AVI.

    Raises:
        DamagedData: It cannot be read, or has no video.
        InvalidInput: Its packets lie in it otherwise, or there are more than `PACKETS_MAX`.
    """
    try:
        status = path.stat()
    except OSError as error:
        raise DamagedData("read a video", on=path.name, got=str(error)[:200]) from error
    return _indexed(path, status.st_size, status.st_mtime_ns)


def index_of_video(video: VideoFile, steps: int, *, lead: int = 0) -> PacketIndex:
    """Returns the index of an episode's frames in a local file.

    Args:
        video: The frames.
        steps: How many steps the episode has.
        lead: See `PacketIndex.cut`; only of a video file.

    Raises:
        DamagedData: The file cannot be read, or frames are missing.
    """
    index = video.index or index_of_file(video.path).cut(video.first_frame, steps, lead=lead)
    return replace(index, lost=video.lost) if video.lost else index


@dataclass(frozen=True, slots=True, kw_only=True)
class _Found:
    """A packet: when it is shown, None when nobody says or it is not; where it lies; whether decoding can begin."""

    time: int | None
    offset: int
    size_bytes: int
    key: bool
    hidden: bool


@lru_cache(maxsize=_INDEXES_KEPT)
def _indexed(path: Path, size_bytes: int, mtime_ns: int) -> PacketIndex:
    found: list[_Found] = []
    try:
        with av.open(str(path)) as container, open(path, "rb") as file:
            if not container.streams.video:
                raise DamagedData("read a video", on=path.name, got="no video stream")
            stream = container.streams.video[0]
            context = stream.codec_context
            if context is None:
                raise DamagedData("read a video", on=path.name, got="a codec that nobody knows")
            codec = str(av.Codec(context.name, "r").canonical_name)  # "av1" of "libdav1d", "h264" of "h264".
            length_bytes = unit_length_bytes(codec, context.extradata or b"")
            for packet in container.demux(stream):
                if packet.size and packet.pos is not None and packet.pos >= 0:
                    begins = begins_group(codec, bytes(packet), length_bytes=length_bytes) if packet.is_keyframe else 0
                    found.append(_packet(file, packet, path, key=packet.is_keyframe and begins is not False))
                if len(found) > PACKETS_MAX:
                    raise InvalidInput("read a video", on=path.name, wanted=f"at most {PACKETS_MAX} packets")
            reorders = context.reorder_depth > 0 and av.Codec(context.name, "r").reorder
            untimed = container.format.name in _UNTIMED or any(each.time is None for each in found)
            if not untimed and len({each.time for each in found}) < len(found):
                raise DamagedData("read a video", on=path.name, got="two frames at one time")
            index = PacketIndex(
                codec=codec,
                extradata=context.extradata or b"",
                height=context.height,
                width=context.width,
                frame=_ranks(found),
                offset=np.array([each.offset for each in found], np.int64),
                size_bytes=np.array([each.size_bytes for each in found], np.int32),
                key=_keys(found, codec),
                tag=_tag(context, codec),
            )
            if reorders and untimed:
                index = replace(index, frame=_ranks_decoded(file, index))
    except (av.FFmpegError, ValueError, OSError) as error:
        raise DamagedData("read a video", on=path.name, got=str(error)[:200]) from error
    if not index.frames:
        raise DamagedData("read a video", on=path.name, got="no packets")
    return index


def _packet(file: BinaryIO, packet: Any, path: Path, *, key: bool) -> _Found:
    """Returns where a packet's bytes lie: FFmpeg names the block they lie in, which may have a header of its own."""
    file.seek(packet.pos)
    begin = file.read(_BLOCK_HEADER_BYTES_MAX + packet.size).find(memoryview(packet))
    if begin < 0:
        raise InvalidInput(
            "read a video",
            on=path.name,
            got="packets that do not lie in it as they are decoded",
            wanted="MP4, MOV, MKV, WebM or AVI, without compressed headers",
            next_step=f"ffmpeg -i {path.name} -c copy {path.stem}.mp4",
        )
    return _Found(
        time=packet.pts,
        offset=packet.pos + begin,
        size_bytes=packet.size,
        key=key,
        hidden=packet.is_discard,
    )


def _keys(found: list[_Found], codec: str) -> NDArray[np.bool_]:
    """Returns where decoding can begin: at the first packet for lack of a better one, and never taken on trust alone.

    A file that flags all its packets says nothing of a codec whose packets depend on each other.
    """
    keys = np.array([each.key for each in found], np.bool_)
    if av.Codec(codec, "r").intra_only:
        keys[:] = True
    elif keys.all() and begins_group(codec, b"") is None:
        keys[1:] = False
    keys[:1] = True
    return keys


def _ranks(found: list[_Found]) -> NDArray[np.int32]:
    """Returns which frame each packet shows, by its time, or by its place where nobody says; -1 where it shows none."""
    ranks = np.full(len(found), -1, np.int32)
    shown = [at for at, each in enumerate(found) if not each.hidden]
    if all(found[at].time is not None for at in shown):
        shown.sort(key=lambda at: found[at].time or 0)
    ranks[shown] = np.arange(len(shown), dtype=np.int32)
    return ranks


def _ranks_decoded(file: BinaryIO, index: PacketIndex) -> NDArray[np.int32]:
    """Returns which frame each packet shows, in the order in which a decoder gives them; -1 where it shows none."""
    context = index.decoder()
    order: list[int] = []
    for at, (offset, size_bytes) in enumerate(zip(index.offset.tolist(), index.size_bytes.tolist(), strict=True)):
        packet = packet_from(file, offset, size_bytes)
        packet.pts = packet.dts = at
        order += [frame.pts for frame in context.decode(packet)]
    order += [frame.pts for frame in context.decode(None)]
    ranks = np.full(len(index.frame), -1, np.int32)
    ranks[order] = np.arange(len(order), dtype=np.int32)
    return ranks


def _tag(context: Any, codec: str) -> str:
    if codec not in _TAGGED:
        return ""
    try:
        tag = str(context.codec_tag)
    except UnicodeDecodeError:  # No encoder is known by such a one.
        return ""
    return "" if tag in _PLAIN_TAGS else tag
