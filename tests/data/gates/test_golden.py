from __future__ import annotations

from pathlib import Path

import pytest
from tests.data.making import version_of, write_lerobot_v2

from mainspring.data import View, ViewRecipe, build_view, open_view
from mainspring.data.gates.golden import check_golden
from mainspring.domain.errors import DamagedData
from mainspring.objects import ObjectStore, open_store


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
    for shard in view.manifest.splits["train"].shards:
        path = tmp_path / "cache" / shard.columns["state"].id
        data = bytearray(path.read_bytes())
        data[-1] ^= 1
        path.write_bytes(data)
    changed = open_view(store, view.manifest.id, tmp_path / "cache", "train")
    with pytest.raises(DamagedData, match="do not train on it"):
        check_golden(store, changed)
