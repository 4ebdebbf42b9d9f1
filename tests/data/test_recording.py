from __future__ import annotations

import sys
import tracemalloc
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from mcap.reader import SeekingReader
from mcap.writer import CompressionType, Writer

from mainspring.data.readers.episodes.mcap_episode import McapRecording
from mainspring.data.recording import EpisodeWriter
from mainspring.domain.errors import DamagedData, InvalidInput

from .making import PERIOD_NS, RATE_HZ, ROBOTS, record


def open_recording(path: Path) -> McapRecording:
    return McapRecording(name=path.name, path=path, parse_bytes=path.stat().st_size)


def test_episode_written_reads_back_exactly(tmp_path: Path) -> None:
    states, actions = np.random.default_rng(1).normal(size=(40, 5)), np.random.default_rng(2).normal(size=(40, 2))
    path = tmp_path / "new" / "a.mcap"
    with EpisodeWriter(
        path, task="lift", robot="arm", rate_hz=RATE_HZ, state_names=tuple("abcde"), action_names=("l", "r")
    ) as writer:
        for step in range(40):
            writer.write(7 + step * PERIOD_NS, states[step], actions[step])
        writer.finish(success=True)
    episode = open_recording(path).read(Path())
    assert np.array_equal(episode.columns["state"], states)
    assert np.array_equal(episode.columns["action"], actions)
    assert episode.time_ns.tolist() == [7 + step * PERIOD_NS for step in range(40)]
    assert (episode.task, episode.robot, episode.success, episode.rate_hz) == ("lift", "arm", True, 20.0)
    assert episode.features.names("state") == tuple("abcde")
    assert episode.features.names("action") == ("l", "r")


def test_episode_appears_once_its_bytes_are_synced_and_its_name_is_too(tmp_path: Path) -> None:
    calls: list[str] = []

    def note(frame: FrameType, event: str, argument: Any) -> None:
        if event == "c_call" and argument.__name__ in ("fsync", "rename"):
            calls.append(argument.__name__)

    with EpisodeWriter(tmp_path / "a.mcap", task="t", robot="r", rate_hz=1.0) as writer:
        writer.write(0, [1.0], [2.0])
        sys.setprofile(note)
        try:
            writer.finish(success=True)
        finally:
            sys.setprofile(None)
    assert calls == ["fsync", "rename", "fsync"]


@pytest.mark.parametrize("success", [True, False, None])
def test_episode_success_survives_the_file(tmp_path: Path, success: bool | None) -> None:
    with EpisodeWriter(tmp_path / "a.mcap", task="t", robot="r", rate_hz=1.0) as writer:
        writer.write(0, [1.0], [2.0])
        writer.finish(success=success)
    assert open_recording(tmp_path / "a.mcap").read(Path()).success is success


def test_episode_abandoned_leaves_no_file(tmp_path: Path) -> None:
    with EpisodeWriter(tmp_path / "a.mcap", task="t", robot="r", rate_hz=1.0) as writer:
        writer.write(0, [1.0], [2.0])
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("time_ns", "state", "action"),
    [(5, [1.0], [1.0]), (9, [1.0, 2.0], [1.0]), (9, [float("nan")], [1.0]), (9, [1.0], []), (9, [[1.0]], [1.0])],
)
def test_step_that_does_not_fit_the_episode_is_refused(
    tmp_path: Path, time_ns: int, state: list[float], action: list[float]
) -> None:
    with EpisodeWriter(tmp_path / "a.mcap", task="t", robot="r", rate_hz=1.0) as writer:
        writer.write(5, [1.0], [2.0])
        with pytest.raises(InvalidInput):
            writer.write(time_ns, state, action)


def test_recording_cut_anywhere_is_damaged(tmp_path: Path) -> None:
    whole = record(tmp_path / "a.mcap").read_bytes()
    cut = tmp_path / "cut.mcap"
    for length in {0, 1, 8, 100, len(whole) // 2, len(whole) - 9, len(whole) - 1}:
        cut.write_bytes(whole[:length])
        with pytest.raises(DamagedData):
            open_recording(cut).read(Path())


@pytest.mark.slow
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=150)
@given(data=st.data())
def test_recording_with_any_byte_changed_reads_or_is_damaged(tmp_path: Path, data: st.DataObject) -> None:
    path = tmp_path / "a.mcap"
    if not path.exists():
        record(path, steps=5)
    whole = bytearray(path.read_bytes())
    for position in data.draw(st.lists(st.integers(0, len(whole) - 1), min_size=1, max_size=4)):
        whole[position] = data.draw(st.integers(0, 255))
    (tmp_path / "changed.mcap").write_bytes(whole)
    try:
        episode = open_recording(tmp_path / "changed.mcap").read(Path())
    except DamagedData:
        return
    assert episode.columns["state"].shape == (5, 5)


