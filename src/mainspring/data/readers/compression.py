"""Decompresses the chunks of logs, never into more than they declare."""

from __future__ import annotations

import bz2
import shutil
from collections.abc import Iterator
from pathlib import Path

import lz4.frame
import zstandard

from mainspring.data.readers.gone import Notes, Stretch
from mainspring.data.readers.messages import RECORD_BYTES_MAX
from mainspring.data.readers.topics import Channel, Container
from mainspring.domain.errors import DamagedData, InvalidInput, StorageFull
from mainspring.objects.files import reported

ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"
FILE_RATIO_MAX = 1_000  # Unpacked to packed; a log of zeros that reaches it is of no use to anybody.
_BLOCK_BYTES = 4 << 20
_ROOM_BYTES_MIN = 256 << 20  # Left to others on the disk.


class PackedMessages:
    """A container whose messages are Zstandard frames, as rosbag2's compression by message writes them.

    Args:
        inner: The container.
    """

    def __init__(self, inner: Container) -> None:
        self._inner = inner

    def channels(self, notes: Notes) -> tuple[Channel, ...]:
        """See `Container.channels`."""
        return self._inner.channels(notes)

    def messages(self, wanted: frozenset[int], notes: Notes) -> Iterator[tuple[int, int, bytes]]:
        """See `Container.messages`."""
        left_out: dict[int, int] = {}
        for channel, time_ns, data in self._inner.messages(wanted, notes):
            try:
                message = decompressed("zstd", data, zstandard.frame_content_size(data))
            except (ValueError, zstandard.ZstdError):
                left_out[channel] = left_out.get(channel, 0) + 1
                continue
            yield channel, time_ns, message
        if left_out:
            notes.lose(
                Stretch(
                    what=f"{sum(left_out.values())} messages were left out: they do not decompress",
                    counts=tuple(sorted(left_out.items())),
                )
            )


def decompressed_file(path: Path, folder: Path) -> Path:
    """Returns a copy of a Zstandard file without its compression.

    Args:
        path: The file.
        folder: Where the copy goes; the caller's to remove.

    Raises:
        DamagedData: It does not decompress.
        InvalidInput: It is far larger than its compression explains.
        StorageFull: There is no room.
    """
    done, most = 0, FILE_RATIO_MAX * path.stat().st_size
    with reported("decompress a file", str(path)):
        folder.mkdir(parents=True, exist_ok=True)
        room = shutil.disk_usage(folder).free - _ROOM_BYTES_MIN
        target = folder / path.stem
        number = 0
        while target.exists():
            number += 1
            target = folder / f"{number}-{path.stem}"
        try:
            with zstandard.open(path, "rb") as packed, open(target, "wb") as file:
                while block := packed.read(_BLOCK_BYTES):
                    done += len(block)
                    if done > most:
                        got = f"over {done:,} bytes out of {path.stat().st_size:,}"
                        raise InvalidInput(
                            "decompress a file", on=path.name, got=got, wanted=f"at most {FILE_RATIO_MAX} times as many"
                        )
                    if done > room:
                        got = f"{room >> 20:,} MiB of room, less than it unpacks to"
                        raise StorageFull("decompress a file", on=path.name, got=got)
                    file.write(block)
        except (zstandard.ZstdError, EOFError) as error:
            got = f"{str(error)[:120]} after {done:,} bytes"
            raise DamagedData("decompress a file", on=path.name, got=got, wanted="a whole file") from error
    return target


def decompressed(name: str, data: bytes, size: int) -> bytes:
    """Returns a chunk's bytes.

    Args:
        name: "", "none", "lz4", "zstd" or "bz2".
        data: As it lies in the file.
        size: How many bytes it must give.

    Raises:
        ValueError: It does not, or is compressed in another way.
    """
    if size > RECORD_BYTES_MAX:
        raise ValueError(f"it declares {size:,} bytes; at most {RECORD_BYTES_MAX:,} are read")
    try:  # One byte more than declared shows that more would come. Only at their end are a stream's own checks done.
        match name:
            case "" | "none":
                block = data
            case "lz4":
                frame = lz4.frame.LZ4FrameDecompressor()
                block = frame.decompress(data, max_length=size + 1)
                if not frame.eof:
                    raise ValueError("its lz4 stream does not end")
            case "zstd":
                declared = zstandard.frame_content_size(data)  # -1 when the frame does not say.
                if declared > size:
                    raise ValueError(f"{declared:,} bytes, not the {size:,} it declares")
                block = zstandard.ZstdDecompressor().decompress(data, max_output_size=size)
            case "bz2":
                stream = bz2.BZ2Decompressor()
                block = stream.decompress(data, max_length=size + 1)
                if not stream.eof:
                    raise ValueError("its bz2 stream does not end")
            case _:
                raise ValueError(f"compressed as {name[:40]!r}")
    except (zstandard.ZstdError, RuntimeError, OSError, EOFError, MemoryError) as error:
        raise ValueError(f"{name} does not decompress: {str(error)[:80]}") from error
    if len(block) != size:
        raise ValueError(f"{len(block):,} bytes, not the {size:,} it declares")
    return block
