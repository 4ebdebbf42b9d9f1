"""A camera's frames as packets: where each lies in a blob, and what its decoder must know.

The packets of an MP4 of a source are read where they are, inside the source's own file.
"""

from __future__ import annotations

import io
import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, BinaryIO

import av
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from blake3 import blake3
from numpy.typing import NDArray

from mainspring.data.episode import VideoFile
from mainspring.domain.errors import DamagedData, InvalidInput

PACKETS_MAX = 10_000_000
_BLOCK_HEADER_BYTES_MAX = 64  # Matroska's block group: some ids and sizes of up to 8 bytes each, track, time, flags.
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
    """

    codec: str
    extradata: bytes
    height: int
    width: int
    frame: NDArray[np.int32]
    offset: NDArray[np.int64]
    size_bytes: NDArray[np.int32]
    key: NDArray[np.bool_]

    @property
    def frames(self) -> int:
        """Returns how many frames the track has."""
        return int(np.count_nonzero(self.frame >= 0))

    @property
    def id(self) -> str:
        """Returns the hash of what it says, however it is stored."""
        facts = f"{self.codec} {self.extradata.hex()} {self.height} {self.width} {len(self.frame)}"
        hasher = blake3(facts.encode())
        for values, kind in ((self.frame, "<i4"), (self.offset, "<i8"), (self.size_bytes, "<i4"), (self.key, "?")):
            hasher.update(np.ascontiguousarray(values, dtype=kind).tobytes())
        return hasher.hexdigest()

    def cut(self, first_frame: int, frames: int) -> PacketIndex:
        """Returns the index of some of the frames, with the packets that lead to them.

        Args:
            first_frame: Becomes frame 0.
            frames: How many.

        Raises:
            DamagedData: Some are missing.
        """
        wanted = (self.frame >= first_frame) & (self.frame < first_frame + frames)
        if np.count_nonzero(wanted) != frames or frames == 0:
            got = f"{np.count_nonzero(wanted)} of {frames} frames from {first_frame} on"
            raise DamagedData("cut a video", got=got, wanted="each of them")
        places = np.flatnonzero(wanted)
        keys = np.flatnonzero(self.key & (self.frame <= first_frame))
        leads = keys[keys <= places[0]]
        if len(leads) == 0:
            raise DamagedData("cut a video", got=f"no key frame at or before frame {first_frame}", wanted="one")
        here = slice(int(leads[-1]), int(places[-1]) + 1)
        frame = self.frame[here] - first_frame
        frame = np.where((frame < 0) | (frame >= frames), -1, frame).astype(np.int32)
        return replace(
            self, frame=frame, offset=self.offset[here], size_bytes=self.size_bytes[here], key=self.key[here]
        )

    def to_parquet(self) -> bytes:
        """Returns it as a Parquet file."""
        facts = {"codec": self.codec, "extradata": self.extradata.hex(), "height": self.height, "width": self.width}
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
        table = pq.read_table(io.BytesIO(data))
        facts = json.loads(table.schema.metadata[_FACTS])
        columns: dict[str, Any] = {name: table[name].to_numpy() for name in table.column_names}
        return PacketIndex(**{**facts, "extradata": bytes.fromhex(facts["extradata"])}, **columns)
    except (pa.ArrowException, OSError, ValueError, KeyError, TypeError) as error:
        raise DamagedData("read a video's index", got=str(error)[:200]) from error


def index_of_file(path: Path) -> PacketIndex:
    """Returns the index of a video file; its packets are not decoded, and stay where they are.

    Frames are numbered in the order they are shown, from 0, whatever their times.

    Args:
        path: The file, of a format whose packets lie in it as the decoder wants them: MP4, MOV, MKV, WebM.

    Raises:
        DamagedData: It cannot be read, or has no video.
        InvalidInput: Its packets lie in it otherwise, or there are more than `PACKETS_MAX`.
    """
    rows: list[tuple[int, int, int, bool]] = []
    try:
        with av.open(str(path)) as container, open(path, "rb") as file:
            if not container.streams.video:
                raise DamagedData("read a video", on=path.name, got="no video stream")
            stream = container.streams.video[0]
            context = stream.codec_context
            codec, extradata, height, width = context.name, context.extradata or b"", context.height, context.width
            for packet in container.demux(stream):
                if packet.size and packet.pts is not None and packet.pos is not None and packet.pos >= 0:
                    rows.append((packet.pts, _offset(file, packet, path), packet.size, packet.is_keyframe))
                if len(rows) > PACKETS_MAX:
                    raise InvalidInput("read a video", on=path.name, wanted=f"at most {PACKETS_MAX} packets")
    except (av.FFmpegError, ValueError, OSError) as error:
        raise DamagedData("read a video", on=path.name, got=str(error)[:200]) from error
    if not rows:
        raise DamagedData("read a video", on=path.name, got="no packets")
    shown, offset, size_bytes, key = zip(*rows, strict=True)
    rank = np.empty(len(rows), np.int32)
    rank[np.argsort(np.array(shown), kind="stable")] = np.arange(len(rows), dtype=np.int32)
    return PacketIndex(
        codec=_codec(codec),
        extradata=extradata,
        height=height,
        width=width,
        frame=rank,
        offset=np.array(offset, np.int64),
        size_bytes=np.array(size_bytes, np.int32),
        key=np.array(key, np.bool_),
    )


def _offset(file: BinaryIO, packet: Any, path: Path) -> int:
    """Returns where a packet's bytes begin: FFmpeg names the block they lie in, which may have a header of its own."""
    file.seek(packet.pos)
    begin = file.read(_BLOCK_HEADER_BYTES_MAX + packet.size).find(memoryview(packet))
    if begin < 0:
        got = "packets that do not lie in it as they are decoded"
        raise InvalidInput("read a video", on=path.name, got=got, wanted="MP4, MOV, MKV or WebM")
    return int(packet.pos + begin)


def index_of_video(video: VideoFile, steps: int) -> PacketIndex:
    """Returns the index of an episode's frames in a local file.

    Args:
        video: The frames.
        steps: How many steps the episode has.

    Raises:
        DamagedData: The file cannot be read, or frames are missing.
    """
    return index_of_file(video.path).cut(video.first_frame, steps) if video.index is None else video.index


def _codec(decoder: str) -> str:
    """Returns the codec a decoder of FFmpeg is for: "av1" for "libdav1d", "h264" for "h264"."""
    return str(av.Codec(decoder, "r").canonical_name)
