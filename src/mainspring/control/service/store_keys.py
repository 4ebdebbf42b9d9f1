"""Store keys: credentials of the object store that an attempt's agents share, asked for once and kept in memory."""

from __future__ import annotations

import threading
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import final

from mainspring.domain.errors import Unavailable
from mainspring.domain.ids import AttemptId
from mainspring.domain.ports import Clock
from mainspring.domain.wire import StoreCredentials
from mainspring.objects import Access, Grants

ASKED_AT_ONCE = 4  # Of the store. It answers in tens of milliseconds, to which a thousand attempts come in seconds.
ANSWER_S = 2.0  # How long a caller waits, with one of the server's threads; it asks again, and others want theirs.
HELD_MAX = 4_096  # Attempts; of those asked for earlier, agents that come now cause one more question.
SHARED_PART = 0.5  # Of their time: whoever comes later than that gets new ones.


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
class StoreKeys:
    """Credentials by attempt. Used by many threads; none waits for the store for long.

    Args:
        grants: Gives them.
    """

    def __init__(self, grants: Grants, clock: Clock) -> None:
        self._grants = grants
        self._clock = clock
        self._pool = ThreadPoolExecutor(ASKED_AT_ONCE, thread_name_prefix="mainspring-grants")
        self._lock = threading.Lock()
        self._asked: dict[AttemptId, _Asked] = {}

    def of(self, attempt: AttemptId, access: Access) -> StoreCredentials:
        """Returns an attempt's credentials, with the time that is left to them.

        Args:
            access: What they are for: the same for all of the attempt's life.

        Raises:
            NotAllowed: The store refuses.
            Unavailable: It does not answer in time; its answer, when it comes, is for whoever asks again.
        """
        asked = self._ask(attempt, access)
        try:
            credentials = asked.answer.result(ANSWER_S)
        except TimeoutError as error:
            got = f"no answer in {ANSWER_S:.0f} s"
            raise Unavailable("get credentials of the object store", on=attempt, got=got) from error
        return replace(credentials, lasts_s=asked.left_s(self._clock.monotonic_s()))

    def _ask(self, attempt: AttemptId, access: Access) -> _Asked:
        now_s = self._clock.monotonic_s()
        with self._lock:
            asked = self._asked.pop(attempt, None)
            if asked is None or not asked.serves(now_s):
                answer = self._pool.submit(self._grants.grant, access, holder=attempt)
                asked = _Asked(asked_s=now_s, answer=answer)
            self._asked[attempt] = asked  # In order of use.
            if len(self._asked) > HELD_MAX:
                del self._asked[next(iter(self._asked))]
            return asked
