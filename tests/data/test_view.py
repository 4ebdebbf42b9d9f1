from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from mainspring.data import Loader, Statistics, View, ViewRecipe, gather, open_view
from mainspring.data.catalog.versions import Version, episode_rows
from mainspring.data.views.build import ViewProgress, build_view
from mainspring.data.views.moments import Moments
from mainspring.domain.errors import DamagedData, InvalidInput, NotFound
from mainspring.objects import ObjectStore, open_store

from .making import ROBOTS, copy_humanoid, gray_of, record, record_many, version_of, write_lerobot_v2, write_lerobot_v3

GOLDEN_ROWS = [29, 61, 94, 51, 25, 57, 90, 35]


@pytest.fixture
def store(tmp_path: Path) -> ObjectStore:
    return open_store(str(tmp_path / "store"))


@pytest.fixture
def version(store: ObjectStore, tmp_path: Path) -> Version:
    return version_of(store, record_many(tmp_path / "raw", 8))


def opened(store: ObjectStore, version: Version, tmp_path: Path, recipe: ViewRecipe, split: str = "train") -> View:
    manifest = build_view(store, version, recipe, scratch_dir=tmp_path / "scratch")
    assert split in ("train", "holdout")
    return open_view(store, manifest.id, tmp_path / "cache", "train" if split == "train" else "holdout")


def test_view_holds_every_step_of_every_episode_once(store: ObjectStore, version: Version, tmp_path: Path) -> None:
    progress: list[ViewProgress] = []
    build_view(store, version, ViewRecipe(), scratch_dir=tmp_path / "scratch", progress=progress.append)
    train = opened(store, version, tmp_path, ViewRecipe())
    holdout = opened(store, version, tmp_path, ViewRecipe(), "holdout")
    assert {*train.episode_ids, *holdout.episode_ids} == {row.id for row in episode_rows(store, version)}
    assert not {*train.episode_ids} & {*holdout.episode_ids}
    assert train.rows + holdout.rows == version.frames
    assert [entry.done for entry in progress] == list(range(1, 9))
    assert not list((tmp_path / "scratch").iterdir())


def test_view_statistics_are_those_of_its_training_rows(store: ObjectStore, version: Version, tmp_path: Path) -> None:
    view = opened(store, version, tmp_path, ViewRecipe(holdout_fraction=0.3))
    for column, statistics in (("state", view.manifest.state), ("action", view.manifest.action)):
        values = view.take(column, np.arange(view.rows)).astype(np.float64)
        assert statistics.count == view.rows
        np.testing.assert_allclose(statistics.mean, values.mean(axis=0), atol=1e-6)
        np.testing.assert_allclose(statistics.std, values.std(axis=0), rtol=1e-5)
        np.testing.assert_allclose(statistics.min, values.min(axis=0), rtol=1e-6)
        np.testing.assert_allclose(statistics.max, values.max(axis=0), rtol=1e-6)
        normalised = statistics.normalised(values)
        np.testing.assert_allclose(normalised.mean(axis=0), 0.0, atol=1e-5)
        np.testing.assert_allclose(normalised.std(axis=0), 1.0, atol=1e-5)
        np.testing.assert_allclose(statistics.restored(normalised), values, atol=1e-5)


def test_statistics_of_a_constant_dimension_leave_it_finite() -> None:
    statistics: Statistics = Moments.of(np.full((10, 1), 3.7)).merged(Moments.of(np.full((5, 1), 3.7))).statistics()
    assert statistics.normalised(np.array([3.7])).tolist() == pytest.approx([0.0])


def test_view_built_again_is_the_same_view(store: ObjectStore, version: Version, tmp_path: Path) -> None:
    first = build_view(store, version, ViewRecipe(), scratch_dir=tmp_path / "scratch")
    stored = store.list("")
    assert build_view(store, version, ViewRecipe(), scratch_dir=tmp_path / "scratch") == first
    assert store.list("") == stored
    other = build_view(store, version, ViewRecipe(holdout_fraction=0.5), scratch_dir=tmp_path / "scratch")
    assert other.id != first.id


def test_view_built_elsewhere_has_the_same_bytes(store: ObjectStore, version: Version, tmp_path: Path) -> None:
    first = build_view(store, version, ViewRecipe(), scratch_dir=tmp_path / "scratch")
    memory = open_store("memory://")
    again = build_view(memory, version_of(memory, tmp_path / "raw"), ViewRecipe(), scratch_dir=tmp_path / "scratch")
    assert again == first


def test_split_of_a_grown_dataset_keeps_episodes_on_their_side(
    store: ObjectStore, version: Version, tmp_path: Path
) -> None:
    recipe = ViewRecipe(holdout_fraction=0.4)
    before = set(opened(store, version, tmp_path, recipe, "holdout").episode_ids)
    grown = version_of(store, record_many(tmp_path / "more", 4, first_seed=100))
    after = set(opened(store, grown, tmp_path, recipe, "holdout").episode_ids)
    assert before <= after


