"""Which requests a policy looks at together, and when: whatever waits, of one shape, the most urgent first.

Nothing waits for others to come: while a policy computes, requests gather, and the next batch is as many of them as it
takes. It computes in one thread of its own, so that whoever speaks to robots never waits for it. Between two batches
another policy may take its place, never inside one.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from threading import Condition, Thread
from typing import Any, final

from mainspring.domain.errors import InvalidInput
from mainspring.robots.serving.guards import ActionLimits, UnsafeChunk, check_chunk, check_chunks
from mainspring.robots.serving.policy import Asked, FloatArray, ServedPolicy, shape_of
from mainspring.robots.serving.wire import Refusal

_log = logging.getLogger(__name__)

URGENT_S = 1.0  # A request without a deadline is as urgent as one that has so long: it must not wait for ever.
HANG_S = 60.0  # No policy computes so long: what began then is given up, and the server is not healthy any more.


@final
class NoChunk(Exception):
    """A request is refused."""

    def __init__(self, reason: Refusal, text: str) -> None:
        super().__init__(text)
        self.reason = reason


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Drawn:
    """A chunk, and how it came about.

    Args:
        version: How many policies were in use before it, and it, so far.
        name: Of the policy.
        waited_s: Until a batch began.
        computed_s: From then until the policy had answered.
        batch: How many requests were looked at together.
    """

    chunk_TA: FloatArray
    version: int
    name: str
    waited_s: float
    computed_s: float
    batch: int


@dataclass(slots=True, kw_only=True, eq=False)
class _Waiting:
    asked: Asked
    shape: tuple[Any, ...]
    came_s: float
    deadline_s: float
    answer: asyncio.Future[Drawn]
    begun: bool = False

    @property
    def urgency(self) -> float:
        return min(self.deadline_s, self.came_s + URGENT_S)


@dataclass(slots=True, kw_only=True)
class _InUse:
    policy: ServedPolicy
    version: int = 1


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Batch:
    """What came of a batch: a chunk for each request, or why it has none."""

    began_s: float
    ended_s: float
    version: int
    name: str
    results: list[FloatArray | NoChunk] = field(default_factory=list)


@final
class Batcher:
    """The requests that wait for a policy, and the policy.

    Args:
        policy: The first one, warmed up.
        limits: The robot's, None for none.
        waiting_max: Requests; one more is refused.
        monotonic_s: Of the clock.
        told: Called with the size of every batch and how long it took.
    """

    def __init__(
        self,
        policy: ServedPolicy,
        *,
        limits: ActionLimits | None,
        waiting_max: int,
        monotonic_s: Callable[[], float],
        told: Callable[[int, float], object] = lambda size, seconds: None,
    ) -> None:
        self._in_use = _InUse(policy=policy)
        self._limits = limits
        self._most = waiting_max
        self._now = monotonic_s
        self._told = told
        self._waiting: list[_Waiting] = []
        self._turn = Condition()  # Held to change what waits; notified when more does.
        self._ended = False
        self._began_s: float | None = None  # When the batch under way began.

    @property
    def policy(self) -> ServedPolicy:
        """Returns the one in use."""
        return self._in_use.policy

    @property
    def version(self) -> int:
        """Returns how many were in use so far, from 1."""
        return self._in_use.version

    @property
    def hangs(self) -> bool:
        """Returns whether the policy has computed for so long that it never will be done."""
        return self._began_s is not None and self._now() - self._began_s > HANG_S

    def swap(self, policy: ServedPolicy) -> int:
        """Puts another policy in use, from the next batch on; returns its version. From any thread.

        Args:
            policy: Warmed up.
        """
        in_use = _InUse(policy=policy, version=self._in_use.version + 1)
        self._in_use = in_use
        return in_use.version

    async def draw(self, asked: Asked, *, deadline_s: float) -> Drawn:
        """Returns a chunk.

        Args:
            deadline_s: By the clock; infinity for none. What has not begun by then is refused, and what has is answered
                late.

        Raises:
            NoChunk: There is none.
        """
        if len(self._waiting) >= self._most:
            raise NoChunk(Refusal.TOO_MANY_REQUESTS, f"{self._most} requests wait; ask again later")
        if self.hangs:
            raise NoChunk(Refusal.POLICY_FAILED, f"the policy has computed for over {HANG_S:g} s")
        loop = asyncio.get_running_loop()
        waiting = _Waiting(
            asked=asked,
            shape=(asked.guide is not None, *shape_of(asked.observation)),
            came_s=self._now(),
            deadline_s=deadline_s,
            answer=loop.create_future(),
        )
        with self._turn:
            self._waiting.append(waiting)
            self._turn.notify()
        late = loop.call_later(min(deadline_s - waiting.came_s, HANG_S), self._expire, waiting)
        given_up = loop.call_later(2 * HANG_S, self._give_up, waiting)
        try:
            return await waiting.answer
        finally:
            late.cancel()
            given_up.cancel()
            if not waiting.begun:  # It was refused, or its robot has gone.
                with self._turn, contextlib.suppress(ValueError):
                    self._waiting.remove(waiting)

    def _expire(self, waiting: _Waiting) -> None:
        if not waiting.begun and not waiting.answer.done():
            waited_ms = (self._now() - waiting.came_s) * 1000
            words = f"not begun after {waited_ms:.0f} ms: {len(self._waiting)} requests wait"
            waiting.answer.set_exception(NoChunk(Refusal.DEADLINE_MISSED, words))

    def _give_up(self, waiting: _Waiting) -> None:
        if not waiting.answer.done():
            waiting.answer.set_exception(NoChunk(Refusal.POLICY_FAILED, f"no answer in {2 * HANG_S:g} s"))

    def start(self) -> None:
        """Draws what is asked for, from now on; called in the event loop that asks."""
        loop = asyncio.get_running_loop()
        Thread(target=self._run, args=(loop,), name="policy", daemon=True).start()  # One that hangs keeps nobody here.

    def close(self) -> None:
        """Draws no more, once the batch under way is done."""
        with self._turn:
            self._ended = True
            self._turn.notify()

    def _run(self, loop: asyncio.AbstractEventLoop) -> None:
        """Takes batch after batch, without a word from the event loop in between."""
        while True:
            with self._turn:
                while not (batch := self._next()):
                    if self._ended:
                        return
                    self._turn.wait()
                self._began_s = self._now()
            done = self._infer([each.asked for each in batch])
            self._began_s = None
            with contextlib.suppress(RuntimeError):  # The loop has ended, and its robots with it.
                loop.call_soon_threadsafe(self._tell, batch, done)

    def _next(self) -> list[_Waiting]:
        """Takes the most urgent request, and those that can be looked at with it."""
        self._waiting = [each for each in self._waiting if not each.answer.done()]
        if not self._waiting:
            return []
        first = min(self._waiting, key=lambda each: each.urgency)
        alike = sorted((each for each in self._waiting if each.shape == first.shape), key=lambda each: each.urgency)
        batch = alike[: self.policy.facts.batch_max]
        for each in batch:
            each.begun = True
        taken = set(map(id, batch))
        self._waiting = [each for each in self._waiting if id(each) not in taken]
        return batch

    def _infer(self, asked: Sequence[Asked]) -> _Batch:
        """Runs in the policy's thread, with one policy from beginning to end."""
        in_use, began_s = self._in_use, self._now()
        results = self._results(in_use.policy, asked)
        if len(asked) > 1 and any(
            isinstance(each, NoChunk) and each.reason is not Refusal.UNSAFE_ACTION for each in results
        ):
            results = [self._results(in_use.policy, [each])[0] for each in asked]  # One must not fail the others.
        return _Batch(
            began_s=began_s,
            ended_s=self._now(),
            version=in_use.version,
            name=in_use.policy.facts.name,
            results=results,
        )

    def _results(self, policy: ServedPolicy, asked: Sequence[Asked]) -> list[FloatArray | NoChunk]:
        try:
            chunk_BTA = check_chunks(policy.infer(asked), len(asked), policy.facts)
        except UnsafeChunk as error:
            return [NoChunk(Refusal.UNSAFE_ACTION, str(error))] * len(asked)
        except InvalidInput as error:
            return [NoChunk(Refusal.BAD_REQUEST, str(error))] * len(asked)
        except Exception as error:  # noqa: BLE001 # A policy is anybody's code; one that fails must not end the server.
            _log.exception("the policy failed")
            return [NoChunk(Refusal.POLICY_FAILED, f"{type(error).__name__}: {error}"[:500])] * len(asked)
        results: list[FloatArray | NoChunk] = []
        for chunk_TA in chunk_BTA:
            try:
                check_chunk(chunk_TA, self._limits)
                results.append(chunk_TA)
            except UnsafeChunk as error:
                results.append(NoChunk(Refusal.UNSAFE_ACTION, str(error)))
        return results

    def _tell(self, batch: Sequence[_Waiting], done: _Batch) -> None:
        computed_s = done.ended_s - done.began_s
        self._told(len(batch), computed_s)
        for waiting, result in zip(batch, done.results, strict=True):
            with contextlib.suppress(asyncio.InvalidStateError):  # Its robot has gone.
                if isinstance(result, NoChunk):
                    waiting.answer.set_exception(result)
                    continue
                waiting.answer.set_result(
                    Drawn(
                        chunk_TA=result,
                        version=done.version,
                        name=done.name,
                        waited_s=done.began_s - waiting.came_s,
                        computed_s=computed_s,
                        batch=len(batch),
                    )
                )
