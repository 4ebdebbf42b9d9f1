from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
from mcap.writer import CompressionType
from rosbags.rosbag2 import StoragePlugin

from mainspring.data.readers.log import MessageField, Topic, open_log
from mainspring.domain.errors import DamagedData, InvalidInput, NotFound

from .logs import (
    IMAGE_KIND,
    JOINT_KIND,
    JOINTS,
    PERIOD_NS,
    Kind,
    column,
    everything,
    image,
    joint_state,
    positions,
    protobuf_descriptors,
    protobuf_message,
    read,
    robot_bag1,
    robot_bag2,
    robot_mcap,
    robot_ulog,
    ulog_record,
    write_mcap,
)

TIMES = np.arange(50) * PERIOD_NS


def topics(path: Path) -> dict[str, Topic]:
    return {topic.name: topic for topic in open_log(path).topics()}


def test_mcap_of_every_encoding_reads_as_columns(tmp_path: Path) -> None:
    path = robot_mcap(tmp_path / "a.mcap")
    assert np.array_equal(column(path, "/joint_states", "position[0:7]"), positions(50))
    assert np.array_equal(column(path, "/joint_states", "position"), positions(50))
    assert np.array_equal(column(path, "/joint_states", "velocity[3]"), positions(50)[:, 3] * 2)
    assert np.array_equal(column(path, "/joint_states", "header.stamp"), TIMES)
    assert column(path, "/joint_states", "name") == (JOINTS,) * 50
    assert column(path, "/camera", "data") == tuple(bytes([step]) * (100 + step % 7) for step in range(50))
    assert column(path, "/camera", "format") == ("jpeg",) * 50
    assert np.array_equal(column(path, "/command", "values"), positions(50)[:, :2])
    assert np.array_equal(column(path, "/command", "values[1]"), positions(50)[:, 1])
    assert column(path, "/command", "name") == ("go",) * 50
    assert np.array_equal(column(path, "/pressure", "cells"), positions(50))
    assert np.array_equal(column(path, "/pressure", "cells[1:3]"), positions(50)[:, 1:3])
    assert np.array_equal(column(path, "/pressure", "stamp"), TIMES)
    assert np.array_equal(column(path, "/pressure", "tips[1].force"), np.full(50, 2.5, np.float32))
    assert column(path, "/pressure", "raw") == (b"\0\1",) * 50
    assert np.array_equal(column(path, "/pressure", "count"), np.full(50, -3))


def test_topics_tell_type_count_and_shapes(tmp_path: Path) -> None:
    found = topics(robot_mcap(tmp_path / "a.mcap"))
    assert [topic.count for topic in found.values()] == [50] * 4
    assert found["/joint_states"].type == "sensor_msgs/msg/JointState"
    assert MessageField(path="position", kind="number", dims=(7,)) in found["/joint_states"].fields
    assert MessageField(path="name", kind="text", dims=(7,)) in found["/joint_states"].fields
    assert MessageField(path="effort", kind="number", dims=(0,)) in found["/joint_states"].fields
    assert MessageField(path="header.stamp", kind="time") in found["/joint_states"].fields
    assert MessageField(path="data", kind="bytes") in found["/camera"].fields
    assert MessageField(path="values", kind="number", dims=(2,)) in found["/command"].fields
    assert MessageField(path="cells", kind="number", dims=(7,)) in found["/pressure"].fields
    assert MessageField(path="stamp", kind="time") in found["/pressure"].fields


@pytest.mark.parametrize("compression", list(CompressionType))
@pytest.mark.parametrize(
    ("chunked", "summary", "index"), [(True, True, True), (True, False, False), (False, True, True)]
)
def test_mcap_of_every_make_reads_the_same(
    tmp_path: Path, compression: CompressionType, chunked: bool, summary: bool, index: bool
) -> None:
    path = robot_mcap(tmp_path / "a.mcap", compression=compression, chunked=chunked, summary=summary, index=index)
    log = open_log(path)
    assert {topic.name: topic.count for topic in log.topics()}["/camera"] == 50
    (batch,) = log.batches({"/joint_states": ("position",)})
    assert np.array_equal(batch.fields["position"], positions(50))
    assert np.array_equal(batch.time_ns, TIMES)
    assert log.damage == ""


