from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.data.layers import producers
from tests.data.making import gray_of, record_many, version_of, write_lerobot_v2

from mainspring.data import ViewRecipe, build_view, episode_rows, open_view
from mainspring.data.catalog.collect import gc
from mainspring.data.catalog.lineage import descendants
from mainspring.data.catalog.log import Version
from mainspring.data.layers.backfill import BackfillReport, backfill
from mainspring.data.layers.episode import read_recorded
from mainspring.data.layers.layer import facts_table, find_layer, known_layers, layer_pieces
from mainspring.data.layers.pools import LocalPool, RayPool
from mainspring.data.layers.producer import Producer, load_producer, producer, spec_of
from mainspring.domain.errors import InvalidInput, NotFound
from mainspring.domain.ids import EpisodeId
from mainspring.objects import ObjectStore, open_store
from mainspring.testing.time_and_chance import FakeClock

LIMIT_S = 60.0


@pytest.fixture
def url(tmp_path: Path) -> str:
    return str(tmp_path / "store")


@pytest.fixture
def store(url: str) -> ObjectStore:
    return open_store(url)


@pytest.fixture
def version(store: ObjectStore, tmp_path: Path) -> Version:
    return version_of(store, record_many(tmp_path / "raw", 5))


def filled(url: str, version: Version, made_by: Producer = producers.motion, **more: Any) -> BackfillReport:
    fields: dict[str, Any] = {"pool": LocalPool(), "elapsed_s": time.monotonic, **more}
    return backfill(url, version, made_by, **fields)


def test_backfill_makes_columns_and_facts_of_every_episode(
    url: str, store: ObjectStore, version: Version, tmp_path: Path
) -> None:
    done: list[int] = []
    report = filled(url, version, parameters={"window": 1}, progress=lambda at: done.append(at.done))
    assert (report.made, report.held, report.failed) == (5, 0, 0)
    assert done == [1, 2, 3, 4, 5]
    rows = {row.id: row for row in episode_rows(store, version)}
    pieces = layer_pieces(store, report.layer.id, rows)
    facts = {row["id"]: row for row in facts_table(store, report.layer.id).to_pylist()}
    for id, row in rows.items():
        seen = read_recorded(store, row, (pieces[id],), tmp_path)
        speed = np.linalg.norm(np.diff(seen.columns["state"], axis=0, prepend=0), axis=1)
        assert np.allclose(seen.columns["speed"][:, 0], speed)
        assert facts[id]["top_speed"] == pytest.approx(speed.max())
        assert facts[id]["moved"] is bool(speed.max() > 1)


def test_backfill_makes_only_what_is_missing(url: str, store: ObjectStore, version: Version, tmp_path: Path) -> None:
    log = tmp_path / "calls"
    told = {"log": str(log)}
    assert filled(url, version, parameters=told).made == 5
    assert (filled(url, version, parameters=told).made, len(log.read_text().split())) == (0, 5)
    larger = version_of(store, record_many(tmp_path / "more", 3, first_seed=50))
    report = filled(url, larger, parameters=told)
    assert (report.made, report.held) == (3, 5)
    assert max(Counter(log.read_text().split()).values()) == 1


def test_other_parameters_and_other_code_make_other_layers(url: str, store: ObjectStore, version: Version) -> None:
    first = filled(url, version).layer
    assert first == filled(url, version, parameters={"window": 3}).layer
    second = filled(url, version, parameters={"window": 5}).layer
    assert {spec.id for spec in known_layers(store)} == {first.id, second.id}
    assert find_layer(store, second.id[:10]) == second


CODE = """
from mainspring.data.layers.producer import producer
{helper}
@producer(facts=("length",), uses=[helped])
def length(episode, *, scale: float = 1.0):
    {doc}
    return {{"length": {body}}}
"""
HELPER = "def helped(x):\n    return x\n"


def made_by(tmp_path: Path, name: str, **parts: str) -> Producer:
    path = tmp_path / f"{name}.py"
    path.write_text(
        CODE.format(**{"helper": HELPER, "doc": "'A.'", "body": "helped(episode.row.frames * scale)", **parts})
    )
    return load_producer(f"{path}:length")


