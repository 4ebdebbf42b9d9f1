"""Maintenance that people announce: windows in which nodes are not there for work, which plans lead around."""

from __future__ import annotations

from collections.abc import Callable
from typing import final

from mainspring.control.state.fleet import FleetView
from mainspring.control.store.audit import note
from mainspring.control.store.ledger import StateWriter
from mainspring.control.store.nodes.maintenance import NEW, WINDOWS_MAX, add_window, remove_window, windows
from mainspring.control.store.store import Store
from mainspring.control.store.tokens import LAB_ITSELF, Caller
from mainspring.domain.answers import MaintenanceWindow, NewMaintenance
from mainspring.domain.answers.health import require_reason
from mainspring.domain.errors import InvalidInput, NotFound, nearest
from mainspring.domain.ids import ClusterName, NodeName
from mainspring.domain.job import LAB
from mainspring.domain.ports import Clock
from mainspring.domain.team import Right
from mainspring.domain.wire.events.nodes import MaintenanceAnnouncedEvent, MaintenanceWithdrawnEvent

HOUR_S = 3_600.0
DIGITS_MAX = 15  # Of a window's number: far more than are ever announced.
_ATTEMPTED = "announce maintenance"


@final
class Announcing:
    """What may be said of maintenance at one controller. Used by many threads.

    Args:
        fleet: What the engines said.
        wake: Told that there is something to do.
    """

    def __init__(self, store: Store, fleet: FleetView, clock: Clock, wake: Callable[[], None]) -> None:
        self._store = store
        self._fleet = fleet
        self._clock = clock
        self._wake = wake

    def windows(
        self, caller: Caller = LAB_ITSELF, *, cluster: str | None = None, past: bool = False
    ) -> tuple[MaintenanceWindow, ...]:
        """Returns windows in order of when they begin; anybody may read them.

        Args:
            cluster: Only of this cluster, unless None.
            past: Whether also those that are over.
        """
        with self._store.read() as connection:
            found = windows(connection, after_s=0.0 if past else self._clock.now_s())
        return tuple(one for one in found if cluster in (None, one.cluster))

    def announce(self, cluster: str, asked: NewMaintenance, caller: Caller = LAB_ITSELF) -> MaintenanceWindow:
        """Announces a window, and returns it.

        Raises:
            NotAllowed: The caller does not operate the fleet.
            NotFound: There is no such cluster, or no such node of it.
            InvalidInput: It is over already, or too many are announced.
        """
        now_s, name = self._clock.now_s(), ClusterName(cluster)
        seen = self._fleet.seen()
        if name not in seen:
            raise NotFound(_ATTEMPTED, on=f"cluster {cluster[:80]!r}", wanted=nearest(cluster[:80], seen))
        known = [node.name for node in seen[name].inventory.nodes]
        for node in asked.nodes:
            if node not in known:
                raise NotFound(_ATTEMPTED, on=f"{node[:80]!r} of {cluster}", wanted=nearest(node[:80], known))
        until_s = asked.from_s + asked.hours * HOUR_S
        if until_s <= now_s:
            raise InvalidInput(_ATTEMPTED, on="field 'from_s'", got="a time that is over", wanted="one to come")
        made = MaintenanceWindow(
            number=NEW,
            cluster=name,
            nodes=tuple(dict.fromkeys(NodeName(node) for node in asked.nodes)),
            from_s=asked.from_s,
            until_s=until_s,
            by=str(caller),
            reason=asked.reason,
        )
        with self._store.write() as connection:
            caller.require(connection, Right.HOLD_FLEET, LAB)
            if len(windows(connection, after_s=now_s)) >= WINDOWS_MAX:
                raise InvalidInput(_ATTEMPTED, got=f"{WINDOWS_MAX} that are not over", wanted="fewer")
            made = add_window(connection, made)
            told = MaintenanceAnnouncedEvent(
                cluster=name, number=made.number, from_s=made.from_s, until_s=until_s, by=made.by, reason=made.reason
            )
            StateWriter(connection, now_s).event(told, job=None)
            words = f"{cluster}, {len(made.nodes) or 'all'} nodes: {asked.reason}"
            note(connection, caller, _ATTEMPTED, words, team=LAB, now_s=now_s)
        self._wake()
        return made

    def withdraw(self, number: str, caller: Caller = LAB_ITSELF, *, reason: str = "") -> MaintenanceWindow:
        """Withdraws a window, and returns it.

        Args:
            reason: Why, for people.

        Raises:
            NotAllowed: The caller does not operate the fleet.
            NotFound: There is no such window.
            InvalidInput: No reason is given.
        """
        require_reason("withdraw maintenance", reason)
        now_s = self._clock.now_s()
        with self._store.write() as connection:
            caller.require(connection, Right.HOLD_FLEET, LAB)
            known = number.isascii() and number.isdigit() and len(number) <= DIGITS_MAX
            found = remove_window(connection, int(number)) if known else None
            if found is None:
                next_step = "ms node maintenance ls"
                raise NotFound("withdraw maintenance", on=f"window {number[:80]}", next_step=next_step)
            told = MaintenanceWithdrawnEvent(cluster=found.cluster, number=found.number, by=str(caller), reason=reason)
            StateWriter(connection, now_s).event(told, job=None)
            words = f"{number} of {found.cluster}: {reason}"
            note(connection, caller, "withdraw maintenance", words, team=LAB, now_s=now_s)
        self._wake()
        return found