@pytest.mark.parametrize("chunked", [True, False])
def test_mcap_whose_index_lacks_schemas_reads_as_one_that_has_them(tmp_path: Path, chunked: bool) -> None:
    log = open_log(robot_mcap(tmp_path / "a.mcap", chunked=chunked, schemas=False))
    assert [(topic.count, topic.problem) for topic in log.topics()] == [(50, "")] * 4
    (batch,) = log.batches({"/joint_states": ("position",)})
    assert np.array_equal(batch.fields["position"], positions(50))
    assert log.damage == ""
    assert log.losses(["/joint_states"]) == ()


@pytest.mark.parametrize("compression", ["", "lz4", "bz2"])
def test_ros1_bag_reads_as_columns(tmp_path: Path, compression: Literal["", "lz4", "bz2"]) -> None:
    path = robot_bag1(tmp_path / "a.bag", compression=compression)
    assert np.array_equal(column(path, "/pose", "theta"), positions(50)[:, 2].astype(np.float32))
    assert column(path, "/text", "data") == tuple("x" * (step % 5) for step in range(50))
    assert {topic.name: topic.count for topic in open_log(path).topics()} == {"/pose": 50, "/text": 50}
    (batch,) = read(path, {"/pose": ("x", "y")})
    assert np.array_equal(batch.time_ns, TIMES)


@pytest.mark.parametrize("storage", list(StoragePlugin))
def test_ros2_bag_reads_as_columns(tmp_path: Path, storage: StoragePlugin) -> None:
    folder = robot_bag2(tmp_path / "bag", storage=storage)
    log = open_log(folder)
    assert {topic.name: topic.count for topic in log.topics()} == {"/joint_states": 50, "/pose": 50}
    assert np.array_equal(column(folder, "/joint_states", "position[0:7]"), positions(50))
    assert np.array_equal(column(folder, "/pose", "x"), positions(50)[:, 0].astype(np.float32))
    assert log.damage == ""


def test_ros2_bag_of_several_files_reads_as_one(tmp_path: Path) -> None:
    folder = robot_bag2(tmp_path / "bag")
    second = robot_bag2(tmp_path / "other", steps=20)
    (folder / "second.db3").write_bytes((second / "other.db3").read_bytes())
    (folder / "metadata.yaml").write_text(
        json.dumps({"rosbag2_bagfile_information": {"relative_file_paths": ["bag.db3", "second.db3", "lost.db3"]}})
    )
    log = open_log(folder)
    assert {topic.name: topic.count for topic in log.topics()} == {"/joint_states": 70, "/pose": 70}
    assert len(column(folder, "/joint_states", "position")) == 70
    assert "lost.db3" in log.damage


@pytest.mark.parametrize(
    ("information", "wanted"),
    [
        ({"relative_file_paths": ["../bag.db3"]}, "inside"),
        ({"relative_file_paths": []}, "files"),
        (
            {"relative_file_paths": ["a.db3.lz4"], "compression_mode": "FILE", "compression_format": "lz4"},
            "ros2 bag convert",
        ),
        (None, "metadata"),
    ],
)
def test_ros2_bag_whose_metadata_lies_is_refused(tmp_path: Path, information: Any, wanted: str) -> None:
    (tmp_path / "metadata.yaml").write_text(json.dumps({"rosbag2_bagfile_information": information}))
    with pytest.raises(InvalidInput, match=wanted):
        open_log(tmp_path)


def test_ulog_reads_as_columns(tmp_path: Path) -> None:
    path = robot_ulog(tmp_path / "a.ulg")
    expected = positions(50)[:, :5].astype(np.float32)
    for topic in ("drive", "drive/1"):
        assert np.array_equal(column(path, topic, "pose"), expected[:, 2:])
        assert np.array_equal(column(path, topic, "wheels[1].speed"), expected[:, 1])
        assert np.array_equal(column(path, topic, "gear"), np.arange(50) % 4)
    (batch,) = read(path, {"drive": ("pose",)})
    assert np.array_equal(batch.time_ns, TIMES)


def test_ulog_with_bytes_that_are_no_message_goes_on_at_the_next_synchronisation(tmp_path: Path) -> None:
    whole = robot_ulog(tmp_path / "a.ulg").read_bytes()
    sync = ulog_record("S", bytes([0x2F, 0x73, 0x13, 0x20, 0x25, 0x0C, 0xBB, 0x12]))
    last = ulog_record("D", struct.pack("<HQf4xf4x3fB", 7, 10**6, 1, 2, 3, 4, 5, 6))
    (tmp_path / "b.ulg").write_bytes(whole + bytes(1_000) + sync + last)
    log = open_log(tmp_path / "b.ulg")
    (batch,) = log.batches({"drive": ("gear",)})
    assert len(batch) == 51
    assert "left out" in log.damage