def foreign(path: Path, *, state: list[bytes], action: list[bytes], metadata: bool = True) -> Path:
    with open(path, "wb") as file:
        writer = Writer(file)
        writer.start()
        schema = writer.register_schema("vector", "jsonschema", b"{}")
        for topic, messages in (("/observation/state", state), ("/action", action)):
            channel = writer.register_channel(topic, "json", schema)
            for step, message in enumerate(messages):
                writer.add_message(channel, step * PERIOD_NS, message, step * PERIOD_NS)
        if metadata:
            writer.add_metadata("episode", {"task": "t", "robot": "r", "rate_hz": "20.0"})
        writer.finish()  # type: ignore[no-untyped-call]
    return path


ONE = b'{"values": [1.0]}'


@pytest.mark.parametrize(
    ("state", "action", "metadata"),
    [
        ([ONE, ONE], [ONE], True),
        ([ONE, b'{"values": [1.0, 2.0]}'], [ONE, ONE], True),
        ([ONE, b"not json"], [ONE, ONE], True),
        ([ONE, b'{"other": 1}'], [ONE, ONE], True),
        ([ONE, b'{"values": "text"}'], [ONE, ONE], True),
        ([ONE, b"[1.0]"], [ONE, ONE], True),
        ([b'{"values": []}'], [ONE], True),
        ([], [], True),
        ([ONE, ONE], [ONE, ONE], False),
    ],
)
def test_recording_of_another_writer_with_a_flaw_is_damaged(
    tmp_path: Path, state: list[bytes], action: list[bytes], metadata: bool
) -> None:
    with pytest.raises(DamagedData):
        open_recording(foreign(tmp_path / "a.mcap", state=state, action=action, metadata=metadata)).read(Path())


def test_recording_of_another_writer_without_flaw_is_read(tmp_path: Path) -> None:
    episode = open_recording(foreign(tmp_path / "a.mcap", state=[ONE, ONE], action=[ONE, ONE])).read(Path())
    assert episode.features.names("state") == ("state_0",)
    assert episode.success is None


@pytest.mark.slow
@pytest.mark.parametrize("compression", [CompressionType.ZSTD, CompressionType.LZ4])
def test_recording_whose_chunk_swells_is_damaged_and_does_not_take_the_memory(
    tmp_path: Path, compression: CompressionType
) -> None:
    path = tmp_path / "a.mcap"
    with open(path, "wb") as file:
        writer = Writer(file, compression=compression, chunk_size=1 << 30, enable_crcs=False)
        writer.start()
        schema = writer.register_schema("vector", "jsonschema", b"{}")
        for topic in ("/observation/state", "/action"):
            writer.add_message(writer.register_channel(topic, "json", schema), 0, ONE + b" " * (1 << 27), 0)
        writer.add_metadata("episode", {"task": "t", "robot": "r", "rate_hz": "20.0"})
        writer.finish()  # type: ignore[no-untyped-call]
    with open(path, "rb") as file:
        summary = SeekingReader(file).get_summary()
    assert summary is not None
    (chunk,) = summary.chunk_indexes
    true, told = (size.to_bytes(8, "little") for size in (chunk.uncompressed_size, 1_000))
    path.write_bytes(path.read_bytes().replace(true, told))
    tracemalloc.start()
    try:
        with pytest.raises(DamagedData):
            open_recording(path).read(Path())
        assert tracemalloc.get_traced_memory()[1] < 1 << 26
    finally:
        tracemalloc.stop()


@pytest.mark.skipif(not ROBOTS.exists(), reason="the shared robot recordings are not here")
def test_recording_of_ros_names_the_topics_it_found() -> None:
    with pytest.raises(DamagedData, match="AAA"):
        open_recording(ROBOTS / "logs" / "rosbag2_py_test_mcap_wbag_wbag_0.mcap").read(Path())
