"""Invariants: what may never be wrong, whatever fails; checked after every step."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import final

import sqlalchemy as sa

from mainspring.control import Settings, Store
from mainspring.control.service.views import view_job
from mainspring.control.store.holdings import ALLOCATION_LIVE, grants, live_allocations_of, merged, parts
from mainspring.control.store.ledger import DISPLACED
from mainspring.control.store.records import ATTEMPT_LIVE, JOB_LIVE, events_since, jobs_by_id, read_text, tenants
from mainspring.control.store.schema import allocations, attempts, events, jobs, tallies, whys
from mainspring.domain.answers import Event
from mainspring.domain.ids import AllocationId, AttemptId, ClusterName, JobId, NodeName, TeamName
from mainspring.domain.job import MILLI, Overrides
from mainspring.domain.life import AllocationState, AttemptState, JobState, ended
from mainspring.domain.wire.events import TOLD_BY_CONTROLLER
from mainspring.domain.wire.events.attempts import AttemptEndedEvent, AttemptGrantedEvent, AttemptStoppingEvent
from mainspring.domain.wire.events.jobs import JobMovedEvent, JobSubmittedEvent, StartPromisedEvent, StopRequestedEvent
from mainspring.simulator.proof.cluster import SimulatedCluster
from mainspring.simulator.proof.gangs import Gangs
from mainspring.simulator.proof.laws.beyond import BeyondLaws
from mainspring.simulator.proof.laws.failover import FailoverLaws
from mainspring.simulator.proof.laws.health import HealthLaws
from mainspring.simulator.proof.watching import NodeWatchers
from mainspring.testing import FakeClock

_EVENTS_MAX = 1_000_000
_Report = tuple[str, Mapping[str, object], float]  # Its kind, what it tells, and when.
_GRANTED = (  # With when the first of its allocations were.
    sa.select(attempts.c.id, attempts.c.granted_s, sa.func.min(allocations.c.granted_s).label("held_s"))
    .join(allocations, allocations.c.attempt_id == attempts.c.id)
    .group_by(attempts.c.id)
)
_STATES = sa.select(jobs.c.id, jobs.c.state).order_by(jobs.c.ordinal)
_TALLIED = sa.select(sa.func.coalesce(sa.func.sum(tallies.c.jobs), 0))
_LIVE = sa.select(sa.func.count()).where(jobs.c.state.in_(JOB_LIVE))
_LIVE_ATTEMPTS = sa.select(attempts.c.id, attempts.c.job_id, attempts.c.state, attempts.c.cluster).where(
    attempts.c.state.in_(ATTEMPT_LIVE)
)
_HELD = sa.select(
    attempts.c.job_id, sa.func.sum(allocations.c.nodes * (allocations.c.ended_s - allocations.c.granted_s))
).join(attempts, allocations.c.attempt_id == attempts.c.id)
_COST = sa.select(
    attempts.c.job_id, sa.func.sum(allocations.c.dollars_per_hour * (allocations.c.ended_s - allocations.c.granted_s))
).join(attempts, allocations.c.attempt_id == attempts.c.id)
_STOPPING = (
    sa.select(allocations.c.id, allocations.c.stopped_s, attempts.c.cluster)
    .join(attempts, allocations.c.attempt_id == attempts.c.id)
    .where(allocations.c.state == AllocationState.STOPPING.value)
)
_PROMISED = sa.select(whys.c.job_id, whys.c.start_s).where(whys.c.exact)
_PROMISES_TOLD = (  # A job that starts has had what it was promised.
    sa.select(events.c.job_id, events.c.detail)
    .where(events.c.kind.in_([StartPromisedEvent.kind, JobMovedEvent.kind]))
    .order_by(events.c.sequence)
)
_WAITING = sa.select(jobs.c.id).where(jobs.c.state == JobState.QUEUED.value)
_JOBS = sa.select(jobs.c.id, jobs.c.state)
_OVERRIDDEN = sa.select(jobs.c.id, jobs.c.overrides).where(jobs.c.overrides.is_not(None))
_ENDED = sa.select(attempts.c.id, attempts.c.state).where(attempts.c.state.not_in(ATTEMPT_LIVE))
_LIVE_ALLOCATIONS = (
    sa.select(
        allocations.c.id,
        attempts.c.id.label("attempt"),
        attempts.c.state.label("attempt_state"),
        jobs.c.id.label("job"),
        jobs.c.team,
    )
    .join(attempts, allocations.c.attempt_id == attempts.c.id)
    .join(jobs, attempts.c.job_id == jobs.c.id)
    .where(allocations.c.state.in_(ALLOCATION_LIVE))
)


@final
class Invariants:
    """The laws of one world.

    Args:
        store: The store that controllers use, by a connection of its own that never fails.
        clusters: The clusters, looked at past their faults.
        gangs: All agents and leads.
        failover: The laws of fail-over.
        silences: Whether anything here can make a cluster silent: only then may one be given up.
        watching: Those who watch nodes.
    """

    def __init__(
        self,
        store: Store,
        clusters: Mapping[ClusterName, SimulatedCluster],
        gangs: Gangs,
        clock: FakeClock,
        *,
        failover: FailoverLaws,
        silences: bool,
        watching: NodeWatchers,
    ) -> None:
        self._store = store
        self._clusters = clusters
        self._gangs = gangs
        self._clock = clock
        self.failover = failover
        self._silences = silences
        self._submitted: list[JobId] = []
        self._after: dict[JobId, tuple[JobId, ...]] = {}
        self._ended: dict[JobId, JobState] = {}
        self._stopping: dict[JobId, None] = {}
        self._paused: dict[str, str] = {}
        self.beyond = BeyondLaws(clusters, failover)
        self._health = HealthLaws(watching, clusters)

    def close(self) -> None:
        """Lets go of the store."""
        self._store.close()

    def submitted(self, job: JobId, *, after: tuple[JobId, ...] = ()) -> None:
        """Notes a job that must never be lost.

        Args:
            after: Jobs that must succeed before it starts.
        """
        self._submitted.append(job)
        self._after[job] = after

    def went_back(self, store: Store) -> None:
        """Goes on with a store that went back in time: of what it has forgotten nothing is asked of it.

        Args:
            store: It, as it is now, by a connection that never fails.
        """
        self._store.close()
        self._store = store
        with store.read() as connection:
            self.beyond.forget(connection)
            known = _states(connection)
        self._submitted = [job for job in self._submitted if job in known]
        self._ended, self._stopping, self._paused = {}, {}, {}

    def read(self) -> AbstractContextManager[sa.Connection]:
        """Returns a transaction that only reads, and never fails."""
        return self._store.read()

    def states(self) -> Mapping[JobId, JobState]:
        """Returns every job's state."""
        with self._store.read() as connection:
            return _states(connection)

    def check(self) -> None:
        """Checks every law that holds at every instant.

        Raises:
            AssertionError: One is broken; says which.
        """
        with self._store.read() as connection:
            states = _states(connection)
            self._check_jobs(states)
            assert connection.execute(_TALLIED).scalar() == connection.execute(_LIVE).scalar(), "tallies are wrong"
            self._check_attempts(connection, states)
            self._check_paused(connection, states)
            self._check_engines(connection)
            self._check_holdings(connection)
            self.failover.check(connection)
            self._health.check(connection)
            self._check_stops(connection)
            _check_promises(connection)

    def stops_due(self, answering: Collection[ClusterName]) -> Mapping[AllocationId, int]:
        """Returns how often each stop was said that its engine has not taken.

        Args:
            answering: Only what is on these clusters.
        """
        with self._store.read() as connection:
            due = [row for row in connection.execute(_STOPPING) if row.stopped_s is None and row.cluster in answering]
        return {AllocationId(row.id): self._clusters[row.cluster].stops[row.id] for row in due}

    def check_said(self, due: Mapping[AllocationId, int]) -> None:
        """Checks that stops were said once more.

        Args:
            due: From `stops_due`, before the engines were told.

        Raises:
            AssertionError: One was not.
        """
        said = sum((cluster.stops for cluster in self._clusters.values()), Counter[AllocationId]())
        kept = sorted(allocation for allocation, before in due.items() if said[allocation] <= before)
        assert not kept, f"{kept} shall stop, their clusters answer, and nobody told them to"

    def check_ends(self) -> Sequence[Event]:
        """Checks what holds once every job has ended: nothing runs, reports are kept once, time and money add up.

        The last that a lead told may never have arrived. Returns all that was told.

        Raises:
            AssertionError: Something does not.
        """
        latest_s = max(self.failover.latest_s, self._clock.now_s())
        for name, cluster in self._clusters.items():
            assert not cluster.running(), f"{name} runs {sorted(cluster.running())} for nobody"
        with self._store.read() as connection:
            everything = events_since(connection, since=0, limit=_EVENTS_MAX)
            sequences = [event.sequence for event in everything]
            assert sequences == sorted(set(sequences)), "events are out of order"
            granted = connection.execute(_GRANTED).all()
            granted_s = {row.id: row.granted_s for row in granted}
            wrong = [row for row in granted if row.granted_s > row.held_s]
            assert not wrong, f"attempts were granted after what they held first: {wrong[:3]}"
            for attempt, gang in self._gangs.attempts.items():
                if attempt not in granted_s:
                    assert self.beyond.went_back, f"{attempt} ran, and the store does not know it"
                    continue
                kept = [
                    (one.kind, dict(one.detail), one.time_s)
                    for one in everything
                    if one.attempt == attempt and one.kind not in TOLD_BY_CONTROLLER
                ]
                for kind, _, time_s in kept:  # Whatever the clock of its node says.
                    assert granted_s[attempt] <= time_s <= latest_s, f"{attempt} told at {time_s} of {kind}"
                for lead in gang.leads:  # In order of epoch.
                    for one in lead.told:
                        told = (one.kind, dict(one.detail), one.time_s)
                        if kept and _alike(kept[0], told, granted_s[attempt]):
                            kept = kept[1:]
                        elif not self.beyond.went_back:  # Else it may have been heard, and forgotten.
                            break
                assert not kept, f"{attempt}: {len(kept)} reports are kept twice, or out of order: {kept[:3]}"
            _check_told(connection, everything)
            _check_asked(everything)
            self.beyond.check_ends(connection, everything)
            self._check_accounts(connection)
        return everything

    def _check_accounts(self, connection: sa.Connection) -> None:
        now_s, lease_s = self._clock.now_s(), Settings().lease_s
        held_s = {row[0]: row[1] for row in connection.execute(_HELD.group_by(attempts.c.job_id))}
        cost = {row[0]: row[1] for row in connection.execute(_COST.group_by(attempts.c.job_id))}
        for job in jobs_by_id(connection, self._submitted).values():
            view = view_job(connection, job, now_s=now_s, settings=Settings(lease_s=lease_s))
            account, held = view.goodput, held_s.get(job.id, 0.0)
            if account is None:
                assert not view.attempts, f"{job.id} has {len(view.attempts)} attempts and no account"
                continue
            parts_s = sum(account.seconds.values())
            told = f"{job.id}: parts of {parts_s} s, allocated {account.allocated_s} s, held {held} s"
            assert abs(parts_s - account.allocated_s) < 1e-3, told
            assert abs(held - account.allocated_s) < 1e-3, told
            assert min(account.seconds.values()) >= 0, f"{job.id}: {account.seconds}"
            assert account.waited_s >= 0, f"{job.id}: waited {account.waited_s} s"
            dollars, wanted = sum(attempt.dollars for attempt in view.attempts), cost.get(job.id, 0.0) / 3_600.0
            assert abs(dollars - wanted) <= 1e-9 * max(1.0, wanted), f"{job.id}: costs {dollars}, held for {wanted}"

    def _check_jobs(self, states: Mapping[JobId, JobState]) -> None:
        assert sorted(states) == sorted(self._submitted), "jobs were lost, or came from nowhere"
        for job, before in self._ended.items():
            assert states[job] is before, f"{job} was {before.value} and is {states[job].value}"
        for job in self._stopping:
            assert states[job] is JobState.STOPPING or ended(states[job]), f"{job} was stopping, is {states[job].value}"
        self._stopping = {job: None for job, state in states.items() if state is JobState.STOPPING}
        self._ended = {job: state for job, state in states.items() if ended(state)}

    def _check_attempts(self, connection: sa.Connection, states: Mapping[JobId, JobState]) -> None:
        live: dict[str, list[str]] = {}
        for row in connection.execute(_LIVE_ATTEMPTS):
            live.setdefault(row.job_id, []).append(row.id)
        for job, state in states.items():
            wanted = 0 if state is JobState.QUEUED or ended(state) else 1
            assert len(live.get(job, [])) == wanted, f"{job} is {state.value} with live attempts {live.get(job, [])}"
            early = [other for other in self._after[job] if states[other] is not JobState.SUCCEEDED]
            assert not (wanted and early) or self.beyond.runs_early(job), (
                f"{job} is {state.value} before {early}, which it comes after"
            )

    def _check_paused(self, connection: sa.Connection, states: Mapping[JobId, JobState]) -> None:
        """Checks that no job starts while somebody keeps it from running."""
        paused: dict[str, str] = {}
        for row in connection.execute(_OVERRIDDEN):
            hold = read_text(Overrides, row.overrides).paused
            started = states[row.id] in (JobState.STARTING, JobState.RUNNING)
            if hold is not None and not started:
                paused[row.id] = str(hold)
            assert not started or str(hold) != self._paused.get(row.id), f"{row.id} is paused, and has started"
        self._paused = paused

    def _check_engines(self, connection: sa.Connection) -> None:
        known = {row.id: row for row in connection.execute(_LIVE_ALLOCATIONS)}
        held: dict[TeamName, int] = {}
        attempt_of: dict[JobId, AttemptId] = {}
        for name, cluster in self._clusters.items():
            chips = {node.name: node.chips * MILLI for node in cluster.inner.inventory().nodes}
            for node, milli in cluster.inner.used_chip_milli().items():
                assert milli <= chips[node], f"{node} of {name} has {chips[node]} and {milli} are in use"
            for allocation in sorted(cluster.running().keys() - cluster.strangers):
                assert allocation in known, f"{allocation} runs on {name} and the store thinks it gone"
                row = known[allocation]
                if row.attempt_state not in ATTEMPT_LIVE:
                    # Given up with its cluster: it may run on unseen, and nothing it says counts any more.
                    assert self._silences, f"{allocation} runs on {name}, and its attempt is {row.attempt_state}"
                    continue
                other = attempt_of.setdefault(JobId(row.job), AttemptId(row.attempt))
                assert other == row.attempt, f"{row.job} has two live attempts, {other} and {row.attempt}"
                if allocation not in self.beyond.adopted:  # What runs is adopted, whatever its team may hold.
                    milli = sum(cluster.orders[allocation].chip_milli)
                    held[TeamName(row.team)] = held.get(TeamName(row.team), 0) + milli
        self.beyond.check(attempt_of, connection)
        tree = {team.name: team for team in tenants(connection)}
        for team in tree.values():
            own = [milli for other, milli in held.items() if team.name in (other, tree[other].parent)]
            if team.chips_max is not None:
                most = team.chips_max * MILLI
                assert sum(own) <= most, f"{team.name} may hold {team.chips_max} chips and holds {sum(own)}"

    def _check_stops(self, connection: sa.Connection) -> None:
        for row in connection.execute(_STOPPING):
            heard = row.stopped_s is None or row.id in self._clusters[row.cluster].stopped
            assert heard, f"{row.cluster} is said to have taken the stop of {row.id}, and never heard of it"

    def _check_holdings(self, connection: sa.Connection) -> None:
        """Checks that what attempts are said to hold is what their allocations do, and fits the nodes."""
        rows = connection.execute(_LIVE_ATTEMPTS).all()
        live = [AttemptId(row.id) for row in rows]
        granted = grants(connection, live)
        own: dict[AttemptId, list[AllocationId]] = {attempt: [] for attempt in live}
        for one in sorted(live_allocations_of(connection, live), key=lambda one: (one.attempt, one.place)):
            own[one.attempt].append(one.id)
        held = parts(connection, [allocation for some in own.values() for allocation in some])
        used: dict[tuple[ClusterName, NodeName], int] = {}
        for row in rows:
            of = merged(held[allocation] for allocation in own[row.id])
            settled = row.state == AttemptState.STOPPING.value or of == granted[row.id]
            assert settled, f"{row.id} is said to hold {granted[row.id]} and holds {of}"
            for grant in of:
                for node, milli in zip(grant.nodes, grant.chip_milli, strict=True):
                    key = (ClusterName(row.cluster), node)
                    used[key] = used.get(key, 0) + milli
        for (name, node), milli in used.items():
            chips = {each.name: each.chips * MILLI for each in self._clusters[name].inner.inventory().nodes}
            assert milli <= chips[node], f"{node} of {name} has {chips[node]} and is granted {milli} times"


