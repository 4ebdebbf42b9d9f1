"""The leader's lease as one controller holds it: taken, renewed, lost, given up."""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass
from threading import Lock
from typing import final

import sqlalchemy as sa

from mainspring.control.store.store import Lease, Store
from mainspring.domain.errors import Conflict
from mainspring.domain.ports import Clock

KEEP = 0.25  # Of a lease's time, after which it is renewed; two renewals may fail before another leads.


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
    back leaves one that would otherwise last for as much longer. Used by the loop's thread; others may `keep` the lead,
    write as the leader, and give it up.

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
        self._changing = Lock()  # One thread at a time says what is held.
        self._others: Lease | None = None  # As it was last seen, and since when on the clock that nobody sets.
        self._others_since_s = 0.0

    def check(self, now_s: float) -> LeadCheck:
        """Takes the lead, if it is to be had, or keeps it."""
        held = self._lease
        if held is not None and self._fresh(held, now_s, 0.5):
            return LeadCheck(leads=True)
        at_s = self._clock.monotonic_s()
        stale = self._others if at_s - self._others_since_s >= self._lease_s else None
        lease = self._store.lead(self._holder, now_s=now_s, lease_s=self._lease_s, stale=stale)
        leads = lease.holder == self._holder
        if not leads and lease != self._others:
            self._others, self._others_since_s = lease, at_s
        self._hold(lease if leads else None)
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
        if not self._fresh(held, now_s, 0.5):
            self._hold(self._store.renew(connection, held, now_s=now_s, lease_s=self._lease_s))

    def keep(self) -> None:
        """Renews the lease when a quarter of its time has passed, whatever the loop is at.

        One that has expired is left to `check`: it was this controller that was away.

        Raises:
            Unavailable: The store does not answer.
        """
        now_s, held = self._clock.now_s(), self._lease
        if held is None or held.over(now_s) or self._fresh(held, now_s, 1 - KEEP):
            return
        kept = self._store.keep(held, now_s=now_s, lease_s=self._lease_s)
        with self._changing:
            if kept is not None and self._lease == held:
                self._lease = kept

    def _fresh(self, lease: Lease, now_s: float, share: float) -> bool:
        """Returns whether more than a share of a lease's time is left, and no more than all: clocks are set."""
        return share * self._lease_s < lease.expires_s - now_s <= self._lease_s

    def _hold(self, lease: Lease | None) -> None:
        with self._changing:
            self._lease = lease

    def lost(self) -> None:
        """Notes that another controller leads."""
        self._hold(None)

    def resign(self) -> None:
        """Gives up the lead, if held, so that the next controller need not wait."""
        with self._changing:
            held, self._lease = self._lease, None
        if held is not None:
            self._store.resign(held)
