"""Clusters whose calls are lost, late or answered from memory, that list late, forget, and fall silent."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import final

from mainspring.domain.errors import Unavailable
from mainspring.domain.fleet import AllocationPhase, AllocationSeen, LaunchOrder
from mainspring.domain.ids import AllocationId, AttemptId
from mainspring.domain.job import MAIN
from mainspring.domain.ports import Dice
from mainspring.engines.common.forwarding import CallResult, EngineCall, ForwardingEngine, perform
from mainspring.simulator.nodes.agenda import chance, pick
from mainspring.simulator.nodes.rare import Rare
from mainspring.testing import FakeEngine

_LATE_S_MAX = 90  # Longer than a controller's patience with a launch that does not show.
_HIDDEN_S_MAX = 90
_STOP = "stop"
_ACTS = ("launch", _STOP)


@dataclass(frozen=True, slots=True, kw_only=True)
class CallFaults:
    """How often calls go wrong.

    Args:
        lost: A call never arrives.
        reply_lost: A call acts, and its answer never comes back.
        late: A launch or stop is given up by the caller and arrives much later, after others.
        stale: What is shown is what was last shown, unless something was done since.
        hidden: A launch does not show for a while, though it was taken.
        forgotten: A launch that was taken is forgotten before it starts.
    """

    lost: float = 0.0
    reply_lost: float = 0.0
    late: float = 0.0
    stale: float = 0.0
    hidden: float = 0.0
    forgotten: float = 0.0


@final
class SimulatedCluster(ForwardingEngine):
    """An `Engine` around the fake one: faults are drawn from dice, and what truly runs can be seen past them.

    Args:
        inner: The cluster itself, which never fails.
        later: Does something after so many seconds; without it no call is late.
        now_s: Returns the time.
        saw: Told what rarely happens.
    """

    def __init__(
        self,
        inner: FakeEngine,
        dice: Dice,
        *,
        later: Callable[[float, Callable[[], object]], None] | None = None,
        now_s: Callable[[], float] = lambda: 0.0,
        saw: Callable[[Rare], None] = lambda what: None,
    ) -> None:
        self.inner = inner
        self.faults = CallFaults()
        self.answering = True
        self.orders: dict[AllocationId, LaunchOrder] = {}
        self.stops: Counter[AllocationId] = Counter()  # How often it was told to stop each, whether it heard or not;
        self.stopped: set[AllocationId] = set()  # and what it heard of.
        self.late: set[AllocationId] = set()  # What was launched long after it was given up.
        self.strangers: set[AllocationId] = set()
        self._dice = dice
        self._later = later
        self._now_s = now_s
        self._saw = saw
        self._era = 0  # Of calls under way: those of an older one never arrive.
        self._hidden_until_s: dict[AllocationId, float] = {}
        self._shown: tuple[AllocationSeen, ...] | None = None

    def running(self) -> Mapping[AllocationId, AllocationSeen]:
        """Returns every allocation with an agent that lives, or may yet come to, as it truly is."""
        return {seen.allocation: seen for seen in self.inner.observe() if seen.phase is not AllocationPhase.ENDED}

    def start_stranger(self) -> None:
        """Runs something under our label that no store knows of, as after a store was restored from a backup."""
        shown = self.inner.inventory()
        allocation = AllocationId(f"stranger-{len(self.strangers)}-of-{shown.cluster}")
        node = shown.nodes[0].name
        self.strangers.add(allocation)
        self.inner.launch(
            LaunchOrder(
                allocation=allocation,
                attempt=AttemptId("strange"),
                role=MAIN,
                nodes=(node,),
                chip_milli=(0,),
                controller="",
                token="",
            )
        )
        self._saw(Rare.STRANGER)

    def forget_queue(self) -> None:
        """Loses what it took and has not started, as a server does that is killed before it has saved its state."""
        for allocation in self.inner.waiting():
            self.inner.forget(allocation)
            self._saw(Rare.ENGINE_FORGOT)

    def settle_calls(self) -> None:
        """Loses what is under way, and lists all that it has: so long nobody calls."""
        self._era += 1
        self._hidden_until_s.clear()
        self._shown = None

    def _forward(self, call: EngineCall) -> CallResult:
        if call.call == _STOP:
            self.stops[call.about] += 1
        if not self.answering or chance(self._dice, self.faults.lost):
            raise Unavailable(call.call, got="no answer")
        if self._later is not None and call.call in _ACTS and chance(self._dice, self.faults.late):
            self._later(float(pick(self._dice, _LATE_S_MAX)), partial(self._arrive_late, call, self._era))
            raise Unavailable(call.call, got="no answer yet")
        if call.call == "observe" and self._shown is not None and chance(self._dice, self.faults.stale):
            self._saw(Rare.ENGINE_STALE)
            return self._shown
        found = self._perform(call)
        if chance(self._dice, self.faults.reply_lost):
            raise Unavailable(call.call, got="no answer, though it has acted")
        if call.call == "observe":
            found = self._shown = self._listed()
        return found

    def _arrive_late(self, call: EngineCall, era: int) -> None:
        if era != self._era:
            return
        self._saw(Rare.CALL_LATE)
        self._perform(call)
        if call.order:
            self.late.add(call.about)

    def _perform(self, call: EngineCall) -> CallResult:
        found = perform(self.inner, call)
        if call.call == _STOP:
            self.stopped.add(call.about)
        if call.call in _ACTS:
            self._shown = None  # Answers are never older than what was done;
            self._hidden_until_s.pop(call.about, None)  # and what a stop took is shown until it is over.
        # A second order for one allocation is ignored: its agents hold what the first one brought.
        if call.order and call.about not in self.orders and call.about in self.running():
            self.orders[call.about] = call.order
            if chance(self._dice, self.faults.hidden):
                self._hidden_until_s[call.about] = self._now_s() + pick(self._dice, _HIDDEN_S_MAX)
        return found

    def _listed(self) -> tuple[AllocationSeen, ...]:
        shown = []
        for seen in self.inner.observe():
            if self._hidden_until_s.get(seen.allocation, 0.0) > self._now_s():
                self._saw(Rare.ENGINE_LATE)
            else:
                shown.append(seen)
        return tuple(shown)
