"""Threads that wait for a slow cluster in somebody else's place: for answers to questions, and for acts to be done."""

from __future__ import annotations

import logging
from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass
from threading import Condition, Thread
from typing import Generic, TypeVar, final

from mainspring.domain.errors import MainspringError, Unavailable
from mainspring.domain.ports import Clock
from mainspring.engines.common.forwarding import EngineCall

MOMENT_S = 0.25  # Half the pause between two ticks of a controller: it may be spent on a cluster that answers quickly.
MOMENT_SHARE = 0.2  # Of the time that passes comes back, so that a thousand short waits are no long one.
THREADS = 4  # Launches and stops at once. A Slurm controller takes about ten submissions a second, whoever asks.
CORDON_THREADS = 8  # Cordons at once, beside these: of an API that is a tenth of a second away, eighty a second.
ACTS_MAX = 2_048  # Waiting for their turn: several ticks' worth of what a controller tells its engines.
RESULTS_MAX = 4_096  # Of acts nobody has asked for again. The oldest go first; an act done twice does nothing.

Value = TypeVar("Value")
_log = logging.getLogger(__name__)


@final
class Patience:
    """How long one caller may be kept waiting: a moment at once, and a small share of its time in the long run.

    Args:
        clock: Tells how long it waited.
        moment_s: How long a moment is.
    """

    def __init__(self, clock: Clock, moment_s: float) -> None:
        self._clock = clock
        self._moment_s = moment_s
        self._left_s = moment_s
        self._at_s = clock.monotonic_s()

    def wait(self, changed: Condition, true: Callable[[], bool]) -> None:
        """Returns once it is true, or patience is at its end.

        Args:
            changed: Notified whenever that may have changed; held by the caller.
            true: What is waited for.
        """
        now_s = self._clock.monotonic_s()
        left_s = min(self._moment_s, self._left_s + MOMENT_SHARE * (now_s - self._at_s))
        changed.wait_for(true, left_s)
        self._at_s = self._clock.monotonic_s()
        self._left_s = max(0.0, left_s - (self._at_s - now_s))


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer(Generic[Value]):
    """What came, for a question that was asked when things stood at `mark`."""

    value: Value
    mark: int
    asked_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Question(Generic[Value]):
    """A question that is asked again and again.

    Args:
        attempted: The question, as errors name it.
        on: Whom it is put to.
        ask: Asks; takes as long as it likes.
        mark: How things stand; grows with every act that may change the answer.
        refresh_s: How old an answer may be before it is asked for again.
        stale_s: How old it may be, at most.
    """

    attempted: str
    on: str
    ask: Callable[[], Value]
    mark: Callable[[], int]
    refresh_s: float
    stale_s: float


@final
class LatestAnswer(Generic[Value]):
    """The newest answer to one question. A thread of its own asks, whenever somebody wants to know.

    Args:
        patience: The caller's.
    """

    def __init__(self, question: Question[Value], *, clock: Clock, patience: Patience) -> None:
        self._question = question
        self._clock = clock
        self._patience = patience
        self._changed = Condition()
        self._answer: Answer[Value] | None = None
        self._error: BaseException | None = None
        self._wanted = False
        self._asking = False
        self._closed = False
        self._asked_mark = -1
        self._ended_s = float("-inf")
        self._thread = Thread(target=self._run, name=f"mainspring-{question.attempted}-{question.on}", daemon=True)
        self._thread.start()

    def want(self) -> None:
        """Has the question asked when the newest answer, or that under way, is too old. Waits for nothing."""
        with self._changed:
            self._want()

    def get(self) -> Answer[Value]:
        """Returns the newest answer; waits a moment for one that knows of every act so far.

        Raises:
            Unavailable: There is none that is fresh enough; says why.
        """
        mark = self._question.mark()
        with self._changed:
            self._want()
            if not self._serves(mark):
                self._patience.wait(self._changed, lambda: not (self._wanted or self._asking) or self._serves(mark))
            if self._serves(-1):
                assert self._answer is not None
                return self._answer
            raise self._silence()

    def close(self) -> None:
        """Has the thread end, once it has its answer."""
        with self._changed:
            self._closed, self._wanted = True, False
            self._changed.notify_all()

    def join(self, wait_s: float) -> None:
        """Returns once the thread has ended, or does not in time.

        Args:
            wait_s: How long that may take.
        """
        self._thread.join(wait_s)

    def _want(self) -> None:
        aged = not self._asking and self._clock.monotonic_s() - self._ended_s >= self._question.refresh_s
        if (aged or self._asked_mark < self._question.mark()) and not self._closed:
            self._wanted = True
            self._changed.notify_all()

    def _serves(self, mark: int) -> bool:
        known = self._answer
        if known is None or self._closed:
            return False
        return known.mark >= mark and self._clock.monotonic_s() - known.asked_s <= self._question.stale_s

    def _silence(self) -> Unavailable:
        error = self._error
        if self._closed:
            return Unavailable(self._question.attempted, on=self._question.on, got="an engine that was closed")
        if isinstance(error, MainspringError):
            return Unavailable(
                error.attempted,
                got=error.got or "no answer",
                on=error.on or self._question.on,
                wanted=error.wanted,
                next_step=error.next_step,
            )
        return Unavailable(
            self._question.attempted,
            on=self._question.on,
            got="no answer yet" if error is None else f"a fault in the engine: {error!r}",
        )

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._wanted or self._closed)
                if self._closed:
                    return
                self._wanted, self._asking = False, True
                self._asked_mark = mark = self._question.mark()
            asked_s = self._clock.monotonic_s()
            answer: Answer[Value] | None = None
            error: BaseException | None = None
            try:
                answer = Answer(value=self._question.ask(), mark=mark, asked_s=asked_s)
            except MainspringError as failed:
                error = failed
            except Exception as failed:  # noqa: BLE001  (our own fault; the next question may fare better)
                on = self._question.on
                _log.exception("a fault while asking %s: %s", on, self._question.attempted, extra={"cluster": on})
                error = failed
            with self._changed:
                self._answer, self._error = answer or self._answer, error
                self._asking, self._ended_s = False, self._clock.monotonic_s()
                self._changed.notify_all()


