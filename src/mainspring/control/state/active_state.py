"""The loop's own picture of what has not ended, kept up to date from events, so that a tick reads what changed.

Whoever moves an attempt by a call (a person, a lead) writes an event about it. What the loop itself moves without one,
allocations, it tells the mirror of with `touch`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import final

import sqlalchemy as sa

from mainspring.control.state.avoidance import REMEMBERED_S, Avoidance
from mainspring.control.state.dependencies import Dependencies
from mainspring.control.state.event_news import EventFollower
from mainspring.control.state.fleet import ClosedNodes, FleetView, Holds, read_closed
from mainspring.control.state.history import RAN_S_MIN, Charge, Past, chip_seconds, pasts, successes, usage
from mainspring.control.state.live_holdings import LiveHoldings
from mainspring.control.state.planner_feed import PlannerFeed
from mainspring.control.state.team_accounts import TeamAccounts
from mainspring.control.store.evidence import evidence_since
from mainspring.control.store.holdings import (
    KEPT,
    AllocationRecord,
    bereaved,
    live_allocations,
    live_allocations_of,
    merged,
    running,
)
from mainspring.control.store.ledger import DISPLACED, StopCause
from mainspring.control.store.records import (
    AttemptRecord,
    FreshJobs,
    JobRecord,
    attempts_by_id,
    jobs_by_id,
    live_attempts,
    live_jobs,
    removed_jobs,
    specs_of,
)
from mainspring.control.store.restores.held import Held
from mainspring.control.store.schema import events, plans
from mainspring.domain.codec import alike
from mainspring.domain.ids import AllocationId, AttemptId, ClusterName, JobId, NodeName, TeamName
from mainspring.domain.job import Hold, JobSpec
from mainspring.domain.life import AttemptState, JobState, ended
from mainspring.domain.plan import Grant
from mainspring.planner import LiveAttempt, PendingJob, Snapshot

_NEWEST_PLAN = sa.select(sa.func.max(plans.c.number))


@final
class ActiveState:
    """Jobs, attempts and allocations that have not ended, and the planner's builder that follows them.

    Valid only for transactions that were committed: whoever loses one makes a new mirror.
    """

    def __init__(self, fresh: FreshJobs | None = None) -> None:
        self._fresh = fresh or FreshJobs()
        self.jobs: dict[JobId, JobRecord] = {}
        self.specs: dict[JobId, JobSpec] = {}
        self.attempts: dict[AttemptId, AttemptRecord] = {}
        self.plan_number = 0
        self.avoidance = Avoidance()
        self._closed = ClosedNodes()
        self._feed = PlannerFeed()
        self._holdings = LiveHoldings()
        self._follower = EventFollower()
        self._dependencies = Dependencies()
        self._teams = TeamAccounts()
        self._touched: dict[AttemptId, None] = {}
        self._attempt_of: dict[JobId, AttemptId] = {}
        self._pasts: dict[JobId, Past] = {}

    @property
    def version(self) -> int:
        """Returns a number that grows with whatever may change a plan."""
        return self._feed.version

    @property
    def doomed(self) -> Mapping[JobId, str]:
        """Returns jobs that can never start, and why."""
        return self._dependencies.doomed

    @property
    def bereaved(self) -> Mapping[AttemptId, None]:
        """Returns the attempts that have lost an agent."""
        return self._holdings.bereaved

    @property
    def parts(self) -> Mapping[AllocationId, Grant]:
        """Returns what every allocation that is not gone holds."""
        return self._holdings.parts

    @property
    def allocations(self) -> tuple[AllocationRecord, ...]:
        """Returns every allocation that is not gone, in order of attempt and place; also those of fenced attempts."""
        return self._holdings.all()

    def allocations_of(self, attempt: AttemptId) -> tuple[AllocationRecord, ...]:
        """Returns those of an attempt's allocations that are not gone, in order of place."""
        return self._holdings.of(attempt)

    def with_those_above(self, team: TeamName) -> tuple[TeamName, ...]:
        """Returns a team and the teams above it, nearest first."""
        return self._teams.with_those_above(team)

    def touch(self, attempt: AttemptId) -> None:
        """Notes that an allocation of this attempt was moved; it is read again at the next `refresh`."""
        self._touched[attempt] = None

    def refresh(self, connection: sa.Connection, now_s: float) -> None:
        """Reads what changed since the last time; everything, the first time."""
        newest = connection.execute(sa.select(sa.func.max(events.c.sequence))).scalar() or 0
        if self._teams.changed(connection, now_s):
            self._feed.set_teams(self._teams.tree)
            self._tell_pending_anew()
        if self._follower.started:
            self._follow(connection, now_s, newest)
        else:
            self._load(connection, now_s, newest)
        if self._closed.look(now_s):
            self._feed.touch()

    def take_over(self, connection: sa.Connection) -> None:
        """Sees to it that the next `refresh` finds also what another leader wrote of attempts without telling it.

        Called once that leader can write nothing more. So whoever followed it reads anew what lives, and not all that
        waits.
        """
        self.count_plans(connection)
        self._touched |= dict.fromkeys([*self.attempts, *(one.attempt for one in self.allocations)])

    def count_plans(self, connection: sa.Connection) -> None:
        """Learns the number of the newest plan, which whoever leads counts by itself."""
        self.plan_number = connection.execute(_NEWEST_PLAN).scalar() or 0

    def snapshot(self, now_s: float) -> Snapshot:
        """Returns all this, with the fleet and what teams have spent until now, as the planner sees it."""
        counted = [
            self._charge(one)
            for attempt in self.attempts
            for one in self.allocations_of(attempt)
            if one.ended_s is None and not one.queued
        ]
        self._feed.builder.set_spent(self._teams.spent(counted, now_s))
        if self.avoidance.forget(now_s):
            self._set_back(now_s)
        avoided = self.avoidance.of_all(now_s, self._feed.node_counts)
        self._feed.builder.set_avoided({one.at: one.until_s for one in avoided})
        return self._feed.builder.build(number=self.plan_number + 1, now_s=now_s)

    @property
    def holds(self) -> Holds:
        """Returns what is held, and closed, now."""
        return self._closed.holds

    def holds_by_now(self, connection: sa.Connection) -> Holds:
        """Returns what is held, and closed, in the store: maybe more than when a plan was made."""
        return read_closed(connection) if self._follower.holds_changed(connection) else self.holds

    def feed_fleet(self, fleet: FleetView, silent_s: Mapping[ClusterName, float]) -> None:
        """Tells the planner's builder what the engines said.

        Args:
            silent_s: For how long each of those that do not answer has not.
        """
        self._feed.set_fleet(fleet, silent_s, self._holdings.strays(self.attempts), self.holds)

    @property
    def held(self) -> Held:
        """Returns what clusters show beyond what the store knows."""
        return self._holdings.held

    def set_held(self, held: Held) -> None:
        """Learns what clusters show beyond what the store knows: jobs of which anything is held do not start."""
        for job in sorted(self._holdings.set_held(held)):
            if self._feed.pends(job):
                self._add_pending(self.jobs[job])
                self._feed.touch()

    def set_unseen_until(self, until_s: float) -> None:
        """Learns that jobs submitted until then may run where nobody has looked yet, and do not start; 0 for none."""
        if until_s != self._holdings.unseen_until_s:
            self._holdings.unseen_until_s = until_s
            self._tell_pending_anew()
            self._feed.touch()

    def held_back(self) -> Iterator[tuple[AttemptId, Hold]]:
        """Yields the attempts that go on although somebody paused their jobs, or drains their teams or places."""
        drains = any(hold.drain for hold in self.holds.all())
        for attempt in self.attempts.values():
            if attempt.state is AttemptState.STOPPING:
                continue
            overrides = self.jobs[attempt.job].overrides
            hold = overrides.paused if overrides is not None else None
            if hold is None and drains:
                line = self.with_those_above(self.jobs[attempt.job].team)
                nodes = [node for one in self.allocations_of(attempt.id) for node in self.parts[one.id].nodes]
                hold = self.holds.draining(line, attempt.cluster, nodes)
            if hold is not None:
                yield attempt.id, hold

    # ---------------------------------------------------------------- reading

    def _load(self, connection: sa.Connection, now_s: float, newest: int) -> None:
        builder = self._feed.builder
        self.plan_number = connection.execute(_NEWEST_PLAN).scalar() or 0
        for success in successes(connection):
            builder.durations.observe(success.spec, success.ran_s)
        builder.set_usage(usage(connection, now_s), at_s=now_s)
        self._pasts = pasts(connection, DISPLACED, taken=StopCause.TAKEN)
        self.avoidance = Avoidance(evidence_since(connection, now_s - REMEMBERED_S))
        self._closed.read(connection, now_s)
        live = live_attempts(connection)
        self._follower.start(connection, [attempt.job for attempt in live], newest)
        self._take_jobs(connection, {job.id: job for job in live_jobs(connection)}, {})
        self._holdings.take(connection, (), live_allocations(connection), ())
        self._holdings.bereaved |= dict.fromkeys(sorted(bereaved(connection, [attempt.id for attempt in live])))
        for attempt in live:
            self._take_live(attempt)

    def _follow(self, connection: sa.Connection, now_s: float, newest: int) -> None:
        news = self._follower.follow(connection, newest)
        for told in news.evidence:
            self._feed.touch()
            self.avoidance.add(told)
        if news.holds:
            self._closed.read(connection, now_s)
            self._feed.touch()
        fresh = self._fresh.take(news.submitted)
        records = {job: new.record for job, new in fresh.items() if new.record is not None and job not in news.jobs}
        unknown = [job for job in dict.fromkeys([*news.submitted, *news.jobs]) if job not in records]
        of_jobs = [self._attempt_of[job] for job in news.jobs if job in self._attempt_of]
        touched = dict.fromkeys([*self._touched, *news.attempts, *of_jobs])
        self._touched = {}
        changed = sorted(attempts_by_id(connection, touched), key=lambda attempt: attempt.id)
        held = live_allocations_of(connection, touched)
        for one in self._holdings.take(connection, touched, held, self.attempts):
            assert one.ended_s is not None
            self._teams.ended(self._charge(one), one.ended_s)
        over = [attempt for attempt in changed if ended(attempt.state)]
        had = chip_seconds(connection, [attempt.id for attempt in over])
        for attempt in over:
            self._drop_live(attempt, had.get(attempt.id, 0.0))
        changed_jobs = {**records, **jobs_by_id(connection, unknown)}
        self._take_jobs(connection, changed_jobs, {job: new.spec for job, new in fresh.items()})
        if news.holds:
            self._tell_pending_anew()
        for attempt in changed:
            if not ended(attempt.state):
                self._take_live(attempt)

    # ---------------------------------------------------------------- jobs

    def _take_jobs(
        self, connection: sa.Connection, changed: Mapping[JobId, JobRecord], known: Mapping[JobId, JobSpec]
    ) -> None:
        anew = {job.id: job for job in changed.values() if not ended(job.state) and self._asks_anew(job)}
        written = specs_of(connection, anew.values(), known)
        self.specs.update({name: spec.with_overrides(anew[name].overrides) for name, spec in written.items()})
        self.jobs.update({job.id: job for job in changed.values() if not ended(job.state)})
        self._learn_states(connection, changed)
        if changed:
            self._feed.touch()
        waiting: dict[JobId, None] = {}
        for job in sorted(changed.values(), key=lambda job: job.ordinal):
            if job.state is not JobState.QUEUED:
                self._drop_pending(job.id)
            if ended(job.state):
                waiting |= self._drop_job(job)
            elif job.state is JobState.QUEUED and (job.id in anew or not self._feed.pends(job.id)):
                self._add_pending(job)
        for dependent in waiting:
            if self._feed.pends(dependent):
                self._add_pending(self.jobs[dependent])

    def _asks_anew(self, job: JobRecord) -> bool:
        """Returns whether what a job asks for is not known, or was changed since."""
        known = self.jobs.get(job.id)
        return job.id not in self.specs or known is None or known.overrides != job.overrides

    def _tell_pending_anew(self) -> None:
        """Tells the planner of every job in the queue again: of other teams than before nothing may start."""
        for job in self.jobs.values():
            if self._feed.pends(job.id):
                self._add_pending(job)

    def _learn_states(self, connection: sa.Connection, changed: Mapping[JobId, JobRecord]) -> None:
        """Keeps the states of jobs that others come after."""
        wanted = {job: None for job in changed if self._dependencies.needs(job)}
        for job in changed:
            after = self.specs[job].after if job in self.specs else ()
            self._dependencies.add(job, after)
            wanted |= dict.fromkeys(after)
        known = {**jobs_by_id(connection, [job for job in wanted if job not in self.jobs]), **changed}
        removed = removed_jobs(connection, [job for job in wanted if job not in known and job not in self.jobs])
        for job in wanted:
            record = known.get(job) or self.jobs.get(job) or removed.get(job)
            if record is not None:
                self._dependencies.told(job, record.state)

    def _set_back(self, now_s: float) -> None:
        """Shortens the pauses of a clock that was set back since, here or before this server was."""
        shorter = self.avoidance.set_back(now_s)
        for job, past in self._pasts.items():
            self._pasts[job] = past.set_back(now_s)
            if self._pasts[job] != past:
                shorter.add(job)
        for job in sorted(shorter):
            if self._feed.pends(job):
                self._add_pending(self.jobs[job])

    def _add_pending(self, job: JobRecord) -> None:
        spec = self.specs[job.id]
        says = self._dependencies.verdict(job.id, spec)
        past, since_s = self._pasts.get(job.id, Past()), in_line_since_s(job)
        own = {"avoid": past.avoid, "avoid_nodes": self.avoidance.of_job(job.id), "submitted_s": since_s}
        known = alike(PendingJob, job, past, says) | own | {"paused": self._is_paused(job)}
        self._feed.add_pending(PendingJob(job=job.id, spec=spec, **known))

    def _is_paused(self, job: JobRecord) -> bool:
        own = job.id in self._holdings.held_jobs or job.submitted_s <= self._holdings.unseen_until_s
        own = own or (job.overrides is not None and job.overrides.paused is not None)
        return own or (bool(self.holds.teams) and self.holds.of_team(self.with_those_above(job.team)) is not None)

    def _drop_pending(self, job: JobId) -> None:
        self._dependencies.doomed.pop(job, None)
        self._feed.drop_pending(job)

    def _drop_job(self, job: JobRecord) -> Mapping[JobId, None]:
        """Forgets a job that has ended; returns the jobs that come after it."""
        spec, past = self.specs.pop(job.id, None), self._pasts.pop(job.id, None)
        self.jobs.pop(job.id, None)
        self._attempt_of.pop(job.id, None)
        if job.state is JobState.SUCCEEDED and spec is not None and past is not None:
            self._feed.builder.durations.observe(spec, max(RAN_S_MIN, past.ran_s))
        return self._dependencies.ended(job.id, spec.after if spec is not None else ())

    # ---------------------------------------------------------------- attempts and allocations

    def _take_live(self, attempt: AttemptRecord) -> None:
        known = self.attempts.get(attempt.id)
        self.attempts[attempt.id] = attempt
        self._attempt_of[attempt.job] = attempt.id
        own, stopping = self.allocations_of(attempt.id), attempt.state is AttemptState.STOPPING
        kept = merged(self.parts[one.id] for one in own if stopping or one.state in KEPT)
        going = merged(self.parts[one.id] for one in own if not stopping and one.state not in KEPT)
        self._feed.set_live(
            attempt.id,
            self._live(attempt, kept, stopping=stopping) if kept else None,
            self._live(attempt, going, stopping=True) if going else None,
            changed=known is None or (known.state, known.granted_s) != (attempt.state, attempt.granted_s),
        )

    def _live(self, attempt: AttemptRecord, held: tuple[Grant, ...], *, stopping: bool) -> LiveAttempt:
        past, times = self._pasts.get(attempt.job, Past()), self._follower.times(attempt.id)
        overrides = self.jobs[attempt.job].overrides
        return LiveAttempt(
            attempt=attempt.id,
            job=attempt.job,
            spec=running(self.specs[attempt.job], overrides, held),
            grants=held,
            submitted_s=in_line_since_s(self.jobs[attempt.job]),
            granted_s=attempt.granted_s,
            resized_s=times.resized_s,
            attained_chip_s=past.attained_chip_s,
            durable_s=times.durable_s,
            evicted_s=max(past.evicted_s, times.shrunk_s),
            stopping=stopping,
            sized=overrides is not None and bool(overrides.sizes),
            queued=all(one.queued for one in self.allocations_of(attempt.id)),
        )

    def _drop_live(self, attempt: AttemptRecord, chip_s: float) -> None:
        """Forgets an attempt that is over, and keeps what it amounts to."""
        if self.attempts.pop(attempt.id, None) is None:
            return
        self._feed.drop_live(attempt.id)
        self._follower.forget(attempt.id)
        self._holdings.bereaved.pop(attempt.id, None)
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


def in_line_since_s(job: JobRecord) -> float:
    """Returns from when on a job counts as waiting among its team's."""
    since_s = job.overrides.since_s if job.overrides is not None else None
    return job.submitted_s if since_s is None else since_s


def held(granted: Iterable[Grant]) -> dict[NodeName, int]:
    """Returns thousandths of chips by node, all grants together.

    Args:
        granted: Of one cluster.
    """
    sums: dict[NodeName, int] = {}
    for grant in granted:
        for node, milli in zip(grant.nodes, grant.chip_milli, strict=True):
            sums[node] = sums.get(node, 0) + milli
    return sums
