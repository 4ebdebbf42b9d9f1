"""Servers of one store: one leads and others follow it; the lead moves when one is paused, dies, or gives it up."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import final

from mainspring.control import Control, Step
from mainspring.control.loop.leadership import KEEP
from mainspring.control.loop.loop import Loop
from mainspring.domain.errors import MainspringError
from mainspring.domain.ids import AllocationId
from mainspring.simulator.nodes.agenda import Agenda, chance, pick
from mainspring.simulator.nodes.rare import Rare
from mainspring.testing import SeededDice

_REPLICATED = 0.2  # Of all worlds; in each of them a second server costs half as much again.
_PAUSES, _PAUSED_S_MAX = 0.1, 12  # At most so often, each step; for up to four leases.
_RESIGNS = 0.8  # At most so many of the servers that end were asked to.
_CALLS = 0.5  # Of calls, those that reach the second server.
_STEPS_MAX = 8  # Of a tick, between two steps of the world; as the first server makes.


@dataclass(slots=True, eq=False)
class Server:
    """One server, and where its tick stands.

    Args:
        stops_due: How often each stop had been said that its last commit wants said.
        led_s: When the newest tick in which it leads began, on the clock that never jumps.
        follows: Whether the tick before this one found another in the lead.
        paused_until_s: Until when it does nothing, and answers nobody.
        paused: Whether it was paused in the middle of this tick.
    """

    control: Control
    loop: Loop
    tick: Iterator[Step]
    stops_due: Mapping[AllocationId, int] = field(default_factory=dict)
    led_s: float = 0.0
    follows: bool = False
    paused_until_s: float = 0.0
    paused: bool = False


@final
class Servers:
    """All servers of one world: the first, those that were only thought dead, and where a seed draws it, a second one.

    The second follows whoever leads, and takes calls like the first.

    Args:
        seed: Where the second comes from, and what becomes of the two, by dice of their own.
        seen: Counts what rarely happens.
        say: Writes a line of the trace.
    """

    first: Server

    def __init__(self, seed: int, agenda: Agenda, *, seen: Counter[Rare], say: Callable[[str], None]) -> None:
        self._luck = SeededDice(seed, "servers")
        self.replicated = chance(self._luck, _REPLICATED)
        self.second: Server | None = None
        self.stale: list[Server] = []
        self._agenda = agenda
        self._seen = seen
        self._say = say
        self._pauses = _PAUSES * pick(self._luck, 1_000) / 1_000
        self._resigns = _RESIGNS * pick(self._luck, 1_000) / 1_000

    @property
    def alive(self) -> tuple[Server, ...]:
        """Returns those that nobody thinks dead."""
        return (self.first,) if self.second is None else (self.first, self.second)

    def reached(self) -> Control:
        """Returns the server that a call reaches: of two, one always answers."""
        chosen = self.first
        if self.second is not None and not self.paused(self.second):
            chosen = self.second if self.paused(self.first) or chance(self._luck, _CALLS) else self.first
            self._seen[Rare.FOLLOWER_CALLED] += chosen.follows
        return chosen.control

    def paused(self, server: Server) -> bool:
        """Returns whether a server does nothing now."""
        return server.paused_until_s > self._agenda.now_s

    def follow(self, step: Callable[[Server], object]) -> None:
        """Lets the second server go on with its tick for a few steps, and perhaps pauses either.

        Args:
            step: Takes a server one step further.
        """
        if self.second is None:
            return
        if chance(self._luck, self._pauses) and not any(map(self.paused, self.alive)):
            server, seconds = self.alive[pick(self._luck, 2)], 1 + pick(self._luck, _PAUSED_S_MAX)
            server.paused_until_s, server.paused = self._agenda.now_s + seconds, True
            self._say(f"a server that {'follows' if server.follows else 'leads'} is paused for {seconds} s")
        if not self.paused(self.second):
            for _ in range(1 + pick(self._luck, _STEPS_MAX)):
                step(self.second)

    def plan_slowly(self, seconds: float, *, step: Callable[[Server], object], wait: Callable[[float], None]) -> None:
        """Lets time pass for all but the first server.

        Args:
            step: Takes a server one step further.
            wait: Lets time pass for everybody who is no server.
        """
        each_s = seconds if self.second is None else self.first.control.settings.leader_lease_s
        while seconds > 0:
            wait(min(seconds, each_s))
            seconds -= each_s
            self.follow(step)

    def keep(self, server: Server) -> None:
        """Has a server of several keep its lead through long steps, as its thread does."""
        if not self.replicated:
            return

        def again() -> bool:
            if server in self.alive and not self.paused(server):
                with suppress(MainspringError):
                    server.loop.keep_lead()
            return server in self.alive

        self._agenda.every(0.5 * KEEP * server.control.settings.leader_lease_s, again)

    def die(self) -> None:
        """Lets the first of two servers give up its lead before it ends, perhaps, as one does that is asked to end."""
        if self.second is not None and not self.paused(self.first) and chance(self._luck, self._resigns):
            self._seen[Rare.RESIGNED] += not self.first.follows
            with suppress(MainspringError):
                self.first.loop.resign()

    def leave_one(self) -> None:
        """Ends all servers but one of the two."""
        self.stale.clear()
        self.first, self.second = self.alive[pick(self._luck, len(self.alive))], None
        self.first.paused_until_s = 0.0

    # ------------------------------------------------------------ what their steps tell

    def took_step(self, server: Server, step: Step | None) -> None:
        """Counts what a server's step tells of the lead; None for the end of a tick."""
        match step:
            case Step.LEADING:
                if server.follows and self.replicated:
                    self._seen[Rare.TAKEN_OVER] += 1
                    self._say("a server that followed takes over")
                server.follows, server.led_s = False, self._agenda.now_s
            case Step.FOLLOWING:
                server.follows = True
            case None:
                server.paused = False
            case _:
                pass

    def refused(self, server: Server) -> None:
        """Counts that a server learnt in the middle of its tick that another leads."""
        self._seen[Rare.STALE_REFUSED] += server in self.stale
        self._seen[Rare.PAUSED_REFUSED] += server.paused
