"""A loader's batches for PyTorch."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch.utils.data import IterableDataset, get_worker_info

from mainspring.data.loader.loader import Loader


class TorchBatches(IterableDataset[Any]):  # type: ignore[misc,unused-ignore] # Untyped where it is not installed.
    """Batches as dicts of tensors, in the loader's order whatever the number of PyTorch's workers.

    Give it to a `DataLoader(..., batch_size=None)`. With `num_workers=n` worker w makes steps w, w + n, ...; frames are
    then decoded by each of them. The loader's own `workers` decode each frame once, so prefer these with
    `num_workers=0`, where tensors come as they lie in the loader's memory, or as copies.

    Args:
        loader: Whose batches.
        start_step: The first step, to go on where a run was left.
        copy: Whether tensors have memory of their own; else each is good until `HOLD` more batches were taken.
    """

    def __init__(self, loader: Loader, *, start_step: int = 0, copy: bool = True) -> None:
        super().__init__()
        self._loader = loader
        self._start_step = start_step
        self._copy = copy

    def __iter__(self) -> Iterator[dict[str, Any]]:
        """Yields batches without end."""
        worker = get_worker_info()
        number, count = (worker.id, worker.num_workers) if worker else (0, 1)
        with self._loader.stream(self._start_step) as stream:
            for step, batch in enumerate(stream):
                if step % count == number:
                    yield {
                        name: torch.from_numpy(array.copy() if self._copy or worker else array)
                        for name, array in batch.items()
                    }
