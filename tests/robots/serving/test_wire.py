"""What travels: arrays as openpi packs them, and nothing beyond the bounds."""

from __future__ import annotations

import functools
import pickle
import struct
from typing import Any

import hypothesis.strategies as st
import msgpack
import numpy as np
import pytest
from hypothesis import given, settings

from mainspring.domain.errors import InvalidMessage
from mainspring.robots.serving.wire import Refusal, pack, read_refusal, refusal, unpack


def openpi_packs(value: Any) -> Any:
    """As openpi-client 0.1.2 does."""
    if isinstance(value, np.ndarray):
        return {b"__ndarray__": True, b"data": value.tobytes(), b"dtype": value.dtype.str, b"shape": value.shape}
    return {b"__npgeneric__": True, b"data": value.item(), b"dtype": value.dtype.str}


openpi_packb = functools.partial(msgpack.packb, default=openpi_packs)

ARRAYS = [
    np.arange(24, dtype=np.uint8).reshape(2, 3, 4),
    np.linspace(0, 1, 7),
    np.zeros((0, 3), np.float32),
    np.array([1, -2], np.float16),
    np.array(3, np.int64),
    np.array([True, False]),
    np.array(["pick", "place it"]),
    np.arange(6, dtype=">i4"),
]


@pytest.mark.parametrize("array", ARRAYS, ids=lambda array: f"{array.dtype.str}{array.shape}")
def test_arrays_arrive_as_they_were_sent_and_in_the_bytes_of_openpi(array: np.ndarray[Any, Any]) -> None:
    message = {"observation": {"a": array}, "prompt": "pick up the cup", "step": np.int64(7)}
    assert pack(message) == openpi_packb(message)
    read = unpack(pack(message))
    np.testing.assert_array_equal(read["observation"]["a"], array)
    assert read["observation"]["a"].dtype == array.dtype
    assert (read["prompt"], read["step"]) == ("pick up the cup", 7)
    assert isinstance(read["step"], np.int64)


def _array(**changes: Any) -> bytes:
    parts = {b"__ndarray__": True, b"data": b"\0" * 8, b"dtype": "<f4", b"shape": [2]}
    packed: bytes = msgpack.packb(parts | {name.encode(): value for name, value in changes.items()})
    return packed


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xc1",
        b"not msgpack at all",
        pickle.dumps({"state": 1}),
        msgpack.packb({"a": 1})[:-1],
        msgpack.packb({"a": 1}) + b"\0",
        msgpack.packb({1: 2}),
        msgpack.packb(msgpack.ExtType(5, b"123")),
        msgpack.packb([0] * 10_001),
        msgpack.packb([[0] * 9_999] * 11),
        msgpack.packb("x" * 70_000),
        b"\x91" * 5_000 + b"\xc0",
        b"\xdd\xff\xff\xff\xff",
        _array(dtype="|O"),
        _array(dtype="<c8"),
        _array(dtype="V8"),
        _array(dtype="f4,f4"),
        _array(dtype=7),
        _array(dtype="<U0"),
        _array(shape=[3]),
        _array(shape=[-2]),
        _array(shape=[2**62, 2**62]),
        _array(shape=[0] * 9, data=b""),
        _array(shape=2),
        _array(shape=[True, 2]),
        _array(data="\0" * 8),
        msgpack.packb({b"__npgeneric__": True, b"data": [1, 2], b"dtype": "<f4"}),
        msgpack.packb({b"__npgeneric__": True, b"data": "x", b"dtype": "<f4"}),
        msgpack.packb({b"__npgeneric__": True, b"data": "9" * 30, b"dtype": "<i4"}),
    ],
)
def test_bytes_that_are_no_bounded_message_are_refused_by_name(data: bytes) -> None:
    with pytest.raises(InvalidMessage):
        unpack(data)


@settings(max_examples=200)
@given(st.binary(max_size=200))
def test_any_bytes_are_a_message_or_refused(data: bytes) -> None:
    try:
        unpack(data)
    except InvalidMessage:
        return


@settings(max_examples=100)
@given(st.integers(0, 300), st.integers(0, 255))
def test_a_damaged_message_is_a_message_or_refused(at: int, byte: int) -> None:
    whole = bytearray(pack({"a": np.arange(12, dtype=np.float32).reshape(3, 4), "b": {"c": np.float64(1)}}))
    whole[at % len(whole)] = byte
    try:
        unpack(bytes(whole))
    except InvalidMessage:
        return


def test_what_a_message_cannot_hold_is_refused_when_it_is_written() -> None:
    for value in (object(), np.array([object()]), np.zeros(2, np.complex64), 2**70):
        with pytest.raises(InvalidMessage):
            pack({"a": value})


def test_arrays_look_into_the_message_and_cannot_be_written_to() -> None:
    data = pack({"a": np.arange(4, dtype=np.uint8)})
    assert not unpack(data)["a"].flags.writeable


def test_refusals_are_read_by_name_and_those_of_others_as_they_are() -> None:
    for reason in Refusal:
        read = read_refusal(refusal(reason, "a: b"))
        assert (read.reason, read.text) == (reason, "a: b")
    strange = read_refusal("Traceback (most recent call last): ...")
    assert (strange.reason, strange.text) == (None, "Traceback (most recent call last): ...")


def test_huge_lengths_without_bytes_behind_them_are_refused_at_once() -> None:
    for head in (b"\xdd", b"\xdf", b"\xc6", b"\xdb"):
        with pytest.raises(InvalidMessage):
            unpack(head + struct.pack(">I", 2**32 - 1))
