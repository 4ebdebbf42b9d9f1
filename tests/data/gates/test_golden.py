from __future__ import annotations

from pathlib import Path

import pytest
from tests.data.making import version_of, write_lerobot_v2

from mainspring.data import View, ViewRecipe, build_view, open_view
from mainspring.data.gates.golden import check_golden, guard, guard_made
from mainspring.domain.errors import DamagedData
from mainspring.objects import ObjectStore, open_store


def damaged(view: View, tmp_path: Path) -> None:
    for shard in view.manifest.splits["train"].shards:
        path = tmp_path / "cache" / shard.columns["state"].id
        data = bytearray(path.read_bytes())
        data[-1] ^= 1
        path.write_bytes(data)


def opened(store: ObjectStore, tmp_path: Path) -> View:
    version = version_of(store, write_lerobot_v2(tmp_path / "raw", [30, 25, 40], video=True), "stack")
    recipe = ViewRecipe(holdout_fraction=0.0, codec="h264", image_size=32)
    return open_view(
        store, build_view(store, version, recipe, scratch_dir=tmp_path / "scratch").id, tmp_path / "cache", "train"
    )


@pytest.mark.slow
def test_first_batches_of_a_view_are_the_same_each_time(tmp_path: Path) -> None:
    store = open_store(str(tmp_path / "store"))
    view = opened(store, tmp_path)
    assert check_golden(store, view) == check_golden(store, view)


@pytest.mark.slow
def test_view_whose_first_batches_changed_is_refused(tmp_path: Path) -> None:
    store = open_store(str(tmp_path / "store"))
    view = opened(store, tmp_path)
    check_golden(store, view)
    damaged(view, tmp_path)
    changed = open_view(store, view.manifest.id, tmp_path / "cache", "train")
    with pytest.raises(DamagedData, match="do not train on it"):
        check_golden(store, changed)


@pytest.mark.slow
def test_view_that_was_guarded_when_it_was_made_is_refused_where_it_gives_something_else(tmp_path: Path) -> None:
    store = open_store(str(tmp_path / "store"))
    view = opened(store, tmp_path)
    kept = guard_made(store, view.manifest, tmp_path / "cache")
    assert kept == guard(store, view)
    damaged(view, tmp_path)
    with pytest.raises(DamagedData, match=view.manifest.id):
        guard(store, open_view(store, view.manifest.id, tmp_path / "cache", "train"))


@pytest.mark.slow
def test_view_of_large_images_is_not_guarded_unasked(tmp_path: Path) -> None:
    store = open_store(str(tmp_path / "store"))
    version = version_of(store, write_lerobot_v2(tmp_path / "raw", [12], video=True), "stack")
    recipe = ViewRecipe(holdout_fraction=0.0, codec="h264", image_size=512)
    manifest = build_view(store, version, recipe, scratch_dir=tmp_path / "scratch")
    assert guard_made(store, manifest, tmp_path / "cache") is None
