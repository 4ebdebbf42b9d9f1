from __future__ import annotations

from pathlib import Path

import jax
import numpy as np
import pytest
from tests.data.making import version_of, write_lerobot_v2

from mainspring.data import ViewRecipe, build_view, gather, open_view, yuv_to_rgb
from mainspring.objects import open_store

# Of an encoder that is told nothing: colours of BT.601 as (luma, blue, red), from its specification.
COLOURS = {
    (235, 128, 128): (255, 255, 255),
    (16, 128, 128): (0, 0, 0),
    (81, 90, 240): (254, 0, 0),
    (145, 54, 34): (0, 255, 1),
    (41, 240, 110): (0, 0, 255),
}


@pytest.mark.parametrize("planes", COLOURS)
def test_planes_of_one_colour_become_that_colour(planes: tuple[int, int, int]) -> None:
    luma, blue, red = planes
    image = np.concatenate([np.full((4, 4), luma), np.full((1, 4), blue), np.full((1, 4), red)]).astype(np.uint8)
    found = yuv_to_rgb(image[None])
    assert found.shape == (1, 4, 4, 3)
    assert found.dtype == np.float32
    assert np.abs(found - np.array(COLOURS[planes])).max() < 2


def test_planes_of_jax_become_what_those_of_numpy_do() -> None:
    images = np.random.default_rng(0).integers(0, 256, (2, 3, 12, 8)).astype(np.uint8)
    assert np.allclose(jax.jit(yuv_to_rgb)(images), yuv_to_rgb(images), atol=1e-3)


@pytest.mark.slow
def test_planes_of_a_view_become_about_what_its_decoder_gives_as_rgb(tmp_path: Path) -> None:
    store = open_store(str(tmp_path / "store"))
    version = version_of(store, write_lerobot_v2(tmp_path / "raw", [12], video=True), "stack")
    recipe = ViewRecipe(holdout_fraction=0.0, codec="h264", gop=5, image_size=32)
    manifest = build_view(store, version, recipe, scratch_dir=tmp_path / "scratch")
    view = open_view(store, manifest.id, tmp_path / "cache", "train")
    rows = np.arange(view.rows)
    rgb = gather(view, rows, horizon=1)["images"].astype(np.float32)
    found = yuv_to_rgb(gather(view, rows, horizon=1, layout="yuv")["images"])
    assert np.abs(found - rgb).mean() < 2
