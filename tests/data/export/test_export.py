"""What an export refuses, what it tells before, and how it goes on after a break."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from tests.data.export.making import come_in, go_out, in_order, logged, what_is_lost
from tests.data.layers import producers
from tests.data.making import CAMERA, record_many, version_of, write_lerobot_v2

from mainspring.data.catalog.log import Version
from mainspring.data.export.export import ExportTo, prepare_export, write_export
from mainspring.data.export.run import EXPORT_JOURNAL, MARKER
from mainspring.data.export.survey import ExportRequest
from mainspring.data.layers.backfill import backfill
from mainspring.data.layers.episode import read_recorded
from mainspring.data.layers.pools import LocalPool
from mainspring.domain.errors import Conflict, InvalidInput, Unavailable
from mainspring.objects import ObjectStore, open_store

LENGTHS = [8, 5, 6]


class Failing:
    """A destination that stops answering after some files, as when the process dies there."""

    def __init__(self, store: ObjectStore, files: int) -> None:
        self._store, self._left = store, files
        self.stored: list[str] = []

    def put_file(self, key: str, path: Path) -> None:
        if self._left == 0:
            raise Unavailable("store a file", on=key)
        self._left -= 1
        self._store.put_file(key, path)
        self.stored.append(key)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)


@pytest.fixture
def store(tmp_path: Path) -> ObjectStore:
    return open_store(str(tmp_path / "store"))


@pytest.fixture
def version(store: ObjectStore, tmp_path: Path) -> Version:
    return version_of(store, write_lerobot_v2(tmp_path / "source", LENGTHS, video=True))


def contents(folder: Path) -> dict[str, bytes]:
    files = (path for path in sorted(folder.rglob("*")) if path.is_file())
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in files}


def tries(store: ObjectStore, version: Version, to: str, dest: Path) -> Iterator[list[str]]:
    """Exports with a destination that fails after one more file each time, and yields what each try stored."""
    scratch = dest.parent / "scratch"
    for files in range(1, 100):
        failing = Failing(open_store(str(dest)), files)
        export = prepare_export(store, version, ExportTo(to), ExportRequest(), scratch=scratch)
        try:
            write_export(store, export, lambda: failing, scratch=scratch)  # noqa: B023 - called before the next turn.
        except Unavailable:
            yield failing.stored
        else:
            yield failing.stored
            return


@pytest.mark.slow
@pytest.mark.parametrize("to", ["lerobot-v3", "lerobot-v2.1", "mcap"])
def test_export_that_broke_at_any_file_is_finished_by_the_same_call_and_is_the_same(
    store: ObjectStore, version: Version, tmp_path: Path, to: str
) -> None:
    whole = go_out(store, version, to, tmp_path / "whole")
    stored = list(tries(store, version, to, tmp_path / "broken"))
    assert len(stored) > 2
    assert contents(tmp_path / "broken") == contents(tmp_path / "whole")
    assert sum(len(files) for files in stored) < whole.files * len(stored)  # What was done was not done again.
    assert go_out(store, version, to, tmp_path / "broken") == whole


@pytest.mark.slow
def test_export_finished_before_is_not_written_again(store: ObjectStore, version: Version, tmp_path: Path) -> None:
    first = go_out(store, version, "lerobot-v3", tmp_path / "out")
    path = tmp_path / "out" / "data" / "chunk-000" / "file-000.parquet"
    before = path.stat().st_mtime_ns
    assert go_out(store, version, "lerobot-v3", tmp_path / "out") == first
    assert path.stat().st_mtime_ns == before
    assert not list((tmp_path / "out" / EXPORT_JOURNAL).iterdir())
    path.unlink()
    assert go_out(store, version, "lerobot-v3", tmp_path / "out") == first
    assert path.is_file()


@pytest.mark.slow
def test_file_that_was_cut_short_since_it_was_journaled_is_made_again(
    store: ObjectStore, version: Version, tmp_path: Path
) -> None:
    go_out(store, version, "lerobot-v2.1", tmp_path / "whole")
    first = next(tries(store, version, "lerobot-v2.1", tmp_path / "out"))
    second = Failing(open_store(str(tmp_path / "out")), 4)
    export = prepare_export(store, version, ExportTo.LEROBOT_V21, ExportRequest(), scratch=tmp_path / "scratch")
    with pytest.raises(Unavailable):
        write_export(store, export, lambda: second, scratch=tmp_path / "scratch")
    (tmp_path / "out" / first[0]).write_bytes(b"short")
    go_out(store, version, "lerobot-v2.1", tmp_path / "out")
    assert contents(tmp_path / "out") == contents(tmp_path / "whole")


@pytest.mark.slow
def test_destination_that_holds_something_else_is_refused_and_left_alone(
    store: ObjectStore, version: Version, tmp_path: Path
) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine.txt").write_text("mine")
    with pytest.raises(Conflict, match=r"mine\.txt"):
        go_out(store, version, "mcap", tmp_path / "full")
    assert [path.name for path in (tmp_path / "full").iterdir() if path.is_file()] == ["mine.txt"]
    go_out(store, version, "mcap", tmp_path / "out")
    with pytest.raises(Conflict, match="another export: pick@1 as mcap, 3 episodes"):
        go_out(store, version, "lerobot-v3", tmp_path / "out")
    with pytest.raises(Conflict, match="another export"):
        go_out(store, version, "mcap", tmp_path / "out", ExportRequest(without_cameras=(CAMERA,)))


@pytest.mark.slow
def test_export_goes_to_an_object_store(store: ObjectStore, version: Version, tmp_path: Path) -> None:
    go_out(store, version, "lerobot-v3", tmp_path / "out")
    remote = open_store("memory://")
    export = prepare_export(store, version, ExportTo.LEROBOT_V3, ExportRequest(), scratch=tmp_path / "scratch")
    write_export(store, export, lambda: remote, scratch=tmp_path / "scratch")
    held = {entry.key: remote.get(entry.key) for entry in remote.list("")}
    assert held == contents(tmp_path / "out")


@pytest.mark.slow
def test_selection_of_episodes_and_cameras_goes_out_alone(store: ObjectStore, version: Version, tmp_path: Path) -> None:
    request = ExportRequest(where="frames < 8", without_cameras=(CAMERA,))
    report = go_out(store, version, "lerobot-v3", tmp_path / "out", request)
    assert (report.episodes, report.frames, report.copied) == (2, 11, 0)
    other, found = come_in(tmp_path / "out", tmp_path / "other")
    assert [row.frames for row in in_order(other, found)] == [5, 6]
    assert found.features.cameras == ()


@pytest.mark.slow
def test_layer_goes_along_as_columns_and_its_facts_choose(store: ObjectStore, tmp_path: Path) -> None:
    import time

    version = version_of(store, record_many(tmp_path / "raw", 4))
    layer = backfill(
        str(tmp_path / "store"), version, producers.motion, pool=LocalPool(), elapsed_s=time.monotonic
    ).layer
    request = ExportRequest(layers=(layer.id[:10],), where="motion.top_speed > 0 and frames > 20")
    assert "layer motion" in what_is_lost(store, version, "mcap", tmp_path, request)
    go_out(store, version, "mcap", tmp_path / "out", request)
    other, found = come_in(tmp_path / "out", tmp_path / "other")
    assert found.episodes == 3
    assert found.features.names("speed") == ("fast",)
    values = read_recorded(other, in_order(other, found)[0], (), tmp_path / "local").columns["speed"]
    assert float(values.max()) > 0


def test_camera_that_is_not_there_and_condition_that_holds_for_nothing_are_refused(
    store: ObjectStore, tmp_path: Path
) -> None:
    version = version_of(store, record_many(tmp_path / "raw", 2))
    with pytest.raises(InvalidInput, match="top"):
        what_is_lost(store, version, "mcap", tmp_path, ExportRequest(cameras=("top",)))
    with pytest.raises(InvalidInput, match="0 episodes"):
        what_is_lost(store, version, "mcap", tmp_path, ExportRequest(where="frames < 0"))


@pytest.mark.slow
def test_statistics_of_columns_are_exact_and_those_of_pictures_the_source_s(store: ObjectStore, tmp_path: Path) -> None:
    source = write_lerobot_v2(tmp_path / "source", LENGTHS, video=True)
    marked = {"min": 0.25, "max": 0.75, "mean": 0.5, "std": 0.125}
    said = {kind: [[[value]]] * 3 for kind, value in marked.items()} | {"count": [5]}
    lines = [{"episode_index": number, "stats": {CAMERA: said}} for number in (0, 2)]
    (source / "meta" / "episodes_stats.jsonl").write_text("\n".join(map(json.dumps, lines)))
    version = version_of(store, source)
    go_out(store, version, "lerobot-v3", tmp_path / "v3")
    go_out(store, version, "lerobot-v2.1", tmp_path / "v2")
    table = pq.read_table(tmp_path / "v3" / "meta" / "episodes" / "chunk-000" / "file-000.parquet")
    means = table[f"stats/{CAMERA}/mean"].to_pylist()
    assert means[0] == means[2] == said["mean"]
    assert means[1] != said["mean"]
    assert abs(means[1][0][0][0] - np.mean([90 + 4 * frame for frame in range(5)]) / 255) < 0.02
    states = [
        np.stack(pq.read_table(path)["observation.state"].to_numpy())
        for path in sorted((source / "data").rglob("*.parquet"))
    ]
    every = np.concatenate(states)
    stats = json.loads((tmp_path / "v3" / "meta" / "stats.json").read_text())["observation.state"]
    for kind, expected in (
        ("min", every.min(0)),
        ("max", every.max(0)),
        ("mean", every.mean(0)),
        ("std", every.std(0)),
    ):
        assert np.allclose(stats[kind], expected, rtol=1e-5), kind
    assert stats["count"] == [sum(LENGTHS)]
    told = [json.loads(line) for line in (tmp_path / "v2" / "meta" / "episodes_stats.jsonl").read_text().splitlines()]
    assert told[1]["stats"]["observation.state"]["min"] == states[1].min(0).tolist()


@pytest.mark.slow
def test_version_of_several_rates_is_refused_for_lerobot_with_a_condition_that_helps(
    store: ObjectStore, tmp_path: Path
) -> None:
    record_many(tmp_path / "raw", 1)
    from mainspring.data.recording import EpisodeWriter

    with EpisodeWriter(tmp_path / "raw" / "b.mcap", task="pick", robot="arm", rate_hz=50) as writer:
        for step in range(30):
            writer.write(step * 20_000_000, np.zeros(5) + step, np.zeros(3) + step)
        writer.finish(success=None)
    version = version_of(store, tmp_path / "raw")
    with pytest.raises(InvalidInput, match='--where "rate_hz = 20"'):
        what_is_lost(store, version, "lerobot-v3", tmp_path)
    assert "recipe.yaml tells one of 2" in what_is_lost(store, version, "mcap", tmp_path)


def test_marker_says_what_an_export_is(store: ObjectStore, tmp_path: Path) -> None:
    version = version_of(store, record_many(tmp_path / "raw", 2))
    report = go_out(store, version, "rlds", tmp_path / "out")
    said = json.loads((tmp_path / "out" / MARKER).read_text())
    assert (said["version"], said["format"], said["finished"]) == ("pick@1", "rlds", True)
    assert report.files == 3


def test_rerun_without_its_sdk_is_refused_with_the_command(store: ObjectStore, tmp_path: Path) -> None:
    try:
        import rerun  # type: ignore[import-not-found]  # noqa: F401
    except ImportError:
        version = version_of(store, record_many(tmp_path / "raw", 2))
        with pytest.raises(InvalidInput, match="pip install rerun-sdk"):
            what_is_lost(store, version, "rerun", tmp_path)
    else:
        pytest.skip("Rerun is installed here")


@pytest.mark.slow
def test_log_that_is_not_chosen_for_mcap_leaves_its_calibration_behind_and_says_so(
    store: ObjectStore, tmp_path: Path
) -> None:
    version = logged(store, tmp_path, chained=False)
    assert "camera_info" in what_is_lost(store, version, "rlds", tmp_path)
    assert what_is_lost(store, version, "mcap", tmp_path) == ""