@dataclass(frozen=True, slots=True, kw_only=True)
class CallKey:
    """What tells an act from others of its subject."""

    subject: str
    call: str
    grace_s: float
    owner: str
    reason: str


@dataclass(slots=True, kw_only=True, eq=False)
class BackgroundCall:
    """A launch, a stop, an order of nodes or a cordon to do; the same thing when all that its key has is the same.

    Args:
        run: Does it; takes as long as it likes.
        done: Whether it has come back.
        done_s: When it came back.
    """

    call: EngineCall
    run: Callable[[], object]
    done: bool = False
    error: BaseException | None = None
    done_s: float = 0.0

    @property
    def key(self) -> CallKey:
        """Returns what tells it from others."""
        call = self.call
        return CallKey(subject=call.subject, call=call.call, grace_s=call.grace_s, owner=call.owner, reason=call.reason)

    def unavailable(self, name: str, got: str) -> Unavailable:
        """Returns why nothing is known of it yet."""
        what = "nodes" if self.call.provision else "a node" if self.call.node else "an allocation"
        return Unavailable(f"{self.call.call} {what}", on=f"{self.call.subject} of {name}", got=got)


@final
class CallQueue:
    """Does acts on a few threads: those of one subject one after the other, in the order they were first asked for.

    Args:
        patience: The caller's.
        result_s: How long what came of an act is kept for whoever asks for it again.
        threads: How many acts are under way at once.
        idle: Called, by a thread of its own, whenever nothing is left to do.
    """

    def __init__(
        self,
        name: str,
        *,
        clock: Clock,
        patience: Patience,
        result_s: float,
        threads: int = THREADS,
        idle: Callable[[], None],
    ) -> None:
        self._name = name
        self._clock = clock
        self._patience = patience
        self._result_s = result_s
        self._idle = idle
        self._changed = Condition()
        self._lanes: dict[str, deque[BackgroundCall]] = {}
        self._ready: deque[deque[BackgroundCall]] = deque()
        self._waiting = 0
        self._results: OrderedDict[CallKey, BackgroundCall] = OrderedDict()
        self._closed = False
        self._threads = [
            Thread(target=self._run, name=f"mainspring-acts-{name}-{index}", daemon=True) for index in range(threads)
        ]
        for thread in self._threads:
            thread.start()

    def do(self, act: BackgroundCall) -> None:
        """Returns once the act, or the same one asked for before, is done; waits a moment for that.

        Raises:
            Unavailable: It is not done yet: ask again. Or too much waits.
        """
        with self._changed:
            act = self._known(act) or self._queue(act)
            self._patience.wait(self._changed, lambda: act.done or self._closed)
            if not act.done:
                raise act.unavailable(self._name, "an engine that was closed" if self._closed else "no end of it yet")
            self._results.pop(act.key, None)
        if act.error is not None:
            raise act.error

    def close(self) -> None:
        """Has the threads end, once they have done what they are at; what waits is not done."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def join(self, wait_s: float) -> None:
        """Returns once the threads have ended, or do not in time.

        Args:
            wait_s: How long each may take.
        """
        for thread in self._threads:
            thread.join(wait_s)

    def _known(self, act: BackgroundCall) -> BackgroundCall | None:
        """Returns the act that is the same, done or not, if it was asked for before and is not forgotten."""
        late_s = self._clock.monotonic_s() - self._result_s
        while self._results and (
            len(self._results) > RESULTS_MAX or next(iter(self._results.values())).done_s < late_s
        ):
            self._results.popitem(last=False)
        waiting = self._lanes.get(act.call.subject, ())
        return next((each for each in waiting if each.key == act.key), None) or self._results.get(act.key)

    def _queue(self, act: BackgroundCall) -> BackgroundCall:
        if self._waiting >= ACTS_MAX:
            raise act.unavailable(self._name, f"{self._waiting} others that wait for their turn")
        lane = self._lanes.setdefault(act.call.subject, deque())
        lane.append(act)
        self._waiting += 1
        if len(lane) == 1:
            self._ready.append(lane)
            self._changed.notify_all()
        return act

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._ready or self._closed)
                if self._closed:
                    return
                lane = self._ready.popleft()
                act = lane[0]
            error: BaseException | None = None
            try:
                act.run()
            except Exception as failed:  # noqa: BLE001  (raised to whoever asks for the act)
                error = failed
            with self._changed:
                act.done, act.error, act.done_s = True, error, self._clock.monotonic_s()
                self._results[act.key] = act
                lane.popleft()
                self._waiting -= 1
                if lane:
                    self._ready.append(lane)
                else:
                    del self._lanes[act.call.subject]
                idle = self._waiting == 0
                self._changed.notify_all()
            if idle:
                self._idle()
