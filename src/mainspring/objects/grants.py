"""Grants: credentials for a part of an object store, for a while. What gives them is behind a port."""

from __future__ import annotations

import threading
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Protocol, final

from mainspring.domain.errors import NotAllowed, Unavailable
from mainspring.domain.ports import Clock
from mainspring.domain.wire import StoreCredentials
from mainspring.objects.open import open_store
from mainspring.objects.port import checked_key

ASKED_AT_ONCE = 4  # Of what gives them. It answers in tens of milliseconds; a thousand attempts come within seconds.
ANSWER_S = 2.0  # How long a caller waits, with one of a server's threads; it asks again, and others want theirs.
HELD_MAX = 4_096  # Holders; of those that asked earlier, who comes now causes one more question.
SHARED_PART = 0.5  # Of their time: whoever comes later than that gets new ones.
_TRIED = "checkpoints/of-a-check"
_OTHER = "checkpoints/of-another-check"


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """What somebody may do with a store. Nothing else of it may even be listed.

    Args:
        writes: Folders whose objects may be listed, read, stored and deleted.
        reads: Folders whose objects may be listed and read.
        objects: Keys of single objects that may be read.
        named: Folders whose objects may be read, and not listed: by whoever knows their keys, as those of blobs.
    """

    writes: tuple[str, ...] = ()
    reads: tuple[str, ...] = ()
    objects: tuple[str, ...] = ()
    named: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Checks every key, for some characters stand for others where access is written down.

        Raises:
            InvalidInput: One breaks the rules of keys.
        """
        for key in (*self.writes, *self.reads, *self.objects, *self.named):
            checked_key(key)


class Grants(Protocol):
    """Gives credentials for parts of one store. May be called from many threads."""

    def grant(self, access: Access, *, holder: str) -> StoreCredentials:
        """Returns new credentials that are good for `access` and for nothing else; blocks for seconds at most.

        They cannot be taken back: they end when their time is over.

        Args:
            access: What they are for.
            holder: Who gets them, for whoever reads the store's own log.

        Raises:
            NotAllowed: They are refused, or that is more than `check` lets pass.
            Unavailable: There is no answer.
        """

    def check(self, access: Access) -> None:
        """Returns if one grant may be for all of `access`; asks nobody.

        Raises:
            NotAllowed: It is more than the store's own rules can say of one.
        """


@dataclass(frozen=True, slots=True, kw_only=True)
class _Asked:
    asked_s: float
    answer: Future[StoreCredentials]

    def left_s(self, now_s: float) -> float:
        """Returns for how long they are good, counted from the question."""
        return self.answer.result().lasts_s - (now_s - self.asked_s)

    def serves(self, now_s: float) -> bool:
        """Returns whether another question would be one too many."""
        if not self.answer.done():
            return True
        if self.answer.exception() is not None:
            return False
        return self.left_s(now_s) > self.answer.result().lasts_s * SHARED_PART


@final
class SharedGrants:
    """`Grants` whose credentials are shared by all who ask as one holder, with the time that is left to them.

    They are kept in memory. Nobody waits long: an answer that is late is for whoever asks again.

    Args:
        grants: Gives them.
        answer_s: How long a caller waits.
        held_max: Of how many holders credentials are kept.
    """

    def __init__(self, grants: Grants, clock: Clock, *, answer_s: float = ANSWER_S, held_max: int = HELD_MAX) -> None:
        self._grants = grants
        self._clock = clock
        self._answer_s = answer_s
        self._held_max = held_max
        self._pool = ThreadPoolExecutor(ASKED_AT_ONCE, thread_name_prefix="mainspring-grants")
        self._lock = threading.Lock()
        self._asked: dict[str, _Asked] = {}

    def grant(self, access: Access, *, holder: str) -> StoreCredentials:
        """See `Grants.grant`; what a holder asks for is always the same."""
        asked = self._ask(access, holder)
        try:
            credentials = asked.answer.result(self._answer_s)
        except TimeoutError as error:
            got = f"no answer in {self._answer_s:.0f} s"
            raise Unavailable("get credentials of the object store", on=holder, got=got) from error
        return replace(credentials, lasts_s=asked.left_s(self._clock.monotonic_s()))

    def check(self, access: Access) -> None:
        """See `Grants.check`."""
        self._grants.check(access)

    def _ask(self, access: Access, holder: str) -> _Asked:
        now_s = self._clock.monotonic_s()
        with self._lock:
            asked = self._asked.pop(holder, None)
            if asked is None or not asked.serves(now_s):
                answer = self._pool.submit(self._grants.grant, access, holder=holder)
                asked = _Asked(asked_s=now_s, answer=answer)
            self._asked[holder] = asked  # In order of use.
            if len(self._asked) > self._held_max:
                del self._asked[next(iter(self._asked))]
            return asked


def check_grants(url: str, grants: Grants) -> None:
    """Checks that credentials for one folder of a store open this one, and no other.

    Args:
        url: The store.
        grants: Gives credentials for it.

    Raises:
        NotAllowed: They are refused, do not open the folder, or open another.
        Unavailable: There is no answer.
    """
    credentials = grants.grant(Access(writes=(_TRIED,)), holder="check")
    store = open_store(url, credentials.options, lambda: credentials)
    store.list(_TRIED)
    try:
        store.list(_OTHER)
    except NotAllowed:
        return
    raise NotAllowed(
        "limit what agents may do with the object store",
        on=url,
        got="a store that lets credentials for one folder list another",
        wanted="one that holds a session to the policy it was asked for with",
        next_step="remove objects_role from config.yaml, or use a store that does",
    )
