"""Decompresses the chunks of logs, never into more than they declare."""

from __future__ import annotations

import bz2

import lz4.frame
import zstandard

from mainspring.data.readers.messages import RECORD_BYTES_MAX


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
