"""The leader's lease as one controller holds it: taken, renewed, lost, given up."""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import final

import sqlalchemy as sa

from mainspring.control.store.store import Lease, Store
from mainspring.domain.errors import Conflict
from mainspring.domain.ports import Clock


@dataclass(frozen=True, slots=True, kw_only=True)
class LeadCheck:
    """Whether this controller leads, whether it does so anew, and whether nobody did for a while."""

    leads: bool
    anew: bool = False
    away: bool = False


@final
class Leadership:
    """Whether one controller leads; a write as the leader fails once another does.

    A lease ends when its time has come, or when it was seen unchanged for as long as a lease lasts: a clock that is set
    back leaves one that would otherwise last for as much longer. Used by the loop's thread; any may give up the lead.

    Args:
        store: Where the lease is.
        holder: The controller's own name.
        lease_s: How long a lease lasts.
    """

    def __init__(self, store: Store, clock: Clock, holder: str, lease_s: float) -> None:
        self.since_s = 0.0
        self._store = store
        self._clock = clock
        self._holder = holder
        self._lease_s = lease_s
        self._lease: Lease | None = None
        self._others: Lease | None = None  # As it was last seen, and since when on the clock that nobody sets.
        self._others_since_s = 0.0

    def check(self, now_s: float) -> LeadCheck:
        """Takes the lead, if it is to be had, or keeps it."""
        held = self._lease
        if held is not None and 0.5 * self._lease_s < held.expires_s - now_s <= self._lease_s:
            return LeadCheck(leads=True)
        at_s = self._clock.monotonic_s()
        stale = self._others if at_s - self._others_since_s >= self._lease_s else None
        lease = self._store.lead(self._holder, now_s=now_s, lease_s=self._lease_s, stale=stale)
        leads = lease.holder == self._holder
        if not leads and lease != self._others:
            self._others, self._others_since_s = lease, at_s
        self._lease = lease if leads else None
        anew = not leads or held is None or lease.epoch != held.epoch
        if anew:
            self.since_s = now_s
        return LeadCheck(leads=leads, anew=anew, away=held is None or held.expires_s < now_s)

    def write(self) -> AbstractContextManager[sa.Connection]:
        """Returns a transaction of the leader's.

        Raises:
            Conflict: Another controller leads, or may.
        """
        return self._store.write(self._held)

    @property
    def _held(self) -> Lease:
        lease = self._lease
        if lease is None:
            raise Conflict("write as the leader", got="a lead that was given up", next_step="look again as a follower")
        return lease

    @property
    def shared(self) -> bool:
        """Returns whether there may be controllers that follow this one, or that it follows."""
        return self._store.shared

    def read(self) -> AbstractContextManager[sa.Connection]:
        """Returns a transaction that only reads."""
        return self._store.read()

    def renew(self, connection: sa.Connection) -> None:
        """Renews the lease when it has come of age: the first look at a large store takes seconds.

        Args:
            connection: From `write`.
        """
        now_s, held = self._clock.now_s(), self._held
        if held.expires_s - now_s <= 0.5 * self._lease_s:
            self._lease = self._store.renew(connection, held, now_s=now_s, lease_s=self._lease_s)

    def lost(self) -> None:
        """Notes that another controller leads."""
        self._lease = None

    def resign(self) -> None:
        """Gives up the lead, if held, so that the next controller need not wait."""
        held, self._lease = self._lease, None
        if held is not None:
            self._store.resign(held)
