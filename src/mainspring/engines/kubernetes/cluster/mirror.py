"""A copy of one collection of the API, kept up by a thread: listed once in pages, watched from then on.

A watch goes on where the one before ended, by the version that the last change or bookmark bore; where the API has
forgotten that version, the collection is listed anew and replaces what was known in one step. Only what `read` makes
of an object is kept.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from threading import Event, Lock, Thread
from typing import Any, Generic, Protocol, TypeVar, final

from mainspring.domain.errors import MainspringError, Unavailable
from mainspring.domain.ports import Backoff, Clock
from mainspring.engines.kubernetes.api.client import Api, VersionGone

_AGAIN = Backoff(first_s=0.1, cap_s=5.0)
OUT_OF_TOUCH_S_MAX = 10.0  # An API server that is restarted, or fails over, is back by then.

Record = TypeVar("Record")


class Keeps(Protocol[Record]):
    """Where a mirror leaves what it reads; called by its thread, which must not be kept waiting."""

    def replace(self, records: dict[str, Record]) -> None:
        """Takes these for all there is."""

    def put(self, key: str, record: Record) -> None:
        """Takes one that is new or has changed."""

    def drop(self, key: str) -> None:
        """Forgets one, which may be unknown."""


class Known(Generic[Record]):
    """Records by key; `dropped` is told of those that go, `came` of all others.

    Args:
        lock: Of what is read together with them.
    """

    def __init__(
        self,
        lock: Lock,
        came: Callable[[Record], None] = lambda record: None,
        dropped: Callable[[Record], None] = lambda record: None,
    ) -> None:
        self._lock = lock
        self._came = came
        self._dropped = dropped
        self.known: dict[str, Record] = {}

    def replace(self, records: dict[str, Record]) -> None:
        """Takes these for all there is."""
        with self._lock:
            gone = [record for key, record in self.known.items() if key not in records]
            self.known = records
            for record in gone:
                self._dropped(record)
        for record in records.values():
            self._came(record)

    def put(self, key: str, record: Record) -> None:
        """Takes one that is new or has changed."""
        with self._lock:
            self.known[key] = record
        self._came(record)

    def drop(self, key: str) -> None:
        """Forgets one."""
        with self._lock:
            record = self.known.pop(key, None)
            if record is not None:
                self._dropped(record)


@final
class Mirror(Generic[Record]):
    """Keeps up a copy of one collection, from the first `check` until `close`.

    Args:
        path: The collection's: "/api/v1/nodes".
        query: Which of its objects, such as a fieldSelector.
        key: The field of an object's metadata that it is known by.
        read: Returns what is kept of an object, None for nothing.
    """

    def __init__(
        self,
        api: Api,
        clock: Clock,
        *,
        path: str,
        query: Mapping[str, str],
        key: str,
        read: Callable[[dict[str, Any]], Record | None],
        keeps: Keeps[Record],
    ) -> None:
        self._api = api
        self._clock = clock
        self._path = path
        self._query = dict(query)
        self._key = key
        self._read = read
        self._keeps = keeps
        self._listed = Event()
        self._ended = Event()
        self._trouble: MainspringError | None = None
        self._lost_s: float | None = None  # Since when it is out of touch, None while a watch stands.
        self._thread: Thread | None = None

    def begin(self) -> None:
        """Starts its thread; harmless when that runs."""
        if self._thread is None:
            self._lost_s = self._clock.monotonic_s()
            self._thread = Thread(target=self._run, name=f"mirror {self._path}", daemon=True)
            self._thread.start()

    def check(self, wait_s: float) -> None:
        """Returns when the copy is one to go by: listed, and not out of touch for longer than a restart takes.

        Args:
            wait_s: How long to wait for the first list.

        Raises:
            Unavailable: It is not; says what was in the way.
        """
        self.begin()
        listed = self._listed.wait(wait_s)
        lost_s, trouble = self._lost_s, self._trouble
        if listed and (lost_s is None or self._clock.monotonic_s() - lost_s < OUT_OF_TOUCH_S_MAX):
            return
        if trouble is None:
            got = f"no watch for {OUT_OF_TOUCH_S_MAX:g} s" if listed else f"no whole list within {wait_s:g} s"
            raise Unavailable(f"list {self._path}", got=got, next_step="look again")
        raise Unavailable(trouble.attempted, on=trouble.on, got=trouble.got, next_step=trouble.next_step) from trouble

    def close(self) -> None:
        """Ends its thread, once the API lets go of it."""
        self._ended.set()

    def _run(self) -> None:
        version, tries = "", 0
        while not self._ended.is_set():
            try:
                version = version or self._list()
                for change in self._api.watch(self._path, version, attempted=f"watch {self._path}", query=self._query):
                    self._lost_s, self._trouble, tries = None, None, 0
                    self._take(change.kind, change.object)
                    version = change.version
                    if self._ended.is_set():
                        return
            except MainspringError as error:
                tries += 1
                if isinstance(error, VersionGone):
                    version = ""
                else:
                    self._trouble = error
                    self._lost_s = self._clock.monotonic_s() if self._lost_s is None else self._lost_s
                self._ended.wait(_AGAIN.wait_s(tries))
            except RuntimeError:  # So says a client that is closed.
                if not self._ended.is_set():
                    raise

    def _list(self) -> str:
        """Lists the collection; returns its version."""
        records: dict[str, Record] = {}
        version = ""
        for page in self._api.pages(self._path, attempted=f"list {self._path}", query=self._query):
            version = page.version
            for found in page.items:
                key, record = self._record(found)
                if record is not None:
                    records[key] = record
        self._keeps.replace(records)
        self._listed.set()
        return version

    def _take(self, kind: str, found: dict[str, Any]) -> None:
        if kind == "BOOKMARK":
            return
        key, record = self._record(found)
        if record is None or kind == "DELETED":
            self._keeps.drop(key)
        else:
            self._keeps.put(key, record)

    def _record(self, found: dict[str, Any]) -> tuple[str, Record | None]:
        try:
            return found["metadata"][self._key], self._read(found)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            # Half of a cluster is never shown as all of it.
            got = f"{str(found)[:200]} ({error!r})"
            raise Unavailable("read an object of Kubernetes", on=self._path, got=got, wanted="a whole one") from error
