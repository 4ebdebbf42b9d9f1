from __future__ import annotations

import os
import re
import signal
import threading
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.data.making import ROBOTS, copy_humanoid, record, record_many, version_of, write_lerobot_v2

from mainspring.data import Component, Loader, Sampling, View, ViewRecipe, build_view, gather, open_view
from mainspring.data.catalog.versions import Version
from mainspring.data.loader.decoding import Processes
from mainspring.data.loader.making import RingMaker
from mainspring.domain.errors import DamagedData, InvalidInput
from mainspring.domain.ids import EpisodeId
from mainspring.objects import ObjectStore, open_store

LENGTHS = [23, 40, 17, 31, 8, 29]
PLAIN = ViewRecipe(holdout_fraction=0.0)
CODED = ViewRecipe(holdout_fraction=0.0, codec="h264", gop=5, image_size=32)


@pytest.fixture
def store(tmp_path: Path) -> ObjectStore:
    return open_store(str(tmp_path / "store"))


@pytest.fixture
def plain(store: ObjectStore, tmp_path: Path) -> View:
    return opened(store, version_of(store, record_many(tmp_path / "raw", 8)), tmp_path, PLAIN)


@pytest.fixture
def coded(store: ObjectStore, tmp_path: Path) -> View:
    version = version_of(store, write_lerobot_v2(tmp_path / "raw", LENGTHS, video=True), "stack")
    return opened(store, version, tmp_path, CODED)


def opened(store: ObjectStore, version: Version, tmp_path: Path, recipe: ViewRecipe) -> View:
    manifest = build_view(store, version, recipe, scratch_dir=tmp_path / "scratch")
    return open_view(store, manifest.id, tmp_path / "cache", "train")


def sampling(**fields: Any) -> Sampling:
    return Sampling(**{"batch_size": 16, "seed": 3, "horizon": 4, "lanes": 6, **fields})


def copied(batch: dict[str, Any]) -> dict[str, Any]:
    return {name: array.copy() for name, array in batch.items()}


def assert_same(batch: dict[str, Any], wanted: dict[str, Any]) -> None:
    assert sorted(batch) == sorted(wanted)
    for name, array in batch.items():
        assert np.array_equal(array, wanted[name]), name


@pytest.mark.slow
@pytest.mark.parametrize("world_size", [1, 2, 3, 4])
@pytest.mark.parametrize("kind", ["plain", "coded"])
def test_loader_shares_of_any_world_are_the_same_global_batch(
    request: pytest.FixtureRequest, world_size: int, kind: str
) -> None:
    view: View = request.getfixturevalue(kind)
    whole = Loader(view, sampling(batch_size=24))
    ranks = [Loader(view, sampling(batch_size=24), rank=rank, world_size=world_size) for rank in range(world_size)]
    for step in (0, 2, 1_000_000):
        wanted = whole.batch(step)
        for rank, loader in enumerate(ranks):
            assert_same(loader.batch(step), {name: array[rank::world_size] for name, array in wanted.items()})


@pytest.mark.slow
@pytest.mark.parametrize("layout", ["rgb", "yuv"])
@pytest.mark.parametrize("shuffle", ["blocks", "global"])
def test_loader_of_video_gives_the_frames_of_its_rows(coded: View, layout: Any, shuffle: Any) -> None:
    loader = Loader(coded, sampling(pixels=layout, shuffle=shuffle))
    with loader.stream(0) as stream:
        for step, batch in zip(range(25), stream, strict=False):
            assert_same(batch, gather(coded, loader.rows(step), horizon=4, layout=layout))


@pytest.mark.slow
@pytest.mark.parametrize("layout", ["rgb", "yuv"])
@pytest.mark.parametrize(("shuffle", "image_history"), [("blocks", 2), ("blocks", 4), ("global", 3), ("blocks", 9)])
def test_loader_with_image_history_gives_the_frames_before_its_rows(
    coded: View, layout: Any, shuffle: Any, image_history: int
) -> None:
    loader = Loader(coded, sampling(pixels=layout, shuffle=shuffle, image_history=image_history, history=2))
    now = Loader(coded, sampling(pixels=layout, shuffle=shuffle, history=2))
    every = gather(coded, np.arange(coded.rows), horizon=1, layout=layout)["images"]  # Each decoded by itself.
    starts = coded.episode_starts[coded.episode_of(np.arange(coded.rows))]
    with loader.stream(0) as stream:
        for step, batch in zip(range(25), stream, strict=False):
            rows = loader.rows(step)
            assert np.array_equal(rows, now.rows(step))
            wanted = [[max(row - back, starts[row]) for back in reversed(range(image_history))] for row in rows]
            assert_same(batch, {**gather(coded, rows, horizon=4, history=2), "images": every[np.array(wanted)]})
            assert_same(batch, gather(coded, rows, horizon=4, history=2, image_history=image_history, layout=layout))


