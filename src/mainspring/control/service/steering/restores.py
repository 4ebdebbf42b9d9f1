"""What runs on clusters beyond what the store knows: listed, and ended when an operator says so."""

from __future__ import annotations

from collections.abc import Callable
from typing import final

from mainspring.control.store.audit import note
from mainspring.control.store.restores.held import all_held, settle_held
from mainspring.control.store.store import Store
from mainspring.control.store.tokens import LAB_ITSELF, Caller
from mainspring.domain.answers import HeldOnes, HeldView
from mainspring.domain.errors import NotFound, nearest
from mainspring.domain.job import LAB
from mainspring.domain.ports import Clock
from mainspring.domain.team import Right


@final
class Restores:
    """What is held of one store. Every call may be repeated.

    Args:
        wake: Told that there is something to do.
    """

    def __init__(self, store: Store, clock: Clock, wake: Callable[[], None]) -> None:
        self._store = store
        self._clock = clock
        self._wake = wake

    def held(self, caller: Caller = LAB_ITSELF) -> tuple[HeldView, ...]:
        """Returns what is held, in order of cluster and id: all of it, for anybody."""
        with self._store.read() as connection:
            return tuple(one for one in all_held(connection) if one.holds_job)

    def end(self, asked: HeldOnes, caller: Caller = LAB_ITSELF) -> tuple[HeldView, ...]:
        """Ends what is held, with the usual grace, and lets its jobs start then; returns all that is held.

        Raises:
            NotAllowed: The caller does not operate the fleet.
            NotFound: Nothing of that name is held; then nothing is ended.
        """
        with self._store.write() as connection:
            caller.require(connection, Right.HOLD_FLEET, LAB)
            known = {one.allocation: one for one in all_held(connection)}
            for allocation in asked.allocations:
                if allocation not in known:
                    wanted = nearest(allocation[:80], known)
                    raise NotFound(
                        "end what is held", on=allocation[:80], wanted=wanted, next_step="ms restore lists it"
                    )
            chosen = [one for one in (known if asked.all else asked.allocations) if not known[one].settled_by]
            settle_held(connection, chosen, str(caller))
            for allocation in chosen:
                note(connection, caller, "end what is held", allocation, team=LAB, now_s=self._clock.now_s())
        self._wake()
        return self.held(caller)
