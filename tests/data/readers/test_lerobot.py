from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mainspring.data.episode import Episode, Unreadable
from mainspring.data.readers.episodes.lerobot import lerobot_recordings
from mainspring.domain.errors import DamagedData, MainspringError

from .logs import ROBOTS

RATE_HZ = 20
TABLES = {"v2.1": "data/chunk-000/episode_000001.parquet", "v3.0": "data/chunk-000/file-000.parquet"}
EXTRA: dict[str, dict[str, Any]] = {
    "observation.effort": {"dtype": "float32", "shape": [2], "names": ["left", "right"]},
    "next.reward": {"dtype": "float32", "shape": [1], "names": None},
    "next.success": {"dtype": "bool", "shape": [1], "names": None},
    "frame_index": {"dtype": "int64", "shape": [1], "names": None},
    "observation.grid": {"dtype": "float32", "shape": [2, 2], "names": None},
    "note": {"dtype": "string", "shape": [1], "names": None},
}


def rows(episode: int, length: int) -> dict[str, Any]:
    values = np.random.default_rng(episode).normal(size=(length, 7)).astype(np.float32)
    return {
        "observation.state": values[:, :3].tolist(),
        "action": values[:, 3:5].tolist(),
        "observation.effort": values[:, 5:7].tolist(),
        "next.reward": np.arange(length, dtype=np.float32),
        "next.success": np.arange(length) == (length - 1 if episode == 0 else -1),
        "timestamp": (np.arange(length) / RATE_HZ).astype(np.float32),
        "frame_index": np.arange(length),
        "episode_index": np.full(length, episode),
    }


def dataset(root: Path, version: str, lengths: tuple[int, ...] = (8, 11)) -> Path:
    """Writes a dataset without cameras: a file an episode (v2.1), or one file for all (v3.0)."""
    places = {
        "v2.1": "data/chunk-{episode_chunk:03d}/episode_{episode_index:06d}.parquet",
        "v3.0": "data/chunk-{chunk_index:03d}/file-{file_index:03d}.parquet",
    }
    features = {
        "observation.state": {"dtype": "float32", "shape": [3], "names": ["x", "y", "z"]},
        "action": {"dtype": "float32", "shape": [2], "names": {"motors": ["left", "right"]}},
        **EXTRA,
    }
    info = {
        "codebase_version": version,
        "robot_type": "arm",
        "fps": RATE_HZ,
        "total_episodes": len(lengths),
        "chunks_size": 1000,
        "data_path": places[version],
        "features": features,
    }
    (root / "meta").mkdir(parents=True)
    (root / "data/chunk-000").mkdir(parents=True)
    (root / "meta/info.json").write_text(json.dumps(info))
    tables = [pa.table(rows(episode, length)) for episode, length in enumerate(lengths)]
    if version == "v2.1":
        lines = [{"episode_index": i, "tasks": ["stack"], "length": length} for i, length in enumerate(lengths)]
        (root / "meta/episodes.jsonl").write_text("\n".join(map(json.dumps, lines)))
        for episode, table in enumerate(tables):
            pq.write_table(table, root / f"data/chunk-000/episode_{episode:06d}.parquet")
        return root
    starts = np.cumsum([0, *lengths])
    listed: dict[str, Any] = {
        "episode_index": list(range(len(lengths))),
        "tasks": [["stack"]] * len(lengths),
        "length": list(lengths),
        "data/chunk_index": [0] * len(lengths),
        "data/file_index": [0] * len(lengths),
        "dataset_from_index": starts[:-1],
        "dataset_to_index": starts[1:],
    }
    (root / "meta/episodes/chunk-000").mkdir(parents=True)
    pq.write_table(pa.table(listed), root / "meta/episodes/chunk-000/file-000.parquet")
    pq.write_table(pa.concat_tables(tables), root / TABLES["v3.0"])
    return root