def _states(connection: sa.Connection) -> Mapping[JobId, JobState]:
    return {JobId(row.id): JobState(row.state) for row in connection.execute(_STATES)}


def _alike(kept: _Report, told: _Report, granted_s: float) -> bool:
    """Returns whether a report is kept as it was told; what clocks tell is held between grant and arrival."""
    in_time = kept[2] == told[2] or kept[2] == granted_s or granted_s < kept[2] < told[2]
    return in_time and kept[0] == told[0] and json.dumps(kept[1]) == json.dumps(told[1])


def _check_promises(connection: sa.Connection) -> None:
    """Checks that every start that is promised to a job that waits was told, and every change of it."""
    told = {row.job_id: json.loads(row.detail).get("start_s") for row in connection.execute(_PROMISES_TOLD)}
    promised = {row.job_id: row.start_s for row in connection.execute(_PROMISED)}
    for row in connection.execute(_WAITING):
        now, words = promised.get(row.id), told.get(row.id)
        assert now == words, f"{row.id} is promised to start at {now}, and was told {words}"


def _check_told(connection: sa.Connection, everything: Sequence[Event]) -> None:
    """Checks that every state was told, and that what was told of states last is what they are."""
    last: dict[str, str] = {}
    for one in everything:
        if one.kind == JobSubmittedEvent.kind and one.job is not None:
            last[one.job] = JobState.QUEUED.value
        elif one.kind == JobMovedEvent.kind and one.job is not None:
            assert one.detail["before"] == last[one.job], f"{one.job} was {last[one.job]}, {one.detail}"
            last[one.job] = str(one.detail["after"])
        elif one.kind == AttemptGrantedEvent.kind and one.attempt is not None:
            last[one.attempt] = "granted"
        elif one.kind == AttemptEndedEvent.kind and one.attempt is not None:
            last[one.attempt] = str(one.detail["outcome"])
    for row in connection.execute(sa.union_all(_JOBS, _ENDED)):
        assert last.get(row.id) == row.state, f"{row.id} is {row.state}, and told of as {last.get(row.id)}"


def _check_asked(everything: Sequence[Event]) -> None:
    """Checks that plans end only what goes on: of an attempt that stops, whyever, none asks again."""
    before: dict[AttemptId | None, object] = {}
    for one in everything:
        told = one.told
        if isinstance(told, StopRequestedEvent) and told.for_job is not None:
            last = before.get(one.attempt)
            fresh = isinstance(last, AttemptStoppingEvent) and last.cause in DISPLACED
            assert fresh, f"a plan asks {one.attempt} to stop for {told.for_job}, after {last}"
        before[one.attempt] = told