@pytest.mark.slow
@pytest.mark.parametrize("world_size", [1, 2, 3])
def test_loader_with_image_history_resumes_at_every_step_in_any_world(coded: View, world_size: int) -> None:
    wished = sampling(batch_size=12, image_history=3)
    with Loader(coded, wished).stream(0) as stream:
        wanted = [copied(batch) for _, batch in zip(range(16), stream, strict=False)]
    for start in range(14):
        for rank in range(world_size):
            workers = 2 if start == 5 else 0  # Once is enough: they start Python anew.
            loader = Loader(coded, wished, rank=rank, world_size=world_size, workers=workers)
            with loader.stream(start) as stream:
                for step, batch in zip(range(start, start + 2), stream, strict=False):
                    assert_same(batch, {name: array[rank::world_size] for name, array in wanted[step].items()})


def test_loader_with_image_history_decodes_a_frame_once_for_all_who_show_it(coded: View) -> None:
    maker = Loader(coded, sampling(image_history=4))._maker(0)()
    try:
        assert maker._frames is not None
        bundles = list(maker._frames._bundles.of(0))
    finally:
        maker.close()
    told = [[bundle.name(frame) for frame in range(bundle.frames.shape[1])] for bundle in bundles]
    assert all(len(set(names)) == len(names) for names in told)
    places = [np.concatenate([bundle.frames[1][bundle.frames[1] >= 0], bundle.copies[1]]) for bundle in bundles]
    assert sorted(np.concatenate(places)) == list(range(6 * coded.gop * 4))


@pytest.mark.slow
def test_raw_view_with_image_history_repeats_an_episodes_first_image_before_it(
    store: ObjectStore, tmp_path: Path
) -> None:
    version = version_of(store, write_lerobot_v2(tmp_path / "raw", [9, 12], video=True), "stack")
    view = opened(store, version, tmp_path, ViewRecipe(holdout_fraction=0.0, image_size=16))
    loader = Loader(view, sampling(image_history=2))
    images, rows = view.take("images", np.arange(view.rows)), loader.rows(3)
    starts = view.episode_starts[view.episode_of(rows)]
    wanted = np.stack([images[np.maximum(rows - 1, starts)], images[rows]], axis=1)
    assert np.array_equal(loader.batch(3)["images"], wanted)


