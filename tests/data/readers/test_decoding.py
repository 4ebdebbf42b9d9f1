"""Whatever the type and the values: what we decode is what another library encoded, or decodes."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mcap.reader import make_reader
from mcap_ros2.decoder import DecoderFactory
from pyulog import ULog
from rosbags.highlevel import AnyReader
from rosbags.interfaces import Nodetype
from rosbags.typesys import Stores, get_types_from_msg, get_typestore

from mainspring.data.readers.definitions import ros_type
from mainspring.data.readers.layout import LayoutDecoder
from mainspring.data.readers.log import open_log
from mainspring.data.readers.messages import Decoded

from .logs import ROBOTS, everything, read

NUMBERS = {
    "bool": st.booleans(),
    "int8": st.integers(-128, 127),
    "uint8": st.integers(0, 255),
    "int16": st.integers(-(2**15), 2**15 - 1),
    "uint16": st.integers(0, 2**16 - 1),
    "int32": st.integers(-(2**31), 2**31 - 1),
    "uint32": st.integers(0, 2**32 - 1),
    "int64": st.integers(-(2**63), 2**63 - 1),
    "uint64": st.integers(0, 2**64 - 1),
    "float32": st.floats(width=32, allow_nan=False),
    "float64": st.floats(allow_nan=False),
}
OUTER = "pkg/msg/Outer"
BASES = [*NUMBERS, "string", "Inner", "Time"]
TEXT = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=6)


@st.composite
def definitions(draw: st.DrawFn) -> str:
    """Draws the definition of a type, which may hold a struct of its own and times."""
    lines = [[], []]  # type: list[list[str]]
    for which, names in enumerate((BASES, [base for base in BASES if base != "Inner"])):
        for number in range(draw(st.integers(1, 6))):
            base = draw(st.sampled_from(names))
            suffix = draw(st.sampled_from(["", "", "[]", "[3]", "[1]"]))
            name = {"Inner": "pkg/Inner", "Time": "builtin_interfaces/Time"}.get(base, base)
            lines[which].append(f"{name}{suffix} f{number}")
    times = "int32 sec\nuint32 nanosec"
    rule = "=" * 80
    return "\n".join([*lines[0], rule, "MSG: pkg/Inner", *lines[1], rule, "MSG: builtin_interfaces/Time", times])


def drawn(draw: st.DrawFn, store: Any, description: Any) -> Any:
    kind, detail = description
    if kind == Nodetype.BASE:
        return draw(TEXT if detail[0] == "string" else NUMBERS[detail[0]])
    if kind == Nodetype.NAME:
        if detail == "builtin_interfaces/msg/Time":  # Seconds are unsigned in ROS 1 and signed in ROS 2.
            return store.types[detail](sec=draw(st.integers(0, 2**31 - 1)), nanosec=draw(NUMBERS["uint32"]))
        fields = store.fielddefs[detail][1]
        return store.types[detail](**{name: drawn(draw, store, inner) for name, inner in fields})
    count = detail[1] if kind == Nodetype.ARRAY else draw(st.integers(0, 3))
    values = [drawn(draw, store, detail[0]) for _ in range(count)]
    if detail[0][0] == Nodetype.BASE and detail[0][1][0] != "string":
        return np.array(values, dtype=np.dtype(detail[0][1][0]))
    return values


def flat(value: Any, path: str, found: dict[str, Any]) -> None:
    """Lists what the fields of a message must be."""
    if hasattr(value, "__dataclass_fields__"):
        names = [name for name in value.__dataclass_fields__ if name != "__msgtype__"]
        if names == ["sec", "nanosec"] and path:
            found[path] = value.sec * 10**9 + value.nanosec
            return
        for name in names:
            flat(getattr(value, name), f"{path}.{name}" if path else name, found)
    elif isinstance(value, list) and value and hasattr(value[0], "__dataclass_fields__"):
        flat(value[0], f"{path}[0]", found)
    elif not (isinstance(value, list) and not value):
        found[path] = value


def same(got: Any, wanted: Any) -> bool:
    if isinstance(wanted, np.ndarray) and isinstance(got, bytes):
        return got == wanted.tobytes()
    if isinstance(wanted, list):
        return bool(got == tuple(wanted))
    return bool(np.array_equal(got, wanted))


@pytest.mark.slow
@settings(max_examples=150)
@given(data=st.data(), message_format=st.sampled_from(["cdr", "ros1"]), little=st.booleans())
def test_message_of_any_type_decodes_to_what_was_encoded(
    data: st.DataObject, message_format: Literal["cdr", "ros1"], little: bool
) -> None:
    text = data.draw(definitions())
    store = get_typestore(Stores.EMPTY)
    store.register(get_types_from_msg(text, OUTER))
    make = st.composite(lambda draw: drawn(draw, store, (Nodetype.NAME, OUTER)))
    messages: list[Any] = [data.draw(make()) for _ in range(3)]
    if message_format == "cdr":
        encoded = [bytes(store.serialize_cdr(message, OUTER, little_endian=little)) for message in messages]
    else:
        encoded = [bytes(store.serialize_ros1(message, OUTER)) for message in messages]
    decoder = LayoutDecoder(root=ros_type(OUTER, text, "ros2msg", message_format), format=message_format)
    for message, content in zip(messages, encoded, strict=True):
        wanted: dict[str, Any] = {}
        flat(message, "", wanted)
        decoded: Decoded = decoder.columns(tuple(wanted))([content, content])
        (part,) = decoded.parts
        for path, value in wanted.items():
            assert same(part.fields[path][0], value), (path, part.fields[path], value)
            assert same(part.fields[path][1], value)
    alike = decoder.columns(())(encoded * 2)
    assert sum(len(part.rows) for part in alike.parts) == 6


@pytest.mark.skipif(not ROBOTS.exists(), reason="the shared robot recordings are not here")
@pytest.mark.parametrize("name", ["pr1012_camera_info.bag", "example-lz4.bag", "example-bz2.bag"])
@pytest.mark.slow
def test_real_ros1_bag_reads_as_rosbags_reads_it(name: str) -> None:
    check_against_rosbags(ROBOTS / "logs" / name)


@pytest.mark.skipif(not ROBOTS.exists(), reason="the shared robot recordings are not here")
@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [
        "rosbag2_tests_mcap_cdr_test_cdr_test_0.mcap",
        "rosbag2_py_test_mcap_talker_talker.mcap",
        "rosbag2_py_test_mcap_wbag_wbag_3.mcap",
    ],
)
def test_real_ros2_bag_reads_as_mcap_ros2_reads_it(name: str) -> None:
    log = open_log(ROBOTS / "logs" / name)
    wanted = everything(log)
    ours: dict[str, list[tuple[int, dict[str, Any]]]] = {topic: [] for topic in wanted}
    for batch in log.batches(wanted):
        for row in range(len(batch)):
            values = {path: column[row] for path, column in batch.fields.items()}
            ours[batch.topic].append((int(batch.time_ns[row]), values))
    with open(ROBOTS / "logs" / name, "rb") as file:
        for _, channel, message, decoded in make_reader(
            file, decoder_factories=[DecoderFactory()]
        ).iter_decoded_messages():
            time_ns, values = ours[channel.topic].pop(0)
            assert time_ns == message.log_time
            for path, value in values.items():
                assert plain(value) == plain(follow(decoded, path)), path
    assert not any(ours.values())
    assert log.damage == ""


def follow(message: Any, path: str) -> Any:
    for name in path.replace("[0]", ".[0]").split("."):
        message = message[0] if name == "[0]" else getattr(message, name)
    if hasattr(message, "nanosec"):
        return message.sec * 10**9 + message.nanosec
    return message


def plain(value: Any) -> Any:
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    if isinstance(value, bytes):
        return list(value)
    return value.tolist() if isinstance(value, (np.ndarray, np.generic)) else value


def check_against_rosbags(path: Path) -> None:
    log = open_log(path)
    wanted = everything(log)
    ours: dict[str, list[tuple[int, dict[str, Any]]]] = {topic: [] for topic in wanted}
    for batch in log.batches(wanted):
        for row in range(len(batch)):
            values = {name: column[row] for name, column in batch.fields.items()}
            ours[batch.topic].append((int(batch.time_ns[row]), values))
    with AnyReader([path]) as reader:
        for connection, time_ns, data in reader.messages():
            queue = ours[connection.topic]
            place = next(place for place, (logged, _) in enumerate(queue[:5]) if logged == time_ns)
            _, values = queue.pop(place)
            decoded = reader.deserialize(data, connection.msgtype)
            for name, value in values.items():
                assert plain(value) == plain(follow(decoded, name)), name
    assert not any(ours.values())
    assert log.damage == ""


@pytest.mark.skipif(not ROBOTS.exists(), reason="the shared robot recordings are not here")
@pytest.mark.slow
@pytest.mark.parametrize("name", ["sample_log_small.ulg", "sample_appended_multiple.ulg"])
def test_real_ulog_reads_as_pyulog_reads_it(name: str) -> None:
    path = ROBOTS / "logs" / name
    theirs = {
        f"{found.name}/{found.multi_id}" if found.multi_id else found.name: found.data
        for found in ULog(str(path)).data_list
    }
    ours = {batch.topic: batch.fields for batch in read(path, {topic: tuple(data) for topic, data in theirs.items()})}
    assert ours.keys() == theirs.keys() == {batch.topic for batch in read(path)}
    for topic, data in theirs.items():
        for field, values in data.items():
            assert np.array_equal(ours[topic][field], values, equal_nan=values.dtype.kind == "f"), (topic, field)