@pytest.mark.parametrize(("episodes", "fraction", "held"), [(1, 0.5, 0), (2, 0.0001, 1), (2, 0.9999, 1), (3, 0.0, 0)])
def test_split_of_few_episodes_leaves_each_wanted_side_one(
    store: ObjectStore, tmp_path: Path, episodes: int, fraction: float, held: int
) -> None:
    version = version_of(store, record_many(tmp_path / "raw", episodes))
    recipe = ViewRecipe(holdout_fraction=fraction)
    manifest = build_view(store, version, recipe, scratch_dir=tmp_path / "scratch")
    assert manifest.splits["holdout"].episodes == held
    assert manifest.splits["train"].episodes == episodes - held
    if not held:
        with pytest.raises(NotFound, match="no episodes on this side"):
            open_view(store, manifest.id, tmp_path / "cache", "holdout")


@pytest.mark.parametrize("layout", ["v2", "v3"])
def test_view_images_are_the_frames_of_their_steps(store: ObjectStore, tmp_path: Path, layout: str) -> None:
    lengths = [10, 12, 7]
    if layout == "v2":
        source = write_lerobot_v2(tmp_path / "raw", lengths, video=True)
    else:
        source = write_lerobot_v3(tmp_path / "raw", lengths)
    version = version_of(store, source, "stack")
    view = opened(store, version, tmp_path, ViewRecipe(image_size=16, holdout_fraction=0.0))
    images = gather(view, np.arange(view.rows), horizon=1)["images"]
    assert images.shape == (29, 1, 16, 16, 3)
    episode_of: dict[str, int] = {row.id: int(row.source[-6:]) for row in episode_rows(store, version)}
    wanted = [gray_of(episode_of[name], step) for name in view.episode_ids for step in range(lengths[episode_of[name]])]
    np.testing.assert_allclose(images.mean(axis=(1, 2, 3, 4)), wanted, atol=3)


def test_view_of_many_shards_reads_as_one(store: ObjectStore, version: Version, tmp_path: Path) -> None:
    one = opened(store, version, tmp_path, ViewRecipe(holdout_fraction=0.0))
    many = opened(store, version, tmp_path, ViewRecipe(holdout_fraction=0.0, shard_bytes=2_000))
    assert len(one.manifest.splits["train"].shards) == 1
    assert len(many.manifest.splits["train"].shards) > 3
    rows = np.random.default_rng(0).permutation(one.rows)
    for name, array in gather(one, rows, horizon=7).items():
        assert np.array_equal(array, gather(many, rows, horizon=7)[name])


def test_view_opened_by_many_at_once_is_whole_for_all(store: ObjectStore, version: Version, tmp_path: Path) -> None:
    manifest = build_view(store, version, ViewRecipe(), scratch_dir=tmp_path / "scratch")
    with ThreadPoolExecutor(8) as pool:
        views = list(pool.map(lambda _: open_view(store, manifest.id, tmp_path / "cache", "train"), range(8)))
    wanted = views[0].take("state", np.arange(views[0].rows))
    assert all(np.array_equal(view.take("state", np.arange(view.rows)), wanted) for view in views)


def test_view_with_a_changed_blob_is_not_opened(store: ObjectStore, version: Version, tmp_path: Path) -> None:
    manifest = build_view(store, version, ViewRecipe(), scratch_dir=tmp_path / "scratch")
    blob = manifest.splits["train"].shards[0].columns["action"]
    data = bytearray(store.get(blob.key))
    data[-1] ^= 1
    store.put(blob.key, data)
    with pytest.raises(DamagedData):
        open_view(store, manifest.id, tmp_path / "cache", "train")


def test_view_unknown_is_not_found(store: ObjectStore, tmp_path: Path) -> None:
    with pytest.raises(NotFound):
        open_view(store, "0" * 32, tmp_path / "cache", "train")


def test_recipe_out_of_range_is_refused() -> None:
    for recipe in ({"image_size": 0}, {"image_size": 10**6}, {"shard_bytes": 0}):
        with pytest.raises(InvalidInput):
            ViewRecipe(**recipe)
    with pytest.raises(InvalidInput):
        ViewRecipe(holdout_fraction=1.0)


@pytest.mark.parametrize("world_size", [1, 2, 4, 8])
def test_loader_shares_of_any_world_are_the_same_global_batch(
    store: ObjectStore, version: Version, tmp_path: Path, world_size: int
) -> None:
    view = opened(store, version, tmp_path, ViewRecipe())
    whole = Loader(view, batch_size=64, seed=3, horizon=4)
    ranks = [
        Loader(view, batch_size=64, seed=3, horizon=4, rank=rank, world_size=world_size) for rank in range(world_size)
    ]
    for step in (0, 2, 1_000_000):
        shares = [rank.batch(step) for rank in ranks]
        for name, array in whole.batch(step).items():
            assert np.array_equal(np.concatenate([share[name] for share in shares]), array)


