from __future__ import annotations

from pathlib import Path

import pytest

from mainspring.data import View, ViewRecipe, build_view, open_view
from mainspring.objects import open_store
from tests.data.making import record, version_of, write_lerobot_v2

PLAIN = ViewRecipe(holdout_fraction=0.0)
CODED = ViewRecipe(holdout_fraction=0.0, codec="h264", gop=5, image_size=32)


def made(folder: Path, source: Path, recipe: ViewRecipe) -> View:
    store = open_store(str(folder / "objects"))
    manifest = build_view(store, version_of(store, source), recipe, scratch_dir=folder / "scratch")
    return open_view(store, manifest.id, folder / "cache", "train")


def recorded(folder: Path, tasks: list[str], *, state_dims: int, action_dims: int) -> View:
    for index, task in enumerate(tasks):
        path = folder / "raw" / f"{index}.mcap"
        record(path, seed=index, task=task, state_dims=state_dims, action_dims=action_dims)
    return made(folder, folder / "raw", PLAIN)


@pytest.fixture(scope="session")
def arm(tmp_path_factory: pytest.TempPathFactory) -> View:
    """A robot of 5 state and 3 action dimensions, which does two things."""
    return recorded(tmp_path_factory.mktemp("arm"), ["pick it", "push it", "pick it"], state_dims=5, action_dims=3)


@pytest.fixture(scope="session")
def hand(tmp_path_factory: pytest.TempPathFactory) -> View:
    """A robot of 2 dimensions."""
    return recorded(tmp_path_factory.mktemp("hand"), ["wave"] * 3, state_dims=2, action_dims=2)


@pytest.fixture(scope="session")
def seeing(tmp_path_factory: pytest.TempPathFactory) -> View:
    """A robot of 4 state and 3 action dimensions with one camera, which stacks."""
    folder = tmp_path_factory.mktemp("seeing")
    return made(folder, write_lerobot_v2(folder / "raw", [23, 17], video=True), CODED)
