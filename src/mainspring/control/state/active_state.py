"""The loop's own picture of what has not ended, kept up to date from events, so that a tick reads what changed.

Whoever moves an attempt by a call (a person, a lead) writes an event about it. What the loop itself moves without one,
allocations, it tells the mirror of with `touch`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from math import inf

import sqlalchemy as sa

from mainspring.control.state.dependencies import DependencyState, verdict
from mainspring.control.state.history import RAN_S_MIN, Charge, Past, Spending, chip_seconds, pasts, successes, usage
from mainspring.control.store.fleet import FleetView
from mainspring.control.store.holdings import (
    KEPT,
    AllocationRecord,
    allocations_by_id,
    bereaved,
    live_allocations,
    live_allocations_of,
    merged,
    parts,
)
from mainspring.control.store.ledger import DISPLACED, StopCause
from mainspring.control.store.records import (
    AttemptRecord,
    JobRecord,
    attempts_by_id,
    chunks,
    jobs_by_id,
    live_attempts,
    live_jobs,
    read_text,
    specs,
)
from mainspring.control.store.schema import events, plans, teams
from mainspring.domain.codec import alike
from mainspring.domain.fleet import Inventory, NodeCondition
from mainspring.domain.ids import AllocationId, AttemptId, ClusterName, JobId, NodeName, TeamName
from mainspring.domain.job import JobSpec
from mainspring.domain.life import AttemptState, JobState, ended
from mainspring.domain.plan import Grant
from mainspring.domain.team import Team
from mainspring.domain.wire import EventKind
from mainspring.planner import LiveAttempt, PendingJob, SnapshotBuilder

_JOB_EVENTS = (EventKind.JOB_SUBMITTED.value, EventKind.JOB_MOVED.value)
_ATTEMPT_EVENTS = (
    EventKind.ATTEMPT_GRANTED.value,
    EventKind.ATTEMPT_STOPPING.value,
    EventKind.ATTEMPT_ENDED.value,
    EventKind.ATTEMPT_RESIZED.value,
    EventKind.ALLOCATION_QUEUED.value,
    EventKind.ALLOCATION_PLACED.value,
    EventKind.ALLOCATION_TAKEN.value,
)
_DURABLE = EventKind.CHECKPOINT_DURABLE.value
_READ = (*_JOB_EVENTS, *_ATTEMPT_EVENTS, _DURABLE)
_RESIZED = (events.c.kind == EventKind.ATTEMPT_RESIZED.value,)
_FOR_OTHERS = (*_RESIZED, events.c.detail.contains('"for_job"'))
_STRAY = "work of an attempt that was given up may still run here"


@dataclass(frozen=True, slots=True, kw_only=True)
class _News:
    """What events since the last look speak of; times of durable checkpoints by attempt."""

    jobs: dict[JobId, None]
    attempts: dict[AttemptId, None]
    durable_s: dict[AttemptId, float]


_NO_NEWS = _News(jobs={}, attempts={}, durable_s={})


class ActiveState:
    """Jobs, attempts and allocations that have not ended, and the planner's builder that follows them.

    Valid only for transactions that were committed: whoever loses one makes a new mirror.
    """

    def __init__(self) -> None:
        self.jobs: dict[JobId, JobRecord] = {}
        self.specs: dict[JobId, JobSpec] = {}
        self.attempts: dict[AttemptId, AttemptRecord] = {}
        self.parts: dict[AllocationId, Grant] = {}
        self.bereaved: dict[AttemptId, None] = {}
        self.doomed: dict[JobId, str] = {}
        self.plan_number = 0
        self.builder = SnapshotBuilder()
        self.version = 0
        self._event_seen = -1
        self._touched: dict[AttemptId, None] = {}
        self._allocations: dict[AttemptId, tuple[AllocationRecord, ...]] = {}
        self._attempt_of: dict[JobId, AttemptId] = {}
        self._pasts: dict[JobId, Past] = {}
        self._durable_s: dict[AttemptId, float] = {}
        self._resized_s: dict[AttemptId, float] = {}
        self._shrunk_s: dict[AttemptId, float] = {}
        self._shown: dict[AttemptId, tuple[Grant, ...]] = {}
        self._team_rows: list[tuple[str, str]] | None = None
        self._tree: tuple[Team, ...] = ()
        self._spending = Spending()
        self._fleet_shown: tuple[int, object] = (-1, None)
        self._inventories: dict[ClusterName, Inventory] = {}
        self._pending: dict[JobId, None] = {}
        self._dependents: dict[JobId, dict[JobId, None]] = {}
        self._states: dict[JobId, JobState] = {}

    @property
    def allocations(self) -> tuple[AllocationRecord, ...]:
        """Returns every allocation that is not gone, in order of attempt and place; also those of fenced attempts."""
        return tuple(one for attempt in sorted(self._allocations) for one in self._allocations[attempt])

    def allocations_of(self, attempt: AttemptId) -> tuple[AllocationRecord, ...]:
        """Returns those of an attempt's allocations that are not gone, in order of place.

        Args:
            attempt: The attempt.
        """
        return self._allocations.get(attempt, ())

    def touch(self, attempt: AttemptId) -> None:
        """Notes that an allocation of this attempt was moved; it is read again at the next `refresh`.

        Args:
            attempt: The attempt.
        """
        self._touched[attempt] = None

    def refresh(self, connection: sa.Connection, now_s: float) -> None:
        """Reads what changed since the last time; everything, the first time.

        Args:
            connection: Where to read.
            now_s: The time.
        """
        newest = connection.execute(sa.select(sa.func.max(events.c.sequence))).scalar() or 0
        self._take_teams(connection, now_s)
        if self._event_seen < 0:
            self._load(connection, now_s)
        else:
            self._follow(connection, newest)
        self._event_seen = newest

    def feed_fleet(self, fleet: FleetView, silent_s: Mapping[ClusterName, float]) -> None:
        """Tells the planner's builder what the engines said.

        Args:
            fleet: What they said.
            silent_s: For how long each of those that do not answer has not.
        """
        strays = self._strays()
        seen = fleet.seen()
        if (fleet.version, strays) != self._fleet_shown:
            self._fleet_shown = (fleet.version, strays)
            self.version += 1
            self._inventories = {
                name: _without(one.inventory, strays.get(name, frozenset())) for name, one in seen.items()
            }
        for name, inventory in self._inventories.items():
            self.builder.set_inventory(inventory, answering=seen[name].answering, silent_s=silent_s.get(name, 0.0))

    def feed_spending(self, now_s: float) -> None:
        """Tells the planner's builder what teams have spent until now.

        Args:
            now_s: The time.
        """
        counted = [
            self._charge(one)
            for attempt in self.attempts
            for one in self.allocations_of(attempt)
            if one.ended_s is None and not one.queued
        ]
        self.builder.set_spent(self._spending.totals(self._tree, counted, now_s))

    # ---------------------------------------------------------------- reading

    def _load(self, connection: sa.Connection, now_s: float) -> None:
        self.plan_number = connection.execute(sa.select(sa.func.max(plans.c.number))).scalar() or 0
        for success in successes(connection):
            self.builder.durations.observe(success.spec, success.ran_s)
        self.builder.set_usage(usage(connection, now_s), at_s=now_s)
        self._pasts = pasts(connection, DISPLACED, taken=StopCause.TAKEN)
        live = live_attempts(connection)
        for some in chunks(dict.fromkeys(attempt.job for attempt in live)):
            own = events.c.job_id.in_(some)
            self._durable_s.update(_newest_times(connection, own, events.c.kind == _DURABLE))
            self._resized_s.update(_newest_times(connection, own, *_RESIZED))
            self._shrunk_s.update(_newest_times(connection, own, *_FOR_OTHERS))
        self._take_jobs(connection, {job.id: job for job in live_jobs(connection)})
        self._take_allocations(connection, (), live_allocations(connection))
        self.bereaved = dict.fromkeys(sorted(bereaved(connection, [attempt.id for attempt in live])))
        for attempt in live:
            self._take_live(attempt)

    def _follow(self, connection: sa.Connection, newest: int) -> None:
        news = self._news(connection) if newest > self._event_seen else _NO_NEWS
        of_jobs = [self._attempt_of[job] for job in news.jobs if job in self._attempt_of]
        touched = dict.fromkeys([*self._touched, *news.attempts, *news.durable_s, *of_jobs])
        self._touched = {}
        self._durable_s.update(news.durable_s)
        if news.attempts:
            since = events.c.sequence > self._event_seen
            self._resized_s.update(_newest_times(connection, *_RESIZED, since))
            self._shrunk_s.update(_newest_times(connection, *_FOR_OTHERS, since))
        changed = sorted(attempts_by_id(connection, touched), key=lambda attempt: attempt.id)
        self._take_allocations(connection, touched, live_allocations_of(connection, touched))
        over = [attempt for attempt in changed if ended(attempt.state)]
        had = chip_seconds(connection, [attempt.id for attempt in over])
        for attempt in over:
            self._drop_live(attempt, had.get(attempt.id, 0.0))
        self._take_jobs(connection, jobs_by_id(connection, news.jobs))
        for attempt in changed:
            if not ended(attempt.state):
                self._take_live(attempt)

    def _news(self, connection: sa.Connection) -> _News:
        news = _News(jobs={}, attempts={}, durable_s={})
        query = (
            sa.select(events.c.kind, events.c.job_id, events.c.attempt_id, events.c.time_s)
            .where(events.c.sequence > self._event_seen, events.c.kind.in_(_READ))
            .order_by(events.c.sequence)
        )
        for kind, job, attempt, time_s in connection.execute(query):
            if kind in _JOB_EVENTS:
                news.jobs[JobId(job)] = None
            elif kind == _DURABLE:
                news.durable_s[AttemptId(attempt)] = time_s
            else:
                news.attempts[AttemptId(attempt)] = None
        return news

    # ---------------------------------------------------------------- jobs

    def _take_jobs(self, connection: sa.Connection, changed: Mapping[JobId, JobRecord]) -> None:
        unknown = [job.id for job in changed.values() if not ended(job.state) and job.id not in self.specs]
        self.specs.update(specs(connection, unknown))
        self.jobs.update({job.id: job for job in changed.values() if not ended(job.state)})
        self._learn_states(connection, changed)
        waiting: dict[JobId, None] = {}
        for job in sorted(changed.values(), key=lambda job: job.ordinal):
            self.version += 1
            if job.state is not JobState.QUEUED:
                self._drop_pending(job.id)
            if ended(job.state):
                self._drop_job(job)
                waiting |= self._dependents.get(job.id, {})
            elif job.state is JobState.QUEUED and job.id not in self._pending:
                self._add_pending(job)
        for dependent in waiting:
            if dependent in self._pending:
                self._add_pending(self.jobs[dependent])

    def _learn_states(self, connection: sa.Connection, changed: Mapping[JobId, JobRecord]) -> None:
        """Keeps the states of jobs that others come after."""
        wanted = {job: None for job in changed if job in self._dependents}
        for job in changed:
            for above in self.specs[job].after if job in self.specs else ():
                self._dependents.setdefault(above, {})[job] = None
                wanted[above] = None
        known = {**jobs_by_id(connection, [job for job in wanted if job not in self.jobs]), **changed}
        for job in wanted:
            record = known.get(job) or self.jobs.get(job)
            if record is not None:
                self._states[job] = record.state

    def _add_pending(self, job: JobRecord) -> None:
        spec = self.specs[job.id]
        says = verdict(spec.after, self._states) if spec.after else DependencyState()
        if says.doomed:
            self.doomed[job.id] = says.doomed
        past = self._pasts.get(job.id, Past())
        self.builder.add_pending(
            PendingJob(job=job.id, spec=spec, avoid=past.avoid, **alike(PendingJob, job, past, says))
        )
        self._pending[job.id] = None

    def _drop_pending(self, job: JobId) -> None:
        self.doomed.pop(job, None)
        if job in self._pending:
            self.builder.remove_pending(job)
            del self._pending[job]

    def _drop_job(self, job: JobRecord) -> None:
        spec, past = self.specs.pop(job.id, None), self._pasts.pop(job.id, None)
        self.jobs.pop(job.id, None)
        self._attempt_of.pop(job.id, None)
        if job.state is JobState.SUCCEEDED and spec is not None and past is not None:
            self.builder.durations.observe(spec, max(RAN_S_MIN, past.ran_s))
        for above in spec.after if spec is not None else ():
            others = self._dependents.get(above, {})
            others.pop(job.id, None)
            if not others:
                self._dependents.pop(above, None)
                self._states.pop(above, None)

    # ---------------------------------------------------------------- attempts and allocations

    def _take_live(self, attempt: AttemptRecord) -> None:
        known = self.attempts.get(attempt.id)
        self.attempts[attempt.id] = attempt
        self._attempt_of[attempt.job] = attempt.id
        own, stopping = self.allocations_of(attempt.id), attempt.state is AttemptState.STOPPING
        kept = merged(self.parts[one.id] for one in own if stopping or one.state in KEPT)
        going = merged(self.parts[one.id] for one in own if not stopping and one.state not in KEPT)
        news = known is None or (known.state, known.granted_s) != (attempt.state, attempt.granted_s)
        if news or (kept + going) != self._shown.get(attempt.id):
            self.version += 1
        self._shown[attempt.id] = kept + going
        if kept:
            self.builder.add_live(self._live(attempt.id, attempt, kept, stopping=stopping))
        else:
            self.builder.remove_live(attempt.id)  # Its last allocation is gone; it ends in a moment.
        # What it has given up is held until it is gone, by something that ends already.
        if going:
            self.builder.add_live(self._live(_going(attempt.id), attempt, going, stopping=True))
        else:
            self.builder.remove_live(_going(attempt.id))

    def _live(self, name: AttemptId, attempt: AttemptRecord, held: tuple[Grant, ...], *, stopping: bool) -> LiveAttempt:
        past = self._pasts.get(attempt.job, Past())
        return LiveAttempt(
            attempt=name,
            job=attempt.job,
            spec=self.specs[attempt.job],
            grants=held,
            submitted_s=self.jobs[attempt.job].submitted_s,
            granted_s=attempt.granted_s,
            resized_s=self._resized_s.get(attempt.id, -inf),
            attained_chip_s=past.attained_chip_s,
            durable_s=self._durable_s.get(attempt.id),
            evicted_s=max(past.evicted_s, self._shrunk_s.get(attempt.id, -inf)),
            stopping=stopping,
            queued=all(one.queued for one in self.allocations_of(attempt.id)),
        )

    def _drop_live(self, attempt: AttemptRecord, chip_s: float) -> None:
        """Forgets an attempt that is over, and keeps what it amounts to."""
        if self.attempts.pop(attempt.id, None) is None:
            return
        self.version += 1
        self.builder.remove_live(attempt.id)
        self.builder.remove_live(_going(attempt.id))
        for times in (self._durable_s, self._resized_s, self._shrunk_s):
            times.pop(attempt.id, None)
        self._shown.pop(attempt.id, None)
        self.bereaved.pop(attempt.id, None)
        self._attempt_of.pop(attempt.job, None)
        ended_s = attempt.granted_s if attempt.ended_s is None else attempt.ended_s
        self._pasts[attempt.job] = self._pasts.get(attempt.job, Past()).with_attempt(
            chip_s=chip_s,
            granted_s=attempt.granted_s,
            ended_s=ended_s,
            displaced=attempt.stop_cause in DISPLACED,
            taken_by=attempt.cluster if attempt.stop_cause == StopCause.TAKEN else None,
        )

    def _charge(self, allocation: AllocationRecord) -> Charge:
        team = self.specs[self.attempts[allocation.attempt].job].team
        return Charge(team=team, dollars_per_hour=allocation.dollars_per_hour, granted_s=allocation.granted_s)

    def _take_allocations(
        self, connection: sa.Connection, touched: Iterable[AttemptId], found: Iterable[AllocationRecord]
    ) -> None:
        """Learns the allocations of some attempts anew; what is over is charged for the last time."""
        before = {one.id: one for attempt in touched for one in self._allocations.pop(attempt, ())}
        now = {one.id: one for one in found}
        gone = allocations_by_id(connection, [allocation for allocation in before if allocation not in now])
        for one in sorted((*gone, *now.values()), key=lambda one: one.id):
            if one.ended_s is not None and one.id in before and before[one.id].ended_s is None:
                self._spending.ended(self._charge(one), one.ended_s)
            if one.lost and one.attempt in self.attempts:
                self.bereaved[one.attempt] = None
        self.parts.update(parts(connection, [allocation for allocation in now if allocation not in self.parts]))
        for one in gone:
            del self.parts[one.id]
        by_attempt: dict[AttemptId, list[AllocationRecord]] = {}
        for one in now.values():
            by_attempt.setdefault(one.attempt, []).append(one)
        for attempt, own in by_attempt.items():
            self._allocations[attempt] = tuple(sorted(own, key=lambda allocation: allocation.place))

    def _strays(self) -> dict[ClusterName, frozenset[NodeName]]:
        """Returns the nodes that allocations of fenced attempts may still use, by cluster."""
        strays: dict[ClusterName, frozenset[NodeName]] = {}
        for attempt, own in self._allocations.items():
            if attempt not in self.attempts:
                for allocation in own:
                    nodes = frozenset(self.parts[allocation.id].nodes)
                    strays[allocation.cluster] = strays.get(allocation.cluster, frozenset()) | nodes
        return strays

    # ---------------------------------------------------------------- teams

    def _take_teams(self, connection: sa.Connection, now_s: float) -> None:
        rows = [(row.name, row.facts) for row in connection.execute(sa.select(teams).order_by(teams.c.name))]
        if rows != self._team_rows:
            self._team_rows = rows
            self._tree = tuple(read_text(Team, facts) for _, facts in rows)
            self.version += 1
            self.builder.set_teams(self._tree)
            self._spending.reach(connection, self._tree, now_s)

    def with_those_above(self, team: TeamName) -> tuple[TeamName, ...]:
        """Returns a team and the teams above it, nearest first.

        Args:
            team: The team.
        """
        above = {known.name: known.parent for known in self._tree}
        line = [team]
        while (parent := above.get(line[-1])) is not None and parent not in line:
            line.append(parent)
        return tuple(line)


def held(granted: tuple[Grant, ...]) -> dict[NodeName, int]:
    """Returns thousandths of chips by node, all roles together.

    Args:
        granted: An attempt's grants.
    """
    sums: dict[NodeName, int] = {}
    for grant in granted:
        for node, milli in zip(grant.nodes, grant.chip_milli, strict=True):
            sums[node] = sums.get(node, 0) + milli
    return sums


def _without(inventory: Inventory, strays: frozenset[NodeName]) -> Inventory:
    """Returns an inventory in which no new work is placed on some of its nodes."""
    if not strays:
        return inventory
    nodes = tuple(
        replace(node, condition=NodeCondition.CORDONED, condition_reason=_STRAY) if node.name in strays else node
        for node in inventory.nodes
    )
    return replace(inventory, nodes=nodes)


def _going(attempt: AttemptId) -> AttemptId:
    """Returns the name under which the planner knows what an attempt gives up while it goes on."""
    return AttemptId(f"{attempt}/going")


def _newest_times(connection: sa.Connection, *which: sa.ColumnElement[bool]) -> dict[AttemptId, float]:
    """Returns when the newest of some events of each attempt was."""
    query = sa.select(events.c.attempt_id, sa.func.max(events.c.time_s)).where(*which).group_by(events.c.attempt_id)
    return {AttemptId(attempt): time_s for attempt, time_s in connection.execute(query)}
