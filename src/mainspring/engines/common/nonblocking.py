"""An engine behind threads of its own, so that whoever calls it never waits for a cluster that is slow or hangs.

A controller's one thread calls its engines one after the other. Through `NonBlockingEngine` a question is answered from
the newest answer, and an act that takes longer than a moment raises `Unavailable` while it goes on; asking for the same
act again tells how it ended. Answers are ordered by what was done before they were asked for: one that cannot know of
an act that returned is completed from that act, so a launch that returned is never absent, and what a stop took never
runs again.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from threading import Lock
from typing import final

from mainspring.domain.fleet import AllocationPhase, AllocationSeen
from mainspring.domain.ids import NO_JOB, AllocationId, ClusterName, JobId, NodeName
from mainspring.domain.ports import Clock, Engine
from mainspring.engines.common.background_calls import (
    CORDON_THREADS,
    MOMENT_S,
    BackgroundCall,
    CallQueue,
    LatestAnswer,
    Patience,
    Question,
)
from mainspring.engines.common.forwarding import CallResult, EngineCall, ForwardingEngine, perform

JOIN_S = 1.0  # A call that takes longer ends when its own bound is reached; nothing waits for its thread.


@dataclass(frozen=True, slots=True, kw_only=True)
class _Taken:
    """An act that the engine took, and when; a launch until its stop follows."""

    mark: int
    nodes: tuple[NodeName, ...]
    job_id: JobId
    stopped: bool


@final
class NonBlockingEngine(ForwardingEngine):
    """The `Engine` port around another engine, which several threads will call at once.

    What it shows is at most `stale_s` old, or as acts have left it since. A launch, a stop, an order of nodes or a
    cordon that raises `Unavailable` may be under way: asked for again it tells what came of it. Many cordons at once
    hold up no launch. Logs and attestations are waited for.

    Args:
        inventory_s: How old what is known of its nodes may be before it is asked for again.
        observe_s: The same of its allocations.
        stale_s: How old either may be when it is shown; over it the cluster counts as silent.
        moment_s: How long a caller may be kept waiting.
    """

    def __init__(
        self,
        engine: Engine,
        *,
        name: ClusterName,
        clock: Clock,
        inventory_s: float,
        observe_s: float,
        stale_s: float,
        moment_s: float = MOMENT_S,
    ) -> None:
        self._engine = engine
        self._lock = Lock()
        self._observing = Lock()  # An answer must not meet what was kept for an older one only.
        self._mark = 0
        self._taken: dict[AllocationId, _Taken] = {}
        patience = Patience(clock, moment_s)
        nodes = Question(
            attempted="list a cluster's nodes",
            on=name,
            ask=engine.inventory,
            mark=lambda: self._mark,
            refresh_s=inventory_s,
            stale_s=stale_s,
        )
        allocations = Question(
            attempted="look at a cluster's allocations",
            on=name,
            ask=engine.observe,
            mark=lambda: self._mark,
            refresh_s=observe_s,
            stale_s=stale_s,
        )
        self._inventory = LatestAnswer(nodes, clock=clock, patience=patience)
        self._seen = LatestAnswer(allocations, clock=clock, patience=patience)
        self._turns = CallQueue(name, clock=clock, patience=patience, result_s=stale_s, idle=self._seen.want)
        self._cordons = CallQueue(
            name,
            clock=clock,
            patience=patience,
            result_s=stale_s,
            threads=CORDON_THREADS,
            idle=self._inventory.want,
        )

    def close(self) -> None:
        """Ends its threads, as far as the engine lets them; what waits is not done. Every call raises from now on."""
        parts = (self._turns, self._cordons, self._seen, self._inventory)
        for part in parts:
            part.close()
        for part in parts:
            part.join(JOIN_S)

    def _forward(self, call: EngineCall) -> CallResult:
        match call.call:
            case "inventory":
                self._seen.want()  # It is the next thing a controller asks for.
                return self._inventory.get().value
            case "observe":
                return self._observed()
            case "launch" | "stop":
                self._turns.do(BackgroundCall(call=call, run=partial(self._act, call)))
                return None
            case "provision":
                self._turns.do(BackgroundCall(call=call, run=partial(self._marked, call)))
                return None
            case "cordon" | "uncordon":
                self._cordons.do(BackgroundCall(call=call, run=partial(self._marked, call)))
                return None
            case _:
                return perform(self._engine, call)

    def _observed(self) -> tuple[AllocationSeen, ...]:
        with self._observing:
            answer = self._seen.get()
            seen = {each.allocation: each for each in answer.value}
            with self._lock:
                self._taken = {name: taken for name, taken in self._taken.items() if taken.mark > answer.mark}
                seen |= {name: _after(name, seen.get(name), taken) for name, taken in self._taken.items()}
            return tuple(seen[name] for name in sorted(seen))

    def _marked(self, call: EngineCall) -> CallResult:
        """Returns what the engine answers to a call that may change what it shows."""
        try:
            return perform(self._engine, call)
        finally:
            self._next_mark()

    def _act(self, call: EngineCall) -> None:
        try:
            perform(self._engine, call)
        except BaseException:
            self._next_mark()  # It may have acted.
            raise
        with self._lock:
            self._mark += 1
            known = self._taken.get(call.about)
            self._taken[call.about] = _Taken(
                mark=self._mark,
                nodes=call.order.nodes if call.order else known.nodes if known else (),
                job_id=call.order.job_id if call.order else known.job_id if known else NO_JOB,
                stopped=call.order is None or (known is not None and known.stopped),
            )

    def _next_mark(self) -> None:
        with self._lock:
            self._mark += 1


def _after(name: AllocationId, seen: AllocationSeen | None, taken: _Taken) -> AllocationSeen:
    """Returns an allocation as an act has left it of which the answer cannot know."""
    if seen is None:
        return AllocationSeen(
            allocation=name,
            phase=AllocationPhase.STOPPING if taken.stopped else AllocationPhase.PENDING,
            nodes=taken.nodes,
            job_id=taken.job_id,
            reason="not looked at since",
        )
    live = seen.phase in (AllocationPhase.PENDING, AllocationPhase.RUNNING)
    return replace(seen, phase=AllocationPhase.STOPPING) if live and taken.stopped else seen
