"""Execution pools for producers: this process, processes of this machine, or Ray; the producer's code is the same."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from concurrent.futures import BrokenExecutor, ProcessPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from multiprocessing import get_context
from typing import Protocol

from mainspring.data.layers.making import Result, Task, carry_out
from mainspring.data.pool import mapped
from mainspring.domain.errors import Unavailable

AHEAD = 4  # Episodes in hand for each process: bounds memory, and hides one long episode behind the next.


class Pool(Protocol):
    """Carries out tasks."""

    def results(self, tasks: Iterable[Task]) -> Iterator[Result]:
        """Yields each task's result, in any order.

        Raises:
            Unavailable: The pool, or the store, does not answer.
        """


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalPool:
    """Processes of this machine; 0 runs in the caller's."""

    processes: int = 0

    def results(self, tasks: Iterable[Task]) -> Iterator[Result]:
        """See `Pool.results`."""
        if not self.processes:
            yield from map(carry_out, tasks)
            return
        with ProcessPoolExecutor(self.processes, mp_context=get_context("spawn")) as executor:
            try:
                with closing(mapped(executor, carry_out, tasks, ahead=AHEAD * self.processes)) as results:
                    yield from results
            except BrokenExecutor as error:
                raise Unavailable(
                    "run a producer",
                    got="a worker process died, perhaps for lack of memory",
                    next_step="run it again: it does only the rest",
                ) from error


@dataclass(frozen=True, slots=True, kw_only=True)
class RayPool:
    """A Ray cluster, through Ray Data.

    Args:
        address: The cluster's, as `ray.init` takes it; "local" starts one on this machine.
    """

    address: str = "auto"

    def results(self, tasks: Iterable[Task]) -> Iterator[Result]:
        """See `Pool.results`. All tasks are named to Ray at once: what they read stays in the store."""
        try:
            import ray
            import ray.data
        except ImportError as error:
            raise Unavailable(
                "run a producer on Ray", got="no package 'ray'", next_step="pip install 'mainspring[ray]'"
            ) from error
        if not ray.is_initialized():
            ray.init(self.address, log_to_driver=False)
        dataset = ray.data.from_items([{"task": task} for task in tasks])
        for row in dataset.map(lambda row: {"result": carry_out(row["task"])}).iter_rows():
            yield row["result"]