def test_code_of_a_producer_is_what_it_does_not_how_it_looks(tmp_path: Path) -> None:
    plain = made_by(tmp_path, "plain")
    assert made_by(tmp_path, "said", doc="'Another.'  # And a comment.").code == plain.code
    assert made_by(tmp_path, "changed", body="helped(2 * episode.row.frames * scale)").code != plain.code
    helper = HELPER.replace("return x", "return x + 1")
    assert made_by(tmp_path, "helped", helper=helper).code != plain.code


@pytest.mark.slow
def test_backfill_in_processes_gives_what_one_process_gives(url: str, store: ObjectStore, tmp_path: Path) -> None:
    version = version_of(store, record_many(tmp_path / "raw", 12))
    here = filled(url, version).layer
    facts = facts_table(store, here.id)
    other = str(tmp_path / "other")
    again = version_of(open_store(other), tmp_path / "raw")
    motion = load_producer(f"{Path(producers.__file__)}:motion")  # Processes find a file; `tests` is no package there.
    report = filled(other, again, motion, pool=LocalPool(processes=2))
    assert report.layer == here
    assert facts_table(open_store(other), here.id).equals(facts)


@pytest.mark.slow
def test_producer_of_a_file_runs_in_other_processes(
    url: str, store: ObjectStore, version: Version, tmp_path: Path
) -> None:
    report = filled(url, version, made_by(tmp_path, "own"), pool=LocalPool(processes=1), parameters={"scale": 2.0})
    lengths = {row["id"]: row["length"] for row in facts_table(store, report.layer.id).to_pylist()}
    assert lengths == {row.id: 2.0 * row.frames for row in episode_rows(store, version)}


def test_layer_reads_the_columns_of_another(url: str, store: ObjectStore, version: Version, tmp_path: Path) -> None:
    speed = filled(url, version).layer
    report = filled(url, version, producers.doubled, inputs=[speed.id])
    (row, *_) = episode_rows(store, version)
    pieces = tuple(layer_pieces(store, id, [row.id])[row.id] for id in (speed.id, report.layer.id))
    seen = read_recorded(store, row, pieces, tmp_path)
    assert np.array_equal(seen.columns["doubled"], 2 * seen.columns["speed"])
    assert (
        report.layer.id
        != filled(
            url, version, producers.doubled, inputs=[filled(url, version, parameters={"window": 5}).layer.id]
        ).layer.id
    )


@pytest.mark.slow
def test_view_holds_the_columns_of_its_layers(url: str, store: ObjectStore, version: Version, tmp_path: Path) -> None:
    speed = filled(url, version).layer
    recipe = ViewRecipe(holdout_fraction=0.0, columns=("action", "speed", "state"), layers=(speed.id,))
    view = open_view(
        store, build_view(store, version, recipe, scratch_dir=tmp_path / "scratch").id, tmp_path / "cache", "train"
    )
    rows = {row.id: row for row in episode_rows(store, version)}
    pieces = layer_pieces(store, speed.id, rows)
    wanted = [
        read_recorded(store, rows[EpisodeId(id)], (pieces[EpisodeId(id)],), tmp_path).columns["speed"]
        for id in view.episode_ids
    ]
    assert np.array_equal(view.take("speed", np.arange(view.rows)), np.concatenate(wanted).astype(np.float32))
    larger = version_of(store, record_many(tmp_path / "more", 1, first_seed=50))
    with pytest.raises(NotFound, match="backfill"):
        build_view(store, larger, recipe, scratch_dir=tmp_path / "scratch")


def test_layer_of_a_layer_that_lacks_episodes_is_refused(
    url: str, store: ObjectStore, version: Version, tmp_path: Path
) -> None:
    speed = filled(url, version).layer
    larger = version_of(store, record_many(tmp_path / "more", 1, first_seed=50))
    with pytest.raises(NotFound, match="backfill"):
        filled(url, larger, producers.doubled, inputs=[speed.id])


@pytest.mark.slow
def test_producer_sees_the_pictures_of_a_camera(url: str, store: ObjectStore, tmp_path: Path) -> None:
    version = version_of(store, write_lerobot_v2(tmp_path / "raw", [20], video=True), "stack")
    report = filled(url, version, producers.brightness)
    (fact,) = facts_table(store, report.layer.id)["brightness"].to_pylist()
    assert fact == pytest.approx(np.mean([gray_of(0, frame) for frame in range(20)]), abs=3)