def test_messages_of_varying_shape_come_in_order_and_each_batch_has_one(tmp_path: Path) -> None:
    lengths = [3, 3, 7, 7, 7, 3, 5, 5]
    sent = [
        ("/j", step, joint_state(step, [float(step)] * length, [f"n{step}"] * length, "f" * step))
        for step, length in enumerate(lengths)
    ]
    batches = read(write_mcap(tmp_path / "a.mcap", {"/j": JOINT_KIND}, sent), {"/j": ("position", "header.frame_id")})
    assert [batch.fields["position"].shape for batch in batches] == [(2, 3), (3, 7), (1, 3), (2, 5)]  # type: ignore[union-attr]
    assert np.concatenate([batch.time_ns for batch in batches]).tolist() == list(range(8))
    assert [text for batch in batches for text in batch.fields["header.frame_id"]] == ["f" * step for step in range(8)]


def test_messages_without_a_wanted_item_are_left_out_and_counted(tmp_path: Path) -> None:
    sent = [("/j", step, joint_state(step, [1.0] * (7 if step % 3 else 2), ["n"])) for step in range(12)]
    log = open_log(write_mcap(tmp_path / "a.mcap", {"/j": JOINT_KIND}, sent))
    (batch,) = log.batches({"/j": ("position[0:7]",)})
    assert batch.time_ns.tolist() == [step for step in range(12) if step % 3]
    assert "4 messages of /j were left out" in log.damage


def test_many_layouts_in_one_batch_read_as_each_alone(tmp_path: Path) -> None:
    values = np.random.default_rng(0).normal(size=(300, 7))
    names = [["n" * (step % 40)] * (step % 20) for step in range(300)]
    sent = [("/j", step, joint_state(step, values[step].tolist(), names[step])) for step in range(300)]
    path = write_mcap(tmp_path / "a.mcap", {"/j": JOINT_KIND}, sent)
    (batch,) = read(path, {"/j": ("position", "name", "header.stamp")})
    assert np.array_equal(batch.fields["position"], values)
    assert batch.fields["name"] == tuple(tuple(row) for row in names)
    assert np.array_equal(batch.fields["header.stamp"], np.arange(300))


def test_topics_of_one_name_and_two_types_name_the_problem(tmp_path: Path) -> None:
    kinds = {"/a": JOINT_KIND, "/a#2": IMAGE_KIND}
    path = write_mcap(tmp_path / "a.mcap", kinds, [("/a", 0, joint_state(0, [1.0])), ("/a#2", 1, image(1, b"x"))])
    (topic,) = open_log(path).topics()
    assert "JointState" in topic.problem
    assert "CompressedImage" in topic.problem
    with pytest.raises(InvalidInput, match="differ"):
        open_log(path).batches({"/a": ("position",)})


def test_topic_of_two_writers_of_one_type_is_one(tmp_path: Path) -> None:
    sent = [("/a" if step % 2 else "/a#2", step, joint_state(step, [float(step)])) for step in range(6)]
    path = write_mcap(tmp_path / "a.mcap", {"/a": JOINT_KIND, "/a#2": JOINT_KIND}, sent)
    (topic,) = open_log(path).topics()
    assert (topic.count, topic.problem) == (6, "")
    assert np.array_equal(column(path, "/a", "position[0]"), np.arange(6.0))


def test_clock_that_jumps_back_is_delivered_as_it_is(tmp_path: Path) -> None:
    times = [5, 6, 7, 2, 3, 2**63 + 1]
    sent = [("/a", time_ns, joint_state(0, [1.0])) for time_ns in times]
    (batch,) = read(write_mcap(tmp_path / "a.mcap", {"/a": JOINT_KIND}, sent), {"/a": ("position",)})
    assert batch.time_ns.tolist() == [5, 6, 7, 2, 3, -(2**63) + 1]


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        (("a/msg/B", "cdr", "ros2msg", b"Unknown thing"), "no definition"),
        (("a/msg/B", "cdr", "ros2msg", b"wstring thing"), "wstring"),
        (("a/msg/B", "cdr", "ros2msg", b"float64 ]["), "definition"),
        (("a/msg/B", "cdr", "", b""), "--msgs"),
        (("", "cdr", "", b""), "without a schema"),
        (("a.B", "protobuf", "protobuf", b"\xff\xff"), "FileDescriptorSet"),
        (("a.B", "flatbuffer", "flatbuffer", b""), "flatbuffer"),
    ],
)
def test_topic_that_cannot_be_decoded_says_why(tmp_path: Path, kind: Kind, reason: str) -> None:
    path = write_mcap(tmp_path / "a.mcap", {"/a": kind, "/j": JOINT_KIND}, [("/a", 0, b"1234"), ("/j", 0, b"\0\1\0\0")])
    found = topics(path)
    assert reason in found["/a"].problem
    assert found["/j"].problem == ""


