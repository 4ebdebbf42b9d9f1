"""The one place that hands bytes to decoders: each packet lies in memory that FFmpeg may read beyond its end.

FFmpeg's bit readers look ahead and want 64 zeros behind the last byte (`AV_INPUT_BUFFER_PADDING_SIZE`). A PyAV packet
made of bytes is those bytes where they lie, with other memory behind them: then pictures depend on what lies there. One
made by its length has FFmpeg's own padding. The same holds for what a decoder must know before the first packet.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, BinaryIO

import av

DECODING = 2  # Raised by any change to how packets become pictures: part of the key of what is made of pictures.
IMAGE_PIXELS_MAX = 1 << 26  # 8,192 x 8,192; a header that lies must not take the memory.
_PADDING_BYTES = 64  # Source: AV_INPUT_BUFFER_PADDING_SIZE, libavcodec/defs.h.
_DECODERS: Mapping[str, str] = MappingProxyType({"av1": "libdav1d"})  # FFmpeg's own wants hardware.


def packet_of(data: bytes | memoryview) -> Any:
    """Returns a packet with a copy of some bytes, and padding behind them.

    Args:
        data: The packet's bytes.
    """
    packet: Any = av.Packet(len(data))
    packet.update(data)
    return packet


def packet_from(file: BinaryIO, offset: int, size_bytes: int) -> Any:
    """Returns a packet that lies in a file, with padding behind it.

    Args:
        file: The file.
        offset: Where it begins.
        size_bytes: How long it is.

    Raises:
        ValueError: The file ends before the packet does.
    """
    file.seek(offset)
    packet: Any = av.Packet(size_bytes)
    read = file.readinto(packet)  # type: ignore[attr-defined]  # Typeshed leaves it out of BinaryIO.
    if read != size_bytes:
        raise ValueError(f"{read} of a packet's {size_bytes} bytes")
    return packet


def decoder_of(
    codec: str, extradata: bytes = b"", *, tag: str = "", options: Mapping[str, str] = MappingProxyType({})
) -> Any:
    """Returns a decoder, of one thread.

    Args:
        codec: FFmpeg's name of the codec.
        extradata: What it must be told before the first packet.
        tag: What the container calls the codec, where that decides how it is decoded.
        options: More of FFmpeg's options.
    """
    context: Any = av.CodecContext.create(_DECODERS.get(codec, codec), "r")
    context.thread_count = 1  # Episodes are decoded side by side; threads inside would compete.
    if extradata:
        context.extradata = extradata + bytes(_PADDING_BYTES)  # PyAV leaves what is behind it as it finds it:
        context.extradata = extradata  # now these zeros, as memory that shrinks keeps its begin.
    if tag:
        context.codec_tag = tag
    context.options = {"max_pixels": str(IMAGE_PIXELS_MAX), **options}
    return context
