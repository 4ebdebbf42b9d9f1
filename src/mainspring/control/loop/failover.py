"""Cluster failover: when a cluster that does not answer is given up, so that its jobs may start elsewhere.

Silence alone proves nothing: an engine's own controller may be down while every run goes on. An attempt is given up
only when its engine has been silent for long and its lead has not been heard of beyond the lease either.

What runs there may go on without us knowing. So giving up fences first: from the same transaction on, nothing the old
lead or its agents say counts (their reports are answered "fenced", at which they end at once; they cannot register;
what they store bears their attempt's own name), and only then may the job be granted again. Its allocations stay in the
store as stopping: when the cluster answers again they are stopped before anything is placed on the nodes they hold.
"""

from __future__ import annotations

from collections.abc import Iterable

from mainspring.control.store.records import AttemptRecord
from mainspring.domain.ids import ClusterName


class Silence:
    """For how long each engine has not answered, counted from the first time it was asked in vain."""

    def __init__(self) -> None:
        self._since_s: dict[ClusterName, float] = {}
        self._life = 0
        self._answered: dict[ClusterName, None] = {}

    def heard(self, cluster: ClusterName) -> None:
        """Notes an answer."""
        self._since_s.pop(cluster, None)

    def missed(self, cluster: ClusterName, *, monotonic_s: float) -> None:
        """Notes that an answer did not come.

        Args:
            monotonic_s: When, on the clock that never jumps.
        """
        self._since_s.setdefault(cluster, monotonic_s)

    def forget(self) -> None:
        """Starts anew, as after a time in which nobody was asked."""
        self._since_s.clear()

    def waits_for_any(
        self, life: int, answering: Iterable[ClusterName], *, monotonic_s: float, failover_s: float
    ) -> bool:
        """Returns whether a cluster has not yet shown what runs there since the store went back, and may before long.

        Args:
            life: Of the store; another one begins where it goes back.
            answering: The clusters that answer now.
            failover_s: How long one may be silent before it is given up.
        """
        if life != self._life:
            self._life, self._answered = life, {}
        shown = {*self._answered, *answering}
        return any(
            self.seconds(name, monotonic_s=monotonic_s) <= failover_s for name in self._since_s if name not in shown
        )

    def written(self, answering: Iterable[ClusterName]) -> None:
        """Notes that the store knows what some clusters showed: until then, whoever asks next starts from nothing."""
        self._answered |= dict.fromkeys(answering)

    def seconds(self, cluster: ClusterName, *, monotonic_s: float) -> float:
        """Returns for how long a cluster has been silent, 0 while it answers."""
        return monotonic_s - self._since_s.get(cluster, monotonic_s)


def given_up(attempt: AttemptRecord, *, silent_s: float, quiet_s: float, failover_s: float, lease_s: float) -> str:
    """Returns why an attempt is given up, "" while it is not.

    Args:
        attempt: A live attempt, as the store has it now.
        silent_s: For how long its engine has not answered.
        quiet_s: For how long its lead was not heard.
        failover_s: How long an engine may be silent.
        lease_s: How long a lead may be silent; several heartbeats.
    """
    if silent_s <= failover_s or quiet_s <= lease_s:
        return ""
    return f"cluster {attempt.cluster} has been silent for {silent_s:.0f} s, and its lead for {quiet_s:.0f} s"
