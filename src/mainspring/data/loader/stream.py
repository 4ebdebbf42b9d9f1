"""Batches in order, made ahead of their use by a thread of their own."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Protocol

from mainspring.data.loader.ring import Batch

HOLD = 3  # A batch's memory is left alone until so many more were taken: a step or two may still be under way with it.


class Maker(Protocol):
    """Makes batches, a little more at each call. For one thread."""

    def advance(self, released: int) -> int:
        """Does some work, and returns how many batches are ready, counted from the stream's first.

        Args:
            released: Batches, counted likewise, whose memory may be used again.
        """

    @property
    def stuck(self) -> bool:
        """Returns whether there was nothing to do, for lack of room."""

    def take(self, number: int) -> Batch:
        """Returns a ready batch. For the thread that takes."""

    def close(self) -> None:
        """Ends what it uses."""


class BatchStream:
    """An endless iterator over batches, made by a thread as far ahead as there is room.

    A batch's arrays are looks into memory that is used again: it holds what it is until `HOLD` more were taken.
    The thread ends with `close`, or when nobody holds the stream any more.

    Args:
        make: Makes the maker; called in the stream's thread.
    """

    def __init__(self, make: Callable[[], Maker]) -> None:
        self._shared = _Shared()
        thread = threading.Thread(target=_run, args=(make, self._shared), name="batches", daemon=True)
        self._end = weakref.finalize(self, _end, self._shared, thread)
        thread.start()

    def __iter__(self) -> Iterator[Batch]:
        """Returns the stream itself."""
        return self

    def __next__(self) -> Batch:
        """Returns the next batch, waiting for it, or raises the error its making met."""
        shared = self._shared
        with shared.changed:
            while not shared.stopped and shared.error is None and shared.ready <= shared.taken:
                shared.changed.wait()
            if shared.ready > shared.taken and not shared.stopped:
                assert shared.maker is not None
                batch = shared.maker.take(shared.taken)
                shared.taken += 1
                shared.changed.notify_all()
                return batch
            error = shared.error
        self.close()
        raise StopIteration if error is None else error

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


class _Shared:
    """What the thread and the taker share, under `changed`. It does not hold the stream, which must be collectable."""

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.maker: Maker | None = None
        self.ready = 0
        self.taken = 0
        self.stopped = False
        self.error: Exception | None = None


def _run(make: Callable[[], Maker], shared: _Shared) -> None:
    maker: Maker | None = None
    try:
        maker = shared.maker = make()
        while not shared.stopped:
            taken = shared.taken
            ready = maker.advance(max(0, taken - HOLD))
            with shared.changed:
                if ready != shared.ready:
                    shared.ready = ready
                    shared.changed.notify_all()
                elif maker.stuck and shared.taken == taken and not shared.stopped:
                    shared.changed.wait()
    except Exception as error:  # noqa: BLE001 - raised again where a batch is asked for.
        with shared.changed:
            shared.error = error
            shared.changed.notify_all()
    finally:
        if maker is not None:
            maker.close()


def _end(shared: _Shared, thread: threading.Thread) -> None:
    with shared.changed:
        shared.stopped = True
        shared.changed.notify_all()
    thread.join()
