"""ROS 2 bags as people keep them: without definitions, with services, in parts, compressed."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
import zstandard
from rosbags.rosbag2 import StoragePlugin
from rosbags.typesys import Stores, get_types_from_msg, get_typestore
from tests.data.readers.logs import JOINT_KIND, PERIOD_NS, Kind, joint_state, positions, robot_bag2, write_mcap

from mainspring.data.readers.given import definitions_in
from mainspring.data.readers.log import Log, open_log
from mainspring.domain.errors import DamagedData, InvalidInput

GRIP = "lab_msgs/msg/Grip"
TEXTS = {"Grip.msg": "std_msgs/Header header\nTip[] tips\nfloat64 width\n", "Tip.msg": "float32 force\nstring name\n"}
ADD = "int64 a\nint64 b\n---\nint64 sum\nlab_msgs/Tip tip\n"


def _typestore() -> Any:
    store = get_typestore(Stores.ROS2_JAZZY)
    store.register(get_types_from_msg(TEXTS["Tip.msg"], "lab_msgs/msg/Tip"))
    store.register(get_types_from_msg(TEXTS["Grip.msg"], GRIP))
    # The library knows no services: their parts stand among messages here, which lie in a bag just the same.
    store.register(get_types_from_msg("int64 a\nint64 b", "lab_msgs/msg/Add_Request"))
    store.register(get_types_from_msg("int64 sum\nTip tip", "lab_msgs/msg/Add_Response"))
    event = "service_msgs/ServiceEventInfo info\nAdd_Request[<=1] request\nAdd_Response[<=1] response"
    store.register(get_types_from_msg(event, "lab_msgs/msg/Add_Event"))
    return store


LAB = _typestore()


def grip(number: int) -> bytes:
    """Returns a message of a type that no ROS knows."""
    kinds = LAB.types
    stamp = kinds["builtin_interfaces/msg/Time"](sec=number, nanosec=0)
    tip = kinds["lab_msgs/msg/Tip"](force=0.5, name="left")
    header = kinds["std_msgs/msg/Header"](stamp=stamp, frame_id="hand")
    return bytes(LAB.serialize_cdr(kinds[GRIP](header=header, tips=[tip], width=float(number)), GRIP))


def event(number: int) -> bytes:
    """Returns a service's event: a request, then a response, and so on."""
    kinds = LAB.types
    stamp = kinds["builtin_interfaces/msg/Time"](sec=number, nanosec=0)
    gid = np.zeros(16, np.uint8)
    info = kinds["service_msgs/msg/ServiceEventInfo"](
        event_type=number % 2, stamp=stamp, client_gid=gid, sequence_number=number
    )
    tip = kinds["lab_msgs/msg/Tip"](force=0.5, name="left")
    request = [kinds["lab_msgs/msg/Add_Request"](a=number, b=2)] if number % 2 == 0 else []
    response = [kinds["lab_msgs/msg/Add_Response"](sum=number + 2, tip=tip)] if number % 2 else []
    message = kinds["lab_msgs/msg/Add_Event"](info=info, request=request, response=response)
    return bytes(LAB.serialize_cdr(message, "lab_msgs/msg/Add_Event"))


def given(folder: Path, *, idl: bool = False) -> dict[str, str]:
    """Writes definitions as a ROS package keeps them, and reads them back."""
    (folder / "lab_msgs" / "msg").mkdir(parents=True)
    (folder / "lab_msgs" / "srv").mkdir()
    (folder / "lab_msgs" / "srv" / "Add.srv").write_text(ADD)
    if idl:
        text = "module lab_msgs { module msg { struct Tip { float force; string name; };\n"
        text += "struct Grip { std_msgs::msg::Header header; sequence<lab_msgs::msg::Tip> tips; double width; }; }; };"
        (folder / "lab_msgs" / "msg" / "Grip.idl").write_text('#include "std_msgs/msg/Header.idl"\n' + text)
    else:
        for name, text in TEXTS.items():
            (folder / "lab_msgs" / "msg" / name).write_text(text)
    return dict(definitions_in(folder))


