"""Background tasks of one owner: kept until they end, cancelled with it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import TypeAlias, final

_Create: TypeAlias = Callable[[Coroutine[None, None, None]], asyncio.Task[None]]


@final
class Tasks:
    """Work that goes on beside its owner's.

    Args:
        create: What starts them: a task group's, for one, which a fault in any of them ends.
    """

    def __init__(self, create: _Create = asyncio.create_task) -> None:
        self._create = create
        self._tasks: set[asyncio.Task[None]] = set()

    def of_another(self) -> Tasks:
        """Returns another owner's, started the same way."""
        return Tasks(self._create)

    def spawn(self, work: Coroutine[None, None, None]) -> None:
        """Starts a task."""
        task = self._create(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def cancel(self) -> tuple[asyncio.Task[None], ...]:
        """Cancels all that have not ended, and returns them."""
        tasks = tuple(self._tasks)
        for task in tasks:
            task.cancel()
        return tasks