def test_loader_of_video_decodes_each_frame_once_an_epoch(coded: View) -> None:
    loader = Loader(coded, sampling(batch_size=6))
    seen = np.concatenate([loader.rows(step) for step in range(coded.rows // 6)])
    counts = np.bincount(seen, minlength=coded.rows)
    assert counts.max() <= 2
    assert (counts == 2).sum() < coded.gop


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["plain", "coded"])
def test_loader_started_at_any_step_goes_on_as_if_never_stopped(request: pytest.FixtureRequest, kind: str) -> None:
    view: View = request.getfixturevalue(kind)
    loader = Loader(view, sampling())
    with loader.stream(0) as stream:
        wanted = [copied(batch) for _, batch in zip(range(30), stream, strict=False)]
    for start in range(20):
        with Loader(view, sampling()).stream(start) as stream:
            for step, batch in zip(range(start, 30), stream, strict=False):
                assert_same(batch, wanted[step])


@pytest.mark.slow
def test_loader_whose_world_changes_in_the_middle_goes_on_with_the_same_global_batches(coded: View) -> None:
    whole = Loader(coded, sampling(batch_size=12))
    with whole.stream(0) as stream:
        wanted = [copied(batch) for _, batch in zip(range(12), stream, strict=False)]
    for first, world_size in ((0, 2), (4, 3), (8, 1)):
        for rank in range(world_size):
            with Loader(coded, sampling(batch_size=12), rank=rank, world_size=world_size).stream(first) as stream:
                for step, batch in zip(range(first, first + 4), stream, strict=False):
                    assert_same(batch, {name: array[rank::world_size] for name, array in wanted[step].items()})


@pytest.mark.slow
def test_loader_with_processes_gives_what_a_thread_gives(coded: View) -> None:
    with Loader(coded, sampling()).stream(5) as here, Loader(coded, sampling(), workers=2).stream(5) as processes:
        for _, wanted, batch in zip(range(25), here, processes, strict=False):
            assert_same(batch, wanted)


@pytest.mark.slow
def test_loader_whose_decoders_are_killed_replaces_them_and_keeps_its_order(
    coded: View, caplog: pytest.LogCaptureFixture
) -> None:
    with Loader(coded, sampling()).stream(0) as stream:
        wanted = [copied(batch) for _, batch in zip(range(60), stream, strict=False)]
    victim = 0
    with Loader(coded, sampling(), workers=2).stream(0) as stream:
        for step, batch in zip(range(60), stream, strict=False):
            assert_same(batch, wanted[step])
            if step in (3, 20):
                maker = stream._shared.maker
                assert isinstance(maker, RingMaker)
                assert maker._frames is not None
                decoders = maker._frames.decoders
                assert isinstance(decoders, Processes)
                victim = decoders.process_ids[step % 2]
                os.kill(victim, signal.SIGKILL)
    assert f"decoder {victim} " in caplog.text


@pytest.mark.slow
def test_loader_of_damaged_packets_names_camera_and_episode(store: ObjectStore, coded: View, tmp_path: Path) -> None:
    for shard in coded.manifest.splits["train"].shards:
        for video in shard.videos.values():
            path = tmp_path / "cache" / video.data.id
            damaged = bytearray(path.read_bytes())
            damaged[200:] = bytes(len(damaged) - 200)
            path.write_bytes(damaged)
    view = open_view(store, coded.manifest.id, tmp_path / "cache", "train")
    told = []
    for workers in (0, 1):
        with Loader(view, sampling(), workers=workers).stream(0) as stream, pytest.raises(DamagedData) as caught:
            list(islice(stream, 100))
        told.append(str(caught.value))
    assert told[0] == told[1]
    (found,) = re.findall(r"observation.images.front, episode (\w+), row (\d+) of it", told[0])
    assert found[0] in view.episode_ids
    assert int(found[1]) < LENGTHS[view.episode_ids.index(found[0])]


def test_loader_that_keeps_some_episodes_reads_no_other(plain: View) -> None:
    kept = tuple(map(EpisodeId, plain.episode_ids[2:5]))
    loader = Loader([Component(view=plain, keep=kept)], sampling())
    rows = np.concatenate([loader.rows(step) for step in range(30)])
    assert {plain.episode_ids[number] for number in plain.episode_of(rows)} == set(kept)


def test_loader_that_keeps_nothing_is_refused(plain: View) -> None:
    with pytest.raises(InvalidInput, match="no episode"):
        Loader([Component(view=plain, keep=())], sampling())


@pytest.mark.slow
def test_mixture_of_views_gives_samples_of_each_by_weight(store: ObjectStore, coded: View, tmp_path: Path) -> None:
    other = opened(
        store, version_of(store, write_lerobot_v2(tmp_path / "more", [50, 21], video=True), "more"), tmp_path, CODED
    )
    loader = Loader([Component(view=coded, weight=3.0), Component(view=other)], sampling())
    order = loader._order.samples(np.arange(20_000))
    assert 0.23 < order.component.mean() < 0.27
    batch = loader.batch(7)
    samples = loader._order.samples(np.arange(7 * 16, 8 * 16))
    for component, view in enumerate((coded, other)):
        here = samples.component == component
        assert_same({name: array[here] for name, array in batch.items()}, gather(view, samples.row[here], horizon=4))


@pytest.mark.slow
def test_mixture_of_views_of_different_shape_is_refused(plain: View, coded: View) -> None:
    with pytest.raises(InvalidInput, match="one recipe"):
        Loader([Component(view=plain), Component(view=coded)], sampling())


def test_loader_gives_every_row_once_an_epoch_in_another_order(plain: View) -> None:
    loader = Loader(plain, sampling(batch_size=10))
    order = np.concatenate([loader.rows(step) for step in range(-(-2 * plain.rows // 10))])
    first, second = order[: plain.rows], order[plain.rows : 2 * plain.rows]
    assert np.array_equal(np.sort(first), np.arange(plain.rows))
    assert np.array_equal(np.sort(second), np.arange(plain.rows))
    assert not np.array_equal(first, second)


def test_batch_actions_stop_and_history_begins_at_its_episode(store: ObjectStore, tmp_path: Path) -> None:
    view = opened(store, version_of(store, record_many(tmp_path / "raw", 3)), tmp_path, PLAIN)
    batch = gather(view, np.arange(view.rows), horizon=5, history=3)
    states, actions = (view.take(name, np.arange(view.rows)) for name in ("state", "action"))
    start = 0
    for end in view.episode_ends.tolist():
        for row in range(start, end):
            inside = min(5, end - row)
            assert batch["valid"][row].tolist() == [True] * inside + [False] * (5 - inside)
            assert np.array_equal(batch["actions"][row, :inside], actions[row : row + inside])
            assert (batch["actions"][row, inside:] == actions[end - 1]).all()
            before = [max(start, row - 2), max(start, row - 1), row]
            assert np.array_equal(batch["state"][row], states[before])
        start = end


def test_loader_larger_than_its_data_runs_through_epochs(store: ObjectStore, tmp_path: Path) -> None:
    view = opened(store, version_of(store, record(tmp_path / "raw" / "a.mcap", steps=7)), tmp_path, PLAIN)
    counts = np.bincount(Loader(view, sampling(batch_size=100)).rows(0), minlength=7)
    assert counts.sum() == 100
    assert set(counts.tolist()) <= {14, 15}


@pytest.mark.parametrize(
    "numbers",
    [
        {"batch_size": 0},
        {"horizon": 0},
        {"history": 0},
        {"image_history": 0},
        {"lanes": 0},
        {"rank": 2, "world_size": 2},
        {"rank": -1},
        {"batch_size": 9, "world_size": 2},
        {"workers": -1},
    ],
)
def test_loader_with_numbers_that_do_not_fit_is_refused(plain: View, numbers: dict[str, int]) -> None:
    own: Any = {name: numbers[name] for name in numbers if name in ("rank", "world_size", "workers")}
    with pytest.raises(InvalidInput):
        Loader(plain, sampling(**{name: numbers[name] for name in numbers if name not in own}), **own)


@pytest.mark.parametrize("kind", ["plain", "coded"])
def test_stream_closed_or_forgotten_ends_its_thread(request: pytest.FixtureRequest, kind: str) -> None:
    loader = Loader(request.getfixturevalue(kind), sampling())
    before = threading.active_count()
    closed, forgotten = loader.stream(0), loader.stream(0)
    next(forgotten)
    closed.close()
    assert list(closed) == []
    del forgotten
    assert threading.active_count() == before


def test_stream_whose_batch_fails_raises_where_it_is_asked(plain: View) -> None:
    with Loader(plain, sampling()).stream(2**70) as stream, pytest.raises(OverflowError):
        next(stream)


@pytest.mark.skipif(not ROBOTS.exists(), reason="the shared robot recordings are not here")
@pytest.mark.slow
def test_humanoid_episodes_become_batches(store: ObjectStore, tmp_path: Path) -> None:
    version = version_of(store, copy_humanoid(tmp_path / "raw", 3), "bottle")
    view = opened(store, version, tmp_path, ViewRecipe(holdout_fraction=0.0, codec="h264", image_size=64))
    assert view.rows == 393 + 343 + 357
    batch = Loader(view, sampling(batch_size=32, horizon=8)).batch(0)
    shapes = {name: (array.shape, str(array.dtype)) for name, array in batch.items()}
    assert shapes == {
        "state": ((32, 26), "float32"),
        "actions": ((32, 8, 26), "float32"),
        "valid": ((32, 8), "bool"),
        "images": ((32, 1, 64, 64, 3), "uint8"),
    }
    assert batch["images"].std() > 20


@pytest.mark.slow
@pytest.mark.parametrize("workers", [0, 1])
def test_mixture_of_robots_shows_each_camera_at_its_place_and_black_where_there_is_none(
    coded: View, workers: int
) -> None:
    camera = coded.cameras[0]
    seen = ("", camera, "")
    blind = Component(view=coded, keep=tuple(EpisodeId(id) for id in coded.episode_ids[:2]), cameras=("", "", ""))
    mixture = [Component(view=coded, weight=3.0, cameras=seen), blind]

    def fit(component: int, rows: Any, batch: Any) -> Any:
        return {"state": np.pad(batch["state"], [(0, 0), (0, 2)]), "of": np.full(len(rows), component)}

    loader = Loader(mixture, sampling(), workers=workers, fit=fit)
    with loader.stream(0) as stream:
        for step in range(6):
            batch, samples = copied(next(stream)), loader.samples(step)
            assert sorted(batch) == ["images", "of", "state"]
            assert (batch["of"] == samples.component).all()
            shown = gather(coded, samples.row, horizon=4)["images"][:, 0]
            for row, of in enumerate(samples.component):
                assert not batch["images"][row, [0, 2]].any()
                assert np.array_equal(batch["images"][row, 1], shown[row] if of == 0 else np.zeros_like(shown[row]))
    assert {0, 1} == set(loader.samples(0).component) | set(loader.samples(5).component)


@pytest.mark.slow
def test_loader_of_no_cameras_gives_no_images_in_the_same_order(coded: View) -> None:
    whole, blind = (Loader([Component(view=coded, cameras=cameras)], sampling()) for cameras in (None, ()))
    batch, wanted = blind.batch(2), whole.batch(2)
    wanted.pop("images")
    assert_same(batch, wanted)


@pytest.mark.slow
def test_component_with_a_camera_that_the_view_lacks_is_refused(plain: View, coded: View) -> None:
    with pytest.raises(InvalidInput, match=r"wrist.*wanted one of observation"):
        Component(view=coded, cameras=("wrist",))
    with pytest.raises(InvalidInput, match="a view with images"):
        Component(view=plain, cameras=("wrist",))
