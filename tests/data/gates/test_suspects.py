from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from tests.data.making import CAMERA, version_of, write_lerobot_v2
from tests.data.views.making import stamped_version

from mainspring.data import Version, ViewRecipe, build_view, episode_rows, suspects
from mainspring.data.layers.layer import put_layer, put_part
from mainspring.data.layers.making import Result
from mainspring.data.layers.producer import LayerSpec
from mainspring.data.views.places import view_key
from mainspring.objects import ObjectStore, open_store

RECIPE = ViewRecipe(image_size=32, quality=26, cameras=(CAMERA,), holdout_fraction=0.0)
LAYER = LayerSpec(producer="look", code="c0de", columns={}, facts=("bright",), parameters={"window": 5})

pytestmark = pytest.mark.slow


@pytest.fixture
def store(tmp_path: Path) -> ObjectStore:
    return open_store(str(tmp_path / "store"))


def aged(store: ObjectStore, version: Version, tmp_path: Path) -> str:
    """Makes a view as if an earlier decoding path had made it, and returns its id."""
    manifest = build_view(store, version, RECIPE, scratch_dir=tmp_path / "scratch")
    told = json.loads(store.get(view_key(manifest.id)))
    del told["decoding"]
    store.put(view_key("0ld"), json.dumps({**told, "id": "0ld", "producer": 2}).encode())
    store.delete(view_key(manifest.id))
    return "0ld"


def add_layer(store: ObjectStore, version: Version, spec: LayerSpec) -> None:
    put_layer(store, spec)
    results = [Result(episode=row.id, facts='{"bright": 1}') for row in episode_rows(store, version)]
    put_part(store, spec.id, results)


def test_view_of_an_earlier_decoding_path_is_named_until_it_is_made_again(store: ObjectStore, tmp_path: Path) -> None:
    version = version_of(store, write_lerobot_v2(tmp_path / "raw", [12, 9], video=True))
    id = aged(store, version, tmp_path)
    (found,) = suspects(store)
    assert (found.kind, found.id, found.version, found.codecs) == ("view", id, "pick@1", ("mpeg4",))
    assert found.command == f"ms data view pick@1 --image-size 32 --quality 26 --camera {CAMERA} --holdout 0.0"
    build_view(store, version, RECIPE, scratch_dir=tmp_path / "scratch")
    assert suspects(store) == ()


def test_layer_of_an_earlier_decoding_path_is_named_until_it_is_made_again(store: ObjectStore, tmp_path: Path) -> None:
    version = stamped_version(store, tmp_path / "raw", [12, 9])
    add_layer(store, version, LAYER)
    (found,) = suspects(store)
    assert (found.kind, found.id, found.version, found.codecs) == ("layer", LAYER.id, "stamped@1", ("h264",))
    assert found.command == "ms data layer stamped@1 FILE.py:look --set window=5"
    add_layer(store, version, replace(LAYER, decoding=2))
    assert suspects(store) == ()


def test_layer_keeps_the_id_it_was_stored_under() -> None:
    assert LAYER.id == "8a34a1b41c948c3b60d744f080607fb2"  # As the code before decoding was part of it made it.
    assert LAYER.id != replace(LAYER, decoding=2).id
