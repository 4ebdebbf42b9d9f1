"""What becomes of a camera's pictures by rule, before they are written anywhere."""

from __future__ import annotations

import io
import struct

from mainspring.domain.errors import Unavailable
from mainspring.robots.logs.rules import CameraUse

BLUR_FACTOR = 8  # A face of 60 pixels is left with 8: too few for people and programs to know it (ISO/IEC 29794-5: 90).
TYPE = "sensor_msgs/msg/CompressedImage"
ENCODING = "cdr"
DEFINITION = b"""std_msgs/Header header
string format
uint8[] data
================================================================================
MSG: std_msgs/Header
builtin_interfaces/Time stamp
string frame_id
================================================================================
MSG: builtin_interfaces/Time
int32 sec
uint32 nanosec
"""
_QUALITY = 80  # What little is left of a blurred picture takes no room.


def kept(picture: bytes, use: CameraUse) -> bytes | None:
    """Returns a JPEG or PNG picture as it may be kept, None where it may not.

    A picture that cannot be blurred (of another kind, damaged) is not kept: nothing private is written by mistake.

    Raises:
        Unavailable: Pictures are to be blurred, and this robot cannot.
    """
    match use:
        case CameraUse.KEEP:
            return picture
        case CameraUse.DROP:
            return None
        case CameraUse.BLUR:
            return _blurred(picture)


def image_message(time_ns: int, camera: str, picture: bytes) -> bytes:
    """Returns a message of ROS 2 (CDR, little-endian) that holds a picture; every viewer of logs knows it."""
    seconds, nanoseconds = divmod(time_ns, 1_000_000_000)
    kind = b"png\0" if picture.startswith(b"\x89PNG") else b"jpeg\0"
    message = bytearray(b"\0\1\0\0") + struct.pack("<iI", seconds, nanoseconds)
    for part in (camera.encode() + b"\0", kind, picture):
        message += bytes(-(len(message) - 4) % 4) + struct.pack("<I", len(part)) + part
    return bytes(message)


def _blurred(picture: bytes) -> bytes | None:
    try:
        from PIL import Image
    except ImportError as error:
        raise Unavailable("blur a camera", got="no package 'pillow'", next_step="pip install pillow") from error
    try:
        with Image.open(io.BytesIO(picture)) as opened:
            size = opened.size
            small = (max(1, size[0] // BLUR_FACTOR), max(1, size[1] // BLUR_FACTOR))
            opened.draft("RGB", small)  # A JPEG is decoded at an eighth at once: the rest is never looked at.
            blurred = opened.convert("RGB").resize(small, Image.Resampling.BOX).resize(size, Image.Resampling.BILINEAR)
            sink = io.BytesIO()
            blurred.save(sink, "PNG" if picture.startswith(b"\x89PNG") else "JPEG", quality=_QUALITY)
            return sink.getvalue()
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError):
        return None
