"""What travels between a robot and a policy server: openpi's messages, and ours beside them under one key.

A message is msgpack with NumPy arrays in it, read within bounds and never by pickle: a first one of metadata from the
server, then observations one way and chunks of actions the other. A text frame is a refusal: its name, a colon, a
sentence. Needs NumPy and msgpack alone, as the client does. What an observation must hold is the policy's to say.
Source: openpi-client 0.1.2, `msgpack_numpy.py` and `websocket_client_policy.py`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import Enum
from typing import Any, final

import msgpack
import numpy as np

from mainspring.domain.errors import InvalidMessage

OURS = "mainspring"  # The one key of a message below which all is ours.
VALUES_MAX = 100_000  # In all lists and maps of a message: an observation has tens, and a Python object costs 60 bytes.
LENGTH_MAX = 10_000  # Of one list or map.
TEXT_BYTES_MAX = 64 << 10  # A prompt is a sentence.
AXES_MAX = 8  # A video from several cameras has five.
_KINDS = frozenset("biufSU")  # Truth, whole and real numbers, texts: what openpi's clients send, and no objects.


class Refusal(str, Enum):
    """Why a request has no chunk. All but the first two may be answered by another replica."""

    BAD_REQUEST = "bad_request"
    UNSAFE_ACTION = "unsafe_action"
    DEADLINE_MISSED = "deadline_missed"
    TOO_MANY_REQUESTS = "too_many_requests"
    DRAINING = "draining"
    POLICY_FAILED = "policy_failed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Refused:
    """A text frame, read.

    Args:
        reason: None where it is that of another server, which has no names.
        text: The sentence.
    """

    reason: Refusal | None
    text: str


def refusal(reason: Refusal, text: str) -> str:
    """Returns the text frame of a refusal."""
    return f"{reason.value}: {text}"


def read_refusal(frame: str) -> Refused:
    """Returns what a text frame says."""
    name, _, text = frame.partition(": ")
    known = {each.value: each for each in Refusal}
    return Refused(reason=known[name], text=text) if name in known else Refused(reason=None, text=frame)


def pack(value: Any) -> bytes:
    """Returns a message.

    Args:
        value: Maps, lists, texts, numbers and NumPy arrays of numbers or texts.

    Raises:
        InvalidMessage: It holds something else.
    """
    try:
        packed: bytes = msgpack.packb(value, default=_packed_array)
    except (TypeError, ValueError, OverflowError) as error:
        raise InvalidMessage("write a message", got=str(error), wanted="maps, texts, numbers and arrays") from error
    return packed


def _packed_array(value: Any) -> Any:
    if isinstance(value, (np.ndarray, np.generic)) and value.dtype.kind in _KINDS:
        if isinstance(value, np.ndarray):
            shape = value.shape
            return {b"__ndarray__": True, b"data": value.tobytes(), b"dtype": value.dtype.str, b"shape": shape}
        return {b"__npgeneric__": True, b"data": value.item(), b"dtype": value.dtype.str}
    raise TypeError(f"{type(value).__name__} {getattr(value, 'dtype', '')}".strip())


def unpack(data: bytes) -> Any:
    """Returns what a message holds; its arrays look into `data` and cannot be written to.

    Args:
        data: Whatever came; its length is bounded by who received it.

    Raises:
        InvalidMessage: It is no message, or one of more parts than any robot sends.
    """
    count = _Count()
    try:
        return msgpack.unpackb(
            data,
            object_hook=count.map,
            list_hook=count.list,
            max_array_len=LENGTH_MAX,
            max_map_len=LENGTH_MAX,
            max_ext_len=0,
            max_str_len=TEXT_BYTES_MAX,
            strict_map_key=True,
        )
    except InvalidMessage:
        raise
    except (ValueError, TypeError, OverflowError, RecursionError, msgpack.UnpackException) as error:
        raise InvalidMessage(
            "read a message", got=str(error)[:200] or type(error).__name__, wanted="msgpack"
        ) from error


@final
class _Count:
    """Counts the values of a message while it is read."""

    def __init__(self) -> None:
        self._values = 0

    def list(self, values: list[Any]) -> list[Any]:
        self._add(len(values))
        return values

    def map(self, values: dict[Any, Any]) -> Any:
        self._add(len(values))
        if b"__ndarray__" in values:
            return _array(values)
        if b"__npgeneric__" in values:
            return _number(values)
        return values

    def _add(self, count: int) -> None:
        self._values += count + 1
        if self._values > VALUES_MAX:
            raise InvalidMessage("read a message", got=f"over {VALUES_MAX} values", wanted="fewer")


def _array(values: dict[Any, Any]) -> np.ndarray[Any, Any]:
    dtype, shape, data = _dtype(values.get(b"dtype")), values.get(b"shape"), values.get(b"data")
    axes = shape if isinstance(shape, list) else []
    known = all(type(length) is int and 0 <= length < 2**40 for length in axes)
    if not isinstance(shape, list) or not known or len(axes) > AXES_MAX or not isinstance(data, bytes):
        raise InvalidMessage("read an array", got=f"shape {str(shape)[:80]}", wanted=f"up to {AXES_MAX} lengths")
    if math.prod(axes) * dtype.itemsize != len(data):
        raise InvalidMessage(
            "read an array", got=f"{len(data)} bytes", wanted=f"{math.prod(axes)} times {dtype.itemsize}"
        )
    return np.ndarray(shape=tuple(axes), dtype=dtype, buffer=data)


def _number(values: dict[Any, Any]) -> Any:
    data = values.get(b"data")
    if not isinstance(data, (bool, int, float, str, bytes)):
        raise InvalidMessage("read a number", got=type(data).__name__, wanted="one value")
    return _dtype(values.get(b"dtype")).type(data)


def _dtype(name: object) -> np.dtype[Any]:
    dtype = np.dtype(name) if isinstance(name, str) and len(name) <= 16 else np.dtype(object)
    if dtype.kind not in _KINDS or not dtype.itemsize:
        raise InvalidMessage("read an array", got=f"type {str(name)[:40]}", wanted="numbers or texts")
    return dtype