@pytest.mark.parametrize(("old", "new"), [(b"seconds", b"secandz"), (b"nanos", b"namos")])
def test_protobuf_time_that_is_described_without_its_fields_is_a_group_like_any_other(
    tmp_path: Path, old: bytes, new: bytes
) -> None:
    descriptors = protobuf_descriptors().replace(old, new)
    kind = ("robot.Pressure", "protobuf", "protobuf", descriptors)
    path = write_mcap(tmp_path / "a.mcap", {"/a": kind}, [("/a", 0, protobuf_message(5, [1.0]))])
    (topic,) = open_log(path).topics()
    assert {field.path for field in topic.fields} >= {"cells", f"stamp.{new.decode()}"}
    (batch,) = read(path, {"/a": ("cells", f"stamp.{new.decode()}")})
    assert np.array_equal(batch.fields["cells"], [[1.0]])


@pytest.mark.parametrize(
    "wanted",
    [
        {"/joint": ("position",)},
        {"/joint_states": ("positions",)},
        {"/joint_states": ("position[0].x",)},
        {"/joint_states": ("position[3:2]",)},
        {"/joint_states": ("header",)},
        {"/joint_states": ("name[0:2]",)},
        {"/joint_states": ("",)},
        {"/pressure": ("tips",)},
        {"/pressure": ("cell",)},
        {"/pressure": ("stamp[0]",)},
    ],
)
def test_topic_or_field_that_is_not_there_is_refused(tmp_path: Path, wanted: dict[str, tuple[str, ...]]) -> None:
    with pytest.raises(InvalidInput):
        open_log(robot_mcap(tmp_path / "a.mcap", steps=3)).batches(wanted)


