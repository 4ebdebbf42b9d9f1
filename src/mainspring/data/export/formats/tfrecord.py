"""TFRecord files of `tf.train.Example`, written without TensorFlow.

Source: tensorflow/core/lib/io/record_writer.h (framing), tensorflow/core/example/feature.proto, and protobuf's
encoding of wire types 0 and 2.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import TypeAlias

import google_crc32c
import numpy as np
from numpy.typing import NDArray

from mainspring.domain.errors import InvalidInput

RECORD_BYTES_MAX = (1 << 31) - 1  # Readers parse a record as one protobuf message.
_MASK = 0xA282EAD8
_64_BITS = 0xFFFFFFFFFFFFFFFF
_BYTES, _FLOATS, _INTEGERS = 1, 2, 3  # Field numbers of Feature's kinds.

FeatureValue: TypeAlias = list[bytes] | NDArray[np.float32] | NDArray[np.int64]


def example(features: Mapping[str, FeatureValue], *, on: str) -> bytes:
    """Returns a `tf.train.Example`.

    Args:
        features: By name, bytes, floats or whole numbers.
        on: What it is of, for messages.

    Raises:
        InvalidInput: It would be larger than readers take.
    """
    size_bytes = sum(sum(map(len, value)) if isinstance(value, list) else value.nbytes for value in features.values())
    if size_bytes > RECORD_BYTES_MAX * 0.98:
        raise InvalidInput(
            "write a record",
            on=on,
            got=f"an episode of {size_bytes >> 20} MiB",
            wanted="under 2 GiB, which is all that a record holds",
            next_step="export it as lerobot-v3 or mcap, or leave a camera out",
        )
    entries = [
        _field(1, _field(1, name.encode()) + _field(2, _feature(value))) for name, value in sorted(features.items())
    ]
    return _field(1, b"".join(entries))


def framed(record: bytes) -> bytes:
    """Returns a record as it lies in a file: length, checksum, bytes, checksum.

    Args:
        record: The bytes.
    """
    length = struct.pack("<Q", len(record))
    return b"".join((length, _checksum(length), record, _checksum(record)))


def _checksum(data: bytes) -> bytes:
    crc = int(google_crc32c.value(data))
    return struct.pack("<I", ((crc >> 15 | crc << 17) + _MASK) & 0xFFFFFFFF)


def _feature(value: FeatureValue) -> bytes:
    if isinstance(value, list):
        return _field(_BYTES, b"".join(_field(1, one) for one in value))
    if value.dtype.kind == "f":
        return _field(_FLOATS, _field(1, value.astype("<f4").tobytes()))
    return _field(_INTEGERS, _field(1, b"".join(_varint(int(number) & _64_BITS) for number in value.ravel())))


def _varint(number: int) -> bytes:
    out = bytearray()
    while number > 127:
        out.append(number & 127 | 128)
        number >>= 7
    out.append(number)
    return bytes(out)


def _field(number: int, data: bytes) -> bytes:
    return _varint(number << 3 | 2) + _varint(len(data)) + data