def results(root: Path) -> dict[str, Episode | str]:
    """Reads all recordings: each an episode, or why not."""
    found: dict[str, Episode | str] = {}
    for recording in lerobot_recordings(root):
        try:
            found[recording.name] = recording.read(Path())
        except DamagedData as error:
            found[recording.name] = str(error)
    return found


@pytest.mark.parametrize("version", ["v2.1", "v3.0"])
def test_dataset_gives_its_further_numbers_as_columns(tmp_path: Path, version: str) -> None:
    first, second = (
        episode for episode in results(dataset(tmp_path, version)).values() if isinstance(episode, Episode)
    )
    names = [column.name for column in first.features.columns]
    assert names == ["action", "next.reward", "next.success", "observation.effort", "state"]
    assert first.features.names("observation.effort") == ("left", "right")
    assert first.features.names("next.reward") == ("next.reward_0",)
    wanted = rows(1, 11)
    assert np.array_equal(second.columns["observation.effort"], np.array(wanted["observation.effort"]))
    assert np.array_equal(second.columns["state"], np.array(wanted["observation.state"]))
    assert np.array_equal(second.columns["next.reward"][:, 0], np.arange(11))
    assert (first.success, second.success) == (True, False)


def add_orphan_file(root: Path, version: str) -> None:
    pq.write_table(pa.table(rows(7, 5)), root / "data/chunk-000/episode_000007.parquet")


def add_orphan_rows(root: Path, version: str) -> None:
    table = pq.read_table(root / TABLES[version])
    pq.write_table(pa.concat_tables([table, pa.table(rows(9, 5))]), root / TABLES[version])


def null_reward(root: Path, version: str) -> None:
    table = pq.read_table(root / TABLES[version])
    values = [*table["next.reward"].to_pylist()[:-1], None]
    place = table.column_names.index("next.reward")
    pq.write_table(table.set_column(place, "next.reward", pa.array(values, pa.float32())), root / TABLES[version])


def no_effort(root: Path, version: str) -> None:
    table = pq.read_table(root / "data/chunk-000/episode_000001.parquet")
    pq.write_table(table.drop_columns(["observation.effort"]), root / "data/chunk-000/episode_000001.parquet")


def cut_description(root: Path, version: str) -> None:
    path = root / "meta/episodes.jsonl"
    path.write_text(path.read_text()[:-20])


def disagreeing_length(root: Path, version: str) -> None:
    path = root / "meta/episodes/chunk-000/file-000.parquet"
    table = pq.read_table(path)
    place = table.column_names.index("dataset_to_index")
    pq.write_table(table.set_column(place, "dataset_to_index", pa.array([8, 30])), path)


@pytest.mark.parametrize(
    ("version", "damage", "wanted"),
    [
        ("v2.1", add_orphan_file, {"data/chunk-000/episode_000007.parquet": "rows of no episode"}),
        ("v3.0", add_orphan_file, {"data/chunk-000/episode_000007.parquet": "rows of no episode"}),
        ("v2.1", add_orphan_rows, {"episode_000001": "5 rows of no or another episode"}),
        ("v3.0", add_orphan_rows, {"data/chunk-000/file-000.parquet": "5 of its 24 rows"}),
        ("v2.1", null_reward, {"episode_000001": "empty cells"}),
        ("v3.0", null_reward, {"episode_000001": "empty cells"}),
        ("v2.1", no_effort, {"episode_000001": "observation.effort"}),
        ("v2.1", cut_description, {"episode_000001": "not described", "meta/episodes.jsonl line 2": "no episode"}),
        ("v3.0", disagreeing_length, {"episode_000001": "rows 8 to 30 of the dataset, but 11 frames"}),
    ],
)
def test_dataset_with_damage_gives_the_other_episodes_and_a_reason(
    tmp_path: Path, version: str, damage: Callable[[Path, str], None], wanted: dict[str, str]
) -> None:
    root = dataset(tmp_path, version)
    damage(root, version)
    found = results(root)
    assert isinstance(found["episode_000000"], Episode)
    reasons = {name: said for name, said in found.items() if isinstance(said, str)}
    assert reasons.keys() == wanted.keys()
    assert all(reason in reasons[name] for name, reason in wanted.items())


