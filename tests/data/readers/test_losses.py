"""A log says how much of it is gone: by its index, its header, or what stands beside it."""

from __future__ import annotations

import sqlite3
import struct
from collections.abc import Iterable, Mapping
from contextlib import closing
from pathlib import Path

import pytest
import zstandard
from mcap.writer import CompressionType

from mainspring.data.readers.gone import Gone
from mainspring.data.readers.log import open_log
from mainspring.domain.errors import DamagedData

from .logs import PERIOD_NS, robot_bag1, robot_bag2, robot_mcap, robot_ulog, ulog_record

STEPS = 200
JOINTS = {"/joint_states": ("position",)}
POSE = {"/pose": ("x",)}


def lost_of(path: Path, wanted: Mapping[str, tuple[str, ...]]) -> tuple[Gone, ...]:
    """Returns what is gone of some topics, read to the end."""
    log = open_log(path)
    for _ in log.batches(wanted):
        pass
    return log.losses(wanted)


def numbers(gone: Iterable[Gone]) -> list[tuple[int, int, str]]:
    return [(one.loss.lost, one.loss.total, one.loss.unit) for one in gone]


def with_hole(path: Path, at: int, length: int = 8) -> Path:
    data = bytearray(path.read_bytes())
    data[at : at + length] = bytes(length)
    path.write_bytes(data)
    return path


