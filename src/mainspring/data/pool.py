"""A map over an executor that never runs far ahead of whoever takes its results."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import Executor, Future, wait
from itertools import islice
from typing import TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")


def mapped(
    executor: Executor, function: Callable[[Item], Result], items: Iterable[Item], *, ahead: int
) -> Generator[Result, None, None]:
    """Yields `function(item)` for each item, in order, with at most `ahead` computed or waiting at once.

    When it ends early, by an error or `close`, it first waits for what is still running.

    Args:
        executor: Where it runs.
        function: What is computed.
        items: Of what.
        ahead: The bound, over 0.
    """
    source = iter(items)
    pending: deque[Future[Result]] = deque(executor.submit(function, item) for item in islice(source, ahead))
    try:
        while pending:
            yield pending.popleft().result()
            pending.extend(executor.submit(function, item) for item in islice(source, 1))
    finally:
        for future in pending:
            future.cancel()
        wait(pending)  # What still runs may use what the caller is about to clean up.
