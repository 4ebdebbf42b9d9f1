"""Batches in an order that is a pure function of (view, seed, step): a loader has no state to save.

Every epoch is a permutation of all rows; batches run on across the border of epochs, so each row comes once an epoch
and no batch is short. Rank r of W takes rows [r*B/W, (r+1)*B/W) of the global batch: the shares in rank order are the
same global batch for any W. Values are in the data's own units, because a policy must carry its normalisation to the
robot; the view's manifest has the statistics.
"""

from __future__ import annotations

import queue
import threading
import weakref
from collections.abc import Iterator
from types import TracebackType
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from mainspring.data.loader.permutation import Permutation
from mainspring.data.views.view import View
from mainspring.domain.errors import InvalidInput

BATCH_SIZE_MAX = 1 << 20
HORIZON_MAX = 4_096
AHEAD = 4  # Batches ready before they are asked for: hides a page fault, and is small beside a step's own memory.
_STOP_CHECK_S = 0.02  # How soon a reader notices that nobody wants its batches any more.


Batch: TypeAlias = dict[str, NDArray[Any]]
"""One rank's share of one step, B rows:

state [B, S] float32; actions [B, H, A] float32, from the row's own action on, the episode's last one repeated;
valid [B, H] bool, whether the action lies inside the episode; images [B, V, H, W, 3] uint8 when the view has them.
"""


def gather(view: View, rows: NDArray[np.int64], *, horizon: int) -> Batch:
    """Returns rows of a view as a batch.

    Args:
        view: An open view.
        rows: [B] row numbers.
        horizon: Actions a row.
    """
    ends = view.episode_ends[np.searchsorted(view.episode_ends, rows, side="right")]
    ahead = rows[:, None] + np.arange(horizon)
    batch: Batch = {
        "state": view.take("state", rows),
        "actions": view.take("action", np.minimum(ahead, ends[:, None] - 1)),
        "valid": ahead < ends[:, None],
    }
    if view.has_images:
        batch["images"] = view.take("images", rows)
    return batch


class Loader:
    """Batches of one split of a view, for one rank.

    Args:
        view: An open view.
        batch_size: Rows of the global batch; a multiple of the world size.
        seed: Chooses the order.
        horizon: Actions a row.
        rank: Which share this is.
        world_size: How many shares there are.

    Raises:
        InvalidInput: A number is out of its range.
    """

    def __init__(
        self, view: View, *, batch_size: int, seed: int, horizon: int, rank: int = 0, world_size: int = 1
    ) -> None:
        if not (1 <= batch_size <= BATCH_SIZE_MAX and 1 <= horizon <= HORIZON_MAX):
            raise InvalidInput("load batches", got=f"batch_size {batch_size}, horizon {horizon}", wanted="over 0")
        if not 0 <= rank < world_size or batch_size % world_size:
            raise InvalidInput(
                "load batches",
                got=f"batch_size {batch_size}, rank {rank} of {world_size}",
                wanted="a rank below the world size, and a batch size that the world size divides",
            )
        self._view = view
        self._batch_size = batch_size
        self._seed = seed
        self._horizon = horizon
        self._share = batch_size // world_size
        self._offset = rank * self._share

    def rows(self, step: int) -> NDArray[np.int64]:
        """Returns the row numbers of this rank's share of a step.

        Args:
            step: From 0; any step, in any order.
        """
        assert step >= 0
        count = self._view.rows
        first = step * self._batch_size + self._offset
        positions = np.arange(first, first + self._share, dtype=np.int64)
        epochs = positions // count
        out = np.empty(self._share, dtype=np.int64)
        for epoch in range(int(epochs[0]), int(epochs[-1]) + 1):
            here = epochs == epoch
            order = Permutation(count, self._view.manifest.id, self._view.split, self._seed, epoch)
            out[here] = order(positions[here] - epoch * count)
        return out

    def batch(self, step: int) -> Batch:
        """Returns this rank's share of a step.

        Args:
            step: From 0; any step, in any order.
        """
        return gather(self._view, self.rows(step), horizon=self._horizon)

    def stream(self, start_step: int) -> BatchStream:
        """Returns batches from a step on, without end, prepared ahead of their use.

        Args:
            start_step: The first step.
        """
        return BatchStream(self, start_step)


class BatchStream:
    """An endless iterator over a loader's batches, made by a thread that runs at most `AHEAD` batches ahead.

    The thread ends with `close`, or when nobody holds the stream any more.

    Args:
        loader: Whose batches.
        start_step: The first step.
    """

    def __init__(self, loader: Loader, start_step: int) -> None:
        self._ready: queue.Queue[Batch | Exception] = queue.Queue(AHEAD)
        self._stopped = threading.Event()
        work = (loader, start_step, self._ready, self._stopped)  # Not `self`, which must be free to be collected.
        thread = threading.Thread(target=_prepare, args=work, name="batches", daemon=True)
        self._end = weakref.finalize(self, _end, self._stopped, thread)
        thread.start()

    def __iter__(self) -> Iterator[Batch]:
        """Returns the stream itself."""
        return self

    def __next__(self) -> Batch:
        """Returns the next batch, waiting for it, or raises the error its making met."""
        while not self._stopped.is_set():
            try:
                item = self._ready.get(timeout=_STOP_CHECK_S)
            except queue.Empty:
                continue
            if isinstance(item, Exception):
                self.close()
                raise item
            return item
        raise StopIteration

    def close(self) -> None:
        """Ends the thread; the stream gives nothing more."""
        self._end()

    def __enter__(self) -> BatchStream:
        """Returns the stream itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Ends the thread."""
        self.close()


def _prepare(loader: Loader, step: int, ready: queue.Queue[Batch | Exception], stopped: threading.Event) -> None:
    while not stopped.is_set():
        item: Batch | Exception
        try:
            item = loader.batch(step)
        except Exception as error:  # noqa: BLE001 - raised again where the batch is asked for.
            item = error
        while not stopped.is_set():
            try:
                ready.put(item, timeout=_STOP_CHECK_S)
                break
            except queue.Full:
                continue
        if isinstance(item, Exception):
            return
        step += 1


def _end(stopped: threading.Event, thread: threading.Thread) -> None:
    stopped.set()
    thread.join()
