from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.data.making import gray_of, record_many, version_of, write_lerobot_v2, write_lerobot_v3
from tests.data.views.making import built, opened

from mainspring.data import Column, Features, ViewProgress, ViewRecipe, build_view, gather, open_view
from mainspring.data.catalog.versions import Version, episode_rows
from mainspring.data.views.summary import Summary
from mainspring.domain.errors import DamagedData, InvalidInput, NotFound
from mainspring.objects import ObjectStore, open_store


@pytest.fixture
def store(tmp_path: Path) -> ObjectStore:
    return open_store(str(tmp_path / "store"))


@pytest.fixture
def version(store: ObjectStore, tmp_path: Path) -> Version:
    return version_of(store, record_many(tmp_path / "raw", 8))


def test_view_holds_every_step_of_every_episode_once(store: ObjectStore, version: Version, tmp_path: Path) -> None:
    progress: list[ViewProgress] = []
    build_view(store, version, ViewRecipe(), scratch_dir=tmp_path / "scratch", progress=progress.append)
    train = opened(store, version, ViewRecipe(), tmp_path)
    holdout = opened(store, version, ViewRecipe(), tmp_path, "holdout")
    assert {*train.episode_ids, *holdout.episode_ids} == {row.id for row in episode_rows(store, version)}
    assert not {*train.episode_ids} & {*holdout.episode_ids}
    assert train.rows + holdout.rows == version.frames
    assert [entry.done for entry in progress] == list(range(1, 9))
    assert not list((tmp_path / "scratch").iterdir())


def test_view_statistics_are_those_of_its_training_rows(store: ObjectStore, version: Version, tmp_path: Path) -> None:
    view = opened(store, version, ViewRecipe(holdout_fraction=0.3), tmp_path)
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
    columns = {"x": np.full((10, 1), 3.7, np.float32)}
    features = Features(columns=(Column(name="x", names=("a",)),))
    statistics = Summary.of(columns).merged(Summary.of(columns)).statistics(features)["x"]
    assert statistics.normalised(np.array([3.7])).tolist() == pytest.approx([0.0])


def test_view_built_again_is_the_same_view(store: ObjectStore, version: Version, tmp_path: Path) -> None:
    first = built(store, version, ViewRecipe(), tmp_path)
    stored = store.list("")
    assert built(store, version, ViewRecipe(), tmp_path) == first
    assert store.list("") == stored
    other = built(store, version, ViewRecipe(holdout_fraction=0.5), tmp_path)
    assert other.id != first.id


def test_view_built_elsewhere_has_the_same_bytes(store: ObjectStore, version: Version, tmp_path: Path) -> None:
    first = built(store, version, ViewRecipe(), tmp_path)
    memory = open_store("memory://")
    again = build_view(memory, version_of(memory, tmp_path / "raw"), ViewRecipe(), scratch_dir=tmp_path / "scratch")
    assert again == first


def test_split_of_a_grown_dataset_keeps_episodes_on_their_side(
    store: ObjectStore, version: Version, tmp_path: Path
) -> None:
    recipe = ViewRecipe(holdout_fraction=0.4)
    before = set(opened(store, version, recipe, tmp_path, "holdout").episode_ids)
    grown = version_of(store, record_many(tmp_path / "more", 4, first_seed=100))
    after = set(opened(store, grown, recipe, tmp_path, "holdout").episode_ids)
    assert before <= after


def test_split_of_a_view_from_before_sides_were_kept_moves_nobody(
    store: ObjectStore, version: Version, tmp_path: Path
) -> None:
    recipe = ViewRecipe(holdout_fraction=0.4)
    before = set(opened(store, version, recipe, tmp_path, "holdout").episode_ids)
    for entry in store.list("sides"):
        store.delete(entry.key)
    grown = version_of(store, record_many(tmp_path / "more", 4, first_seed=100))
    after = set(opened(store, grown, recipe, tmp_path, "holdout").episode_ids)
    trained = set(opened(store, version, recipe, tmp_path, "train").episode_ids)
    assert before <= after
    assert not trained & after


@pytest.mark.parametrize(("episodes", "fraction", "held"), [(1, 0.5, 0), (2, 0.0001, 1), (2, 0.9999, 1), (3, 0.0, 0)])
def test_split_of_few_episodes_leaves_each_wanted_side_one(
    store: ObjectStore, tmp_path: Path, episodes: int, fraction: float, held: int
) -> None:
    version = version_of(store, record_many(tmp_path / "raw", episodes))
    recipe = ViewRecipe(holdout_fraction=fraction)
    manifest = built(store, version, recipe, tmp_path)
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
    view = opened(store, version, ViewRecipe(image_size=16, holdout_fraction=0.0), tmp_path)
    images = gather(view, np.arange(view.rows), horizon=1)["images"]
    assert images.shape == (29, 1, 16, 16, 3)
    episode_of: dict[str, int] = {row.id: int(row.source[-6:]) for row in episode_rows(store, version)}
    wanted = [gray_of(episode_of[name], step) for name in view.episode_ids for step in range(lengths[episode_of[name]])]
    np.testing.assert_allclose(images.mean(axis=(1, 2, 3, 4)), wanted, atol=3)


def test_view_of_many_shards_reads_as_one(store: ObjectStore, version: Version, tmp_path: Path) -> None:
    one = opened(store, version, ViewRecipe(holdout_fraction=0.0), tmp_path)
    many = opened(store, version, ViewRecipe(holdout_fraction=0.0, shard_bytes=2_000), tmp_path)
    assert len(one.manifest.splits["train"].shards) == 1
    assert len(many.manifest.splits["train"].shards) > 3
    rows = np.random.default_rng(0).permutation(one.rows)
    for name, array in gather(one, rows, horizon=7).items():
        assert np.array_equal(array, gather(many, rows, horizon=7)[name])


def test_view_opened_by_many_at_once_is_whole_for_all(store: ObjectStore, version: Version, tmp_path: Path) -> None:
    manifest = built(store, version, ViewRecipe(), tmp_path)
    with ThreadPoolExecutor(8) as pool:
        views = list(pool.map(lambda _: open_view(store, manifest.id, tmp_path / "cache", "train"), range(8)))
    wanted = views[0].take("state", np.arange(views[0].rows))
    assert all(np.array_equal(view.take("state", np.arange(view.rows)), wanted) for view in views)


def test_view_with_a_changed_blob_is_not_opened(store: ObjectStore, version: Version, tmp_path: Path) -> None:
    manifest = built(store, version, ViewRecipe(), tmp_path)
    blob = manifest.splits["train"].shards[0].columns["action"]
    data = bytearray(store.get(blob.key))
    data[-1] ^= 1
    store.put(blob.key, data)
    with pytest.raises(DamagedData):
        open_view(store, manifest.id, tmp_path / "cache", "train")


def test_view_unknown_is_not_found(store: ObjectStore, tmp_path: Path) -> None:
    with pytest.raises(NotFound):
        open_view(store, "0" * 32, tmp_path / "cache", "train")


@pytest.mark.parametrize(
    "change",
    [
        {"image_size": 0},
        {"image_size": 10**6},
        {"image_size": 65},
        {"codec": "av1"},
        {"gop": 0},
        {"quality": 52},
        {"rate_hz": 0.0},
        {"rate_hz": float("nan")},
        {"cameras": ("b", "a")},
        {"columns": ()},
        {"columns": ("state", "state")},
        {"holdout_fraction": 1.0},
        {"shard_bytes": 0},
    ],
)
def test_recipe_out_of_range_is_refused(change: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput):
        ViewRecipe(**change)
