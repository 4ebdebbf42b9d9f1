"""Laws of fail-over: of whom a lead is taken, of servers and of attempts, and which clusters are given up."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import final

import sqlalchemy as sa

from mainspring.control import Settings
from mainspring.control.store.ledger import StopCause
from mainspring.control.store.records import ATTEMPT_LIVE
from mainspring.control.store.schema import attempts, leases
from mainspring.domain.ids import AttemptId, ClusterName
from mainspring.simulator.proof.laws.hearing import Hearing
from mainspring.testing import FakeClock

_FENCED = sa.select(attempts.c.id, attempts.c.cluster).where(attempts.c.stop_cause == StopCause.FENCED.value)
_LEADS = sa.select(attempts.c.id, attempts.c.epoch).where(attempts.c.state.in_(ATTEMPT_LIVE))
_LEASE = sa.select(leases).where(leases.c.name == "leader")
_NEVER_S = -1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class _LeaseSeen:
    """The lease of the server that leads, and since when it may be unchanged, on the clock that never jumps."""

    holder: str
    expires_s: float
    since_s: float


@final
class FailoverLaws:
    """The laws of one world's fail-overs.

    Args:
        hearing: When leads of attempts were heard.
        failover_s: How long a cluster may be silent before what runs there is given up.
    """

    def __init__(self, hearing: Hearing, clock: FakeClock, failover_s: float) -> None:
        self.latest_s = _NEVER_S
        """The latest that the controllers' clock has shown when it was set."""
        self._hearing = hearing
        self._clock = clock
        self._failover_s = failover_s
        self._forward_s = _NEVER_S  # When it was last set forward, on the clock that never jumps.
        self._heard_s: dict[AttemptId, float] = {}
        self._answered_s: dict[ClusterName, float] = {}
        self._given_up: set[str] = set()
        self._epochs: dict[str, int] = {}
        self._went_back_s = _NEVER_S
        self._lease: _LeaseSeen | None = None
        self._looked_s = _NEVER_S  # When the lease was looked at last; below 0 where the clock was set since.

    def jumped(self, seconds: float) -> None:
        """Notes that the clock was set: what lasts by it has lasted for as much longer, or shorter."""
        now_s = self._clock.now_s()
        self.latest_s = max(self.latest_s, now_s, now_s - seconds)
        self._looked_s = _NEVER_S
        self._answered_s.clear()
        if seconds > 0:
            self._forward_s = self._clock.monotonic_s()

    def went_back(self) -> None:
        """Notes that the store went back in time: of what it forgot nothing is asked, and clusters answer anew."""
        self._went_back_s = self._clock.monotonic_s()
        self._lease = None
        self._answered_s.clear()
        self._epochs.clear()
        self._given_up.clear()

    def is_given_up(self, cluster: ClusterName) -> bool:
        """Returns whether a cluster may be given up that has not answered since the store went back."""
        waited_s = self._clock.monotonic_s() - self._went_back_s
        return cluster not in self._answered_s and waited_s > self._failover_s

    def before_controller(self) -> None:
        """Notes what was heard before a controller's next step, which is what it may act on."""
        self._heard_s = dict(self._hearing.last_s)

    def answered(self, clusters: Iterable[ClusterName], at_s: float) -> None:
        """Notes which clusters answered one that led.

        Args:
            at_s: When, or later, on the clock that never jumps.
        """
        for name in clusters:
            self._answered_s[name] = max(at_s, self._answered_s.get(name, _NEVER_S))

    def check(self, connection: sa.Connection) -> None:
        """Checks every law of these.

        Raises:
            AssertionError: One is broken; says which.
        """
        self._check_lease(connection)
        self._check_given_up(connection)
        self._check_leads(connection)

    def _check_lease(self, connection: sa.Connection) -> None:
        """Checks that no server takes the lead from one whose lease is not over."""
        row, before = connection.execute(_LEASE).one(), self._lease
        now_s, at_s = self._clock.now_s(), self._clock.monotonic_s()
        if before is not None and row.holder not in ("", before.holder) and before.holder:
            over = now_s >= before.expires_s or at_s - before.since_s >= Settings().leader_lease_s
            assert over or self._looked_s < 0, (
                f"{row.holder} leads, and {before.holder} might for {before.expires_s - now_s:.1f} s more"
            )
        if before is None or (before.holder, before.expires_s) != (row.holder, row.expires_s):
            self._lease = _LeaseSeen(holder=row.holder, expires_s=row.expires_s, since_s=self._looked_s)
        self._looked_s = at_s

    def _check_given_up(self, connection: sa.Connection) -> None:
        """Checks that no attempt is given up whose lead was heard within a lease, or whose cluster answered of late."""
        at_s = self._clock.monotonic_s()
        for row in connection.execute(_FENCED):
            if row.id in self._given_up:
                continue
            self._given_up.add(row.id)
            heard_s = self._heard_s.get(AttemptId(row.id), _NEVER_S)
            excused = heard_s < 0 or heard_s < self._forward_s
            assert excused or at_s - heard_s > Settings().lease_s, f"{row.id} was given up, heard at {heard_s:.1f} s"
            answered_s = self._answered_s.get(ClusterName(row.cluster))
            told = f"{row.id} was given up, and {row.cluster} answered at {answered_s} s; it is {at_s:.1f} s"
            assert answered_s is None or at_s - answered_s > self._failover_s, told

    def _check_leads(self, connection: sa.Connection) -> None:
        """Checks that no attempt's lead is replaced that was heard within a lease."""
        for row in connection.execute(_LEADS):
            before, self._epochs[row.id] = self._epochs.get(row.id, row.epoch), row.epoch
            if row.epoch > before > 0:
                quiet_s = self._hearing.silence_s(AttemptId(row.id), row.epoch, since_s=self._forward_s)
                assert quiet_s >= Settings().lease_s, f"{row.id} has another lead, heard {quiet_s:.1f} s before"
