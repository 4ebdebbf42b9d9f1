"""Lets pods through to the nodes that the plan has for them, as soon as all of an allocation are made."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from threading import Event, Thread
from typing import final

from mainspring.domain.errors import MainspringError
from mainspring.engines.kubernetes.api.client import STRATEGIC, Api
from mainspring.engines.kubernetes.jobs.manifests import placed

AT_ONCE = 8
LOOK_S = 1.0  # Between two looks when nothing changes: what was refused is tried again.


@final
class Placing:
    """A thread that places pods, and several that tell the API.

    Args:
        path: The collection of our pods.
        due: Returns the pods that may go, each with its node, by the cluster's names.
    """

    def __init__(self, api: Api, path: str, due: Callable[[], Mapping[str, str]]) -> None:
        self._api = api
        self._path = path
        self._due = due
        self._changed = Event()
        self._ended = False
        self._thread: Thread | None = None

    def begin(self) -> None:
        """Starts its threads; harmless when they run."""
        if self._thread is None:
            self._thread = Thread(target=self._run, name="place pods", daemon=True)
            self._thread.start()

    def look(self) -> None:
        """Has it look at once."""
        self._changed.set()

    def close(self) -> None:
        """Ends its threads soon."""
        self._ended = True
        self._changed.set()

    def _run(self) -> None:
        with ThreadPoolExecutor(AT_ONCE) as pool:
            while not self._ended:
                self._changed.wait(LOOK_S)
                self._changed.clear()
                list(pool.map(self._place, self._due().items()))

    def _place(self, wanted: tuple[str, str]) -> None:
        name, node = wanted
        with suppress(MainspringError):  # It is due until it is placed, or gone.
            self._api.call("PATCH", f"{self._path}/{name}", attempted="place a pod", body=placed(node), kind=STRATEGIC)