@pytest.mark.slow
def test_episodes_of_which_a_producer_makes_nothing_are_named_and_tried_again(
    url: str, version: Version, tmp_path: Path
) -> None:
    report = filled(url, version, producers.picky)
    assert (report.made, report.failed) == (2, 3)
    assert {failure.reason for failure in report.failures} == {"ValueError: too long for me"}
    assert filled(url, version, producers.picky).failed == 3
    wrong = filled(url, version, producers.short)
    assert (wrong.made, wrong.failed) == (0, 5)
    assert "finite numbers [" in wrong.failures[0].reason


@pytest.mark.slow
def test_backfill_killed_and_run_again_makes_the_rest(url: str, store: ObjectStore, tmp_path: Path) -> None:
    version = version_of(store, record_many(tmp_path / "raw", 40))
    log = tmp_path / "calls"
    code = f"""
from mainspring.data.layers import backfill as module
module.PART_S = 0.0
from mainspring.data import resolve
from mainspring.data.layers.pools import LocalPool
from mainspring.objects import open_store
from tests.data.layers.producers import motion
import threading, time
module.backfill({url!r}, resolve(open_store({url!r}), "pick"), motion, pool=LocalPool(), elapsed_s=time.monotonic,
                parameters={{"log": {str(log)!r}}}, progress=lambda at: threading.Event().wait(0.02))
"""
    process = subprocess.Popen([sys.executable, "-c", code], cwd=Path(__file__).parents[3])
    until_s = time.monotonic() + LIMIT_S
    while not log.exists() or len(log.read_text().split()) < 10:
        assert time.monotonic() < until_s
        assert process.poll() is None
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(0.01)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    report = filled(url, version, parameters={"log": str(log)})
    assert report.made + report.held == 40
    assert report.held >= 9
    assert len(facts_table(store, report.layer.id)) == 40
    calls = Counter(log.read_text().split())
    assert len(calls) == 40
    assert sum(calls.values()) <= 41  # At most the one it was killed in is made twice.


def test_layers_survive_the_collection_of_garbage_and_are_told_in_the_lineage(
    url: str, store: ObjectStore, version: Version, tmp_path: Path
) -> None:
    report = filled(url, version)
    clock = FakeClock(time.time() + 1e9)
    for _ in range(3):
        gc(store, clock=clock, grace_s=3600.0, dry_run=False)
        clock.advance(1e6)
    rows = episode_rows(store, version)
    pieces = layer_pieces(store, report.layer.id, [row.id for row in rows])
    assert all("speed" in read_recorded(store, row, (pieces[row.id],), tmp_path).columns for row in rows)
    assert ("layer", report.layer.id) in [(link.kind, link.id) for link in descendants(store, version)]


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_backfill_on_ray_gives_what_one_process_gives(url: str, store: ObjectStore, version: Version) -> None:
    ray = pytest.importorskip("ray", reason="Ray is not installed: pip install 'mainspring[ray]'")
    pytest.importorskip("ray.data", reason="Ray Data is not installed: pip install 'mainspring[ray]'")
    try:
        ray.init("local", num_cpus=1, include_dashboard=False, log_to_driver=False)
        report = filled(url, version, pool=RayPool())
    finally:
        ray.shutdown()
    assert report.made == 5
    assert facts_table(store, report.layer.id)["moved"].to_pylist() == [True] * 5


@pytest.mark.parametrize("parameters", [{"windows": 3}, {"window": [1]}])
def test_parameters_that_a_producer_has_not_are_refused(parameters: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput, match="call a producer"):
        spec_of(producers.motion, parameters)


@pytest.mark.parametrize("where", ["motion", "tests.data.layers.producers:", "a b:c d"])
def test_name_that_cannot_be_a_producers_is_refused(where: str) -> None:
    with pytest.raises(InvalidInput, match=r"package\.module:name"):
        load_producer(where)


@pytest.mark.parametrize("where", ["no.such.module:it", "tests.data.layers.producers:it", "/nowhere/at_all.py:it"])
def test_producer_that_is_not_there_is_not_found(where: str) -> None:
    with pytest.raises(NotFound):
        load_producer(where)


def test_what_is_no_producer_is_refused() -> None:
    with pytest.raises(InvalidInput, match="@producer"):
        load_producer("tests.data.layers.producers:smoothed")
    with pytest.raises(InvalidInput, match="neither columns nor facts"):
        producer()
