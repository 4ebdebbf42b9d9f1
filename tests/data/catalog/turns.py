"""Stores for tests of collections: one whose objects age by a fake clock, one whose calls wait for their turn."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TypeVar

from mainspring.objects import Data, ObjectSeen, ObjectStore, open_store
from mainspring.testing.time_and_chance import FakeClock

WAIT_S = 120.0
Answer = TypeVar("Answer")


class AgingStore:
    """A store in memory whose objects' ages are told by a clock that tests move."""

    def __init__(self, clock: FakeClock) -> None:
        self._store = open_store("memory://")
        self._clock = clock
        self._modified_s: dict[str, float] = {}

    def put(self, key: str, data: Data) -> None:
        self._store.put(key, data)
        self._modified_s[key] = self._clock.now_s()

    def put_if_absent(self, key: str, data: Data) -> bool:
        stored = self._store.put_if_absent(key, data)
        if stored:
            self._modified_s[key] = self._clock.now_s()
        return stored

    def put_file(self, key: str, path: Path) -> None:
        self.put(key, path.read_bytes())

    def get(self, key: str) -> bytes:
        return self._store.get(key)

    def get_range(self, key: str, *, offset: int, size_bytes: int) -> bytes:
        return self._store.get_range(key, offset=offset, size_bytes=size_bytes)

    def get_into(self, key: str, *, offset: int, into: memoryview) -> None:
        self._store.get_into(key, offset=offset, into=into)

    def fetch_file(self, key: str, path: Path) -> None:
        self._store.fetch_file(key, path)

    def size(self, key: str) -> int | None:
        return self._store.size(key)

    def list(self, prefix: str) -> tuple[ObjectSeen, ...]:
        now_s = self._clock.now_s()  # Of what another thread has stored, and not yet said when.
        return tuple(
            replace(seen, modified_s=self._modified_s.get(seen.key, now_s)) for seen in self._store.list(prefix)
        )

    def delete(self, key: str) -> None:
        self._store.delete(key)


class Turns:
    """Lets several actors make one call at a time, in a given order of turns."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._waiting: dict[str, int] = {}
        self._granted: str | None = None
        self._live: set[str] = set()

    def take(self, actor: str, call: Callable[[], Answer]) -> Answer:
        """Makes a call when it is the actor's turn."""
        with self._changed:
            self._waiting[actor] += 1
            self._changed.notify_all()
            assert self._changed.wait_for(lambda: self._granted == actor, WAIT_S), f"{actor} waited in vain"
            self._waiting[actor] -= 1
            try:
                return call()
            finally:
                self._granted = None
                self._changed.notify_all()

    def run(self, actors: dict[str, Callable[[], None]], order: Sequence[int]) -> None:
        """Runs actors to their ends; at each turn the next number of `order` picks who moves, then they move round."""
        self._live = set(actors)
        self._waiting = dict.fromkeys(actors, 0)
        failed: list[BaseException] = []

        def act(name: str, work: Callable[[], None]) -> None:
            try:
                work()
            except BaseException as error:  # noqa: BLE001  Raised again by the caller's thread.
                failed.append(error)
            with self._changed:
                self._live.discard(name)
                self._changed.notify_all()

        threads = [threading.Thread(target=act, args=item, daemon=True) for item in actors.items()]
        for thread in threads:
            thread.start()
        turn = 0
        while True:
            with self._changed:
                assert self._changed.wait_for(self._settled, WAIT_S), "an actor neither moves nor ends"
                if not self._live:
                    break
                names = sorted(self._live)
                self._granted = names[(order[turn] if turn < len(order) else turn) % len(names)]
                turn += 1
                self._changed.notify_all()
        for thread in threads:
            thread.join(WAIT_S)
        if failed:
            raise failed[0]

    def _settled(self) -> bool:
        return self._granted is None and all(self._waiting[name] for name in self._live)


@dataclass
class TurnStore:
    """A store whose calls wait for their actor's turn, but for the many listings of blobs that begin a collection."""

    store: ObjectStore
    turns: Turns
    actor: str
    _listed: bool = field(default=False)

    def put(self, key: str, data: Data) -> None:
        self.turns.take(self.actor, lambda: self.store.put(key, data))

    def put_if_absent(self, key: str, data: Data) -> bool:
        return self.turns.take(self.actor, lambda: self.store.put_if_absent(key, data))

    def put_file(self, key: str, path: Path) -> None:
        self.turns.take(self.actor, lambda: self.store.put_file(key, path))

    def get(self, key: str) -> bytes:
        return self.turns.take(self.actor, lambda: self.store.get(key))

    def get_range(self, key: str, *, offset: int, size_bytes: int) -> bytes:
        return self.turns.take(self.actor, lambda: self.store.get_range(key, offset=offset, size_bytes=size_bytes))

    def get_into(self, key: str, *, offset: int, into: memoryview) -> None:
        self.turns.take(self.actor, lambda: self.store.get_into(key, offset=offset, into=into))

    def fetch_file(self, key: str, path: Path) -> None:
        self.turns.take(self.actor, lambda: self.store.fetch_file(key, path))

    def size(self, key: str) -> int | None:
        return self.turns.take(self.actor, lambda: self.store.size(key))

    def list(self, prefix: str) -> tuple[ObjectSeen, ...]:
        if prefix.startswith("blobs/"):
            return self.store.list(prefix)
        return self.turns.take(self.actor, lambda: self.store.list(prefix))

    def delete(self, key: str) -> None:
        self.turns.take(self.actor, lambda: self.store.delete(key))
