"""Tells from a packet's own bytes whether decoding can begin at it: containers flag too many, or all of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType

_RECOVERY_POINT = 6  # Source: ITU-T H.264 (2024), D.1.
_PLACEHOLDER_BYTES_MAX = (
    19  # Source: MAX_NVOP_SIZE, libavcodec/h263dec.c: what "packed" streams have behind two pictures.
)
_UNITS_MAX = 4_096  # Slices and messages of a packet; the first slice decides.


def begins_group(codec: str, data: bytes, *, length_bytes: int = 0) -> bool | None:
    """Returns whether a packet begins a group of pictures, or None when its codec is not known here.

    Args:
        codec: FFmpeg's name.
        data: The packet.
        length_bytes: How many bytes tell the length of each unit (h264, hevc); 0 where start codes part them.
    """
    if codec in _BY_UNITS:
        return _BY_UNITS[codec](data, length_bytes)
    by_bytes = _BY_BYTES.get(codec)
    return None if by_bytes is None else by_bytes(data)


def begins_closed(codec: str, data: bytes, *, length_bytes: int = 0) -> bool:
    """Returns whether nothing behind a packet that begins a group can refer to what lies before it.

    Source: ITU-T H.264 (2024), table 7-1; H.265 (2024), table 7-1.

    Args:
        codec: FFmpeg's name.
        data: The packet.
        length_bytes: See `begins_group`.
    """
    if codec == "h264":
        return any(unit[0] & 31 == 5 for unit in _units(data, length_bytes) if unit)
    if codec == "hevc":
        return any((unit[0] >> 1) & 63 in (19, 20) for unit in _units(data, length_bytes) if unit)
    return True


def unit_length_bytes(codec: str, extradata: bytes) -> int:
    """Returns how many bytes tell the length of each unit in packets of h264 and hevc; 0 where start codes part them.

    Source: ISO/IEC 14496-15, 5.3.3.1 and 8.3.3.1.

    Args:
        codec: FFmpeg's name.
        extradata: What its decoder must be told first.
    """
    place = {"h264": 4, "hevc": 21}.get(codec)
    if place is None or len(extradata) <= place or extradata[0] != 1:
        return 0
    return (extradata[place] & 3) + 1


def _units(data: bytes, length_bytes: int) -> Iterator[bytes]:
    """Yields the first bytes of each unit: enough for headers and short messages."""
    place = 0
    for _ in range(_UNITS_MAX):
        if length_bytes:
            begin = place + length_bytes
            end = begin + int.from_bytes(data[place:begin])
        else:
            begin = data.find(b"\0\0\1", place) + 3
            end = begin
            if begin < 3:
                return
        if begin >= len(data):
            return
        if unit := data[begin : begin + 256 if not length_bytes else min(end, begin + 256)]:
            yield unit  # A hole of zeros says units of no length.
        place = end


def _h264(data: bytes, length_bytes: int) -> bool:
    """Returns it for h264; a recovery point is a begin where the file told the decoder its parameters, or it does.

    Source: ITU-T H.264 (2024), table 7-1.
    """
    recovers, told = False, length_bytes > 0
    for unit in _units(data, length_bytes):
        kind = unit[0] & 31
        told = told or kind == 7
        if kind == 6:
            recovers = recovers or _recovers_at_once(unit)
        elif 1 <= kind <= 5:
            return kind == 5 or (kind == 1 and recovers and told)
    return False


def _recovers_at_once(unit: bytes) -> bool:
    """Returns whether messages hold a recovery point after which no frame is wrong: a count of 0, which is one set bit.

    Source: ITU-T H.264 (2024), 7.3.2.3.1 and D.1.8.
    """
    place = 1
    while place + 2 < len(unit):
        numbers = []
        for _ in range(2):  # Its type and its size, each as bytes of 255 and a last one.
            number = 0
            while place < len(unit) and unit[place] == 255:
                number, place = number + 255, place + 1
            if place >= len(unit):
                return False
            numbers.append(number + unit[place])
            place += 1
        kind, size = numbers
        if kind == _RECOVERY_POINT:
            return place < len(unit) and unit[place] >= 128
        place += size
    return False


def _hevc(data: bytes, length_bytes: int) -> bool:
    """Source: ITU-T H.265 (2024), table 7-1."""
    kinds = ((unit[0] >> 1) & 63 for unit in _units(data, length_bytes))
    return next((16 <= kind <= 23 for kind in kinds if kind < 32), False)


def _mpeg4(data: bytes) -> bool:
    """Source: ISO/IEC 14496-2, 6.2.5: the first picture's coding type is 0; shorter ones only stand for one before."""
    place = data.find(b"\0\0\1\xb6") + 4
    return 4 <= place < len(data) and data[place] >> 6 == 0 and len(data) > _PLACEHOLDER_BYTES_MAX


def _mpeg2(data: bytes) -> bool:
    """Source: ITU-T H.262, 6.2.3: the first picture's coding type is 1."""
    place = data.find(b"\0\0\1\0") + 4
    return 4 <= place < len(data) - 1 and (data[place + 1] >> 3) & 7 == 1


def _vp8(data: bytes) -> bool:
    """Source: RFC 6386, 9.1."""
    return bool(data) and data[0] & 1 == 0


def _vp9(data: bytes) -> bool:
    """Source: VP9 bitstream specification 0.6, 6.2: a frame that is no repetition, and of type 0."""
    if not data or data[0] >> 6 != 2:
        return False
    reserved = data[0] & 0x30 == 0x30  # Profile 3 has one more bit.
    return data[0] & (0x06 if reserved else 0x0C) == 0


_BY_UNITS: Mapping[str, Callable[[bytes, int], bool]] = MappingProxyType({"h264": _h264, "hevc": _hevc})
_BY_BYTES: Mapping[str, Callable[[bytes], bool]] = MappingProxyType(
    {"mpeg4": _mpeg4, "mpeg1video": _mpeg2, "mpeg2video": _mpeg2, "vp8": _vp8, "vp9": _vp9}
)