def test_mcap_cut_off_is_recovered_to_its_last_whole_chunk(tmp_path: Path) -> None:
    whole = robot_mcap(tmp_path / "a.mcap").read_bytes()
    (tmp_path / "cut.mcap").write_bytes(whole[: len(whole) // 2])
    log = open_log(tmp_path / "cut.mcap")
    batches = list(log.batches({"/joint_states": ("position",)}))
    read_so_far = np.concatenate([batch.fields["position"] for batch in batches])
    assert 5 < len(read_so_far) < 50
    assert np.array_equal(read_so_far, positions(50)[: len(read_so_far)])
    assert "recovered up to byte" in log.damage


def test_mcap_without_chunks_cut_off_is_recovered_to_its_last_whole_message(tmp_path: Path) -> None:
    whole = robot_mcap(tmp_path / "a.mcap", chunked=False).read_bytes()
    last = whole.rindex(b"go", 0, len(whole) // 2)
    (tmp_path / "cut.mcap").write_bytes(whole[: last + 1])
    log = open_log(tmp_path / "cut.mcap")
    count = sum(map(len, log.batches({"/joint_states": ("position",)})))
    assert count == sum(map(len, log.batches({"/command": ("name",)}))) + 1
    assert "recovered up to byte" in log.damage


def test_mcap_with_a_damaged_chunk_reads_the_others(tmp_path: Path) -> None:
    whole = bytearray(robot_mcap(tmp_path / "a.mcap", compression=CompressionType.NONE).read_bytes())
    whole[whole.index(b"joint_3", len(whole) // 3)] ^= 0xFF
    (tmp_path / "b.mcap").write_bytes(whole)
    log = open_log(tmp_path / "b.mcap")
    count = sum(map(len, log.batches({"/joint_states": ("position",)})))
    assert 30 < count < 50
    assert "checksum differs" in log.damage


def test_mcap_without_chunks_whose_bytes_changed_fails_its_checksum(tmp_path: Path) -> None:
    whole = bytearray(robot_mcap(tmp_path / "a.mcap", chunked=False).read_bytes())
    whole[whole.index(b"joint_3", len(whole) // 3)] ^= 0xFF
    (tmp_path / "b.mcap").write_bytes(whole)
    log = open_log(tmp_path / "b.mcap")
    assert sum(map(len, log.batches({"/joint_states": ("position",)}))) == 50
    assert "checksum" in log.damage


@pytest.mark.parametrize("share", [0.3, 0.6])
def test_bag_cut_off_is_recovered_to_its_last_whole_chunk(tmp_path: Path, share: float) -> None:
    whole = robot_bag1(tmp_path / "a.bag", steps=300).read_bytes()
    (tmp_path / "cut.bag").write_bytes(whole[: int(len(whole) * share)])
    log = open_log(tmp_path / "cut.bag")
    (batch,) = log.batches({"/pose": ("x",)})
    assert len(batch) > 20
    assert np.array_equal(batch.fields["x"], positions(300)[: len(batch), 0].astype(np.float32))
    assert "recovered up to byte" in log.damage


def test_bag_never_closed_is_read_without_its_index(tmp_path: Path) -> None:
    whole = bytearray(robot_bag1(tmp_path / "a.bag").read_bytes())
    place = whole.index(b"index_pos=") + len(b"index_pos=")
    end = struct.unpack_from("<Q", whole, place)[0]
    whole[place : place + 8] = bytes(8)
    (tmp_path / "b.bag").write_bytes(whole[:end])
    log = open_log(tmp_path / "b.bag")
    assert {topic.name: topic.count for topic in log.topics()} == {"/pose": 50, "/text": 50}
    (batch,) = log.batches({"/pose": ("x",)})
    assert len(batch) == 50
    assert "no whole index" in log.damage


def test_sqlite_bag_cut_off_is_recovered_or_refused(tmp_path: Path) -> None:
    whole = (robot_bag2(tmp_path / "bag", steps=400) / "bag.db3").read_bytes()
    (tmp_path / "cut.db3").write_bytes(whole[: len(whole) * 2 // 3 // 4_096 * 4_096])
    log = open_log(tmp_path / "cut.db3")
    read_so_far = sum(map(len, log.batches({"/joint_states": ("position",)})))
    assert 50 < read_so_far < 400
    assert "damaged" in log.damage


def test_ros2_bag_with_a_file_that_is_no_log_reads_the_others(tmp_path: Path) -> None:
    folder = robot_bag2(tmp_path / "bag")
    (folder / "second.db3").write_bytes(b"nothing")
    (folder / "third.db3").write_bytes((folder / "bag.db3").read_bytes()[:1_000])
    names = ["bag.db3", "second.db3", "third.db3"]
    (folder / "metadata.yaml").write_text(json.dumps({"rosbag2_bagfile_information": {"relative_file_paths": names}}))
    log = open_log(folder)
    assert sum(map(len, log.batches({"/pose": ("x",)}))) == 50
    assert "second.db3" in log.damage
    assert "third.db3" in log.damage


def test_message_of_json_that_is_not_what_the_others_are_is_left_out(tmp_path: Path) -> None:
    texts = [
        b'{"a": 1, "t": {"sec": 1, "nsec": 2}}',
        b"{",
        b'{"a": null}',
        b'{"b": 2}',
        b'{"a": 2, "t": {"sec": 3, "nsec": 4}}',
    ]
    kind: Kind = ("A", "json", "jsonschema", b"{}")
    path = write_mcap(tmp_path / "a.mcap", {"/a": kind}, [("/a", step, text) for step, text in enumerate(texts)])
    log = open_log(path)
    (batch,) = log.batches({"/a": ("a", "t")})
    assert np.array_equal(batch.fields["a"], [1.0, 2.0])
    assert np.array_equal(batch.fields["t"], [1_000_000_002, 3_000_000_004])
    assert batch.time_ns.tolist() == [0, 4]
    assert "3 messages of /a were left out" in log.damage


def test_path_that_is_no_log_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.mcap").write_bytes(b"")
    (tmp_path / "b.mcap").write_bytes(b"something else")
    with pytest.raises(DamagedData, match="empty"):
        open_log(tmp_path / "a.mcap")
    with pytest.raises(InvalidInput, match="begins"):
        open_log(tmp_path / "b.mcap")
    with pytest.raises(NotFound):
        open_log(tmp_path)


def test_log_can_be_read_again_and_again(tmp_path: Path) -> None:
    log = open_log(robot_mcap(tmp_path / "a.mcap"))
    wanted = everything(log)
    assert [len(batch) for batch in log.batches(wanted)] == [len(batch) for batch in log.batches(wanted)]
