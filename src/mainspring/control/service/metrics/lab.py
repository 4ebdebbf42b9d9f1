"""What Prometheus is told of the lab, read when it asks: jobs, goodput, clusters, the queue, what attempts hold.

Labels are team, tier, cluster and one of what is counted, three of them at most; a metric has at most `SERIES_MAX`
series, the largest. What stands in the store every server tells alike, so rules take `max without (instance)` of it;
what a plan shows its leader alone tells.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from threading import Lock
from typing import Any, final

import numpy as np
import sqlalchemy as sa
from prometheus_client import Metric
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from mainspring.control.health.breaker import Breaker
from mainspring.control.health.quarantines import OWNER
from mainspring.control.service.metrics.events import EventCounts
from mainspring.control.service.metrics.large import LargeJobs
from mainspring.control.service.reports.goodput import goodput_report
from mainspring.control.state.fleet import FleetView
from mainspring.control.state.latest_plan import LatestPlan, LatestPlans
from mainspring.control.store.nodes.closures import open_closures
from mainspring.control.store.nodes.settings import breaker_texts, healths
from mainspring.control.store.rows import read_text
from mainspring.control.store.schema import jobs as job_rows
from mainspring.control.store.settings import Settings
from mainspring.control.store.store import Store
from mainspring.control.store.tallies import counts_by_team
from mainspring.domain.answers import ClosureKind
from mainspring.domain.errors import Unavailable
from mainspring.domain.fleet import NodeCondition
from mainspring.domain.goodput import Goodput
from mainspring.domain.job import MILLI, Tier
from mainspring.domain.life import ended
from mainspring.domain.ports import Clock
from mainspring.domain.release import RELEASE

SERIES_MAX = 1_000  # Of one metric.
_DAY_S = 86_400.0
_OLDEST = sa.select(sa.func.min(job_rows.c.ended_s))
_TIERS = [tier.value for tier in Tier]
_Samples = Mapping[Any, float]  # By the values of their labels.


@final
class LabCollector(Collector):
    """Reads the lab for each scrape, one at a time.

    Args:
        loop_silent_s: For how long this server's loop has not moved.
        held: How many allocations run that the store does not know.
    """

    def __init__(
        self,
        store: Store,
        fleet: FleetView,
        pictures: LatestPlans,
        clock: Clock,
        *,
        settings: Settings,
        loop_silent_s: Callable[[], float],
        held: Callable[[], int],
    ) -> None:
        self._store = store
        self._fleet = fleet
        self._pictures = pictures
        self._clock = clock
        self._settings = settings
        self._loop_silent_s = loop_silent_s
        self._held = held
        self._counts = EventCounts()
        self._large = LargeJobs()
        self._lock = Lock()

    def collect(self) -> Iterator[Metric]:
        """Returns what there is to tell; where the store does not answer, what is known without it."""
        picture = self._pictures.newest
        yield _gauge("mainspring_release_info", "Which release this server is.", ("release",), {(RELEASE,): 1})
        yield _gauge("mainspring_leads", "Whether this server leads and has planned.", (), {(): picture is not None})
        silent_s = self._loop_silent_s()
        yield _gauge("mainspring_loop_silent_seconds", "Since this server's loop last moved.", (), {(): silent_s})
        yield from self._of_clusters()
        if picture is not None:
            yield from _of_plan(picture)
        begun_s = self._clock.monotonic_s()
        try:
            with self._lock, self._store.read() as connection:
                told = [*self._of_store(connection)]
        except Unavailable:
            told = []
        yield from told
        yield _gauge("mainspring_store_up", "Whether the store answers this server.", (), {(): bool(told)})
        if told:
            took_s = self._clock.monotonic_s() - begun_s
            yield _gauge("mainspring_store_read_seconds", "What the store took to tell this.", (), {(): took_s})

    def _of_store(self, connection: sa.Connection) -> Iterator[Metric]:
        jobs = counts_by_team(connection)
        labels = ("team", "state")
        live = {(team, state.value): count for (team, state), count in jobs.items() if not ended(state)}
        over = {(team, state.value): count for (team, state), count in jobs.items() if ended(state)}
        yield _gauge("mainspring_jobs", "Jobs that have not ended.", labels, live)
        yield _counter("mainspring_jobs_ended", "Jobs that have ended.", labels, over)
        now_s, lease_s = self._clock.now_s(), self._settings.lease_s
        report = goodput_report(connection, team=None, cluster=None, since_s=0.0, now_s=now_s, lease_s=lease_s)
        words = "Node-seconds allocated ever, by what they went into; live ones may still move from one use to another."
        yield _gauge("mainspring_node_seconds", words, ("team", "use"), _by_use(report.teams))
        yield _gauge("mainspring_cluster_node_seconds", words, ("cluster", "use"), _by_use(report.clusters))
        yield _gauge(
            "mainspring_allocations_held",
            "Allocations that run and the store does not know; they wait for an operator.",
            (),
            {(): self._held()},
        )
        yield from self._of_nodes(connection)
        kept_s = now_s - self._settings.keep.days * _DAY_S
        oldest_s = connection.execute(_OLDEST).scalar_one()
        words = "How much longer the oldest job that has ended is in the store than it is to be kept there."
        behind_s = 0.0 if oldest_s is None else max(0.0, kept_s - oldest_s)
        yield _gauge("mainspring_archive_behind_seconds", words, (), {(): behind_s})
        yield from self._large.collect(connection, now_s=now_s, lease_s=lease_s)
        self._counts.expect(self._fleet.seen())
        yield from self._counts.collect(connection, now_s)

    def _of_nodes(self, connection: sa.Connection) -> Iterator[Metric]:
        closed = Counter(
            (one.cluster, one.kind.value, OWNER if one.owner == OWNER else "people")
            for one in open_closures(connection)
        )
        how = Counter((one.cluster, one.state.value) for one in healths(connection).values())
        opened = {(name,): read_text(Breaker, text).is_open for name, text in breaker_texts(connection).items()}
        known: dict[tuple[str, ...], float] = {(name,): 0.0 for name in self._fleet.seen()}
        none: dict[tuple[str, ...], float] = {
            (name, ClosureKind.QUARANTINE.value, OWNER): 0.0 for name in self._fleet.seen()
        }
        words = "What keeps nodes closed."
        yield _gauge("mainspring_nodes_closed", words, ("cluster", "closure", "by"), none | closed)
        words = "Nodes of which anything was told, by what rules find, whether they act or not."
        yield _gauge("mainspring_nodes_health", words, ("cluster", "state"), how)
        words = "Whether health closes and opens nothing of a cluster until somebody resets its breaker."
        yield _gauge("mainspring_breaker_open", words, ("cluster",), known | opened)

    def _of_clusters(self) -> Iterator[Metric]:
        nodes: Counter[tuple[str, ...]] = Counter()
        chips: defaultdict[tuple[str, ...], float] = defaultdict(float)
        up: dict[tuple[str, ...], float] = {}
        silent_s: dict[tuple[str, ...], float] = {}
        now_s = self._clock.now_s()
        for cluster, seen in self._fleet.seen().items():
            up[cluster,] = seen.answering
            silent_s[cluster,] = max(0.0, now_s - seen.seen_s)
            for node in seen.inventory.nodes:
                nodes[cluster, node.condition.value] += 1
                chips[cluster, node.chip, node.condition.value] += node.chips
                chips[cluster, node.chip, "foreign"] += node.foreign_chip_milli / MILLI
        conditions = ", ".join(condition.value for condition in NodeCondition)
        yield _gauge("mainspring_cluster_up", "Whether a cluster answered last.", ("cluster",), up)
        yield _gauge("mainspring_cluster_silent_seconds", "Since its last answer.", ("cluster",), silent_s)
        yield _gauge("mainspring_nodes", f"Nodes: {conditions}.", ("cluster", "condition"), nodes)
        words = f"Chips of nodes: {conditions}; foreign ones are in use by others, whatever the node's condition."
        yield _gauge("mainspring_chips", words, ("cluster", "chip", "condition"), chips)


def _of_plan(picture: LatestPlan) -> Iterator[Metric]:
    snapshot, pending, live = picture.snapshot, picture.snapshot.pending, picture.snapshot.live
    teams, clusters = snapshot.teams.names, snapshot.clusters.names
    may_start = ~(pending.blocked | pending.paused | pending.behind)
    waits, oldest_s = {}, {}
    for team, tier in {*zip(pending.team.tolist(), pending.tier.tolist(), strict=True)}:
        own = (pending.team == team) & (pending.tier == tier)
        waits[teams[team], _TIERS[tier]] = int(own.sum())
        own &= may_start
        since_s = pending.submitted_s[own]
        oldest_s[teams[team], _TIERS[tier]] = max(0.0, picture.now_s - float(since_s.min())) if since_s.size else 0.0
    yield _gauge("mainspring_queue_jobs", "Jobs that wait.", ("team", "tier"), waits)
    words = "How long ago the oldest that may start was submitted."
    yield _gauge("mainspring_queue_oldest_seconds", words, ("team", "tier"), oldest_s)
    held: defaultdict[tuple[str, ...], float] = defaultdict(float)
    for row in np.flatnonzero(live.cluster >= 0).tolist():
        key = clusters[live.cluster[row]], teams[live.team[row]], _TIERS[live.tier[row]]
        held[key] += live.chip_milli[row] / MILLI
    yield _gauge("mainspring_chips_held", "Chips that attempts hold.", ("cluster", "team", "tier"), held)
    yield _gauge("mainspring_plan_timestamp_seconds", "When the last plan was made.", (), {(): picture.now_s})


def _by_use(ledgers: Mapping[str, Goodput]) -> _Samples:
    return {(name, use.value): spent_s for name, one in ledgers.items() for use, spent_s in one.seconds.items()}


def _gauge(name: str, words: str, labels: tuple[str, ...], samples: _Samples) -> Metric:
    family = GaugeMetricFamily(name, words, labels=labels)
    for values, value in sorted(_largest(samples)):
        family.add_metric(values, float(value))
    return family


def _counter(name: str, words: str, labels: tuple[str, ...], samples: _Samples) -> Metric:
    family = CounterMetricFamily(name, words, labels=labels)
    for values, value in sorted(_largest(samples)):
        family.add_metric(values, float(value))
    return family


def _largest(samples: _Samples) -> Iterable[tuple[tuple[str, ...], float]]:
    return sorted(samples.items(), key=lambda sample: -sample[1])[:SERIES_MAX]