def old_bag(path: Path, topics: dict[str, tuple[str, list[bytes]]]) -> Path:
    """Writes a bag as ROS 2 before Iron did: without definitions."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with sqlite3.connect(path) as database:
        database.execute("CREATE TABLE topics(id INTEGER PRIMARY KEY, name, type, serialization_format, qos)")
        database.execute(
            "CREATE TABLE messages(id INTEGER PRIMARY KEY, topic_id INTEGER, timestamp INTEGER, data BLOB)"
        )
        for number, (name, (kind, sent)) in enumerate(topics.items(), 1):
            database.execute("INSERT INTO topics VALUES(?, ?, ?, 'cdr', '')", (number, name, kind))
            for step, data in enumerate(sent):
                row = (number, step * PERIOD_NS, data)
                database.execute("INSERT INTO messages(topic_id, timestamp, data) VALUES(?, ?, ?)", row)
    database.close()
    return path


def column(log: Log, topic: str, field: str) -> list[Any]:
    return [value for batch in log.batches({topic: (field,)}) for value in np.asarray(batch.fields[field]).tolist()]


@pytest.mark.parametrize("idl", [False, True])
def test_bag_without_definitions_is_read_by_those_given_beside_it(tmp_path: Path, idl: bool) -> None:
    bag = old_bag(tmp_path / "old.db3", {"/grip": (GRIP, [grip(0), grip(1)])})
    (topic,) = open_log(bag).topics()
    assert "lab_msgs/msg/Grip" in topic.problem
    assert "--msgs" in topic.problem
    log = open_log(bag, given(tmp_path / "ws", idl=idl))
    assert column(log, "/grip", "width") == [0.0, 1.0]
    assert column(log, "/grip", "tips[0].force") == [0.5, 0.5]
    assert column(log, "/grip", "header.stamp") == [0, 10**9]


def test_mcap_without_definitions_is_read_by_those_given_beside_it(tmp_path: Path) -> None:
    kinds: dict[str, Kind] = {"/grip": (GRIP, "cdr", "", b""), "/add": ("lab_msgs/srv/Add_Event", "cdr", "", b"")}
    sent = [("/grip", 0, grip(3)), ("/add", 1, event(2))]
    path = write_mcap(tmp_path / "old.mcap", kinds, sent)
    log = open_log(path, given(tmp_path / "ws"))
    assert column(log, "/grip", "width") == [3.0]
    assert column(log, "/add", "info.sequence_number") == [2]


def test_definition_whose_parts_are_missing_names_the_part(tmp_path: Path) -> None:
    bag = old_bag(tmp_path / "old.db3", {"/grip": (GRIP, [grip(0)])})
    said = given(tmp_path / "ws")
    del said["lab_msgs/msg/Tip"]
    (topic,) = open_log(bag, said).topics()
    assert "lab_msgs/msg/Tip" in topic.problem


@pytest.mark.parametrize("text", [ADD, "SRV: lab_msgs/srv/Add\n" + ADD])
def test_events_of_services_are_read_by_the_definition_of_the_service(tmp_path: Path, text: str) -> None:
    tips = f"{'=' * 80}\nMSG: lab_msgs/Tip\n{TEXTS['Tip.msg']}"
    kinds: dict[str, Kind] = {
        "/add/_service_event": ("lab_msgs/srv/Add_Event", "cdr", "ros2msg", (text + tips).encode()),
        "/joint_states": JOINT_KIND,
    }
    sent = [("/add/_service_event", number * PERIOD_NS, event(number)) for number in range(6)]
    sent += [("/joint_states", 0, joint_state(0, positions(1)[0].tolist()))]
    log = open_log(write_mcap(tmp_path / "a.mcap", kinds, sorted(sent, key=lambda one: one[1])))
    assert [topic.problem for topic in log.topics()] == ["", ""]
    assert column(log, "/add/_service_event", "info.event_type") == [0, 1, 0, 1, 0, 1]
    assert column(log, "/add/_service_event", "request[0].a") == [0, 2, 4]
    assert column(log, "/add/_service_event", "response[0].sum") == [3, 5, 7]


def test_service_whose_definition_is_not_there_disturbs_no_other_topic(tmp_path: Path) -> None:
    joints = [joint_state(step * PERIOD_NS, row.tolist()) for step, row in enumerate(positions(4))]
    topics = {"/add/_service_event": ("lab_msgs/srv/Add_Event", [event(0)])}
    bag = old_bag(tmp_path / "a.db3", {**topics, "/joint_states": ("sensor_msgs/msg/JointState", joints)})
    log = open_log(bag)
    found = {topic.name: topic for topic in log.topics()}
    assert "lab_msgs/srv/Add" in found["/add/_service_event"].problem
    assert found["/add/_service_event"].count == 1
    assert len(column(log, "/joint_states", "position")) == 4


def _part(path: Path, first: int, count: int, storage: str) -> None:
    data = [joint_state(step * PERIOD_NS, positions(1, step)[0].tolist()) for step in range(first, first + count)]
    if storage == ".db3":
        old_bag(path, {"/joint_states": ("sensor_msgs/msg/JointState", data)})
        with sqlite3.connect(path) as database:
            database.execute("UPDATE messages SET timestamp = timestamp + ?", (first * PERIOD_NS,))
        database.close()
    else:
        sent = [("/joint_states", (first + step) * PERIOD_NS, one) for step, one in enumerate(data)]
        write_mcap(path, {"/joint_states": JOINT_KIND}, sent)


@pytest.mark.parametrize("storage", [".db3", ".mcap"])
def test_parts_of_a_bag_without_metadata_are_one_log_where_they_go_on(tmp_path: Path, storage: str) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    for number in range(11):
        _part(folder / f"run_{number}{storage}", 5 * number, 5, storage)
    log = open_log(folder)
    expected = [positions(1, step)[0].tolist() for step in range(55)]
    assert column(log, "/joint_states", "position") == expected
    (folder / f"run_3{storage}").unlink()
    assert not folder.joinpath("metadata.yaml").exists()
    with pytest.raises(Exception, match="no file, and no folder"):
        open_log(folder)


def test_recordings_that_only_look_like_parts_stay_apart(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    _part(folder / "run_0.mcap", 0, 5, ".mcap")
    _part(folder / "run_1.mcap", 1_000, 5, ".mcap")  # Ten seconds later.
    with pytest.raises(Exception, match="no file, and no folder"):
        open_log(folder)


def _packed(folder: Path, mode: str) -> Path:
    """Compresses a bag as rosbag2 does."""
    plain = yaml.safe_load((folder / "metadata.yaml").read_text())
    facts = plain["rosbag2_bagfile_information"]
    facts["compression_mode"], facts["compression_format"] = mode, "zstd"
    if mode == "FILE":
        facts["relative_file_paths"] = [f"{name}.zstd" for name in facts["relative_file_paths"]]
        for path in [*folder.glob("*.db3"), *folder.glob("*.mcap")]:
            path.with_name(f"{path.name}.zstd").write_bytes(zstandard.compress(path.read_bytes()))
            path.unlink()
    else:
        with sqlite3.connect(next(folder.glob("*.db3"))) as database:
            for number, data in database.execute("SELECT id, data FROM messages").fetchall():
                database.execute("UPDATE messages SET data = ? WHERE id = ?", (zstandard.compress(data), number))
        database.close()
    (folder / "metadata.yaml").write_text(yaml.safe_dump(plain))
    return folder


@pytest.mark.parametrize(
    ("mode", "storage"),
    [("FILE", StoragePlugin.SQLITE3), ("FILE", StoragePlugin.MCAP), ("MESSAGE", StoragePlugin.SQLITE3)],
)
def test_compressed_bag_reads_as_the_plain_one(tmp_path: Path, mode: str, storage: StoragePlugin) -> None:
    plain = open_log(robot_bag2(tmp_path / "plain", storage=storage))
    packed = open_log(_packed(robot_bag2(tmp_path / "packed", storage=storage), mode), scratch=tmp_path / "scratch")
    for topic, field in (("/joint_states", "position"), ("/pose", "theta")):
        assert column(packed, topic, field) == column(plain, topic, field)
    assert packed.damage == ""


def test_compressed_file_alone_is_read_and_a_damaged_one_refused(tmp_path: Path) -> None:
    _part(tmp_path / "a.mcap", 0, 5, ".mcap")
    data = zstandard.compress((tmp_path / "a.mcap").read_bytes())
    (tmp_path / "a.mcap.zstd").write_bytes(data)
    assert len(column(open_log(tmp_path / "a.mcap.zstd", scratch=tmp_path / "s"), "/joint_states", "position")) == 5
    (tmp_path / "a.mcap.zstd").write_bytes(data[: len(data) // 2])
    with pytest.raises(DamagedData):
        open_log(tmp_path / "a.mcap.zstd", scratch=tmp_path / "t").topics()


def test_bag_compressed_in_another_way_names_it(tmp_path: Path) -> None:
    folder = _packed(robot_bag2(tmp_path / "bag"), "FILE")
    text = (folder / "metadata.yaml").read_text().replace("compression_format: zstd", "compression_format: lz4")
    (folder / "metadata.yaml").write_text(text)
    with pytest.raises(InvalidInput, match="lz4"):
        open_log(folder, scratch=tmp_path / "s")


def test_definition_in_idl_as_bags_carry_it_reads_with_its_includes(tmp_path: Path) -> None:
    line = "=" * 80
    text = (
        f'{line}\nIDL: {GRIP}\n// made by a tool\n#include "lab_msgs/msg/Tip.idl"\n#include "std_msgs/msg/Header.idl"\n'
    )
    text += "module lab_msgs { module msg { struct Grip { std_msgs::msg::Header header;\n"
    text += "sequence<lab_msgs::msg::Tip> tips; double width; }; }; };\n"
    text += f"{line}\nIDL: lab_msgs/msg/Tip\nmodule lab_msgs {{ module msg {{ struct Tip {{ float force;\n"
    text += "string name; }; }; };\n"
    log = open_log(
        write_mcap(tmp_path / "a.mcap", {"/grip": (GRIP, "cdr", "ros2idl", text.encode())}, [("/grip", 0, grip(2))])
    )
    assert column(log, "/grip", "width") == [2.0]
    assert column(log, "/grip", "tips[0].force") == [0.5]