def test_loader_gives_every_row_once_an_epoch_in_another_order(
    store: ObjectStore, version: Version, tmp_path: Path
) -> None:
    view = opened(store, version, tmp_path, ViewRecipe())
    loader = Loader(view, batch_size=10, seed=0, horizon=1)
    order = np.concatenate([loader.rows(step) for step in range(-(-2 * view.rows // 10))])
    first, second = order[: view.rows], order[view.rows : 2 * view.rows]
    assert np.array_equal(np.sort(first), np.arange(view.rows))
    assert np.array_equal(np.sort(second), np.arange(view.rows))
    assert not np.array_equal(first, second)


def test_loader_started_at_any_step_goes_on_as_if_never_stopped(
    store: ObjectStore, version: Version, tmp_path: Path
) -> None:
    view = opened(store, version, tmp_path, ViewRecipe())
    loader = Loader(view, batch_size=16, seed=1, horizon=3)
    wanted = [loader.batch(step) for step in range(30)]
    for start in range(20):
        again = Loader(view, batch_size=16, seed=1, horizon=3)
        with again.stream(start) as stream:
            for step, batch in zip(range(start, 30), stream, strict=False):
                assert all(np.array_equal(array, wanted[step][name]) for name, array in batch.items())


def test_loader_actions_stop_at_their_episodes_end(store: ObjectStore, tmp_path: Path) -> None:
    version = version_of(store, record_many(tmp_path / "raw", 3))
    view = opened(store, version, tmp_path, ViewRecipe(holdout_fraction=0.0))
    batch = gather(view, np.arange(view.rows), horizon=5)
    actions = view.take("action", np.arange(view.rows))
    start = 0
    for end in view.episode_ends.tolist():
        for row in range(start, end):
            inside = min(5, end - row)
            assert batch["valid"][row].tolist() == [True] * inside + [False] * (5 - inside)
            assert np.array_equal(batch["actions"][row, :inside], actions[row : row + inside])
            assert (batch["actions"][row, inside:] == actions[end - 1]).all()
        start = end


def test_loader_larger_than_its_data_runs_through_epochs(store: ObjectStore, tmp_path: Path) -> None:
    version = version_of(store, record(tmp_path / "raw" / "a.mcap", steps=7))
    loader = Loader(opened(store, version, tmp_path, ViewRecipe()), batch_size=100, seed=0, horizon=2)
    counts = np.bincount(loader.rows(0), minlength=7)
    assert counts.sum() == 100
    assert set(counts.tolist()) <= {14, 15}


def test_loader_order_never_changes_between_releases(store: ObjectStore, version: Version, tmp_path: Path) -> None:
    view = opened(store, version, tmp_path, ViewRecipe())
    assert Loader(view, batch_size=8, seed=7, horizon=1).rows(0).tolist() == GOLDEN_ROWS


@pytest.mark.parametrize(
    "numbers",
    [
        {"batch_size": 0},
        {"horizon": 0},
        {"rank": 2, "world_size": 2},
        {"rank": -1},
        {"batch_size": 9, "world_size": 2},
    ],
)
def test_loader_with_numbers_that_do_not_fit_is_refused(
    store: ObjectStore, tmp_path: Path, numbers: dict[str, int]
) -> None:
    view = opened(store, version_of(store, record_many(tmp_path / "raw", 2)), tmp_path, ViewRecipe())
    with pytest.raises(InvalidInput):
        Loader(view, **{"batch_size": 8, "seed": 0, "horizon": 1, **numbers})


def test_stream_closed_or_forgotten_ends_its_thread(store: ObjectStore, version: Version, tmp_path: Path) -> None:
    loader = Loader(opened(store, version, tmp_path, ViewRecipe()), batch_size=8, seed=0, horizon=1)
    before = threading.active_count()
    closed, forgotten = loader.stream(0), loader.stream(0)
    next(forgotten)
    closed.close()
    assert list(closed) == []
    del forgotten
    assert threading.active_count() == before


def test_stream_whose_batch_fails_raises_where_it_is_asked(
    store: ObjectStore, version: Version, tmp_path: Path
) -> None:
    loader = Loader(opened(store, version, tmp_path, ViewRecipe()), batch_size=8, seed=0, horizon=1)
    with loader.stream(2**70) as stream, pytest.raises(OverflowError):
        next(stream)


@pytest.mark.skipif(not ROBOTS.exists(), reason="the shared robot recordings are not here")
@pytest.mark.slow
def test_humanoid_episodes_become_batches(store: ObjectStore, tmp_path: Path) -> None:
    version = version_of(store, copy_humanoid(tmp_path / "raw", 3), "bottle")
    view = opened(store, version, tmp_path, ViewRecipe())
    holdout = opened(store, version, tmp_path, ViewRecipe(), "holdout")
    assert view.rows + holdout.rows == 393 + 343 + 357
    batch = Loader(view, batch_size=32, seed=0, horizon=8).batch(0)
    shapes = {name: (array.shape, str(array.dtype)) for name, array in batch.items()}
    assert shapes == {
        "state": ((32, 26), "float32"),
        "actions": ((32, 8, 26), "float32"),
        "valid": ((32, 8), "bool"),
        "images": ((32, 1, 64, 64, 3), "uint8"),
    }
    assert batch["images"].std() > 20
