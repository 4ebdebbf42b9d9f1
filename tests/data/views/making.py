"""Datasets whose frames say which they are, and versions of them."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
from tests.data.making import CAMERA, HEIGHT, WIDTH, version_of, write_lerobot_v2
from tests.data.video.making import number_of, stamped, write_movie

from mainspring.data import View, ViewManifest, ViewRecipe, build_view, open_view
from mainspring.data.catalog.versions import Version
from mainspring.data.video.gop import GopDecoder
from mainspring.data.views.manifest import Split
from mainspring.objects import ObjectStore

FRAMES_EACH = 1_000  # Frame f of recorded episode e shows the number 1000 e + f.


def write_stamped(root: Path, lengths: list[int]) -> Path:
    """Writes a LeRobot dataset with a video for each episode, whose frames show their numbers."""
    write_lerobot_v2(root, lengths, video=True)
    for episode, length in enumerate(lengths):
        first = FRAMES_EACH * episode
        images = [stamped(number, height=HEIGHT, width=WIDTH) for number in range(first, first + length)]
        write_movie(root / f"videos/chunk-000/{CAMERA}/episode_{episode:06d}.mp4", images)
    return root


def stamped_version(store: ObjectStore, folder: Path, lengths: list[int]) -> Version:
    """Ingests such a dataset."""
    shutil.rmtree(folder, ignore_errors=True)
    return version_of(store, write_stamped(folder, lengths), "stamped")


def built(store: ObjectStore, version: Version, recipe: ViewRecipe, tmp_path: Path) -> ViewManifest:
    """Builds a view."""
    return build_view(store, version, recipe, scratch_dir=tmp_path / "scratch")


def opened(store: ObjectStore, version: Version, recipe: ViewRecipe, tmp_path: Path, split: Split = "train") -> View:
    """Builds a view and opens one of its sides."""
    return open_view(store, built(store, version, recipe, tmp_path).id, tmp_path / "cache", split)


def numbers_of(view: View) -> list[list[int]]:
    """Returns the numbers that the frames of each episode show, read as a loader reads them."""
    decoder = GopDecoder()
    (camera,) = view.cameras
    found = []
    for start, end in zip(view.episode_starts.tolist(), view.episode_ends.tolist(), strict=True):
        rows = np.arange(start, end)
        if view.has_images:
            images = view.take("images", rows)[:, 0]
        else:
            size = view.manifest.recipe.image_size
            images = np.zeros((end - start, size, size, 3), np.uint8)
            for first in range(start, end, view.gop):
                count = min(view.gop, end - first)
                group = images[first - start : first - start + count]
                decoder.decode(view.packets(camera, first, count), group, on=view.where(first))
        found.append([number_of(image) for image in images])
    return found