def middle_chunk(path: Path) -> int:
    """Returns the place of a chunk in the middle of an MCAP file."""
    data, at, chunks = path.read_bytes(), 8, []
    while data[at] != 0x0F:
        chunks += [at] if data[at] == 0x06 else []
        at += 9 + int.from_bytes(data[at + 1 : at + 9], "little")
    return chunks[len(chunks) // 2]


def test_mcap_tells_what_a_damaged_chunk_held(tmp_path: Path) -> None:
    path = robot_mcap(tmp_path / "a.mcap", steps=STEPS)
    with_hole(path, middle_chunk(path) + 200)
    log = open_log(path)
    read = sum(map(len, log.batches(JOINTS)))
    (gone,) = log.losses(JOINTS)
    assert (gone.topic, gone.loss.lost, gone.loss.total) == ("/joint_states", STEPS - read, STEPS)
    assert 0 < gone.begin_ns < gone.end_ns < STEPS * PERIOD_NS
    assert gone.loss.seconds == pytest.approx((gone.end_ns - gone.begin_ns) / 1e9)


def test_mcap_without_summary_tells_what_a_damaged_chunk_held(tmp_path: Path) -> None:
    path = robot_mcap(tmp_path / "a.mcap", steps=STEPS, summary=False)
    assert lost_of(path, JOINTS) == ()
    assert open_log(path).damage == ""
    with_hole(path, middle_chunk(path) + 200)
    log = open_log(path)
    read = sum(map(len, log.batches(JOINTS)))
    assert numbers(log.losses(JOINTS)) == [(STEPS - read, STEPS, "messages")]


def test_mcap_whose_chunk_has_no_checksum_is_compared_with_its_index(tmp_path: Path) -> None:
    path = robot_mcap(tmp_path / "a.mcap", steps=STEPS, compression=CompressionType.NONE, checksums=False)
    data = path.read_bytes()
    time = struct.pack("<Q", 100 * PERIOD_NS)
    at = data.index(time + time)  # Log time and publish time of the first message of that step: a joint state.
    path.write_bytes(data[:at] + struct.pack("<Q", 100 * PERIOD_NS + 1) + data[at + 8 :])
    assert numbers(lost_of(path, JOINTS)) == [(1, STEPS, "messages")]
    assert lost_of(path, {"/command": ("name",)}) == ()


def test_mcap_whose_chunk_lost_its_first_byte_is_told_by_the_index_behind_it(tmp_path: Path) -> None:
    path = robot_mcap(tmp_path / "a.mcap", steps=STEPS, summary=False)
    data = bytearray(path.read_bytes())
    data[middle_chunk(path)] = 0x86  # A kind that no writer of today knows.
    path.write_bytes(data)
    (gone,) = lost_of(path, JOINTS)
    assert 0 < gone.loss.lost < gone.loss.total == STEPS


def test_mcap_cut_off_says_that_nobody_can_know(tmp_path: Path) -> None:
    path = robot_mcap(tmp_path / "a.mcap", steps=STEPS)
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    (gone,) = lost_of(path, JOINTS)
    assert gone.loss.share == 1.0
    assert "never closed, or cut off: recovered up to byte" in gone.loss.what


@pytest.mark.parametrize("chunked", [True, False])
@pytest.mark.parametrize("summary", [True, False])
@pytest.mark.parametrize("checksums", [True, False])
@pytest.mark.parametrize("index", [True, False])
def test_mcap_of_every_make_has_lost_nothing(
    tmp_path: Path, chunked: bool, summary: bool, checksums: bool, index: bool
) -> None:
    path = robot_mcap(tmp_path / "a.mcap", chunked=chunked, summary=summary, checksums=checksums, index=index)
    log = open_log(path)
    wanted = {**JOINTS, "/camera": ("data",), "/command": ("name",), "/pressure": ("count",)}
    assert sum(map(len, log.batches(wanted))) == 4 * 50
    assert (log.losses(wanted), log.damage) == ((), "")


def test_mcap_whose_statistics_leave_out_the_channels_has_lost_nothing(tmp_path: Path) -> None:
    path = robot_mcap(tmp_path / "a.mcap", steps=STEPS)
    data = bytearray(path.read_bytes())
    at = int.from_bytes(data[-28:-20], "little")
    while data[at] != 0x0B:
        at += 9 + int.from_bytes(data[at + 1 : at + 9], "little")
    size = int.from_bytes(data[at + 1 : at + 9], "little")
    short = data[at + 9 : at + 9 + 42] + bytes(4)
    data[at : at + 9 + size] = b"\x0b" + struct.pack("<Q", len(short)) + short
    data[-12:-8] = bytes(4)  # No checksum of the summary.
    path.write_bytes(data)
    assert lost_of(path, JOINTS) == ()


def test_mcap_whose_index_alone_is_cut_off_has_lost_nothing(tmp_path: Path) -> None:
    path = robot_mcap(tmp_path / "a.mcap", steps=STEPS)
    path.write_bytes(path.read_bytes()[:-20])
    log = open_log(path)
    assert sum(map(len, log.batches(JOINTS))) == STEPS
    assert log.losses(JOINTS) == ()
    assert "index" in log.damage


def test_bag_cut_off_tells_the_share_of_its_bytes(tmp_path: Path) -> None:
    path = robot_bag1(tmp_path / "a.bag", steps=STEPS)
    whole = path.stat().st_size
    path.write_bytes(path.read_bytes()[: whole // 2])
    (gone,) = lost_of(path, POSE)
    assert (gone.topic, gone.loss.unit) == ("", "bytes")
    assert 0.3 < gone.loss.share < 0.6


def test_bag_never_closed_says_that_nobody_can_know(tmp_path: Path) -> None:
    path = robot_bag1(tmp_path / "a.bag", steps=STEPS)
    place = path.read_bytes().index(b"index_pos=") + len(b"index_pos=")
    with_hole(path, place)
    end = struct.unpack_from("<Q", robot_bag1(tmp_path / "b.bag", steps=STEPS).read_bytes(), place)[0]
    path.write_bytes(path.read_bytes()[:end])
    (gone,) = lost_of(path, POSE)
    assert gone.loss.total == 0
    assert gone.loss.what.startswith("never closed")


def test_bag_whose_index_is_odd_has_lost_nothing_and_is_not_cut_off(tmp_path: Path) -> None:
    path = robot_bag1(tmp_path / "a.bag", steps=STEPS)
    place = path.read_bytes().index(b"conn_count=") + len(b"conn_count=")
    with_hole(path, place, 4)
    log = open_log(path)
    assert sum(map(len, log.batches(POSE))) == STEPS
    assert log.losses(POSE) == ()
    assert "cut off" not in log.damage


def test_bag_whose_definition_is_not_the_one_of_its_digest_is_doubted(tmp_path: Path) -> None:
    path = robot_bag1(tmp_path / "a.bag", steps=STEPS)
    data = path.read_bytes().replace(b"float32 theta", b"float32 thota")
    path.write_bytes(data)
    (gone,) = lost_of(path, POSE)
    assert (gone.topic, gone.loss.total) == ("/pose", 0)
    assert lost_of(path, {"/text": ("data",)}) == ()


def test_bag_tells_what_a_damaged_chunk_held(tmp_path: Path) -> None:
    path = robot_bag1(tmp_path / "a.bag", steps=STEPS, compression="bz2")
    with_hole(path, path.stat().st_size // 2, 4)
    log = open_log(path)
    read = sum(map(len, log.batches(POSE)))
    assert numbers(log.losses(POSE)) == [(STEPS - read, STEPS, "messages")]


@pytest.mark.parametrize(
    ("change", "wanted"),
    [
        ("DELETE FROM messages WHERE id BETWEEN 50 AND 69", (20, 2 * STEPS, "messages")),
        ("UPDATE messages SET topic_id = 7 WHERE id = 9", (1, 2 * STEPS, "messages")),
    ],
)
def test_sqlite_bag_tells_what_is_missing(tmp_path: Path, change: str, wanted: tuple[int, int, str]) -> None:
    path = robot_bag2(tmp_path / "bag", steps=STEPS) / "bag.db3"
    with closing(sqlite3.connect(path)) as database, database:
        database.execute(change)
    assert numbers(lost_of(path, POSE)) == [wanted]


def test_sqlite_bag_whose_times_are_not_those_of_their_index_is_doubted(tmp_path: Path) -> None:
    path = robot_bag2(tmp_path / "bag", steps=STEPS) / "bag.db3"
    time = struct.pack(">I", 100 * PERIOD_NS)
    data = path.read_bytes()
    assert data.count(time) > 1
    at = data.index(time)
    path.write_bytes(data[:at] + struct.pack(">I", 100 * PERIOD_NS + 5) + data[at + 4 :])
    assert [gone.doubt for gone in lost_of(path, POSE)] == [True]


def test_ros2_bag_tells_by_its_metadata_what_is_missing(tmp_path: Path) -> None:
    folder = robot_bag2(tmp_path / "bag", steps=STEPS)
    assert lost_of(folder, POSE) == ()
    with closing(sqlite3.connect(folder / "bag.db3")) as database, database:
        database.execute(f"DELETE FROM messages WHERE id > {2 * STEPS - 40}")
    assert numbers(lost_of(folder, POSE)) == [(20, STEPS, "messages")]


def test_ros2_bag_whose_metadata_is_of_an_earlier_moment_does_not_believe_it(tmp_path: Path) -> None:
    folder = robot_bag2(tmp_path / "bag", steps=STEPS)
    text = (folder / "metadata.yaml").read_text().replace(f"message_count: {STEPS}", "message_count: 0")
    (folder / "metadata.yaml").write_text(text)
    assert lost_of(folder, POSE) == ()


def test_ulog_tells_the_time_its_recorder_dropped(tmp_path: Path) -> None:
    path = robot_ulog(tmp_path / "a.ulg", steps=STEPS)
    path.write_bytes(path.read_bytes() + ulog_record("O", struct.pack("<H", 150)))
    (gone,) = lost_of(path, {"drive": ("gear",)})
    assert (gone.loss.lost, gone.loss.total, gone.loss.seconds) == (150, 1991, 0.15)
    assert gone.begin_ns == (STEPS - 1) * PERIOD_NS


def test_ulog_that_ends_inside_a_message_says_that_nobody_can_know(tmp_path: Path) -> None:
    path = robot_ulog(tmp_path / "a.ulg", steps=STEPS)
    path.write_bytes(path.read_bytes()[:-5])
    (gone,) = lost_of(path, {"drive": ("gear",)})
    assert gone.loss.total == 0


def test_ulog_with_flags_that_nobody_knows_is_refused(tmp_path: Path) -> None:
    path = robot_ulog(tmp_path / "a.ulg", steps=STEPS)
    data = bytearray(path.read_bytes())
    data[16 + 3 + 8] |= 4
    path.write_bytes(data)
    with pytest.raises(DamagedData, match="incompatible flags"):
        open_log(path).topics()


def test_messages_that_are_longer_than_their_type_are_counted(tmp_path: Path) -> None:
    path = robot_bag2(tmp_path / "bag", steps=STEPS) / "bag.db3"
    with closing(sqlite3.connect(path)) as database, database:
        database.execute("UPDATE messages SET data = data || x'0000000000000000' WHERE id = 10")
    assert numbers(lost_of(path, POSE)) == [(1, STEPS, "messages")]


def test_message_that_does_not_decompress_is_counted(tmp_path: Path) -> None:
    folder = robot_bag2(tmp_path / "bag", steps=STEPS)
    metadata = folder / "metadata.yaml"
    text = metadata.read_text()
    text = text.replace("compression_format: ''", "compression_format: zstd")
    metadata.write_text(text.replace("compression_mode: ''", "compression_mode: MESSAGE"))
    with closing(sqlite3.connect(folder / "bag.db3")) as database, database:
        for row, data in database.execute("SELECT id, data FROM messages").fetchall():
            packed = zstandard.compress(data) if row != 10 else b"none"
            database.execute("UPDATE messages SET data = ? WHERE id = ?", (packed, row))
    assert numbers(lost_of(folder, POSE)) == [(1, STEPS, "messages")]