@pytest.mark.slow
@pytest.mark.parametrize("version", ["v2.1", "v3.0"])
def test_episode_of_countless_rows_is_refused_and_does_not_take_the_memory(tmp_path: Path, version: str) -> None:
    root = dataset(tmp_path, version)
    table = pq.read_table(root / TABLES[version])
    with pq.ParquetWriter(root / TABLES[version], table.schema) as writer:
        many = table.take(np.full(1 << 16, table.num_rows - 1))
        for _ in range(32):  # Groups of rows: no less than one of them can be read.
            writer.write_table(many)
    needed_bytes = 32 * many.nbytes
    del many
    usual = pa.default_memory_pool()
    pool = pa.proxy_memory_pool(usual)
    pa.set_memory_pool(pool)
    try:
        said = results(root)["episode_000001"]
        peak_bytes = pool.max_memory()
    finally:
        pa.set_memory_pool(usual)
    assert isinstance(said, str)
    assert "rows" in said
    assert peak_bytes is not None
    assert peak_bytes < needed_bytes / 2


@pytest.mark.slow
@settings(max_examples=120)
@given(data=st.data(), version=st.sampled_from(["v2.1", "v3.0"]))
def test_broken_dataset_is_read_as_far_as_it_goes_or_refused(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject, version: str
) -> None:
    root = dataset(tmp_path_factory.mktemp("broken"), version)
    paths = sorted(path for path in root.rglob("*") if path.is_file())
    path = data.draw(st.sampled_from(paths))
    content = bytearray(path.read_bytes())
    for _ in range(data.draw(st.integers(1, 4))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    del content[data.draw(st.one_of(st.none(), st.integers(0, len(content)))) :]
    path.write_bytes(content)
    try:
        results(root)
    except MainspringError:
        return


@pytest.mark.skipif(not ROBOTS.exists(), reason="the shared robot recordings are not here")
@pytest.mark.slow
def test_real_dataset_with_a_file_cut_at_random_places_is_read_as_far_as_it_goes_or_refused(tmp_path: Path) -> None:
    source = ROBOTS / "unitree_g1_bottle"
    names = ["meta/info.json", "meta/episodes.jsonl", "data/chunk-000/episode_000000.parquet"]
    video = "videos/chunk-000/observation.images.cam_high/episode_000000.mp4"
    for name in [*names, video]:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes((source / name).read_bytes())
    dice = np.random.default_rng(0)
    for name in names:
        whole = (source / name).read_bytes()
        for length in dice.integers(0, len(whole), 20).tolist():
            (tmp_path / name).write_bytes(whole[:length])
            try:
                found = results(tmp_path)
            except MainspringError:
                continue
            assert any(isinstance(said, str) for said in found.values())
        (tmp_path / name).write_bytes(whole)
    assert isinstance(results(tmp_path)["episode_000000"], Episode)


@pytest.mark.skipif(not ROBOTS.exists(), reason="the shared robot recordings are not here")
def test_dataset_whose_videos_are_missing_names_them_for_each_episode() -> None:
    found = results(ROBOTS / "so101_v3_tabular")
    assert len(found) == 4
    assert all(isinstance(said, str) and "no file videos/observation.images.front" in said for said in found.values())


@pytest.mark.skipif(not ROBOTS.exists(), reason="the shared robot recordings are not here")
def test_real_humanoid_dataset_has_nothing_beside_its_episodes() -> None:
    recordings = lerobot_recordings(ROBOTS / "unitree_g1_bottle")
    assert len(recordings) == 16
    assert not any(isinstance(recording, Unreadable) for recording in recordings)
    assert len(recordings[3].read(Path()).time_ns) > 100
