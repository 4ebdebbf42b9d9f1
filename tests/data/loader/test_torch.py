from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

from tests.data.making import record_many, version_of, write_lerobot_v2  # noqa: E402

from mainspring.data import Loader, Sampling, ViewRecipe, build_view, open_view  # noqa: E402
from mainspring.data.loader.torch import TorchBatches  # noqa: E402
from mainspring.objects import open_store  # noqa: E402


@pytest.mark.slow
@pytest.mark.parametrize("num_workers", [0, 1, 3])
def test_torch_batches_are_the_loaders_for_any_number_of_workers(tmp_path: Path, num_workers: int) -> None:
    store = open_store(str(tmp_path / "store"))
    version = version_of(store, record_many(tmp_path / "raw", 4))
    manifest = build_view(store, version, ViewRecipe(holdout_fraction=0.0), scratch_dir=tmp_path / "scratch")
    view = open_view(store, manifest.id, tmp_path / "cache", "train")
    loader = Loader(view, Sampling(batch_size=8, seed=1, horizon=3))
    batches = torch.utils.data.DataLoader(TorchBatches(loader, start_step=5), batch_size=None, num_workers=num_workers)
    with loader.stream(5) as stream:
        for _, wanted, batch in zip(range(9), stream, batches, strict=False):
            for name, array in wanted.items():
                assert np.array_equal(batch[name].numpy(), array)


@pytest.mark.slow
@pytest.mark.parametrize("num_workers", [0, 2])
def test_torch_batches_of_video_with_history_are_the_loaders(tmp_path: Path, num_workers: int) -> None:
    store = open_store(str(tmp_path / "store"))
    version = version_of(store, write_lerobot_v2(tmp_path / "raw", [23, 40, 17], video=True), "stack")
    recipe = ViewRecipe(holdout_fraction=0.0, codec="h264", gop=5, image_size=32)
    manifest = build_view(store, version, recipe, scratch_dir=tmp_path / "scratch")
    view = open_view(store, manifest.id, tmp_path / "cache", "train")
    loader = Loader(view, Sampling(batch_size=8, seed=1, horizon=3, image_history=3, pixels="yuv", lanes=6))
    batches = torch.utils.data.DataLoader(TorchBatches(loader, start_step=2), batch_size=None, num_workers=num_workers)
    with loader.stream(2) as stream:
        for _, wanted, batch in zip(range(6), stream, batches, strict=False):
            assert tuple(batch["images"].shape) == (8, 3, 1, 48, 32)
            for name, array in wanted.items():
                assert np.array_equal(batch[name].numpy(), array)
