"""Health of one controller: what its loop tells of itself, and what follows for those who ask."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import final

from mainspring.control.loop.loop import Step
from mainspring.control.state.fleet import FleetView
from mainspring.control.store.store import Lease
from mainspring.domain.answers import Health, HealthCheck, HealthStatus
from mainspring.domain.errors import Busy, MainspringError
from mainspring.domain.ids import ClusterName
from mainspring.domain.ports import Clock
from mainspring.domain.release import RELEASE

HUNG_S = 90.0  # The longest call on an engine takes a minute.
LATE_S = 30.0  # A tick that plans for a large fleet renews the lease after that.


@final
class Pulse:
    """What is known of a loop's life. Told by the thread that runs it, asked by many.

    Args:
        fleet: What each cluster said last.
        clusters: Every cluster that the loop asks.
    """

    def __init__(self, clock: Clock, fleet: FleetView, clusters: Iterable[ClusterName]) -> None:
        self.began_s = clock.now_s()
        """Since when this controller hears anybody."""
        self._clock = clock
        self._fleet = fleet
        self._clusters = sorted(clusters)
        self._moved_s: float | None = None
        self._leads = False
        self._error = ""
        self.ending = False
        """Whether this controller ends: it answers what it is asked, and is not to be asked any more."""

    def stepped(self, step: Step) -> None:
        """Notes that a tick got past one of its steps."""
        self._moved_s = self._clock.monotonic_s()
        self._leads = step is not Step.FOLLOWING
        if step in (Step.FOLLOWING, Step.RECORDED):
            self._error = ""

    def failed(self, error: BaseException) -> None:
        """Notes that a tick was cut short."""
        self._moved_s = self._clock.monotonic_s()
        # Anybody may ask: what else there is to say of a fault of ours stands in the server's log.
        self._error = str(error) if isinstance(error, MainspringError) else f"a fault: {type(error).__name__}"

    def health(
        self,
        leader: Callable[[], Lease],
        held: Callable[[], int],
        breakers: Callable[[], Mapping[ClusterName, str]],
    ) -> Health:
        """Returns how the controller is, also while its store does not answer.

        Args:
            leader: Reads the leader's lease.
            held: Reads how many allocations run that the store does not know, and wait for an operator.
            breakers: Reads which clusters' breakers are open, and why.
        """
        now_s, beyond, opened = self._clock.now_s(), 0, dict[ClusterName, str]()
        try:
            lease, beyond, opened = leader(), held(), dict(breakers())
            epoch, lead, store = lease.epoch, self._lead(lease, now_s - lease.expires_s), _check("store", self._error)
        except MainspringError as error:
            epoch, lead, store = 0, _check("lead", "its lease cannot be read"), _check("store", str(error))
        ends = [_check("server", "it ends, and gives up the lead")] if self.ending else []
        checks = (*ends, self._loop(), lead, store, *_beyond(beyond), *self._each_cluster(now_s), *_breakers(opened))
        worst = max((check.status for check in checks), key=list(HealthStatus).index)
        return Health(status=worst, leader_epoch=epoch, checks=checks, release=RELEASE)

    def require_staying(self, attempted: str) -> None:
        """Returns if this controller goes on for as long as it is asked to.

        Args:
            attempted: What it is to do until somebody leaves, as a clause.

        Raises:
            Busy: It ends.
        """
        if self.ending:
            raise Busy(attempted, got="a server that ends", next_step="ask again, or another of this lab")

    @property
    def alive(self) -> bool:
        """Returns whether the loop moves, or has not begun yet: where not, only a new process helps."""
        return self.silent_s <= HUNG_S

    @property
    def silent_s(self) -> float:
        """Returns for how long the loop has not moved, 0 before it began."""
        return 0.0 if self._moved_s is None else self._clock.monotonic_s() - self._moved_s

    def _loop(self) -> HealthCheck:
        if self._moved_s is None:
            return _check("loop", "has not begun")
        return _check("loop", "" if self.alive else f"has not moved for {self.silent_s:.0f} s")

    def _lead(self, lease: Lease, late_s: float) -> HealthCheck:
        if not lease.holder:  # When a leader ends another leads within moments, and is not missed.
            return _check("lead", "nobody leads" if late_s > LATE_S else "")
        whose = "its lease" if self._leads else f"the lease of {lease.holder}, which this controller follows,"
        return _check("lead", f"{whose} ran out {late_s:.0f} s ago" if late_s > LATE_S else "")

    def _each_cluster(self, now_s: float) -> Iterable[HealthCheck]:
        seen = self._fleet.seen()
        for cluster in self._clusters:
            one = seen.get(cluster)
            if one is None:
                words = "has never answered this controller"
            else:
                words = "" if one.answering else f"has not answered for {max(0.0, now_s - one.seen_s):.0f} s"
            yield _check(f"cluster {cluster}", words, HealthStatus.DEGRADED)


def _beyond(held: int) -> Iterable[HealthCheck]:
    """Yields what is to be said of a store that went back in time, and of no other."""
    if held:
        words = "go beyond what the store knows and are held; next: ms restore"
        yield _check("held", f"{held} allocations {words}", HealthStatus.DEGRADED)


def _breakers(opened: Mapping[ClusterName, str]) -> Iterable[HealthCheck]:
    """Yields what is to be said of breakers that are open, and of no other."""
    for cluster, words in opened.items():
        told = f"is open, so that health closes and opens nothing there: {words}; next: ms health incidents"
        yield _check(f"breaker of {cluster}", told, HealthStatus.DEGRADED)


def _check(name: str, words: str, bad: HealthStatus = HealthStatus.FAILING) -> HealthCheck:
    return HealthCheck(name=name, status=bad if words else HealthStatus.OK, words=words)
